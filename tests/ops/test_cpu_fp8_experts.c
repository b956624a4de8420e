// FP8 of experts by emulation against float64: grouped products, codes of tokens as expert rows, SwiGLU of expert rows,
// and piles of transposed weights.
#include "fp8_codes.h"

// Expert 1 has no rows, expert 2 ends in padding, and rows behind the last expert are not in use.
enum { EXPERTS = 4, USED = 16, ROWS = 20, TOKENS = 9 };
static const int32_t ends[EXPERTS + 1] = {0, 8, 8, 12, USED};
static const int32_t counts[EXPERTS] = {5, 0, 1, 4};
static const int32_t token_of_row[ROWS] = {0, 2, 3, 5, 8, -1, -1, -1, 1, -1, -1, -1, 2, 4, 7, 8, -1, -1, -1, -1};

static int expert_of(int64_t row) {
    return row < 8 ? 0 : row < 12 ? 2 : 3;
}

static void grouped_rows_meet_their_expert(void **state) {
    (void)state;
    enum { N = 33, K = 17 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float a_scale = 0x1p-3f, b_scale = 0x1p-7f;
    for (int type = 0; type < 2; type++) {
        Codes a = random_codes(ops, type ? DTYPE_E5M2 : DTYPE_E4M3, ROWS, K, a_scale);
        Codes b = random_codes(ops, DTYPE_E4M3, EXPERTS * N, K, b_scale);
        memset(a.data + USED * K, 0x7f, (ROWS - USED) * K); // NaN: not read
        Values out = values_poison(DTYPE_BF16, ROWS * N);
        double *want = doubles(ROWS * N);
        for (int64_t row = 0; row < USED; row++)
            oracle_matmul(want + row * N, a.value + row * K, K, 1, b.value + expert_of(row) * N * K, 1, K, 1, N, K);
        ops->grouped_linear_fp8(ops, view(&out, ROWS, N), a.tensor, b.tensor, number(&a_scale), number(&b_scale),
                                view_ints(ends, 1, EXPERTS + 1), false);
        for (int64_t i = USED * N; i < ROWS * N; i++)
            assert_true(isnan(bf16_to_f32(((bf16 *)out.data)[i]))); // left alone
        memset((bf16 *)out.data + USED * N, 0, (ROWS - USED) * N * sizeof(bf16));
        values_check("grouped FP8", &out, want, K);
        values_free(&out);
        free(want);
        codes_free(&a);
        codes_free(&b);
    }
    oracle_ops_free(ops);
}

static void grouped_weight_gradients_sum_the_rows_of_each_expert(void **state) {
    (void)state;
    enum { M = 19, N = 33 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float a_scale = 0x1p-3f, b_scale = 0x1p-7f;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        Codes a = random_codes(ops, DTYPE_E5M2, M, ROWS, a_scale), b = random_codes(ops, DTYPE_E4M3, N, ROWS, b_scale);
        for (int64_t i = 0; i < M * ROWS; i++)
            if (i % ROWS >= USED) a.data[i] = 0x7f;
        for (int64_t i = 0; i < N * ROWS; i++)
            if (i % ROWS >= USED) b.data[i] = 0x7f;
        Values out =
            accumulate ? values_normal(DTYPE_F32, EXPERTS * M * N, 1, 0) : values_poison(DTYPE_F32, EXPERTS * M * N);
        double *want = doubles(EXPERTS * M * N);
        for (int64_t i = 0; accumulate && i < EXPERTS * M * N; i++)
            want[i] = out.value[i];
        for (int e = 0; e < EXPERTS; e++)
            oracle_matmul(want + e * M * N, a.value + ends[e], ROWS, 1, b.value + ends[e], 1, ROWS, M, N,
                          ends[e + 1] - ends[e]);
        ops->grouped_linear_fp8(ops, view(&out, EXPERTS * M, N), a.tensor, b.tensor, number(&a_scale), number(&b_scale),
                                view_ints(ends, 1, EXPERTS + 1), accumulate);
        values_check("grouped FP8 weight gradient", &out, want, ROWS);
        values_free(&out);
        free(want);
        codes_free(&a);
        codes_free(&b);
    }
    oracle_ops_free(ops);
}

static void rows_are_codes_of_tokens_both_ways(void **state) {
    (void)state;
    enum { DIM = 23, UNUSED = 0x7f };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float scale = 0x1p-3f;
    Codes in = random_codes(ops, DTYPE_E5M2, TOKENS, DIM, scale);
    Codes rows = codes_make(DTYPE_E5M2, ROWS, DIM), cols = codes_make(DTYPE_E5M2, DIM, ROWS);
    int32_t expert[TOKENS * 2] = {0}, row_of_slot[TOKENS * 2] = {0}; // their shapes alone matter here
    float row_weight[ROWS] = {0};
    MoeRouting routing = {.expert = view_ints(expert, TOKENS, 2),
                          .counts = view_ints(counts, 1, EXPERTS),
                          .offsets = view_ints(ends, 1, EXPERTS + 1),
                          .row_of_slot = view_ints(row_of_slot, TOKENS, 2),
                          .token_of_row = view_ints(token_of_row, ROWS, 1),
                          .row_weight = view_floats(row_weight, ROWS, 1)};
    ops->moe_gather_fp8(ops, rows.tensor, cols.tensor, in.tensor, &routing);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < DIM; i++) {
            int32_t token = token_of_row[row];
            int want = row >= USED ? UNUSED : token < 0 ? 0 : in.data[token * DIM + i];
            assert_int_equal(rows.data[row * DIM + i], want);
            assert_int_equal(cols.data[i * ROWS + row], want);
        }
    codes_free(&in);
    codes_free(&rows);
    codes_free(&cols);
    oracle_ops_free(ops);
}

