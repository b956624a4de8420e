// The recorder's thread: what is handed over is in the files, whatever the disk does, and costs the step next to
// nothing.
#include "faults.h"
#include "testing.h"

#include "base/json.h"
#include "watch/metrics_table.h"
#include "watch/progress.h"
#include "watch/recorder.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

static char *directory, *metrics_path;

static int make_directory(void **state) {
    (void)state;
    directory = text_copy("/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    metrics_path = path_join(directory, "metrics.jsonl");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory), free(metrics_path);
    return 0;
}

static Recorder *open_recorder(int64_t last_step) {
    Recorder *recorder;
    RecorderOptions options = {.directory = directory,
                               .last_step = last_step,
                               .tensorboard = true,
                               .config_text = "a = 1\n",
                               .machine = {.gpu = -1, .every = 1e-9},
                               .alarms = {.young_seconds = 100}};
    assert_ok(recorder_open(&recorder, &options));
    return recorder;
}

static MetricsStep step_of(int64_t number) {
    return (MetricsStep){.step = number, .tokens = 10 * number, .loss = 2.5, .grad_norm = 1, .seconds = 0.1};
}

typedef struct Lines {
    int64_t steps, evaluations, last;
    double time, host_bytes;
} Lines;

static void take_line(const json_t *line, void *context) {
    Lines *lines = context;
    int64_t step = (int64_t)metrics_line_value(line, "step");
    if (metrics_line_kind(line) == METRICS_EVALUATION) {
        lines->evaluations++;
        assert_int_equal(step, lines->last); // in the order that it was handed over
        return;
    }
    assert_int_equal(step, lines->last + 1);
    assert_true(metrics_line_value(line, "time") >= lines->time);
    lines->time = metrics_line_value(line, "time");
    lines->host_bytes = metrics_line_value(line, "host_bytes");
    double dead = metrics_line_value(line, "moe_dead");
    assert_true(isnan(dead) || dead == (double)step);
    lines->last = step;
    lines->steps++;
}

static Lines read_lines(void) {
    Lines lines = {0};
    assert_ok(metrics_read(metrics_path, take_line, &lines));
    return lines;
}

static void all_that_was_handed_over_is_in_the_file_in_its_order(void **state) {
    (void)state;
    enum { STEPS = 10000 }; // more than the queue has room for
    double before = (double)time(NULL) - 1;
    Recorder *recorder = open_recorder(0);
    ExpertLoad load = {2, 0.5, 0};
    for (int i = 1; i <= STEPS; i++) {
        MetricsStep step = step_of(i);
        load.dead = i; // what was handed over is a copy, which the next step leaves alone
        step.moe = &load, step.moe_count = 1;
        recorder_step(recorder, &step);
        if (i % 1000 == 0) recorder_evaluation(recorder, i, 10 * i, &(Evaluation){.loss = 2});
        if (i == 500) {
            recorder_flush(recorder);
            assert_int_equal(read_lines().steps, 500);
        }
    }
    assert_int_equal(recorder_missing(recorder).records, 0);
    Lines lines = read_lines();
    assert_int_equal(lines.steps, STEPS);
    assert_int_equal(lines.evaluations, STEPS / 1000);
    assert_true(lines.time >= before && lines.time <= (double)time(NULL) + 1);
    assert_true(lines.host_bytes > 1e5);
    recorder_close(recorder);
}

static void closing_writes_what_is_left(void **state) {
    (void)state;
    Recorder *recorder = open_recorder(0);
    for (int i = 1; i <= 1000; i++) {
        MetricsStep step = step_of(i);
        recorder_step(recorder, &step);
    }
    recorder_close(recorder);
    assert_int_equal(read_lines().steps, 1000);
}

static void a_full_disk_is_said_once_and_what_it_did_not_take_is_written_later(void **state) {
    (void)state;
    Recorder *recorder = open_recorder(0);
    Faults faults = {.kind = IO_WRITE, .number = 1, .error = ENOSPC, .where = "metrics.jsonl", .lasting = true};
    faults_start(&faults);
    for (int i = 1; i <= 20; i++) {
        MetricsStep step = step_of(i);
        recorder_step(recorder, &step);
    }
    AppendMissing missing = recorder_missing(recorder);
    assert_true(missing.records == 20 && missing.first_step == 1 && missing.last_step == 20);
    char *said = recorder_said(recorder);
    assert_non_null(strstr(said, "metrics cannot be written"));
    assert_non_null(strstr(said, strerror(ENOSPC)));
    assert_null(recorder_said(recorder));
    faults_stop();
    free(said);
    MetricsStep step = step_of(21);
    recorder_step(recorder, &step);
    recorder_flush(recorder);
    assert_int_equal(read_lines().steps, 21);
    assert_int_equal(recorder_missing(recorder).records, 0);
    assert_null(recorder_said(recorder));
    recorder_close(recorder);
}

static void a_run_without_tensorboards_folder_has_its_metrics(void **state) {
    (void)state;
    char *folder = path_join(directory, "tensorboard");
    assert_ok(dir_remove(folder));
    assert_ok(file_write_atomic(folder, "", 0)); // a file is in the way
    Recorder *recorder = open_recorder(0);
    MetricsStep step = step_of(1);
    recorder_step(recorder, &step);
    recorder_flush(recorder);
    char *said = recorder_said(recorder);
    assert_non_null(strstr(said, "there will be no TensorBoard files"));
    assert_int_equal(read_lines().steps, 1);
    recorder_close(recorder);
    assert_ok(dir_remove(folder));
    free(said), free(folder);
}

static void an_alarm_is_said_and_has_a_line(void **state) {
    (void)state;
    char *path = path_join(directory, "alarms.jsonl");
    unlink(path);
    Recorder *recorder = open_recorder(0);
    for (int i = 1; i <= 3; i++) {
        MetricsStep step = step_of(i);
        step.checkpoint_age = i == 1 ? 99 : 101; // Young's interval is 100
        recorder_step(recorder, &step);
    }
    recorder_flush(recorder);
    char *said = recorder_said(recorder);
    assert_non_null(strstr(said, "the newest checkpoint is"));
    assert_non_null(strstr(said, alarm_advice(ALARM_CHECKPOINT_AGE)));
    assert_null(recorder_said(recorder));
    recorder_close(recorder);
    json_t *root;
    assert_ok(json_read_file(&root, path)); // one line
    assert_string_equal(json_string_value(json_object_get(root, "alarm")), "checkpoint_age");
    assert_int_equal(json_integer_value(json_object_get(root, "step")), 2);
    json_decref(root);
    free(said), free(path);
}

static double cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

// A step of the demo takes 40 ms and more; 0.5 % of it are 200 microseconds. What the thread of the steps spends is
// some ten, so that the bound holds in unoptimised and sanitized builds too.
static void a_step_costs_its_thread_less_than_half_a_percent_of_the_demos(void **state) {
    (void)state;
    enum { STEPS = 2000 };
    Recorder *recorder = open_recorder(0);
    FILE *terminal = stdout;
    stdout = fopen("/dev/null", "w");
    Progress progress = {.mode = PROGRESS_PLAIN, .print_every = 1, .total_steps = 1 << 20};
    progress_begin(&progress);
    double began = cpu_seconds();
    for (int i = 1; i <= STEPS; i++) {
        MetricsStep step = step_of(i);
        recorder_step(recorder, &step);
        progress_step(&progress, &step);
    }
    double each = (cpu_seconds() - began) / STEPS;
    fclose(stdout);
    stdout = terminal;
    recorder_flush(recorder);
    double own = recorder_cpu_seconds(recorder) / STEPS;
    recorder_close(recorder);
    printf("%.1f us of the step's thread, %.1f us of the recorder's\n", 1e6 * each, 1e6 * own);
    assert_true(each < 200e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_was_handed_over_is_in_the_file_in_its_order),
        cmocka_unit_test(closing_writes_what_is_left),
        cmocka_unit_test(a_full_disk_is_said_once_and_what_it_did_not_take_is_written_later),
        cmocka_unit_test(a_run_without_tensorboards_folder_has_its_metrics),
        cmocka_unit_test(an_alarm_is_said_and_has_a_line),
        cmocka_unit_test(a_step_costs_its_thread_less_than_half_a_percent_of_the_demos),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
