// Linear, grouped and router products of the CPU table against float64.
#include "oracle.h"

#include "ops/cpu/cpu.h"

typedef struct Shape {
    int rows, in_dim, out_dim;
} Shape;
static const Shape shapes[] = {{1, 1, 1},      {1, 8, 3},        {7, 5, 3},       {33, 17, 65},    {64, 64, 64},
                               {129, 56, 131}, {256, 72, 300},   {300, 530, 40},  {65, 1031, 257}, {700, 20, 1100},
                               {513, 513, 30}, {1030, 64, 1040}, {1100, 400, 600}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// Rows of the input; what stands between them is no part of it, and poison.
static Values input_values(DType dtype, Shape s, int64_t stride) {
    Values in = values_normal(dtype, s.rows * stride, 1, 0), poison = values_poison(dtype, 1);
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < s.rows * stride; i++)
        if (i % stride >= s.in_dim) memcpy((char *)in.data + (size_t)i * size, poison.data, size);
    values_free(&poison);
    return in;
}

static int64_t input_stride(Shape s, int i) { // rows of the input stand apart in some cases
    return i % 3 ? s.in_dim : s.in_dim + 7;
}

static void linear_forward_matches_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 3 * SHAPES; i++) {
        DType dtype = storage_types[i % 3];
        Shape s = shapes[i / 3];
        int64_t stride = input_stride(s, i);
        Values in = input_values(dtype, s, stride);
        Values weight = values_normal(dtype, (int64_t)s.out_dim * s.in_dim, 1, 0);
        Values out = values_poison(dtype, (int64_t)s.rows * s.out_dim);
        double *want = doubles(out.count);
        oracle_matmul(want, in.value, stride, 1, weight.value, 1, s.in_dim, s.rows, s.out_dim, s.in_dim);
        Tensor x = tensor_cols(view(&in, s.rows, stride), 0, s.in_dim), w = view(&weight, s.out_dim, s.in_dim);
        ops->linear_forward(ops, view(&out, s.rows, s.out_dim), x, w, TENSOR_NONE);
        values_check("linear out", &out, want, s.in_dim);
        Values add = values_normal(dtype, out.count, 1, 0), sum = values_poison(dtype, out.count);
        for (int64_t j = 0; j < out.count; j++)
            want[j] += add.value[j];
        ops->linear_forward(ops, view(&sum, s.rows, s.out_dim), x, w, view(&add, s.rows, s.out_dim));
        values_check("linear out + residual", &sum, want, s.in_dim);
        values_free(&in, &weight, &out, &add, &sum);
        free(want);
    }
    oracle_ops_free(ops);
}

static void linear_backward_input_matches_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 3 * SHAPES; i++) {
        DType dtype = storage_types[i % 3];
        Shape s = shapes[i / 3];
        Values dout = values_normal(dtype, (int64_t)s.rows * s.out_dim, 1, 0);
        Values weight = values_normal(dtype, (int64_t)s.out_dim * s.in_dim, 1, 0);
        Values din = values_poison(dtype, (int64_t)s.rows * s.in_dim);
        double *want = doubles(din.count);
        oracle_matmul(want, dout.value, s.out_dim, 1, weight.value, s.in_dim, 1, s.rows, s.in_dim, s.out_dim);
        ops->linear_backward_input(ops, view(&din, s.rows, s.in_dim), view(&dout, s.rows, s.out_dim),
                                   view(&weight, s.out_dim, s.in_dim));
        values_check("linear din", &din, want, s.out_dim);
        values_free(&dout, &weight, &din);
        free(want);
    }
    oracle_ops_free(ops);
}

// A weight gradient before the op: numbers to add to, or poison to overwrite.
static Values gradient_before(int64_t count, bool accumulate) {
    return accumulate ? values_normal(DTYPE_F32, count, 1, 0) : values_poison(DTYPE_F32, count);
}

// What it must be after: what was there plus what the caller adds here.
static double *gradient_wanted(const Values *before, bool accumulate) {
    double *want = doubles(before->count);
    if (accumulate) memcpy(want, before->value, (size_t)before->count * sizeof *want);
    return want;
}

