// bench step on the CPU: what the parts of a step add up to.
#include "bench/bench_step.h"
#include "model/small_models.h"

static Ops real;
static bool profiled;

static void note_profile_start(Ops *ops) {
    profiled = true;
    real.profile_start(ops);
}

static void note_profile_stop(Ops *ops, double milliseconds[OP_COUNT]) {
    profiled = false;
    real.profile_stop(ops, milliseconds);
}

// The profiled step is another one than those that were timed; here it has much more to do than they.
static void adamw_slow_in_profile(Ops *ops, const AdamwArgs *args) {
    for (int i = 0; i < (profiled ? 200 : 1); i++)
        real.adamw(ops, args);
}

static void parts_and_gaps_are_of_the_step_they_split(void **state) {
    (void)state;
    Ops *ops;
    BenchResult result;
    BenchStep bench = {.request = small_request(SMALL_LLAMA), .accum = 2, .steps = 3};
    assert_ok(ops_create(&ops, "cpu"));
    real = *ops;
    ops->profile_start = note_profile_start;
    ops->profile_stop = note_profile_stop;
    ops->adamw = adamw_slow_in_profile;
    assert_ok(bench_step(ops, &bench, &result));
    double sum = result.gaps_ms;
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        assert_true(result.split_ms[i] >= 0);
        sum += result.split_ms[i];
    }
    assert_true(result.gaps_ms >= 0);
    assert_true(fabs(sum - result.split_step_ms) <= 1e-9 * sum);
    assert_true(result.split_ms[CATEGORY_OPTIMIZER] > 0);
    assert_true(fabs(result.tokens_per_second * result.step_seconds - 2 * 2 * 21) < 1e-9);
    ops_destroy(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_and_gaps_are_of_the_step_they_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
