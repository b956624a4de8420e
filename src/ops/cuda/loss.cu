// Cross entropy over rows of logits, loss and gradient in place with one read and one write of device memory: a block
// holds its row on chip between the two passes, the first REGISTER_VECS vectors of each thread in registers and the
// rest in shared memory. A row too long for two blocks to share a multiprocessor is split over a cluster of two blocks
// where there are clusters (compute capability 9.0), which exchange their sums. Without clusters one block covers
// 165,000 bf16 columns; what is longer still is read a second time (from L2, mostly). Two blocks share a multiprocessor
// where the row is short enough, so that one computes while the other moves bytes. Where ranks share the columns, they
// exchange their sums between two kernels: one reads the row, the other reads it again and writes. The gradient may go
// to another place instead, in FP8.
#include "ops/cuda/cuda.h"
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

#include <math.h>

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

// The larger one of each half.
template <typename T> static __device__ __forceinline__ uint32_t pair_max(uint32_t a, uint32_t b) {
    if constexpr (IS_FP16<T>) {
        __half2 larger = __hmax2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
        return *reinterpret_cast<uint32_t *>(&larger);
    } else {
        __nv_bfloat162 larger =
            __hmax2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
        return *reinterpret_cast<uint32_t *>(&larger);
    }
}

// -infinity in every element of a word.
template <typename T>
constexpr uint32_t LOWEST_WORD = sizeof(T) == 4 ? 0xff800000u
                                 : IS_FP16<T>   ? 0xfc00fc00u
                                                : 0xff80ff80u;

template <typename T, int COUNT> static __device__ __forceinline__ float vecs_max(const uint4 (&raw)[COUNT]) {
    if constexpr (sizeof(T) == 2) {
        uint32_t largest = LOWEST_WORD<T>;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            largest =
                pair_max<T>(largest, pair_max<T>(pair_max<T>(raw[i].x, raw[i].y), pair_max<T>(raw[i].z, raw[i].w)));
        const float2 pair = pair_unpack<T>(largest);
        return fmaxf(pair.x, pair.y);
    } else {
        float largest = -INFINITY;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float x[4];
            vec_unpack<T>(x, raw[i]);
            largest = fmaxf(largest, fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
        }
        return largest;
    }
}

template <typename T, int COUNT>
static __device__ __forceinline__ void softmax_add(Softmax &own, const uint4 (&raw)[COUNT]) {
    constexpr int N = Vec<T>::N;
    float max = vecs_max<T, COUNT>(raw) * LOG2E;
    if (max > own.max) {
        own.sum *= exp2_fast(own.max - max);
        own.max = max;
    }
    if (own.max == -INFINITY) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float x[N];
        vec_unpack<T>(x, raw[i]);
#pragma unroll
        for (int j = 0; j < N; j++)
            own.sum += exp2_fast(fmaf(x[j], LOG2E, -own.max));
    }
}

// A vector of -infinity: adds nothing.
template <typename T> static __device__ __forceinline__ uint4 vec_nothing(void) {
    uint32_t word = LOWEST_WORD<T>;
    return make_uint4(word, word, word, word);
}

// ---- a row on several blocks: a cluster of compute capability 9.0 and later

static __device__ __forceinline__ void cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Writes to the same place in shared memory of another block.
static __device__ __forceinline__ void cluster_write(float *shared, int block, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "st.shared::cluster.f32 [remote], %2;\n"
                 "}" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "r"(block), "f"(value)
                 : "memory");
#endif
}