static void linear_backward_weight_adds_or_overwrites_as_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 6 * SHAPES; i++) {
        DType dtype = storage_types[i % 3];
        bool accumulate = i / 3 % 2;
        Shape s = shapes[i / 6];
        Values dout = values_normal(dtype, (int64_t)s.rows * s.out_dim, 1, 0);
        int64_t stride = input_stride(s, i);
        Values in = input_values(dtype, s, stride);
        Values dweight = gradient_before((int64_t)s.out_dim * s.in_dim, accumulate);
        double *want = gradient_wanted(&dweight, accumulate);
        oracle_matmul(want, dout.value, 1, s.out_dim, in.value, stride, 1, s.out_dim, s.in_dim, s.rows);
        ops->linear_backward_weight(ops, view(&dweight, s.out_dim, s.in_dim), view(&dout, s.rows, s.out_dim),
                                    tensor_cols(view(&in, s.rows, stride), 0, s.in_dim), accumulate);
        values_check("linear dweight", &dweight, want, s.rows);
        values_free(&dout, &in, &dweight);
        free(want);
    }
    oracle_ops_free(ops);
}

// ---- grouped: each expert's rows are a linear layer of their own --------------------------------------------------

typedef struct Groups {
    int experts, in_dim, out_dim;
    int32_t offsets[8];
    int rows; // capacity; some rows behind the last expert are unused
} Groups;
static const Groups groups[] = {{1, 8, 8, {0, 5}, 5},
                                {3, 17, 33, {0, 0, 7, 40}, 44},
                                {4, 64, 48, {0, 130, 130, 131, 420}, 430},
                                {5, 300, 280, {0, 64, 65, 65, 300, 300}, 300}};
enum { GROUPS = sizeof groups / sizeof *groups };

// Rows in use must match; the others must still be the poison they were.
static void check_used_rows(const char *what, Values *tensor, const double *want, int64_t used, int64_t length) {
    int64_t count = tensor->count;
    tensor->count = used;
    values_check(what, tensor, want, length);
    tensor->count = count;
    values_read(tensor);
    for (int64_t i = used; i < count; i++)
        assert_true(isnan(tensor->value[i]));
}

static void grouped_forward_and_input_match_float64_and_leave_unused_rows(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 3 * GROUPS; i++) {
        DType dtype = storage_types[i % 3];
        const Groups *g = &groups[i / 3];
        int64_t n = g->in_dim, m = g->out_dim, used = g->offsets[g->experts];
        Values in = values_normal(dtype, g->rows * n, 1, 0), weight = values_normal(dtype, g->experts * n * m, 1, 0);
        Values dout = values_normal(dtype, g->rows * m, 1, 0);
        Values out = values_poison(dtype, g->rows * m), din = values_poison(dtype, g->rows * n);
        double *want = doubles(out.count), *dwant = doubles(din.count);
        for (int e = 0; e < g->experts; e++) {
            int64_t first = g->offsets[e], rows = g->offsets[e + 1] - first;
            oracle_matmul(want + first * m, in.value + first * n, n, 1, weight.value + e * n * m, 1, n, rows, m, n);
            oracle_matmul(dwant + first * n, dout.value + first * m, m, 1, weight.value + e * n * m, n, 1, rows, n, m);
        }
        Tensor w = view(&weight, g->experts * m, n), offsets = view_ints(g->offsets, 1, g->experts + 1);
        ops->grouped_linear_forward(ops, view(&out, g->rows, m), view(&in, g->rows, n), w, offsets, TENSOR_NONE,
                                    TENSOR_NONE);
        ops->grouped_linear_backward_input(ops, view(&din, g->rows, n), view(&dout, g->rows, m), w, offsets);
        check_used_rows("grouped out", &out, want, used * m, n);
        check_used_rows("grouped din", &din, dwant, used * n, m);
        values_free(&in, &weight, &dout, &out, &din);
        free(want), free(dwant);
    }
    oracle_ops_free(ops);
}

