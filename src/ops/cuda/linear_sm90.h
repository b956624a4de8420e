// Linear layers on Hopper by hearth's own kernel, whose epilogue can add the residual, as cuBLASLt's can too, or rotate
// query and key heads, which would else take another pass over the results.
#pragma once

#include "ops/cuda/cuda.h"

typedef struct LinearCall {
    Tensor out;       // [rows, n]
    Tensor in;        // [rows, k], any stride
    Tensor weight;    // [n, k]; backward [k, n]
    Tensor add;       // [rows, n] or absent; forward only
    const Rope *rope; // without norm weights, or NULL; forward only, without add
    bool backward;    // the gradient of a linear layer's input
} LinearCall;

#ifdef __cplusplus
extern "C" {
#endif

enum { LINEAR_SM90_VARIANTS = 2 };

// bf16. False when this GPU, shape or variant cannot: then nothing was done.
bool linear_sm90(CudaState *state, const LinearCall *call, int variant);

#ifdef __cplusplus
}
#endif