// The weight of a row is part of hidden, and of the gradients of gate and up; its own gradient is the sum over the row
// of what hidden would be without it times hidden's gradient. Rows that do not exist are neither read nor written.
static void swiglu_of_expert_rows_has_their_weights(void **state) {
    (void)state;
    enum { COUNT = 37, THERE = 29, DIM = 32, UNUSED = 0x7f };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    Values gate_up = values_normal(DTYPE_BF16, COUNT * 2 * DIM, 1, 0);
    Values dhidden = values_normal(DTYPE_BF16, COUNT * DIM, 1, 0), weight = values_normal(DTYPE_F32, COUNT, 1, 0);
    Values dweight = values_poison(DTYPE_F32, COUNT);
    memset((bf16 *)gate_up.data + THERE * 2 * DIM, 0xff, (COUNT - THERE) * 2 * DIM * sizeof(bf16)); // NaN
    memset((bf16 *)dhidden.data + THERE * DIM, 0xff, (COUNT - THERE) * DIM * sizeof(bf16));
    Codes hidden = codes_make(DTYPE_E4M3, COUNT, DIM), kept = codes_make(DTYPE_E4M3, COUNT, 2 * DIM);
    Codes drows = codes_make(DTYPE_E5M2, COUNT, 2 * DIM), dcols = codes_make(DTYPE_E5M2, 2 * DIM, COUNT);
    Codes hidden_cols = codes_make(DTYPE_E4M3, DIM, COUNT);
    float hidden_scale = 0x1p-5f, kept_scale = 0x1p-4f, dscale = 0x1p-9f, amax[3] = {0}, want_amax[3] = {0};
    int32_t there = THERE;
    Tensor weights = view(&weight, COUNT, 1), count = view_ints(&there, 1, 1);
    ops->swiglu_fp8_forward(ops, hidden.tensor, number(&amax[0]), kept.tensor, number(&amax[1]),
                            view(&gate_up, COUNT, 2 * DIM), number(&hidden_scale), number(&kept_scale), weights, count);
    ops->swiglu_fp8_backward(ops, drows.tensor, dcols.tensor, number(&amax[2]), hidden_cols.tensor,
                             view(&dweight, COUNT, 1), kept.tensor, view(&dhidden, COUNT, DIM), number(&dscale),
                             number(&hidden_scale), number(&kept_scale), weights, count);
    codes_read(&hidden, hidden_scale);
    codes_read(&kept, kept_scale);
    codes_read(&drows, dscale);
    codes_read(&hidden_cols, hidden_scale);
    values_read(&dweight);
    double *dweight_want = doubles(COUNT);
    for (int i = 0; i < THERE * DIM; i++) {
        int row = i / DIM, col = i % DIM, at = row * 2 * DIM + col;
        double gate = gate_up.value[at], up = gate_up.value[at + DIM], w = weight.value[row];
        check_rounded(hidden.value[i], oracle_silu(gate) * up * w, DTYPE_E4M3, hidden_scale);
        want_amax[0] = fmaxf(want_amax[0], (float)fabs(oracle_silu(gate) * up * w));
        want_amax[1] = fmaxf(want_amax[1], (float)fmax(fabs(gate), fabs(up)));
        gate = kept.value[at], up = kept.value[at + DIM]; // what backward has of them
        double d = dhidden.value[i], dgate = w * d * up * oracle_silu_slope(gate), dup = w * d * oracle_silu(gate);
        check_rounded(drows.value[at], dgate, DTYPE_E5M2, dscale);
        check_rounded(drows.value[at + DIM], dup, DTYPE_E5M2, dscale);
        check_rounded(hidden_cols.value[col * COUNT + row], oracle_silu(gate) * up * w, DTYPE_E4M3, hidden_scale);
        assert_true(dcols.data[col * COUNT + row] == drows.data[at]);
        assert_true(dcols.data[(DIM + col) * COUNT + row] == drows.data[at + DIM]);
        want_amax[2] = fmaxf(want_amax[2], (float)fmax(fabs(dgate), fabs(dup)));
        dweight_want[row] += d * oracle_silu(gate) * up;
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(amax[i] - want_amax[i]) <= 1e-5f * want_amax[i]);
    for (int row = 0; row < COUNT; row++) // a float sum of DIM addends of about 1
        assert_true(row < THERE ? fabs(dweight.value[row] - dweight_want[row]) < 1e-4 : isnan(dweight.value[row]));
    for (int i = THERE * DIM; i < COUNT * DIM; i++) {
        assert_int_equal(hidden.data[i], UNUSED);
        assert_int_equal(hidden_cols.data[i % DIM * COUNT + i / DIM], UNUSED);
        assert_int_equal(dcols.data[i % DIM * COUNT + i / DIM], UNUSED);
    }
    values_free(&gate_up, &dhidden, &weight, &dweight);
    free(dweight_want);
    Codes *all[] = {&hidden, &kept, &drows, &dcols, &hidden_cols};
    for (int i = 0; i < 5; i++)
        codes_free(all[i]);
    oracle_ops_free(ops);
}

