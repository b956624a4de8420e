// Grouped linear layers of MoE in FP8, and the engines that compute them: wgmma (Hopper) and plain multiply-adds
// (everything). grouped_fp8.c chooses. Both operands have the reduction along their rows, as FP8 products want it.
#pragma once

#include "ops/cuda/grouped_gemm.h"

// call.product: GROUPED_FORWARD, out bf16 [rows, n] = a [rows, k] . b [experts, n, k]^T, or GROUPED_WEIGHT, out float
// [experts, m, n] (+)= a [m, rows] . b [n, rows]^T over the rows of the expert. b is e4m3. No tokens.
typedef struct GroupedFp8Call {
    GroupedCall call;
    DType a_dtype;                  // e4m3 or e5m2; GROUPED_WEIGHT: e5m2
    const float *a_scale, *b_scale; // on the device
} GroupedFp8Call;

enum { GROUPED_FP8_VARIANTS = 5 }; // of grouped_fp8_sm90, at most

#ifdef __cplusplus
extern "C" {
#endif

// variant: how wide the tiles are, and whether blocks share operands. False: it cannot do this, nothing was done.
bool grouped_fp8_sm90(CudaState *state, const GroupedFp8Call *call, int variant);
void grouped_fp8_plain(CudaState *state, const GroupedFp8Call *call);

#ifdef __cplusplus
}
#endif
