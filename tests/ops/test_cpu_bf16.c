// bf16 products by the CPU's own instructions (AVX512-BF16, AMX) and without them: all are within a strict bound, equal
// where nothing is rounded, and with the instructions an element's bits depend on nothing but its row and its column.
#include "oracle.h"

#include "base/threads.h"

#include <stdlib.h>

static const int sizes[] = {1, 2, 15, 17, 33}, depths[] = {1, 2, 3, 31, 33, 385, 801, 1025};
enum { SIZES = sizeof sizes / sizeof *sizes, DEPTHS = sizeof depths / sizeof *depths };

// As HEARTH_CPU_BF16 names them; the first is on every CPU.
static const char *const ways[] = {"0", "avx512", "amx"};
enum { WAYS = sizeof ways / sizeof *ways };

// NULL: this CPU has no such instruction.
static Ops *ops_with(const char *way) {
    Ops *ops;
    setenv("HEARTH_CPU_BF16", way, 1);
    Status missing = ops_create(&ops, "cpu");
    if (missing) {
        assert_int_equal(status_code(missing), STATUS_USAGE);
        assert_string_not_equal(way, "0");
        status_free(missing);
        print_message("  skipped: no products of bf16 by %s here\n", way);
        return NULL;
    }
    assert_int_equal(ops_cpu_bf16(ops) != NULL, strcmp(way, "0") != 0);
    ops_destroy(ops);
    return oracle_ops(1, 1, 0, 1, 8, 0);
}

// A weight gradient: floats come out, so nothing but the sum is rounded. Products of bf16 are exact in float, and each
// addition is off by at most 2^-24 of its result, which no partial sum of magnitudes exceeds: k * 2^-24 * sum of
// magnitudes bounds them all (to first order; k * 2^-24 is below 2^-14).
static void check_sums(Ops *ops, int m, int n, int k) {
    Values dout = values_normal(DTYPE_BF16, (int64_t)k * m, 1, 0), in = values_normal(DTYPE_BF16, (int64_t)k * n, 1, 0);
    Values out = values_poison(DTYPE_F32, (int64_t)m * n);
    double *want = doubles(out.count), *bound = doubles(out.count);
    double *a = magnitudes(dout.value, dout.count), *b = magnitudes(in.value, in.count);
    oracle_matmul(want, dout.value, 1, m, in.value, n, 1, m, n, k);
    oracle_matmul(bound, a, 1, m, b, n, 1, m, n, k);
    ops->linear_backward_weight(ops, view(&out, m, n), view(&dout, k, m), view(&in, k, n), false);
    values_read(&out);
    for (int64_t i = 0; i < out.count; i++)
        if (!(fabs(out.value[i] - want[i]) <= 1.001 * k * 0x1p-24 * bound[i]))
            fail_msg("[%lld] of %d x %d x %d is %.9g, expected %.9g", (long long)i, m, n, k, out.value[i], want[i]);
    values_free(&dout, &in, &out);
    free(want), free(bound), free(a), free(b);
}

static void nothing_but_sums_is_rounded(void **state) {
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        Ops *ops = ops_with(ways[way]);
        if (!ops) continue;
        for (int i = 0; i < SIZES * SIZES * DEPTHS; i++)
            check_sums(ops, sizes[i % SIZES], sizes[i / SIZES % SIZES], depths[i / SIZES / SIZES]);
        check_sums(ops, 300, 550, 37); // several tiles
        oracle_ops_free(ops);
    }
}

enum { ROWS = 61, IN_DIM = 403, OUT_DIM = 150, EXPERTS = 3 };
static const int32_t offsets[] = {0, 17, 17, ROWS};

// Every product of small integers, whose sums stay below 2^24: exact in any order.
static void run_integers(Ops *ops, Values results[6]) {
    values_restart();
    Values in = values_integers(ROWS * IN_DIM), dout = values_integers(ROWS * OUT_DIM);
    Values weight = values_integers(EXPERTS * OUT_DIM * IN_DIM);
    Tensor x = view(&in, ROWS, IN_DIM), d = view(&dout, ROWS, OUT_DIM), all = view(&weight, EXPERTS * OUT_DIM, IN_DIM);
    Tensor w = tensor_rows(all, 0, OUT_DIM), rows = view_ints(offsets, 1, EXPERTS + 1);
    const DType dtypes[] = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_F32};
    const int64_t counts[] = {dout.count, in.count, OUT_DIM * IN_DIM, dout.count, in.count, weight.count};
    for (int i = 0; i < 6; i++)
        results[i] = i == 2 ? values_zero(dtypes[i], counts[i]) : values_poison(dtypes[i], counts[i]);
    ops->linear_forward(ops, view(&results[0], ROWS, OUT_DIM), x, w, d);
    ops->linear_backward_input(ops, view(&results[1], ROWS, IN_DIM), d, w);
    ops->linear_backward_weight(ops, view(&results[2], OUT_DIM, IN_DIM), d, x, true);
    ops->grouped_linear_forward(ops, view(&results[3], ROWS, OUT_DIM), x, all, rows, TENSOR_NONE, TENSOR_NONE);
    ops->grouped_linear_backward_input(ops, view(&results[4], ROWS, IN_DIM), d, all, rows);
    ops->grouped_linear_backward_weight(ops, view(&results[5], EXPERTS * OUT_DIM, IN_DIM), d, x, rows, TENSOR_NONE,
                                        TENSOR_NONE, false);
    values_free(&in, &dout, &weight);
}

