// Grouped linear layers of MoE: the choice of the engine, and the plain one for float and for shapes that the others
// cannot do: 64 x 64 tiles of multiply-adds, with the expert of a tile found from the offsets on the device.
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/vector.cuh"

enum { PLAIN_TILE = 64, PLAIN_STEP = 16, PLAIN_THREADS = 256 };

static_assert(CUDA_ROW_ALIGN % PLAIN_TILE == 0, "a tile of rows belongs to one expert");

// acc += a block of A . B, where A(i, l) = a[i * a_row + l * a_column] and B(l, j) = b[l * b_row + j * b_column].
template <typename T>
static __device__ void block_multiply(float acc[4][4], const T *a, int64_t a_row, int64_t a_column, int64_t a_rows,
                                      const T *b, int64_t b_row, int64_t b_column, int64_t b_columns, int64_t depth) {
    __shared__ float left[PLAIN_STEP][PLAIN_TILE + 1], right[PLAIN_STEP][PLAIN_TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int64_t l0 = 0; l0 < depth; l0 += PLAIN_STEP) {
        for (int i = threadIdx.x; i < PLAIN_STEP * PLAIN_TILE; i += PLAIN_THREADS) {
            // neighbouring threads take neighbouring addresses, whichever way the matrix lies
            const int la = a_column == 1 ? i % PLAIN_STEP : i / PLAIN_TILE;
            const int ra = a_column == 1 ? i / PLAIN_STEP : i % PLAIN_TILE;
            const int lb = b_column == 1 ? i / PLAIN_TILE : i % PLAIN_STEP;
            const int cb = b_column == 1 ? i % PLAIN_TILE : i / PLAIN_STEP;
            left[la][ra] = ra < a_rows && l0 + la < depth ? to_float(a[ra * a_row + (l0 + la) * a_column]) : 0;
            right[lb][cb] = cb < b_columns && l0 + lb < depth ? to_float(b[(l0 + lb) * b_row + cb * b_column]) : 0;
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
    plain_rows_kernel(T *out, const T *in, const T *weight, const int32_t *offsets, int experts, int depth, int columns,
                      int64_t w_row, int64_t w_column) {
    const int64_t row0 = (int64_t)blockIdx.x * PLAIN_TILE;
    const int column0 = blockIdx.y * PLAIN_TILE;
    if (row0 >= offsets[experts]) return;
    const int expert = expert_find(offsets, experts, row0);
    float acc[4][4] = {};
    block_multiply(acc, in + row0 * depth, depth, 1, PLAIN_TILE,
                   weight + (int64_t)expert * depth * columns + column0 * w_column, w_row, w_column, columns - column0,
                   depth);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (column0 + tx * 4 + j < columns)
                out[(row0 + ty * 4 + i) * columns + column0 + tx * 4 + j] = from_float<T>(acc[i][j]);
}

template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_weight_kernel(float *out, const T *a, const T *b, const int32_t *offsets, int m, int n, bool accumulate) {
    const int64_t expert = blockIdx.z, begin = offsets[expert], count = offsets[expert + 1] - begin;
    const int row0 = blockIdx.y * PLAIN_TILE, column0 = blockIdx.x * PLAIN_TILE;
    if (count == 0 && accumulate) return;
    float acc[4][4] = {};
    block_multiply(acc, a + begin * m + row0, 1, m, m - row0, b + begin * n + column0, n, 1, n - column0, count);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (row0 + ty * 4 + i < m && column0 + tx * 4 + j < n) {
                float *at = out + (expert * m + row0 + ty * 4 + i) * n + column0 + tx * 4 + j;
                *at = accumulate ? *at + acc[i][j] : acc[i][j];
            }
}

static void grouped_plain(CudaState *state, const GroupedCall *call, DType dtype) {
    const unsigned columns = (unsigned)ceil_div64(call->n, PLAIN_TILE);
    if (call->product == GROUPED_WEIGHT) {
        dim3 grid(columns, (unsigned)ceil_div64(call->m, PLAIN_TILE), (unsigned)call->experts);
        WITH_STORAGE(dtype, plain_weight_kernel<<<grid, PLAIN_THREADS, 0, state->stream>>>(
                                (float *)call->out, (const T *)call->a, (const T *)call->b, call->offsets, call->m,
                                call->n, call->accumulate));
    } else {
        const bool forward = call->product == GROUPED_FORWARD;
        dim3 grid((unsigned)ceil_div64(call->rows, PLAIN_TILE), columns);
        WITH_STORAGE(dtype, plain_rows_kernel<<<grid, PLAIN_THREADS, 0, state->stream>>>(
                                (T *)call->out, (const T *)call->a, (const T *)call->b, call->offsets, call->experts,
                                call->k, call->n, forward ? 1 : call->n, forward ? call->k : 1));
    }
    LAUNCH_CHECK(state);
}

static void grouped_run(Ops *ops, OpId op, const GroupedCall *call, DType dtype) {
    CudaState *state = cuda_scope_begin(ops, op);
    const bool done =
        (dtype == DTYPE_BF16 && grouped_sm90(state, call)) || (dtype != DTYPE_F32 && grouped_mma(state, call, dtype));
    if (!done) grouped_plain(state, call, dtype);
    cuda_scope_end(state);
}

static GroupedCall grouped_call(GroupedProduct product, Tensor out, Tensor a, Tensor b, Tensor offsets) {
    return {product, out.data, a.data, b.data, (const int32_t *)offsets.data, (int)offsets.cols - 1, a.rows};
}

void cuda_grouped_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets) {
    GroupedCall call = grouped_call(GROUPED_FORWARD, out, in, weight, offsets);
    call.n = (int)out.cols, call.k = (int)in.cols;
    grouped_run(ops, OP_GROUPED_LINEAR_FORWARD, &call, in.dtype);
}

void cuda_grouped_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets) {
    GroupedCall call = grouped_call(GROUPED_INPUT, din, dout, weight, offsets);
    call.n = (int)din.cols, call.k = (int)dout.cols;
    grouped_run(ops, OP_GROUPED_LINEAR_BACKWARD_INPUT, &call, dout.dtype);
}

void cuda_grouped_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                         bool accumulate) {
    GroupedCall call = grouped_call(GROUPED_WEIGHT, dweight, dout, in, offsets);
    call.m = (int)dout.cols, call.n = (int)in.cols, call.accumulate = accumulate;
    grouped_run(ops, OP_GROUPED_LINEAR_BACKWARD_WEIGHT, &call, in.dtype);
}
