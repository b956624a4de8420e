// Row-wise operations of the CPU table against float64: exponential, casts, sums, embedding, norms, rotary, SwiGLU,
// cross entropy.
#include "oracle.h"

#include "ops/cpu/vec.h"

static const int dims[] = {1, 7, 8, 16, 33, 56, 64, 129, 256, 1000};
enum { DIMS = sizeof dims / sizeof *dims };

static void exponential_is_within_2_ulp_of_libm(void **state) {
    (void)state;
    double worst = 0;
    for (int64_t step = 0; step < 2000000; step++) {
        float x = (float)(-87.3 + 176.0 * (double)step / 2000000.0), got[VEC_LANES];
        vec_put(got, 0, VEC_LANES, DTYPE_F32, vec_exp(vec_all(x)));
        double want = exp((double)x);
        if (want > 3.4028234e38) {
            assert_true(isinf(got[0]) || got[0] > 3.40282e38f);
            continue;
        }
        double ulp = ldexp(1, ilogb(want) - 23);
        worst = fmax(worst, fabs((double)got[0] - want) / ulp);
    }
    print_message("exp: worst error %.3f ulp\n", worst);
    assert_true(worst <= 2);
}

static void exponential_handles_the_ends(void **state) {
    (void)state;
    const float in[] = {-INFINITY, -1e30f, -104.0f, -100.0f, 0.0f, 88.72283f, 88.8f, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        Vec got = vec_exp(vec_all(in[i]));
        float want = expf(in[i]);
        if (isinf(want))
            assert_true(got[0] == want);
        else
            assert_true(fabsf(got[0] - want) <= 2 * 0x1p-23f * want + 0x1p-149f);
    }
    assert_true(isnan(vec_exp(vec_all(NAN))[0]));
    assert_true(vec_exp(vec_all(-INFINITY))[0] == 0);
}

static void casts_round_to_nearest_even_and_keep_nan(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    for (int64_t count = 1; count < 40; count++) {
        Tensor in = tensor_normal(DTYPE_F32, count, 100, 0), half = tensor_poison(DTYPE_BF16, count);
        Tensor back = tensor_poison(DTYPE_F32, count);
        float *x = in.data;
        if (count > 4)
            x[0] = 1.00390625f, x[1] = 1.01171875f, x[2] = NAN, x[3] = -INFINITY; // two exact halves: down, up
        ops->cast(ops, half.data, DTYPE_BF16, in.data, DTYPE_F32, count);
        ops->cast(ops, back.data, DTYPE_F32, half.data, DTYPE_BF16, count);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(((bf16 *)half.data)[i], bf16_from_f32(x[i]));
            if (isnan(x[i]))
                assert_true(isnan(((float *)back.data)[i]));
            else
                assert_true(((float *)back.data)[i] == bf16_to_f32(bf16_from_f32(x[i])));
        }
        tensors_free(&in, &half, &back);
    }
    oracle_ops_free(ops);
}

static void sums_and_norms_match_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    const int64_t counts[] = {0, 1, 15, 17, 4095, 4097, 100001, 5000011};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        Tensor in = tensor_normal(DTYPE_F32, counts[i], 1, 0.5);
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < in.count; j++)
            sum += in.value[j], squares += in.value[j] * in.value[j];
        Tensor out = tensor_poison(DTYPE_F32, 1);
        ops->sum_f32(ops, out.data, in.data, in.count, false);
        tensor_check("sum", &out, &sum, 0); // doubles inside: no growth with the length
        ops->sum_f32(ops, out.data, in.data, in.count, true);
        sum *= 2;
        tensor_check("accumulated sum", &out, &sum, 0);
        ops->norm_f32(ops, out.data, in.data, in.count);
        squares = sqrt(squares);
        tensor_check("norm", &out, &squares, 0);
        tensors_free(&in, &out);
    }
    Tensor fill = tensor_poison(DTYPE_F32, 40001);
    ops->fill_f32(ops, fill.data, 2.5f, fill.count);
    for (int64_t i = 0; i < fill.count; i++)
        assert_true(((float *)fill.data)[i] == 2.5f);
    tensor_free(&fill);
    oracle_ops_free(ops);
}

