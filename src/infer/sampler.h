// From logits to the next token: temperature, top-k, top-p and a seed. A draw depends only on the seed and the
// position.
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct Sampler {
    double temperature; // 0: the most likely token
    int top_k;          // 0: all
    double top_p;       // 1: all
    uint64_t seed;
} Sampler;

Status sampler_check(const Sampler *sampler);
int32_t sampler_pick(const Sampler *sampler, const float *logits, int vocab, uint64_t position);
