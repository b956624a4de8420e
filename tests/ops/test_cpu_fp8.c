// FP8 by emulation against float64: what is rounded is rounded once, both ways round, and products of codes are exact
// but for their float sums.
#include "fp8_codes.h"

static void quantize_rounds_both_ways_and_notes_the_largest(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int type = 0; type < 2; type++) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        enum { ROWS = 133, COLS = 41, STRIDE = 50 };
        Values in = values_normal(DTYPE_BF16, ROWS * STRIDE, 1, 0);
        Codes rows = codes_make(dtype, ROWS, COLS), cols = codes_make(dtype, COLS, ROWS);
        float scale = 0x1p-5f, amax = 0.25f, largest = 0;
        ops->quantize(ops, rows.tensor, cols.tensor, number(&amax), tensor_cols(view(&in, ROWS, STRIDE), 9, COLS),
                      number(&scale));
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t c = 0; c < COLS; c++) {
                float value = (float)in.value[r * STRIDE + 9 + c];
                uint8_t want = fp8_from_f32(value / scale, dtype);
                assert_int_equal(rows.data[r * COLS + c], want);
                assert_int_equal(cols.data[c * ROWS + r], want);
                largest = fmaxf(largest, fabsf(value));
            }
        assert_true(amax == largest);
        amax = 1e6f; // what was larger before stays
        ops->quantize(ops, TENSOR_NONE, TENSOR_NONE, number(&amax), tensor_cols(view(&in, ROWS, STRIDE), 9, COLS),
                      number(&scale));
        assert_true(amax == 1e6f);
        values_free(&in);
        codes_free(&rows);
        codes_free(&cols);
    }
    oracle_ops_free(ops);
}

static void codes_are_turned_as_they_are(void **state) {
    (void)state;
    enum { ROWS = 48, COLS = 32 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int type = 0; type < 2; type++) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        Codes in = codes_make(dtype, ROWS, COLS), cols = codes_make(dtype, COLS, ROWS);
        float scale = 3; // of no matter
        for (int i = 0; i < ROWS * COLS; i++)
            in.data[i] = (uint8_t)(i * 7 + i / 256); // NaN and both zeros among them
        ops->quantize(ops, TENSOR_NONE, cols.tensor, TENSOR_NONE, in.tensor, number(&scale));
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t c = 0; c < COLS; c++)
                assert_int_equal(cols.data[c * ROWS + r], in.data[r * COLS + c]);
        codes_free(&in);
        codes_free(&cols);
    }
    oracle_ops_free(ops);
}

static void scales_are_the_finest_powers_of_two_without_overflow(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float scale[6] = {3, 3, 3, 3, 3, 3}, amax[6] = {448, 449, 1, 0, INFINITY, NAN};
    ops->quantize_scales(ops, view_floats(scale, 2, 3), view_floats(amax, 2, 3), E4M3_MAX);
    const float want[6] = {1, 2, 0x1p-8f, 3, 3, 3};
    for (int i = 0; i < 6; i++) {
        assert_true(scale[i] == want[i]);
        assert_true(amax[i] == 0);
    }
    oracle_ops_free(ops);
}

// With the scale that such a maximum gives, no bf16 number becomes zero or loses a digit of the format: off by half a
// step, 2^-4 or 2^-3 of itself. Only of a maximum of zero nothing is said.
static void the_smallest_numbers_are_rounded_as_any_others(void **state) {
    (void)state;
    enum { COUNT = 2 << 7 }; // all positive ones below 2^-125: subnormal, and the first binade that is not
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    bf16 in[COUNT];
    for (int i = 0; i < COUNT; i++)
        in[i] = bf16_from_f32(ldexpf((float)i, -133));
    Tensor values = tensor_make(in, DTYPE_BF16, 1, COUNT, "in");
    for (int type = 0; type < 2; type++)
        for (int count = 2; count <= COUNT; count *= 2) { // the largest: from 2^-133 on
            DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
            Codes codes = codes_make(dtype, 1, count);
            float scale = 1, amax = 0;
            Tensor some = tensor_cols(values, 0, count);
            ops->quantize(ops, TENSOR_NONE, TENSOR_NONE, number(&amax), some, number(&scale));
            assert_true(amax == bf16_to_f32(in[count - 1]));
            ops->quantize_scales(ops, number(&scale), number(&amax), type ? E5M2_MAX / 64 : E4M3_MAX);
            assert_true(isfinite(1 / scale) && fpclassify(scale) == FP_NORMAL);
            ops->quantize(ops, codes.tensor, TENSOR_NONE, TENSOR_NONE, some, number(&scale));
            codes_read(&codes, scale);
            for (int i = 0; i < count; i++)
                assert_true(fabs(codes.value[i] - ldexp(i, -133)) <= ldexp(i, -133) * (type ? 0x1p-3 : 0x1p-4));
            codes_free(&codes);
        }
    oracle_ops_free(ops);
}

