// Row-wise operations of the CPU table against float64: exponential, conversions, sums, embedding, norms, rotary,
// SwiGLU, cross entropy.
#include "oracle.h"

#include "ops/cpu/cpu.h"
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

static void conversions_round_to_nearest_even_and_keep_nan(void **state) {
    (void)state;
    for (int64_t count = 1; count < 40; count++) {
        Values in = values_normal(DTYPE_F32, count, 100, 0), half = values_poison(DTYPE_BF16, count);
        Values back = values_poison(DTYPE_F32, count);
        float *x = in.data;
        if (count > 4)
            x[0] = 1.00390625f, x[1] = 1.01171875f, x[2] = NAN, x[3] = -INFINITY; // two exact halves: down, up
        cpu_from_floats(half.data, DTYPE_BF16, x, count);
        cpu_to_floats(back.data, half.data, DTYPE_BF16, count);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(((bf16 *)half.data)[i], bf16_from_f32(x[i]));
            if (isnan(x[i]))
                assert_true(isnan(((float *)back.data)[i]));
            else
                assert_true(((float *)back.data)[i] == bf16_to_f32(bf16_from_f32(x[i])));
        }
        values_free(&in, &half, &back);
    }
}

// Every f16 there is, both ways, by the CPU's conversions (of the table, which is compiled for this CPU) and by the
// bits; and floats between two of them, where the upper half of the way and the exact middle decide.
static void f16_conversions_are_those_of_the_bits(void **state) {
    (void)state;
    enum { CODES = 1 << 16 };
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    Values half = values_zero(DTYPE_F16, CODES), wide = values_poison(DTYPE_F32, CODES);
    for (int shift = 0; shift < 4; shift++) { // the number itself, and from it up to the next one
        for (int code = 0; code < CODES; code++)
            ((uint16_t *)half.data)[code] = (uint16_t)code;
        ops->convert(ops, view(&wide, 1, CODES), view(&half, 1, CODES), false);
        for (int code = 0; code < CODES; code++) {
            float want = f16_to_f32((uint16_t)code), up = f16_to_f32((uint16_t)(code + 1)),
                  *x = (float *)wide.data + code;
            float middle = want + (up - want) / 2;
            assert_true(isnan(want) ? isnan(*x) : *x == want);
            if (shift && !isnan(middle)) *x = shift == 1 ? middle : nextafterf(middle, shift == 2 ? want : up);
        }
        ops->convert(ops, view(&half, 1, CODES), view(&wide, 1, CODES), false);
        for (int code = 0; code < CODES; code++) {
            uint16_t got = ((uint16_t *)half.data)[code];
            float x = ((float *)wide.data)[code];
            assert_true(isnan(x) ? isnan(f16_to_f32(got)) : got == f16_from_f32(x));
        }
    }
    values_free(&half, &wide);
    oracle_ops_free(ops);
    for (uint32_t code = 0; code < 1 << 16; code += VEC_LANES) {
        uint16_t in[VEC_LANES];
        for (uint32_t lane = 0; lane < VEC_LANES; lane++)
            in[lane] = (uint16_t)(code + lane);
        VecHalf half;
        memcpy(&half, in, sizeof half);
        Vec fast = vec_from_f16(half), bits = vec_from_f16_bits(half);
        for (uint32_t lane = 0; lane < VEC_LANES; lane++) {
            float want = f16_to_f32(in[lane]), up = f16_to_f32((uint16_t)(in[lane] + 1)),
                  middle = want + (up - want) / 2;
            if (isnan(want)) {
                assert_true(isnan(fast[lane]) && isnan(bits[lane]));
                assert_true(isnan(f16_to_f32(vec_to_f16(vec_all(want))[0])));
                assert_true(isnan(f16_to_f32(vec_to_f16_bits(vec_all(want))[0])));
                continue;
            }
            assert_true(fast[lane] == want && bits[lane] == want && signbit(bits[lane]) == signbit(want));
            float tries[] = {want, middle, nextafterf(middle, want), nextafterf(middle, up), want * 1e8f};
            for (int i = 0; i < 5; i++) {
                if (isnan(tries[i])) continue; // between infinity and a NaN
                assert_int_equal(vec_to_f16(vec_all(tries[i]))[0], f16_from_f32(tries[i]));
                assert_int_equal(vec_to_f16_bits(vec_all(tries[i]))[0], f16_from_f32(tries[i]));
            }
        }
    }
}

