#include "cleaning.h"

#include <stdlib.h>

#include "crc32c.h"

/* Keys of this many records are hashed, and their slots asked for, before the first is looked at:
 * a slot is nearly always a miss of every cache. */
#define AHEAD 16

/* The header at `position`: 1, or 0 and the reason in *end. */
static int next_batch(const uint8_t *chunk, int64_t size, int64_t position, header *batch,
                      enum chunk_end *end) {
    int64_t left = size - position;
    *end = AT_CHUNK_END;
    if (left < LOG_OVERHEAD) return 0;
    const uint8_t *p = chunk + position;
    int32_t length = (int32_t)load_be32(p + 8);
    if (length < HEADER_SIZE - LOG_OVERHEAD) {
        *end = AT_DAMAGED;
        return 0;
    }
    if (length > left - LOG_OVERHEAD) return 0;
    batch->base_offset = (int64_t)load_be64(p);
    batch->size = (int64_t)length + LOG_OVERHEAD;
    batch->crc = load_be32(p + 17);
    batch->attributes = (int)(p[21] << 8 | p[22]);
    batch->last_offset_delta = (int32_t)load_be32(p + 23);
    batch->base_timestamp = (int64_t)load_be64(p + 27);
    batch->max_timestamp = (int64_t)load_be64(p + 35);
    batch->producer_id = (int64_t)load_be64(p + 43);
    batch->record_count = (int32_t)load_be32(p + 57);
    if (p[16] != 2 || batch->base_offset < 0 || batch->last_offset_delta < 0 ||
        batch->record_count < 0 ||
        batch->base_offset >= INT64_MAX - batch->last_offset_delta) {
        *end = AT_DAMAGED;
        return 0;
    }
    batch->last_offset = batch->base_offset + batch->last_offset_delta;
    return 1;
}

static int is_sound(const uint8_t *p, const header *batch) {
    return crc32c(p + 21, (size_t)(batch->size - 21)) == batch->crc;
}

/* ---------------------------------------------------------------- the first walk: noting keys */

typedef struct {
    hash128 hash;
    int64_t offset;
} pending;

static int put_all(key_offsets *keys, const pending *waiting, int count) {
    for (int index = 0; index < count; index++)
        if (!keys_put(keys, waiting[index].hash, waiting[index].offset)) return 0;
    return 1;
}

int index_records(key_offsets *keys, const header *batch, const uint8_t *data, int64_t size,
                  int64_t first_offset, int64_t stop_offset, int *full, failure *why) {
    const uint8_t *p = data, *end = data + size;
    pending waiting[AHEAD];
    int count = 0, sound = 1;
    record each;
    *full = 0;
    for (int32_t left = batch->record_count; left > 0; left--) {
        if (UNLIKELY(!read_record(p, end, &each, why))) {
            sound = 0;
            break;
        }
        if (UNLIKELY(each.offset_delta < 0 || each.offset_delta > batch->last_offset_delta)) {
            sound = fail(why, OFFSET_DELTA, each.offset_delta, 0);
            break;
        }
        p = each.stop;
        int64_t offset = batch->base_offset + each.offset_delta;
        if (each.key_size < 0 || offset < first_offset || offset >= stop_offset) continue;
        waiting[count].hash = siphash128(keys->secret, each.key, (size_t)each.key_size);
        waiting[count].offset = offset;
        PREFETCH(keys->slots + home_of(keys, waiting[count].hash));
        if (++count == AHEAD) {
            if (!put_all(keys, waiting, count)) {
                *full = 1;
                return 1;
            }
            count = 0;
        }
    }
    if (!put_all(keys, waiting, count)) {
        *full = 1;
        return 1;
    }
    if (!sound) return 0;
    if (p != end) return fail(why, LEFTOVER, end - p, batch->record_count);
    int64_t last = batch->last_offset < stop_offset - 1 ? batch->last_offset : stop_offset - 1;
    if (last >= first_offset && last > keys->latest_offset) keys->latest_offset = last;
    return 1;
}

enum chunk_end index_chunk(key_offsets *keys, const uint8_t *chunk, int64_t size,
                           int64_t *position, int64_t first_offset, int64_t stop_offset,
                           int64_t *indexed) {
    enum chunk_end end;
    header batch;
    failure why;
    for (; next_batch(chunk, size, *position, &batch, &end); *position += batch.size) {
        if (batch.base_offset >= stop_offset) return AT_STOP_OFFSET;
        if (batch.last_offset < first_offset &&
            !(batch.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG)))
            continue;
        if (batch.attributes & SPECIAL_MASK) return AT_SPECIAL;
        const uint8_t *p = chunk + *position;
        int full;
        if (!is_sound(p, &batch)) return AT_DAMAGED;
        if (!index_records(keys, &batch, p + HEADER_SIZE, batch.size - HEADER_SIZE, first_offset,
                           stop_offset, &full, &why))
            return AT_DAMAGED;
        if (full) return AT_FULL;
        *indexed += batch.record_count;
    }
    return end;
}