static void products_that_round_nothing_have_the_same_bits_without_the_instruction(void **state) {
    (void)state;
    Values results[WAYS][6];
    for (int way = 0; way < WAYS; way++) {
        Ops *ops = ops_with(ways[way]);
        if (!ops) continue;
        run_integers(ops, results[way]);
        oracle_ops_free(ops);
        for (int i = 0; way && i < 6; i++) {
            Values *a = &results[0][i], *b = &results[way][i];
            assert_memory_equal(a->data, b->data, (size_t)a->count * dtype_size(a->dtype));
            values_free(b);
        }
    }
    for (int i = 0; i < 6; i++)
        values_free(&results[0][i]);
}

// Rows of a product, each computed alone and as part of all, on one thread and on several.
static void check_bits(const char *way) {
    enum { ALL = 700, K = 900, N = 530 };
    Values in = values_normal(DTYPE_BF16, ALL * K, 1, 0), weight = values_normal(DTYPE_BF16, N * K, 1, 0);
    Values out = values_poison(DTYPE_BF16, ALL * N), alone = values_poison(DTYPE_BF16, ALL * N);
    const int threads[] = {1, 2, 3, 5};
    for (int t = 0; t < 4; t++) {
        threads_set(threads[t]);
        Ops *ops = ops_with(way);
        if (!ops) break;
        Tensor x = view(&in, ALL, K), w = view(&weight, N, K), to = view(&alone, ALL, N);
        ops->linear_forward(ops, view(&out, ALL, N), x, w, TENSOR_NONE);
        for (int row = 0, rows = 1; t == 0 && row < ALL; row += rows) {
            rows = row % 40 + 1 < ALL - row ? row % 40 + 1 : ALL - row;
            ops->linear_forward(ops, tensor_rows(to, row, rows), tensor_rows(x, row, rows), w, TENSOR_NONE);
        }
        oracle_ops_free(ops);
        assert_memory_equal(out.data, alone.data, ALL * N * sizeof(bf16));
    }
    threads_set(0);
    values_free(&in, &weight, &out, &alone);
}

static void an_element_has_the_same_bits_wherever_it_stands(void **state) {
    (void)state;
    for (int way = 1; way < WAYS; way++)
        check_bits(ways[way]);
}

// [rows, cols] of ones, or poison, and a row of poison behind them.
static Tensor ones_before_poison(Values *values, int64_t rows, int64_t cols, bool ones) {
    *values = values_poison(DTYPE_BF16, (rows + 1) * cols);
    for (int64_t i = 0; ones && i < rows * cols; i++)
        ((bf16 *)values->data)[i] = bf16_from_f32(1);
    return tensor_rows(view(values, rows + 1, cols), 0, rows);
}

static void check_ones(Tensor out, int k) { // every sum is k, and the row behind them is as it was
    const bf16 *got = out.data;
    for (int64_t i = 0; i < out.rows * out.cols; i++)
        assert_int_equal(got[i], bf16_from_f32((float)k));
    for (int64_t i = 0; i < out.cols; i++)
        assert_true(isnan(bf16_to_f32(got[out.rows * out.cols + i])));
}

// What lies behind the operands of a product, in memory and in its scratch, is not read into it, even if it is no
// number.
static void what_is_not_there_is_not_read(void **state) {
    (void)state;
    enum { M = 19, N = 21, K = 37, LARGE = 600 };
    for (int way = 0; way < WAYS; way++) {
        Ops *ops = ops_with(ways[way]);
        if (!ops) continue;
        Values large = values_poison(DTYPE_BF16, LARGE * LARGE), result = values_poison(DTYPE_BF16, LARGE * LARGE);
        Tensor all = view(&large, LARGE, LARGE);
        ops->linear_forward(ops, view(&result, LARGE, LARGE), all, all, TENSOR_NONE); // leaves NaN in the scratch
        Values v[7], dweight = values_poison(DTYPE_F32, M * N);
        Tensor in = ones_before_poison(&v[0], M, K, true), weight = ones_before_poison(&v[1], N, K, true);
        Tensor turned = ones_before_poison(&v[2], K, N, true), dout = ones_before_poison(&v[3], K, M, true);
        Tensor tokens = ones_before_poison(&v[4], K, N, true);
        Tensor out = ones_before_poison(&v[5], M, N, false), din = ones_before_poison(&v[6], M, N, false);
        ops->linear_forward(ops, out, in, weight, TENSOR_NONE);
        check_ones(out, K);
        ops->linear_backward_input(ops, din, in, turned);
        check_ones(din, K);
        ops->linear_backward_weight(ops, view(&dweight, M, N), dout, tokens, false);
        for (int64_t i = 0; i < M * N; i++)
            assert_true(((float *)dweight.data)[i] == K);
        values_free(&large, &result, &dweight);
        for (int i = 0; i < 7; i++)
            values_free(&v[i]);
        oracle_ops_free(ops);
    }
}

static void a_way_that_does_not_exist_is_named(void **state) {
    (void)state;
    Ops *ops;
    setenv("HEARTH_CPU_BF16", "bf16", 1);
    Status status = ops_create(&ops, "cpu");
    assert_int_equal(status_code(status), STATUS_USAGE);
    assert_non_null(strstr(status_message(status), "must be 0, avx512 or amx"));
    status_free(status);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_but_sums_is_rounded),
        cmocka_unit_test(products_that_round_nothing_have_the_same_bits_without_the_instruction),
        cmocka_unit_test(an_element_has_the_same_bits_wherever_it_stands),
        cmocka_unit_test(what_is_not_there_is_not_read),
        cmocka_unit_test(a_way_that_does_not_exist_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
