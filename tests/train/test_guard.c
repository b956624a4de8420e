#include "testing.h"

#include "train/guard.h"

static void there_is_no_limit_before_there_are_losses(void **state) {
    (void)state;
    Guard guard = {.factor = 2, .window = 16};
    for (int i = 0; i < 3; i++)
        guard_note(&guard, 1.0, false);
    assert_true(isinf(guard_limit(&guard)));
    guard_note(&guard, 1.0, false);
    assert_float_equal(guard_limit(&guard), 2.0, 1e-6);
}

static void the_limit_follows_the_median_of_the_window(void **state) {
    (void)state;
    Guard guard = {.factor = 3, .window = 4};
    for (int i = 0; i < 4; i++)
        guard_note(&guard, 10.0, false);
    for (int i = 0; i < 4; i++)
        guard_note(&guard, 2.0, false);
    assert_float_equal(guard_limit(&guard), 6.0, 1e-6);
}

static void skipped_losses_count_and_do_not_move_the_limit(void **state) {
    (void)state;
    Guard guard = {.factor = 2, .window = 4};
    for (int i = 0; i < 4; i++)
        guard_note(&guard, 1.0, false);
    guard_note(&guard, 1e9, true);
    guard_note(&guard, NAN, true);
    assert_float_equal(guard_limit(&guard), 2.0, 1e-6);
    assert_int_equal(guard.skipped_in_row, 2);
    guard_note(&guard, 1.0, false);
    assert_int_equal(guard.skipped_in_row, 0);
    assert_int_equal(guard.skipped, 2);
}

static void the_state_survives_json(void **state) {
    (void)state;
    Guard guard = {.factor = 1.5, .window = 8}, again = {.factor = 1.5, .window = 8};
    for (int i = 0; i < 21; i++)
        guard_note(&guard, 1.0 / (i + 3), i % 5 == 0);
    json_t *root = guard_json(&guard);
    char *text = json_dumps(root, 0);
    json_t *read = json_loads(text, 0, NULL);
    assert_ok(guard_restore(&again, read, "test"));
    assert_memory_equal(&guard, &again, sizeof guard);
    free(text);
    json_decref(root);
    json_decref(read);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_no_limit_before_there_are_losses),
        cmocka_unit_test(the_limit_follows_the_median_of_the_window),
        cmocka_unit_test(skipped_losses_count_and_do_not_move_the_limit),
        cmocka_unit_test(the_state_survives_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
