// Counter-based randomness: Philox4x32-10. A draw is a pure function of (seed, stream, index), so it does not depend on
// the order of draws, on threads or on how a tensor is split over ranks.
#pragma once

#include <stdint.h>

void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

// Streams keep the draws of different purposes apart. Parameters use RNG_STREAM_PARAMETER + their place in the layout.
enum {
    RNG_STREAM_DATA_ORDER = 1,
    RNG_STREAM_STORIES = 2,
    RNG_STREAM_SAMPLING = 3,
    RNG_STREAM_ROUNDING = 4, // stochastic rounding of bf16-pure weights
    RNG_STREAM_BENCH = 5,
    RNG_STREAM_TEST = 6,
    RNG_STREAM_PARAMETER = 1 << 20,
};

uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index);
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);                 // [0, 1), 53 bits
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);                  // Box-Muller, mean 0, deviation 1
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound); // [0, bound), bound > 0

// out[i] = mean + deviation * normal draw of element index first + i; threaded by callers that need it.
void rng_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first, float mean,
                     float deviation);
