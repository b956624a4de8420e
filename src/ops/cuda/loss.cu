// Cross entropy over rows of logits, loss and gradient in place with one read and one write of device memory: a block
// holds its row on chip between the two passes, the first REGISTER_VECS vectors of each thread in registers and the
// rest in shared memory. That covers 165,000 bf16 columns; what is longer still is read a second time (from L2,
// mostly). Two blocks share a multiprocessor where the row is short enough, so that one computes while the other moves
// bytes.
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

#include <math.h>

static constexpr float LOG2E = 1.4426950408889634f;

static __device__ __forceinline__ float exp2_fast(float x) { // 2 ulp, denormals flushed
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Maximum and sum of exponentials relative to it, kept in the base-2 domain: values are x * log2(e).
struct Softmax {
    float max, sum;
};

static __device__ __forceinline__ Softmax softmax_join(Softmax a, Softmax b) {
    float max = fmaxf(a.max, b.max);
    if (max == -INFINITY) return {max, 0}; // nothing but -inf yet
    return {max, a.sum * exp2_fast(a.max - max) + b.sum * exp2_fast(b.max - max)};
}

static __device__ __forceinline__ Softmax softmax_block(Softmax own, Softmax *shared) {
    for (int step = 16; step > 0; step /= 2) {
        Softmax other = {__shfl_xor_sync(FULL_WARP, own.max, step), __shfl_xor_sync(FULL_WARP, own.sum, step)};
        own = softmax_join(own, other);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
    __syncthreads();
    int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    own = lane < warps ? shared[lane] : Softmax{-INFINITY, 0};
    for (int step = 16; step > 0; step /= 2) {
        Softmax other = {__shfl_xor_sync(FULL_WARP, own.max, step), __shfl_xor_sync(FULL_WARP, own.sum, step)};
        own = softmax_join(own, other);
    }
    return own;
}

template <int N> static __device__ __forceinline__ void softmax_add(Softmax &own, const uint4 &raw) {
    float x[N];
    vec_unpack(x, raw);
    float max = x[0];
#pragma unroll
    for (int j = 1; j < N; j++)
        max = fmaxf(max, x[j]);
    max *= LOG2E;
    if (max > own.max) {
        own.sum *= exp2_fast(own.max - max);
        own.max = max;
    }
    if (own.max == -INFINITY) return;
#pragma unroll
    for (int j = 0; j < N; j++)
        own.sum += exp2_fast(fmaf(x[j], LOG2E, -own.max));
}

// The gradient of one vector: scale * (softmax - one-hot); lse2 is the log-sum-exp in base 2, hit the target's place in
// it.
template <typename T, int N>
static __device__ __forceinline__ uint4 softmax_gradient(const uint4 &raw, float lse2, float scale, int hit) {
    float x[N];
    vec_unpack(x, raw);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = scale * exp2_fast(fmaf(x[j], LOG2E, -lse2));
    if (hit >= 0 && hit < N) {
#pragma unroll
        for (int j = 0; j < N; j++)
            if (j == hit) x[j] -= scale;
    }
    return vec_pack(x);
}

template <typename T, int THREADS, int REGISTER_VECS, int BLOCKS>
static __global__
__launch_bounds__(THREADS, BLOCKS) void cross_entropy_kernel(float *losses, T *logits, const int32_t *targets,
                                                             const float *scale_at, int vocab, int shared_vecs) {
    constexpr int N = Vec<T>::N;
    extern __shared__ uint4 kept[]; // [shared_vecs]
    __shared__ Softmax joined[32];
    int64_t row = blockIdx.x;
    T *in = logits + row * vocab;
    int thread = (int)threadIdx.x, vectors = vocab / N, target = targets[row];
    int in_shared = THREADS * REGISTER_VECS, beyond = in_shared + shared_vecs;
    if (target < 0) {
        if (thread == 0) losses[row] = 0;
        if (scale_at)
            for (int v = thread; v < vectors; v += THREADS)
                store16_once(in + (int64_t)v * N, make_uint4(0, 0, 0, 0));
        return;
    }
    float target_logit = to_float(in[target]); // before anything is overwritten: a barrier follows
    uint4 held[REGISTER_VECS];
    Softmax own = {-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < REGISTER_VECS; i++) {
        int v = thread + i * THREADS;
        if (v < vectors) held[i] = load16_once(in + (int64_t)v * N);
    }
    int shared_end = vectors < beyond ? vectors : beyond;
    int v = in_shared + thread;
    for (; v + 3 * THREADS < shared_end; v += 4 * THREADS) {
        uint4 part[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            part[u] = load16_once(in + (int64_t)(v + u * THREADS) * N);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            kept[v + u * THREADS - in_shared] = part[u];
            softmax_add<N>(own, part[u]);
        }
    }
    for (; v < shared_end; v += THREADS) {
        uint4 part = load16_once(in + (int64_t)v * N);
        kept[v - in_shared] = part;
        softmax_add<N>(own, part);
    }
    for (v = beyond + thread; v < vectors; v += THREADS)
        softmax_add<N>(own, load16(in + (int64_t)v * N));
#pragma unroll
    for (int i = 0; i < REGISTER_VECS; i++)
        if (thread + i * THREADS < vectors) softmax_add<N>(own, held[i]);

    own = softmax_block(own, joined);
    float lse2 = own.max + log2f(own.sum);
    if (thread == 0) losses[row] = lse2 * 0.6931471805599453f - target_logit;
    if (!scale_at) return;
    float scale = *scale_at;
#pragma unroll
    for (int i = 0; i < REGISTER_VECS; i++) {
        v = thread + i * THREADS;
        if (v < vectors)
            store16_once(in + (int64_t)v * N, softmax_gradient<T, N>(held[i], lse2, scale, target - v * N));
    }
    for (v = in_shared + thread; v < shared_end; v += THREADS) // its own writes: no barrier needed
        store16_once(in + (int64_t)v * N, softmax_gradient<T, N>(kept[v - in_shared], lse2, scale, target - v * N));
    for (v = beyond + thread; v < vectors; v += THREADS)
        store16_once(in + (int64_t)v * N,
                     softmax_gradient<T, N>(load16(in + (int64_t)v * N), lse2, scale, target - v * N));
}

// Any width and alignment; the row is read twice.
template <typename T>
static __global__ __launch_bounds__(512) void cross_entropy_scalar_kernel(float *losses, T *logits,
                                                                          const int32_t *targets, const float *scale_at,
                                                                          int vocab) {
    __shared__ Softmax joined[32];
    int64_t row = blockIdx.x;
    T *in = logits + row * vocab;
    int target = targets[row];
    if (target < 0) {
        if (threadIdx.x == 0) losses[row] = 0;
        if (scale_at)
            for (int i = (int)threadIdx.x; i < vocab; i += 512)
                in[i] = from_float<T>(0.0f);
        return;
    }
    float target_logit = to_float(in[target]);
    Softmax own = {-INFINITY, 0};
    for (int i = (int)threadIdx.x; i < vocab; i += 512)
        own = softmax_join(own, {to_float(in[i]) * LOG2E, 1.0f});
    own = softmax_block(own, joined);
    float lse2 = own.max + log2f(own.sum);
    if (threadIdx.x == 0) losses[row] = lse2 * 0.6931471805599453f - target_logit;
    if (!scale_at) return;
    float scale = *scale_at;
    for (int i = (int)threadIdx.x; i < vocab; i += 512) {
        float p = exp2_fast(fmaf(to_float(in[i]), LOG2E, -lse2));
        in[i] = from_float<T>(scale * (i == target ? p - 1.0f : p));
    }
}

template <typename T, int THREADS, int REGISTER_VECS, int BLOCKS>
static void cross_entropy_launch(CudaState *state, float *losses, T *logits, const int32_t *targets, const float *scale,
                                 int64_t rows, int vocab) {
    int vectors = vocab / Vec<T>::N, most = (state->shared_limit - 1024) / BLOCKS / 16 - 64;
    int shared_vecs = vectors - THREADS * REGISTER_VECS;
    if (shared_vecs < 0) shared_vecs = 0;
    if (shared_vecs > most) shared_vecs = most;
    size_t bytes = (size_t)shared_vecs * 16;
    CUDA_CHECK(state, cudaFuncSetAttribute(cross_entropy_kernel<T, THREADS, REGISTER_VECS, BLOCKS>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    cross_entropy_kernel<T, THREADS, REGISTER_VECS, BLOCKS>
        <<<(unsigned)rows, THREADS, bytes, state->stream>>>(losses, logits, targets, scale, vocab, shared_vecs);
}

extern "C" void cuda_cross_entropy(Ops *ops, float *losses, void *logits, const int32_t *targets, const float *scale,
                                   int64_t rows, int vocab, DType dtype) {
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ELEMENTWISE);
    size_t row_bytes = (size_t)vocab * dtype_size(dtype);
    if (row_bytes % 16 || !all_aligned(16, logits))
        WITH_STORAGE(dtype, (cross_entropy_scalar_kernel<T>
                             <<<(unsigned)rows, 512, 0, state->stream>>>(losses, (T *)logits, targets, scale, vocab)));
    else if (row_bytes <= 512 * 6 * 16 + (size_t)(state->shared_limit / 2 - 2048))
        WITH_STORAGE(dtype,
                     (cross_entropy_launch<T, 512, 6, 2>(state, losses, (T *)logits, targets, scale, rows, vocab)));
    else
        WITH_STORAGE(dtype,
                     (cross_entropy_launch<T, 1024, 6, 1>(state, losses, (T *)logits, targets, scale, rows, vocab)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