static void long_rows_convert_in_every_element(void **state) {
    (void)state;
    const int64_t counts[] = {0, 1, 17, 200003}; // the last: several threads
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t count = counts[i];
        Values in = values_normal(DTYPE_F32, count, 100, 0), half = values_poison(DTYPE_BF16, count);
        Values back = values_poison(DTYPE_F32, count);
        if (count > 1) ((uint32_t *)in.data)[1] = 0x7fffffff; // a NaN that would become -0 by rounding
        ops->convert(ops, view(&half, 1, count), view(&in, 1, count), false);
        ops->convert(ops, view(&back, 1, count), view(&half, 1, count), false);
        for (int64_t j = 0; j < count; j++) {
            bf16 want = bf16_from_f32(((float *)in.data)[j]);
            assert_int_equal(((bf16 *)half.data)[j], want);
            if (isnan(((float *)in.data)[j]))
                assert_true(isnan(((float *)back.data)[j]));
            else
                assert_true(((float *)back.data)[j] == bf16_to_f32(want));
        }
        values_free(&in, &half, &back);
    }
    oracle_ops_free(ops);
}

static void sums_and_norms_match_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    const int64_t counts[] = {0, 1, 15, 17, 4095, 4097, 100001, 5000011};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        Values in = values_normal(DTYPE_F32, counts[i], 1, 0.5);
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < in.count; j++)
            sum += in.value[j], squares += in.value[j] * in.value[j];
        Values out = values_poison(DTYPE_F32, 1);
        Tensor x = view(&in, 1, in.count), total = view(&out, 1, 1);
        ops->sum_f32(ops, total, x, false);
        values_check("sum", &out, &sum, 0); // doubles inside: no growth with the length
        ops->sum_f32(ops, total, x, true);
        sum *= 2;
        values_check("accumulated sum", &out, &sum, 0);
        ops->norm_f32(ops, total, x);
        squares = sqrt(squares);
        values_check("norm", &out, &squares, 0);
        values_free(&in, &out);
    }
    oracle_ops_free(ops);
}

static void embedding_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3 * DIMS; i++) {
        DType dtype = storage_types[i % 3];
        int64_t dim = dims[i / 3], rows = 131, vocab = 37;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        int32_t *tokens = ids(rows, (int)vocab);
        Values weight = values_normal(dtype, vocab * dim, 1, 0), out = values_poison(dtype, rows * dim);
        Values dout = values_normal(dtype, rows * dim, 1, 0), dweight = values_normal(DTYPE_F32, vocab * dim, 1, 0);
        double *want = dweight.value;
        dweight.value = doubles(dweight.count);
        ops->embedding_forward(ops, view(&out, rows, dim), view_ints(tokens, rows, 1), view(&weight, vocab, dim), 0);
        ops->embedding_backward(ops, view(&dweight, vocab, dim), view(&dout, rows, dim), view_ints(tokens, rows, 1), 0);
        values_read(&out);
        for (int64_t j = 0; j < rows * dim; j++) {
            assert_true(out.value[j] == weight.value[tokens[j / dim] * dim + j % dim]);
            want[tokens[j / dim] * dim + j % dim] += dout.value[j];
        }
        values_check("embedding dweight", &dweight, want, rows / vocab);
        values_free(&weight, &out, &dout, &dweight);
        free(want), free(tokens);
        oracle_ops_free(ops);
    }
}

// ---- norms ----------------------------------------------------------------------------------------------------------

