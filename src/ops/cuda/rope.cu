// QK-norm + RoPE on query and key heads, forward and backward. A warp takes one token, a part of the warp one head:
// every thread holds V elements of the first half of the head and the V that they are rotated with, so cosines and
// sines are loaded once per token and the norm of a head is a few shuffles. Without norm weights forward and backward
// are one kernel, a plain stream of 16-byte pieces. workspace: qk_rope_backward with norm
// weights uses workspace_qk_rope_backward(head_dim).
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

#include <assert.h>

enum { ROTATE_HEADS = 4 }; // that a thread of rotate_kernel takes at once

typedef struct RopeParams {
    int64_t tokens, out_stride, in_stride;
    int seq, first_position, heads, kv_heads, head_dim;
    int group; // threads of a head: a power of two, at most 32
    float eps;
    const float *cos, *sin;
} RopeParams;

// Elements of a half that a thread holds: C pieces of V, at (piece * group + member) * V.
template <int V, int C> struct Half { float value[C][V]; };

template <int V, int C, typename T>
static __device__ __forceinline__ void half_load(Half<V, C> &out, const T *in, int member, int group, int half) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        int at = (c * group + member) * V;
        if (at < half) {
            load_floats<V>(out.value[c], in + at);
        } else {
#pragma unroll
            for (int i = 0; i < V; i++)
                out.value[c][i] = 0;
        }
    }
}

template <int V, int C, typename T>
static __device__ __forceinline__ void half_store(T *out, const Half<V, C> &in, int member, int group, int half) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        int at = (c * group + member) * V;
        if (at < half) store_floats<V>(out + at, in.value[c]);
    }
}

#define FOR_HALF(c, i) _Pragma("unroll") for (int c = 0; c < C; c++) _Pragma("unroll") for (int i = 0; i < V; i++)

// ---- without norm weights ------------------------------------------------------------------------------------------

// Forward or, with the angle negated, backward; in and out may be the same. A thread takes 16 bytes of the first half
// of HEADS heads and those that they are rotated with, all loaded before the first is stored. The block:
// [tokens, heads / HEADS, pieces of half a head]. The last tokens come first: L2 still holds them.
template <typename T, int HEADS, bool BACK>
static __global__ __launch_bounds__(256) void rotate_kernel(T *out, const T *in, RopeParams p) {
    constexpr int N = Vec<T>::N;
    int half = p.head_dim / 2, all_heads = p.heads + p.kv_heads, at = (int)threadIdx.x * N;
    int64_t token = p.tokens - 1 - ((int64_t)blockIdx.x * blockDim.z + threadIdx.z);
    if (token < 0) return;
    in += token * p.in_stride + at;
    out += token * p.out_stride + at;
    int64_t angle = (p.first_position + token % p.seq) * half + at;
    float cosine[N], sine[N];
    load_floats<N>(cosine, p.cos + angle);
    load_floats<N>(sine, p.sin + angle);
#pragma unroll
    for (int i = 0; i < N; i++)
        sine[i] = BACK ? -sine[i] : sine[i];
    for (int first = (int)threadIdx.y; first < all_heads; first += HEADS * (int)blockDim.y) {
        uint4 raw1[HEADS], raw2[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            int head = first + h * (int)blockDim.y;
            if (head >= all_heads) continue;
            raw1[h] = load16_once(in + head * p.head_dim);
            raw2[h] = load16_once(in + head * p.head_dim + half);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            int head = first + h * (int)blockDim.y;
            if (head >= all_heads) continue;
            float x[N], y[N];
            vec_unpack<T>(x, raw1[h]);
            vec_unpack<T>(y, raw2[h]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float rotated = x[i] * cosine[i] - y[i] * sine[i];
                y[i] = y[i] * cosine[i] + x[i] * sine[i];
                x[i] = rotated;
            }
            store16(out + head * p.head_dim, vec_pack<T>(x));
            store16(out + head * p.head_dim + half, vec_pack<T>(y));
        }
    }
}

static bool rotate_fits(const QkRopeShape *shape, int64_t out_stride, int64_t in_stride, const void *out,
                        const void *in, DType dtype) {
    int n = 16 / (int)dtype_size(dtype);
    return !shape->q_weight && shape->head_dim / 2 % n == 0 && out_stride % n == 0 && in_stride % n == 0 &&
           all_aligned(16, out, in, shape->cos, shape->sin);
}

