// Sums over ranks, without ranks.
#include "dist/sum.h"
#include "testing.h"

enum { COUNT = 2500, RANKS = 3 }; // more than two blocks, and not a whole number of them

static void floats_are_added_in_the_order_of_the_ranks(void **state) {
    (void)state;
    // (1e8 + 1) - 1e8 is 0 in float, (1e8 - 1e8) + 1 is 1
    float a[COUNT], b[COUNT], c[COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = 1e8f, b[i] = 1, c[i] = -1e8f;
    sum_ranks(out, (const void *[]){a, b, c}, RANKS, COUNT, DTYPE_F32);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == 0);
    sum_ranks(out, (const void *[]){a, c, b}, RANKS, COUNT, DTYPE_F32);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == 1);
}

static void bf16_is_rounded_once(void **state) {
    (void)state;
    // 1 + 2^-8 rounds back to 1 in bf16 each time; 1 + 2 * 2^-8 is a bf16
    bf16 one = bf16_from_f32(1), small = bf16_from_f32(0x1p-8f), a[COUNT], b[COUNT], c[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = one, b[i] = c[i] = small;
    sum_ranks(a, (const void *[]){a, b, c}, RANKS, COUNT, DTYPE_BF16);
    for (int i = 0; i < COUNT; i++)
        assert_true(bf16_to_f32(a[i]) == 1 + 0x1p-7f);
}

static void f16_is_rounded_once(void **state) {
    (void)state;
    // 1 + 2^-11 rounds back to 1 in f16 each time; 1 + 2 * 2^-11 is an f16
    uint16_t one = f16_from_f32(1), small = f16_from_f32(0x1p-11f), a[COUNT], b[COUNT], c[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = one, b[i] = c[i] = small;
    sum_ranks(a, (const void *[]){a, b, c}, RANKS, COUNT, DTYPE_F16);
    for (int i = 0; i < COUNT; i++)
        assert_true(f16_to_f32(a[i]) == 1 + 0x1p-10f);
}

static void int32_sums_are_exact(void **state) {
    (void)state;
    int32_t a[COUNT], b[COUNT], c[COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = (1 << 30) + i, b[i] = -(1 << 30), c[i] = 16777217;
    sum_ranks(out, (const void *[]){a, b, c}, RANKS, COUNT, DTYPE_I32);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(out[i], 16777217 + i);
}

static void the_largest_wins_and_nan_over_it(void **state) {
    (void)state;
    float a[] = {1, -5, NAN, 7, -1}, b[] = {2, -6, 3, NAN, -1}, c[] = {0, -7, 9, 8, -INFINITY}, out[5];
    sum_ranks_max(out, (const void *[]){a, b, c}, RANKS, 5, DTYPE_F32);
    assert_true(out[0] == 2 && out[1] == -5 && isnan(out[2]) && isnan(out[3]) && out[4] == -1);
    int32_t whole[3][2] = {{-3, 5}, {-2, 4}, {-9, INT32_MIN}}, most[2];
    sum_ranks_max(most, (const void *[]){whole[0], whole[1], whole[2]}, RANKS, 2, DTYPE_I32);
    assert_true(most[0] == -2 && most[1] == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_are_added_in_the_order_of_the_ranks),
        cmocka_unit_test(bf16_is_rounded_once),
        cmocka_unit_test(f16_is_rounded_once),
        cmocka_unit_test(int32_sums_are_exact),
        cmocka_unit_test(the_largest_wins_and_nan_over_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
