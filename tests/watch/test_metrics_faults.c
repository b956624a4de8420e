// metrics.jsonl when calls on it fail: what was written stays, and there are whole lines only.
#include "base/json.h"
#include "crash.h"
#include "faults.h"
#include "watch/metrics.h"

#include <errno.h>
#include <unistd.h>

static char *folder, *path, *replayed;

static int make_folder(void **state) {
    (void)state;
    folder = memory_directory();
    path = path_join(folder, "metrics.jsonl");
    replayed = text_format("%s-replayed", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    assert_ok(dir_remove(folder));
    assert_ok(dir_remove(replayed));
    free(folder), free(path), free(replayed);
    return 0;
}

static Status line_write(Metrics *metrics, int64_t step) {
    return metrics_step(metrics, &(MetricsStep){.step = step, .tokens = 10 * step, .loss = 2.5});
}

// Steps of the lines, which must all be whole: "1 2 4 ".
static void steps_read(const char *file, char *out, size_t size) {
    char *text;
    size_t length, used = 0;
    assert_ok(file_read(&text, &length, file));
    out[0] = 0;
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        if (!end) fail_msg("a line without end: %s", line);
        json_t *root;
        int64_t step = -1;
        assert_ok(json_read_text(&root, line, (size_t)(end - line), "a line"));
        assert_ok(json_get_int(root, "step", &step, "a line"));
        used += (size_t)snprintf(out + used, size - used, "%lld ", (long long)step);
        json_decref(root);
        line = end + 1;
    }
    free(text);
}

static void assert_steps(const char *expected) {
    char steps[128];
    steps_read(path, steps, sizeof steps);
    assert_string_equal(steps, expected);
}

static void a_line_that_fails_is_told_and_written_with_the_next(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EINTR, FAULT_SHORT};
    for (int e = 0; e < 4; e++)
        for (int number = 1; number <= 5; number++) {
            Metrics *metrics;
            Faults faults = {.kind = IO_WRITE, .number = number, .error = errors[e]};
            assert_ok(dir_remove(path));
            assert_ok(metrics_open(&metrics, path, 0));
            faults_start(&faults);
            for (int step = 1; step <= 4; step++) {
                Status status = line_write(metrics, step);
                if (status && (errors[e] < 0 || errors[e] == EINTR || step != number ||
                               !strstr(status_text(status), path) || !strstr(status_text(status), strerror(errors[e]))))
                    fail_msg("step %d: %s", step, status_text(status));
                if (!status && step == number) assert_true(errors[e] < 0 || errors[e] == EINTR);
                status_free(status);
            }
            faults_stop();
            assert_int_equal(metrics_missing(metrics).records, 0);
            metrics_close(metrics);
            assert_steps("1 2 3 4 ");
        }
}

typedef struct Torn { // the disk is full in the middle of a line
    int writes, at;   // `at`: the write that takes half
    bool no_truncate;
} Torn;

static int torn_hook(void *context, IoCall *call) {
    Torn *torn = context;
    if (call->kind == IO_TRUNCATE && torn->no_truncate) return torn->no_truncate = false, EIO;
    if (call->kind != IO_WRITE || ++torn->writes < torn->at || torn->writes > torn->at + 1) return IO_GO;
    if (torn->writes == torn->at + 1) return ENOSPC;
    call->size /= 2;
    return IO_GO;
}

static void half_a_line_is_gone_before_it_is_written_again(void **state) {
    (void)state;
    for (int no_truncate = 0; no_truncate < 2; no_truncate++) {
        Metrics *metrics;
        Torn torn = {.at = 2, .no_truncate = no_truncate};
        assert_ok(dir_remove(path));
        assert_ok(metrics_open(&metrics, path, 0));
        io_set_hook(torn_hook, &torn);
        assert_ok(line_write(metrics, 1));
        assert_error(line_write(metrics, 2), "No space left on device");
        if (!no_truncate) assert_steps("1 ");
        assert_ok(line_write(metrics, 3));
        assert_ok(line_write(metrics, 4));
        io_set_hook(NULL, NULL);
        metrics_close(metrics);
        assert_steps("1 2 3 4 ");
    }
}

