// AdamW as PyTorch computes it, for float weights, for bf16 weights with the rest of a float master weight beside them,
// and for bf16 weights alone (rounded stochastically). The gradient norm is in elements.c.
#include "base/rng.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <math.h>

typedef struct Adamw {
    const AdamwArgs *args;
    float clip, keep, step_size, root_bias2, one_minus_beta1, one_minus_beta2;
} Adamw;

// The master weight of element i in float, and back.
static inline float split_get(const AdamwArgs *args, int64_t i) {
    uint32_t bits = ((uint32_t)((const bf16 *)args->weight)[i] << 16) + (uint32_t)(int32_t)args->master_low[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounded to nearest, half away from zero: then the rest fits 16 signed bits, which half to even would miss by one.
static inline void split_put(const AdamwArgs *args, int64_t i, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) bits = 0x7fc00000u; // a NaN must not round to a number
    uint32_t high = (bits + 0x8000u) >> 16;
    ((bf16 *)args->weight)[i] = (bf16)high;
    args->master_low[i] = (int16_t)(uint16_t)(bits - (high << 16));
}

static inline bf16 round_stochastically(float value, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bf16_from_f32(value); // infinities and NaN stay what they are
    return (bf16)((bits + (random & 0xffffu)) >> 16);
}

VEC_INLINE Vec adamw_update(const Adamw *adamw, int64_t i, int64_t n, Vec weight) {
    const AdamwArgs *args = adamw->args;
    Vec g = vec_get(args->grad, i, n, DTYPE_F32) * adamw->clip;
    Vec m = vec_get(args->m, i, n, DTYPE_F32), v = vec_get(args->v, i, n, DTYPE_F32);
    m = m + adamw->one_minus_beta1 * (g - m);
    v = v * args->beta2 + adamw->one_minus_beta2 * g * g;
    vec_put(args->m, i, n, DTYPE_F32, m);
    vec_put(args->v, i, n, DTYPE_F32, v);
    Vec root;
    for (int lane = 0; lane < VEC_LANES; lane++)
        root[lane] = sqrtf(v[lane]);
    return weight * adamw->keep - adamw->step_size * (m / (root / adamw->root_bias2 + args->eps));
}

static void adamw_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Adamw *adamw = context;
    const AdamwArgs *args = adamw->args;
    for (int64_t i = begin; i < end; i += VEC_LANES) {
        int64_t n = end - i < VEC_LANES ? end - i : VEC_LANES;
        if (args->dtype == DTYPE_F32) {
            vec_put(args->weight, i, n, DTYPE_F32, adamw_update(adamw, i, n, vec_get(args->weight, i, n, DTYPE_F32)));
            continue;
        }
        Vec weight = {0};
        if (args->master_low)
            for (int64_t lane = 0; lane < n; lane++)
                weight[lane] = split_get(args, i + lane);
        else
            weight = vec_get(args->weight, i, n, DTYPE_BF16);
        weight = adamw_update(adamw, i, n, weight);
        for (int64_t lane = 0; lane < n; lane++) {
            if (args->master_low)
                split_put(args, i + lane, weight[lane]);
            else
                ((bf16 *)args->weight)[i + lane] =
                    round_stochastically(weight[lane], (uint32_t)rng_bits(args->seed, RNG_STREAM_ROUNDING,
                                                                          args->first + (uint64_t)(i + lane)));
        }
    }
}

static void cpu_adamw(Ops *ops, const AdamwArgs *args) {
    CPU_TIMED(ops, OP_OPTIMIZER);
    enum { CHUNK = 1 << 14 };
    if (args->skip && *args->skip) return;
    double clip = 1;
    if (args->max_norm > 0) clip = fmin(1.0, (double)args->max_norm / ((double)*args->norm + 1e-6));
    Adamw adamw = {
        .args = args,
        .clip = (float)clip,
        .keep = (float)(1.0 - (double)args->lr * (double)args->weight_decay),
        .step_size = (float)((double)args->lr / (double)args->bias1),
        .root_bias2 = (float)sqrt((double)args->bias2),
        .one_minus_beta1 = (float)(1.0 - (double)args->beta1),
        .one_minus_beta2 = (float)(1.0 - (double)args->beta2),
    };
    threads_for(args->count, CHUNK, adamw_task, &adamw);
}

static void cpu_guard(Ops *ops, int32_t *skip, const float *loss, const float *norm, float loss_limit,
                      float norm_limit) {
    CPU_TIMED(ops, OP_OPTIMIZER);
    *skip = !isfinite(*loss) || !isfinite(*norm) || *loss > loss_limit || *norm > norm_limit;
}

void cpu_install_optimizer(Ops *ops) {
    ops->guard = cpu_guard;
    ops->adamw = cpu_adamw;
}
