// Alarms on made-up streams: each is raised once where there is a cause, and by no noise.
#include "testing.h"

#include "base/json.h"
#include "watch/alarms.h"

typedef struct Stream {
    Alarms alarms;
    MetricsStep step;
    int raised[ALARM_COUNT];
    int64_t first[ALARM_COUNT]; // step that raised it
    uint64_t random;
} Stream;

static double noise(Stream *stream) { // uniform in [-1, 1)
    stream->random = stream->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(stream->random >> 11) / (double)(1ull << 52) - 1;
}

static void stream_begin(Stream *stream) {
    *stream = (Stream){.random = 7};
    AlarmOptions options = {.young_seconds = 3600, .checkpoint_bytes = 1e9, .loss_gap_bound = 0.01};
    alarms_begin(&stream->alarms, &options);
}

static void count_raised(Stream *stream, Alarm *out, int count) {
    for (int i = 0; i < count; i++) {
        if (!stream->raised[out[i].kind]++) stream->first[out[i].kind] = stream->step.step;
        assert_int_equal(out[i].step, stream->step.step);
        assert_true(strlen(out[i].message) > 20);
        alarm_free(&out[i]);
    }
}

// A healthy step of two seconds, with the noise that real ones have.
static MetricsStep *healthy(Stream *stream) {
    MetricsStep *step = &stream->step;
    *step = (MetricsStep){.step = step->step + 1, .tokens = step->tokens + 1000, .seconds = 2};
    step->time = 1.7e9 + 2.0 * (double)step->step;
    step->loss = 2 + 4 * exp(-0.01 * (double)step->step) + 0.08 * noise(stream);
    step->grad_norm = exp(0.9 * noise(stream)); // 0.4 to 2.5
    step->tokens_per_second = 500 * (1 + 0.08 * noise(stream));
    step->memory_bytes = 40e9 * (1 + 0.002 * noise(stream));
    step->data_wait = noise(stream) > 0.8 ? 0.1 : 0; // 1 % on average
    step->machine.host_bytes = 4e9 * (1 + 0.01 * noise(stream));
    step->machine.gpu_clock = 1700 + 50 * noise(stream);
    step->machine.gpu_power_capped = 1;
    step->checkpoint_age = (double)(step->step % 900) * 2;
    return step;
}

static void feed(Stream *stream) {
    Alarm out[ALARM_COUNT];
    count_raised(stream, out, alarms_step(&stream->alarms, &stream->step, out));
    if (stream->step.step % 30 == 0) {
        double room = 400e9 + 1e9 * noise(stream); // another run writes and removes checkpoints
        count_raised(stream, out, alarms_disk(&stream->alarms, &stream->step, stream->step.time, room, out));
    }
}

static void assert_only(const Stream *stream, AlarmKind kind) {
    for (int i = 0; i < ALARM_COUNT; i++)
        if (stream->raised[i] != (i == (int)kind))
            fail_msg("%s was raised %d times", alarm_name((AlarmKind)i), stream->raised[i]);
}

static void noise_raises_none(void **state) {
    (void)state;
    Stream stream;
    stream_begin(&stream);
    static const ExpertLoad loads[] = {{1.5, 0.9, 1}, {1.2, 0.95, 0}}, none[] = {{1.5, 0.9, 0}, {1.2, 0.95, 0}};
    for (int i = 0; i < 20000; i++) { // eleven hours
        MetricsStep *step = healthy(&stream);
        step->moe = i % 40 < 30 ? loads : none; // now and then an expert gets no token
        step->moe_count = i % 10 == 0 ? 2 : 0;
        feed(&stream);
    }
    assert_only(&stream, ALARM_COUNT);
}

typedef void Change(Stream *stream, MetricsStep *step);

// A thousand healthy steps, then twenty thousand changed ones.
static void assert_raised(AlarmKind kind, Change *change) {
    Stream stream;
    stream_begin(&stream);
    for (int i = 0; i < 1000; i++)
        healthy(&stream), feed(&stream);
    assert_only(&stream, ALARM_COUNT);
    for (int i = 0; i < 20000; i++) {
        change(&stream, healthy(&stream));
        feed(&stream);
    }
    assert_only(&stream, kind);
    assert_true(stream.first[kind] > 1000);
}

