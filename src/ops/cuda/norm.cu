// Residual add + RMSNorm, forward and backward, one pass over memory each: a row belongs to one warp (short rows) or to
// a group of warps. Forward holds it in registers, packed as it is stored: reads residual and branch, writes sum and
// out. Backward reads dout, out and dsum and writes dsum; a ring in shared memory takes a group's next row while it
// works on this one. Its weight gradient stays in registers over a persistent grid and leaves one partial row per
// block, which columns_reduce adds up in a fixed order. Both take the last rows first: those are the ones that the
// product before has just written and L2 still holds. workspace: add_rmsnorm_backward uses
// workspace_norm_backward(dim).
#include "ops/cuda/cuda.h"
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/sm80.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

// ---- forward -------------------------------------------------------------------------------------------------------

typedef struct NormFp8 { // of a result in FP8 as well; rows NULL: none
    uint8_t *rows;
    float *amax;
    const float *scale;
} NormFp8;

// GROUP threads hold a row of `vectors` 16-byte vectors, VECS each.
template <typename T, int VECS, int GROUP, bool BRANCH, bool FP8>
static __global__ __launch_bounds__(GROUP > 256 ? GROUP : 256) void rmsnorm_forward_kernel(
    T *out, T *sum, float *rstd, const T *residual, const T *branch, const T *__restrict__ weight, int64_t rows,
    int dim, float eps, NormFp8 fp8) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256, GROUPS = BLOCK / GROUP, N = Vec<T>::N;
    __shared__ float scratch[GROUPS][2 * (GROUP / 32)];
    int group = (int)threadIdx.x / GROUP, lane = (int)threadIdx.x % GROUP, vectors = dim / N, half = 0;
    int64_t row = rows - 1 - ((int64_t)blockIdx.x * GROUPS + group);
    if (row < 0) return;
    uint4 x[VECS], b[VECS], w[VECS];
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
        x[i] = load16_once(residual + row * dim + v * N);
        if (BRANCH) b[i] = load16_once(branch + row * dim + v * N);
    }
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v < vectors) w[i] = load16(weight + v * N);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
        float value[N];
        vec_unpack<T>(value, x[i]);
        if (BRANCH) {
            float other[N];
            vec_unpack<T>(other, b[i]);
#pragma unroll
            for (int j = 0; j < N; j++)
                value[j] += other[j];
            x[i] = vec_pack<T>(value);
            store16_once(sum + row * dim + v * N, x[i]);
            vec_unpack<T>(value, x[i]); // as stored: what the backward pass will read
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            squares += value[j] * value[j];
    }
    squares = group_sum<GROUP>(squares, group, scratch[group], half);
    float scale = rsqrtf(squares / (float)dim + eps);
    if (lane == 0) rstd[row] = scale;
    const float inverse = FP8 ? 1.0f / *fp8.scale : 0;
    float most = 0;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
        float value[N], weights[N];
        vec_unpack<T>(value, x[i]);
        vec_unpack<T>(weights, w[i]);
#pragma unroll
        for (int j = 0; j < N; j++)
            value[j] *= scale * nonzero<T>(weights[j]);
        const uint4 packed = vec_pack<T>(value);
        store16(out + row * dim + v * N, packed);
        if constexpr (FP8) { // of the numbers as stored: the backward pass rounds those again
            vec_unpack<T>(value, packed);
            most = magnitude(value, most);
            *(uint2 *)(fp8.rows + row * dim + v * N) = fp8_pack<false>(value, inverse);
        }
    }
    if constexpr (FP8) amax_note(fp8.amax, most);
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
        out[base + i] = from_float<T>(to_float(in[base + i]) * scale * nonzero<T>(to_float(weight[i])));
}

template <typename T, int VECS, int GROUP>
static void forward_launch(CudaState *state, T *out, T *sum, float *rstd, const T *residual, const T *branch,
                           const T *weight, int64_t rows, int dim, float eps, NormFp8 fp8) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256;
    unsigned blocks = (unsigned)ceil_div64(rows, BLOCK / GROUP);
    auto kernel = branch ? rmsnorm_forward_kernel<T, VECS, GROUP, true, false>
                         : rmsnorm_forward_kernel<T, VECS, GROUP, false, false>;
    if constexpr (sizeof(T) == 2 && !IS_FP16<T>)
        if (fp8.rows) kernel = rmsnorm_forward_kernel<T, VECS, GROUP, false, true>;
    kernel<<<blocks, BLOCK, 0, state->stream>>>(out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
}