static void products_match_float64(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {33, 17, 65}, {130, 56, 131}, {40, 300, 1030}}; // m, n, k
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 8; i++) {
        int64_t m = shapes[i / 2][0], n = shapes[i / 2][1], k = shapes[i / 2][2];
        float a_scale = 0x1p-3f, b_scale = 0x1p-7f;
        Codes a = random_codes(ops, i % 2 ? DTYPE_E5M2 : DTYPE_E4M3, m, k, a_scale);
        Codes b = random_codes(ops, DTYPE_E4M3, n, k, b_scale);
        for (int kind = 0; kind < 4; kind++) { // plain, with a residual, a weight gradient, one that is added to
            DType dtype = kind < 2 ? DTYPE_BF16 : DTYPE_F32;
            Values add = values_normal(dtype, m * n, 1, 0), out = values_poison(dtype, m * n);
            if (kind == 3) out = (values_free_one(&out), values_copy(&add));
            double *want = doubles(m * n);
            for (int64_t j = 0; j < m * n && kind % 2; j++)
                want[j] = add.value[j];
            oracle_matmul(want, a.value, k, 1, b.value, 1, k, m, n, k);
            ops->linear_fp8(ops, view(&out, m, n), a.tensor, b.tensor, number(&a_scale), number(&b_scale),
                            kind == 1 ? view(&add, m, n) : TENSOR_NONE, kind == 3);
            values_check("FP8 product", &out, want, k);
            values_free(&add, &out);
            free(want);
        }
        codes_free(&a);
        codes_free(&b);
    }
    oracle_ops_free(ops);
}

static void a_norm_rounds_what_it_stores(void **state) {
    (void)state;
    enum { ROWS = 37, COLS = 48 };
    Ops *ops = oracle_ops(1, COLS, 0, 1, 8, 0);
    Values in = values_normal(DTYPE_BF16, ROWS * COLS, 1, 0), weight = values_normal(DTYPE_BF16, COLS, 0.1, 1);
    Values out = values_poison(DTYPE_BF16, ROWS * COLS), alone = values_poison(DTYPE_BF16, ROWS * COLS);
    Values rstd = values_poison(DTYPE_F32, ROWS);
    Codes rows = codes_make(DTYPE_E4M3, ROWS, COLS);
    float scale = 0x1p-4f, amax = 0, largest = 0;
    ops->rmsnorm_fp8_forward(ops, view(&out, ROWS, COLS), rows.tensor, number(&amax), view(&rstd, ROWS, 1),
                             view(&in, ROWS, COLS), view(&weight, 1, COLS), number(&scale), 1e-5f);
    ops->add_rmsnorm_forward(ops, view(&alone, ROWS, COLS), TENSOR_NONE, view(&rstd, ROWS, 1), view(&in, ROWS, COLS),
                             TENSOR_NONE, view(&weight, 1, COLS), 1e-5f);
    assert_memory_equal(out.data, alone.data, ROWS * COLS * 2);
    values_read(&out);
    for (int i = 0; i < ROWS * COLS; i++) {
        assert_int_equal(rows.data[i], fp8_from_f32((float)out.value[i] / scale, DTYPE_E4M3));
        largest = fmaxf(largest, fabsf((float)out.value[i]));
    }
    assert_true(amax == largest);
    values_free(&in, &weight, &out, &alone, &rstd);
    codes_free(&rows);
    oracle_ops_free(ops);
}

