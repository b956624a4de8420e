// AdamW in one pass over a parameter range: clip factor, moments, float master weight and 16-bit write-out; and the
// guard that decides on the device whether a step may be applied.
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

extern "C" {
#include "base/rng.h"
}

// ---- guard ---------------------------------------------------------------------------------------------------------

static __global__ void guard_kernel(int32_t *skip, const float *loss, const float *norm, const int32_t *refuse,
                                    float loss_limit, float norm_limit) {
    bool bad = !isfinite(*loss) || !isfinite(*norm) || *loss > loss_limit || *norm > norm_limit || (refuse && *refuse);
    *skip = bad ? 1 : 0;
}

extern "C" void cuda_guard(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit,
                           float norm_limit) {
    CudaState *state = cuda_scope_begin(ops, OP_GUARD);
    guard_kernel<<<1, 1, 0, state->stream>>>((int32_t *)skip.data, (const float *)loss.data, (const float *)norm.data,
                                             (const int32_t *)refuse.data, loss_limit, norm_limit);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- AdamW ---------------------------------------------------------------------------------------------------------

// The low 16 bits of rng_bits(seed, RNG_STREAM_ROUNDING, index): Philox4x32-10 as in base/rng.c.
static __device__ uint32_t rounding_bits(uint64_t seed, uint64_t index) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = RNG_STREAM_ROUNDING, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        uint32_t n0 = high1 ^ c1 ^ k0, n2 = high0 ^ c3 ^ k1;
        c1 = low1, c3 = low0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return c1 & 0xffffu;
}

static __device__ __forceinline__ bool is_nan_bits(uint32_t bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

enum AdamwMode { ADAMW_F32, ADAMW_MASTER, ADAMW_STOCHASTIC, ADAMW_F16 };

// Whether what the element is computed from is a float as it stands: the weight itself, or the master of an f16 one.
template <int MODE> constexpr bool WHOLE = MODE == ADAMW_F32 || MODE == ADAMW_F16;

// The master weight of an element from its stored parts.
template <int MODE> static __device__ __forceinline__ float master_join(uint32_t weight, int32_t low) {
    if constexpr (WHOLE<MODE>) return __uint_as_float(weight);
    return __uint_as_float((weight << 16) + (uint32_t)low);
}

// And back. A tie rounds away from zero, not to even: then the rest always fits 16 bits and the pair is exact.
template <int MODE>
static __device__ __forceinline__ void master_split(uint32_t &weight, int32_t &low, float master, uint64_t seed,
                                                    uint64_t index) {
    uint32_t bits = __float_as_uint(master);
    if constexpr (WHOLE<MODE>) {
        weight = bits;
        return;
    }
    bool nan = is_nan_bits(bits);
    if constexpr (MODE == ADAMW_MASTER) {
        weight = nan ? 0x7fc0u : (bits + 0x8000u) >> 16;
        low = nan ? 0 : (int32_t)(int16_t)(bits & 0xffffu);
    } else {
        bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        weight = nan ? 0x7fc0u : finite ? (bits + rounding_bits(seed, index)) >> 16 : bits >> 16;
    }
}

// AdamwArgs as the kernel reads it.
struct AdamwRange {
    int64_t count;
    void *weight;
    void *master; // int16 with bf16 weights, float with f16
    float *m, *v;
    const float *grad;
    float max_norm, unscale;
    const float *norm;
    const int32_t *skip;
    uint64_t seed, first;
};

// What is the same for every element.
struct AdamwStep {
    float clip; // known on the device only
    float beta1, beta2, eps, decay, rate, root_bias2;
};

// False when the step is skipped.
static __device__ __forceinline__ bool adamw_begin(const AdamwRange &a, AdamwStep &s) {
    if (a.skip && *a.skip) return false;
    s.clip = (a.max_norm > 0 ? fminf(1.0f, a.max_norm / (*a.norm * a.unscale + 1e-6f)) : 1.0f) * a.unscale;
    return true;
}

static __device__ __forceinline__ float adamw_element(float weight, float &m, float &v, float grad,
                                                      const AdamwStep &s) {
    grad *= s.clip;
    m = s.beta1 * m + (1.0f - s.beta1) * grad;
    v = s.beta2 * v + (1.0f - s.beta2) * grad * grad;
    float root = sqrtf(v) / s.root_bias2 + s.eps;
    return weight * s.decay - s.rate * m / root;
}

// Four 16-bit values in 32 bits each, zeros above, and back.
static __device__ __forceinline__ uint4 widen16(const uint2 &in) {
    return make_uint4(in.x & 0xffffu, in.x >> 16, in.y & 0xffffu, in.y >> 16);
}

static __device__ __forceinline__ uint2 narrow16(const uint4 &in) {
    return make_uint2((in.x & 0xffffu) | in.y << 16, (in.z & 0xffffu) | in.w << 16);
}

template <int MODE>
static __device__ __forceinline__ void adamw_one(const AdamwRange &a, const AdamwStep &s, int64_t i) {
    uint32_t weight = MODE == ADAMW_F32   ? ((const uint32_t *)a.weight)[i]
                      : MODE == ADAMW_F16 ? ((const uint32_t *)a.master)[i]
                                          : ((const uint16_t *)a.weight)[i];
    int32_t low = MODE == ADAMW_MASTER ? ((const int16_t *)a.master)[i] : 0;
    float m = a.m[i], v = a.v[i];
    float master = adamw_element(master_join<MODE>(weight, low), m, v, a.grad[i], s);
    master_split<MODE>(weight, low, master, a.seed, a.first + (uint64_t)i);
    a.m[i] = m, a.v[i] = v;
    if constexpr (MODE == ADAMW_F32)
        ((uint32_t *)a.weight)[i] = weight;
    else if constexpr (MODE == ADAMW_F16)
        ((uint32_t *)a.master)[i] = weight, ((Fp16 *)a.weight)[i] = from_float<Fp16>(master);
    else
        ((uint16_t *)a.weight)[i] = (uint16_t)weight;
    if constexpr (MODE == ADAMW_MASTER) ((int16_t *)a.master)[i] = (int16_t)low;
}

// Four elements a thread, on their way before anything is waited for. Neighbouring threads take neighbouring pieces of
// 16 bytes (8 of bf16), so that a warp reads and writes whole sectors at once.
template <int MODE> static __device__ __forceinline__ void adamw_four(const AdamwRange &a, AdamwStep s, int64_t i) {
    uint4 grads = load16_once(a.grad + i), ms = load16_once(a.m + i), vs = load16_once(a.v + i), weights = {},
          lows = {};
    if (WHOLE<MODE>)
        weights = load16_once((float *)(MODE == ADAMW_F16 ? a.master : a.weight) + i);
    else
        weights = widen16(load8_once((uint16_t *)a.weight + i));
    if (MODE == ADAMW_MASTER) lows = widen16(load8_once((int16_t *)a.master + i));
    if (!adamw_begin(a, s)) return;
    uint32_t *g = (uint32_t *)&grads, *mp = (uint32_t *)&ms, *vp = (uint32_t *)&vs, *w = (uint32_t *)&weights;
    uint32_t *l = (uint32_t *)&lows;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int32_t low = (int16_t)l[j];
        float m = __uint_as_float(mp[j]), v = __uint_as_float(vp[j]);
        float master = adamw_element(master_join<MODE>(w[j], low), m, v, __uint_as_float(g[j]), s);
        master_split<MODE>(w[j], low, master, a.seed, a.first + (uint64_t)(i + j));
        mp[j] = __float_as_uint(m), vp[j] = __float_as_uint(v), l[j] = (uint32_t)low;
    }
    store16_once(a.m + i, ms);
    store16_once(a.v + i, vs);
    if (WHOLE<MODE>)
        store16_once((float *)(MODE == ADAMW_F16 ? a.master : a.weight) + i, weights);
    else
        store8_once((uint16_t *)a.weight + i, narrow16(weights));
    if (MODE == ADAMW_F16)
        store8_once((Fp16 *)a.weight + i,
                    make_uint2(pair_pack<Fp16>(__uint_as_float(weights.x), __uint_as_float(weights.y)),
                               pair_pack<Fp16>(__uint_as_float(weights.z), __uint_as_float(weights.w))));
    if (MODE == ADAMW_MASTER) store8_once((int16_t *)a.master + i, narrow16(lows));
}

