#include "columns.h"

#define MAGIC_AT 16
#define LATEST_MS (INT64_MAX / 1000) /* in microseconds it still fits 64 bits */

enum walk_status outline(const uint8_t *data, int64_t size, int64_t *table, int64_t rows,
                         int64_t *found) {
    int64_t position = 0, row = 0;
    found[0] = found[1] = 0;
    while (size - position > MAGIC_AT) {
        const uint8_t *p = data + position;
        if (p[MAGIC_AT] != 2) return WALK_FOREIGN_MAGIC;
        int64_t length = (int32_t)load_be32(p + 8);
        if (length < HEADER_SIZE - LOG_OVERHEAD) return WALK_BATCH_LENGTH;
        if (length > size - position - LOG_OVERHEAD) return WALK_DONE;
        if (row >= rows) return WALK_FULL;
        int64_t base = (int64_t)load_be64(p);
        int64_t delta = (int32_t)load_be32(p + 23), count = (int32_t)load_be32(p + 57);
        if (base < 0 || delta < 0 || count < 0 || base > INT64_MAX - 1 - delta)
            return WALK_BATCH_FIELDS;
        int64_t *entry = table + row * WIDTH;
        entry[BEGIN] = position + HEADER_SIZE;
        entry[STOP] = position + LOG_OVERHEAD + length;
        entry[COUNT] = count;
        entry[BASE] = base;
        entry[LAST] = base + delta;
        entry[BASE_TIME] = (int64_t)load_be64(p + 27);
        entry[MAX_TIME] = (int64_t)load_be64(p + 35);
        entry[ATTRIBUTES] = (int16_t)(p[21] << 8 | p[22]);
        entry[PRODUCER] = (int64_t)load_be64(p + 43);
        entry[CRC] = load_be32(p + 17);
        position += LOG_OVERHEAD + length;
        found[0] = ++row;
        found[1] = position;
    }
    return WALK_DONE;
}

static enum walk_status status_of(enum fault fault) {
    return fault == WIDE_VARINT ? WALK_VARINT : WALK_RUNS_OVER;
}

static inline void set_bit(uint8_t *bits, int64_t index) {
    bits[index >> 3] |= (uint8_t)(1 << (index & 7));
}

static inline void append(const strings *column, int64_t used, const uint8_t *from,
                          const uint8_t *end, int64_t size) {
    copy_bytes(column->bytes + used, column->room - used, from, end - from, size);
}

#define READ(p, stop, value)                                                                       \
    do {                                                                                           \
        enum fault fault_ = read_varint(&(p), stop, &(value));                                     \
        if (UNLIKELY(fault_)) return status_of(fault_);                                            \
    } while (0)

/* The headers of one record, from `p` on. They count when the caller moves the cursor. */
static enum walk_status fill_headers(const uint8_t **at, const uint8_t *stop, const uint8_t *end,
                                     int64_t count, int with_headers, int64_t *next,
                                     const columns *out) {
    const uint8_t *p = *at;
    for (; count > 0; count--) {
        int64_t name_size, size;
        READ(p, stop, name_size);
        if (name_size < 0 || name_size > stop - p) return WALK_RUNS_OVER;
        const uint8_t *name = p;
        p += name_size;
        READ(p, stop, size);
        if (size > stop - p) return WALK_RUNS_OVER;
        if (with_headers) {
            if (name_size > out->header_keys.room - next[HEADER_KEYS] ||
                size > out->header_values.room - next[HEADER_VALUES])
                return WALK_FULL;
            append(&out->header_keys, next[HEADER_KEYS], name, end, name_size);
            next[HEADER_KEYS] += name_size;
            if (size >= 0) {
                append(&out->header_values, next[HEADER_VALUES], p, end, size);
                next[HEADER_VALUES] += size;
                set_bit(out->header_values.bits, next[HEADERS]);
            } else {
                next[HEADER_NULLS]++;
            }
            next[HEADERS]++;
            out->header_keys.ends[next[HEADERS]] = (int32_t)next[HEADER_KEYS];
            out->header_values.ends[next[HEADERS]] = (int32_t)next[HEADER_VALUES];
        }
        if (size > 0) p += size;
    }
    *at = p;
    return WALK_DONE;
}

