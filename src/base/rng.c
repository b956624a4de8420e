// Philox4x32-10 as published (Salmon et al., 2011), and the draws built on it.
#include "base/rng.h"

#include <math.h>

void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void philox_draw(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox4x32_10(out, counter, key);
}

static double to_unit(uint32_t high, uint32_t low) {
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t r[4];
    philox_draw(r, seed, stream, index);
    return (uint64_t)r[0] << 32 | r[1];
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(rng_bits(seed, stream, index) >> 11) * 0x1p-53;
}

// Box-Muller gives two draws from one Philox block: elements 2k and 2k + 1 share block k.
static void normal_pair(double out[2], uint64_t seed, uint64_t stream, uint64_t block) {
    uint32_t r[4];
    philox_draw(r, seed, stream, block);
    double radius = sqrt(-2.0 * log(1.0 - to_unit(r[0], r[1]))); // of (0, 1], so that the logarithm is finite
    double angle = 2.0 * M_PI * to_unit(r[2], r[3]);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    double pair[2];
    normal_pair(pair, seed, stream, index / 2);
    return pair[index % 2];
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    // Multiply-shift: the bias is at most bound / 2^64.
    return (uint64_t)((unsigned __int128)rng_bits(seed, stream, index) * bound >> 64);
}

void rng_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first, float mean,
                     float deviation) {
    double pair[2];
    for (int64_t i = 0; i < count; i++) {
        uint64_t index = first + (uint64_t)i;
        if (i == 0 || index % 2 == 0) normal_pair(pair, seed, stream, index / 2);
        out[i] = (float)(mean + deviation * pair[index % 2]);
    }
}