// The whole row's from every block's; always joined in the same order. parts: one for each block.
template <int CLUSTER> static __device__ __forceinline__ Softmax softmax_cluster(Softmax own, Softmax *parts) {
    if constexpr (CLUSTER == 1) return own;
    int rank = (int)blockIdx.x % CLUSTER;
    cluster_wait(); // all blocks of the cluster have started
    if (threadIdx.x < CLUSTER) {
        cluster_write(&parts[rank].max, (int)threadIdx.x, own.max);
        cluster_write(&parts[rank].sum, (int)threadIdx.x, own.sum);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    own = parts[0];
#pragma unroll
    for (int i = 1; i < CLUSTER; i++)
        own = softmax_join(own, parts[i]);
    return own;
}

// The gradient of one vector: scale * (softmax - one-hot); lse2 is the log-sum-exp in base 2, hit the target's place in
// it.
template <typename T, int N>
static __device__ __forceinline__ void softmax_floats(float (&x)[N], const uint4 &raw, float lse2, float scale,
                                                      int hit) {
    vec_unpack<T>(x, raw);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = scale * exp2_fast(fmaf(x[j], LOG2E, -lse2));
    if (hit >= 0 && hit < N) {
#pragma unroll
        for (int j = 0; j < N; j++)
            if (j == hit) x[j] -= scale;
    }
}

template <typename T, int N>
static __device__ __forceinline__ uint4 softmax_gradient(const uint4 &raw, float lse2, float scale, int hit) {
    float x[N];
    softmax_floats<T, N>(x, raw, lse2, scale, hit);
    return vec_pack<T>(x);
}

typedef uint8_t Code; // e5m2

// The same to where it belongs: over the logits, or to codes, whose scale is in `scale` already.
static __device__ __forceinline__ void gradient_store(Code *out, const uint4 &raw, float lse2, float scale, int hit) {
    float x[8];
    softmax_floats<Bf16, 8>(x, raw, lse2, scale, hit);
    store8_once(out, fp8_pack<true>(x, 1.0f));
}
template <typename T>
static __device__ __forceinline__ void gradient_store(T *out, const uint4 &raw, float lse2, float scale, int hit) {
    store16_once(out, softmax_gradient<T, Vec<T>::N>(raw, lse2, scale, hit));
}
static __device__ __forceinline__ void gradient_zero(Code *out) {
    store8_once(out, make_uint2(0, 0));
}
template <typename T> static __device__ __forceinline__ void gradient_zero(T *out) {
    store16_once(out, make_uint4(0, 0, 0, 0));
}

// Out: T, whose gradients are the logits, or Code, with codes_scale_at; T is bf16 then.
template <typename T, typename Out, int THREADS, int REGISTER_VECS, int BLOCKS, int CLUSTER>
static __global__
__launch_bounds__(THREADS, BLOCKS) void cross_entropy_kernel(float *losses, Out *gradients, const T *logits,
                                                             const int32_t *targets, const float *scale_at,
                                                             const float *codes_scale_at, int vocab, int shared_vecs) {
    constexpr int N = Vec<T>::N;
    extern __shared__ uint4 kept[]; // [shared_vecs]
    __shared__ Softmax joined[32], parts[CLUSTER];
    // The last rows first: L2 still holds them.
    int64_t row = gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER;
    int share = (vocab / N + CLUSTER - 1) / CLUSTER, first = (int)blockIdx.x % CLUSTER * share;
    int thread = (int)threadIdx.x, vectors = min(vocab / N - first, share), target = targets[row];
    const T *in = logits + row * vocab + (int64_t)first * N; // of this block
    Out *out = gradients + row * vocab + (int64_t)first * N;
    int in_shared = THREADS * REGISTER_VECS, beyond = in_shared + shared_vecs;
    if (target < 0) {
        if (thread == 0 && first == 0) losses[row] = 0;
        if (scale_at)
            for (int v = thread; v < vectors; v += THREADS)
                gradient_zero(out + (int64_t)v * N);
        return;
    }
    if (CLUSTER > 1) cluster_arrive();
    float target_logit = to_float(logits[row * vocab + target]); // before it is overwritten: a barrier follows
    target -= first * N;
    uint4 held[REGISTER_VECS];
    Softmax own = {-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < REGISTER_VECS; i++) {
        int v = thread + i * THREADS;
        held[i] = v < vectors ? load16_once(in + (int64_t)v * N) : vec_nothing<T>();
    }
    int shared_end = vectors < beyond ? vectors : beyond;
    int v = in_shared + thread;
    for (; v + 3 * THREADS < shared_end; v += 4 * THREADS) {
        uint4 part[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            part[u] = load16_once(in + (int64_t)(v + u * THREADS) * N);
#pragma unroll
        for (int u = 0; u < 4; u++)
            kept[v + u * THREADS - in_shared] = part[u];
        softmax_add<T>(own, part);
    }
    for (; v < shared_end; v += THREADS) {
        uint4 part[1] = {load16_once(in + (int64_t)v * N)};
        kept[v - in_shared] = part[0];
        softmax_add<T>(own, part);
    }
    for (v = beyond + thread; v < vectors; v += THREADS) {
        uint4 part[1] = {load16(in + (int64_t)v * N)};
        softmax_add<T>(own, part);
    }
    softmax_add<T>(own, held);

    own = softmax_cluster<CLUSTER>(softmax_block(own, joined), parts);
    float lse2 = own.max + log2f(own.sum);
    if (thread == 0 && first == 0) losses[row] = lse2 * 0.6931471805599453f - target_logit;
    if (!scale_at) return;
    float scale = codes_scale_at ? *scale_at / *codes_scale_at : *scale_at; // by a power of two
#pragma unroll
    for (int i = 0; i < REGISTER_VECS; i++) {
        v = thread + i * THREADS;
        if (v < vectors) gradient_store(out + (int64_t)v * N, held[i], lse2, scale, target - v * N);
    }
    for (v = in_shared + thread; v < shared_end; v += THREADS) // its own writes: no barrier needed
        gradient_store(out + (int64_t)v * N, kept[v - in_shared], lse2, scale, target - v * N);
    for (v = beyond + thread; v < vectors; v += THREADS)
        gradient_store(out + (int64_t)v * N, load16(in + (int64_t)v * N), lse2, scale, target - v * N);
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

template <typename T, typename Out> struct Entropy {
    float *losses;
    Out *gradients; // the logits themselves, or codes
    const T *logits;
    const int32_t *targets;
    const float *scale, *codes_scale;
    int64_t rows;
    int vocab;
};

template <typename T, typename Out, int THREADS, int REGISTER_VECS, int BLOCKS, int CLUSTER>
static void cross_entropy_launch(CudaState *state, const Entropy<T, Out> &e) {
    int vocab = e.vocab;
    int vectors = (int)ceil_div64(vocab / Vec<T>::N, CLUSTER);
    int most = (state->shared_limit - 1024) / BLOCKS / 16 - 64, shared_vecs = vectors - THREADS * REGISTER_VECS;
    if (shared_vecs < 0) shared_vecs = 0;
    if (shared_vecs > most) shared_vecs = most;
    auto kernel = cross_entropy_kernel<T, Out, THREADS, REGISTER_VECS, BLOCKS, CLUSTER>;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(e.rows * CLUSTER));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)shared_vecs * 16;
    config.stream = state->stream;
    config.attrs = &cluster;
    config.numAttrs = CLUSTER > 1;
    CUDA_CHECK(state,
               cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)config.dynamicSmemBytes));
    CUDA_CHECK(state, cudaLaunchKernelEx(&config, kernel, e.losses, e.gradients, e.logits, e.targets, e.scale,
                                         e.codes_scale, vocab, shared_vecs));
}

