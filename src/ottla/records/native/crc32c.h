/* CRC-32C (Castagnoli), with the processor's instruction where it has one. */
#ifndef OTTLA_CRC32C_H
#define OTTLA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

void prepare_crc32c(void); /* once, before the first use */
uint32_t crc32c(const uint8_t *data, size_t size);

#endif
