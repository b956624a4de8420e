// The code for AMX where there is none: every layout, edge and way to add, with the instructions of tiles emulated.
// test_cpu_bf16 runs the real ones where the CPU has them.
#include "amx_emulated.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

enum { PLAIN, ADD, ACCUMULATE, HOWS };

typedef struct Case {
    int64_t m, n, k, part_rows, part_columns; // what a thread takes at a time
} Case;
static const Case cases[] = {
    {1, 1, 1, 32, 32},       {16, 32, 32, 32, 32},    {17, 33, 31, 32, 32},  {32, 32, 384, 32, 32},
    {33, 16, 65, 64, 64},    {47, 70, 385, 512, 384}, {40, 31, 770, 32, 96}, {100, 130, 50, 64, 64},
    {530, 400, 3, 512, 384}, {65, 96, 0, 64, 96},
};

static Gemm gemm_of(const Case *c, const Values *a, const Values *b, bool turn_a, bool turn_b) {
    return (Gemm){.m = c->m,
                  .n = c->n,
                  .k = c->k,
                  .a = {a->data, turn_a ? c->m : c->k, turn_a, DTYPE_BF16, NULL},
                  .b = {b->data, turn_b ? c->k : c->n, turn_b, DTYPE_BF16, NULL}};
}

// Small integers, so that the sums are exact. The result stands in wider rows of poison, which stays, and so does what
// the scratch holds: whatever is read of either is no number.
static void check(const Case *c, bool turn_a, bool turn_b, DType dtype, int how) {
    int64_t width = c->n + 5, count = c->m * width;
    Values a = values_integers(c->m * c->k), b = values_integers(c->k * c->n), before = values_integers(count);
    Values out = values_poison(dtype, count), scratch = values_poison(DTYPE_F32, GEMM_SCRATCH_FLOATS);
    Values added = values_of(dtype, count, before.value);
    double *want = doubles(c->m * c->n);
    oracle_matmul(want, a.value, turn_a ? 1 : c->k, turn_a ? c->m : 1, b.value, turn_b ? 1 : c->n, turn_b ? c->k : 1,
                  c->m, c->n, c->k);
    Gemm gemm = gemm_of(c, &a, &b, turn_a, turn_b);
    gemm.c = out.data, gemm.c_stride = width, gemm.c_dtype = dtype;
    gemm.add = how == ADD ? added.data : NULL, gemm.accumulate = how == ACCUMULATE;
    for (int64_t row = 0; how == ACCUMULATE && row < c->m; row++)
        memcpy(cpu_at_mut(out.data, row * width, dtype), cpu_at(added.data, row * width, dtype),
               (size_t)c->n * dtype_size(dtype));
    for (int64_t row = 0; row < c->m; row += c->part_rows)
        for (int64_t column = 0; column < c->n; column += c->part_columns)
            amx_emulated_part(&gemm, row, c->m - row < c->part_rows ? c->m - row : c->part_rows, column,
                              c->n - column < c->part_columns ? c->n - column : c->part_columns, scratch.data);
    assert_false(amx_emulated_in_use());
    values_read(&out);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / width, column = i % width;
        if (column >= c->n) {
            assert_true(isnan(out.value[i]));
            continue;
        }
        double sum = want[row * c->n + column] + (how == PLAIN ? 0 : before.value[i]);
        double rounded = dtype == DTYPE_F32 ? sum : (double)bf16_to_f32(bf16_from_f32((float)sum));
        if (out.value[i] != rounded)
            fail_msg("%lld x %lld x %lld, turned %d %d, %s, %d: [%lld, %lld] is %g, not %g", (long long)c->m,
                     (long long)c->n, (long long)c->k, turn_a, turn_b, dtype_name(dtype), how, (long long)row,
                     (long long)column, out.value[i], rounded);
    }
    values_free(&a, &b, &before, &out, &scratch, &added);
    free(want);
}

static void products_of_integers_are_exact(void **state) {
    (void)state;
    if (!amx_emulated_here()) {
        print_message("SKIPPED test_cpu_amx: this CPU has no AVX512-BF16\n");
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 8 * HOWS; way++)
            check(&cases[i], way & 1, way & 2, way & 4 ? DTYPE_BF16 : DTYPE_F32, way / 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_of_integers_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
