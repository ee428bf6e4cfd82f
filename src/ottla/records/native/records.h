/* The format of records and batches, read from bytes that nobody has checked.
 *
 * Every read is compared with the end of what may be read before it happens, every length with what
 * is left before it is added to anything. There is no recursion and no allocation here.
 */
#ifndef OTTLA_RECORDS_H
#define OTTLA_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PREFETCH(p) __builtin_prefetch(p)
#else
#error "a compiler with GCC's builtins is needed"
#endif

#define HEADER_SIZE 61
#define LOG_OVERHEAD 12
#define COMPRESSION_MASK 0x07
#define APPEND_TIME_FLAG 0x08
#define TRANSACTIONAL_FLAG 0x10
#define CONTROL_FLAG 0x20
#define DELETE_HORIZON_FLAG 0x40
#define SPECIAL_MASK (COMPRESSION_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG)
#define SMALLEST_RECORD 7
#define NO_TIMESTAMP (-1)

/* What can be wrong with records. `a` and `b` are for the message. */
enum fault {
    SOUND = 0,
    RUNS_OVER,     /* a field ends after its record, or after everything */
    WIDE_VARINT,   /* more than 64 bits */
    RECORD_LENGTH, /* a: the length, b: what is left */
    RECORD_SIZE,   /* a: the length, b: of the content */
    HEADER_COUNT,  /* a: the count, b: bytes for them */
    HEADER_KEY,    /* a: the size */
    LEFTOVER,      /* a: bytes after the last record, b: the count of records */
    OFFSET_DELTA,  /* a: the delta, which is not of this batch */
    TOO_WIDE,      /* an offset does not fit 64 bits */
    TOO_LARGE,     /* a batch whose length does not fit 31 bits */
    NO_MEMORY
};

typedef struct {
    enum fault fault;
    int64_t a, b;
} failure;

typedef struct {
    const uint8_t *start;      /* of its length */
    const uint8_t *content;    /* after the length: the attributes */
    const uint8_t *after_time; /* the offset delta */
    const uint8_t *stop;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;    /* after their count */
    int64_t timestamp_delta, offset_delta;
    int64_t key_size, value_size; /* negative: null */
    int64_t header_count;
} record;

typedef struct {
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, producer_id;
    int64_t size; /* of the whole batch */
    uint32_t crc;
    int32_t last_offset_delta, record_count;
    int attributes;
} header;

static inline uint32_t load_be32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t load_be64(const uint8_t *p) {
    return (uint64_t)load_be32(p) << 32 | load_be32(p + 4);
}

static inline uint64_t load_le64(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

static inline void store_be32(uint8_t *p, uint32_t value) {
    p[0] = (uint8_t)(value >> 24);
    p[1] = (uint8_t)(value >> 16);
    p[2] = (uint8_t)(value >> 8);
    p[3] = (uint8_t)value;
}

static inline void store_be64(uint8_t *p, uint64_t value) {
    store_be32(p, (uint32_t)(value >> 32));
    store_be32(p + 4, (uint32_t)value);
}

static inline int64_t unfold(uint64_t value) {
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* The varint of more than one byte at *at. Moves *at behind it. */
static inline enum fault read_long_varint(const uint8_t **at, const uint8_t *stop,
                                          int64_t *value) {
    const uint8_t *p = *at;
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (UNLIKELY(p >= stop)) return RUNS_OVER;
        uint64_t byte = *p++;
        if (UNLIKELY(shift == 63 && byte > 1)) return WIDE_VARINT;
        result |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at = p;
            *value = unfold(result);
            return SOUND;
        }
    }
    return WIDE_VARINT;
}

static inline enum fault read_varint(const uint8_t **at, const uint8_t *stop, int64_t *value) {
    const uint8_t *p = *at;
    if (LIKELY(stop - p >= 2)) {
        uint32_t byte = p[0];
        if (LIKELY(byte < 0x80)) {
            *at = p + 1;
            *value = unfold(byte);
            return SOUND;
        }
        uint32_t next = p[1];
        if (next < 0x80) {
            *at = p + 2;
            *value = unfold((byte & 0x7f) | next << 7);
            return SOUND;
        }
    }
    return read_long_varint(at, stop, value);
}

/* Sums and differences of timestamps wrap around, as those of Java do: whatever a producer has made
 * of them, its batch can be copied and looked through, and a reader gets the same times again. */
