// AdamW as PyTorch computes it, for float weights, for bf16 weights with the rest of a float master weight beside them,
// for f16 weights with a float master weight, and for bf16 weights alone (rounded stochastically). The gradient norm is
// in elements.c.
#include "base/rng.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <math.h>

typedef struct Adamw {
    void *weight;
    void *master; // int16 with bf16, float with f16; NULL: none
    float *m, *v;
    const float *grad;
    DType dtype;
    float beta2, eps;
    uint64_t seed, first;
    float clip, keep, step_size, root_bias2, one_minus_beta1, one_minus_beta2;
} Adamw;

// The master weights of elements [i, i + n) in float, and back.
VEC_INLINE Vec split_get(const Adamw *adamw, int64_t i, int64_t n) {
    VecHalf high = {0}, low = {0};
    memcpy(&high, (const bf16 *)adamw->weight + i, (size_t)n * sizeof(bf16));
    memcpy(&low, (const int16_t *)adamw->master + i, (size_t)n * sizeof(int16_t));
    VecBits rest = (VecBits)((VecInt)(__builtin_convertvector(low, VecBits) << 16) >> 16); // with its sign
    return (Vec)((__builtin_convertvector(high, VecBits) << 16) + rest);
}

// Rounded to nearest, half away from zero: then the rest fits 16 signed bits, which half to even would miss by one.
VEC_INLINE void split_put(const Adamw *adamw, int64_t i, int64_t n, Vec value) {
    VecBits nan = (VecBits)(value != value);
    VecBits bits = (~nan & (VecBits)value) | (nan & 0x7fc00000u); // a NaN must not round to a number
    VecHalf high = __builtin_convertvector((bits + 0x8000u) >> 16, VecHalf);
    VecHalf low = __builtin_convertvector(bits & 0xffffu, VecHalf); // what is left modulo 2^16
    memcpy((bf16 *)adamw->weight + i, &high, (size_t)n * sizeof(bf16));
    memcpy((int16_t *)adamw->master + i, &low, (size_t)n * sizeof(int16_t));
}

static inline bf16 round_stochastically(float value, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bf16_from_f32(value); // infinities and NaN stay what they are
    return (bf16)((bits + (random & 0xffffu)) >> 16);
}

VEC_INLINE Vec adamw_update(const Adamw *adamw, int64_t i, int64_t n, Vec weight) {
    Vec g = vec_get(adamw->grad, i, n, DTYPE_F32) * adamw->clip;
    Vec m = vec_get(adamw->m, i, n, DTYPE_F32), v = vec_get(adamw->v, i, n, DTYPE_F32);
    m = m + adamw->one_minus_beta1 * (g - m);
    v = v * adamw->beta2 + adamw->one_minus_beta2 * g * g;
    vec_put(adamw->m, i, n, DTYPE_F32, m);
    vec_put(adamw->v, i, n, DTYPE_F32, v);
    Vec root;
    for (int lane = 0; lane < VEC_LANES; lane++)
        root[lane] = sqrtf(v[lane]);
    return weight * adamw->keep - adamw->step_size * (m / (root / adamw->root_bias2 + adamw->eps));
}

VEC_INLINE void adamw_elements(const Adamw *adamw, int64_t i, int64_t n) {
    if (adamw->dtype == DTYPE_F32) {
        vec_put(adamw->weight, i, n, DTYPE_F32, adamw_update(adamw, i, n, vec_get(adamw->weight, i, n, DTYPE_F32)));
        return;
    }
    if (adamw->dtype == DTYPE_F16) {
        Vec master = adamw_update(adamw, i, n, vec_get(adamw->master, i, n, DTYPE_F32));
        vec_put(adamw->master, i, n, DTYPE_F32, master);
        vec_put(adamw->weight, i, n, DTYPE_F16, master);
        return;
    }
    if (adamw->master) {
        split_put(adamw, i, n, adamw_update(adamw, i, n, split_get(adamw, i, n)));
        return;
    }
    Vec weight = adamw_update(adamw, i, n, vec_get(adamw->weight, i, n, DTYPE_BF16));
    for (int64_t lane = 0; lane < n; lane++)
        ((bf16 *)adamw->weight)[i + lane] = round_stochastically(
            weight[lane], (uint32_t)rng_bits(adamw->seed, RNG_STREAM_ROUNDING, adamw->first + (uint64_t)(i + lane)));
}

static void adamw_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Adamw *adamw = context;
    int64_t i = begin;
    for (; i + VEC_LANES <= end; i += VEC_LANES)
        adamw_elements(adamw, i, VEC_LANES);
    if (i < end) adamw_elements(adamw, i, end - i);
}

static void cpu_adamw(Ops *ops, const AdamwArgs *args) {
    CPU_TIMED(ops, OP_ADAMW);
    enum { CHUNK = 1 << 14 };
    if (*(const int32_t *)args->skip.data) return;
    double unscale = args->unscale > 0 ? (double)args->unscale : 1, clip = 1;
    if (args->max_norm > 0)
        clip = fmin(1.0, (double)args->max_norm / ((double)*(const float *)args->norm.data * unscale + 1e-6));
    Adamw adamw = {
        .weight = args->weight.data,
        .master = args->master.data,
        .m = args->m.data,
        .v = args->v.data,
        .grad = args->grad.data,
        .dtype = args->weight.dtype,
        .beta2 = args->beta2,
        .eps = args->eps,
        .seed = args->seed,
        .first = args->first,
        .clip = (float)(clip * unscale),
        .keep = (float)(1.0 - (double)args->lr * (double)args->weight_decay),
        .step_size = (float)((double)args->lr / (double)args->bias1),
        .root_bias2 = (float)sqrt((double)args->bias2),
        .one_minus_beta1 = (float)(1.0 - (double)args->beta1),
        .one_minus_beta2 = (float)(1.0 - (double)args->beta2),
    };
    threads_for(tensor_count(args->weight), CHUNK, adamw_task, &adamw);
}

static void cpu_guard(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit,
                      float norm_limit) {
    CPU_TIMED(ops, OP_GUARD);
    float l = *(const float *)loss.data, n = *(const float *)norm.data;
    bool refused = tensor_present(refuse) && *(const int32_t *)refuse.data;
    *(int32_t *)skip.data = refused || !isfinite(l) || !isfinite(n) || l > loss_limit || n > norm_limit;
}

void cpu_install_optimizer(Ops *ops) {
    ops->guard = cpu_guard;
    ops->adamw = cpu_adamw;
}
