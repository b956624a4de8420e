// SwiGLU: out = row_weight * silu(gate) * up, and the packed form of dense layers.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

typedef struct Swiglu {
    void *out, *dgate_up;
    float *drow_weight;
    const void *gate_up, *dout;
    const float *row_weight;
    int dim;
    DType dtype;
} Swiglu;

static int64_t existing_rows(int64_t rows, const int32_t *row_count) {
    return row_count && *row_count < rows ? *row_count : rows;
}

VEC_INLINE void forward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype), *up = cpu_at(gate, dim, dtype);
        void *out = cpu_at_mut(s->out, row * dim, dtype);
        float weight = s->row_weight ? s->row_weight[row] : 1.0f;
        VEC_FOR(i, n, dim) {
            Vec g = vec_get(gate, i, n, dtype), u = vec_get(up, i, n, dtype);
            vec_put(out, i, n, dtype, g / (1.0f + vec_exp(-g)) * u * weight);
        }
    }
}

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Swiglu *s = context;
    if (s->dtype == DTYPE_F32)
        forward_rows(s, begin, end, DTYPE_F32);
    else
        forward_rows(s, begin, end, DTYPE_BF16);
}

static void cpu_swiglu_forward(Ops *ops, void *out, const void *gate_up, const float *row_weight,
                               const int32_t *row_count, int64_t rows, int dim, DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Swiglu s = {.out = out, .gate_up = gate_up, .row_weight = row_weight, .dim = dim, .dtype = dtype};
    threads_for(existing_rows(rows, row_count), cpu_row_chunk(dim), forward_task, &s);
}

// silu(g) = g s with s = 1 / (1 + e^-g), and silu'(g) = s + silu(g) (1 - s). All of a place is read before it is
// written, which is what lets dgate_up be gate_up and out be dout.
VEC_INLINE void backward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype), *up = cpu_at(gate, dim, dtype);
        void *dgate = cpu_at_mut(s->dgate_up, row * 2 * dim, dtype), *dup = cpu_at_mut(dgate, dim, dtype);
        const void *dout = cpu_at(s->dout, row * dim, dtype);
        void *out = cpu_at_mut(s->out, row * dim, dtype);
        float weight = s->row_weight[row];
        VecSum sum = {0};
        VEC_FOR(i, n, dim) {
            Vec g = vec_get(gate, i, n, dtype), u = vec_get(up, i, n, dtype), d = vec_get(dout, i, n, dtype);
            Vec sigmoid = 1.0f / (1.0f + vec_exp(-g)), silu = g * sigmoid;
            vec_sum_add(&sum, d * silu * u);
            d *= weight;
            vec_put(dgate, i, n, dtype, d * u * (sigmoid + silu * (1.0f - sigmoid)));
            vec_put(dup, i, n, dtype, d * silu);
            vec_put(out, i, n, dtype, silu * u * weight);
        }
        s->drow_weight[row] = (float)vec_sum_total(&sum);
    }
}

static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Swiglu *s = context;
    if (s->dtype == DTYPE_F32)
        backward_rows(s, begin, end, DTYPE_F32);
    else
        backward_rows(s, begin, end, DTYPE_BF16);
}

static void cpu_swiglu_backward(Ops *ops, void *dgate_up, void *out, float *drow_weight, const void *gate_up,
                                const void *dout, const float *row_weight, const int32_t *row_count, int64_t rows,
                                int dim, DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Swiglu s = {out, dgate_up, drow_weight, gate_up, dout, row_weight, dim, dtype};
    threads_for(existing_rows(rows, row_count), cpu_row_chunk(dim), backward_task, &s);
}

// ---- packed: gate and hidden side by side ---------------------------------------------------------------------------

VEC_INLINE void packed_forward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype);
        void *up = cpu_at_mut(s->out, row * 2 * dim + dim, dtype);
        VEC_FOR(i, n, dim) {
            Vec g = vec_nonzero(vec_get(gate, i, n, dtype), OPS_NONZERO);
            vec_put(up, i, n, dtype, g / (1.0f + vec_exp(-g)) * vec_get(up, i, n, dtype));
        }
    }
}

static void packed_forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Swiglu *s = context;
    if (s->dtype == DTYPE_F32)
        packed_forward_rows(s, begin, end, DTYPE_F32);
    else
        packed_forward_rows(s, begin, end, DTYPE_BF16);
}

static void cpu_swiglu_packed_forward(Ops *ops, void *gate_up, int64_t rows, int dim, DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Swiglu s = {.out = gate_up, .gate_up = gate_up, .dim = dim, .dtype = dtype};
    threads_for(rows, cpu_row_chunk(dim), packed_forward_task, &s);
}

// With hidden h = g s u: dgate = dh u (s + g s (1 - s)) = dh h (1 / g + 1 - s), dup = dh g s.
VEC_INLINE void packed_backward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype), *hidden = cpu_at(gate, dim, dtype);
        void *dgate = cpu_at_mut(s->dgate_up, row * 2 * dim, dtype), *dup = cpu_at_mut(dgate, dim, dtype);
        const void *dhidden = cpu_at(s->dout, row * dim, dtype);
        VEC_FOR(i, n, dim) {
            Vec g = vec_nonzero(vec_get(gate, i, n, dtype), OPS_NONZERO);
            Vec d = vec_get(dhidden, i, n, dtype), h = vec_get(hidden, i, n, dtype);
            Vec sigmoid = 1.0f / (1.0f + vec_exp(-g));
            vec_put(dgate, i, n, dtype, d * (h * (1.0f / g + (1.0f - sigmoid))));
            vec_put(dup, i, n, dtype, d * g * sigmoid);
        }
    }
}

static void packed_backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Swiglu *s = context;
    if (s->dtype == DTYPE_F32)
        packed_backward_rows(s, begin, end, DTYPE_F32);
    else
        packed_backward_rows(s, begin, end, DTYPE_BF16);
}

static void cpu_swiglu_packed_backward(Ops *ops, void *dgate_up, const void *gate_hidden, const void *dhidden,
                                       int64_t rows, int dim, DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Swiglu s = {.dgate_up = dgate_up, .gate_up = gate_hidden, .dout = dhidden, .dim = dim, .dtype = dtype};
    threads_for(rows, cpu_row_chunk(dim), packed_backward_task, &s);
}

void cpu_install_swiglu(Ops *ops) {
    ops->swiglu_forward = cpu_swiglu_forward;
    ops->swiglu_backward = cpu_swiglu_backward;
    ops->swiglu_packed_forward = cpu_swiglu_packed_forward;
    ops->swiglu_packed_backward = cpu_swiglu_packed_backward;
    ops->linear_swiglu_forward = ops_linear_then_swiglu_forward;
    ops->linear_swiglu_backward = ops_linear_then_swiglu_backward;
}