// Whether the code that runs here was compiled with clusters: a build for older GPUs also runs on newer ones, without.
static bool clusters_are_there(const CudaState *state) {
    static int there = -1; // asking costs some microseconds
    if (there < 0) {
        cudaFuncAttributes attributes;
        there = cudaFuncGetAttributes(&attributes, cross_entropy_kernel<Bf16, Bf16, 512, 6, 2, 2>) == cudaSuccess &&
                attributes.ptxVersion >= 90;
        cudaGetLastError();
    }
    return state->arch >= 90 && there;
}

// Rows of whole vectors.
template <typename T, typename Out> static void cross_entropy_rows(CudaState *state, const Entropy<T, Out> &e) {
    size_t row_bytes = (size_t)e.vocab * sizeof(T);
    if (row_bytes <= 512 * 6 * 16 + (size_t)(state->shared_limit / 2 - 2048))
        cross_entropy_launch<T, Out, 512, 6, 2, 1>(state, e);
    else if (clusters_are_there(state))
        cross_entropy_launch<T, Out, 512, 6, 2, 2>(state, e);
    else
        cross_entropy_launch<T, Out, 1024, 6, 1, 1>(state, e);
}

extern "C" void cuda_cross_entropy(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale) {
    int64_t rows = logits.rows;
    int vocab = (int)logits.cols;
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_CROSS_ENTROPY);
    float *out = (float *)losses.data;
    const int32_t *wanted = (const int32_t *)targets.data;
    const float *scale_at = (const float *)scale.data;
    if ((size_t)vocab * dtype_size(logits.dtype) % 16 || !all_aligned(16, logits.data))
        WITH_STORAGE(logits.dtype, (cross_entropy_scalar_kernel<T><<<(unsigned)rows, 512, 0, state->stream>>>(
                                       out, (T *)logits.data, wanted, scale_at, vocab)));
    else
        WITH_STORAGE(logits.dtype, (cross_entropy_rows<T, T>(state, {out, (T *)logits.data, (const T *)logits.data,
                                                                     wanted, scale_at, NULL, rows, vocab})));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

