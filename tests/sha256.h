// SHA-256 for tests that compare with recorded digests.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct Sha256 {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t length; // bytes so far
} Sha256;

static inline void sha256_init(Sha256 *sha) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, first, sizeof first);
    sha->length = 0;
}

static inline void sha256_block(Sha256 *sha) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
#define SHA256_ROTATE(x, n) ((x) >> (n) | (x) << (32 - (n)))
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16 |
               (uint32_t)sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (SHA256_ROTATE(a, 7) ^ SHA256_ROTATE(a, 18) ^ a >> 3) + w[i - 7] +
               (SHA256_ROTATE(b, 17) ^ SHA256_ROTATE(b, 19) ^ b >> 10);
    }
    memcpy(s, sha->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t t1 = s[7] + (SHA256_ROTATE(e, 6) ^ SHA256_ROTATE(e, 11) ^ SHA256_ROTATE(e, 25)) +
                      ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
        uint32_t t2 = (SHA256_ROTATE(a, 2) ^ SHA256_ROTATE(a, 13) ^ SHA256_ROTATE(a, 22)) +
                      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        sha->state[i] += s[i];
#undef SHA256_ROTATE
}

static inline void sha256_add(Sha256 *sha, const void *data, size_t length) {
    const uint8_t *bytes = data;
    while (length > 0) {
        size_t at = sha->length % 64, part = 64 - at < length ? 64 - at : length;
        memcpy(sha->block + at, bytes, part);
        sha->length += part;
        bytes += part;
        length -= part;
        if (sha->length % 64 == 0) sha256_block(sha);
    }
}

// out: 64 hexadecimal digits and a NUL.
static inline void sha256_hex(Sha256 *sha, char out[65]) {
    uint64_t bits = sha->length * 8;
    sha256_add(sha, "\x80", 1);
    while (sha->length % 64 != 56)
        sha256_add(sha, "", 1);
    uint8_t tail[8];
    for (int i = 0; i < 8; i++)
        tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(sha, tail, 8);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", sha->state[i]);
}
