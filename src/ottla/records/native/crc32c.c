#include "crc32c.h"

#include "records.h"

#define POLYNOMIAL 0x82f63b78u

static uint32_t table[8][256];

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t size) {
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t word = load_le64(p) ^ crc;
        crc = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
              table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^
              table[2][word >> 40 & 0xff] ^ table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
    }
    for (; size > 0; size--, p++) crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
                                                                 size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; size -= 8, p += 8) wide = _mm_crc32_u64(wide, load_le64(p));
    crc = (uint32_t)wide;
    for (; size > 0; size--, p++) crc = _mm_crc32_u8(crc, *p);
    return crc;
}

static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t size) {
    for (; size >= 8; size -= 8, p += 8) crc = __crc32cd(crc, load_le64(p));
    for (; size > 0; size--, p++) crc = __crc32cb(crc, *p);
    return crc;
}

static int has_instruction(void) { return 1; }

#else

static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t size) {
    return by_table(crc, p, size);
}

static int has_instruction(void) { return 0; }

#endif

static uint32_t (*update)(uint32_t, const uint8_t *, size_t) = by_table;

void prepare_crc32c(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++)
            table[row][byte] = table[row - 1][byte] >> 8 ^ table[0][table[row - 1][byte] & 0xff];
    update = has_instruction() ? by_instruction : by_table;
}

uint32_t crc32c(const uint8_t *data, size_t size) { return ~update(~0u, data, size); }
