// Residual add + RMSNorm, forward and backward, one pass over memory each: a row is held in registers, packed as it is
// stored, by one warp (short rows) or by a group of warps. Forward reads residual and branch and writes sum and out;
// backward reads dout, sum and dsum and writes dsum and the normed row; its weight gradient stays in registers over a
// persistent grid and leaves one partial row per block, which columns_reduce adds up in a fixed order. workspace:
// add_rmsnorm_backward uses workspace_norm_backward(dim).
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

// ---- forward
// ----------------------------------------------------------------------------------------------------------

// GROUP threads hold a row of `vectors` 16-byte vectors, VECS each.
template <typename T, int VECS, int GROUP>
static __global__
__launch_bounds__(GROUP > 256 ? GROUP : 256) void rmsnorm_forward_kernel(T *out, T *sum, float *rstd, const T *residual,
                                                                         const T *branch, const T *__restrict__ weight,
                                                                         int64_t rows, int dim, float eps) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256, GROUPS = BLOCK / GROUP, N = Vec<T>::N;
    __shared__ float scratch[GROUPS][2 * (GROUP / 32)];
    int group = (int)threadIdx.x / GROUP, lane = (int)threadIdx.x % GROUP, vectors = dim / N, half = 0;
    int64_t row = (int64_t)blockIdx.x * GROUPS + group;
    if (row >= rows) return;
    const T *in_row = residual + row * dim;
    uint4 x[VECS], b[VECS];
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v < vectors) x[i] = load16(in_row + v * N);
    }
    if (branch) {
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int v = lane + i * GROUP;
            if (v < vectors) b[i] = load16(branch + row * dim + v * N);
        }
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
        float value[N];
        vec_unpack(value, x[i]);
        if (branch) {
            float other[N];
            vec_unpack(other, b[i]);
#pragma unroll
            for (int j = 0; j < N; j++)
                value[j] += other[j];
            x[i] = vec_pack(value);
            store16(sum + row * dim + v * N, x[i]);
            vec_unpack(value, x[i]); // as stored: what the backward pass will read
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            squares += value[j] * value[j];
    }
    squares = group_sum<GROUP>(squares, group, scratch[group], half);
    float scale = rsqrtf(squares / (float)dim + eps);
    if (lane == 0) rstd[row] = scale;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
        float value[N], w[N];
        vec_unpack(value, x[i]);
        vec_unpack(w, load16(weight + v * N));
#pragma unroll
        for (int j = 0; j < N; j++)
            value[j] *= scale * w[j];
        store16(out + row * dim + v * N, vec_pack(value));
    }
}

// Any width and alignment.
template <typename T>
static __global__ __launch_bounds__(256) void rmsnorm_forward_scalar_kernel(T *out, T *sum, float *rstd,
                                                                            const T *residual, const T *branch,
                                                                            const T *weight, int dim, float eps) {
    __shared__ float shared[32];
    int64_t base = (int64_t)blockIdx.x * dim;
    float squares = 0;
    for (int i = (int)threadIdx.x; i < dim; i += 256) {
        float value = to_float(residual[base + i]);
        if (branch) {
            T stored = from_float<T>(value + to_float(branch[base + i]));
            sum[base + i] = stored;
            value = to_float(stored);
        }
        squares += value * value;
    }
    squares = block_sum(squares, shared);
    float scale = rsqrtf(squares / (float)dim + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    const T *in = branch ? sum : residual; // each thread reads what it wrote itself
    for (int i = (int)threadIdx.x; i < dim; i += 256)
        out[base + i] = from_float<T>(to_float(in[base + i]) * scale * to_float(weight[i]));
}

template <typename T, int VECS, int GROUP>
static void forward_launch(CudaState *state, T *out, T *sum, float *rstd, const T *residual, const T *branch,
                           const T *weight, int64_t rows, int dim, float eps) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256;
    rmsnorm_forward_kernel<T, VECS, GROUP><<<(unsigned)ceil_div64(rows, BLOCK / GROUP), BLOCK, 0, state->stream>>>(
        out, sum, rstd, residual, branch, weight, rows, dim, eps);
}

template <typename T>
static void forward_choose(CudaState *state, T *out, T *sum, float *rstd, const T *residual, const T *branch,
                           const T *weight, int64_t rows, int dim, float eps) {
    int vectors = dim / Vec<T>::N;
    bool vector_path = dim % Vec<T>::N == 0 && all_aligned(16, out, sum, residual, branch, weight);
    if (!vector_path || vectors > 2048)
        rmsnorm_forward_scalar_kernel<T>
            <<<(unsigned)rows, 256, 0, state->stream>>>(out, sum, rstd, residual, branch, weight, dim, eps);
    else if (vectors <= 32)
        forward_launch<T, 1, 32>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps);
    else if (vectors <= 128)
        forward_launch<T, 4, 32>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps);
    else if (vectors <= 256)
        forward_launch<T, 4, 64>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps);
    else if (vectors <= 512)
        forward_launch<T, 4, 128>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps);
    else
        forward_launch<T, 4, 512>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps);
}

