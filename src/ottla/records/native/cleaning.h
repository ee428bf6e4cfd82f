/* What the log cleaner does with records: noting keys, and copying what stays. */
#ifndef OTTLA_CLEANING_H
#define OTTLA_CLEANING_H

#include "keys.h"

/* Why a walk over a chunk ended: the values of `End` in Python. */
enum chunk_end { AT_CHUNK_END = 0, AT_SPECIAL, AT_FULL, AT_DAMAGED, AT_STOP_OFFSET, AT_NO_MEMORY };

/* Position and size in the output, base offset, last offset, max timestamp. */
#define ROW_WIDTH 5

typedef struct {
    int64_t now_ms, horizon_ms;
    const int64_t *must_stay; /* ascending */
    int64_t must_stay_count;
} keep_rules;

/* One byte for each record of a batch: whether it stays. Grows as needed. */
typedef struct {
    uint8_t *keep;
    int64_t room;
} scratch;

typedef struct {
    int64_t read, kept;
    int64_t body_size; /* of what stays */
    int64_t base_timestamp, max_timestamp;
    int changed, sets_horizon;
} choice;

typedef struct {
    int64_t position, filled, read, kept;
    int64_t *rows;
    int64_t row_count, row_room;
} filter_result;

enum chunk_end index_chunk(key_offsets *keys, const uint8_t *chunk, int64_t size,
                           int64_t *position, int64_t first_offset, int64_t stop_offset,
                           int64_t *indexed);

/* 1, with *full, or 0 and why not. */
int index_records(key_offsets *keys, const header *batch, const uint8_t *data, int64_t size,
                  int64_t first_offset, int64_t stop_offset, int *full, failure *why);

/* `result` begins with the position and what is filled; its rows are the caller's to free. */
enum chunk_end filter_chunk(const key_offsets *keys, const uint8_t *chunk, int64_t size,
                            uint8_t *out, int64_t room, const keep_rules *rules, scratch *space,
                            filter_result *result);

/* Which records stay, into `space`: 1, or 0 and why not. */
int choose(const key_offsets *keys, const header *batch, const uint8_t *data, int64_t size,
           const keep_rules *rules, scratch *space, choice *chosen, failure *why);

/* Write the `body_size` bytes of records that `choose` left. 0 if they are not the same any more:
 * another thread writes to them. */
int write_kept(const header *batch, const uint8_t *data, int64_t size, const scratch *space,
               const choice *chosen, uint8_t *out);

#endif
