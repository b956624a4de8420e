// RMSNorm over each query and key head, then rotary position embedding, and both backward.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <math.h>

typedef struct RopeWork {
    QkRopeShape shape;
    void *out; // forward: the result; backward: the gradient, in place
    int64_t out_stride, in_stride;
    const void *in;
    float *rstd_out;
    const float *rstd;
    double *partial; // [parts, 2, head_dim] of dq_weight and dk_weight
    int64_t part_rows;
    DType dtype;
} RopeWork;

static inline bool rope_has_norm(const QkRopeShape *shape) {
    return shape->q_weight || shape->k_weight;
}

// ---- forward -------------------------------------------------------------------------------------------------------

VEC_INLINE void forward_head(void *out, const void *in, const void *weight, float *rstd_out, const float *cos,
                             const float *sin, int64_t half, float eps, DType dtype) {
    const void *in2 = cpu_at(in, half, dtype), *weight2 = weight ? cpu_at(weight, half, dtype) : NULL;
    void *out2 = cpu_at_mut(out, half, dtype);
    float rstd = 1.0f;
    if (weight) {
        VecSum squares = {0};
        VEC_FOR(i, n, 2 * half) {
            Vec x = vec_get(in, i, n, dtype);
            vec_sum_add(&squares, x * x);
        }
        rstd = (float)(1.0 / sqrt(vec_sum_total(&squares) / (double)(2 * half) + (double)eps));
        *rstd_out = rstd;
    }
    VEC_FOR(i, n, half) {
        Vec x1 = vec_get(in, i, n, dtype), x2 = vec_get(in2, i, n, dtype);
        Vec c = vec_get(cos, i, n, DTYPE_F32), s = vec_get(sin, i, n, DTYPE_F32);
        if (weight) {
            x1 = x1 * rstd * vec_get(weight, i, n, dtype);
            x2 = x2 * rstd * vec_get(weight2, i, n, dtype);
        }
        vec_put(out, i, n, dtype, x1 * c - x2 * s);
        vec_put(out2, i, n, dtype, x2 * c + x1 * s);
    }
}

VEC_INLINE void forward_tokens(const RopeWork *rope, int64_t begin, int64_t end, DType dtype) {
    const QkRopeShape *shape = &rope->shape;
    int64_t all_heads = shape->heads + shape->kv_heads, half = shape->head_dim / 2;
    for (int64_t t = begin; t < end; t++) {
        int64_t position = shape->first_position + t % shape->seq;
        for (int64_t h = 0; h < all_heads; h++) {
            const void *weight = h < shape->heads ? shape->q_weight : shape->k_weight;
            forward_head(cpu_at_mut(rope->out, t * rope->out_stride + h * shape->head_dim, dtype),
                         cpu_at(rope->in, t * rope->in_stride + h * shape->head_dim, dtype), weight,
                         weight ? rope->rstd_out + t * all_heads + h : NULL, shape->cos + position * half,
                         shape->sin + position * half, half, shape->eps, dtype);
        }
    }
}

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const RopeWork *rope = context;
    VEC_BY_STORAGE(rope->dtype, forward_tokens, rope, begin, end);
}

static void cpu_qk_rope_forward(Ops *ops, Tensor out, Tensor rstd, Tensor in, const Rope *rope) {
    CPU_TIMED(ops, OP_QK_ROPE_FORWARD);
    RopeWork work = {.shape = qk_rope_shape(rope, out.rows),
                     .out = out.data,
                     .out_stride = out.stride,
                     .in = in.data,
                     .in_stride = in.stride,
                     .rstd_out = rstd.data,
                     .dtype = out.dtype};
    int64_t dim = (int64_t)(rope->heads + rope->kv_heads) * rope->head_dim;
    threads_for(out.rows, cpu_row_chunk(dim), forward_task, &work);
}

// ---- backward: the rotation is orthogonal, so its gradient turns back; then RMSNorm's as in norm.c ----------------