extern "C" void cuda_add_rmsnorm_forward(Ops *ops, void *out, void *sum, float *rstd, const void *residual,
                                         const void *branch, const void *weight, int64_t rows, int dim, float eps,
                                         DType dtype) {
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ELEMENTWISE);
    WITH_STORAGE(dtype, forward_choose<T>(state, (T *)out, (T *)sum, rstd, (const T *)residual, (const T *)branch,
                                          (const T *)weight, rows, dim, eps));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- backward
// ---------------------------------------------------------------------------------------------------------

// With x^ = sum * rstd: dx = rstd * (dout w - x^ mean(dout w x^)); dw = sum over rows of dout x^.
template <typename T, int VECS, int GROUP>
static __global__ __launch_bounds__(GROUP > 256 ? GROUP : 256) void rmsnorm_backward_kernel(
    T *dsum, T *normed, float *partials, const T *__restrict__ dout, const T *__restrict__ sum,
    const float *__restrict__ rstd, const T *__restrict__ weight, int64_t rows, int dim, bool dsum_is_zero) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256, GROUPS = BLOCK / GROUP, N = Vec<T>::N;
    __shared__ float scratch[GROUPS][2 * (GROUP / 32)];
    extern __shared__ float total[]; // [dim]
    int group = (int)threadIdx.x / GROUP, lane = (int)threadIdx.x % GROUP, vectors = dim / N, half = 0;
    float dw[VECS][N] = {};
    for (int64_t row = (int64_t)blockIdx.x * GROUPS + group; row < rows; row += (int64_t)gridDim.x * GROUPS) {
        uint4 x[VECS], g[VECS], d[VECS];
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int v = lane + i * GROUP;
            if (v >= vectors) continue;
            x[i] = load16_once(sum + row * dim + v * N);
            g[i] = load16_once(dout + row * dim + v * N);
        }
        if (!dsum_is_zero) {
#pragma unroll
            for (int i = 0; i < VECS; i++) {
                int v = lane + i * GROUP;
                if (v < vectors) d[i] = load16(dsum + row * dim + v * N);
            }
        }
        float scale = rstd[row], dot = 0;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int v = lane + i * GROUP;
            if (v >= vectors) continue;
            float xs[N], gs[N], w[N];
            vec_unpack(xs, x[i]);
            vec_unpack(gs, g[i]);
            vec_unpack(w, load16(weight + v * N));
#pragma unroll
            for (int j = 0; j < N; j++) {
                float hat = xs[j] * scale;
                dw[i][j] += gs[j] * hat;
                dot += gs[j] * w[j] * hat;
            }
        }
        float mean = group_sum<GROUP>(dot, group, scratch[group], half) / (float)dim;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            int v = lane + i * GROUP;
            if (v >= vectors) continue;
            float xs[N], gs[N], w[N], ds[N];
            vec_unpack(xs, x[i]);
            vec_unpack(gs, g[i]);
            vec_unpack(w, load16(weight + v * N));
            if (!dsum_is_zero) vec_unpack(ds, d[i]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float hat = xs[j] * scale, dx = scale * (gs[j] * w[j] - hat * mean);
                gs[j] = dsum_is_zero ? dx : ds[j] + dx;
                xs[j] = hat * w[j];
            }
            store16(dsum + row * dim + v * N, vec_pack(gs));
            if (normed) store16(normed + row * dim + v * N, vec_pack(xs));
        }
    }
    // The groups add their sums one after the other, always in the same order.
    for (int turn = 0; turn < GROUPS; turn++) {
        if (turn == group) {
#pragma unroll
            for (int i = 0; i < VECS; i++) {
                int v = lane + i * GROUP;
                if (v >= vectors) continue;
#pragma unroll
                for (int j = 0; j < N; j++)
                    total[v * N + j] = turn ? total[v * N + j] + dw[i][j] : dw[i][j];
            }
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < dim; i += BLOCK)
        partials[(int64_t)blockIdx.x * dim + i] = total[i];
}