static void embedding_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 2 * DIMS; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        int64_t dim = dims[i / 2], rows = 131, vocab = 37;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        int32_t *tokens = ids(rows, (int)vocab);
        Tensor weight = tensor_normal(dtype, vocab * dim, 1, 0), out = tensor_poison(dtype, rows * dim);
        Tensor dout = tensor_normal(dtype, rows * dim, 1, 0), dweight = tensor_normal(DTYPE_F32, vocab * dim, 1, 0);
        double *want = dweight.value;
        dweight.value = doubles(dweight.count);
        ops->embedding_forward(ops, out.data, tokens, weight.data, rows, (int)dim, dtype);
        ops->embedding_backward(ops, dweight.data, dout.data, tokens, rows, (int)dim, (int)vocab, dtype);
        tensor_read(&out);
        for (int64_t j = 0; j < rows * dim; j++) {
            assert_true(out.value[j] == weight.value[tokens[j / dim] * dim + j % dim]);
            want[tokens[j / dim] * dim + j % dim] += dout.value[j];
        }
        tensor_check("embedding dweight", &dweight, want, rows / vocab);
        tensors_free(&weight, &out, &dout, &dweight);
        free(want), free(tokens);
        oracle_ops_free(ops);
    }
}

// ---- norms ----------------------------------------------------------------------------------------------------------

static void add_rmsnorm_forward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 6 * DIMS; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        int mode = i / 2 % 3; // 0: no branch, 1: sum on its own, 2: sum is residual
        int64_t dim = dims[i / 6], rows = 67;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        Tensor residual = tensor_normal(dtype, rows * dim, 1, 0.1), branch = tensor_normal(dtype, rows * dim, 1, 0);
        Tensor weight = tensor_normal(dtype, dim, 0.3, 1), rstd = tensor_poison(DTYPE_F32, rows);
        Tensor out = tensor_poison(dtype, rows * dim), sum = tensor_poison(dtype, rows * dim);
        double *want = doubles(out.count), *rstd_want = doubles(rows), *sum_want = doubles(out.count);
        for (int64_t j = 0; j < out.count; j++)
            sum_want[j] = residual.value[j] + (mode ? branch.value[j] : 0);
        ops->add_rmsnorm_forward(ops, out.data,
                                 mode == 1   ? sum.data
                                 : mode == 2 ? residual.data
                                             : NULL,
                                 rstd.data, residual.data, mode ? branch.data : NULL, weight.data, rows, (int)dim,
                                 1e-5f, dtype);
        Tensor *summed = mode == 1 ? &sum : &residual;
        tensor_check("sum", summed, sum_want, 0);
        // The norm is of the sum as stored.
        oracle_rmsnorm(want, rstd_want, summed->value, weight.value, rows, (int)dim, 1e-5);
        tensor_check("rstd", &rstd, rstd_want, 0);
        tensor_check("normed", &out, want, 0);
        tensors_free(&residual, &branch, &weight, &rstd, &out, &sum);
        free(want), free(rstd_want), free(sum_want);
        oracle_ops_free(ops);
    }
}

// From the norm's result, which may have been rounded.
static void norm_backward_wanted(double *dsum, double *dweight, const double *dout, const double *out,
                                 const double *rstd, const double *weight, int64_t rows, int64_t dim) {
    for (int64_t row = 0; row < rows; row++) {
        const double *y = out + row * dim, *dy = dout + row * dim;
        double mean = 0;
        for (int64_t i = 0; i < dim; i++)
            mean += dy[i] * y[i] / (double)dim;
        for (int64_t i = 0; i < dim; i++) {
            dsum[row * dim + i] += rstd[row] * (dy[i] * weight[i] - y[i] / weight[i] * mean);
            dweight[i] += dy[i] * y[i] / weight[i];
        }
    }
}