static void wait_for_data(Stream *stream, MetricsStep *step) {
    step->data_wait = 0.03 + 0.02 * noise(stream);
}
static void leak_on_device(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->memory_bytes += 1e6 * (double)(step->step - 1000);
}
static void leak_on_host(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->machine.host_bytes += 4e6 * (double)(step->step - 1000);
}
static void loss_jumps(Stream *stream, MetricsStep *step) {
    (void)stream;
    if (step->step % 500 == 0) step->loss += 1;
}
static void loss_is_nan(Stream *stream, MetricsStep *step) {
    (void)stream;
    if (step->step % 500 == 0) step->loss = NAN, step->skipped = true;
}
static void norm_jumps(Stream *stream, MetricsStep *step) {
    (void)stream;
    if (step->step % 500 == 0) step->grad_norm = 30;
}
static void losses_part(Stream *stream, MetricsStep *step) {
    if (step->step % 100) return;
    step->loss_bf16 = step->loss * (1 + 0.001 * noise(stream));
    step->loss_gap = step->step == 15000 ? 0.011 : 0.009;
}
static void experts_die(Stream *stream, MetricsStep *step) {
    static const ExpertLoad loads[] = {{1.5, 0.9, 0}, {4, 0.5, 3}};
    (void)stream;
    step->moe = loads;
    step->moe_count = step->step % 10 == 0 ? 2 : 0;
}
static void clock_falls(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->machine.gpu_clock *= 0.85;
}
static void chip_is_hot(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->machine.gpu_throttled = step->step % 4 != 0;
}
static void speed_falls(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->tokens_per_second *= 1 - 0.1 * (double)(step->step - 1000) / 20000;
}
static void peak_is_wrong(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->mfu_refused = 1.2;
}
static void checkpoints_fail(Stream *stream, MetricsStep *step) {
    (void)stream;
    step->checkpoint_age = 2 * (double)(step->step - 1000);
}

static void waiting_for_data(void **state) {
    (void)state;
    assert_raised(ALARM_DATA_WAIT, wait_for_data);
}
static void memory_that_grows(void **state) {
    (void)state;
    assert_raised(ALARM_MEMORY, leak_on_device);
    assert_raised(ALARM_MEMORY, leak_on_host);
}
static void a_loss_that_jumps_or_is_not_finite(void **state) {
    (void)state;
    assert_raised(ALARM_LOSS_SPIKE, loss_jumps);
    assert_raised(ALARM_LOSS_SPIKE, loss_is_nan);
}
static void a_norm_that_jumps(void **state) {
    (void)state;
    assert_raised(ALARM_NORM_SPIKE, norm_jumps);
}
static void losses_of_fp8_and_bf16_that_part(void **state) {
    (void)state;
    assert_raised(ALARM_LOSS_GAP, losses_part);
}
static void gradients_too_large_for_the_loss_scale_raise_none(void **state) {
    (void)state;
    Stream stream;
    stream_begin(&stream);
    for (int i = 0; i < 2000; i++) {
        MetricsStep *step = healthy(&stream);
        if (i % 50 == 0) step->grad_norm = INFINITY, step->skipped = step->overflow = true;
        feed(&stream);
    }
    assert_only(&stream, ALARM_COUNT);
}
static void experts_without_tokens(void **state) {
    (void)state;
    assert_raised(ALARM_DEAD_EXPERTS, experts_die);
}
static void a_gpu_that_slows_down(void **state) {
    (void)state;
    assert_raised(ALARM_THROTTLED, clock_falls);
    assert_raised(ALARM_THROTTLED, chip_is_hot);
}
static void speed_that_falls_over_hours(void **state) {
    (void)state;
    assert_raised(ALARM_SLOWING, speed_falls);
}
static void an_mfu_above_one(void **state) {
    (void)state;
    assert_raised(ALARM_MFU, peak_is_wrong);
}
static void a_checkpoint_older_than_youngs_interval(void **state) {
    (void)state;
    assert_raised(ALARM_CHECKPOINT_AGE, checkpoints_fail);
}