/* The records of one batch; `cursor` is where it begins, and is left where it ended. */
static enum walk_status fill_from_batch(const uint8_t *data, int64_t size, const int64_t *entry,
                                        int64_t *cursor, int64_t first, int64_t limit,
                                        int with_headers, const columns *out) {
    const uint8_t *end = data + size, *stop = data + entry[STOP];
    int64_t base = entry[BASE], span = (int64_t)((uint64_t)entry[LAST] - (uint64_t)base);
    int append_time = (entry[ATTRIBUTES] & APPEND_TIME_FLAG) != 0;
    int64_t base_time = append_time ? entry[MAX_TIME] : entry[BASE_TIME];
    while (cursor[LEFT] > 0) {
        const uint8_t *p = data + cursor[POSITION];
        int64_t length, delta_time, delta, key_size, value_size, header_count;
        READ(p, stop, length);
        if (length < 1 || length > stop - p) return WALK_RUNS_OVER;
        const uint8_t *record_end = p + length;
        p++; /* attributes */
        READ(p, record_end, delta_time);
        READ(p, record_end, delta);
        if (delta < 0 || delta > span) return WALK_OFFSETS;
        int64_t offset = (int64_t)((uint64_t)base + (uint64_t)delta);
        if (offset <= cursor[OFFSET]) return WALK_OFFSETS;
        if (offset >= limit) return WALK_DONE;
        if (offset < first) {
            cursor[OFFSET] = offset;
            cursor[POSITION] = record_end - data;
            cursor[LEFT]--;
            continue;
        }
        int64_t moment = base_time;
        if (!append_time) {
            if (delta_time > LATEST_MS || delta_time < -LATEST_MS) return WALK_TIMESTAMP;
            moment += delta_time;
            if (moment > LATEST_MS || moment < -LATEST_MS) return WALK_TIMESTAMP;
        }
        READ(p, record_end, key_size);
        const uint8_t *key = p;
        if (key_size > 0) {
            if (key_size > record_end - p) return WALK_RUNS_OVER;
            p += key_size;
        }
        READ(p, record_end, value_size);
        const uint8_t *value = p;
        if (value_size > 0) {
            if (value_size > record_end - p) return WALK_RUNS_OVER;
            p += value_size;
        }
        READ(p, record_end, header_count);
        if (header_count < 0 || header_count > record_end - p) return WALK_HEADER_COUNT;
        int64_t row = cursor[ROWS];
        if (row >= out->rows || key_size > out->keys.room - cursor[KEYS] ||
            value_size > out->values.room - cursor[VALUES] ||
            (with_headers && header_count > out->headers - cursor[HEADERS])) {
            cursor[NEEDED] = length;
            return WALK_FULL;
        }
        if (header_count) {
            /* The cursor moves when the record is through; FULL in the middle takes nothing of it. */
            int64_t next[CURSOR];
            memcpy(next, cursor, sizeof next);
            enum walk_status status = fill_headers(&p, record_end, end, header_count, with_headers,
                                                   next, out);
            if (status == WALK_FULL) cursor[NEEDED] = length;
            if (status != WALK_DONE) return status;
            if (p != record_end) return WALK_RECORD_SIZE;
            memcpy(cursor, next, sizeof next);
        }
        if (p != record_end) return WALK_RECORD_SIZE;
        if (key_size >= 0) {
            append(&out->keys, cursor[KEYS], key, end, key_size);
            cursor[KEYS] += key_size;
            set_bit(out->keys.bits, row);
        } else {
            cursor[KEY_NULLS]++;
        }
        if (value_size >= 0) {
            append(&out->values, cursor[VALUES], value, end, value_size);
            cursor[VALUES] += value_size;
            set_bit(out->values.bits, row);
        } else {
            cursor[VALUE_NULLS]++;
        }
        out->offsets[row] = offset;
        out->times[row] = moment * 1000;
        out->kinds[row] = append_time;
        row++;
        out->keys.ends[row] = (int32_t)cursor[KEYS];
        out->values.ends[row] = (int32_t)cursor[VALUES];
        if (with_headers) out->header_ends[row] = (int32_t)cursor[HEADERS];
        cursor[ROWS] = row;
        cursor[OFFSET] = offset;
        cursor[POSITION] = record_end - data;
        cursor[LEFT]--;
    }
    return cursor[POSITION] == entry[STOP] ? WALK_DONE : WALK_LEFTOVER;
}

enum walk_status fill_columns(const uint8_t *data, int64_t size, const int64_t *table, int64_t rows,
                              int64_t *cursor, int64_t first, int64_t limit, int with_headers,
                              const columns *out) {
    while (cursor[BATCH] < rows) {
        const int64_t *entry = table + cursor[BATCH] * WIDTH;
        if (entry[STOP] > size || entry[STOP] < 0 || entry[BEGIN] < 0) return WALK_RUNS_OVER;
        int64_t time = entry[ATTRIBUTES] & APPEND_TIME_FLAG ? entry[MAX_TIME] : entry[BASE_TIME];
        if (time > LATEST_MS || time < -LATEST_MS) return WALK_TIMESTAMP;
        if (cursor[POSITION] < 0) {
            cursor[POSITION] = entry[BEGIN];
            cursor[LEFT] = entry[COUNT];
            cursor[OFFSET] = (int64_t)((uint64_t)entry[BASE] - 1);
        }
        if (cursor[POSITION] > entry[STOP])
            return cursor[LEFT] > 0 ? WALK_RUNS_OVER : WALK_LEFTOVER;
        enum walk_status status =
            fill_from_batch(data, size, entry, cursor, first, limit, with_headers, out);
        if (status != WALK_DONE) return status;
        cursor[POSITION] = -1;
        cursor[BATCH]++;
    }
    return WALK_DONE;
}
