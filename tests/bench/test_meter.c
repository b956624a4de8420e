// Joules from a counter that moves now and then: with a counter and a clock of the test's own, so that all is exact.
#include "bench/meter.h"
#include "testing.h"

// Times are multiples of 2^-8 s and watts whole numbers: no product or sum below is rounded.
#define BATCH 0x1p-8

typedef struct FakeMeter {
    double now, period;    // seconds; the counter moves at multiples of it
    double watts, early;   // `early` before second 1
    double batch;          // seconds of a batch
    double stops, falls;   // it counts no more then, or is set back; 0: never
    int64_t batches, fail; // the so-many-th batch fails; 0: none
} FakeMeter;

static Status fake_read(void *context, double *joules) {
    const FakeMeter *fake = context;
    double at = fake->stops > 0 && fake->now > fake->stops ? fake->stops : fake->now;
    if (fake->falls > 0 && at > fake->falls) at -= fake->falls;
    at = floor(at / fake->period) * fake->period;
    *joules = at < 1 ? fake->early * at : fake->early + fake->watts * (at - 1);
    return NULL;
}

static double fake_seconds(void *context) {
    return ((FakeMeter *)context)->now;
}

static Status fake_batch(void *work) {
    FakeMeter *fake = work;
    fake->now += fake->batch;
    return ++fake->batches == fake->fail ? status_runtime("the device is gone") : NULL;
}

static Status measure(FakeMeter *fake, double warm, double seconds, MeterWindow *window) {
    return meter_measure(&(JouleSource){fake_read, fake_seconds, fake}, fake_batch, fake, warm, seconds, window);
}

// The counter moves every eighth batch; a window from any other batch to any other would have joules of another time.
static void joules_and_seconds_are_of_the_same_stretch(void **state) {
    (void)state;
    FakeMeter fake = {.now = 3 * BATCH, .period = 8 * BATCH, .watts = 300, .early = 300, .batch = BATCH};
    MeterWindow window;
    assert_ok(measure(&fake, 0, 2, &window));
    assert_true(window.seconds == 2 && window.joules == 600);
    assert_int_equal(window.batches, 512);
    assert_int_equal(window.moves, 64);
}

static void what_comes_before_the_work_is_warm_is_left_out(void **state) {
    (void)state;
    FakeMeter fake = {.period = 8 * BATCH, .watts = 300, .early = 100, .batch = BATCH};
    MeterWindow window;
    assert_ok(measure(&fake, 1, 1, &window));
    assert_true(window.joules == 300 * window.seconds && window.seconds == 1);
    assert_true(fake.now == 2);
}

static void a_counter_that_moved_seldom_is_measured_for_longer(void **state) {
    (void)state;
    FakeMeter fake = {.period = 0.5, .watts = 80, .early = 80, .batch = BATCH};
    MeterWindow window;
    assert_ok(measure(&fake, 0, 1, &window));
    assert_int_equal(window.moves, METER_MOVES);
    assert_true(window.seconds == 5 && window.joules == 400);
}

static void batches_longer_than_all_patience_are_measured(void **state) {
    (void)state;
    FakeMeter fake = {.period = 8 * BATCH, .watts = 80, .early = 80, .batch = 4 * METER_PATIENCE};
    MeterWindow window;
    assert_ok(measure(&fake, 0, 1, &window));
    assert_int_equal(window.batches, METER_MOVES);
    assert_true(window.joules == 80 * window.seconds);
    fake.period = 1.5 * fake.batch; // some batches end before it moves
    assert_ok(measure(&fake, 0, 1, &window));
    assert_int_equal(window.moves, METER_MOVES);
}

static void a_counter_that_stands_still_is_refused(void **state) {
    (void)state;
    FakeMeter never = {.period = 1e6, .watts = 80, .early = 80, .batch = BATCH};
    FakeMeter later = {.period = 8 * BATCH, .watts = 80, .early = 80, .batch = BATCH, .stops = 1.5};
    MeterWindow window;
    assert_error(measure(&never, 0, 1, &window), "has not moved for 5 s of work");
    assert_true(never.now == METER_PATIENCE + BATCH);
    assert_error(measure(&later, 0, 2, &window), "has not moved for 5 s of work");
}

static void a_counter_that_was_set_back_is_refused(void **state) {
    (void)state;
    FakeMeter fake = {.period = 8 * BATCH, .watts = 80, .early = 80, .batch = BATCH, .falls = 1.5};
    MeterWindow window;
    assert_error(measure(&fake, 0, 2, &window), "fell by 120 J");
}

static void a_failure_of_the_work_ends_it(void **state) {
    (void)state;
    FakeMeter fake = {.period = 8 * BATCH, .watts = 80, .early = 80, .batch = BATCH, .fail = 20};
    MeterWindow window;
    assert_error(measure(&fake, 0, 2, &window), "the device is gone");
    assert_int_equal(fake.batches, 20);
}

static double restless_seconds(void *context) { // a pause of the test's own clock
    FakeMeter *fake = context;
    return fake->now += 2;
}

static void a_machine_at_rest_is_measured_the_same_way(void **state) {
    (void)state;
    FakeMeter fake = {.period = 1, .watts = 60, .early = 60}, still = {.period = 1e6, .watts = 60, .early = 60};
    MeterWindow window;
    assert_ok(meter_rest(&(JouleSource){fake_read, restless_seconds, &fake}, 1, &window));
    assert_true(window.joules == 60 * window.seconds && window.moves == METER_MOVES);
    assert_error(meter_rest(&(JouleSource){fake_read, restless_seconds, &still}, 1, &window), "at rest: ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joules_and_seconds_are_of_the_same_stretch),
        cmocka_unit_test(what_comes_before_the_work_is_warm_is_left_out),
        cmocka_unit_test(a_counter_that_moved_seldom_is_measured_for_longer),
        cmocka_unit_test(batches_longer_than_all_patience_are_measured),
        cmocka_unit_test(a_counter_that_stands_still_is_refused),
        cmocka_unit_test(a_counter_that_was_set_back_is_refused),
        cmocka_unit_test(a_failure_of_the_work_ends_it),
        cmocka_unit_test(a_machine_at_rest_is_measured_the_same_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