// Whether the result is there in FP8 too.
template <typename T>
static bool forward_choose(CudaState *state, T *out, T *sum, float *rstd, const T *residual, const T *branch,
                           const T *weight, int64_t rows, int dim, float eps, NormFp8 fp8) {
    int vectors = dim / Vec<T>::N;
    bool vector_path = dim % Vec<T>::N == 0 && all_aligned(16, out, sum, residual, branch, weight) &&
                       all_aligned(8, fp8.rows) && vectors <= 2048;
    if (!vector_path)
        rmsnorm_forward_scalar_kernel<T>
            <<<(unsigned)rows, 256, 0, state->stream>>>(out, sum, rstd, residual, branch, weight, dim, eps);
    else if (vectors <= 32)
        forward_launch<T, 1, 32>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
    else if (vectors <= 128)
        forward_launch<T, 4, 32>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
    else if (vectors <= 256)
        forward_launch<T, 4, 64>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
    else if (vectors <= 512)
        forward_launch<T, 4, 128>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
    else
        forward_launch<T, 4, 512>(state, out, sum, rstd, residual, branch, weight, rows, dim, eps, fp8);
    return vector_path && fp8.rows;
}

extern "C" void cuda_add_rmsnorm_forward(Ops *ops, Tensor out, Tensor sum, Tensor rstd, Tensor residual, Tensor branch,
                                         Tensor weight, float eps) {
    if (out.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ADD_RMSNORM_FORWARD);
    WITH_STORAGE(out.dtype, forward_choose<T>(state, (T *)out.data, (T *)sum.data, (float *)rstd.data,
                                              (const T *)residual.data, (const T *)branch.data, (const T *)weight.data,
                                              out.rows, (int)out.cols, eps, NormFp8{}));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

extern "C" void cuda_rmsnorm_fp8_forward(Ops *ops, Tensor out, Tensor rows, Tensor amax, Tensor rstd, Tensor residual,
                                         Tensor weight, Tensor scale, float eps) {
    if (out.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_RMSNORM_FP8_FORWARD);
    NormFp8 fp8 = {(uint8_t *)rows.data, (float *)amax.data, (const float *)scale.data};
    bool done = forward_choose<Bf16>(state, (Bf16 *)out.data, NULL, (float *)rstd.data, (const Bf16 *)residual.data,
                                     NULL, (const Bf16 *)weight.data, out.rows, (int)out.cols, eps, fp8);
    LAUNCH_CHECK(state);
    if (!done) cuda_quantize(ops, rows, TENSOR_NONE, amax, out, scale);
    cuda_scope_end(state);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// The fast division is good for some 22 bits: enough for bf16, not for float.
template <typename T> static __device__ __forceinline__ float quotient(float a, float b) {
    return sizeof(T) == 4 ? a / b : __fdividef(a, b);
}

// With x^ = sum * rstd = out / w: dx = rstd * (dout w - x^ mean(dout out)); dw = sum over rows of dout x^, divided by w
// only at the end. A thread reads from the ring only what it has copied itself, so the ring needs no barriers. TABLE:
// behind it stand the reciprocals of w, instead of a division for each element.
template <typename T, int VECS, int GROUP, int BLOCK, int PER_SM, int STAGES, bool TABLE>
static __global__ __launch_bounds__(BLOCK,
                                    PER_SM) void rmsnorm_backward_kernel(T *dsum, float *partials, const T *dout,
                                                                         const T *out, const float *__restrict__ rstd,
                                                                         const T *__restrict__ weight, int64_t rows,
                                                                         int dim, bool dsum_is_zero) {
    constexpr int GROUPS = BLOCK / GROUP, N = Vec<T>::N;
    extern __shared__ uint4 ring[]; // [STAGES, 3, VECS, BLOCK]: out, dout, dsum
    float *table = (float *)(ring + STAGES * 3 * VECS * BLOCK);
    __shared__ float scratch[GROUPS][2 * (GROUP / 32)];
    int group = (int)threadIdx.x / GROUP, lane = (int)threadIdx.x % GROUP, vectors = dim / N, half = 0;
    int64_t step = (int64_t)gridDim.x * GROUPS, row = rows - 1 - ((int64_t)blockIdx.x * GROUPS + group);
    float dw[VECS][N] = {};
    uint4 w[VECS];
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        w[i] = v < vectors ? load16(weight + v * N) : make_uint4(0, 0, 0, 0);
    }
    if constexpr (TABLE) {
        for (int i = (int)threadIdx.x; i < dim; i += BLOCK)
            table[i] = 1.0f / nonzero<T>(to_float(weight[i]));
        __syncthreads();
    }
    auto fetch = [&](int64_t from, int stage) {
        uint4 *slot = ring + stage * 3 * VECS * BLOCK + threadIdx.x;
        int64_t at = from * dim + lane * N;
        const T *out_at = out + at, *dout_at = dout + at, *dsum_at = dsum + at;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            if (from < 0 || lane + i * GROUP >= vectors) continue;
            copy16_async(shared_address(slot + i * BLOCK), out_at + i * GROUP * N);
            copy16_async(shared_address(slot + (VECS + i) * BLOCK), dout_at + i * GROUP * N);
            if (!dsum_is_zero) copy16_async(shared_address(slot + (2 * VECS + i) * BLOCK), dsum_at + i * GROUP * N);
        }
        copies_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++)
        fetch(row - stage * step, stage);
    int stage = 0;
    float scale = row >= 0 ? rstd[row] : 0;
    for (; row + group >= 0; row -= step) { // as often in every group: some have no row in the last round
        const int mine = row >= 0 ? vectors : 0;
        fetch(row - (STAGES - 1) * step, stage == 0 ? STAGES - 1 : stage - 1);
        float next_scale = row >= step ? rstd[row - step] : 0;
        copies_wait<STAGES - 1>();
        const uint4 *slot = ring + stage * 3 * VECS * BLOCK + threadIdx.x;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        float dot = 0;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            if (lane + i * GROUP >= mine) continue;
            float ys[N], gs[N];
            vec_unpack<T>(ys, slot[i * BLOCK]);
            vec_unpack<T>(gs, slot[(VECS + i) * BLOCK]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                dw[i][j] += gs[j] * ys[j];
                dot += gs[j] * ys[j];
            }
        }
        const float slope = scale * (group_sum<GROUP>(dot, group, scratch[group], half) / (float)dim);
        asm volatile("" ::: "memory"); // reads the row again from the ring: held in registers, it makes them spill
        T *dsum_at = dsum + row * dim + lane * N;
#pragma unroll
        for (int i = 0; i < VECS; i++) {
            if (lane + i * GROUP >= mine) continue;
            float ys[N], gs[N], ws[N], inverse[N], ds[N] = {};
            vec_unpack<T>(ys, slot[i * BLOCK]);
            vec_unpack<T>(gs, slot[(VECS + i) * BLOCK]);
            vec_unpack<T>(ws, w[i]);
            if (!dsum_is_zero) vec_unpack<T>(ds, slot[(2 * VECS + i) * BLOCK]);
#pragma unroll
            for (int j = 0; j < N; j += 4) {
                if constexpr (TABLE) {
                    const float4 four = *(const float4 *)(table + (lane + i * GROUP) * N + j);
                    inverse[j] = four.x, inverse[j + 1] = four.y, inverse[j + 2] = four.z, inverse[j + 3] = four.w;
                } else {
                    for (int k = j; k < j + 4; k++)
                        inverse[k] = quotient<T>(1.0f, nonzero<T>(ws[k]));
                }
            }
#pragma unroll
            for (int j = 0; j < N; j++) { // a weight of zero as it is: OPS_NONZERO would be lost, but not f16's
                const float factor = IS_FP16<T> ? nonzero<T>(ws[j]) : ws[j];
                gs[j] = ds[j] + gs[j] * (scale * factor) - ys[j] * (slope * inverse[j]);
            }
            store16_once(dsum_at + i * GROUP * N, vec_pack<T>(gs));
        }
        scale = next_scale;
    }
    // The groups' sums are added always in the same order.
    float *sums = (float *)ring; // [GROUPS, dim], at most two thirds of the ring's first stage
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        int v = lane + i * GROUP;
        if (v >= vectors) continue;
