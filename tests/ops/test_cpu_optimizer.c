// AdamW and the guard of the CPU table, in its four kinds of weights, against float64.
#include "oracle.h"

#include "base/rng.h"

typedef struct Adam {
    Values weight, m, v, grad;
    int16_t *low;
    float *norm;   // [1]
    int32_t *skip; // [1]
    AdamwArgs args;
} Adam;

static Adam adam_make(int64_t count, DType dtype, bool split) {
    Adam a = {.weight = values_normal(dtype, count, 0.5, 0),
              .m = values_normal(DTYPE_F32, count, 0.1, 0),
              .v = values_normal(DTYPE_F32, count, 0.001, 0.01),
              .grad = values_normal(DTYPE_F32, count, 1, 0),
              .norm = xmalloc(sizeof *a.norm),
              .skip = xcalloc(1, sizeof *a.skip)};
    *a.norm = 3.5f;
    if (split) {
        a.low = xmalloc((size_t)count * sizeof *a.low);
        for (int64_t i = 0; i < count; i++)
            a.low[i] = (int16_t)rng_bits(99, RNG_STREAM_TEST, (uint64_t)i);
    }
    a.args = (AdamwArgs){.weight = view(&a.weight, 1, count),
                         .master = split ? tensor_make(a.low, DTYPE_U16, 1, count, "low") : TENSOR_NONE,
                         .m = view(&a.m, 1, count),
                         .v = view(&a.v, 1, count),
                         .grad = view(&a.grad, 1, count),
                         .norm = view_floats(a.norm, 1, 1),
                         .skip = view_ints(a.skip, 1, 1),
                         .lr = 2e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .bias1 = 0.271f,
                         .bias2 = 0.142625f,
                         .max_norm = 1,
                         .seed = 7,
                         .first = 1000};
    return a;
}

static void adam_free(Adam *a) {
    values_free(&a->weight, &a->m, &a->v, &a->grad);
    free(a->low), free(a->norm), free(a->skip);
}