template <typename T, bool BACK, int HEADS = ROTATE_HEADS>
static void rotate_launch(CudaState *state, T *out, const T *in, const RopeParams &p) {
    int pieces = p.head_dim / 2 / Vec<T>::N, groups = (p.heads + p.kv_heads + HEADS - 1) / HEADS;
    if (groups > 256 / pieces) groups = 256 / pieces;
    int most = 256 / (pieces * groups), tokens = most; // whole warps, where that is possible
    while (tokens > 1 && tokens * pieces * groups % 32)
        tokens--;
    if (tokens * pieces * groups % 32) tokens = most;
    if (tokens > 64) tokens = 64;
    rotate_kernel<T, HEADS, BACK>
        <<<(unsigned)ceil_div64(p.tokens, tokens), dim3((unsigned)pieces, (unsigned)groups, (unsigned)tokens), 0,
           state->stream>>>(out, in, p);
    LAUNCH_CHECK(state);
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <typename T, int V, int C, bool NORM>
static __global__ __launch_bounds__(256, NORM ? 2 : 3) void rope_forward_kernel(T *out, const T *in, float *rstd,
                                                                                const T *q_weight, const T *k_weight,
                                                                                RopeParams p) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, member = lane % p.group, part = lane / p.group;
    int half = p.head_dim / 2, at_once = 32 / p.group, all_heads = p.heads + p.kv_heads;
    int64_t token = (int64_t)blockIdx.x * 8 + warp;
    if (token >= p.tokens) return;
    int64_t position = p.first_position + token % p.seq;
    Half<V, C> cosine, sine, wq1, wq2, wk1, wk2;
    half_load<V, C>(cosine, p.cos + position * half, member, p.group, half);
    half_load<V, C>(sine, p.sin + position * half, member, p.group, half);
    if constexpr (NORM) {
        half_load<V, C>(wq1, q_weight, member, p.group, half);
        half_load<V, C>(wq2, q_weight + half, member, p.group, half);
        half_load<V, C>(wk1, k_weight, member, p.group, half);
        half_load<V, C>(wk2, k_weight + half, member, p.group, half);
    }
#pragma unroll 4
    for (int first = 0; first < all_heads; first += at_once) {
        int head = first + part;
        bool real = head < all_heads, query = head < p.heads;
        Half<V, C> x1, x2;
        if (real) {
            const T *in_head = in + token * p.in_stride + (int64_t)head * p.head_dim;
            half_load<V, C>(x1, in_head, member, p.group, half);
            half_load<V, C>(x2, in_head + half, member, p.group, half);
        }
        if constexpr (NORM) {
            float squares = 0;
            if (real) {
                FOR_HALF(c, i) {
                    squares += x1.value[c][i] * x1.value[c][i] + x2.value[c][i] * x2.value[c][i];
                }
            }
            squares = warp_sum(squares, p.group);
            float scale = rsqrtf(squares / (float)p.head_dim + p.eps);
            if (real && member == 0) rstd[token * all_heads + head] = scale;
            FOR_HALF(c, i) {
                x1.value[c][i] *= scale * (query ? wq1.value[c][i] : wk1.value[c][i]);
                x2.value[c][i] *= scale * (query ? wq2.value[c][i] : wk2.value[c][i]);
            }
        }
        if (!real) continue;
        FOR_HALF(c, i) {
            float x = x1.value[c][i], y = x2.value[c][i], cs = cosine.value[c][i], sn = sine.value[c][i];
            x1.value[c][i] = x * cs - y * sn;
            x2.value[c][i] = y * cs + x * sn;
        }
        T *out_head = out + token * p.out_stride + (int64_t)head * p.head_dim;
        half_store<V, C>(out_head, x1, member, p.group, half);
        half_store<V, C>(out_head + half, x2, member, p.group, half);
    }
}

// ---- backward ------------------------------------------------------------------------------------------------------

