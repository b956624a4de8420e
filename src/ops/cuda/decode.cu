// Attention of a few new tokens of one sequence against its key and value caches (inference). A block takes one query
// head of one token; parts of a warp (eight threads) take the positions in turn, each with its own running softmax, and
// the parts are joined in a fixed order at the end.
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

#include <assert.h>
#include <math.h>

enum { PART = 8, DECODE_THREADS = 256, PARTS = DECODE_THREADS / PART };

// A thread holds the elements member, member + PART, ... of a head: at most ELEMENTS.
template <typename T, int ELEMENTS>
static __global__ __launch_bounds__(DECODE_THREADS) void attention_cached_kernel(
    T *__restrict__ out, const T *__restrict__ q, const T *__restrict__ k_cache, const T *__restrict__ v_cache,
    int first, int heads, int kv_heads, int head_dim, float scale) {
    extern __shared__ float shared[]; // [PARTS, head_dim] outputs, then maxima and sums
    float *maxima = shared + PARTS * head_dim, *sums = maxima + PARTS;
    int token = (int)blockIdx.x, head = (int)blockIdx.y, kv_head = head / (heads / kv_heads);
    int member = (int)threadIdx.x % PART, part = (int)threadIdx.x / PART;
    int64_t cache_stride = (int64_t)kv_heads * head_dim;
    int positions = first + token + 1;
    const T *q_head = q + ((int64_t)token * heads + head) * head_dim;
    float query[ELEMENTS], sum_v[ELEMENTS] = {}, max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        int at = member + i * PART;
        query[i] = at < head_dim ? to_float(q_head[at]) * scale : 0;
    }
    int rounds = (positions + PARTS - 1) / PARTS; // the same for all threads, because of the shuffles
    for (int round = 0; round < rounds; round++) {
        int position = round * PARTS + part;
        bool real = position < positions;
        const T *k = k_cache + (int64_t)position * cache_stride + (int64_t)kv_head * head_dim;
        const T *v = v_cache + (int64_t)position * cache_stride + (int64_t)kv_head * head_dim;
        float score = 0, value[ELEMENTS];
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            int at = member + i * PART;
            value[i] = real && at < head_dim ? to_float(v[at]) : 0;
            score += real && at < head_dim ? query[i] * to_float(k[at]) : 0;
        }
        score = warp_sum(score, PART);
        if (!real) continue;
        float new_max = fmaxf(max, score), keep = expf(max - new_max), p = expf(score - new_max);
        sum = sum * keep + p;
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++)
            sum_v[i] = sum_v[i] * keep + p * value[i];
        max = new_max;
    }
    if (member == 0) maxima[part] = max, sums[part] = sum;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        int at = member + i * PART;
        if (at < head_dim) shared[part * head_dim + at] = sum_v[i];
    }
    __syncthreads();
    float all_max = -INFINITY, all_sum = 0;
    for (int i = 0; i < PARTS; i++)
        all_max = fmaxf(all_max, maxima[i]);
    for (int i = 0; i < PARTS; i++)
        all_sum += sums[i] * expf(maxima[i] - all_max);
    for (int at = (int)threadIdx.x; at < head_dim; at += DECODE_THREADS) {
        float total = 0;
        for (int i = 0; i < PARTS; i++)
            total += shared[i * head_dim + at] * expf(maxima[i] - all_max);
        out[((int64_t)token * heads + head) * head_dim + at] = from_float<T>(total / all_sum);
    }
}

extern "C" void cuda_attention_cached(Ops *ops, Tensor out, Tensor q, Tensor k_cache, Tensor v_cache, int first,
                                      int head_dim, float scale) {
    int heads = (int)(q.cols / head_dim), kv_heads = (int)(k_cache.cols / head_dim);
    assert(head_dim <= 256 && heads <= 65535);
    if (q.rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ATTENTION_CACHED);
    dim3 blocks((unsigned)q.rows, (unsigned)heads);
    size_t shared = (size_t)(PARTS * (head_dim + 2)) * sizeof(float);
#define DECODE(ELEMENTS)                                                                                            \
    attention_cached_kernel<T, ELEMENTS><<<blocks, DECODE_THREADS, shared, state->stream>>>(                        \
        (T *)out.data, (const T *)q.data, (const T *)k_cache.data, (const T *)v_cache.data, first, heads, kv_heads, \
        head_dim, scale)
    if (head_dim <= 64)
        WITH_STORAGE(q.dtype, DECODE(8));
    else if (head_dim <= 128)
        WITH_STORAGE(q.dtype, DECODE(16));
    else
        WITH_STORAGE(q.dtype, DECODE(32));
#undef DECODE
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
