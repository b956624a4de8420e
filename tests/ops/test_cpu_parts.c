// What one thread computes of a product with AVX-512 and with AMX: every layout, edge and way to add, up to the limits
// of their buffers. The instructions of AMX's tiles are emulated; test_cpu_bf16 runs the real ones where the CPU has
// them.
#include "gemm_parts.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

enum { PLAIN, ADD, ACCUMULATE, HOWS };

typedef void Part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
typedef struct Unit {
    Part *part;
    bool amx;
    DType dtype; // of the operands
} Unit;

typedef struct Case {
    int64_t m, n, k, part_rows, part_columns; // what is asked for at a time; 0: as much as may be
} Case;
static const Case cases[] = {
    {1, 1, 1, 32, 32},      {16, 32, 32, 32, 32},  {17, 33, 31, 32, 32},   {32, 32, 384, 32, 32}, {33, 16, 65, 64, 64},
    {47, 70, 385, 96, 128}, {40, 31, 770, 32, 96}, {100, 130, 50, 64, 64}, {65, 96, 0, 64, 96},   {530, 400, 3, 0, 0},
    {1040, 33, 384, 0, 0},  {1040, 40, 400, 0, 0}, {520, 390, 400, 0, 0},
};

// Rows with a gap of NaN behind each, and rows of NaN behind all.
static Values spread(const Values *dense, int64_t rows, int64_t columns, int64_t stride, DType dtype) {
    enum { BEHIND = 32 };
    double *value = doubles((rows + BEHIND) * stride);
    for (int64_t i = 0; i < (rows + BEHIND) * stride; i++)
        value[i] = i / stride < rows && i % stride < columns ? dense->value[i / stride * columns + i % stride] : NAN;
    Values values = values_of(dtype, (rows + BEHIND) * stride, value);
    free(value);
    return values;
}

static GemmOperand operand(const Values *values, int64_t stride, bool transposed) {
    return (GemmOperand){values->data, stride, transposed, values->dtype, NULL};
}

static void run_parts(const Unit *unit, const Case *c, const Gemm *gemm) {
    GemmCost limits = cpu_gemm_costs(gemm, unit->amx);
    int64_t part_rows = c->part_rows ? c->part_rows : limits.most_rows;
    int64_t part_columns = c->part_columns ? c->part_columns : limits.most_columns;
    Values scratch = values_poison(DTYPE_F32, GEMM_SCRATCH_FLOATS);
    for (int64_t row = 0; row < c->m; row += part_rows)
        for (int64_t column = 0; column < c->n; column += part_columns)
            unit->part(gemm, row, c->m - row < part_rows ? c->m - row : part_rows, column,
                       c->n - column < part_columns ? c->n - column : part_columns, scratch.data);
    assert_false(amx_emulated_in_use());
    values_free(&scratch);
}

// Small integers, so that the sums are exact, among numbers that are none: whatever is read of those shows.
static void check(const Unit *unit, const Case *c, bool turn_a, bool turn_b, DType dtype, int how) {
    enum { GAP = 7 };
    int64_t a_columns = turn_a ? c->m : c->k, b_columns = turn_b ? c->k : c->n, width = c->n + GAP;
    Values a_values = values_integers(c->m * c->k), b_values = values_integers(c->k * c->n);
    Values before = values_integers(c->m * c->n), added = spread(&before, c->m, c->n, width, dtype);
    Values a = spread(&a_values, turn_a ? c->k : c->m, a_columns, a_columns + GAP, unit->dtype);
    Values b = spread(&b_values, turn_b ? c->n : c->k, b_columns, b_columns + GAP, unit->dtype);
    Values out = how == ACCUMULATE ? values_copy(&added) : values_poison(dtype, added.count);
    double *want = doubles(c->m * c->n);
    oracle_matmul(want, a_values.value, turn_a ? 1 : c->k, turn_a ? c->m : 1, b_values.value, turn_b ? 1 : c->n,
                  turn_b ? c->k : 1, c->m, c->n, c->k);
    Gemm gemm = {c->m,
                 c->n,
                 c->k,
                 operand(&a, a_columns + GAP, turn_a),
                 operand(&b, b_columns + GAP, turn_b),
                 out.data,
                 width,
                 dtype,
                 how == ACCUMULATE,
                 how == ADD ? added.data : NULL};
    run_parts(unit, c, &gemm);
    values_read(&out);
    for (int64_t i = 0; i < out.count; i++) {
        int64_t row = i / width, column = i % width;
        if (row >= c->m || column >= c->n) {
            assert_true(isnan(out.value[i]));
            continue;
        }
        double sum = want[row * c->n + column] + (how == PLAIN ? 0 : before.value[row * c->n + column]);
        double rounded = dtype == DTYPE_F32 ? sum : (double)bf16_to_f32(bf16_from_f32((float)sum));
        if (out.value[i] != rounded)
            fail_msg("%s of %s, %lld x %lld x %lld, turned %d %d, to %s, %d: [%lld, %lld] is %g, not %g",
                     unit->amx ? "AMX" : "AVX-512", dtype_name(unit->dtype), (long long)c->m, (long long)c->n,
                     (long long)c->k, turn_a, turn_b, dtype_name(dtype), how, (long long)row, (long long)column,
                     out.value[i], rounded);
    }
    values_free(&a_values, &b_values, &before, &added, &a, &b, &out);
    free(want);
}

static bool parts_run_here(void) {
#if defined(__x86_64__)
    return amx_emulated_built && avx512_alone_built && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static void check_unit(Unit unit) {
    if (!parts_run_here()) {
        print_message("SKIPPED test_cpu_parts: this CPU or compiler has no AVX512-BF16\n");
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 8 * HOWS; way++) {
            const Case *c = &cases[i];
            bool turn_a = way & 1, turn_b = way & 2, half = way & 4, large = c->m * c->n * c->k > 1 << 23;
            int how = way / 8;
            if (half && unit.dtype == DTYPE_F32) continue;
            if (large && (turn_a != turn_b || how != (half ? ADD : ACCUMULATE))) continue; // for the time it takes
            check(&unit, c, turn_a, turn_b, half ? DTYPE_BF16 : DTYPE_F32, how);
        }
}

static void parts_with_amx_are_exact(void **state) {
    (void)state;
    check_unit((Unit){amx_emulated_part, true, DTYPE_BF16});
}

static void parts_with_avx512_are_exact(void **state) {
    (void)state;
    avx512_alone_start(true);
    check_unit((Unit){avx512_alone_part, false, DTYPE_BF16});
    check_unit((Unit){avx512_alone_part, false, DTYPE_F32});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_with_amx_are_exact),
        cmocka_unit_test(parts_with_avx512_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