static void add_rmsnorm_backward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 4 * DIMS; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        bool zero = i / 2 % 2;
        int64_t dim = dims[i / 4], rows = 131;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        Tensor sum = tensor_normal(dtype, rows * dim, 1, 0.1), weight = tensor_normal(dtype, dim, 0.3, 1);
        Tensor dout = tensor_normal(dtype, rows * dim, 1, 0), dweight = tensor_normal(DTYPE_F32, dim, 1, 0);
        Tensor dsum = zero ? tensor_poison(dtype, rows * dim) : tensor_normal(dtype, rows * dim, 1, 0);
        double *normed = doubles(sum.count), *rstd_want = doubles(rows), *dsum_want = doubles(sum.count);
        double *dweight_want = doubles(dim);
        oracle_rmsnorm(normed, rstd_want, sum.value, weight.value, rows, (int)dim, 1e-5);
        Tensor out = tensor_of(dtype, sum.count, normed), rstd = tensor_of(DTYPE_F32, rows, rstd_want);
        if (!zero) memcpy(dsum_want, dsum.value, (size_t)dsum.count * sizeof(double));
        memcpy(dweight_want, dweight.value, (size_t)dim * sizeof(double));
        if (dtype == DTYPE_F32) // not worth telling apart from the input's own
            oracle_rmsnorm_backward(dsum_want, dweight_want, dout.value, sum.value, weight.value, rows, (int)dim, 1e-5);
        else
            norm_backward_wanted(dsum_want, dweight_want, dout.value, out.value, rstd.value, weight.value, rows, dim);
        ops->add_rmsnorm_backward(ops, dsum.data, dweight.data, dout.data, out.data, rstd.data, weight.data, rows,
                                  (int)dim, zero, dtype);
        // A row of one element has its gradient cancel to almost nothing: compare with the terms, not with their
        // difference.
        if (dim > 1) tensor_check("dsum", &dsum, dsum_want, 8);
        tensor_check("dweight", &dweight, dweight_want, 8);
        tensors_free(&sum, &weight, &dout, &out, &dweight, &dsum, &rstd);
        free(normed), free(rstd_want), free(dsum_want), free(dweight_want);
        oracle_ops_free(ops);
    }
}

// What the weights at zero let through is too little to see, and enough to get the input back.
static void rmsnorm_learns_through_weights_of_zero(void **state) {
    (void)state;
    enum { ROWS = 33, DIM = 40 };
    for (int i = 0; i < 2; i++) {
        DType dtype = i ? DTYPE_BF16 : DTYPE_F32;
        Ops *ops = oracle_ops(1, DIM, 0, 1, 8, 0);
        Tensor in = tensor_normal(dtype, ROWS * DIM, 1, 0), dout = tensor_normal(dtype, ROWS * DIM, 1, 0);
        Tensor weight = tensor_zero(dtype, DIM), out = tensor_poison(dtype, ROWS * DIM);
        Tensor rstd = tensor_poison(DTYPE_F32, ROWS), dweight = tensor_zero(DTYPE_F32, DIM);
        Tensor dsum = tensor_poison(dtype, ROWS * DIM);
        double *none = doubles(ROWS * DIM), *dweight_want = doubles(DIM);
        oracle_rmsnorm_backward(none, dweight_want, dout.value, in.value, none, ROWS, DIM, 1e-5);
        ops->add_rmsnorm_forward(ops, out.data, NULL, rstd.data, in.data, NULL, weight.data, ROWS, DIM, 1e-5f, dtype);
        tensor_read(&out);
        for (int64_t j = 0; j < out.count; j++)
            assert_true(fabs(out.value[j]) < 1e-16);
        ops->add_rmsnorm_backward(ops, dsum.data, dweight.data, dout.data, out.data, rstd.data, weight.data, ROWS, DIM,
                                  true, dtype);
        tensor_read(&dweight);
        for (int j = 0; j < DIM; j++) // the sum of some 33 numbers of size 1, each as exact as the type
            assert_true(fabs(dweight.value[j] - dweight_want[j]) < (i ? 0x1p-9 : 0x1p-22) * 33);
        tensors_free(&in, &dout, &weight, &out, &rstd, &dweight, &dsum);
        free(none), free(dweight_want);
        oracle_ops_free(ops);
    }
}

