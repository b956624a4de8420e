// SwiGLU forward and backward. Each is one pass. For expert rows the backward pass also writes the forward result
// again, so that the forward pass need not keep it, and, with row weights, the gradient of each row's weight; for dense
// layers there is the packed form.
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

static __device__ __forceinline__ int64_t rows_present(const int32_t *row_count, int64_t rows) {
    return row_count && *row_count < rows ? *row_count : rows;
}

// The fast exponential is good for some 21 bits: enough for bf16, not for float.
template <typename T> static __device__ __forceinline__ float sigmoid(float x) {
    if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-x));
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// ---- forward -------------------------------------------------------------------------------------------------------

// A thread handles UNROLL pieces of V elements, blockDim.x pieces apart.
template <typename T, int V, int UNROLL>
static __global__ __launch_bounds__(256) void swiglu_forward_kernel(T *__restrict__ out, const T *__restrict__ gate_up,
                                                                    const float *__restrict__ row_weight,
                                                                    const int32_t *row_count, int64_t rows, int dim) {
    unsigned pieces = (unsigned)(dim / V);
    int64_t total = rows_present(row_count, rows) * pieces;
    int64_t first = (int64_t)blockIdx.x * (256 * UNROLL) + threadIdx.x;
    float gate[UNROLL][V], up[UNROLL][V];
    int64_t row[UNROLL];
    int column[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * 256;
        if (i >= total) break;
        row[u] = i / pieces;
        column[u] = (int)(i - row[u] * pieces) * V;
        const T *in = gate_up + row[u] * 2 * dim + column[u];
        load_floats<V>(gate[u], in);
        load_floats<V>(up[u], in + dim);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (first + u * 256 >= total) break;
        float weight = row_weight ? row_weight[row[u]] : 1.0f;
#pragma unroll
        for (int j = 0; j < V; j++)
            gate[u][j] *= sigmoid<T>(gate[u][j]) * up[u][j] * weight;
        store_floats<V>(out + row[u] * dim + column[u], gate[u]);
    }
}

extern "C" void cuda_swiglu_forward(Ops *ops, Tensor out, Tensor gate_up, Tensor row_weight, Tensor row_count) {
    int64_t rows = out.rows;
    int dim = (int)out.cols;
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_FORWARD);
    const float *weights = (const float *)row_weight.data;
    const int32_t *present = (const int32_t *)row_count.data;
    bool vector_path = dim % 8 == 0 && all_aligned(16, out.data, gate_up.data);
    unsigned blocks = (unsigned)ceil_div64(rows * (vector_path ? dim / 8 : dim), 256 * 2);
    if (vector_path)
        WITH_STORAGE(out.dtype, (swiglu_forward_kernel<T, 8, 2><<<blocks, 256, 0, state->stream>>>(
                                    (T *)out.data, (const T *)gate_up.data, weights, present, rows, dim)));
    else
        WITH_STORAGE(out.dtype, (swiglu_forward_kernel<T, 1, 2><<<blocks, 256, 0, state->stream>>>(
                                    (T *)out.data, (const T *)gate_up.data, weights, present, rows, dim)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// One piece: from gate, up and dout to dgate, dup and out, all in place. Returns the sum of dout * silu(gate) * up.
template <typename T, int V>
static __device__ __forceinline__ float swiglu_backward_piece(float (&gate)[V], float (&up)[V], float (&dout)[V],
                                                              float weight) {
    float dweight = 0;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float s = sigmoid<T>(gate[j]), silu = gate[j] * s, d = dout[j] * weight, product = silu * up[j];
        dweight += dout[j] * product;
        dout[j] = product * weight;
        float dgate = d * up[j] * (s + silu * (1.0f - s));
        up[j] = d * silu;
        gate[j] = dgate;
    }
    return dweight;
}

// A warp takes a row, so that the gradient of its weight is a warp sum.
template <typename T, int V>
static __global__
__launch_bounds__(256) void swiglu_backward_rows_kernel(T *dgate_up, T *out, float *drow_weight, const T *gate_up,
                                                        const T *dout, const float *row_weight,
                                                        const int32_t *row_count, int64_t rows, int dim) {
    int lane = (int)threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows_present(row_count, rows)) return;
    float weight = row_weight ? row_weight[row] : 1.0f, dweight = 0;
#pragma unroll 2
    for (int column = lane * V; column < dim; column += 32 * V) {
        float gate[V], up[V], grad[V];
        load_floats<V>(gate, gate_up + row * 2 * dim + column);
        load_floats<V>(up, gate_up + row * 2 * dim + dim + column);
        load_floats<V>(grad, dout + row * dim + column);
        dweight += swiglu_backward_piece<T, V>(gate, up, grad, weight);
        store_floats<V>(dgate_up + row * 2 * dim + column, gate);
        store_floats<V>(dgate_up + row * 2 * dim + dim + column, up);
        if (out) store_floats<V>(out + row * dim + column, grad);
    }
    dweight = warp_sum(dweight);
    if (lane == 0) drow_weight[row] = dweight;
}

