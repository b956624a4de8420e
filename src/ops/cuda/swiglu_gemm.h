// Packed SwiGLU together with the product next to it, so that its inputs never make a second way through memory:
// forward it takes the gate and up columns from the accumulators of the gate-up product; backward it takes its gradient
// from those of the down projection's input gradient.
#pragma once

#include "ops/cuda/cuda.h"

typedef struct SwigluCall {
    Tensor out;     // [rows, 2 * dim] forward: gate and hidden; backward: the gradients of gate and up
    Tensor before;  // backward: gate and hidden; may be out
    Tensor scratch; // [rows, dim] backward: for the separate ops
    Tensor in;      // [rows, inner] forward: input of gate-up; backward: gradient of the down projection's output
    Tensor weight;  // forward: [2 * dim, inner]; backward: [inner, dim]
    bool backward;
} SwigluCall;

#ifdef __cplusplus
extern "C" {
#endif

enum { SWIGLU_SM90_VARIANTS = 3 };

// bf16. False when this GPU or shape cannot: then nothing was done.
bool swiglu_sm90(CudaState *state, const SwigluCall *call, int variant);

#ifdef __cplusplus
}
#endif