// ---- rotary ---------------------------------------------------------------------------------------------------------

typedef struct RopeCase {
    int batch, seq, first, heads, kv_heads, head_dim;
} RopeCase;
static const RopeCase ropes[] = {{1, 1, 0, 1, 1, 8}, {2, 65, 0, 4, 2, 56}, {1, 129, 3, 9, 1, 16}, {3, 17, 5, 2, 2, 64}};

static void rope_tables(Tensor *cos_table, Tensor *sin_table, int positions, int head_dim) {
    int half = head_dim / 2;
    double *c = doubles((int64_t)positions * half), *s = doubles((int64_t)positions * half);
    for (int i = 0; i < positions * half; i++) {
        double angle = (i / half) * pow(10000, -(double)(i % half) / half);
        c[i] = cos(angle), s[i] = sin(angle);
    }
    *cos_table = tensor_of(DTYPE_F32, (int64_t)positions * half, c);
    *sin_table = tensor_of(DTYPE_F32, (int64_t)positions * half, s);
    free(c), free(s);
}

// Normed heads of x, per token and head, gathered from rows of `stride`.
static void norm_heads(double *out, double *rstd, const double *in, int64_t stride, const QkRopeShape *shape,
                       const double *q_weight, const double *k_weight) {
    int all = shape->heads + shape->kv_heads;
    for (int64_t t = 0; t < shape->tokens; t++)
        for (int h = 0; h < all; h++)
            oracle_rmsnorm(out + (t * all + h) * shape->head_dim, rstd + t * all + h,
                           in + t * stride + (int64_t)h * shape->head_dim, h < shape->heads ? q_weight : k_weight, 1,
                           shape->head_dim, (double)shape->eps);
}

