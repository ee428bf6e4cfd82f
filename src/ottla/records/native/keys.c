#include "keys.h"

#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define ROTATED(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define ROUND                                                                                      \
    do {                                                                                           \
        v0 += v1;                                                                                  \
        v1 = ROTATED(v1, 13) ^ v0;                                                                 \
        v0 = ROTATED(v0, 32);                                                                      \
        v2 += v3;                                                                                  \
        v3 = ROTATED(v3, 16) ^ v2;                                                                 \
        v0 += v3;                                                                                  \
        v3 = ROTATED(v3, 21) ^ v0;                                                                 \
        v2 += v1;                                                                                  \
        v1 = ROTATED(v1, 17) ^ v2;                                                                 \
        v2 = ROTATED(v2, 32);                                                                      \
    } while (0)

/* SipHash-2-4 with 128 bits: a keyed hash that stays unpredictable when the input is chosen. */
hash128 siphash128(const uint64_t secret[2], const uint8_t *data, size_t size) {
    uint64_t v0 = 0x736f6d6570736575u ^ secret[0];
    uint64_t v1 = 0x646f72616e646f6du ^ secret[1] ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261u ^ secret[0];
    uint64_t v3 = 0x7465646279746573u ^ secret[1];
    uint64_t last = (uint64_t)size << 56;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word = load_le64(data);
        v3 ^= word;
        ROUND;
        ROUND;
        v0 ^= word;
    }
    for (size_t index = 0; index < size; index++) last |= (uint64_t)data[index] << (8 * index);
    v3 ^= last;
    ROUND;
    ROUND;
    v0 ^= last;
    hash128 hash;
    v2 ^= 0xee;
    for (int round = 0; round < 4; round++) ROUND;
    hash.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int round = 0; round < 4; round++) ROUND;
    hash.high = v0 ^ v1 ^ v2 ^ v3;
    return hash;
}

/* Pages come from the system, zeroed, when they are first touched, and go back to it at once: what
 * malloc keeps for later would stay with a broker for ever. */
static slot *new_slots(uint64_t count) {
    void *pages =
        mmap(NULL, count * sizeof(slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

int keys_open(key_offsets *keys, uint64_t memory_bytes, double load_factor) {
    keys->slot_count = memory_bytes / sizeof(slot);
    keys->capacity = (uint64_t)((double)keys->slot_count * load_factor);
    if (keys->capacity < 1) keys->capacity = 1;
    if (keys->capacity > keys->slot_count) keys->capacity = keys->slot_count;
    keys->count = 0;
    keys->latest_offset = -1;
    keys->slots = new_slots(keys->slot_count);
    return keys->slots != NULL;
}

int keys_clear(key_offsets *keys) {
    keys_close(keys);
    keys->latest_offset = -1;
    keys->slots = new_slots(keys->slot_count);
    return keys->slots != NULL;
}

void keys_close(key_offsets *keys) {
    if (keys->slots != NULL) munmap(keys->slots, keys->slot_count * sizeof(slot));
    keys->slots = NULL;
    keys->count = 0;
}
