// Residual add + RMSNorm and its backward pass.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <math.h>

typedef struct Norm {
    void *out, *sum; // forward
    float *rstd_out;
    const void *residual, *branch, *weight;
    float eps;
    void *dsum; // backward
    const void *dout, *normed;
    const float *rstd;
    bool dsum_is_zero;
    double *partial; // [parts, dim] of dweight
    int64_t part_rows;
    int dim;
    DType dtype;
} Norm;

VEC_INLINE Vec weight_get(const Norm *norm, int64_t i, int64_t n, DType dtype) {
    return vec_nonzero(vec_get(norm->weight, i, n, dtype), dtype);
}

// ---- forward -------------------------------------------------------------------------------------------------------

VEC_INLINE void forward_rows(const Norm *norm, int64_t begin, int64_t end, DType dtype) {
    int dim = norm->dim;
    for (int64_t row = begin; row < end; row++) {
        const void *in = cpu_at(norm->residual, row * dim, dtype);
        VecSum squares = {0};
        if (norm->branch) {
            const void *branch = cpu_at(norm->branch, row * dim, dtype);
            void *sum = cpu_at_mut(norm->sum, row * dim, dtype);
            VEC_FOR(i, n, dim) {
                vec_put(sum, i, n, dtype, vec_get(in, i, n, dtype) + vec_get(branch, i, n, dtype));
                Vec x = vec_get(sum, i, n, dtype); // as stored: the backward pass sees the same
                vec_sum_add(&squares, x * x);
            }
            in = sum;
        } else {
            VEC_FOR(i, n, dim) {
                Vec x = vec_get(in, i, n, dtype);
                vec_sum_add(&squares, x * x);
            }
        }
        float rstd = (float)(1.0 / sqrt(vec_sum_total(&squares) / dim + (double)norm->eps));
        norm->rstd_out[row] = rstd;
        void *out = cpu_at_mut(norm->out, row * dim, dtype);
        VEC_FOR(i, n, dim)
        vec_put(out, i, n, dtype, vec_get(in, i, n, dtype) * rstd * weight_get(norm, i, n, dtype));
    }
}

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Norm *norm = context;
    VEC_BY_STORAGE(norm->dtype, forward_rows, norm, begin, end);
}

static void cpu_add_rmsnorm_forward(Ops *ops, Tensor out, Tensor sum, Tensor rstd, Tensor residual, Tensor branch,
                                    Tensor weight, float eps) {
    CPU_TIMED(ops, OP_ADD_RMSNORM_FORWARD);
    Norm norm = {.out = out.data,
                 .sum = sum.data,
                 .rstd_out = rstd.data,
                 .residual = residual.data,
                 .branch = branch.data,
                 .weight = weight.data,
                 .eps = eps,
                 .dim = (int)out.cols,
                 .dtype = out.dtype};
    threads_for(out.rows, cpu_row_chunk(norm.dim), forward_task, &norm);
}

// ---- backward: with y = x r w, dw += dy y / w and dx = r (dy w - y / w mean(dy y)) ----------------------------------

VEC_INLINE void backward_rows(const Norm *norm, int64_t begin, int64_t end, DType dtype) {
    int dim = norm->dim;
    double *partial = norm->partial + begin / norm->part_rows * dim;
    memset(partial, 0, (size_t)dim * sizeof(double));
    for (int64_t row = begin; row < end; row++) {
        const void *y = cpu_at(norm->normed, row * dim, dtype), *dout = cpu_at(norm->dout, row * dim, dtype);
        void *dsum = cpu_at_mut(norm->dsum, row * dim, dtype);
        float rstd = norm->rstd[row];
        VecSum dot = {0};
        VEC_FOR(i, n, dim) {
            Vec product = vec_get(dout, i, n, dtype) * vec_get(y, i, n, dtype);
            vec_add_to_doubles(partial, i, n, product / weight_get(norm, i, n, dtype));
            vec_sum_add(&dot, product);
        }
        float mean = (float)(vec_sum_total(&dot) / dim);
        VEC_FOR(i, n, dim) {
            Vec w = weight_get(norm, i, n, dtype), hat = vec_get(y, i, n, dtype) / w;
            Vec dx = rstd * (vec_get(dout, i, n, dtype) * w - hat * mean);
            if (!norm->dsum_is_zero) dx += vec_get(dsum, i, n, dtype);
            vec_put(dsum, i, n, dtype, dx);
        }
    }
}

static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Norm *norm = context;
    VEC_BY_STORAGE(norm->dtype, backward_rows, norm, begin, end);
}

static void cpu_add_rmsnorm_backward(Ops *ops, Tensor dsum, Tensor dweight, Tensor dout, Tensor out, Tensor rstd,
                                     Tensor weight, bool dsum_is_zero) {
    CPU_TIMED(ops, OP_ADD_RMSNORM_BACKWARD);
    int64_t rows = out.rows;
    int dim = (int)out.cols;
    CpuScratch scratch = cpu_scratch(cpu_of(ops), (size_t)CPU_PARTS * (size_t)dim * sizeof(double), 0);
    Norm norm = {.dsum = dsum.data,
                 .dout = dout.data,
                 .normed = out.data,
                 .rstd = rstd.data,
                 .weight = weight.data,
                 .dsum_is_zero = dsum_is_zero,
                 .partial = (double *)scratch.shared,
                 .part_rows = cpu_part_rows(rows),
                 .dim = dim,
                 .dtype = out.dtype};
    threads_for(rows, norm.part_rows, backward_task, &norm);
    cpu_add_parts(dweight.data, norm.partial, cpu_part_count(rows), dim, dim);
}

void cpu_install_norm(Ops *ops) {
    ops->add_rmsnorm_forward = cpu_add_rmsnorm_forward;
    ops->add_rmsnorm_backward = cpu_add_rmsnorm_backward;
}