static void qk_rope_forward_and_backward_match_float64(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        bool norm = i / 2 % 2;
        const RopeCase *c = &ropes[i / 4];
        int64_t tokens = (int64_t)c->batch * c->seq, all = c->heads + c->kv_heads, width = all * c->head_dim;
        int64_t stride = width + 24, count = tokens * stride;
        Ops *ops = oracle_ops(c->seq, 1, 0, 1, c->head_dim, 0);
        Tensor cosines, sines, q_weight = tensor_normal(dtype, c->head_dim, 0.3, 1);
        Tensor k_weight = tensor_normal(dtype, c->head_dim, 0.3, 1);
        rope_tables(&cosines, &sines, c->first + c->seq, c->head_dim);
        QkRopeShape shape = {tokens,       c->seq,     c->first, c->heads, c->kv_heads, c->head_dim,
                             cosines.data, sines.data, NULL,     NULL,     1e-6f};
        if (norm) shape.q_weight = q_weight.data, shape.k_weight = k_weight.data;
        Tensor in = tensor_normal(dtype, count, 1, 0), out = tensor_poison(dtype, tokens * width);
        Tensor rstd = tensor_poison(DTYPE_F32, tokens * all);
        double *want = doubles(out.count), *rstd_want = doubles(rstd.count);
        for (int64_t t = 0; t < tokens; t++)
            memcpy(want + t * width, in.value + t * stride, (size_t)width * sizeof(double));
        if (norm) norm_heads(want, rstd_want, in.value, stride, &shape, q_weight.value, k_weight.value);
        oracle_rope(want, &shape, width, false);
        ops->qk_rope_forward(ops, out.data, width, in.data, stride, rstd.data, &shape, dtype);
        tensor_check("rope out", &out, want, 8);
        if (norm) tensor_check("rope rstd", &rstd, rstd_want, 0);
        if (!norm) { // in place, with other columns beside the heads left alone
            Tensor same = tensor_copy(&in);
            ops->qk_rope_forward(ops, same.data, stride, same.data, stride, NULL, &shape, dtype);
            tensor_read(&same);
            for (int64_t j = 0; j < count; j++)
                assert_true(same.value[j] ==
                            (j % stride < width ? out.value[j / stride * width + j % stride] : in.value[j]));
            tensor_free(&same);
        }
        // backward
        Tensor grad = tensor_normal(dtype, count, 1, 0), kept = tensor_copy(&grad);
        Tensor dq_weight = tensor_normal(DTYPE_F32, c->head_dim, 1, 0),
               dk_weight = tensor_normal(DTYPE_F32, c->head_dim, 1, 0);
        double *dq_want = doubles(c->head_dim), *dk_want = doubles(c->head_dim), *turned = doubles(count);
        memcpy(dq_want, dq_weight.value, (size_t)c->head_dim * sizeof(double));
        memcpy(dk_want, dk_weight.value, (size_t)c->head_dim * sizeof(double));
        memcpy(turned, grad.value, (size_t)count * sizeof(double));
        oracle_rope(turned, &shape, stride, true);
        double *grad_want = doubles(count);
        memcpy(grad_want, turned, (size_t)count * sizeof(double));
        if (norm)
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t h = 0; h < all; h++) {
                    int64_t at = t * stride + h * c->head_dim;
                    memset(grad_want + at, 0, (size_t)c->head_dim * sizeof(double));
                    oracle_rmsnorm_backward(grad_want + at, h < c->heads ? dq_want : dk_want, turned + at,
                                            in.value + at, h < c->heads ? q_weight.value : k_weight.value, 1,
                                            c->head_dim, 1e-6);
                }
        ops->qk_rope_backward(ops, grad.data, stride, norm ? in.data : NULL, stride, rstd.data,
                              norm ? dq_weight.data : NULL, norm ? dk_weight.data : NULL, &shape, dtype);
        tensor_check("rope grad", &grad, grad_want, 8);
        for (int64_t j = 0; j < count; j++)
            if (j % stride >= width) assert_true(grad.value[j] == kept.value[j]);
        tensor_check("dq_weight", &dq_weight, dq_want, 16);
        tensor_check("dk_weight", &dk_weight, dk_want, 16);
        tensors_free(&cosines, &sines, &q_weight, &k_weight, &in, &out, &rstd, &grad, &kept, &dq_weight, &dk_weight);
        free(want), free(rstd_want), free(dq_want), free(dk_want), free(turned), free(grad_want);
        oracle_ops_free(ops);
    }
}

static void linear_rope_rotates_queries_and_keys_only(void **state) {
    (void)state;
    enum { SEQ = 17, TOKENS = 3 * SEQ, FIRST = 5, IN = 24, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16 };
    enum { WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM, N = TOKENS * WIDTH };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    DType dtype = DTYPE_F32; // in bf16 the parts round between them; each is checked on its own
    Tensor cosines, sines, in = tensor_normal(dtype, TOKENS * IN, 1, 0);
    Tensor weight = tensor_normal(dtype, WIDTH * IN, 0.2, 0), out = tensor_poison(dtype, N);
    rope_tables(&cosines, &sines, FIRST + SEQ, HEAD_DIM);
    QkRopeShape shape = {TOKENS, SEQ, FIRST, HEADS, KV_HEADS, HEAD_DIM, cosines.data, sines.data, NULL, NULL, 0};
    double *want = doubles(N);
    oracle_matmul(want, in.value, IN, 1, weight.value, 1, IN, TOKENS, WIDTH, IN);
    oracle_rope(want, &shape, WIDTH, false);
    ops->linear_rope_forward(ops, out.data, in.data, weight.data, IN, &shape, dtype);
    tensor_check("queries, keys and values", &out, want, 8 * IN);
    tensors_free(&cosines, &sines, &in, &weight, &out);
    free(want);
    oracle_ops_free(ops);
}