static void swiglu_matches_float64_both_ways(void **state) {
    (void)state;
    enum { ROWS = 48, DIM = 32 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    Values gate_up = values_normal(DTYPE_BF16, ROWS * 2 * DIM, 1, 0),
           dhidden = values_normal(DTYPE_BF16, ROWS * DIM, 1, 0);
    Codes hidden = codes_make(DTYPE_E4M3, ROWS, DIM), kept = codes_make(DTYPE_E4M3, ROWS, 2 * DIM);
    Codes drows = codes_make(DTYPE_E5M2, ROWS, 2 * DIM), dcols = codes_make(DTYPE_E5M2, 2 * DIM, ROWS);
    Codes hidden_cols = codes_make(DTYPE_E4M3, DIM, ROWS);
    float hidden_scale = 0x1p-5f, kept_scale = 0x1p-4f, dscale = 0x1p-9f, amax[3] = {0}, want_amax[3] = {0};
    ops->swiglu_fp8_forward(ops, hidden.tensor, number(&amax[0]), kept.tensor, number(&amax[1]),
                            view(&gate_up, ROWS, 2 * DIM), number(&hidden_scale), number(&kept_scale), TENSOR_NONE,
                            TENSOR_NONE);
    ops->swiglu_fp8_backward(ops, drows.tensor, dcols.tensor, number(&amax[2]), hidden_cols.tensor, TENSOR_NONE,
                             kept.tensor, view(&dhidden, ROWS, DIM), number(&dscale), number(&hidden_scale),
                             number(&kept_scale), TENSOR_NONE, TENSOR_NONE);
    codes_read(&hidden, hidden_scale);
    codes_read(&kept, kept_scale);
    codes_read(&drows, dscale);
    codes_read(&dcols, dscale);
    codes_read(&hidden_cols, hidden_scale);
    for (int i = 0; i < ROWS * DIM; i++) {
        int row = i / DIM, col = i % DIM, at = row * 2 * DIM + col;
        double gate = gate_up.value[at], up = gate_up.value[at + DIM];
        check_rounded(kept.value[at], gate, DTYPE_E4M3, kept_scale);
        check_rounded(kept.value[at + DIM], up, DTYPE_E4M3, kept_scale);
        check_rounded(hidden.value[i], oracle_silu(gate) * up, DTYPE_E4M3, hidden_scale);
        want_amax[0] = fmaxf(want_amax[0], (float)fabs(oracle_silu(gate) * up));
        want_amax[1] = fmaxf(want_amax[1], (float)fmax(fabs(gate), fabs(up)));
        gate = kept.value[at], up = kept.value[at + DIM]; // what backward has of them
        double dgate = dhidden.value[i] * up * oracle_silu_slope(gate), dup = dhidden.value[i] * oracle_silu(gate);
        check_rounded(drows.value[at], dgate, DTYPE_E5M2, dscale);
        check_rounded(drows.value[at + DIM], dup, DTYPE_E5M2, dscale);
        check_rounded(hidden_cols.value[col * ROWS + row], oracle_silu(gate) * up, DTYPE_E4M3, hidden_scale);
        assert_true(dcols.data[col * ROWS + row] == drows.data[at]);
        assert_true(dcols.data[(DIM + col) * ROWS + row] == drows.data[at + DIM]);
        want_amax[2] = fmaxf(want_amax[2], (float)fmax(fabs(dgate), fabs(dup)));
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(amax[i] - want_amax[i]) <= 1e-5f * want_amax[i]);
    values_free(&gate_up, &dhidden);
    Codes *all[] = {&hidden, &kept, &drows, &dcols, &hidden_cols};
    for (int i = 0; i < 5; i++)
        codes_free(all[i]);
    oracle_ops_free(ops);
}

// Gate and up are rounded to bf16 on the way, as linear_fp8 would store them; no two scales are the same.
static void gate_up_with_swiglu_is_the_product_and_then_swiglu(void **state) {
    (void)state;
    enum { ROWS = 33, IN = 80, DIM = 48 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float in_scale = 0x1p-4f, weight_scale = 0x1p-6f, hidden_scale = 0x1p2f, kept_scale = 0x1p-3f;
    float amax[2] = {0}, want_amax[2] = {0};
    Codes in = random_codes(ops, DTYPE_E4M3, ROWS, IN, in_scale);
    Codes weight = random_codes(ops, DTYPE_E4M3, 2 * DIM, IN, weight_scale);
    Codes hidden = codes_make(DTYPE_E4M3, ROWS, DIM), kept = codes_make(DTYPE_E4M3, ROWS, 2 * DIM);
    Values scratch = values_poison(DTYPE_BF16, ROWS * 2 * DIM), gate_up = values_poison(DTYPE_BF16, ROWS * 2 * DIM);
    ops->linear_swiglu_fp8_forward(ops, hidden.tensor, number(&amax[0]), kept.tensor, number(&amax[1]),
                                   view(&scratch, ROWS, 2 * DIM), in.tensor, weight.tensor, number(&in_scale),
                                   number(&weight_scale), number(&hidden_scale), number(&kept_scale));
    ops->linear_fp8(ops, view(&gate_up, ROWS, 2 * DIM), in.tensor, weight.tensor, number(&in_scale),
                    number(&weight_scale), TENSOR_NONE, false);
    values_read(&gate_up);
    codes_read(&hidden, hidden_scale);
    for (int i = 0; i < ROWS * DIM; i++) {
        int at = i / DIM * 2 * DIM + i % DIM;
        float gate = (float)gate_up.value[at], up = (float)gate_up.value[at + DIM];
        assert_int_equal(kept.data[at], fp8_from_f32(gate / kept_scale, DTYPE_E4M3));
        assert_int_equal(kept.data[at + DIM], fp8_from_f32(up / kept_scale, DTYPE_E4M3));
        check_rounded(hidden.value[i], oracle_silu((double)gate) * (double)up, DTYPE_E4M3, (double)hidden_scale);
        want_amax[0] = fmaxf(want_amax[0], (float)fabs(oracle_silu((double)gate) * (double)up));
        want_amax[1] = fmaxf(want_amax[1], fmaxf(fabsf(gate), fabsf(up)));
    }
    assert_true(fabsf(amax[0] - want_amax[0]) <= 1e-5f * want_amax[0]);
    assert_true(amax[1] == want_amax[1]);
    values_free(&scratch, &gate_up);
    Codes *all[] = {&in, &weight, &hidden, &kept};
    for (int i = 0; i < 4; i++)
        codes_free(all[i]);
    oracle_ops_free(ops);
}

// The codes are those of the float gradient, which cross_entropy leaves in the place of float logits with the same
// values: nothing is rounded in between. What that gradient is, test_cpu_elements says.
static void cross_entropy_rounds_the_float_gradient_once(void **state) {
    (void)state;
    enum { ROWS = 9 };
    static const int vocabs[] = {16, 48, 1008};
    for (int v = 0; v < 3; v++) {
        int64_t vocab = vocabs[v], count = ROWS * vocab;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values logits = values_normal(DTYPE_BF16, count, 4, 3), kept = values_copy(&logits);
        Values losses = values_poison(DTYPE_F32, ROWS), want_losses = values_poison(DTYPE_F32, ROWS);
        Codes codes = codes_make(DTYPE_E5M2, ROWS, vocab);
        float scale = 0.01f, codes_scale = 0x1p-22f, *gradient = test_malloc((size_t)count * sizeof(float));
        int32_t *targets = ids(ROWS, (int)vocab);
        targets[3] = -100;
        targets[5] = (int32_t)vocab - 1;
        for (int64_t i = 0; i < count; i++)
            gradient[i] = (float)logits.value[i];
        Tensor t = view_ints(targets, ROWS, 1);
        ops->cross_entropy(ops, view(&want_losses, ROWS, 1), view_floats(gradient, ROWS, vocab), t, number(&scale));
        ops->cross_entropy_fp8(ops, view(&losses, ROWS, 1), codes.tensor, view(&logits, ROWS, vocab), t, number(&scale),
                               number(&codes_scale));
        assert_memory_equal(losses.data, want_losses.data, ROWS * sizeof(float));
        assert_memory_equal(logits.data, kept.data, (size_t)count * 2);
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(codes.data[i], fp8_from_f32(gradient[i] / codes_scale, DTYPE_E5M2));
        for (int64_t i = 3 * vocab; i < 4 * vocab; i++)
            assert_int_equal(codes.data[i], 0);
        values_free(&logits, &kept, &losses, &want_losses);
        codes_free(&codes);
        test_free(gradient);
        free(targets);
        oracle_ops_free(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize_rounds_both_ways_and_notes_the_largest),
        cmocka_unit_test(codes_are_turned_as_they_are),
        cmocka_unit_test(scales_are_the_finest_powers_of_two_without_overflow),
        cmocka_unit_test(the_smallest_numbers_are_rounded_as_any_others),
        cmocka_unit_test(products_match_float64),
        cmocka_unit_test(a_norm_rounds_what_it_stores),
        cmocka_unit_test(swiglu_matches_float64_both_ways),
        cmocka_unit_test(gate_up_with_swiglu_is_the_product_and_then_swiglu),
        cmocka_unit_test(cross_entropy_rounds_the_float_gradient_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