static void add_rmsnorm_forward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 9 * DIMS; i++) {
        DType dtype = storage_types[i % 3];
        int mode = i / 3 % 3; // 0: no branch, 1: sum on its own, 2: sum is residual
        int64_t dim = dims[i / 9], rows = 67;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        Values residual = values_normal(dtype, rows * dim, 1, 0.1), branch = values_normal(dtype, rows * dim, 1, 0);
        Values weight = values_normal(dtype, dim, 0.3, 1), rstd = values_poison(DTYPE_F32, rows);
        Values out = values_poison(dtype, rows * dim), sum = values_poison(dtype, rows * dim);
        double *want = doubles(out.count), *rstd_want = doubles(rows), *sum_want = doubles(out.count);
        for (int64_t j = 0; j < out.count; j++)
            sum_want[j] = residual.value[j] + (mode ? branch.value[j] : 0);
        Values *summed = mode == 1 ? &sum : &residual;
        ops->add_rmsnorm_forward(ops, view(&out, rows, dim), mode ? view(summed, rows, dim) : TENSOR_NONE,
                                 view(&rstd, rows, 1), view(&residual, rows, dim),
                                 mode ? view(&branch, rows, dim) : TENSOR_NONE, view(&weight, 1, dim), 1e-5f);
        values_check("sum", summed, sum_want, 0);
        // The norm is of the sum as stored.
        oracle_rmsnorm(want, rstd_want, summed->value, weight.value, rows, (int)dim, 1e-5);
        values_check("rstd", &rstd, rstd_want, 0);
        values_check("normed", &out, want, 0);
        values_free(&residual, &branch, &weight, &rstd, &out, &sum);
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
    for (int i = 0; i < 6 * DIMS; i++) {
        DType dtype = storage_types[i % 3];
        bool zero = i / 3 % 2;
        int64_t dim = dims[i / 6], rows = 131;
        Ops *ops = oracle_ops(1, (int)dim, 0, 1, 8, 0);
        Values sum = values_normal(dtype, rows * dim, 1, 0.1), weight = values_normal(dtype, dim, 0.3, 1);
        Values dout = values_normal(dtype, rows * dim, 1, 0), dweight = values_normal(DTYPE_F32, dim, 1, 0);
        Values dsum = zero ? values_poison(dtype, rows * dim) : values_normal(dtype, rows * dim, 1, 0);
        double *normed = doubles(sum.count), *rstd_want = doubles(rows), *dsum_want = doubles(sum.count);
        double *dweight_want = doubles(dim);
        oracle_rmsnorm(normed, rstd_want, sum.value, weight.value, rows, (int)dim, 1e-5);
        Values out = values_of(dtype, sum.count, normed), rstd = values_of(DTYPE_F32, rows, rstd_want);
        if (!zero) memcpy(dsum_want, dsum.value, (size_t)dsum.count * sizeof(double));
        memcpy(dweight_want, dweight.value, (size_t)dim * sizeof(double));
        if (dtype == DTYPE_F32) // not worth telling apart from the input's own
            oracle_rmsnorm_backward(dsum_want, dweight_want, dout.value, sum.value, weight.value, rows, (int)dim, 1e-5);
        else
            norm_backward_wanted(dsum_want, dweight_want, dout.value, out.value, rstd.value, weight.value, rows, dim);
        ops->add_rmsnorm_backward(ops, view(&dsum, rows, dim), view(&dweight, 1, dim), view(&dout, rows, dim),
                                  view(&out, rows, dim), view(&rstd, rows, 1), view(&weight, 1, dim), zero);
        // A row of one element has its gradient cancel to almost nothing: compare with the terms, not with their
        // difference.
        if (dim > 1) values_check("dsum", &dsum, dsum_want, 8);
        values_check("dweight", &dweight, dweight_want, 8);
        values_free(&sum, &weight, &dout, &out, &dweight, &dsum, &rstd);
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
        Values in = values_normal(dtype, ROWS * DIM, 1, 0), dout = values_normal(dtype, ROWS * DIM, 1, 0);
        Values weight = values_zero(dtype, DIM), out = values_poison(dtype, ROWS * DIM);
        Values rstd = values_poison(DTYPE_F32, ROWS), dweight = values_zero(DTYPE_F32, DIM);
        Values dsum = values_poison(dtype, ROWS * DIM);
        double *none = doubles(ROWS * DIM), *dweight_want = doubles(DIM);
        oracle_rmsnorm_backward(none, dweight_want, dout.value, in.value, none, ROWS, DIM, 1e-5);
        Tensor w = view(&weight, 1, DIM), o = view(&out, ROWS, DIM), r = view(&rstd, ROWS, 1);
        ops->add_rmsnorm_forward(ops, o, TENSOR_NONE, r, view(&in, ROWS, DIM), TENSOR_NONE, w, 1e-5f);
        values_read(&out);
        for (int64_t j = 0; j < out.count; j++)
            assert_true(fabs(out.value[j]) < 1e-16);
        ops->add_rmsnorm_backward(ops, view(&dsum, ROWS, DIM), view(&dweight, 1, DIM), view(&dout, ROWS, DIM), o, r, w,
                                  true);
        values_read(&dweight);
        for (int j = 0; j < DIM; j++) // the sum of some 33 numbers of size 1, each as exact as the type
            assert_true(fabs(dweight.value[j] - dweight_want[j]) < (i ? 0x1p-9 : 0x1p-22) * 33);
        values_free(&in, &dout, &weight, &out, &rstd, &dweight, &dsum);
        free(none), free(dweight_want);
        oracle_ops_free(ops);
    }
}