// ---- SwiGLU and cross entropy ---------------------------------------------------------------------------------------

static void swiglu_matches_float64_and_leaves_rows_beyond_the_count(void **state) {
    (void)state;
    for (int i = 0; i < 8 * DIMS; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        bool counted = i / 2 % 2, in_place = i / 4 % 2;
        int64_t dim = dims[i / 8], rows = 37, used = counted ? 30 : rows;
        int32_t row_count = (int32_t)used;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Tensor gate_up = tensor_normal(dtype, rows * 2 * dim, 3, 0), weight = tensor_normal(DTYPE_F32, rows, 1, 0);
        Tensor dout = tensor_normal(dtype, rows * dim, 1, 0), out = tensor_poison(dtype, rows * dim);
        Tensor again = tensor_poison(dtype, rows * dim), dgate_up = tensor_poison(dtype, rows * 2 * dim);
        Tensor drow = tensor_poison(DTYPE_F32, rows);
        double *want = doubles(rows * dim), *dwant = doubles(rows * 2 * dim), *drow_want = doubles(rows);
        double *terms = doubles(rows);
        for (int64_t j = 0; j < used * dim; j++) {
            int64_t row = j / dim, at = row * 2 * dim + j % dim;
            double g = gate_up.value[at], u = gate_up.value[at + dim], w = weight.value[row];
            want[j] = w * oracle_silu(g) * u;
            dwant[at] = dout.value[j] * w * u * oracle_silu_slope(g);
            dwant[at + dim] = dout.value[j] * w * oracle_silu(g);
            drow_want[row] += dout.value[j] * oracle_silu(g) * u;
            terms[row] += fabs(dout.value[j] * oracle_silu(g) * u);
        }
        const int32_t *count = counted ? &row_count : NULL;
        ops->swiglu_forward(ops, out.data, gate_up.data, weight.data, count, rows, (int)dim, dtype);
        Tensor *d = in_place ? &gate_up : &dgate_up, *o = in_place ? &dout : &again;
        double *d_before = doubles(d->count);
        memcpy(d_before, d->value, (size_t)d->count * sizeof(double));
        ops->swiglu_backward(ops, d->data, o->data, drow.data, gate_up.data, dout.data, weight.data, count, rows,
                             (int)dim, dtype);
        tensor_read(&out);
        tensor_read(&drow);
        for (int64_t j = used * dim; j < rows * dim; j++)
            assert_true(isnan(out.value[j]));
        out.count = o->count = used * dim, d->count = used * 2 * dim;
        tensor_check("swiglu", &out, want, 0);
        tensor_check("swiglu again", o, want, 0);
        tensor_check("dgate_up", d, dwant, 0);
        for (int64_t row = 0; row < rows; row++) {
            if (row < used)
                assert_true(fabs(drow.value[row] - drow_want[row]) <= 16 * 0x1p-24 * terms[row]);
            else
                assert_true(isnan(drow.value[row]));
        }
        d->count = rows * 2 * dim;
        tensor_read(d);
        for (int64_t j = used * 2 * dim; j < rows * 2 * dim; j++)
            assert_true(in_place ? d->value[j] == d_before[j] : isnan(d->value[j]));
        tensors_free(&gate_up, &weight, &dout, &out, &again, &dgate_up, &drow);
        free(want), free(dwant), free(drow_want), free(d_before), free(terms);
        oracle_ops_free(ops);
    }
}