// Experts without rows among them: an overwritten gradient of theirs is zero.
static void grouped_backward_weight_adds_or_overwrites_as_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    for (int i = 0; i < 6 * GROUPS; i++) {
        DType dtype = storage_types[i % 3];
        bool accumulate = i / 3 % 2;
        const Groups *g = &groups[i / 6];
        int64_t n = g->in_dim, m = g->out_dim;
        Values in = values_normal(dtype, g->rows * n, 1, 0), dout = values_normal(dtype, g->rows * m, 1, 0);
        Values dweight = gradient_before(g->experts * n * m, accumulate);
        double *want = gradient_wanted(&dweight, accumulate);
        for (int e = 0; e < g->experts; e++)
            oracle_matmul(want + e * n * m, dout.value + g->offsets[e] * m, 1, m, in.value + g->offsets[e] * n, n, 1, m,
                          n, g->offsets[e + 1] - g->offsets[e]);
        ops->grouped_linear_backward_weight(ops, view(&dweight, g->experts * m, n), view(&dout, g->rows, m),
                                            view(&in, g->rows, n), view_ints(g->offsets, 1, g->experts + 1),
                                            TENSOR_NONE, TENSOR_NONE, accumulate);
        values_check("grouped dweight", &dweight, want, g->rows);
        values_free(&in, &dout, &dweight);
        free(want);
    }
    oracle_ops_free(ops);
}

// The rows that moe_gather makes: zeros where there is no token; rows behind the last expert are left alone.
static Values rows_of_tokens(const Values *tokens, const int32_t *token_of_row, int64_t used, int64_t rows,
                             int64_t width) {
    Values out = values_poison(tokens->dtype, rows * width);
    size_t bytes = (size_t)width * dtype_size(tokens->dtype);
    for (int64_t row = 0; row < used; row++) {
        char *to = (char *)out.data + (size_t)row * bytes;
        if (token_of_row[row] < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, (const char *)tokens->data + (size_t)token_of_row[row] * bytes, bytes);
    }
    return out;
}

// Expert 1 has no rows, others end in padding; a token has two rows, one or none.
enum { TOKENS = 9, USED = 16, CAPACITY = 20, EXPERTS_HERE = 4 };
static const int32_t ends[] = {0, 8, 8, 12, 16};
static const int32_t at[CAPACITY] = {0, 2, 3, 5, 8, -1, -1, -1, 1, -1, -1, -1, 2, 4, 7, 8, -1, -1, -1, -1};

static void grouped_products_of_tokens_have_the_bits_of_products_of_their_rows(void **state) {
    (void)state;
    enum { IN = 17, OUT = 33, WEIGHTS = EXPERTS_HERE * OUT };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    Tensor offsets = view_ints(ends, 1, EXPERTS_HERE + 1), index = view_ints(at, CAPACITY, 1);
    for (int i = 0; i < 6; i++) {
        DType dtype = storage_types[i % 3];
        Values in = values_normal(dtype, TOKENS * IN, 1, 0), in_rows = rows_of_tokens(&in, at, USED, CAPACITY, IN);
        Values dout = values_normal(dtype, CAPACITY * OUT, 1, 0), weight = values_normal(dtype, WEIGHTS * IN, 1, 0);
        Values in_place = values_poison(dtype, CAPACITY * IN), results[2][2];
        Tensor x = view(&in, TOKENS, IN), rows = view(&in_rows, CAPACITY, IN), place = view(&in_place, CAPACITY, IN);
        for (int tokens = 0; tokens < 2; tokens++) {
            Values *r = results[tokens];
            Tensor from = tokens ? index : TENSOR_NONE;
            r[0] = values_poison(dtype, CAPACITY * OUT), r[1] = values_zero(DTYPE_F32, weight.count);
            ops->grouped_linear_forward(ops, view(&r[0], CAPACITY, OUT), tokens ? x : rows, view(&weight, WEIGHTS, IN),
                                        offsets, from, place);
            ops->grouped_linear_backward_weight(ops, view(&r[1], WEIGHTS, IN), view(&dout, CAPACITY, OUT),
                                                tokens ? x : rows, offsets, from, place, i / 3);
        }
        for (int k = 0; k < 2; k++) {
            size_t bytes = (size_t)results[0][k].count * dtype_size(results[0][k].dtype);
            assert_memory_equal(results[1][k].data, results[0][k].data, bytes);
            values_free(&results[0][k], &results[1][k]);
        }
        values_free(&in, &in_rows, &dout, &weight, &in_place);
    }
    oracle_ops_free(ops);
}

