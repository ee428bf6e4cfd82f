/* The latest offset of each key: open addressing over a hash of 16 bytes and an offset a slot. */
#ifndef OTTLA_KEYS_H
#define OTTLA_KEYS_H

#include "records.h"

typedef struct {
    uint64_t low, high;
} hash128;

typedef struct {
    hash128 hash;
    int64_t taken; /* the offset + 1; 0: empty */
} slot;

typedef struct {
    slot *slots; /* NULL: closed */
    uint64_t slot_count;
    uint64_t capacity; /* keys that it takes */
    uint64_t count;
    int64_t latest_offset;
    uint64_t secret[2];
} key_offsets;

hash128 siphash128(const uint64_t secret[2], const uint8_t *data, size_t size);

/* 1, or 0 where there is no memory. */
int keys_open(key_offsets *keys, uint64_t memory_bytes, double load_factor);
int keys_clear(key_offsets *keys);
void keys_close(key_offsets *keys);

static inline uint64_t home_of(const key_offsets *keys, hash128 hash) {
    return (uint64_t)(((unsigned __int128)hash.low * keys->slot_count) >> 64);
}

/* The slot of this key, or the empty one where it belongs. `capacity` < slots, so there is one. */
static inline slot *find_slot(const key_offsets *keys, hash128 hash) {
    slot *found = keys->slots + home_of(keys, hash);
    const slot *end = keys->slots + keys->slot_count;
    for (uint64_t tries = 0; tries < keys->slot_count; tries++) {
        if (found->taken == 0 || (found->hash.low == hash.low && found->hash.high == hash.high))
            return found;
        if (++found == end) found = keys->slots;
    }
    return NULL;
}

/* -1: not there. */
static inline int64_t keys_get(const key_offsets *keys, hash128 hash) {
    const slot *found = find_slot(keys, hash);
    return found == NULL ? -1 : found->taken - 1;
}

/* 0: full. A full map takes no key at all, known or not, as in Kafka. */
static inline int keys_put(key_offsets *keys, hash128 hash, int64_t offset) {
    if (keys->count >= keys->capacity) return 0;
    slot *found = find_slot(keys, hash);
    if (found == NULL) return 0;
    if (found->taken == 0) {
        keys->count++;
        found->hash = hash;
    }
    found->taken = offset + 1;
    if (offset > keys->latest_offset) keys->latest_offset = offset;
    return 1;
}

#endif
