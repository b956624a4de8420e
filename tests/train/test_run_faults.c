// A whole run whose checkpoints cannot be written or read for a moment, or at all.
#include "tiny_run.h"

#include "faults.h"
#include "train/checkpoint.h"
#include "train/run.h"

#include <stdatomic.h>

static char *directory, *config;

static int make_directory(void **state) {
    (void)state;
    setenv("HEARTH_HISTORY", "", 1);
    directory = tiny_directory();
    config = tiny_config(directory, "run.toml", 6, "[checkpoint]\nevery = 3\n");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(config);
    return 0;
}

// Runs to its end or into its failure; *log is what it said (malloc'd).
static Status train(const char *run, bool resume, const char *set, int *stopped_by, char **log) {
    RunOptions options = {
        .config = resume ? NULL : config, .sets = &set, .set_count = set != NULL, .directory = run, .resume = resume};
    stderr_catch();
    Status status = run_train(&options, stopped_by);
    *log = stderr_caught();
    return status;
}

static int64_t newest_step(const char *run) {
    char *folder = path_join(run, "checkpoints"), *path = NULL;
    int64_t step = -1;
    assert_ok(checkpoint_find(folder, &path, &step, NULL, NULL));
    free(folder);
    free(path);
    return step;
}

static int64_t last_line_step(const char *run) {
    char *path = path_join(run, "metrics.jsonl"), *text = read_text(path);
    int64_t step = -1;
    for (const char *at = text; (at = strstr(at, "\"step\":")); at++)
        step = atoi(at + strlen("\"step\":"));
    free(text);
    free(path);
    return step;
}

static void a_last_checkpoint_that_fails_once_is_tried_again(void **state) {
    (void)state;
    for (int async = 0; async < 2; async++) {
        char *run = text_format("%s/last-%d", directory, async), *log;
        int stopped_by;
        Faults faults = {.kind = IO_WRITE, .number = 3, .error = EIO, .where = ".writing-step-6"};
        faults_start(&faults);
        Status status =
            train(run, false, async ? "checkpoint.async=true" : "checkpoint.async=false", &stopped_by, &log);
        faults_stop();
        assert_true(faults.fired);
        assert_ok(status);
        if (!strstr(log, "step 6 was not written") || !strstr(log, strerror(EIO))) fail_msg("it said: %s", log);
        assert_int_equal(newest_step(run), 6);
        free(log);
        free(run);
    }
}

// The first write of a checkpoint fails, and the same moment brings a signal.
static int fail_and_signal(void *context, IoCall *call) {
    bool *fired = context;
    char path[4096];
    if (call->kind != IO_WRITE || *fired) return IO_GO;
    fault_path(call, path, sizeof path);
    if (!strstr(path, ".writing-step-3")) return IO_GO;
    *fired = true;
    kill(getpid(), SIGTERM);
    return ENOSPC;
}

static void a_run_stopped_right_after_a_failed_checkpoint_writes_it_again(void **state) {
    (void)state;
    for (int async = 0; async < 2; async++) {
        char *run = text_format("%s/stopped-%d", directory, async), *log;
        int stopped_by;
        bool fired = false;
        io_set_hook(fail_and_signal, &fired);
        Status status =
            train(run, false, async ? "checkpoint.async=true" : "checkpoint.async=false", &stopped_by, &log);
        io_set_hook(NULL, NULL);
        assert_true(fired);
        assert_ok(status);
        if (!async) assert_int_equal(stopped_by, SIGTERM);
        assert_int_equal(newest_step(run), last_line_step(run));
        free(log);
        free(run);
    }
}

// The checkpoint of step 3 is still on its way, and fails, when that of step 6 is due.
typedef struct Late {
    atomic_int lines; // of metrics
    bool failed;
    int made; // folders for step 6
} Late;

static int fail_late(void *context, IoCall *call) {
    Late *late = context;
    char path[4096];
    fault_path(call, path, sizeof path);
    if (call->kind == IO_WRITE && strstr(path, "metrics.jsonl")) atomic_fetch_add(&late->lines, 1);
    if (call->kind == IO_MKDIR && strstr(path, ".writing-step-6")) late->made++;
    if (call->kind != IO_WRITE || late->failed || !strstr(path, ".writing-step-3")) return IO_GO;
    late->failed = true;
    for (int i = 0; i < 20000 && atomic_load(&late->lines) < 6; i++)
        usleep(1000);
    usleep(20000); // so that the next save is most likely waiting; the result is the same when it is not
    return EIO;
}

static void a_failure_that_comes_late_is_told_and_not_taken_for_that_of_the_next(void **state) {
    (void)state;
    char *run = path_join(directory, "late"), *log;
    int stopped_by;
    Late late = {0};
    io_set_hook(fail_late, &late);
    Status status = train(run, false, "checkpoint.async=true", &stopped_by, &log);
    io_set_hook(NULL, NULL);
    assert_ok(status);
    assert_true(late.failed);
    if (!strstr(log, "step 3 was not written")) fail_msg("it said: %s", log);
    assert_int_equal(late.made, 1);
    assert_int_equal(newest_step(run), 6);
    free(log);
    free(run);
}

