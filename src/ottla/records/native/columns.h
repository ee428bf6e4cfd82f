/* From the bytes of a fetch to Arrow's columns, for Spark's source.
 *
 * `ottla.pipelines.source.kernel` has the same two functions in Python: they define every status and
 * every step of the cursor, and the numbers below are theirs.
 */
#ifndef OTTLA_COLUMNS_H
#define OTTLA_COLUMNS_H

#include "records.h"

/* Columns of the outline: one row for each batch. */
enum { BEGIN, STOP, COUNT, BASE, LAST, BASE_TIME, MAX_TIME, ATTRIBUTES, PRODUCER, CRC, WIDTH };

/* The cursor: where the walk is, how full the columns are, and how large what did not fit is. */
enum {
    BATCH,
    POSITION,
    LEFT,
    OFFSET,
    ROWS,
    KEYS,
    VALUES,
    HEADERS,
    HEADER_KEYS,
    HEADER_VALUES,
    KEY_NULLS,
    VALUE_NULLS,
    HEADER_NULLS,
    NEEDED,
    CURSOR
};

enum walk_status {
    WALK_DONE = 0,
    WALK_FULL = 1,
    WALK_RUNS_OVER = -1,
    WALK_VARINT = -2,
    WALK_RECORD_SIZE = -3,
    WALK_HEADER_COUNT = -4,
    WALK_OFFSETS = -5,
    WALK_TIMESTAMP = -6,
    WALK_LEFTOVER = -7,
    WALK_BATCH_LENGTH = -8,
    WALK_FOREIGN_MAGIC = -9,
    WALK_BATCH_FIELDS = -10
};

/* Arrow's buffers of a binary column: where each row ends, which are not null, the bytes. */
typedef struct {
    int32_t *ends;
    uint8_t *bits;
    uint8_t *bytes;
    int64_t room; /* for bytes */
} strings;

typedef struct {
    int64_t rows, headers; /* the most there is room for */
    int64_t *offsets, *times;
    int32_t *kinds, *header_ends;
    strings keys, values, header_keys, header_values;
} columns;

enum walk_status outline(const uint8_t *data, int64_t size, int64_t *table, int64_t rows,
                         int64_t *found);

enum walk_status fill_columns(const uint8_t *data, int64_t size, const int64_t *table, int64_t rows,
                              int64_t *cursor, int64_t first, int64_t limit, int with_headers,
                              const columns *out);

#endif