template <int MODE, bool ALIGNED>
static __global__ __launch_bounds__(256) void adamw_kernel(AdamwRange a, AdamwStep s) {
    int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
    int64_t end = i + 4 < a.count ? i + 4 : a.count;
    if (ALIGNED && end == i + 4) {
        adamw_four<MODE>(a, s, i);
        return;
    }
    if (!adamw_begin(a, s)) return;
    for (int64_t j = i; j < end; j++)
        adamw_one<MODE>(a, s, j);
}

template <int MODE> static void adamw_launch(CudaState *state, const AdamwArgs *args) {
    AdamwRange range = {.count = tensor_count(args->weight),
                        .weight = args->weight.data,
                        .master = args->master.data,
                        .m = (float *)args->m.data,
                        .v = (float *)args->v.data,
                        .grad = (const float *)args->grad.data,
                        .max_norm = args->max_norm,
                        .unscale = args->unscale > 0 ? args->unscale : 1,
                        .norm = (const float *)args->norm.data,
                        .skip = (const int32_t *)args->skip.data,
                        .seed = args->seed,
                        .first = args->first};
    AdamwStep step = {.clip = 1,
                      .beta1 = args->beta1,
                      .beta2 = args->beta2,
                      .eps = args->eps,
                      .decay = (float)(1.0 - (double)args->lr * args->weight_decay),
                      .rate = args->lr / args->bias1,
                      .root_bias2 = sqrtf(args->bias2)};
    unsigned blocks = (unsigned)ceil_div64(range.count, 256 * 4);
    if (all_aligned(16, range.weight, range.master, range.m, range.v, range.grad))
        adamw_kernel<MODE, true><<<blocks, 256, 0, state->stream>>>(range, step);
    else
        adamw_kernel<MODE, false><<<blocks, 256, 0, state->stream>>>(range, step);
    LAUNCH_CHECK(state);
}

extern "C" void cuda_adamw(Ops *ops, const AdamwArgs *args) {
    if (tensor_count(args->weight) == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_ADAMW);
    if (args->weight.dtype == DTYPE_F32)
        adamw_launch<ADAMW_F32>(state, args);
    else if (args->weight.dtype == DTYPE_F16)
        adamw_launch<ADAMW_F16>(state, args);
    else if (tensor_present(args->master))
        adamw_launch<ADAMW_MASTER>(state, args);
    else
        adamw_launch<ADAMW_STOCHASTIC>(state, args);
    cuda_scope_end(state);
}