/* -------------------------------------------------------------- the second walk: what stays? */

static int make_room(scratch *space, int64_t count) {
    if (count <= space->room) return 1;
    uint8_t *larger = realloc(space->keep, (size_t)count);
    if (larger == NULL) return 0;
    space->keep = larger;
    space->room = count;
    return 1;
}

/* The delta from the new base timestamp, and the length of a record that is written with it. */
static int64_t with_horizon(const header *batch, const choice *chosen, const record *each,
                            int64_t *length) {
    int64_t moment = batch->attributes & APPEND_TIME_FLAG
                         ? batch->max_timestamp
                         : wrapping_add(batch->base_timestamp, each->timestamp_delta);
    int64_t delta = wrapping_sub(moment, chosen->base_timestamp);
    *length = 1 + varint_size(delta) + (each->stop - each->after_time);
    return delta;
}

/* The size of what stays when every timestamp is written anew: 1, or 0 and why not. */
static int measure(const header *batch, const uint8_t *data, int64_t size, const scratch *space,
                   choice *chosen, failure *why) {
    const uint8_t *p = data, *end = data + size;
    record each;
    chosen->body_size = 0;
    for (int64_t index = 0; index < chosen->read; index++, p = each.stop) {
        int64_t length;
        if (!read_record(p, end, &each, why)) return 0;
        if (!space->keep[index]) continue;
        with_horizon(batch, chosen, &each, &length);
        chosen->body_size += varint_size(length) + length;
    }
    return 1;
}

int choose(const key_offsets *keys, const header *batch, const uint8_t *data, int64_t size,
           const keep_rules *rules, scratch *space, choice *chosen, failure *why) {
    const uint8_t *p = data, *end = data + size;
    int64_t count = batch->record_count, latest = keys->latest_offset;
    int has_horizon = (batch->attributes & DELETE_HORIZON_FLAG) != 0;
    int drops_tombstones = has_horizon && rules->now_ms >= batch->base_timestamp;
    int append_time = (batch->attributes & APPEND_TIME_FLAG) != 0;
    int tombstones = 0;
    record some[AHEAD];
    hash128 hashes[AHEAD];
    memset(chosen, 0, sizeof *chosen);
    chosen->max_timestamp = NO_TIMESTAMP;
    if (count > size / SMALLEST_RECORD) return fail(why, RUNS_OVER, 0, 0);
    if (!make_room(space, count)) return fail(why, NO_MEMORY, 0, 0);
    for (int64_t done = 0; done < count;) {
        int here = count - done < AHEAD ? (int)(count - done) : AHEAD;
        for (int index = 0; index < here; index++) {
            record *each = some + index;
            if (UNLIKELY(!read_record(p, end, each, why))) return 0;
            if (UNLIKELY(each->offset_delta < 0 || each->offset_delta > batch->last_offset_delta))
                return fail(why, OFFSET_DELTA, each->offset_delta, 0);
            p = each->stop;
            if (each->key_size >= 0) {
                hashes[index] = siphash128(keys->secret, each->key, (size_t)each->key_size);
                PREFETCH(keys->slots + home_of(keys, hashes[index]));
            }
        }
        for (int index = 0; index < here; index++) {
            const record *each = some + index;
            int64_t offset = batch->base_offset + each->offset_delta;
            int64_t moment = wrapping_add(batch->base_timestamp, each->timestamp_delta);
            int stays = offset > latest || (each->key_size >= 0 &&
                                            offset >= keys_get(keys, hashes[index]) &&
                                            (each->value_size >= 0 || !drops_tombstones));
            space->keep[done + index] = (uint8_t)stays;
            if (!stays) continue;
            tombstones |= each->value_size < 0;
            if (append_time) moment = batch->max_timestamp;
            if (moment > chosen->max_timestamp) chosen->max_timestamp = moment;
            chosen->body_size += each->stop - each->start;
            chosen->kept++;
        }
        done += here;
    }
    if (p != end) return fail(why, LEFTOVER, end - p, count);
    chosen->read = count;
    chosen->sets_horizon = tombstones && !has_horizon;
    chosen->base_timestamp = chosen->sets_horizon ? rules->horizon_ms : batch->base_timestamp;
    chosen->changed = chosen->sets_horizon || chosen->kept != count;
    if (chosen->sets_horizon && !measure(batch, data, size, space, chosen, why)) return 0;
    if (chosen->body_size > INT32_MAX - HEADER_SIZE) return fail(why, TOO_LARGE, 0, 0);
    return 1;
}

