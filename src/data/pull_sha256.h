// SHA-256, as the hub names its large files by.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} Sha256;

void sha256_start(Sha256 *sha);
void sha256_add(Sha256 *sha, const void *data, size_t size);
void sha256_hex(Sha256 *sha, char out[65]); // finishes