// 16 MiB are some ten thousands of lines; those behind them are dropped, by number. The file has what came before, and
// what waited comes after it when there is room.
static void what_a_full_disk_did_not_take_is_bounded_and_counted(void **state) {
    (void)state;
    enum { STEPS = 100000 };
    Metrics *metrics;
    Faults faults = {.kind = IO_WRITE, .number = 2, .error = ENOSPC, .lasting = true};
    assert_ok(dir_remove(path));
    assert_ok(metrics_open(&metrics, path, 0));
    faults_start(&faults);
    assert_ok(line_write(metrics, 1));
    for (int step = 2; step <= STEPS; step++)
        status_free(line_write(metrics, step));
    AppendMissing all = metrics_missing(metrics);
    assert_int_equal(all.records, STEPS - 1);
    assert_int_equal(all.first_step, 2);
    assert_int_equal(all.last_step, STEPS);
    assert_steps("1 ");
    faults_stop();
    AppendMissing dropped = metrics_missing(metrics);
    metrics_close(metrics);
    int64_t size, written = metrics_last_step(path);
    assert_ok(file_size(&size, path));
    assert_true(size > 14 << 20 && size < 17 << 20); // of the 16 MiB, 16 bytes a record are its head
    assert_int_equal(dropped.records, STEPS - written);
    assert_int_equal(dropped.first_step, written + 1);
    assert_int_equal(dropped.last_step, STEPS);
}

static void six_lines_and_a_torn_one(const char *more) {
    Metrics *metrics;
    assert_ok(dir_remove(path));
    assert_ok(metrics_open(&metrics, path, 0));
    for (int step = 1; step <= 6; step++)
        assert_ok(line_write(metrics, step));
    metrics_close(metrics);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(more, file);
    fclose(file);
}

static void cutting_back_loses_nothing_whatever_call_fails(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_READ, IO_WRITE, IO_SYNC, IO_CLOSE, IO_RENAME, IO_KINDS};
    int before = descriptors_open();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Faults faults = {.kind = kinds[i], .error = EIO};
        do {
            Metrics *metrics;
            faults.number++;
            six_lines_and_a_torn_one("");
            faults_start(&faults);
            Status status = metrics_open(&metrics, path, 4);
            faults_stop();
            char steps[128];
            steps_read(path, steps, sizeof steps);
            if (strcmp(steps, "1 2 3 4 ") != 0 && (!status || strcmp(steps, "1 2 3 4 5 6 ") != 0))
                fail_msg("%s %d left %s", fault_name(kinds[i]), faults.number, steps);
            if (status && (!strstr(status_text(status), faults.path) || !strstr(status_text(status), strerror(EIO))))
                fail_msg("%s %d: %s", fault_name(kinds[i]), faults.number, status_text(status));
            status_free(status);
            metrics_close(metrics);
            file_remove_leftovers(path);
        } while (faults.fired);
        assert_true(faults.number > 1);
    }
    assert_int_equal(descriptors_open(), before);
}

static void cut_check(void *context, const char *directory, const char *when, bool ended) {
    (void)context;
    char steps[128], *file = path_join(directory, "metrics.jsonl");
    steps_read(file, steps, sizeof steps);
    if (strcmp(steps, "1 2 3 4 ") != 0 && (ended || strcmp(steps, "1 2 3 4 5 6 ") != 0))
        fail_msg("%s: %s", when, steps);
    free(file);
}

static void a_crash_while_cutting_back_loses_nothing(void **state) {
    (void)state;
    Metrics *metrics;
    six_lines_and_a_torn_one("");
    Crash *crash = crash_record(folder);
    assert_ok(metrics_open(&metrics, path, 4));
    crash_stop(crash);
    metrics_close(metrics);
    assert_true(crash_replay(crash, replayed, cut_check, NULL) > 5);
    crash_free(crash);
}

static void a_torn_line_is_dropped_when_the_file_is_opened(void **state) {
    (void)state;
    Metrics *metrics;
    six_lines_and_a_torn_one("{\"step\":7,\"tok");
    assert_ok(metrics_open(&metrics, path, 7));
    assert_ok(line_write(metrics, 7));
    metrics_close(metrics);
    assert_steps("1 2 3 4 5 6 7 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_fails_is_told_and_written_with_the_next),
        cmocka_unit_test(half_a_line_is_gone_before_it_is_written_again),
        cmocka_unit_test(what_a_full_disk_did_not_take_is_bounded_and_counted),
        cmocka_unit_test(cutting_back_loses_nothing_whatever_call_fails),
        cmocka_unit_test(a_crash_while_cutting_back_loses_nothing),
        cmocka_unit_test(a_torn_line_is_dropped_when_the_file_is_opened),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
