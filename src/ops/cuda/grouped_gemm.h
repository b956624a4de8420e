// The grouped linear layers of MoE as one kind of product, and the engines that compute it: wgmma (Hopper), mma.sync
// (bf16 and f16, from Ampere on) and plain multiply-adds (everything). grouped_gemm.c chooses.
//
// The input may be given as tokens: the loads then find each row where its token stands, so that the rows need not
// exist. The other way, to gather them into a scratch first, is what that races against.
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
    // [rows] or NULL: row r is row a_tokens[r] of a, zeros where that is negative. Of what the ops have as their input:
    // a with GROUPED_FORWARD, b with GROUPED_WEIGHT.
    const int32_t *a_tokens, *b_tokens;
} GroupedCall;

// At least so many of the row buffers, when every slot has a row: of the capacity, what is not padding.
static inline int64_t grouped_rows_in_use(int64_t rows, int experts) {
    return rows - (experts + 1) * (int64_t)CUDA_ROW_ALIGN;
}

enum { GROUPED_TOKENS_VARIANTS = 4 }; // of grouped_tokens_sm90

#ifdef __cplusplus
extern "C" {
#endif

// False when the engine cannot do it on this GPU or with this shape; then nothing was done.
bool grouped_sm90(CudaState *state, const GroupedCall *call);               // bf16, not of tokens
bool grouped_mma(CudaState *state, const GroupedCall *call, DType dtype);   // bf16 or f16
void grouped_plain(CudaState *state, const GroupedCall *call, DType dtype); // anything
// bf16, of tokens. variant: how wide the tiles are, and whether blocks share the other operand.
bool grouped_tokens_sm90(CudaState *state, const GroupedCall *call, int variant);

// Rows [0, *count) of out from the tokens of in: [.., dim]; zeros where token_of_row is negative. rows: their capacity.
void rows_gather(CudaState *state, void *out, const void *in, const int32_t *token_of_row, const int32_t *count,
                 int64_t rows, int dim, DType dtype);

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