// One range of heads of one token; with NORM the weight gradient is added to dw1, dw2.
template <typename T, int V, int C, bool NORM>
static __device__ __forceinline__ void
rope_backward_heads(T *grad, const T *in, const float *rstd, const Half<V, C> &cosine, const Half<V, C> &sine,
                    const T *weight, Half<V, C> &dw1, Half<V, C> &dw2, int heads, int head_dim, int group) {
    int lane = (int)threadIdx.x % 32, member = lane % group, part = lane / group, at_once = 32 / group;
    int half = head_dim / 2;
    Half<V, C> w1, w2;
    if constexpr (NORM) {
        half_load<V, C>(w1, weight, member, group, half);
        half_load<V, C>(w2, weight + half, member, group, half);
    }
    // Heads loaded before the first is stored. Measured: two pay with norm weights; without them the registers are
    // worth more as a larger number of warps.
    constexpr int BATCH = NORM ? 2 : 1;
#pragma unroll 2
    for (int first = part; first - part < heads; first += BATCH * at_once) {
        Half<V, C> g1[BATCH], g2[BATCH], x1[BATCH], x2[BATCH];
        float scale[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int head = first + b * at_once;
            scale[b] = 0;
            if (head >= heads) continue;
            half_load<V, C>(g1[b], grad + (int64_t)head * head_dim, member, group, half);
            half_load<V, C>(g2[b], grad + (int64_t)head * head_dim + half, member, group, half);
            if constexpr (NORM) {
                half_load<V, C>(x1[b], in + (int64_t)head * head_dim, member, group, half);
                half_load<V, C>(x2[b], in + (int64_t)head * head_dim + half, member, group, half);
                scale[b] = rstd[head];
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int head = first + b * at_once;
            bool real = head < heads;
            FOR_HALF(c, i) { // the rotation back
                float x = real ? g1[b].value[c][i] : 0, y = real ? g2[b].value[c][i] : 0;
                g1[b].value[c][i] = x * cosine.value[c][i] + y * sine.value[c][i];
                g2[b].value[c][i] = y * cosine.value[c][i] - x * sine.value[c][i];
            }
            if constexpr (NORM) {
                float dot = 0;
                FOR_HALF(c, i) {
                    float hat1 = real ? x1[b].value[c][i] * scale[b] : 0,
                          hat2 = real ? x2[b].value[c][i] * scale[b] : 0;
                    x1[b].value[c][i] = hat1;
                    x2[b].value[c][i] = hat2;
                    dw1.value[c][i] += g1[b].value[c][i] * hat1;
                    dw2.value[c][i] += g2[b].value[c][i] * hat2;
                    g1[b].value[c][i] *= w1.value[c][i];
                    g2[b].value[c][i] *= w2.value[c][i];
                    dot += g1[b].value[c][i] * hat1 + g2[b].value[c][i] * hat2;
                }
                float mean = warp_sum(dot, group) / (float)head_dim;
                FOR_HALF(c, i) {
                    g1[b].value[c][i] = scale[b] * (g1[b].value[c][i] - x1[b].value[c][i] * mean);
                    g2[b].value[c][i] = scale[b] * (g2[b].value[c][i] - x2[b].value[c][i] * mean);
                }
            }
            if (!real) continue;
            half_store<V, C>(grad + (int64_t)head * head_dim, g1[b], member, group, half);
            half_store<V, C>(grad + (int64_t)head * head_dim + half, g2[b], member, group, half);
        }
    }
}

// Adds dw of the parts of a warp and of the 8 warps of a block, in order, and writes them to out.
template <int V, int C>
static __device__ void rope_weight_partial(float *out, Half<V, C> &dw, float *shared, int group, int half) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    FOR_HALF(c, i) {
        float value = dw.value[c][i];
        for (int step = group; step < 32; step *= 2)
            value += __shfl_xor_sync(FULL_WARP, value, step);
        int at = (c * group + lane) * V + i;
        if (lane < group && at < half) shared[warp * half + at] = value;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < half; at += 256) {
        float sum = 0;
        for (int w = 0; w < 8; w++)
            sum += shared[w * half + at];
        out[at] = sum;
    }
    __syncthreads();
}

