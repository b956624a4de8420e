// Small models that reach every branch of the transformer, for tests.
#pragma once

#include "testing.h"

#include "base/rng.h"
#include "base/threads.h"
#include "model/model.h"

typedef enum SmallModel { SMALL_LLAMA, SMALL_QWEN3, SMALL_MOE, SMALL_COUNT } SmallModel;

static inline LayoutRequest small_request(SmallModel which) {
    LayoutRequest request = {.config = {.arch = MODEL_LLAMA,
                                        .vocab = 97,
                                        .hidden = 48,
                                        .layers = 3,
                                        .heads = 6,
                                        .kv_heads = 2,
                                        .head_dim = 16,
                                        .ffn = 72,
                                        .max_positions = 64,
                                        .norm_eps = 1e-5f,
                                        .init_std = 0.05f,
                                        .rope_theta = 10000,
                                        .sparse_step = 1,
                                        .bos = -1,
                                        .eos = -1},
                             .mesh = MESH_SINGLE,
                             .micro_batch = 2,
                             .seq = 21,
                             .device = DEVICE_CPU,
                             .threads = threads_count(),
                             .logits_rows = 17};
    ModelConfig *config = &request.config;
    config->tied = which == SMALL_LLAMA;
    if (which == SMALL_QWEN3) config->arch = MODEL_QWEN3;
    if (which == SMALL_MOE) {
        config->arch = MODEL_QWEN3_MOE;
        config->experts = 5;
        config->top_k = 2;
        config->moe_ffn = 24;
        config->norm_topk = true;
        config->aux_coef = 0.01f;
        config->sparse[0] = config->sparse[2] = true; // a dense layer between two sparse ones
    }
    return request;
}

// Random tokens; every fifth target is masked.
static inline int64_t small_batch(const Layout *layout, int32_t *ids, int32_t *targets, uint64_t seed) {
    int64_t valid = 0;
    uint64_t vocab = (uint64_t)layout->request.config.vocab;
    for (int64_t i = 0; i < layout->tokens; i++) {
        ids[i] = (int32_t)rng_below(seed, RNG_STREAM_TEST, (uint64_t)(2 * i), vocab);
        targets[i] = i % 5 == 4 ? -1 : (int32_t)rng_below(seed, RNG_STREAM_TEST, (uint64_t)(2 * i + 1), vocab);
        valid += targets[i] >= 0;
    }
    return valid;
}
