#include "walks.h"

int summarize(const uint8_t *data, int64_t size, int64_t count, summary *result, failure *why) {
    const uint8_t *p = data, *end = data + size;
    record each;
    int64_t oldest = INT64_MAX, newest = INT64_MIN, keyless = 0, index = 0;
    int64_t disorder = 0;
    for (; index < count; index++) {
        if (UNLIKELY(!read_record(p, end, &each, why))) return 0;
        if (each.timestamp_delta < oldest) oldest = each.timestamp_delta;
        if (each.timestamp_delta > newest) newest = each.timestamp_delta;
        disorder |= each.offset_delta ^ index;
        keyless += each.key_size < 0;
        p = each.stop;
    }
    if (p != end) return fail(why, LEFTOVER, end - p, count);
    result->oldest_delta = index > 0 ? oldest : 0;
    result->newest_delta = index > 0 ? newest : 0;
    result->in_order = disorder == 0;
    result->keyless = keyless;
    return 1;
}

int find_offenders(const uint8_t *data, int64_t size, int64_t count, const rules *broken,
                   offender *kept, int64_t limit, int64_t *total, int64_t *late, failure *why) {
    const uint8_t *p = data, *end = data + size;
    record each;
    *total = *late = 0;
    for (int64_t index = 0; index < count; index++) {
        if (!read_record(p, end, &each, why)) return 0;
        p = each.stop;
        int64_t delta = each.timestamp_delta;
        int in_time = (broken->oldest_delta <= delta && delta <= broken->newest_delta) ||
                      (broken->has_exempt && delta == broken->exempt_delta);
        int keyless = broken->keyed && each.key_size < 0;
        if (in_time && !keyless) continue;
        *late += !keyless;
        if (*total < limit) {
            offender *next = kept + *total;
            next->index = index;
            next->offset_delta = each.offset_delta;
            next->timestamp_delta = delta;
            next->has_key = each.key_size >= 0;
        }
        ++*total;
    }
    if (p != end) return fail(why, LEFTOVER, end - p, count);
    return 1;
}

int first_at_or_after(const uint8_t *data, int64_t size, int64_t count, int64_t base_offset,
                      int64_t base_timestamp, int64_t timestamp, int64_t min_offset, int *found,
                      int64_t *offset, int64_t *moment, failure *why) {
    const uint8_t *p = data, *end = data + size;
    record each;
    *found = 0;
    for (int64_t index = 0; index < count; index++) {
        if (!read_record(p, end, &each, why)) return 0;
        p = each.stop;
        if (__builtin_add_overflow(base_offset, each.offset_delta, offset))
            return fail(why, TOO_WIDE, 0, 0);
        *moment = wrapping_add(base_timestamp, each.timestamp_delta);
        if (*moment >= timestamp && *offset >= min_offset) {
            *found = 1;
            return 1;
        }
    }
    if (p != end) return fail(why, LEFTOVER, end - p, count);
    return 1;
}

/* The length of a record that has another offset delta. */
static int64_t renumbered_length(const record *each, int64_t index, int same_time) {
    const uint8_t *after = each->after_time;
    int64_t old, before = same_time ? 2 : each->after_time - each->content;
    read_varint(&after, each->stop, &old);
    return before + varint_size(index) + (each->stop - after);
}

int measure_renumbered(const uint8_t *data, int64_t size, int64_t count, int same_time,
                       int64_t *result, failure *why) {
    const uint8_t *p = data, *end = data + size;
    record each;
    *result = 0;
    for (int64_t index = 0; index < count; index++, p = each.stop) {
        if (!read_record(p, end, &each, why)) return 0;
        int64_t length = renumbered_length(&each, index, same_time);
        *result += varint_size(length) + length;
    }
    if (p != end) return fail(why, LEFTOVER, end - p, count);
    return 1;
}

int write_renumbered(const uint8_t *data, int64_t size, int64_t count, int same_time, uint8_t *out,
                     int64_t room) {
    const uint8_t *p = data, *end = data + size;
    failure why;
    record each;
    for (int64_t index = 0; index < count; index++, p = each.stop) {
        if (!read_record(p, end, &each, &why)) return 0;
        int64_t length = renumbered_length(&each, index, same_time);
        room -= varint_size(length) + length;
        if (room < 0) return 0;
        const uint8_t *after = each.after_time;
        int64_t old;
        read_varint(&after, each.stop, &old);
        out = write_varint(out, length);
        if (same_time) {
            *out++ = *each.content;
            *out++ = 0;
        } else {
            memcpy(out, each.content, (size_t)(each.after_time - each.content));
            out += each.after_time - each.content;
        }
        out = write_varint(out, index);
        memcpy(out, after, (size_t)(each.stop - after));
        out += each.stop - after;
    }
    return room == 0;
}
