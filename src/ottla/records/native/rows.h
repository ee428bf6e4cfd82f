/* From rows in Arrow's columns to records, for Spark's sink: where each row goes, and what it looks
 * like in a batch.
 *
 * `ottla.pipelines.sink.loops` says what Python sees of it, and has the numbers below. The arrays
 * are Ottla's own and not a stranger's, and are checked all the same: an index or an offset that
 * points outside is an answer, never a wild read or write.
 */
#ifndef OTTLA_ROWS_H
#define OTTLA_ROWS_H

#include "records.h"

#define ROWS_BAD (-2) /* an array points outside another one */

/* A column of byte strings: row n is data[offsets[n]] up to data[offsets[n + 1]], or null. */
typedef struct {
    int64_t count;
    const uint8_t *nulls;
    const int64_t *offsets; /* one more than `count` */
    const uint8_t *data;
    int64_t size; /* of `data` */
} blobs;

/* What a task knows of its topics. `available` has the partitions that rows without a key may go to,
 * topic n those from available_at[n] on. `turn` and `room` say which of them, and for how long. */
typedef struct {
    int64_t count;
    const int64_t *partitions, *bases;
    const int64_t *available, *available_at;
    int64_t available_count;
    int64_t *turn, *room;
    int64_t chunk;
} topics;

/* The first row that chose a partition which is not there, -1 when there is none, or ROWS_BAD. */
int64_t route(int64_t rows, const int64_t *topic_of, const int64_t *chosen, const uint8_t *unkeyed,
              const blobs *keys, const int64_t *sizes, const topics *known, int64_t *lanes);

/* A counting sort that keeps rows of one lane in their order: lane n has the rows order[starts[n]]
 * up to order[starts[n + 1]]. The number of rows, or ROWS_BAD. */
int64_t sort_by_lane(int64_t rows, const int64_t *lane_of, int64_t lanes, int64_t *starts,
                     int64_t *order);

/* What a batch in the making knows of itself. */
enum { MADE_POSITION, MADE_COUNT, MADE_BASE_TIME, MADE_MAX_TIME, MADE_NEEDED, MADE };

typedef struct {
    int64_t count;
    const int64_t *times;
    blobs keys, values;
    const int64_t *header_lists; /* row n has the headers from here up to the next entry */
    blobs header_names, header_values; /* names have no nulls */
} table_rows;

/* Append the rows order[first] up to order[last] to a batch until it is full: how far it came, or
 * ROWS_BAD. When that is not `last`, MADE_NEEDED says how large `out` would have to be for the next
 * one, or `numbers`, which notes first_row + row for each record, is full. */
int64_t encode(const table_rows *rows, const int64_t *order, int64_t first, int64_t last,
               uint8_t *out, int64_t room, int64_t *numbers, int64_t most, int64_t first_row,
               int64_t *made);

#endif
