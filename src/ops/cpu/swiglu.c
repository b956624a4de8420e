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

static int64_t existing_rows(int64_t rows, Tensor row_count) {
    const int32_t *count = row_count.data;
    return count && *count < rows ? *count : rows;
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
    VEC_BY_STORAGE(s->dtype, forward_rows, s, begin, end);
}

static void cpu_swiglu_forward(Ops *ops, Tensor out, Tensor gate_up, Tensor row_weight, Tensor row_count) {
    CPU_TIMED(ops, OP_SWIGLU_FORWARD);
    Swiglu s = {.out = out.data,
                .gate_up = gate_up.data,
                .row_weight = row_weight.data,
                .dim = (int)out.cols,
                .dtype = out.dtype};
    threads_for(existing_rows(out.rows, row_count), cpu_row_chunk(s.dim), forward_task, &s);
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
    VEC_BY_STORAGE(s->dtype, backward_rows, s, begin, end);
}

static void cpu_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up, Tensor dout,
                                Tensor row_weight, Tensor row_count) {
    CPU_TIMED(ops, OP_SWIGLU_BACKWARD);
    Swiglu s = {.out = out.data,
                .dgate_up = dgate_up.data,
                .drow_weight = drow_weight.data,
                .gate_up = gate_up.data,
                .dout = dout.data,
                .row_weight = row_weight.data,
                .dim = (int)dout.cols,
                .dtype = dout.dtype};
    threads_for(existing_rows(dout.rows, row_count), cpu_row_chunk(s.dim), backward_task, &s);
}

// ---- packed: gate and hidden side by side ---------------------------------------------------------------------------

VEC_INLINE void packed_forward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype);
        void *up = cpu_at_mut(s->out, row * 2 * dim + dim, dtype);
        VEC_FOR(i, n, dim) {
            Vec g = vec_nonzero(vec_get(gate, i, n, dtype), dtype);
            vec_put(up, i, n, dtype, g / (1.0f + vec_exp(-g)) * vec_get(up, i, n, dtype));
        }
    }
}

static void packed_forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Swiglu *s = context;
    VEC_BY_STORAGE(s->dtype, packed_forward_rows, s, begin, end);
}

static void cpu_swiglu_packed_forward(Ops *ops, Tensor gate_up) {
    CPU_TIMED(ops, OP_SWIGLU_PACKED_FORWARD);
    Swiglu s = {.out = gate_up.data, .gate_up = gate_up.data, .dim = (int)(gate_up.cols / 2), .dtype = gate_up.dtype};
    threads_for(gate_up.rows, cpu_row_chunk(s.dim), packed_forward_task, &s);
}

// With hidden h = g s u: dgate = dh u (s + g s (1 - s)) = dh h (1 / g + 1 - s), dup = dh g s.
VEC_INLINE void packed_backward_rows(const Swiglu *s, int64_t begin, int64_t end, DType dtype) {
    int dim = s->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *gate = cpu_at(s->gate_up, row * 2 * dim, dtype), *hidden = cpu_at(gate, dim, dtype);
        void *dgate = cpu_at_mut(s->dgate_up, row * 2 * dim, dtype), *dup = cpu_at_mut(dgate, dim, dtype);
        const void *dhidden = cpu_at(s->dout, row * dim, dtype);
        VEC_FOR(i, n, dim) {
            Vec g = vec_nonzero(vec_get(gate, i, n, dtype), dtype);
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
    VEC_BY_STORAGE(s->dtype, packed_backward_rows, s, begin, end);
}

static void cpu_swiglu_packed_backward(Ops *ops, Tensor dgate_up, Tensor gate_hidden, Tensor dhidden) {
    CPU_TIMED(ops, OP_SWIGLU_PACKED_BACKWARD);
    Swiglu s = {.dgate_up = dgate_up.data,
                .gate_up = gate_hidden.data,
                .dout = dhidden.data,
                .dim = (int)dhidden.cols,
                .dtype = dhidden.dtype};
    threads_for(dhidden.rows, cpu_row_chunk(s.dim), packed_backward_task, &s);
}

void cpu_install_swiglu(Ops *ops) {
    ops->swiglu_forward = cpu_swiglu_forward;
    ops->swiglu_backward = cpu_swiglu_backward;
    ops->swiglu_packed_forward = cpu_swiglu_packed_forward;
    ops->swiglu_packed_backward = cpu_swiglu_packed_backward;
    ops->linear_swiglu_forward = ops_linear_then_swiglu_forward;
    ops->linear_swiglu_backward = ops_linear_then_swiglu_backward;
}
