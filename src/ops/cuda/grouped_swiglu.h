// SwiGLU of experts' rows together with the grouped product next to it, so that its inputs make no second way through
// memory: forward it takes gate and up from the accumulators of the gate-up product; backward it takes its gradient
// from those of the down projection's input gradient.
#pragma once

#include "ops/cuda/cuda.h"

typedef struct GroupedSwigluCall {
    Tensor out;          // [rows, 2 * dim] forward: gate and up; backward: their gradients
    Tensor hidden;       // [rows, dim] row_weight * silu(gate) * up, both ways
    Tensor drow_weight;  // [rows, 1] backward
    Tensor before;       // [rows, 2 * dim] backward: gate and up; may be out
    Tensor in;           // forward: input of gate-up; backward: gradient of the down projection's output
    Tensor weight;       // forward: [experts * 2 * dim, inner]; backward: [experts * inner, dim]
    Tensor offsets;      // [1, experts + 1]
    Tensor row_weight;   // [rows, 1]
    Tensor token_of_row; // forward: [rows, 1] or absent: in is [rows, inner]; else it is tokens
    Tensor scratch;      // [rows, inner] with token_of_row
    bool backward;
} GroupedSwigluCall;

#ifdef __cplusplus
extern "C" {
#endif

enum { GROUPED_SWIGLU_VARIANTS = 4 };

// bf16. False when this GPU, shape or workspace cannot: then nothing was done. variant: bit 0: pairs of blocks share
// the weights; bit 1: tiles of 128 columns instead of 192.
bool grouped_swiglu_sm90(CudaState *state, const GroupedSwigluCall *call, int variant);

#ifdef __cplusplus
}
#endif