template <typename T, int V, int C, bool NORM>
static __global__ __launch_bounds__(256) void rope_backward_kernel(T *grad, const T *in, const float *rstd,
                                                                   const T *q_weight, const T *k_weight,
                                                                   float *partials, RopeParams p) {
    extern __shared__ float shared[]; // [8, head_dim / 2]
    int warp = (int)threadIdx.x / 32, member = (int)threadIdx.x % p.group, half = p.head_dim / 2;
    Half<V, C> dq1 = {}, dq2 = {}, dk1 = {}, dk2 = {};
    for (int64_t token = (int64_t)blockIdx.x * 8 + warp; token < p.tokens; token += (int64_t)gridDim.x * 8) {
        int64_t position = p.first_position + token % p.seq;
        Half<V, C> cosine, sine;
        half_load<V, C>(cosine, p.cos + position * half, member, p.group, half);
        half_load<V, C>(sine, p.sin + position * half, member, p.group, half);
        T *grad_token = grad + token * p.out_stride;
        const T *in_token = NORM ? in + token * p.in_stride : nullptr;
        const float *rstd_token = NORM ? rstd + token * (p.heads + p.kv_heads) : nullptr;
        if constexpr (NORM) {
            rope_backward_heads<T, V, C, NORM>(grad_token, in_token, rstd_token, cosine, sine, q_weight, dq1, dq2,
                                               p.heads, p.head_dim, p.group);
            int64_t keys = (int64_t)p.heads * p.head_dim;
            rope_backward_heads<T, V, C, NORM>(grad_token + keys, in_token + keys, rstd_token + p.heads, cosine, sine,
                                               k_weight, dk1, dk2, p.kv_heads, p.head_dim, p.group);
        } else {
            rope_backward_heads<T, V, C, NORM>(grad_token, in_token, rstd_token, cosine, sine, q_weight, dq1, dq2,
                                               p.heads + p.kv_heads, p.head_dim, p.group);
        }
    }
    if constexpr (NORM) {
        float *out = partials + (int64_t)blockIdx.x * p.head_dim; // queries; the keys stand gridDim.x rows further
        rope_weight_partial<V, C>(out, dq1, shared, p.group, half);
        rope_weight_partial<V, C>(out + half, dq2, shared, p.group, half);
        out += (int64_t)gridDim.x * p.head_dim;
        rope_weight_partial<V, C>(out, dk1, shared, p.group, half);
        rope_weight_partial<V, C>(out + half, dk2, shared, p.group, half);
    }
}

// ---- launchers -----------------------------------------------------------------------------------------------------

static RopeParams rope_params(const QkRopeShape *shape, int64_t out_stride, int64_t in_stride, int v) {
    assert(shape->head_dim % 2 == 0 && shape->head_dim <= 256);
    assert(!shape->q_weight == !shape->k_weight);
    int lanes = v == 1 ? 32 : (shape->head_dim / 2 + v - 1) / v, group = 1;
    while (group < lanes)
        group *= 2;
    return (RopeParams){shape->tokens, out_stride,      in_stride,       shape->seq, shape->first_position,
                        shape->heads,  shape->kv_heads, shape->head_dim, group,      shape->eps,
                        shape->cos,    shape->sin};
}

// Elements that a thread may load at once: `most` (8 or 4), 4 or 1.
static int rope_vector(const QkRopeShape *shape, int64_t out_stride, int64_t in_stride, const void *out, const void *in,
                       size_t element, int most) {
    for (int v = most; v >= 4; v /= 2) {
        size_t bytes = (size_t)v * element < 16 ? (size_t)v * element : 16;
        if (shape->head_dim / 2 % v == 0 && out_stride % v == 0 && in_stride % v == 0 &&
            shape->head_dim / 2 / v <= 32 && all_aligned(bytes, out, in, shape->q_weight, shape->k_weight) &&
            all_aligned(16, shape->cos, shape->sin))
            return v;
    }
    return 1;
}

