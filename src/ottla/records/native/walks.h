/* Walks over the records of one batch, decompressed. */
#ifndef OTTLA_WALKS_H
#define OTTLA_WALKS_H

#include "records.h"

typedef struct {
    int64_t oldest_delta, newest_delta, keyless;
    int in_order;
} summary;

typedef struct {
    int keyed, has_exempt;
    int64_t oldest_delta, newest_delta, exempt_delta;
} rules;

typedef struct {
    int64_t index, offset_delta, timestamp_delta;
    int has_key;
} offender;

/* Each gives 1, or 0 and why not. */
int summarize(const uint8_t *data, int64_t size, int64_t count, summary *result, failure *why);

/* `kept` has room for `limit`; *total may be more. *late of them have the wrong time, and not a
 * missing key. */
int find_offenders(const uint8_t *data, int64_t size, int64_t count, const rules *broken,
                   offender *kept, int64_t limit, int64_t *total, int64_t *late, failure *why);

/* How large the records are with the offset deltas 0, 1, 2, … and, with `same_time`, with the
 * timestamp delta 0. */
int measure_renumbered(const uint8_t *data, int64_t size, int64_t count, int same_time,
                       int64_t *result, failure *why);

/* Write them. 0 if that would be more than `room`. */
int write_renumbered(const uint8_t *data, int64_t size, int64_t count, int same_time, uint8_t *out,
                     int64_t room);

/* *found is set to whether there is one. */
int first_at_or_after(const uint8_t *data, int64_t size, int64_t count, int64_t base_offset,
                      int64_t base_timestamp, int64_t timestamp, int64_t min_offset, int *found,
                      int64_t *offset, int64_t *moment, failure *why);

#endif