static void assert_same_bits(const Values *a, const Values *b) {
    assert_memory_equal(a->data, b->data, (size_t)a->count * dtype_size(a->dtype));
}

// Forward of rows and of tokens, backward also in place. Rows behind the last expert are left alone.
static void grouped_swiglu_has_the_bits_of_a_product_and_swiglu(void **state) {
    (void)state;
    enum { IN = 17, DIM = 21, NEXT = 19 };
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    Tensor offsets = view_ints(ends, 1, EXPERTS_HERE + 1), index = view_ints(at, CAPACITY, 1), none = TENSOR_NONE;
    Tensor count = tensor_cols(offsets, EXPERTS_HERE, 1);
    for (int i = 0; i < 12; i++) {
        DType dtype = storage_types[i % 3];
        bool tokens = i / 3 % 2, in_place = i / 6;
        int64_t sources = tokens ? TOKENS : CAPACITY;
        Values in = values_normal(dtype, sources * IN, 1, 0), dnext = values_normal(dtype, CAPACITY * NEXT, 1, 0);
        Values up_weight = values_normal(dtype, (int64_t)EXPERTS_HERE * 2 * DIM * IN, 1, 0);
        Values down_weight = values_normal(dtype, (int64_t)EXPERTS_HERE * NEXT * DIM, 1, 0);
        Values weights = values_normal(DTYPE_F32, CAPACITY, 0.2, 0.5);
        Values place = values_poison(dtype, CAPACITY * IN);
        Values gate_up[2], hidden[2], dgate_up[2], again[2], drow[2];
        for (int k = 0; k < 2; k++) {
            gate_up[k] = k ? values_copy(&gate_up[0]) : values_normal(dtype, CAPACITY * 2 * DIM, 1, 0);
            hidden[k] = values_poison(dtype, CAPACITY * DIM);
            dgate_up[k] = values_copy(&gate_up[0]), again[k] = values_poison(dtype, CAPACITY * DIM);
            drow[k] = values_poison(DTYPE_F32, CAPACITY);
        }
        Tensor from = tokens ? index : none, x = view(&in, sources, IN), dy = view(&dnext, CAPACITY, NEXT);
        Tensor w = view(&weights, CAPACITY, 1), gu = view(&gate_up[0], CAPACITY, 2 * DIM);
        Tensor h = view(&hidden[0], CAPACITY, DIM), dh = view(&again[0], CAPACITY, DIM);
        Tensor up = view(&up_weight, (int64_t)EXPERTS_HERE * 2 * DIM, IN);
        Tensor down = view(&down_weight, (int64_t)EXPERTS_HERE * NEXT, DIM);
        Tensor in_scratch = view(&place, CAPACITY, IN);
        ops->grouped_linear_forward(ops, gu, x, up, offsets, from, in_scratch);
        ops->swiglu_forward(ops, h, gu, w, count);
        ops->grouped_linear_backward_input(ops, dh, dy, down, offsets);
        ops->swiglu_backward(ops, view(&dgate_up[0], CAPACITY, 2 * DIM), dh, view(&drow[0], CAPACITY, 1), gu, dh, w,
                             count);
        Tensor gu2 = view(&gate_up[1], CAPACITY, 2 * DIM);
        ops->grouped_swiglu_forward(ops, view(&hidden[1], CAPACITY, DIM), gu2, x, up, offsets, w, from, in_scratch);
        assert_same_bits(&gate_up[1], &gate_up[0]);
        assert_same_bits(&hidden[1], &hidden[0]);
        ops->grouped_swiglu_backward(ops, in_place ? gu2 : view(&dgate_up[1], CAPACITY, 2 * DIM),
                                     view(&again[1], CAPACITY, DIM), view(&drow[1], CAPACITY, 1), gu2, dy, down,
                                     offsets, w);
        assert_same_bits(in_place ? &gate_up[1] : &dgate_up[1], &dgate_up[0]);
        assert_same_bits(&again[1], &again[0]);
        assert_same_bits(&drow[1], &drow[0]);
        for (int k = 0; k < 2; k++)
            values_free(&gate_up[k], &hidden[k], &dgate_up[k], &again[k], &drow[k]);
        values_free(&in, &dnext, &up_weight, &down_weight, &weights, &place);
    }
    oracle_ops_free(ops);
}