// Through the forward pass and back, gates at, near and far from zero: up must come back however small silu(gate) is.
static void swiglu_packed_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 4 * DIMS; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        bool in_place = i / 2 % 2;
        int64_t dim = dims[i / 4], rows = 37, n = rows * dim;
        double unit = dtype == DTYPE_F32 ? 0x1p-21 : 0x1p-7, *gate_up_values = doubles(2 * n);
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Tensor draws = tensor_normal(dtype, 2 * n, 3, 0), dhidden = tensor_normal(dtype, n, 1, 0);
        static const double special[] = {0, -1e-25, -60};
        for (int64_t j = 0; j < 2 * n; j++)
            gate_up_values[j] = j / dim % 2 == 0 && j % 7 < 3 ? special[j % 7] : draws.value[j];
        Tensor packed = tensor_of(dtype, 2 * n, gate_up_values), dgate_up = tensor_poison(dtype, 2 * n);
        ops->swiglu_packed_forward(ops, packed.data, rows, (int)dim, dtype);
        tensor_read(&packed);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = j / dim * 2 * dim + j % dim;
            double g = packed.value[at], want = oracle_silu(g) * gate_up_values[at + dim];
            assert_true(fabs(packed.value[at + dim] - want) <= unit * fabs(want) + 1e-17);
        }
        Tensor *d = in_place ? &packed : &dgate_up;
        double *gate = doubles(n);
        for (int64_t j = 0; j < n; j++)
            gate[j] = packed.value[j / dim * 2 * dim + j % dim];
        ops->swiglu_packed_backward(ops, d->data, packed.data, dhidden.data, rows, (int)dim, dtype);
        tensor_read(d);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = j / dim * 2 * dim + j % dim;
            double dh = dhidden.value[j], u = gate_up_values[at + dim];
            double dgate = dh * u * oracle_silu_slope(gate[j]), dup = dh * oracle_silu(gate[j]);
            // The slope's terms cancel at its zero: compare with them.
            double terms = fabs(dh * u) * (fabs(oracle_silu_slope(gate[j])) + fabs(oracle_silu(gate[j])));
            assert_true(fabs(d->value[at] - dgate) <= 2 * unit * terms + 1e-17);
            assert_true(fabs(d->value[at + dim] - dup) <= unit * fabs(dup) + 1e-17);
        }
        tensors_free(&draws, &dhidden, &packed, &dgate_up);
        free(gate_up_values), free(gate);
        oracle_ops_free(ops);
    }
}

static void cross_entropy_matches_float64(void **state) {
    (void)state;
    const int vocabs[] = {1, 2, 17, 64, 1001, 32003};
    for (int i = 0; i < 12; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        int64_t vocab = vocabs[i / 2], rows = 9;
        float scale = 0.125f;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Tensor logits = tensor_normal(dtype, rows * vocab, 4, 3), kept = tensor_copy(&logits);
        Tensor losses = tensor_poison(DTYPE_F32, rows);
        int32_t *targets = ids(rows, (int)vocab);
        targets[3] = -100;
        double *want = doubles(logits.count), *loss_want = doubles(rows);
        for (int64_t row = 0; row < rows; row++) {
            const double *x = logits.value + row * vocab;
            double highest = -INFINITY, sum = 0;
            if (targets[row] < 0) continue;
            for (int64_t j = 0; j < vocab; j++)
                highest = fmax(highest, x[j]);
            for (int64_t j = 0; j < vocab; j++)
                sum += exp(x[j] - highest);
            loss_want[row] = log(sum) + highest - x[targets[row]];
            for (int64_t j = 0; j < vocab; j++)
                want[row * vocab + j] = (double)scale * (exp(x[j] - highest) / sum - (j == targets[row]));
        }
        ops->cross_entropy(ops, losses.data, logits.data, targets, NULL, rows, (int)vocab, dtype);
        assert_memory_equal(logits.data, kept.data, (size_t)logits.count * dtype_size(dtype));
        tensor_check("evaluated loss", &losses, loss_want, 8);
        ops->cross_entropy(ops, losses.data, logits.data, targets, &scale, rows, (int)vocab, dtype);
        tensor_check("loss", &losses, loss_want, 8);
        // Each probability on its own, relative: rms would hide the small ones. e^x is good to 2 ulp, its sum to a few.
        tensor_read(&logits);
        for (int64_t j = 0; j < logits.count; j++) {
            double unit = dtype == DTYPE_F32 ? 0 : 0x1p-8;
            assert_true(fabs(logits.value[j] - want[j]) <= (unit + 8 * 0x1p-23) * fabs(want[j]) + 0x1p-24 * 1e-6);
        }
        tensors_free(&logits, &kept, &losses);
        free(want), free(loss_want), free(targets);
        oracle_ops_free(ops);
    }
}