// ---- rotary ---------------------------------------------------------------------------------------------------------

typedef struct RopeCase {
    int batch, seq, first, heads, kv_heads, head_dim;
} RopeCase;
static const RopeCase ropes[] = {{1, 1, 0, 1, 1, 8}, {2, 65, 0, 4, 2, 56}, {1, 129, 3, 9, 1, 16}, {3, 17, 5, 2, 2, 64}};

static void rope_tables(Values *cos_table, Values *sin_table, int positions, int head_dim) {
    int half = head_dim / 2;
    double *c = doubles((int64_t)positions * half), *s = doubles((int64_t)positions * half);
    for (int i = 0; i < positions * half; i++) {
        double angle = (i / half) * pow(10000, -(double)(i % half) / half);
        c[i] = cos(angle), s[i] = sin(angle);
    }
    *cos_table = values_of(DTYPE_F32, (int64_t)positions * half, c);
    *sin_table = values_of(DTYPE_F32, (int64_t)positions * half, s);
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
    for (int i = 0; i < 24; i++) {
        DType dtype = storage_types[i % 3];
        bool norm = i / 3 % 2;
        const RopeCase *c = &ropes[i / 6];
        int64_t tokens = (int64_t)c->batch * c->seq, all = c->heads + c->kv_heads, width = all * c->head_dim;
        int64_t stride = width + 24, count = tokens * stride;
        Ops *ops = oracle_ops(c->seq, 1, 0, 1, c->head_dim, 0);
        Values cosines, sines, q_weight = values_normal(dtype, c->head_dim, 0.3, 1);
        Values k_weight = values_normal(dtype, c->head_dim, 0.3, 1);
        rope_tables(&cosines, &sines, c->first + c->seq, c->head_dim);
        QkRopeShape shape = {tokens,       c->seq,     c->first, c->heads, c->kv_heads, c->head_dim,
                             cosines.data, sines.data, NULL,     NULL,     1e-6f};
        if (norm) shape.q_weight = q_weight.data, shape.k_weight = k_weight.data;
        Values in = values_normal(dtype, count, 1, 0), out = values_poison(dtype, tokens * width);
        Values rstd = values_poison(DTYPE_F32, tokens * all);
        double *want = doubles(out.count), *rstd_want = doubles(rstd.count);
        for (int64_t t = 0; t < tokens; t++)
            memcpy(want + t * width, in.value + t * stride, (size_t)width * sizeof(double));
        if (norm) norm_heads(want, rstd_want, in.value, stride, &shape, q_weight.value, k_weight.value);
        oracle_rope(want, &shape, width, false);
        Rope rope = rope_of(&shape, dtype);
        Tensor heads_in = tensor_cols(view(&in, tokens, stride), 0, width);
        Tensor deviations = norm ? view(&rstd, tokens, all) : TENSOR_NONE;
        ops->qk_rope_forward(ops, view(&out, tokens, width), deviations, heads_in, &rope);
        values_check("rope out", &out, want, 8);
        if (norm) values_check("rope rstd", &rstd, rstd_want, 0);
        if (!norm) { // in place, with other columns beside the heads left alone
            Values same = values_copy(&in);
            Tensor heads = tensor_cols(view(&same, tokens, stride), 0, width);
            ops->qk_rope_forward(ops, heads, TENSOR_NONE, heads, &rope);
            values_read(&same);
            for (int64_t j = 0; j < count; j++)
                assert_true(same.value[j] ==
                            (j % stride < width ? out.value[j / stride * width + j % stride] : in.value[j]));
            values_free(&same);
        }
        // backward
        Values grad = values_normal(dtype, count, 1, 0), kept = values_copy(&grad);
        Values dq_weight = values_normal(DTYPE_F32, c->head_dim, 1, 0),
               dk_weight = values_normal(DTYPE_F32, c->head_dim, 1, 0);
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
        ops->qk_rope_backward(ops, tensor_cols(view(&grad, tokens, stride), 0, width),
                              norm ? view(&dq_weight, 1, c->head_dim) : TENSOR_NONE,
                              norm ? view(&dk_weight, 1, c->head_dim) : TENSOR_NONE, norm ? heads_in : TENSOR_NONE,
                              deviations, &rope);
        values_check("rope grad", &grad, grad_want, 8);
        for (int64_t j = 0; j < count; j++)
            if (j % stride >= width) assert_true(grad.value[j] == kept.value[j]);
        values_check("dq_weight", &dq_weight, dq_want, 16);
        values_check("dk_weight", &dk_weight, dk_want, 16);
        values_free(&cosines, &sines, &q_weight, &k_weight, &in, &out, &rstd, &grad, &kept, &dq_weight, &dk_weight);
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
    Values cosines, sines, in = values_normal(dtype, TOKENS * IN, 1, 0);
    Values weight = values_normal(dtype, WIDTH * IN, 0.2, 0), out = values_poison(dtype, N);
    rope_tables(&cosines, &sines, FIRST + SEQ, HEAD_DIM);
    QkRopeShape shape = {TOKENS, SEQ, FIRST, HEADS, KV_HEADS, HEAD_DIM, cosines.data, sines.data, NULL, NULL, 0};
    double *want = doubles(N);
    oracle_matmul(want, in.value, IN, 1, weight.value, 1, IN, TOKENS, WIDTH, IN);
    oracle_rope(want, &shape, WIDTH, false);
    Rope rope = rope_of(&shape, dtype);
    ops->linear_rope_forward(ops, view(&out, TOKENS, WIDTH), view(&in, TOKENS, IN), view(&weight, WIDTH, IN), &rope);
    values_check("queries, keys and values", &out, want, 8 * IN);
    values_free(&cosines, &sines, &in, &weight, &out);
    free(want);
    oracle_ops_free(ops);
}

// ---- SwiGLU and cross entropy ---------------------------------------------------------------------------------------

static void swiglu_matches_float64_and_leaves_rows_beyond_the_count(void **state) {
    (void)state;
    for (int i = 0; i < 12 * DIMS; i++) {
        DType dtype = storage_types[i % 3];
        bool counted = i / 3 % 2, in_place = i / 6 % 2;
        int64_t dim = dims[i / 12], rows = 37, used = counted ? 30 : rows;
        int32_t row_count = (int32_t)used;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values gate_up = values_normal(dtype, rows * 2 * dim, 3, 0), weight = values_normal(DTYPE_F32, rows, 1, 0);
        Values dout = values_normal(dtype, rows * dim, 1, 0), out = values_poison(dtype, rows * dim);
        Values again = values_poison(dtype, rows * dim), dgate_up = values_poison(dtype, rows * 2 * dim);
        Values drow = values_poison(DTYPE_F32, rows);
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
        Tensor count = counted ? view_ints(&row_count, 1, 1) : TENSOR_NONE, w = view(&weight, rows, 1);
        Tensor packed = view(&gate_up, rows, 2 * dim);
        ops->swiglu_forward(ops, view(&out, rows, dim), packed, w, count);
        Values *d = in_place ? &gate_up : &dgate_up, *o = in_place ? &dout : &again;
        double *d_before = doubles(d->count);
        memcpy(d_before, d->value, (size_t)d->count * sizeof(double));
        ops->swiglu_backward(ops, view(d, rows, 2 * dim), view(o, rows, dim), view(&drow, rows, 1), packed,
                             view(&dout, rows, dim), w, count);
        values_read(&out);
        values_read(&drow);
        for (int64_t j = used * dim; j < rows * dim; j++)
            assert_true(isnan(out.value[j]));
        out.count = o->count = used * dim, d->count = used * 2 * dim;
        values_check("swiglu", &out, want, 0);
        values_check("swiglu again", o, want, 0);
        values_check("dgate_up", d, dwant, 0);
        for (int64_t row = 0; row < rows; row++) {
            if (row < used)
                assert_true(fabs(drow.value[row] - drow_want[row]) <= 16 * 0x1p-24 * terms[row]);
            else
                assert_true(isnan(drow.value[row]));
        }
        d->count = rows * 2 * dim;
        values_read(d);
        for (int64_t j = used * 2 * dim; j < rows * 2 * dim; j++)
            assert_true(in_place ? d->value[j] == d_before[j] : isnan(d->value[j]));
        values_free(&gate_up, &weight, &dout, &out, &again, &dgate_up, &drow);
        free(want), free(dwant), free(drow_want), free(d_before), free(terms);
        oracle_ops_free(ops);
    }
}

// Through the forward pass and back, gates at, near and far from zero: up must come back however small silu(gate) is.
static void swiglu_packed_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 6 * DIMS; i++) {
        DType dtype = storage_types[i % 3];
        bool in_place = i / 3 % 2;
        int64_t dim = dims[i / 6], rows = 37, n = rows * dim;
        double unit = dtype == DTYPE_F32 ? 0x1p-21 : dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-7;
        // f16 stores what is small to half of 2^-24, and gates that are too near to zero for that count as 2^-14.
        double coarse = dtype == DTYPE_F16 ? 0x1p-25 : 1e-17, nearest = dtype == DTYPE_F16 ? 0x1p-14 : 0;
        double *gate_up_values = doubles(2 * n);
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values draws = values_normal(dtype, 2 * n, 3, 0), dhidden = values_normal(dtype, n, 1, 0);
        static const double special[] = {0, -1e-25, -60};
        for (int64_t j = 0; j < 2 * n; j++)
            gate_up_values[j] = j / dim % 2 == 0 && j % 7 < 3 ? special[j % 7] : draws.value[j];
        Values packed = values_of(dtype, 2 * n, gate_up_values), dgate_up = values_poison(dtype, 2 * n);
        ops->swiglu_packed_forward(ops, view(&packed, rows, 2 * dim));
        values_read(&packed);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = j / dim * 2 * dim + j % dim;
            double g = fabs(packed.value[at]) < nearest ? nearest : packed.value[at];
            double want = oracle_silu(g) * gate_up_values[at + dim];
            assert_true(fabs(packed.value[at + dim] - want) <= unit * fabs(want) + coarse);
        }
        Values *d = in_place ? &packed : &dgate_up;
        double *gate = doubles(n);
        for (int64_t j = 0; j < n; j++)
            gate[j] = packed.value[j / dim * 2 * dim + j % dim];
        for (int64_t j = 0; j < n; j++)
            if (fabs(gate[j]) < nearest) gate[j] = nearest;
        ops->swiglu_packed_backward(ops, view(d, rows, 2 * dim), view(&packed, rows, 2 * dim),
                                    view(&dhidden, rows, dim));
        values_read(d);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = j / dim * 2 * dim + j % dim;
            double dh = dhidden.value[j], u = gate_up_values[at + dim];
            double dgate = dh * u * oracle_silu_slope(gate[j]), dup = dh * oracle_silu(gate[j]);
            // The slope's terms cancel at its zero: compare with them.
            double terms = fabs(dh * u) * (fabs(oracle_silu_slope(gate[j])) + fabs(oracle_silu(gate[j])));
            // What hidden was rounded by is divided by the gate on the way back.
            double of_hidden = dtype == DTYPE_F16 ? coarse * fabs(dh) * (fabs(1 / gate[j]) + 1) : 0;
            assert_true(fabs(d->value[at] - dgate) <= 2 * unit * terms + of_hidden + coarse);
            assert_true(fabs(d->value[at + dim] - dup) <= unit * fabs(dup) + coarse);
        }
        values_free(&draws, &dhidden, &packed, &dgate_up);
        free(gate_up_values), free(gate);
        oracle_ops_free(ops);
    }
}