#pragma unroll
        for (int j = 0; j < N; j++)
            sums[group * dim + v * N + j] = dw[i][j];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < dim; i += BLOCK) {
        float total = sums[i];
#pragma unroll
        for (int g = 1; g < GROUPS; g++)
            total += sums[g * dim + i];
        partials[(int64_t)blockIdx.x * dim + i] = total / nonzero<T>(to_float(weight[i]));
    }
}

// Any width and alignment: a block takes its rows one by one and keeps dw of its columns in its own partial row.
template <typename T>
static __global__ __launch_bounds__(256) void rmsnorm_backward_scalar_kernel(T *dsum, float *partials, const T *dout,
                                                                             const T *out, const float *rstd,
                                                                             const T *weight, int64_t rows, int dim,
                                                                             bool dsum_is_zero) {
    __shared__ float shared[32];
    float *partial = partials + (int64_t)blockIdx.x * dim;
    for (int i = (int)threadIdx.x; i < dim; i += 256)
        partial[i] = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t base = row * dim;
        float scale = rstd[row], dot = 0;
        for (int i = (int)threadIdx.x; i < dim; i += 256) {
            float product = to_float(dout[base + i]) * to_float(out[base + i]);
            partial[i] += product / nonzero<T>(to_float(weight[i]));
            dot += product;
        }
        float mean = block_sum(dot, shared) / (float)dim;
        for (int i = (int)threadIdx.x; i < dim; i += 256) {
            float w = nonzero<T>(to_float(weight[i])), hat = to_float(out[base + i]) / w;
            float dx = scale * (to_float(dout[base + i]) * w - hat * mean);
            dsum[base + i] = from_float<T>(dsum_is_zero ? dx : to_float(dsum[base + i]) + dx);
        }
    }
}