// To the bit, maxima too; padding becomes zeros. No two scales are the same.
static void gate_up_of_experts_with_swiglu_is_the_product_and_then_swiglu(void **state) {
    (void)state;
    enum { IN = 80, DIM = 48, UNUSED = 0x7f };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float in_scale = 0x1p-4f, weight_scale = 0x1p-6f, hidden_scale = 0x1p-2f, kept_scale = 0x1p-3f;
    float amax[2] = {0}, want_amax[2] = {0};
    int32_t used = USED;
    Codes in = random_codes(ops, DTYPE_E4M3, ROWS, IN, in_scale);
    Codes weight = random_codes(ops, DTYPE_E4M3, EXPERTS * 2 * DIM, IN, weight_scale);
    Codes hidden = codes_make(DTYPE_E4M3, ROWS, DIM), kept = codes_make(DTYPE_E4M3, ROWS, 2 * DIM);
    Codes want_hidden = codes_make(DTYPE_E4M3, ROWS, DIM), want_kept = codes_make(DTYPE_E4M3, ROWS, 2 * DIM);
    Values scratch = values_poison(DTYPE_BF16, ROWS * 2 * DIM), gate_up = values_poison(DTYPE_BF16, ROWS * 2 * DIM);
    Values row_weight = values_normal(DTYPE_F32, ROWS, 1, 0);
    for (int row = 0; row < ROWS; row++) {
        if (token_of_row[row] >= 0) continue;
        memset(in.data + row * IN, row < USED ? 0 : UNUSED, IN); // NaN: not read
        ((float *)row_weight.data)[row] = 0;
    }
    Tensor weights = view(&row_weight, ROWS, 1), offsets = view_ints(ends, 1, EXPERTS + 1);
    ops->grouped_swiglu_fp8_forward(ops, hidden.tensor, number(&amax[0]), kept.tensor, number(&amax[1]),
                                    view(&scratch, ROWS, 2 * DIM), in.tensor, weight.tensor, number(&in_scale),
                                    number(&weight_scale), number(&hidden_scale), number(&kept_scale), weights,
                                    offsets);
    ops->grouped_linear_fp8(ops, view(&gate_up, ROWS, 2 * DIM), in.tensor, weight.tensor, number(&in_scale),
                            number(&weight_scale), offsets, false);
    ops->swiglu_fp8_forward(ops, want_hidden.tensor, number(&want_amax[0]), want_kept.tensor, number(&want_amax[1]),
                            view(&gate_up, ROWS, 2 * DIM), number(&hidden_scale), number(&kept_scale), weights,
                            view_ints(&used, 1, 1));
    assert_memory_equal(hidden.data, want_hidden.data, ROWS * DIM);
    assert_memory_equal(kept.data, want_kept.data, ROWS * 2 * DIM);
    assert_memory_equal(amax, want_amax, sizeof amax);
    assert_true(amax[0] > 0 && amax[1] > 0);
    for (int i = 0; i < ROWS * DIM; i++)
        if (token_of_row[i / DIM] < 0) assert_int_equal(hidden.data[i], i / DIM < USED ? 0 : UNUSED);
    for (int i = USED * 2 * DIM; i < ROWS * 2 * DIM; i++)
        assert_int_equal(kept.data[i], UNUSED);
    values_free(&scratch, &gate_up, &row_weight);
    Codes *all[] = {&in, &weight, &hidden, &kept, &want_hidden, &want_kept};
    for (int i = 0; i < 6; i++)
        codes_free(all[i]);
    oracle_ops_free(ops);
}