static void router_products_match_float64(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 1, 0, 1, 8, 0);
    const Shape router[] = {{1, 8, 2}, {65, 56, 7}, {300, 130, 128}};
    for (int i = 0; i < 18; i++) {
        DType dtype = storage_types[i % 3];
        bool accumulate = i / 3 % 2;
        Shape s = router[i / 6];
        Values in = values_normal(dtype, (int64_t)s.rows * s.in_dim, 1, 0);
        Values weight = values_normal(dtype, (int64_t)s.out_dim * s.in_dim, 1, 0);
        Values logits = values_poison(DTYPE_F32, (int64_t)s.rows * s.out_dim);
        Values dlogits = values_normal(DTYPE_F32, logits.count, 1, 0);
        Values din = values_normal(dtype, in.count, 1, 0), dweight = gradient_before(weight.count, accumulate);
        double *want = doubles(logits.count), *din_want = din.value;
        double *dweight_want = gradient_wanted(&dweight, accumulate);
        din.value = doubles(din.count);
        oracle_matmul(want, in.value, s.in_dim, 1, weight.value, 1, s.in_dim, s.rows, s.out_dim, s.in_dim);
        oracle_matmul(din_want, dlogits.value, s.out_dim, 1, weight.value, s.in_dim, 1, s.rows, s.in_dim, s.out_dim);
        oracle_matmul(dweight_want, dlogits.value, 1, s.out_dim, in.value, s.in_dim, 1, s.out_dim, s.in_dim, s.rows);
        Tensor x = view(&in, s.rows, s.in_dim), w = view(&weight, s.out_dim, s.in_dim);
        ops->moe_router_forward(ops, view(&logits, s.rows, s.out_dim), x, w);
        ops->moe_router_backward(ops, view(&din, s.rows, s.in_dim), view(&dweight, s.out_dim, s.in_dim),
                                 view(&dlogits, s.rows, s.out_dim), x, w, accumulate);
        values_check("router logits", &logits, want, s.in_dim);
        values_check("router din", &din, din_want, s.out_dim);
        values_check("router dweight", &dweight, dweight_want, s.rows);
        values_free(&in, &weight, &logits, &dlogits, &din, &dweight);
        free(want), free(din_want), free(dweight_want);
    }
    oracle_ops_free(ops);
}

// A register tile that is cut takes as long as a whole one: of the tiles of a product only the last may be.
static void tiles_of_a_product_are_whole_register_tiles(void **state) {
    (void)state;
    for (int64_t whole = GEMM_LANES; whole <= AVX512_TILE_COLUMNS; whole *= 2)
        for (int64_t most = 128; most <= 512; most *= 2)
            for (int64_t size = 1; size <= 3000; size++) {
                int64_t tile = cpu_gemm_tile(size, most, whole);
                assert_true(tile > 0 && tile <= most);
                assert_true(tile == size || tile % whole == 0);
                assert_true((size + tile - 1) / tile <= (size + most - 1) / most);
            }
    assert_int_equal(cpu_gemm_tile(160, 128, AVX512_TILE_COLUMNS), 96);
}

static Gemm gemm_like(bool turn_a, bool turn_b, DType dtype, int64_t k) {
    return (Gemm){.k = k, .a.transposed = turn_a, .b.transposed = turn_b, .c_dtype = dtype};
}

