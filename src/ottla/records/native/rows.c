#include "rows.h"

#define MOST (INT64_C(1) << 40) /* bytes of a record, or it is no record */

static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The variant that Java's producer has: `ottla.client.partitioners.murmur2`. */
static uint32_t murmur2(const uint8_t *p, int64_t size) {
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28c ^ (uint32_t)size;
    for (; size >= 4; size -= 4, p += 4) {
        uint32_t k = load_le32(p) * m;
        k = (k ^ k >> 24) * m;
        h = (h * m) ^ k;
    }
    if (size > 0) {
        if (size > 2) h ^= (uint32_t)p[2] << 16;
        if (size > 1) h ^= (uint32_t)p[1] << 8;
        h = (h ^ p[0]) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

/* Where `index` of the column lies; its size, or -1 if that is outside. */
static inline int64_t find(const blobs *column, int64_t index, const uint8_t **at) {
    int64_t start = column->offsets[index], stop = column->offsets[index + 1];
    if (UNLIKELY(start < 0 || stop < start || stop > column->size)) return -1;
    *at = column->data + start;
    return stop - start;
}

/* The next partition for a row without a key, or ROWS_BAD. */
static int64_t take_turn(const topics *known, int64_t topic, int64_t size) {
    int64_t first = known->available_at[topic], stop = known->available_at[topic + 1];
    int64_t turn = known->turn[topic];
    if (UNLIKELY(first < 0 || stop <= first || stop > known->available_count || turn < 0))
        return ROWS_BAD;
    int64_t partition = known->available[first + turn % (stop - first)];
    known->room[topic] -= size;
    if (known->room[topic] <= 0) {
        known->turn[topic] = turn + 1;
        known->room[topic] = known->chunk;
    }
    return partition;
}

int64_t route(int64_t rows, const int64_t *topic_of, const int64_t *chosen, const uint8_t *unkeyed,
              const blobs *keys, const int64_t *sizes, const topics *known, int64_t *lanes) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t topic = topic_of[row], partition = chosen[row];
        if (UNLIKELY(topic < 0 || topic >= known->count)) return ROWS_BAD;
        int64_t partitions = known->partitions[topic];
        if (UNLIKELY(partitions < 1)) return ROWS_BAD;
        if (partition >= 0) {
            if (partition >= partitions) return row;
        } else if (unkeyed[row]) {
            partition = take_turn(known, topic, sizes[row]);
            if (UNLIKELY(partition < 0)) return ROWS_BAD;
        } else {
            const uint8_t *key;
            int64_t size = find(keys, row, &key);
            if (UNLIKELY(size < 0)) return ROWS_BAD;
            partition = (int64_t)(murmur2(key, size) & 0x7fffffff) % partitions;
        }
        lanes[row] = known->bases[topic] + partition;
    }
    return -1;
}

int64_t sort_by_lane(int64_t rows, const int64_t *lane_of, int64_t lanes, int64_t *starts,
                     int64_t *order) {
    memset(starts, 0, (size_t)(lanes + 1) * sizeof *starts);
    for (int64_t row = 0; row < rows; row++) {
        if (UNLIKELY(lane_of[row] < 0 || lane_of[row] >= lanes)) return ROWS_BAD;
        starts[lane_of[row] + 1]++;
    }
    for (int64_t lane = 1; lane <= lanes; lane++) starts[lane] += starts[lane - 1];
    /* Each start runs on to the next lane's while it is used, and is put back afterwards. */
    for (int64_t row = 0; row < rows; row++) {
        int64_t lane = lane_of[row];
        if (UNLIKELY(lane < 0 || lane >= lanes || starts[lane] >= rows)) return ROWS_BAD;
        order[starts[lane]++] = row;
    }
    for (int64_t lane = lanes; lane > 0; lane--) starts[lane] = starts[lane - 1];
    starts[0] = 0;
    return rows;
}

/* What the headers of `row` take, or -1. */
static int64_t measure_headers(const table_rows *rows, int64_t first, int64_t stop) {
    const uint8_t *at;
    int64_t total = 0;
    for (int64_t index = first; index < stop; index++) {
        int64_t name = find(&rows->header_names, index, &at), value = -1;
        if (UNLIKELY(name < 0)) return -1;
        if (!rows->header_values.nulls[index]) {
            value = find(&rows->header_values, index, &at);
            if (UNLIKELY(value < 0)) return -1;
        }
        total += varint_size(name) + name + varint_size(value) + (value > 0 ? value : 0);
        if (UNLIKELY(total > MOST)) return -1;
    }
    return total;
}