// Any width and alignment: a block takes its rows one by one and keeps dw of its columns in its own partial row.
template <typename T>
static __global__ __launch_bounds__(256) void rmsnorm_backward_scalar_kernel(T *dsum, T *normed, float *partials,
                                                                             const T *dout, const T *sum,
                                                                             const float *rstd, const T *weight,
                                                                             int64_t rows, int dim, bool dsum_is_zero) {
    __shared__ float shared[32];
    float *partial = partials + (int64_t)blockIdx.x * dim;
    for (int i = (int)threadIdx.x; i < dim; i += 256)
        partial[i] = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t base = row * dim;
        float scale = rstd[row], dot = 0;
        for (int i = (int)threadIdx.x; i < dim; i += 256) {
            float hat = to_float(sum[base + i]) * scale, g = to_float(dout[base + i]);
            partial[i] += g * hat;
            dot += g * to_float(weight[i]) * hat;
        }
        float mean = block_sum(dot, shared) / (float)dim;
        for (int i = (int)threadIdx.x; i < dim; i += 256) {
            float hat = to_float(sum[base + i]) * scale, w = to_float(weight[i]);
            float dx = scale * (to_float(dout[base + i]) * w - hat * mean);
            dsum[base + i] = from_float<T>(dsum_is_zero ? dx : to_float(dsum[base + i]) + dx);
            if (normed) normed[base + i] = from_float<T>(hat * w);
        }
    }
}

template <typename T, int VECS, int GROUP>
static int backward_launch(CudaState *state, T *dsum, T *normed, float *partials, const T *dout, const T *sum,
                           const float *rstd, const T *weight, int64_t rows, int dim, bool dsum_is_zero) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256;
    int64_t most = ceil_div64(rows, BLOCK / GROUP);
    int blocks = (int)(most < NORM_BACKWARD_BLOCKS ? most : NORM_BACKWARD_BLOCKS);
    size_t shared = (size_t)dim * sizeof(float);
    if (shared > 40 << 10) // with the static part over 48 KB
        CUDA_CHECK(state, cudaFuncSetAttribute(rmsnorm_backward_kernel<T, VECS, GROUP>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    rmsnorm_backward_kernel<T, VECS, GROUP><<<blocks, BLOCK, shared, state->stream>>>(
        dsum, normed, partials, dout, sum, rstd, weight, rows, dim, dsum_is_zero);
    return blocks;
}

template <typename T> // returns the number of partial rows
static int backward_choose(CudaState *state, T *dsum, T *normed, float *partials, const T *dout, const T *sum,
                           const float *rstd, const T *weight, int64_t rows, int dim, bool dsum_is_zero) {
    int vectors = dim / Vec<T>::N;
    bool vector_path = dim % Vec<T>::N == 0 && all_aligned(16, dsum, normed, dout, sum, weight);
    if (!vector_path || vectors > 2048) {
        int blocks = (int)(rows < NORM_BACKWARD_BLOCKS ? rows : NORM_BACKWARD_BLOCKS);
        rmsnorm_backward_scalar_kernel<T><<<blocks, 256, 0, state->stream>>>(dsum, normed, partials, dout, sum, rstd,
                                                                             weight, rows, dim, dsum_is_zero);
        return blocks;
    }
    if (vectors <= 32)
        return backward_launch<T, 1, 32>(state, dsum, normed, partials, dout, sum, rstd, weight, rows, dim,
                                         dsum_is_zero);
    if (vectors <= 128)
        return backward_launch<T, 4, 32>(state, dsum, normed, partials, dout, sum, rstd, weight, rows, dim,
                                         dsum_is_zero);
    if (vectors <= 256)
        return backward_launch<T, 4, 64>(state, dsum, normed, partials, dout, sum, rstd, weight, rows, dim,
                                         dsum_is_zero);
    if (vectors <= 512)
        return backward_launch<T, 4, 128>(state, dsum, normed, partials, dout, sum, rstd, weight, rows, dim,
                                          dsum_is_zero);
    return backward_launch<T, 4, 512>(state, dsum, normed, partials, dout, sum, rstd, weight, rows, dim, dsum_is_zero);
}

extern "C" void cuda_add_rmsnorm_backward(Ops *ops, void *dsum, void *normed, float *dweight, const void *dout,
                                          const void *sum, const float *rstd, const void *weight, int64_t rows, int dim,
                                          bool dsum_is_zero, DType dtype) {
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ELEMENTWISE);
    float *partials = (float *)cuda_scratch(state, workspace_norm_backward(dim));
    if (partials) {
        int parts = 0;
        WITH_STORAGE(dtype,
                     parts = backward_choose<T>(state, (T *)dsum, (T *)normed, partials, (const T *)dout,
                                                (const T *)sum, rstd, (const T *)weight, rows, dim, dsum_is_zero));
        LAUNCH_CHECK(state);
        columns_reduce(state->stream, dweight, partials, parts, dim, true);
        LAUNCH_CHECK(state);
    }
    cuda_scope_end(state);
}