static double master(const Adam *a, int64_t i) {
    if (!a->low) return a->weight.value[i];
    uint32_t bits = ((uint32_t)((bf16 *)a->weight.data)[i] << 16) + (uint32_t)(int32_t)a->low[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

// One step of PyTorch's AdamW in float64.
static void adam_oracle(const Adam *a, double *w, double *m, double *v) {
    const AdamwArgs *args = &a->args;
    double clip = args->max_norm > 0 ? fmin(1, (double)args->max_norm / ((double)*a->norm + 1e-6)) : 1;
    for (int64_t i = 0; i < a->weight.count; i++) {
        double g = a->grad.value[i] * clip;
        m[i] = (double)args->beta1 * a->m.value[i] + (1 - (double)args->beta1) * g;
        v[i] = (double)args->beta2 * a->v.value[i] + (1 - (double)args->beta2) * g * g;
        double step = (double)args->lr / (double)args->bias1;
        w[i] = master(a, i) * (1 - (double)args->lr * (double)args->weight_decay) -
               step * m[i] / (sqrt(v[i]) / sqrt((double)args->bias2) + (double)args->eps);
    }
}

static void adamw_matches_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    const int64_t counts[] = {1, 15, 17, 1000, 40001};
    for (int i = 0; i < 20; i++) {
        int64_t count = counts[i / 4];
        bool split = i % 2, clipped = i / 2 % 2;
        Adam a = adam_make(count, split ? DTYPE_BF16 : DTYPE_F32, split);
        if (!clipped) a.args.max_norm = 0;
        double *w = doubles(count), *m = doubles(count), *v = doubles(count);
        adam_oracle(&a, w, m, v);
        ops->adamw(ops, &a.args);
        values_check("m", &a.m, m, 0);
        values_check("v", &a.v, v, 0);
        values_read(&a.weight);
        for (int64_t j = 0; j < count; j++) { // the master weight is a float in both kinds
            double got = master(&a, j);
            assert_true(fabs(got - w[j]) <= 16 * 0x1p-24 * fmax(fabs(w[j]), 0.1));
            // and the bf16 weight is the master rounded to nearest
            if (split) assert_true(fabs(a.weight.value[j] - got) <= ldexp(1, ilogb(got) - 8));
        }
        adam_free(&a);
        free(w), free(m), free(v);
    }
    oracle_ops_free(ops);
}

static void every_float_survives_the_split(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    enum { COUNT = 2 << 16 };
    Adam a = adam_make(COUNT, DTYPE_BF16, true);
    a.args.max_norm = 0;
    a.args.lr = 0; // a step that changes nothing: weight * 1 - 0
    float *before = xmalloc(COUNT * sizeof *before);
    for (int i = 0; i < COUNT; i++) { // every low half, under an even and an odd high half
        uint32_t bits = (0x3f80u << 16) + (uint32_t)i;
        uint32_t high = (bits + 0x8000u) >> 16;
        memcpy(&before[i], &bits, sizeof bits);
        ((bf16 *)a.weight.data)[i] = (bf16)high;
        a.low[i] = (int16_t)(uint16_t)(bits - (high << 16));
    }
    ops->adamw(ops, &a.args);
    for (int i = 0; i < COUNT; i++)
        assert_true(master(&a, i) == (double)before[i]);
    free(before);
    adam_free(&a);
    oracle_ops_free(ops);
}

static void stochastic_rounding_is_unbiased_and_keyed_by_element(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    enum { COUNT = 20000 };
    double *w = doubles(COUNT), *m = doubles(COUNT), *v = doubles(COUNT), bias = 0, spread = 0;
    Adam a = adam_make(COUNT, DTYPE_BF16, false);
    adam_oracle(&a, w, m, v);
    Adam tail = {
        .weight = values_copy(&a.weight), .m = values_copy(&a.m), .v = values_copy(&a.v), .grad = values_copy(&a.grad)};
    tail.args = a.args;
    ops->adamw(ops, &a.args);
    values_read(&a.weight);
    for (int i = 0; i < COUNT; i++) {
        double spacing = ldexp(1, ilogb(w[i]) - 7), error = (a.weight.value[i] - w[i]) / spacing;
        assert_true(fabs(error) <= 1.001); // one of the two neighbours
        bias += error, spread += error * error;
    }
    // Errors have mean 0 and variance up to 1/4; 5 deviations of the mean of 20000.
    assert_true(fabs(bias / COUNT) < 5 * 0.5 / sqrt(COUNT));
    assert_true(spread / COUNT > 0.05);
    // The upper half alone, with its own first element, gives the same bits.
    enum { HALF = COUNT / 2 };
    tail.args.first += HALF;
    tail.args.weight = tensor_cols(view(&tail.weight, 1, COUNT), HALF, HALF);
    tail.args.grad = tensor_cols(view(&tail.grad, 1, COUNT), HALF, HALF);
    tail.args.m = tensor_cols(view(&tail.m, 1, COUNT), HALF, HALF);
    tail.args.v = tensor_cols(view(&tail.v, 1, COUNT), HALF, HALF);
    ops->adamw(ops, &tail.args);
    assert_memory_equal(tail.args.weight.data, (bf16 *)a.weight.data + HALF, HALF * sizeof(bf16));
    adam_free(&a), adam_free(&tail);
    free(w), free(m), free(v);
    oracle_ops_free(ops);
}

static void a_nan_stays_visible_in_every_kind_of_weight(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    for (int kind = 0; kind < 3; kind++) {
        Adam a = adam_make(40, kind ? DTYPE_BF16 : DTYPE_F32, kind == 2);
        a.args.max_norm = 0;
        uint32_t nan = 0x7fffffffu; // every bit set: rounding it like a number would carry into the sign
        memcpy((float *)a.grad.data + 5, &nan, sizeof nan);
        ops->adamw(ops, &a.args);
        values_read(&a.weight);
        for (int i = 0; i < 40; i++)
            assert_int_equal(isnan(a.weight.value[i]) != 0, i == 5);
        adam_free(&a);
    }
    oracle_ops_free(ops);
}

static void a_skipped_step_changes_nothing(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    Adam a = adam_make(1001, DTYPE_F32, false);
    Values weight = values_copy(&a.weight), m = values_copy(&a.m), v = values_copy(&a.v);
    *a.norm = NAN, *a.skip = 1;
    ops->adamw(ops, &a.args);
    assert_memory_equal(a.weight.data, weight.data, 1001 * 4);
    assert_memory_equal(a.m.data, m.data, 1001 * 4);
    assert_memory_equal(a.v.data, v.data, 1001 * 4);
    values_free(&weight, &m, &v);
    adam_free(&a);
    oracle_ops_free(ops);
}

static void guard_refuses_what_is_not_finite_or_too_large_or_told_to(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    const struct {
        float loss, norm;
        int32_t skip;
    } rows[] = {{2, 1, 0},  {NAN, 1, 1}, {2, NAN, 1},  {INFINITY, 1, 1}, {2, INFINITY, 1},
                {11, 1, 1}, {2, 101, 1}, {10, 100, 0}, {-INFINITY, 1, 1}};
    int32_t no = 0, yes = 5;
    const Tensor refuse[] = {TENSOR_NONE, view_ints(&no, 1, 1), view_ints(&yes, 1, 1)};
    for (size_t i = 0; i < 3 * (sizeof rows / sizeof *rows); i++) {
        int32_t skip = 77;
        ops->guard(ops, view_ints(&skip, 1, 1), view_floats(&rows[i / 3].loss, 1, 1),
                   view_floats(&rows[i / 3].norm, 1, 1), refuse[i % 3], 10, 100);
        assert_int_equal(skip, i % 3 == 2 ? 1 : rows[i / 3].skip);
    }
    oracle_ops_free(ops);
}

// The master is a float, and the f16 weight is the master rounded.
static void f16_weights_follow_their_float_master(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    enum { COUNT = 1003 };
    Adam f16 = adam_make(COUNT, DTYPE_F16, false), f32 = adam_make(COUNT, DTYPE_F32, false);
    float *master = xmalloc(COUNT * sizeof *master);
    memcpy(master, f32.weight.data, COUNT * sizeof *master);
    memcpy(f16.m.data, f32.m.data, COUNT * sizeof(float));
    memcpy(f16.v.data, f32.v.data, COUNT * sizeof(float));
    memcpy(f16.grad.data, f32.grad.data, COUNT * sizeof(float));
    f16.args.master = view_floats(master, 1, COUNT);
    ops->adamw(ops, &f32.args);
    ops->adamw(ops, &f16.args);
    assert_memory_equal(master, f32.weight.data, COUNT * sizeof *master);
    assert_memory_equal(f16.m.data, f32.m.data, COUNT * sizeof *master);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(((uint16_t *)f16.weight.data)[i], f16_from_f32(master[i]));
    free(master);
    adam_free(&f16);
    adam_free(&f32);
    oracle_ops_free(ops);
}

// Gradients and norm that carry a power of two give the bits of those without: clipped (norm 3.5 of at most 1) or not.
static void a_loss_scale_leaves_no_trace(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    enum { COUNT = 1003 };
    for (int clipped = 0; clipped < 2; clipped++) {
        values_restart();
        Adam plain = adam_make(COUNT, DTYPE_F32, false);
        values_restart();
        Adam scaled = adam_make(COUNT, DTYPE_F32, false);
        plain.args.max_norm = scaled.args.max_norm = clipped ? 1 : 4;
        scaled.args.unscale = 0x1p-16f;
        *scaled.norm *= 0x1p16f;
        for (int i = 0; i < COUNT; i++)
            ((float *)scaled.grad.data)[i] *= 0x1p16f;
        ops->adamw(ops, &plain.args);
        ops->adamw(ops, &scaled.args);
        assert_memory_equal(plain.weight.data, scaled.weight.data, COUNT * sizeof(float));
        assert_memory_equal(plain.v.data, scaled.v.data, COUNT * sizeof(float));
        adam_free(&plain);
        adam_free(&scaled);
    }
    oracle_ops_free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_weights_follow_their_float_master),
        cmocka_unit_test(a_loss_scale_leaves_no_trace),
        cmocka_unit_test(adamw_matches_float64),
        cmocka_unit_test(every_float_survives_the_split),
        cmocka_unit_test(stochastic_rounding_is_unbiased_and_keyed_by_element),
        cmocka_unit_test(a_nan_stays_visible_in_every_kind_of_weight),
        cmocka_unit_test(a_skipped_step_changes_nothing),
        cmocka_unit_test(guard_refuses_what_is_not_finite_or_too_large_or_told_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