extern "C" void cuda_qk_rope_forward(Ops *ops, Tensor out, Tensor rstd, Tensor in, const Rope *rope) {
    const QkRopeShape shape = qk_rope_shape(rope, out.rows);
    const DType dtype = out.dtype;
    if (shape.tokens == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_QK_ROPE_FORWARD);
    if (rotate_fits(&shape, out.stride, in.stride, out.data, in.data, dtype)) {
        RopeParams p = rope_params(&shape, out.stride, in.stride, 4);
        WITH_STORAGE(dtype, (rotate_launch<T, false>(state, (T *)out.data, (const T *)in.data, p)));
        cuda_scope_end(state);
        return;
    }
    int v = rope_vector(&shape, out.stride, in.stride, out.data, in.data, dtype_size(dtype), 8);
    RopeParams p = rope_params(&shape, out.stride, in.stride, v);
    unsigned blocks = (unsigned)ceil_div64(shape.tokens, 8);
#define ROPE_FORWARD(V, C, NORM)                                                                   \
    rope_forward_kernel<T, V, C, NORM>                                                             \
        <<<blocks, 256, 0, state->stream>>>((T *)out.data, (const T *)in.data, (float *)rstd.data, \
                                            (const T *)shape.q_weight, (const T *)shape.k_weight, p)
    if (v == 8) // only with norm weights: else rotate_kernel does it
        WITH_STORAGE(dtype, ROPE_FORWARD(8, 1, true));
    else if (v == 4 && shape.q_weight)
        WITH_STORAGE(dtype, ROPE_FORWARD(4, 1, true));
    else if (v == 4)
        WITH_STORAGE(dtype, ROPE_FORWARD(4, 1, false));
    else if (shape.q_weight)
        WITH_STORAGE(dtype, ROPE_FORWARD(1, 4, true));
    else
        WITH_STORAGE(dtype, ROPE_FORWARD(1, 4, false));
#undef ROPE_FORWARD
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

template <typename T, bool NORM>
static void rope_backward_launch(CudaState *state, T *grad, const T *in, const float *rstd, const QkRopeShape *shape,
                                 float *partials, int blocks, const RopeParams &p, int v) {
    size_t shared = NORM ? (size_t)(8 * (p.head_dim / 2)) * sizeof(float) : 0;
    const T *q_weight = (const T *)shape->q_weight, *k_weight = (const T *)shape->k_weight;
    if (v == 4)
        rope_backward_kernel<T, 4, 1, NORM>
            <<<blocks, 256, shared, state->stream>>>(grad, in, rstd, q_weight, k_weight, partials, p);
    else
        rope_backward_kernel<T, 1, 4, NORM>
            <<<blocks, 256, shared, state->stream>>>(grad, in, rstd, q_weight, k_weight, partials, p);
    LAUNCH_CHECK(state);
}

extern "C" void cuda_qk_rope_backward(Ops *ops, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                                      const Rope *rope) {
    const QkRopeShape shape = qk_rope_shape(rope, grad.rows);
    const DType dtype = grad.dtype;
    if (shape.tokens == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_QK_ROPE_BACKWARD);
    bool norm = shape.q_weight != NULL;
    if (rotate_fits(&shape, grad.stride, grad.stride, grad.data, grad.data, dtype)) {
        RopeParams p = rope_params(&shape, grad.stride, grad.stride, 4);
        WITH_STORAGE(dtype, (rotate_launch<T, true>(state, (T *)grad.data, (const T *)grad.data, p)));
        cuda_scope_end(state);
        return;
    }
    int v =
        rope_vector(&shape, grad.stride, norm ? in.stride : 0, grad.data, norm ? in.data : NULL, dtype_size(dtype), 4);
    RopeParams p = rope_params(&shape, grad.stride, in.stride, v);
    int64_t blocks = ceil_div64(shape.tokens, 8);
    if (norm && blocks > ROPE_BACKWARD_BLOCKS) blocks = ROPE_BACKWARD_BLOCKS;
    if (!norm) {
        WITH_STORAGE(dtype, (rope_backward_launch<T, false>(state, (T *)grad.data, NULL, NULL, &shape, NULL,
                                                            (int)blocks, p, v)));
        cuda_scope_end(state);
        return;
    }
    float *partials = (float *)cuda_scratch(state, workspace_qk_rope_backward(shape.head_dim));
    if (partials) {
        WITH_STORAGE(dtype,
                     (rope_backward_launch<T, true>(state, (T *)grad.data, (const T *)in.data, (const float *)rstd.data,
                                                    &shape, partials, (int)blocks, p, v)));
        columns_reduce(state->stream, (float *)dq_weight.data, partials, (int)blocks, shape.head_dim, true);
        LAUNCH_CHECK(state);
        columns_reduce(state->stream, (float *)dk_weight.data, partials + blocks * shape.head_dim, (int)blocks,
                       shape.head_dim, true);
        LAUNCH_CHECK(state);
    }
    cuda_scope_end(state);
}
