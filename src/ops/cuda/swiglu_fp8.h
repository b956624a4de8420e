// SwiGLU in FP8, of a dense layer or of experts' rows, together with the gate-up product before it, so that gate and up
// make no way through memory in bf16: they leave the accumulators as the codes that are kept, with hidden.
#pragma once

#include "ops/cuda/cuda.h"

typedef struct SwigluFp8Call { // as linear_swiglu_fp8_forward and grouped_swiglu_fp8_forward have them
    Tensor hidden, hidden_amax, gate_up8, gate_up_amax;
    Tensor scratch; // for the separate ops
    Tensor in, weight;
    Tensor in_scale, weight_scale, hidden_scale, gate_up_scale;
    Tensor row_weight, offsets; // of experts, else absent
} SwigluFp8Call;

// A dense layer is one that has all rows.
static inline int swiglu_fp8_experts(const SwigluFp8Call *call) {
    return tensor_present(call->offsets) ? (int)call->offsets.cols - 1 : 1;
}

enum { SWIGLU_FP8_VARIANTS = 6 };

#ifdef __cplusplus
extern "C" {
#endif

// variant: how wide the tiles are, whether blocks share the weights, what stays in the L2 cache. False when this GPU or
// shape cannot: then nothing was done.
bool swiglu_fp8_sm90(CudaState *state, const SwigluFp8Call *call, int variant);
void swiglu_fp8_separate(Ops *ops, const SwigluFp8Call *call); // the product and then SwiGLU

#ifdef __cplusplus
}
#endif