VEC_INLINE void backward_head(void *grad, const void *in, const void *weight, float rstd, double *dweight,
                              const float *cos, const float *sin, int64_t half, DType dtype) {
    const void *in2 = weight ? cpu_at(in, half, dtype) : NULL, *weight2 = weight ? cpu_at(weight, half, dtype) : NULL;
    void *grad2 = cpu_at_mut(grad, half, dtype);
    if (!weight) {
        VEC_FOR(i, n, half) {
            Vec g1 = vec_get(grad, i, n, dtype), g2 = vec_get(grad2, i, n, dtype);
            Vec c = vec_get(cos, i, n, DTYPE_F32), s = vec_get(sin, i, n, DTYPE_F32);
            vec_put(grad, i, n, dtype, g1 * c + g2 * s);
            vec_put(grad2, i, n, dtype, g2 * c - g1 * s);
        }
        return;
    }
    VecSum dot = {0};
    VEC_FOR(i, n, half) {
        Vec g1 = vec_get(grad, i, n, dtype), g2 = vec_get(grad2, i, n, dtype);
        Vec c = vec_get(cos, i, n, DTYPE_F32), s = vec_get(sin, i, n, DTYPE_F32);
        Vec p1 = (g1 * c + g2 * s) * vec_get(in, i, n, dtype), p2 = (g2 * c - g1 * s) * vec_get(in2, i, n, dtype);
        vec_add_to_doubles(dweight, i, n, p1 * rstd);
        vec_add_to_doubles(dweight + half, i, n, p2 * rstd);
        vec_sum_add(&dot, p1 * vec_get(weight, i, n, dtype) + p2 * vec_get(weight2, i, n, dtype));
    }
    float slope = (float)(vec_sum_total(&dot) / (double)(2 * half) * rstd * rstd);
    VEC_FOR(i, n, half) {
        Vec g1 = vec_get(grad, i, n, dtype), g2 = vec_get(grad2, i, n, dtype);
        Vec c = vec_get(cos, i, n, DTYPE_F32), s = vec_get(sin, i, n, DTYPE_F32);
        Vec d1 = (g1 * c + g2 * s) * vec_get(weight, i, n, dtype),
            d2 = (g2 * c - g1 * s) * vec_get(weight2, i, n, dtype);
        vec_put(grad, i, n, dtype, rstd * (d1 - vec_get(in, i, n, dtype) * slope));
        vec_put(grad2, i, n, dtype, rstd * (d2 - vec_get(in2, i, n, dtype) * slope));
    }
}

VEC_INLINE void backward_tokens(const RopeWork *rope, int64_t begin, int64_t end, DType dtype) {
    const QkRopeShape *shape = &rope->shape;
    int64_t all_heads = shape->heads + shape->kv_heads, half = shape->head_dim / 2;
    double *partial = NULL;
    if (rope->partial) {
        partial = rope->partial + begin / rope->part_rows * 2 * shape->head_dim;
        memset(partial, 0, (size_t)(2 * shape->head_dim) * sizeof(double));
    }
    for (int64_t t = begin; t < end; t++) {
        int64_t position = shape->first_position + t % shape->seq;
        for (int64_t h = 0; h < all_heads; h++) {
            bool query = h < shape->heads;
            const void *weight = query ? shape->q_weight : shape->k_weight;
            backward_head(cpu_at_mut(rope->out, t * rope->out_stride + h * shape->head_dim, dtype),
                          weight ? cpu_at(rope->in, t * rope->in_stride + h * shape->head_dim, dtype) : NULL, weight,
                          weight ? rope->rstd[t * all_heads + h] : 1.0f,
                          weight ? partial + (query ? 0 : shape->head_dim) : NULL, shape->cos + position * half,
                          shape->sin + position * half, half, dtype);
        }
    }
}

static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const RopeWork *rope = context;
    VEC_BY_STORAGE(rope->dtype, backward_tokens, rope, begin, end);
}

static void cpu_qk_rope_backward(Ops *ops, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                                 const Rope *rope) {
    CPU_TIMED(ops, OP_QK_ROPE_BACKWARD);
    int64_t tokens = grad.rows;
    RopeWork work = {.shape = qk_rope_shape(rope, tokens),
                     .out = grad.data,
                     .out_stride = grad.stride,
                     .in = in.data,
                     .in_stride = in.stride,
                     .rstd = rstd.data,
                     .part_rows = cpu_part_rows(tokens),
                     .dtype = grad.dtype};
    const QkRopeShape *shape = &work.shape;
    int64_t pair = 2 * shape->head_dim;
    if (rope_has_norm(shape))
        work.partial = (double *)cpu_scratch(cpu_of(ops), (size_t)(CPU_PARTS * pair) * sizeof(double), 0).shared;
    threads_for(tokens, work.part_rows, backward_task, &work);
    int64_t parts = cpu_part_count(tokens);
    if (shape->q_weight) cpu_add_parts(dq_weight.data, work.partial, parts, pair, shape->head_dim);
    if (shape->k_weight) cpu_add_parts(dk_weight.data, work.partial + shape->head_dim, parts, pair, shape->head_dim);
}

void cpu_install_rope(Ops *ops) {
    ops->qk_rope_forward = cpu_qk_rope_forward;
    ops->qk_rope_backward = cpu_qk_rope_backward;
    ops->linear_rope_forward = ops_linear_then_rope_forward;
}