static void linear_swiglu_matches_float64(void **state) {
    (void)state;
    enum { ROWS = 65, IN = 24, DIM = 40, NEXT = 32, N = ROWS * DIM };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    DType dtype = DTYPE_F32; // in bf16 the parts round between them; each is checked on its own
    Tensor in = tensor_normal(dtype, ROWS * IN, 1, 0), weight = tensor_normal(dtype, 2 * DIM * IN, 0.2, 0);
    Tensor next = tensor_normal(dtype, ROWS * NEXT, 1, 0), down = tensor_normal(dtype, NEXT * DIM, 0.2, 0);
    Tensor packed = tensor_poison(dtype, 2 * N), scratch = tensor_poison(dtype, N);
    double *sums = doubles(2 * N), *want = doubles(2 * N), *dhidden = doubles(N);
    oracle_matmul(sums, in.value, IN, 1, weight.value, 1, IN, ROWS, 2 * DIM, IN);
    oracle_matmul(dhidden, next.value, NEXT, 1, down.value, DIM, 1, ROWS, DIM, NEXT);
    for (int i = 0; i < N; i++) {
        double gate = sums[i / DIM * 2 * DIM + i % DIM], up = sums[i / DIM * 2 * DIM + DIM + i % DIM];
        want[i / DIM * 2 * DIM + i % DIM] = gate;
        want[i / DIM * 2 * DIM + DIM + i % DIM] = gate / (1 + exp(-gate)) * up;
    }
    ops->linear_swiglu_forward(ops, packed.data, in.data, weight.data, ROWS, IN, DIM, dtype);
    tensor_check("gate and hidden", &packed, want, 8 * IN);
    for (int i = 0; i < N; i++) {
        double *gate = &sums[i / DIM * 2 * DIM + i % DIM], *up = gate + DIM, s = 1 / (1 + exp(-*gate)),
               silu = *gate * s;
        double dgate = dhidden[i] * *up * (s + silu * (1 - s));
        *up = dhidden[i] * silu;
        *gate = dgate;
    }
    ops->linear_swiglu_backward(ops, packed.data, scratch.data, packed.data, next.data, down.data, ROWS, DIM, NEXT,
                                dtype);
    tensor_check("dgate_up", &packed, sums, 8 * (IN + NEXT));
    tensors_free(&in, &weight, &next, &down, &packed, &scratch);
    free(sums), free(want), free(dhidden);
    oracle_ops_free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_within_2_ulp_of_libm),
        cmocka_unit_test(exponential_handles_the_ends),
        cmocka_unit_test(casts_round_to_nearest_even_and_keep_nan),
        cmocka_unit_test(sums_and_norms_match_float64),
        cmocka_unit_test(embedding_matches_float64),
        cmocka_unit_test(add_rmsnorm_forward_matches_float64),
        cmocka_unit_test(add_rmsnorm_backward_matches_float64),
        cmocka_unit_test(rmsnorm_learns_through_weights_of_zero),
        cmocka_unit_test(qk_rope_forward_and_backward_match_float64),
        cmocka_unit_test(linear_rope_rotates_queries_and_keys_only),
        cmocka_unit_test(swiglu_matches_float64_and_leaves_rows_beyond_the_count),
        cmocka_unit_test(swiglu_packed_matches_float64),
        cmocka_unit_test(linear_swiglu_matches_float64),
        cmocka_unit_test(cross_entropy_matches_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