static void a_run_that_cannot_write_its_last_checkpoint_fails_and_keeps_the_one_before(void **state) {
    (void)state;
    char *run = path_join(directory, "never"), *log;
    int stopped_by;
    Faults faults = {.kind = IO_WRITE, .number = 1, .error = ENOSPC, .where = ".writing-step-6", .lasting = true};
    faults_start(&faults);
    Status status = train(run, false, NULL, &stopped_by, &log);
    faults_stop();
    assert_int_equal(faults.count, 3); // twice, once where it would be rescued to, and no more
    assert_error(status, "the checkpoint of step 6 was not written");
    assert_int_equal(newest_step(run), 3);
    free(log);
    free(run);
}

static void a_read_error_at_resume_sets_no_checkpoint_aside(void **state) {
    (void)state;
    char *run = path_join(directory, "unread"), *log, *aside = path_join(run, "checkpoints/damaged-step-6");
    int stopped_by;
    assert_ok(train(run, false, NULL, &stopped_by, &log));
    free(log);
    Faults lasting = {.kind = IO_READ, .number = 2, .error = EIO, .where = "/step-6/", .lasting = true};
    faults_start(&lasting);
    Status status = train(run, true, "train.steps=8", &stopped_by, &log);
    faults_stop();
    assert_error(status, "step-6 cannot be read");
    assert_int_equal(newest_step(run), 6);
    assert_int_equal(last_line_step(run), 6);
    free(log);
    Faults passing = {.kind = IO_READ, .number = 2, .error = EIO, .where = "/step-6/"};
    faults_start(&passing);
    status = train(run, true, "train.steps=8", &stopped_by, &log);
    faults_stop();
    assert_ok(status);
    assert_true(passing.fired);
    assert_false(file_exists(aside));
    assert_int_equal(newest_step(run), 8);
    free(log), free(aside), free(run);
}

static void assert_kept(const char *run, int first, int last) { // checkpoints of these steps and no others
    char *folder = path_join(run, "checkpoints");
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_int_equal(count, first == last ? 1 : 2);
    assert_int_equal(steps[0], first);
    assert_int_equal(steps[count - 1], last);
    free(steps);
    free(folder);
}

static void assert_trains(const char *run, bool resume, const char *set) {
    char *log;
    int stopped_by;
    assert_ok(train(run, resume, set, &stopped_by, &log));
    free(log);
}

// As an end of the process between the last checkpoint and the removal of the oldest leaves it.
static void what_the_process_before_had_no_time_to_remove_is_removed_at_resume(void **state) {
    (void)state;
    char *run = path_join(directory, "unremoved");
    Faults faults = {.kind = IO_RENAME, .number = 1, .error = EIO, .where = "/step-3"};
    faults_start(&faults);
    assert_trains(run, false, "checkpoint.keep_last=1");
    faults_stop();
    assert_true(faults.fired);
    assert_kept(run, 3, 6);
    assert_trains(run, true, "checkpoint.keep_every=3");
    assert_kept(run, 3, 6);
    assert_trains(run, true, "checkpoint.keep_every=0");
    assert_kept(run, 6, 6);
    free(run);
}

// The damaged one counts as newest until it is set aside.
static void the_checkpoint_that_is_resumed_from_stays(void **state) {
    (void)state;
    char *run = path_join(directory, "damaged"), *manifest = path_join(run, "checkpoints/step-6/manifest.json");
    assert_trains(run, false, "checkpoint.keep_last=2");
    assert_int_equal(unlink(manifest), 0);
    Faults faults = {.kind = IO_RENAME, .number = 1, .error = EIO, .where = "/step-3", .lasting = true};
    faults_start(&faults);
    assert_trains(run, true, "checkpoint.keep_last=1");
    faults_stop();
    assert_int_equal(faults.count, 1); // when step 6 was written again, not before
    assert_kept(run, 3, 6);
    free(manifest);
    free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_last_checkpoint_that_fails_once_is_tried_again),
        cmocka_unit_test(a_run_stopped_right_after_a_failed_checkpoint_writes_it_again),
        cmocka_unit_test(a_failure_that_comes_late_is_told_and_not_taken_for_that_of_the_next),
        cmocka_unit_test(a_run_that_cannot_write_its_last_checkpoint_fails_and_keeps_the_one_before),
        cmocka_unit_test(a_read_error_at_resume_sets_no_checkpoint_aside),
        cmocka_unit_test(what_the_process_before_had_no_time_to_remove_is_removed_at_resume),
        cmocka_unit_test(the_checkpoint_that_is_resumed_from_stays),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
