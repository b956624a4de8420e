// The grouped linear layers of MoE as one kind of product, and the engines that compute it: wgmma (Hopper), mma.sync
// (bf16 and f16, from Ampere on) and plain multiply-adds (everything). grouped_gemm.cu chooses.
//
// Each expert e has the rows offsets[e] .. offsets[e + 1] of the row buffers, multiples of CUDA_ROW_ALIGN; padding rows
// are zero. offsets is known on the device only: a launch covers the worst case, and its blocks find their work
// themselves.
#pragma once

#include "ops/cuda/cuda.h"

// out = A . B with M x N results, reduced over K. What is contiguous in memory tells the three apart.
typedef enum GroupedProduct {
    GROUPED_FORWARD, // out [rows, n] = a [rows, k] . b [experts, n, k]^T
    GROUPED_INPUT,   // out [rows, n] = a [rows, k] . b [experts, k, n]
    GROUPED_WEIGHT,  // out [experts, m, n] (+)= a [rows, m]^T . b [rows, n], over the rows of the expert; out is float
} GroupedProduct;

typedef struct GroupedCall {
    GroupedProduct product;
    void *out;
    const void *a, *b;
    const int32_t *offsets; // [experts + 1]
    int experts;
    int64_t rows;    // capacity of the row buffers
    int m, n, k;     // m: GROUPED_WEIGHT only; k: the others
    bool accumulate; // GROUPED_WEIGHT: add to out; else it is overwritten, with zeros for experts without rows
} GroupedCall;

#ifdef __cplusplus
extern "C" {
#endif

// False when the engine cannot do it on this GPU or with this shape; then nothing was done.
bool grouped_sm90(CudaState *state, const GroupedCall *call);             // bf16
bool grouped_mma(CudaState *state, const GroupedCall *call, DType dtype); // bf16 or f16

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
// The expert of a row below offsets[experts]: as many experts as end at or before it are in front. By all threads of
// the block, each looking at some of the experts.
static __device__ __forceinline__ int expert_find(const int32_t *offsets, int experts, int64_t row) {
    int before = 0;
    for (int first = 0; first < experts; first += blockDim.x) {
        const int e = first + threadIdx.x;
        before += __syncthreads_count(e < experts && offsets[e + 1] <= row);
    }
    return before;
}
#endif