// Against every cut there is: what a thread takes is within the limits, and no cut is cheaper by more than a
// twenty-fifth.
static void check_cut(const GemmCost *cost, int64_t m, int64_t n, int64_t threads) {
    int64_t rows = 0, columns = 0, least = INT64_MAX;
    cpu_gemm_cut(cost, m, n, threads, &rows, &columns);
    assert_true(rows > 0 && rows <= cost->most_rows && rows % cost->tile_rows == 0);
    assert_true(columns > 0 && columns <= cost->most_columns && columns % cost->tile_columns == 0);
    for (int64_t r = cost->tile_rows; r < m + cost->tile_rows && r <= cost->most_rows; r += cost->tile_rows)
        for (int64_t w = cost->tile_columns; w < n + cost->tile_columns && w <= cost->most_columns;
             w += cost->tile_columns) {
            int64_t other = cpu_gemm_cost(cost, m, n, r, w, threads);
            if (other < least) least = other;
        }
    assert_true(cpu_gemm_cost(cost, m, n, rows, columns, threads) <= least + least / 25);
}

static void a_product_is_cut_as_its_costs_say(void **state) {
    (void)state;
    static const int64_t sides[] = {1, 14, 31, 160, 256, 500, 1408, 2048, 4096, 32000},
                         threads[] = {1, 2, 3, 16, 64, 256};
    enum { SIDES = sizeof sides / sizeof *sides, THREADS = sizeof threads / sizeof *threads };
    for (int layout = 0; layout < 16; layout++) {
        Gemm gemm = gemm_like(layout & 1, layout & 2, layout & 4 ? DTYPE_BF16 : DTYPE_F32, 2048);
        GemmCost cost = cpu_gemm_costs(&gemm, layout & 8);
        for (int i = 0; i < SIDES * SIDES * THREADS; i++)
            check_cut(&cost, sides[i % SIDES], sides[i / SIDES % SIDES], threads[i / SIDES / SIDES]);
    }
    // Two threads: 74 register tiles down and 8 across, the rows of a and columns of b packed; twice half of the
    // columns.
    GemmCost cost = {14, 32, 1036, 1024, 28, 5, 11};
    assert_int_equal(cpu_gemm_cost(&cost, 2048, 256, 1036, 256, 2), 33 * (74 * 8 * 28 + 74 * 5 + 8 * 11));
    assert_int_equal(cpu_gemm_cost(&cost, 2048, 256, 1036, 128, 2), 65 * (74 * 4 * 28 + 74 * 5 + 4 * 11));
}

// Lines that are turned on the way cost more; where sums wait, tiles are smaller.
static void costs_follow_the_layout(void **state) {
    (void)state;
    for (int amx = 0; amx < 2; amx++) {
        Gemm rows = gemm_like(false, false, DTYPE_BF16, 384), turned = gemm_like(true, true, DTYPE_BF16, 385);
        GemmCost a = cpu_gemm_costs(&rows, amx), b = cpu_gemm_costs(&turned, amx);
        assert_true(amx ? a.pack_a < b.pack_a : a.pack_a > b.pack_a);
        assert_true(a.pack_b < b.pack_b);
        assert_int_equal(a.most_rows, amx ? AMX_ROWS : AVX512_ROWS);
        assert_int_equal(a.most_columns, amx ? AMX_COLUMNS : AVX512_COLUMNS);
        assert_int_equal(b.most_rows, amx ? AMX_ROWS : AVX512_WAITING_ROWS);
        assert_int_equal(b.most_columns, amx ? AMX_COLUMNS : AVX512_WAITING_COLUMNS);
        turned.c_dtype = DTYPE_F32;
        assert_int_equal(cpu_gemm_costs(&turned, amx).most_rows, a.most_rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_is_cut_as_its_costs_say),
        cmocka_unit_test(costs_follow_the_layout),
        cmocka_unit_test(linear_forward_matches_float64),
        cmocka_unit_test(linear_backward_input_matches_float64),
        cmocka_unit_test(linear_backward_weight_adds_or_overwrites_as_float64),
        cmocka_unit_test(grouped_forward_and_input_match_float64_and_leave_unused_rows),
        cmocka_unit_test(grouped_backward_weight_adds_or_overwrites_as_float64),
        cmocka_unit_test(grouped_products_of_tokens_have_the_bits_of_products_of_their_rows),
        cmocka_unit_test(grouped_swiglu_has_the_bits_of_a_product_and_swiglu),
        cmocka_unit_test(router_products_match_float64),
        cmocka_unit_test(tiles_of_a_product_are_whole_register_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