template <typename T, int V>
static void swiglu_backward_launch(CudaState *state, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up,
                                   Tensor dout, Tensor row_weight, Tensor row_count) {
    swiglu_backward_rows_kernel<T, V><<<(unsigned)ceil_div64(dout.rows, 8), 256, 0, state->stream>>>(
        (T *)dgate_up.data, (T *)out.data, (float *)drow_weight.data, (const T *)gate_up.data, (const T *)dout.data,
        (const float *)row_weight.data, (const int32_t *)row_count.data, dout.rows, (int)dout.cols);
    LAUNCH_CHECK(state);
}

extern "C" void cuda_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up,
                                     Tensor dout, Tensor row_weight, Tensor row_count) {
    if (dout.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_BACKWARD);
    if (dout.cols % 8 == 0 && all_aligned(16, dgate_up.data, out.data, gate_up.data, dout.data))
        WITH_STORAGE(dout.dtype, (swiglu_backward_launch<T, 8>(state, dgate_up, out, drow_weight, gate_up, dout,
                                                               row_weight, row_count)));
    else
        WITH_STORAGE(dout.dtype, (swiglu_backward_launch<T, 1>(state, dgate_up, out, drow_weight, gate_up, dout,
                                                               row_weight, row_count)));
    cuda_scope_end(state);
}

// ---- packed: gate and hidden side by side -------------------------------------------------------------------------

template <typename T, int V>
static __global__ __launch_bounds__(256) void swiglu_packed_forward_kernel(T *gate_up, int64_t rows, int dim) {
    unsigned pieces = (unsigned)(dim / V);
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / pieces;
    if (row >= rows) return;
    T *at = gate_up + row * 2 * dim + (i - row * pieces) * V;
    float gate[V], up[V];
    load_floats<V>(gate, at);
    load_floats<V>(up, at + dim);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float g = nonzero<T>(gate[j]);
        up[j] *= g * sigmoid<T>(g);
    }
    store_floats<V>(at + dim, up);
}

// With s the sigmoid and hidden h = g s up: dgate = d up (s + g s (1 - s)) = d h (1 / g + 1 - s).
template <typename T, int V>
static __global__ __launch_bounds__(256) void swiglu_packed_backward_kernel(T *dgate_up, const T *gate_hidden,
                                                                            const T *__restrict__ dhidden, int64_t rows,
                                                                            int dim) {
    unsigned pieces = (unsigned)(dim / V);
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / pieces;
    if (row >= rows) return;
    int64_t column = (i - row * pieces) * V, at = row * 2 * dim + column;
    float gate[V], hidden[V], grad[V];
    load_floats<V>(gate, gate_hidden + at);
    load_floats<V>(hidden, gate_hidden + at + dim);
    load_floats<V>(grad, dhidden + row * dim + column);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float g = nonzero<T>(gate[j]), s = sigmoid<T>(g);
        gate[j] = grad[j] * (hidden[j] * (1.0f / g + (1.0f - s)));
        hidden[j] = grad[j] * (g * s);
    }
    store_floats<V>(dgate_up + at, gate);
    store_floats<V>(dgate_up + at + dim, hidden);
}

extern "C" void cuda_swiglu_packed_forward(Ops *ops, Tensor gate_up) {
    int64_t rows = gate_up.rows;
    int dim = (int)(gate_up.cols / 2);
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_PACKED_FORWARD);
    bool vector_path = dim % 8 == 0 && all_aligned(16, gate_up.data);
    unsigned blocks = (unsigned)ceil_div64(rows * (vector_path ? dim / 8 : dim), 256);
    if (vector_path)
        WITH_STORAGE(gate_up.dtype, (swiglu_packed_forward_kernel<T, 8>
                                     <<<blocks, 256, 0, state->stream>>>((T *)gate_up.data, rows, dim)));
    else
        WITH_STORAGE(gate_up.dtype, (swiglu_packed_forward_kernel<T, 1>
                                     <<<blocks, 256, 0, state->stream>>>((T *)gate_up.data, rows, dim)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

extern "C" void cuda_swiglu_packed_backward(Ops *ops, Tensor dgate_up, Tensor gate_hidden, Tensor dhidden) {
    int64_t rows = dhidden.rows;
    int dim = (int)dhidden.cols;
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_PACKED_BACKWARD);
    bool vector_path = dim % 8 == 0 && all_aligned(16, dgate_up.data, gate_hidden.data, dhidden.data);
    unsigned blocks = (unsigned)ceil_div64(rows * (vector_path ? dim / 8 : dim), 256);
    if (vector_path)
        WITH_STORAGE(dhidden.dtype,
                     (swiglu_packed_backward_kernel<T, 8><<<blocks, 256, 0, state->stream>>>(
                         (T *)dgate_up.data, (const T *)gate_hidden.data, (const T *)dhidden.data, rows, dim)));
    else
        WITH_STORAGE(dhidden.dtype,
                     (swiglu_packed_backward_kernel<T, 1><<<blocks, 256, 0, state->stream>>>(
                         (T *)dgate_up.data, (const T *)gate_hidden.data, (const T *)dhidden.data, rows, dim)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
