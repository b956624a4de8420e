// The smallest model that has experts, for the targets and seeds that need one.
#pragma once

#include "model/model.h"
#include "train/checkpoint.h"

#include <stdlib.h>

static inline Model *fuzz_tiny_model(void) {
    Ops *ops;
    Model *model;
    LayoutRequest request = {.config = {.arch = MODEL_QWEN3_MOE,
                                        .vocab = 8,
                                        .hidden = 8,
                                        .layers = 1,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 4,
                                        .ffn = 8,
                                        .max_positions = 8,
                                        .norm_eps = 1e-5f,
                                        .init_std = 0.02f,
                                        .rope_theta = 1e4,
                                        .tied = true,
                                        .experts = 2,
                                        .top_k = 1,
                                        .moe_ffn = 8,
                                        .sparse = {true},
                                        .sparse_step = 1,
                                        .bos = -1,
                                        .eos = -1},
                             .mesh = MESH_SINGLE,
                             .micro_batch = 1,
                             .seq = 8,
                             .device = DEVICE_CPU,
                             .threads = 1};
    if (ops_create(&ops, "cpu") || model_create(&model, ops, &request)) abort();
    model_init_weights(model, 1, false);
    model_zero_optimizer(model);
    return model;
}

// checkpoints/step-3 in the folder.
static inline void fuzz_tiny_checkpoint(Model *model, const char *checkpoints, json_t *state) {
    CheckpointWriter *writer;
    CheckpointPolicy policy = {.keep_last = 1};
    int64_t done;
    if (checkpoint_writer_open(&writer, checkpoints, &model->layout, &policy, 0, 1) ||
        checkpoint_save(writer, model, 3, state) || checkpoint_poll(writer, true, &done) || done != 3)
        abort();
    checkpoint_writer_close(writer);
}