static void room_that_experts_asked_for_is_no_leak(void **state) {
    (void)state;
    Stream stream;
    stream_begin(&stream);
    for (int i = 0; i < 20000; i++) {
        MetricsStep *step = healthy(&stream);
        if (i % 40 == 0) step->expert_rows_grown = 1000 + i; // each time more
        step->memory_bytes += 1e8 * (double)(i / 40);
        feed(&stream);
    }
    assert_only(&stream, ALARM_COUNT);
}

// Of `hours`, looked at every minute.
static int disk_alarms(double free_bytes, double lost_an_hour, int hours) {
    Stream stream;
    stream_begin(&stream);
    for (int minute = 0; minute < 60 * hours; minute++) {
        Alarm out[ALARM_COUNT];
        double left = free_bytes - lost_an_hour * minute / 60;
        count_raised(&stream, out, alarms_disk(&stream.alarms, &stream.step, 1.7e9 + 60.0 * minute, left, out));
    }
    assert_only(&stream, stream.raised[ALARM_DISK] ? ALARM_DISK : ALARM_COUNT);
    return stream.raised[ALARM_DISK];
}

static void a_disk_that_fills_up(void **state) {
    (void)state;
    assert_int_equal(disk_alarms(1.9e9, 0, 3), 1);     // less than two checkpoints of 1 GB
    assert_int_equal(disk_alarms(2.1e9, 0, 3), 0);     // that is all there is room for, and it stays so
    assert_int_equal(disk_alarms(500e9, 50e9, 3), 1);  // full in ten hours
    assert_int_equal(disk_alarms(500e9, 50e9, 1), 0);  // an hour says nothing yet
    assert_int_equal(disk_alarms(5000e9, 50e9, 6), 0); // full in days
}

static void a_line_says_what_and_what_to_do(void **state) {
    (void)state;
    for (int kind = 0; kind < ALARM_COUNT; kind++) {
        char message[] = "it is \"full\"";
        Alarm alarm = {.kind = (AlarmKind)kind, .step = 7, .tokens = 70, .time = 1.5, .message = message};
        TextBuffer line = {0};
        alarm_line(&alarm, &line);
        json_t *root;
        assert_ok(json_read_text(&root, line.data, line.length, "line"));
        assert_true(line.data[line.length - 1] == '\n' && !strchr(line.data, '\n')[1]);
        assert_string_equal(json_string_value(json_object_get(root, "alarm")), alarm_name((AlarmKind)kind));
        assert_string_equal(json_string_value(json_object_get(root, "message")), message);
        assert_true(strlen(json_string_value(json_object_get(root, "advice"))) > 20);
        assert_int_equal(json_integer_value(json_object_get(root, "step")), 7);
        json_decref(root);
        text_buffer_free(&line);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_raises_none),
        cmocka_unit_test(waiting_for_data),
        cmocka_unit_test(memory_that_grows),
        cmocka_unit_test(a_loss_that_jumps_or_is_not_finite),
        cmocka_unit_test(a_norm_that_jumps),
        cmocka_unit_test(losses_of_fp8_and_bf16_that_part),
        cmocka_unit_test(gradients_too_large_for_the_loss_scale_raise_none),
        cmocka_unit_test(experts_without_tokens),
        cmocka_unit_test(a_gpu_that_slows_down),
        cmocka_unit_test(speed_that_falls_over_hours),
        cmocka_unit_test(an_mfu_above_one),
        cmocka_unit_test(a_checkpoint_older_than_youngs_interval),
        cmocka_unit_test(room_that_experts_asked_for_is_no_leak),
        cmocka_unit_test(a_disk_that_fills_up),
        cmocka_unit_test(a_line_says_what_and_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