static void cross_entropy_matches_float64(void **state) {
    (void)state;
    const int vocabs[] = {1, 2, 17, 64, 1001, 32003};
    for (int i = 0; i < 18; i++) {
        DType dtype = storage_types[i % 3];
        int64_t vocab = vocabs[i / 3], rows = 9;
        float scale = 0.125f;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values logits = values_normal(dtype, rows * vocab, 4, 3), kept = values_copy(&logits);
        Values losses = values_poison(DTYPE_F32, rows);
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
        Tensor l = view(&losses, rows, 1), x = view(&logits, rows, vocab), t = view_ints(targets, rows, 1);
        ops->cross_entropy(ops, l, x, t, TENSOR_NONE);
        assert_memory_equal(logits.data, kept.data, (size_t)logits.count * dtype_size(dtype));
        values_check("evaluated loss", &losses, loss_want, 8);
        ops->cross_entropy(ops, l, x, t, view_floats(&scale, 1, 1));
        values_check("loss", &losses, loss_want, 8);
        // Each probability on its own, relative: rms would hide the small ones. e^x is good to 2 ulp, its sum to a few.
        values_read(&logits);
        for (int64_t j = 0; j < logits.count; j++) {
            double unit = dtype == DTYPE_F32 ? 0 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
            double least = dtype == DTYPE_F16 ? 0x1p-25 : 0x1p-24 * 1e-6; // half a subnormal
            assert_true(fabs(logits.value[j] - want[j]) <= (unit + 8 * 0x1p-23) * fabs(want[j]) + least);
        }
        values_free(&logits, &kept, &losses);
        free(want), free(loss_want), free(targets);
        oracle_ops_free(ops);
    }
}

