// Grouped linear layers of MoE for float and for shapes that the other engines cannot do: 64 x 64 tiles of
// multiply-adds, with the expert of a tile found from the offsets on the device.
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/vector.cuh"

enum { PLAIN_TILE = 64, PLAIN_STEP = 16, PLAIN_THREADS = 256 };

static_assert(CUDA_ROW_ALIGN % PLAIN_TILE == 0, "a tile of rows belongs to one expert");

// One operand of a block: the element at (i, l), l along the reduction, is memory[i * across + l * along].
template <typename T> struct PlainOperand {
    const T *memory;
    int64_t across, along;
    int64_t count;         // of i that exist
    const int32_t *tokens; // or NULL: which row of memory stands for row i, or l where that is not contiguous

    __device__ float at(int i, int64_t l, int64_t depth) const {
        if (i >= count || l >= depth) return 0;
        int64_t x = i, y = l, &row = along == 1 ? x : y;
        if (tokens) row = tokens[row];
        return row < 0 ? 0 : to_float(memory[x * across + y * along]);
    }
};

// acc += a block of A . B
template <typename T>
static __device__ void block_multiply(float acc[4][4], const PlainOperand<T> &a, const PlainOperand<T> &b,
                                      int64_t depth) {
    __shared__ float left[PLAIN_STEP][PLAIN_TILE + 1], right[PLAIN_STEP][PLAIN_TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int64_t l0 = 0; l0 < depth; l0 += PLAIN_STEP) {
        for (int i = threadIdx.x; i < PLAIN_STEP * PLAIN_TILE; i += PLAIN_THREADS) {
            // neighbouring threads take neighbouring addresses, whichever way the matrix lies
            const int la = a.along == 1 ? i % PLAIN_STEP : i / PLAIN_TILE;
            const int ra = a.along == 1 ? i / PLAIN_STEP : i % PLAIN_TILE;
            const int lb = b.along == 1 ? i % PLAIN_STEP : i / PLAIN_TILE;
            const int cb = b.along == 1 ? i / PLAIN_STEP : i % PLAIN_TILE;
            left[la][ra] = a.at(ra, l0 + la, depth);
            right[lb][cb] = b.at(cb, l0 + lb, depth);
        }
        __syncthreads();
        for (int l = 0; l < PLAIN_STEP; l++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fmaf(left[l][ty * 4 + i], right[l][tx * 4 + j], acc[i][j]);
        __syncthreads();
    }
}

// out[row, j] = sum over l of in[row, l] * W(l, j), W of the row's expert: weight[e][l * w_row + j * w_column].
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_rows_kernel(T *out, const T *in, const int32_t *tokens, const T *weight, const int32_t *offsets, int experts,
                      int depth, int columns, int64_t w_row, int64_t w_column) {
    const int64_t row0 = (int64_t)blockIdx.x * PLAIN_TILE;
    const int column0 = blockIdx.y * PLAIN_TILE;
    if (row0 >= offsets[experts]) return;
    const int expert = expert_find(offsets, experts, row0);
    float acc[4][4] = {};
    const PlainOperand<T> a = {tokens ? in : in + row0 * depth, depth, 1, PLAIN_TILE, tokens ? tokens + row0 : NULL};
    const PlainOperand<T> b = {weight + (int64_t)expert * depth * columns + column0 * w_column, w_column, w_row,
                               columns - column0, NULL};
    block_multiply(acc, a, b, depth);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (column0 + tx * 4 + j < columns)
                out[(row0 + ty * 4 + i) * columns + column0 + tx * 4 + j] = from_float<T>(acc[i][j]);
}

template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_weight_kernel(float *out, const T *a, const int32_t *a_tokens, const T *b, const int32_t *b_tokens,
                        const int32_t *offsets, int m, int n, bool accumulate) {
    const int64_t expert = blockIdx.z, begin = offsets[expert], count = offsets[expert + 1] - begin;
    const int row0 = blockIdx.y * PLAIN_TILE, column0 = blockIdx.x * PLAIN_TILE;
    if (count == 0 && accumulate) return;
    float acc[4][4] = {};
    const PlainOperand<T> left = {a + (a_tokens ? 0 : begin * m) + row0, 1, m, m - row0,
                                  a_tokens ? a_tokens + begin : NULL};
    const PlainOperand<T> right = {b + (b_tokens ? 0 : begin * n) + column0, 1, n, n - column0,
                                   b_tokens ? b_tokens + begin : NULL};
    block_multiply(acc, left, right, count);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (row0 + ty * 4 + i < m && column0 + tx * 4 + j < n) {
                float *at = out + (expert * m + row0 + ty * 4 + i) * n + column0 + tx * 4 + j;
                *at = accumulate ? *at + acc[i][j] : acc[i][j];
            }
}

void grouped_plain(CudaState *state, const GroupedCall *call, DType dtype) {
    const unsigned columns = (unsigned)ceil_div64(call->n, PLAIN_TILE);
    if (call->product == GROUPED_WEIGHT) {
        dim3 grid(columns, (unsigned)ceil_div64(call->m, PLAIN_TILE), (unsigned)call->experts);
        WITH_STORAGE(dtype, plain_weight_kernel<<<grid, PLAIN_THREADS, 0, state->stream>>>(
                                (float *)call->out, (const T *)call->a, call->a_tokens, (const T *)call->b,
                                call->b_tokens, call->offsets, call->m, call->n, call->accumulate));
    } else {
        const bool forward = call->product == GROUPED_FORWARD;
        dim3 grid((unsigned)ceil_div64(call->rows, PLAIN_TILE), columns);
        WITH_STORAGE(dtype, plain_rows_kernel<<<grid, PLAIN_THREADS, 0, state->stream>>>(
                                (T *)call->out, (const T *)call->a, call->a_tokens, (const T *)call->b, call->offsets,
                                call->experts, call->k, call->n, forward ? 1 : call->n, forward ? call->k : 1));
    }
    LAUNCH_CHECK(state);
}
