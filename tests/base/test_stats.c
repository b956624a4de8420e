// The median of a list.
#include "testing.h"

#include "base/stats.h"

static void an_odd_count_has_a_middle(void **state) {
    (void)state;
    assert_true(double_median((const double[]){7}, 1) == 7);
    assert_true(double_median((const double[]){9, -1, 4, 100, 2}, 5) == 4);
}

static void an_even_count_gives_the_mean_of_the_middle_two(void **state) {
    (void)state;
    assert_true(double_median((const double[]){3, 1}, 2) == 2);
    assert_true(double_median((const double[]){8, 1, 3, 2}, 4) == 2.5);
}

static void the_values_keep_their_order(void **state) {
    (void)state;
    double values[] = {3, 1, 2};
    double_median(values, 3);
    assert_true(values[0] == 3 && values[1] == 1 && values[2] == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_odd_count_has_a_middle),
        cmocka_unit_test(an_even_count_gives_the_mean_of_the_middle_two),
        cmocka_unit_test(the_values_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
