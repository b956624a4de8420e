// Sums and the norm of float arrays, and the last step of reductions over blocks. workspace: sum_f32 and norm_f32 use
// workspace_reduce().
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

// ---- sums ----------------------------------------------------------------------------------------------------------

// One double per block: short float sums are carried into a double, so that billions of elements lose nothing.
template <bool SQUARE>
static __global__ __launch_bounds__(256) void reduce_kernel(double *partials, const float *__restrict__ in,
                                                            int64_t count, bool aligned) {
    __shared__ double shared[32];
    double total = 0;
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    int64_t done = 0;
    if (aligned) {
        int64_t vectors = count / 4, i = thread;
        const float4 *in4 = reinterpret_cast<const float4 *>(in);
        for (; i + 3 * threads < vectors; i += 4 * threads) {
            float4 part[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                part[u] = __ldcs(in4 + i + u * threads);
            float sum = 0;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                float4 p = part[u];
                sum += SQUARE ? p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w : p.x + p.y + p.z + p.w;
            }
            total += sum;
        }
        for (; i < vectors; i += threads) {
            float4 p = in4[i];
            total += SQUARE ? p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w : p.x + p.y + p.z + p.w;
        }
        done = vectors * 4;
    }
    for (int64_t i = done + thread; i < count; i += threads)
        total += SQUARE ? in[i] * in[i] : in[i];
    total = block_sum(total, shared);
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

template <bool SQUARE>
static __global__ void reduce_finish_kernel(float *out, const double *partials, int parts, bool accumulate) {
    __shared__ double shared[32];
    double total = 0;
    for (int i = (int)threadIdx.x; i < parts; i += (int)blockDim.x)
        total += partials[i];
    total = block_sum(total, shared);
    if (threadIdx.x) return;
    float result = SQUARE ? (float)sqrt(total) : (float)total;
    *out = accumulate ? *out + result : result;
}

template <bool SQUARE> static void reduce_launch(CudaState *state, Tensor out, Tensor in, bool accumulate) {
    double *partials = (double *)cuda_scratch(state, workspace_reduce());
    if (!partials) return;
    int64_t count = tensor_count(in), blocks = ceil_div64(count, 256 * 16);
    int parts = (int)(blocks < 1 ? 1 : blocks < REDUCE_BLOCKS ? blocks : REDUCE_BLOCKS);
    reduce_kernel<SQUARE>
        <<<parts, 256, 0, state->stream>>>(partials, (const float *)in.data, count, all_aligned(16, in.data));
    LAUNCH_CHECK(state);
    reduce_finish_kernel<SQUARE><<<1, 256, 0, state->stream>>>((float *)out.data, partials, parts, accumulate);
    LAUNCH_CHECK(state);
}

template <typename T> static __global__ __launch_bounds__(256) void add_kernel(T *out, const T *in, int64_t count) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        out[i] = from_float<T>(to_float(out[i]) + to_float(in[i]));
}

extern "C" void cuda_add(Ops *ops, Tensor out, Tensor in) {
    CudaState *state = cuda_scope_begin(ops, OP_ADD);
    int64_t count = tensor_count(out), most = ceil_div64(count, 1024);
    unsigned blocks = (unsigned)(most < 4096 ? most : 4096);
    if (count > 0) {
        WITH_STORAGE(out.dtype,
                     (add_kernel<T><<<blocks, 256, 0, state->stream>>>((T *)out.data, (const T *)in.data, count)));
        LAUNCH_CHECK(state);
    }
    cuda_scope_end(state);
}

extern "C" void cuda_sum_f32(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    CudaState *state = cuda_scope_begin(ops, OP_SUM_F32);
    reduce_launch<false>(state, out, in, accumulate);
    cuda_scope_end(state);
}

extern "C" void cuda_norm_f32(Ops *ops, Tensor out, Tensor in) {
    CudaState *state = cuda_scope_begin(ops, OP_NORM_F32);
    reduce_launch<true>(state, out, in, false);
    cuda_scope_end(state);
}

// ---- columns -------------------------------------------------------------------------------------------------------

// 32 columns a block: 32 warps take the parts in turn, then one warp adds their 32 sums in order.
static __global__ __launch_bounds__(1024) void columns_kernel(float *out, const float *__restrict__ partials, int parts,
                                                              int64_t columns, bool accumulate) {
    __shared__ float sums[32][33];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 4
        for (int part = warp; part < parts; part += 32)
            sum += partials[(int64_t)part * columns + column];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    sum = warp_sum(sums[lane][warp]);
    column = (int64_t)blockIdx.x * 32 + warp;
    if (lane == 0 && column < columns) out[column] = accumulate ? out[column] + sum : sum;
}

// Few parts and many columns: a thread adds up its own column.
static __global__ void columns_flat_kernel(float *out, const float *__restrict__ partials, int parts, int64_t columns,
                                           bool accumulate) {
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float sum = 0;
#pragma unroll 8
    for (int part = 0; part < parts; part++)
        sum += partials[(int64_t)part * columns + column];
    out[column] = accumulate ? out[column] + sum : sum;
}

void columns_reduce(cudaStream_t stream, float *out, const float *partials, int parts, int64_t columns,
                    bool accumulate) {
    if (columns >= 16384)
        columns_flat_kernel<<<(unsigned)ceil_div64(columns, 128), 128, 0, stream>>>(out, partials, parts, columns,
                                                                                    accumulate);
    else
        columns_kernel<<<(unsigned)ceil_div64(columns, 32), 1024, 0, stream>>>(out, partials, parts, columns,
                                                                               accumulate);
}
