// The two ways between tokens and expert rows: gather (token -> the rows of its slots) and sum (rows -> token).
#include "ops/cuda/cuda.h"
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

// A warp reads a token once and writes it to the rows of all its slots: in row order each token would come from device
// memory top_k times. The last blocks, one per expert, write the padding: zero, so that the grouped products may read
// it. Unused rows are left alone.
template <typename T, int V>
static __global__ __launch_bounds__(256) void moe_gather_kernel(T *__restrict__ out, const T *__restrict__ in,
                                                                const int32_t *row_of_slot, const int32_t *counts,
                                                                const int32_t *offsets, int64_t tokens,
                                                                int token_blocks, int top_k, int dim) {
    constexpr int AHEAD = 4;
    if ((int)blockIdx.x >= token_blocks) {
        int expert = (int)blockIdx.x - token_blocks;
        float zero[V] = {};
        int64_t begin = (int64_t)(offsets[expert] + counts[expert]) * dim, end = (int64_t)offsets[expert + 1] * dim;
        for (int64_t i = begin + (int)threadIdx.x * V; i < end; i += 256 * V)
            store_floats<V>(out + i, zero);
        return;
    }
    int64_t token = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (token >= tokens) return;
    for (int first = (int)threadIdx.x % 32 * V; first < dim; first += AHEAD * 32 * V) {
        float values[AHEAD][V];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (first + a * 32 * V < dim) load_floats<V>(values[a], in + token * dim + first + a * 32 * V);
        for (int j = 0; j < top_k; j++) {
            int32_t at = row_of_slot[token * top_k + j];
            if (at < 0) continue;
            T *row = out + (int64_t)at * dim + first;
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (first + a * 32 * V < dim) store_floats<V>(row + a * 32 * V, values[a]);
        }
    }
}

extern "C" void cuda_moe_gather(Ops *ops, Tensor out, Tensor in, const MoeRouting *routing) {
    const MoePointers p = moe_pointers(routing);
    const int dim = (int)in.cols;
    CudaState *state = cuda_scope_begin(ops, OP_MOE_GATHER);
    int token_blocks = (int)ceil_div64(p.tokens, 8);
    unsigned blocks = (unsigned)(token_blocks + p.experts);
    if (dim % 8 == 0 && all_aligned(16, out.data, in.data))
        WITH_STORAGE(in.dtype, (moe_gather_kernel<T, 8><<<blocks, 256, 0, state->stream>>>(
                                   (T *)out.data, (const T *)in.data, p.row_of_slot, p.counts, p.offsets, p.tokens,
                                   token_blocks, p.top_k, dim)));
    else
        WITH_STORAGE(in.dtype, (moe_gather_kernel<T, 1><<<blocks, 256, 0, state->stream>>>(
                                   (T *)out.data, (const T *)in.data, p.row_of_slot, p.counts, p.offsets, p.tokens,
                                   token_blocks, p.top_k, dim)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// A warp writes a row. For grouped products that do not read tokens themselves; they know the token of a row only.
template <typename T, int V>
static __global__ __launch_bounds__(256) void rows_gather_kernel(T *__restrict__ out, const T *__restrict__ in,
                                                                 const int32_t *token_of_row, const int32_t *count,
                                                                 int dim) {
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= *count) return;
    const int64_t token = token_of_row[row];
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32 * V; i < dim; i += 32 * V) {
        float values[V] = {};
        if (token >= 0) load_floats<V>(values, in + token * dim + i);
        store_floats<V>(out + row * dim + i, values);
    }
}

extern "C" void rows_gather(CudaState *state, void *out, const void *in, const int32_t *token_of_row,
                            const int32_t *count, int64_t rows, int dim, DType dtype) {
    const unsigned blocks = (unsigned)ceil_div64(rows, 8);
    if (dim % 8 == 0 && all_aligned(16, out, in))
        WITH_STORAGE(dtype, (rows_gather_kernel<T, 8>
                             <<<blocks, 256, 0, state->stream>>>((T *)out, (const T *)in, token_of_row, count, dim)));
    else
        WITH_STORAGE(dtype, (rows_gather_kernel<T, 1>
                             <<<blocks, 256, 0, state->stream>>>((T *)out, (const T *)in, token_of_row, count, dim)));
    LAUNCH_CHECK(state);
}

// A warp writes a token; the rows of its slots are added in slot order, four of them in flight.
template <typename T, int V>
static __global__ __launch_bounds__(256) void moe_sum_kernel(T *out, const T *__restrict__ in, const T *add,
                                                             const int32_t *row_of_slot, int64_t tokens, int top_k,
                                                             int dim) {
    int64_t token = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (token >= tokens) return;
    const int32_t *row_of = row_of_slot + token * top_k;
#pragma unroll 2
    for (int i = (int)threadIdx.x % 32 * V; i < dim; i += 32 * V) {
        float sum[V] = {};
        if (add) load_floats<V>(sum, add + token * dim + i);
        for (int j = 0; j < top_k; j += 4) {
            float part[4][V] = {};
#pragma unroll
            for (int u = 0; u < 4; u++) {
                int32_t row = j + u < top_k ? row_of[j + u] : -1;
                if (row >= 0) load_floats<V>(part[u], in + (int64_t)row * dim + i);
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
                if (j + u >= top_k) break;
#pragma unroll
                for (int c = 0; c < V; c++)
                    sum[c] += part[u][c];
            }
        }
        store_floats<V>(out + token * dim + i, sum);
    }
}

extern "C" void cuda_moe_sum(Ops *ops, Tensor out, Tensor in, Tensor add, const MoeRouting *routing) {
    const MoePointers p = moe_pointers(routing);
    const int dim = (int)in.cols;
    if (p.tokens == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_MOE_SUM);
    unsigned blocks = (unsigned)ceil_div64(p.tokens, 8);
    if (dim % 8 == 0 && all_aligned(16, out.data, in.data, add.data))
        WITH_STORAGE(in.dtype, (moe_sum_kernel<T, 8><<<blocks, 256, 0, state->stream>>>(
                                   (T *)out.data, (const T *)in.data, (const T *)add.data, p.row_of_slot, p.tokens,
                                   p.top_k, dim)));
    else
        WITH_STORAGE(in.dtype, (moe_sum_kernel<T, 1><<<blocks, 256, 0, state->stream>>>(
                                   (T *)out.data, (const T *)in.data, (const T *)add.data, p.row_of_slot, p.tokens,
                                   p.top_k, dim)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