static inline int64_t wrapping_add(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t wrapping_sub(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static inline int varint_size(int64_t value) {
    uint64_t rest = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    int size = 1;
    for (; rest >= 0x80; rest >>= 7) size++;
    return size;
}

static inline uint8_t *write_varint(uint8_t *out, int64_t value) {
    uint64_t rest = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; rest >= 0x80; rest >>= 7) *out++ = (uint8_t)(rest | 0x80);
    *out++ = (uint8_t)rest;
    return out;
}

/* memcpy as a call costs more than the few bytes that keys and values mostly are. Sixteen bytes at
 * once, where both sides have them. */
static inline void copy_bytes(uint8_t *to, int64_t to_room, const uint8_t *from,
                              int64_t from_room, int64_t size) {
    if (size <= 16 && to_room >= 16 && from_room >= 16)
        memcpy(to, from, 16);
    else
        memcpy(to, from, (size_t)size);
}

static inline int fail(failure *why, enum fault fault, int64_t a, int64_t b) {
    why->fault = fault;
    why->a = a;
    why->b = b;
    return 0;
}

/* Go over `count` headers from `p` on: the position after them, or NULL. */
static inline const uint8_t *skip_headers(const uint8_t *p, const uint8_t *stop, int64_t count,
                                          failure *why) {
    enum fault fault;
    for (; count > 0; count--) {
        int64_t size;
        if ((fault = read_varint(&p, stop, &size))) {
            fail(why, fault, 0, 0);
            return NULL;
        }
        if (size < 0) {
            fail(why, HEADER_KEY, size, 0);
            return NULL;
        }
        if (size > stop - p) {
            fail(why, RUNS_OVER, 0, 0);
            return NULL;
        }
        p += size;
        if ((fault = read_varint(&p, stop, &size))) {
            fail(why, fault, 0, 0);
            return NULL;
        }
        if (size > 0) {
            if (size > stop - p) {
                fail(why, RUNS_OVER, 0, 0);
                return NULL;
            }
            p += size;
        }
    }
    return p;
}

/* The record at `p`, of which nothing lies at or after `end`. 1, or 0 and why not. */
static inline int read_record(const uint8_t *p, const uint8_t *end, record *found, failure *why) {
    enum fault fault;
    int64_t length;
    found->start = p;
    if (UNLIKELY((fault = read_varint(&p, end, &length)))) return fail(why, fault, 0, 0);
    if (UNLIKELY(length < 1 || length > end - p)) return fail(why, RECORD_LENGTH, length, end - p);
    const uint8_t *stop = p + length;
    found->content = p;
    found->stop = stop;
    p++; /* attributes: no bit has a meaning yet */
    if (UNLIKELY((fault = read_varint(&p, stop, &found->timestamp_delta))))
        return fail(why, fault, 0, 0);
    found->after_time = p;
    if (UNLIKELY((fault = read_varint(&p, stop, &found->offset_delta))))
        return fail(why, fault, 0, 0);
    if (UNLIKELY((fault = read_varint(&p, stop, &found->key_size)))) return fail(why, fault, 0, 0);
    found->key = p;
    if (found->key_size > 0) {
        if (UNLIKELY(found->key_size > stop - p)) return fail(why, RUNS_OVER, 0, 0);
        p += found->key_size;
    }
    if (UNLIKELY((fault = read_varint(&p, stop, &found->value_size))))
        return fail(why, fault, 0, 0);
    found->value = p;
    if (found->value_size > 0) {
        if (UNLIKELY(found->value_size > stop - p)) return fail(why, RUNS_OVER, 0, 0);
        p += found->value_size;
    }
    if (UNLIKELY((fault = read_varint(&p, stop, &found->header_count))))
        return fail(why, fault, 0, 0);
    if (UNLIKELY(found->header_count < 0 || found->header_count > stop - p))
        return fail(why, HEADER_COUNT, found->header_count, stop - p);
    found->headers = p;
    if (UNLIKELY(found->header_count > 0)) {
        p = skip_headers(p, stop, found->header_count, why);
        if (p == NULL) return 0;
    }
    if (UNLIKELY(p != stop)) return fail(why, RECORD_SIZE, length, length + (p - stop));
    return 1;
}

#endif