extern "C" void cuda_cross_entropy_fp8(Ops *ops, Tensor losses, Tensor codes, Tensor logits, Tensor targets,
                                       Tensor scale, Tensor codes_scale) {
    if (logits.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_CROSS_ENTROPY_FP8);
    if (logits.cols % 16 || !all_aligned(16, logits.data, codes.data))
        cuda_fail(state, __FILE__, __LINE__,
                  "logits' gradients in FP8 need columns that are a multiple of 16, not %lld", (long long)logits.cols);
    else
        cross_entropy_rows<Bf16, Code>(state, {(float *)losses.data, (Code *)codes.data, (const Bf16 *)logits.data,
                                               (const int32_t *)targets.data, (const float *)scale.data,
                                               (const float *)codes_scale.data, logits.rows, (int)logits.cols});
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- a vocabulary that is split over ranks --------------------------------------------------------------------------

enum { SPLIT_THREADS = 512, SPLIT_AHEAD = 4 }; // vectors that a thread asks for at once

struct SplitShape {
    int columns; // of a row of logits
    int real;    // of them; the others are padding
    int vectors; // whole ones among the real columns; 0: logits are not aligned for them
    int first;   // id of column 0
};

// What this rank knows of its columns. The last rows first: L2 still holds them, and keeps the first ones for the
// kernel that follows.
template <typename T>
static __global__ __launch_bounds__(SPLIT_THREADS) void cross_entropy_stats_kernel(float *stats, const T *logits,
                                                                                   const int32_t *targets,
                                                                                   SplitShape shape) {
    constexpr int N = Vec<T>::N;
    __shared__ Softmax joined[32];
    int64_t row = gridDim.x - 1 - blockIdx.x;
    const T *in = logits + row * shape.columns;
    Softmax own = {-INFINITY, 0};
    int thread = (int)threadIdx.x, v = thread;
    for (; v + (SPLIT_AHEAD - 1) * SPLIT_THREADS < shape.vectors; v += SPLIT_AHEAD * SPLIT_THREADS) {
        uint4 part[SPLIT_AHEAD];
#pragma unroll
        for (int u = 0; u < SPLIT_AHEAD; u++)
            part[u] = load16(in + (int64_t)(v + u * SPLIT_THREADS) * N);
        softmax_add<T>(own, part);
    }
    for (; v < shape.vectors; v += SPLIT_THREADS) {
        uint4 part[1] = {load16(in + (int64_t)v * N)};
        softmax_add<T>(own, part);
    }
    for (int i = shape.vectors * N + thread; i < shape.real; i += SPLIT_THREADS)
        own = softmax_join(own, {to_float(in[i]) * LOG2E, 1.0f});
    own = softmax_block(own, joined);
    if (thread != 0) return;
    // The maximum in base e is rounded once more: the sum is taken to where it then stands.
    float max = own.max * 0.6931471805599453f;
    float sum = own.sum * exp2_fast(fmaf(-max, LOG2E, own.max));
    if (own.max == -INFINITY) { // no columns, or none with a finite logit; one that is not a number must reach the loss
        float logit = shape.real > 0 ? to_float(in[0]) : 0;
        sum = isnan(logit) ? logit : 0;
    }
    int target = targets[row] - shape.first;
    bool here = target >= 0 && target < shape.real;
    float *out = stats + row * SPLIT_STATS;
    out[SPLIT_MAX] = max;
    out[SPLIT_SUM] = sum;
    out[SPLIT_TARGET] = here ? to_float(in[target]) : 0;
    out[SPLIT_HERE] = here ? 1 : 0;
}

// Merges the ranks' stats in their order, so that all of them get the same loss. Every thread does it for itself.
template <typename T>
static __global__
__launch_bounds__(SPLIT_THREADS) void cross_entropy_apply_kernel(float *losses, T *logits, const int32_t *targets,
                                                                 const float *stats, const float *scale_at, int ranks,
                                                                 SplitShape shape) {
    constexpr int N = Vec<T>::N;
    int64_t row = blockIdx.x, rank_stride = (int64_t)gridDim.x * SPLIT_STATS;
    const float *of_row = stats + row * SPLIT_STATS;
    float max = -INFINITY, sum = 0, target_logit = 0;
    for (int rank = 0; rank < ranks; rank++)
        max = fmaxf(max, of_row[rank * rank_stride + SPLIT_MAX]);
    for (int rank = 0; rank < ranks; rank++) {
        const float *of_rank = of_row + rank * rank_stride;
        sum += of_rank[SPLIT_SUM] * exp2_fast((of_rank[SPLIT_MAX] - max) * LOG2E);
        if (of_rank[SPLIT_HERE] != 0) target_logit = of_rank[SPLIT_TARGET];
    }
    int thread = (int)threadIdx.x, target = targets[row], v = thread;
    bool ignored = target < 0;
    if (thread == 0) losses[row] = ignored ? 0 : max - target_logit + logf(sum);
    if (!scale_at) return;
    T *in = logits + row * shape.columns;
    float scale = *scale_at, lse2 = fmaf(max, LOG2E, log2f(sum));
    target -= shape.first; // outside of the columns when it is another rank's
    for (; v + (SPLIT_AHEAD - 1) * SPLIT_THREADS < shape.vectors && !ignored; v += SPLIT_AHEAD * SPLIT_THREADS) {
        uint4 part[SPLIT_AHEAD];
#pragma unroll
        for (int u = 0; u < SPLIT_AHEAD; u++)
            part[u] = load16_once(in + (int64_t)(v + u * SPLIT_THREADS) * N);
#pragma unroll
        for (int u = 0; u < SPLIT_AHEAD; u++) {
            int at = v + u * SPLIT_THREADS;
            store16_once(in + (int64_t)at * N, softmax_gradient<T, N>(part[u], lse2, scale, target - at * N));
        }
    }
    for (; v < shape.vectors; v += SPLIT_THREADS) {
        T *at = in + (int64_t)v * N;
        store16_once(at, ignored ? make_uint4(0, 0, 0, 0)
                                 : softmax_gradient<T, N>(load16_once(at), lse2, scale, target - v * N));
    }
    for (int i = shape.vectors * N + thread; i < shape.columns; i += SPLIT_THREADS) {
        float value = 0;
        if (i < shape.real && !ignored) {
            float p = exp2_fast(fmaf(to_float(in[i]), LOG2E, -lse2));
            value = scale * (i == target ? p - 1.0f : p);
        }
        in[i] = from_float<T>(value);
    }
}

static SplitShape split_shape(Tensor logits, int64_t first, int64_t vocab) {
    int64_t left = vocab > first ? vocab - first : 0, vector = 16 / (int64_t)dtype_size(logits.dtype);
    bool aligned = logits.cols % vector == 0 && all_aligned(16, logits.data);
    SplitShape shape;
    shape.columns = (int)logits.cols;
    shape.real = (int)(left < logits.cols ? left : logits.cols);
    shape.vectors = aligned ? shape.real / (int)vector : 0;
    shape.first = (int)first;
    return shape;
}

extern "C" void cuda_cross_entropy_stats(Ops *ops, Tensor stats, Tensor logits, Tensor targets, int64_t first,
                                         int64_t vocab) {
    if (logits.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_CROSS_ENTROPY_STATS);
    SplitShape shape = split_shape(logits, first, vocab);
    WITH_STORAGE(logits.dtype,
                 (cross_entropy_stats_kernel<T><<<(unsigned)logits.rows, SPLIT_THREADS, 0, state->stream>>>(
                     (float *)stats.data, (const T *)logits.data, (const int32_t *)targets.data, shape)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

extern "C" void cuda_cross_entropy_apply(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor stats,
                                         Tensor scale, int64_t first, int64_t vocab) {
    if (logits.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_CROSS_ENTROPY_APPLY);
    SplitShape shape = split_shape(logits, first, vocab);
    int ranks = (int)(stats.rows / logits.rows);
    WITH_STORAGE(logits.dtype,
                 (cross_entropy_apply_kernel<T><<<(unsigned)logits.rows, SPLIT_THREADS, 0, state->stream>>>(
                     (float *)losses.data, (T *)logits.data, (const int32_t *)targets.data, (const float *)stats.data,
                     (const float *)scale.data, ranks, shape)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