static void a_pile_of_weights_is_turned_one_by_one(void **state) {
    (void)state;
    enum { PILES = 3, HEIGHT = 48, WIDTH = 32 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    float scale = 0x1p-5f;
    Values in = values_normal(DTYPE_BF16, PILES * HEIGHT * WIDTH, 1, 0);
    Codes rows = codes_make(DTYPE_E4M3, PILES * HEIGHT, WIDTH), cols = codes_make(DTYPE_E4M3, PILES * WIDTH, HEIGHT);
    Codes turned = codes_make(DTYPE_E4M3, PILES * WIDTH, HEIGHT);
    ops->quantize(ops, rows.tensor, cols.tensor, TENSOR_NONE, view(&in, PILES * HEIGHT, WIDTH), number(&scale));
    ops->quantize(ops, TENSOR_NONE, turned.tensor, TENSOR_NONE, rows.tensor, number(&scale));
    for (int64_t i = 0; i < PILES * HEIGHT * WIDTH; i++) {
        int64_t pile = i / (HEIGHT * WIDTH), row = i / WIDTH % HEIGHT, col = i % WIDTH;
        uint8_t want = fp8_from_f32((float)in.value[i] / scale, DTYPE_E4M3);
        int64_t at = (pile * WIDTH + col) * HEIGHT + row;
        assert_int_equal(rows.data[i], want);
        assert_int_equal(cols.data[at], want);
        assert_int_equal(turned.data[at], want);
    }
    values_free(&in);
    codes_free(&rows);
    codes_free(&cols);
    codes_free(&turned);
    oracle_ops_free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_rows_meet_their_expert),
        cmocka_unit_test(grouped_weight_gradients_sum_the_rows_of_each_expert),
        cmocka_unit_test(rows_are_codes_of_tokens_both_ways),
        cmocka_unit_test(swiglu_of_expert_rows_has_their_weights),
        cmocka_unit_test(gate_up_of_experts_with_swiglu_is_the_product_and_then_swiglu),
        cmocka_unit_test(a_pile_of_weights_is_turned_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