// Returns 0, and does nothing, when a block's shared memory is too small for so much.
template <typename T, int VECS, int GROUP, int STAGES, bool TABLE>
static int backward_launch_ring(CudaState *state, T *dsum, float *partials, const T *dout, const T *out,
                                const float *rstd, const T *weight, int64_t rows, int dim, bool dsum_is_zero) {
    constexpr int BLOCK = GROUP > 256 ? GROUP : 256, PER_SM = 512 / BLOCK;
    constexpr int shared = STAGES * 3 * VECS * BLOCK * 16 + (TABLE ? VECS * GROUP * Vec<T>::N * 4 : 0);
    if (shared + 1024 > state->shared_limit && STAGES > 1) return 0;
    int64_t most = ceil_div64(rows, BLOCK / GROUP), fit = state->sm_count * PER_SM;
    if (fit > NORM_BACKWARD_BLOCKS) fit = NORM_BACKWARD_BLOCKS;
    int blocks = (int)(most < fit ? most : fit);
    auto kernel = rmsnorm_backward_kernel<T, VECS, GROUP, BLOCK, PER_SM, STAGES, TABLE>;
    CUDA_CHECK(state, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<blocks, BLOCK, shared, state->stream>>>(dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
    return blocks;
}

template <typename T, int VECS, int GROUP>
static int backward_launch(CudaState *state, T *dsum, float *partials, const T *dout, const T *out, const float *rstd,
                           const T *weight, int64_t rows, int dim, bool dsum_is_zero) {
    int blocks = 0;
    if constexpr (VECS * GROUP <= 512) // more, and the table takes too much
        blocks = backward_launch_ring<T, VECS, GROUP, 2, true>(state, dsum, partials, dout, out, rstd, weight, rows,
                                                               dim, dsum_is_zero);
    if (!blocks)
        blocks = backward_launch_ring<T, VECS, GROUP, 2, false>(state, dsum, partials, dout, out, rstd, weight, rows,
                                                                dim, dsum_is_zero);
    if (!blocks)
        blocks = backward_launch_ring<T, VECS, GROUP, 1, false>(state, dsum, partials, dout, out, rstd, weight, rows,
                                                                dim, dsum_is_zero);
    return blocks;
}

template <typename T> // returns the number of partial rows
static int backward_choose(CudaState *state, T *dsum, float *partials, const T *dout, const T *out, const float *rstd,
                           const T *weight, int64_t rows, int dim, bool dsum_is_zero) {
    int vectors = dim / Vec<T>::N;
    bool vector_path = dim % Vec<T>::N == 0 && all_aligned(16, dsum, dout, out, weight);
    if (!vector_path || vectors > 2048) {
        int blocks = (int)(rows < NORM_BACKWARD_BLOCKS ? rows : NORM_BACKWARD_BLOCKS);
        rmsnorm_backward_scalar_kernel<T>
            <<<blocks, 256, 0, state->stream>>>(dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
        return blocks;
    }
    if (vectors <= 32)
        return backward_launch<T, 1, 32>(state, dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
    if (vectors <= 128)
        return backward_launch<T, 4, 32>(state, dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
    if (vectors <= 256)
        return backward_launch<T, 4, 64>(state, dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
    if (vectors <= 512)
        return backward_launch<T, 4, 128>(state, dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
    return backward_launch<T, 4, 512>(state, dsum, partials, dout, out, rstd, weight, rows, dim, dsum_is_zero);
}

extern "C" void cuda_add_rmsnorm_backward(Ops *ops, Tensor dsum, Tensor dweight, Tensor dout, Tensor out, Tensor rstd,
                                          Tensor weight, bool dsum_is_zero) {
    int dim = (int)dsum.cols;
    if (dsum.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ADD_RMSNORM_BACKWARD);
    float *partials = (float *)cuda_scratch(state, workspace_norm_backward(dim));
    if (partials) {
        int parts = 0;
        WITH_STORAGE(dsum.dtype, parts = backward_choose<T>(state, (T *)dsum.data, partials, (const T *)dout.data,
                                                            (const T *)out.data, (const float *)rstd.data,
                                                            (const T *)weight.data, dsum.rows, dim, dsum_is_zero));
        LAUNCH_CHECK(state);
        columns_reduce(state->stream, (float *)dweight.data, partials, parts, dim, true);
        LAUNCH_CHECK(state);
    }
    cuda_scope_end(state);
}