int write_kept(const header *batch, const uint8_t *data, int64_t size, const scratch *space,
               const choice *chosen, uint8_t *out) {
    const uint8_t *p = data, *end = data + size, *run = data;
    int64_t left = chosen->body_size;
    failure why;
    record each;
    for (int64_t index = 0; index < chosen->read; index++, p = each.stop) {
        if (!read_record(p, end, &each, &why)) return 0;
        if (chosen->sets_horizon) {
            int64_t length;
            if (!space->keep[index]) continue;
            int64_t delta = with_horizon(batch, chosen, &each, &length);
            left -= varint_size(length) + length;
            if (left < 0) return 0;
            out = write_varint(out, length);
            *out++ = *each.content;
            out = write_varint(out, delta);
            memcpy(out, each.after_time, (size_t)(each.stop - each.after_time));
            out += each.stop - each.after_time;
        } else if (!space->keep[index]) { /* what stayed before it goes in one piece */
            left -= p - run;
            if (left < 0) return 0;
            memcpy(out, run, (size_t)(p - run));
            out += p - run;
            run = each.stop;
        }
    }
    if (chosen->sets_horizon) return left == 0;
    if (left != p - run) return 0;
    memcpy(out, run, (size_t)(p - run));
    return 1;
}

static int64_t place_of(const int64_t *ascending, int64_t count, int64_t offset) {
    int64_t low = 0;
    while (low < count) {
        int64_t middle = low + (count - low) / 2;
        if (ascending[middle] < offset)
            low = middle + 1;
        else
            count = middle;
    }
    return count;
}

static int must_stay(const keep_rules *rules, int64_t offset) {
    int64_t place = place_of(rules->must_stay, rules->must_stay_count, offset);
    return place < rules->must_stay_count && rules->must_stay[place] == offset;
}

/* The header of a batch whose `size` bytes are at `out` otherwise. */
static void finish_header(const uint8_t *source, uint8_t *out, int64_t size, int attributes,
                          int64_t base_timestamp, int64_t max_timestamp, int64_t count) {
    memcpy(out, source, HEADER_SIZE);
    store_be32(out + 8, (uint32_t)(size - LOG_OVERHEAD));
    out[21] = (uint8_t)(attributes >> 8);
    out[22] = (uint8_t)attributes;
    store_be64(out + 27, (uint64_t)base_timestamp);
    store_be64(out + 35, (uint64_t)max_timestamp);
    store_be32(out + 57, (uint32_t)count);
    store_be32(out + 17, crc32c(out + 21, (size_t)(size - 21)));
}

static int add_row(filter_result *result, int64_t size, const header *batch,
                   int64_t max_timestamp) {
    if (result->row_count == result->row_room) {
        int64_t room = result->row_room ? result->row_room * 2 : 256;
        int64_t *larger = realloc(result->rows, (size_t)room * ROW_WIDTH * sizeof(int64_t));
        if (larger == NULL) return 0;
        result->rows = larger;
        result->row_room = room;
    }
    int64_t *row = result->rows + result->row_count++ * ROW_WIDTH;
    row[0] = result->filled;
    row[1] = size;
    row[2] = batch->base_offset;
    row[3] = batch->last_offset;
    row[4] = max_timestamp;
    return 1;
}

enum chunk_end filter_chunk(const key_offsets *keys, const uint8_t *chunk, int64_t size,
                            uint8_t *out, int64_t room, const keep_rules *rules, scratch *space,
                            filter_result *result) {
    enum chunk_end end;
    header batch;
    choice chosen;
    failure why;
    for (; next_batch(chunk, size, result->position, &batch, &end);
         result->position += batch.size) {
        if (batch.attributes & SPECIAL_MASK) return AT_SPECIAL;
        const uint8_t *source = chunk + result->position;
        const uint8_t *body = source + HEADER_SIZE;
        int64_t body_size = batch.size - HEADER_SIZE;
        if (!is_sound(source, &batch)) return AT_DAMAGED;
        if (!choose(keys, &batch, body, body_size, rules, space, &chosen, &why))
            return why.fault == NO_MEMORY ? AT_NO_MEMORY : AT_DAMAGED;
        uint8_t *target = out + result->filled;
        int64_t left = room - result->filled, new_size = 0, max_timestamp = batch.max_timestamp;
        if (!chosen.changed && chosen.kept) {
            new_size = batch.size;
            if (new_size > left) return AT_FULL;
            memcpy(target, source, (size_t)new_size);
        } else if (chosen.kept) {
            new_size = HEADER_SIZE + chosen.body_size;
            if (new_size > left) return AT_FULL;
            max_timestamp = chosen.max_timestamp;
            if (!write_kept(&batch, body, body_size, space, &chosen, target + HEADER_SIZE))
                return AT_DAMAGED;
            finish_header(source, target, new_size,
                          batch.attributes | (chosen.sets_horizon ? DELETE_HORIZON_FLAG : 0),
                          chosen.base_timestamp, max_timestamp, chosen.kept);
        } else if (must_stay(rules, batch.last_offset)) {
            new_size = HEADER_SIZE;
            if (new_size > left) return AT_FULL;
            finish_header(source, target, new_size, batch.attributes & APPEND_TIME_FLAG,
                          NO_TIMESTAMP, max_timestamp, 0);
        }
        if (new_size && !add_row(result, new_size, &batch, max_timestamp)) return AT_NO_MEMORY;
        result->filled += new_size;
        result->read += batch.record_count;
        result->kept += chosen.kept;
    }
    return end;
}