static void linear_swiglu_matches_float64(void **state) {
    (void)state;
    enum { ROWS = 65, IN = 24, DIM = 40, NEXT = 32, N = ROWS * DIM };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    DType dtype = DTYPE_F32; // in bf16 the parts round between them; each is checked on its own
    Values in = values_normal(dtype, ROWS * IN, 1, 0), weight = values_normal(dtype, 2 * DIM * IN, 0.2, 0);
    Values next = values_normal(dtype, ROWS * NEXT, 1, 0), down = values_normal(dtype, NEXT * DIM, 0.2, 0);
    Values packed = values_poison(dtype, 2 * N), scratch = values_poison(dtype, N);
    double *sums = doubles(2 * N), *want = doubles(2 * N), *dhidden = doubles(N);
    oracle_matmul(sums, in.value, IN, 1, weight.value, 1, IN, ROWS, 2 * DIM, IN);
    oracle_matmul(dhidden, next.value, NEXT, 1, down.value, DIM, 1, ROWS, DIM, NEXT);
    for (int i = 0; i < N; i++) {
        double gate = sums[i / DIM * 2 * DIM + i % DIM], up = sums[i / DIM * 2 * DIM + DIM + i % DIM];
        want[i / DIM * 2 * DIM + i % DIM] = gate;
        want[i / DIM * 2 * DIM + DIM + i % DIM] = gate / (1 + exp(-gate)) * up;
    }
    Tensor p = view(&packed, ROWS, 2 * DIM);
    ops->linear_swiglu_forward(ops, p, view(&in, ROWS, IN), view(&weight, 2 * DIM, IN));
    values_check("gate and hidden", &packed, want, 8 * IN);
    for (int i = 0; i < N; i++) {
        double *gate = &sums[i / DIM * 2 * DIM + i % DIM], *up = gate + DIM, s = 1 / (1 + exp(-*gate)),
               silu = *gate * s;
        double dgate = dhidden[i] * *up * (s + silu * (1 - s));
        *up = dhidden[i] * silu;
        *gate = dgate;
    }
    ops->linear_swiglu_backward(ops, p, view(&scratch, ROWS, DIM), p, view(&next, ROWS, NEXT), view(&down, NEXT, DIM));
    values_check("dgate_up", &packed, sums, 8 * (IN + NEXT));
    values_free(&in, &weight, &next, &down, &packed, &scratch);
    free(sums), free(want), free(dhidden);
    oracle_ops_free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_within_2_ulp_of_libm),
        cmocka_unit_test(exponential_handles_the_ends),
        cmocka_unit_test(conversions_round_to_nearest_even_and_keep_nan),
        cmocka_unit_test(f16_conversions_are_those_of_the_bits),
        cmocka_unit_test(long_rows_convert_in_every_element),
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
