// Preflight: which micro-batches are tried, and which one wins.
#include "tiny_run.h"

#include "train/preflight.h"

static void test_candidates_keep_the_global_batch(void **state) {
    (void)state;
    static const int64_t table[][2] = {{64, 8}, {1, 1}, {3, 7}, {12, 5}, {8, 1}, {1, 32}, {5, 64}, {12, 1}, {7, 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        PreflightTry tries[8];
        int count = preflight_candidates(table[i][0], table[i][1], tries, 8), own = 0;
        assert_in_range(count, 1, 8);
        for (int k = 0; k < count; k++) {
            assert_int_equal(tries[k].micro_batch * tries[k].grad_accum, table[i][0] * table[i][1]);
            if (k) assert_true(tries[k].micro_batch > tries[k - 1].micro_batch);
            own += tries[k].micro_batch == table[i][0];
        }
        assert_int_equal(own, 1);
    }
}

static void test_the_fastest_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.2, 100}, {2, 4, 0.3, 150}, {4, 2, 0.5, 120}};
    assert_int_equal(preflight_choose(tries, 3), 1);
}

static void test_within_one_percent_memory_near_85_percent_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.30, 1000}, {2, 4, 0.80, 995}, {4, 2, 0.93, 999}};
    assert_int_equal(preflight_choose(tries, 3), 1);
    const PreflightTry above[] = {{1, 8, 0.60, 1000}, {2, 4, 0.90, 995}}; // nearer to it, but from above
    assert_int_equal(preflight_choose(above, 2), 0);
}

static void test_over_95_percent_of_memory_never_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.50, 100}, {2, 4, 0.96, 200}};
    assert_int_equal(preflight_choose(tries, 2), 0);
    const PreflightTry none[] = {{1, 8, 0.99, 100}, {2, 4, 0.5, 0}};
    assert_int_equal(preflight_choose(none, 2), -1);
}

static void test_the_shortest_run_is_one_step(void **state) {
    (void)state;
    char *directory = tiny_directory(), *path = tiny_config(directory, "preflight.toml", 4, "");
    Config config;
    setenv("HEARTH_CALIBRATION", "off", 1);
    assert_ok(config_read(&config, path, NULL, 0));
    assert_ok(preflight_run(&config, &(PreflightOptions){.tokens = 1, .seconds = 1e-12}));
    config_free(&config);
    status_free(dir_remove(directory));
    free(directory);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_keep_the_global_batch),
        cmocka_unit_test(test_the_fastest_wins),
        cmocka_unit_test(test_within_one_percent_memory_near_85_percent_wins),
        cmocka_unit_test(test_over_95_percent_of_memory_never_wins),
        cmocka_unit_test(test_the_shortest_run_is_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