/* A byte string with its size before it; `size` is negative for null. `stop` is the end of `out`. */
static inline uint8_t *put(uint8_t *out, const uint8_t *stop, const uint8_t *from,
                           const uint8_t *end, int64_t size) {
    out = write_varint(out, size);
    if (size <= 0) return out;
    copy_bytes(out, stop - out, from, end - from, size);
    return out + size;
}

/* NULL if they no longer are what was measured. */
static uint8_t *put_headers(const table_rows *rows, int64_t first, int64_t stop, uint8_t *out,
                            const uint8_t *end) {
    const blobs *names = &rows->header_names, *values = &rows->header_values;
    for (int64_t index = first; index < stop; index++) {
        const uint8_t *name_at = NULL, *value_at = NULL;
        int64_t name = find(names, index, &name_at), value = -1;
        if (!values->nulls[index]) value = find(values, index, &value_at);
        int64_t needed = varint_size(name) + name + varint_size(value) + (value > 0 ? value : 0);
        if (UNLIKELY(name < 0 || needed > end - out)) return NULL;
        out = put(out, end, name_at, names->data + names->size, name);
        out = put(out, end, value_at, values->data + values->size, value);
    }
    return out;
}

int64_t encode(const table_rows *rows, const int64_t *order, int64_t first, int64_t last,
               uint8_t *out, int64_t room, int64_t *numbers, int64_t most, int64_t first_row,
               int64_t *made) {
    const uint8_t *keys_end = rows->keys.data + rows->keys.size;
    const uint8_t *values_end = rows->values.data + rows->values.size;
    int64_t position = made[MADE_POSITION], count = made[MADE_COUNT], index = first;
    for (; index < last && count < most; index++) {
        int64_t row = order[index];
        if (UNLIKELY(row < 0 || row >= rows->count)) return ROWS_BAD;
        int64_t moment = rows->times[row];
        uint64_t base = (uint64_t)(count ? made[MADE_BASE_TIME] : moment);
        int64_t delta = (int64_t)((uint64_t)moment - base);
        const uint8_t *key = NULL, *value = NULL;
        int64_t key_size = -1, value_size = -1;
        if (!rows->keys.nulls[row]) {
            key_size = find(&rows->keys, row, &key);
            if (UNLIKELY(key_size < 0)) return ROWS_BAD;
        }
        if (!rows->values.nulls[row]) {
            value_size = find(&rows->values, row, &value);
            if (UNLIKELY(value_size < 0)) return ROWS_BAD;
        }
        int64_t from = rows->header_lists[row], to = rows->header_lists[row + 1];
        int64_t headers = 0, header_bytes = 0;
        if (UNLIKELY(from != to)) {
            if (from < 0 || to < from || to > rows->header_values.count) return ROWS_BAD;
            headers = to - from;
            header_bytes = measure_headers(rows, from, to);
            if (header_bytes < 0) return ROWS_BAD;
        }
        int64_t size = 1 + varint_size(delta) + varint_size(count) + varint_size(key_size) +
                       (key_size > 0 ? key_size : 0) + varint_size(value_size) +
                       (value_size > 0 ? value_size : 0) + varint_size(headers) + header_bytes;
        int64_t needed = varint_size(size) + size;
        if (UNLIKELY(needed > room - position)) {
            made[MADE_NEEDED] = position + needed;
            break;
        }
        uint8_t *p = write_varint(out + position, size);
        const uint8_t *end = out + room;
        *p++ = 0; /* attributes: no bit has a meaning yet */
        p = write_varint(p, delta);
        p = write_varint(p, count);
        p = put(p, end, key, keys_end, key_size);
        p = put(p, end, value, values_end, value_size);
        p = write_varint(p, headers);
        if (UNLIKELY(headers != 0)) {
            p = put_headers(rows, from, to, p, out + position + needed);
            if (p == NULL) return ROWS_BAD;
        }
        position = p - out;
        numbers[count] = first_row + row;
        if (count == 0) made[MADE_BASE_TIME] = made[MADE_MAX_TIME] = moment;
        if (moment > made[MADE_MAX_TIME]) made[MADE_MAX_TIME] = moment;
        count++;
    }
    made[MADE_POSITION] = position;
    made[MADE_COUNT] = count;
    return index;
}
