// Checkpoints when any one call on files fails, when the machine crashes, and when the disk does not deliver.
#include "tiny_run.h"

#include "crash.h"
#include "faults.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

static char *directory, *memory, *folder, *replayed;
static Config config;
static Trainer trainer;

static const char *const files[] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors",
                                    "state.json",        "config.json",        "manifest.json"};
enum { FILES = sizeof files / sizeof *files };

static char *expected[3][FILES]; // [step] the bytes of a good checkpoint
static size_t expected_size[3][FILES];

static CheckpointWriter *writer_open(int keep_last) {
    CheckpointWriter *writer;
    CheckpointPolicy policy = {.keep_last = keep_last};
    assert_ok(checkpoint_writer_open(&writer, folder, &trainer.model->layout, &policy, 0, 1));
    return writer;
}

static Status write_step(CheckpointWriter *writer, int64_t step, int64_t *done) {
    trainer.step = step; // the weights may be the same for both: state.json tells the steps apart
    assert_ok(checkpoint_save(writer, trainer.model, step, trainer_state(&trainer)));
    return checkpoint_poll(writer, true, done);
}

static void assert_written(CheckpointWriter *writer, int64_t step) {
    int64_t done;
    Faults none = {.kind = IO_KINDS};
    faults_start(&none);
    assert_ok(write_step(writer, step, &done));
    faults_stop();
    assert_int_equal(done, step);
}

static void start_with(int64_t step) {
    Faults none = {.kind = IO_KINDS};
    faults_start(&none); // a sync of the new folder would take longer than all the rest
    assert_ok(dir_remove(folder));
    CheckpointWriter *writer = writer_open(2);
    assert_written(writer, step);
    checkpoint_writer_close(writer);
}

static int make_directory(void **state) {
    (void)state;
    static const char *const sets[] = {"model.hidden=8", "model.layers=1", "model.heads=2", "model.kv_heads=1",
                                       "model.ffn=8"};
    directory = tiny_directory();
    memory = memory_directory();
    folder = path_join(memory, "checkpoints");
    replayed = path_join(memory, "replayed");
    char *path = tiny_config(directory, "checkpoint.toml", 50, "");
    assert_ok(config_read(&config, path, sets, 5));
    assert_ok(trainer_open(&trainer, &config));
    free(path);
    for (int step = 1; step <= 2; step++) {
        start_with(step);
        for (int i = 0; i < FILES; i++) {
            char *file = text_format("%s/step-%d/%s", folder, step, files[i]);
            assert_ok(file_read(&expected[step][i], &expected_size[step][i], file));
            free(file);
        }
    }
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    trainer_close(&trainer);
    config_free(&config);
    status_free(dir_remove(directory));
    status_free(dir_remove(memory));
    for (int i = 0; i < FILES; i++)
        free(expected[1][i]), free(expected[2][i]);
    free(directory), free(memory), free(folder), free(replayed);
    return 0;
}

static void say_unexpected(void *context, const char *message) {
    fail_msg("%s: %s", (const char *)context, message);
}

// Everything under a checkpoint's name is whole and has the bytes of its step; returns the newest.
static int64_t assert_all_whole(const char *where, const char *when) {
    int64_t *steps, newest = -1;
    int count;
    assert_ok(checkpoint_steps(where, &steps, &count));
    for (int s = 0; s < count; s++) {
        assert_true(steps[s] == 1 || steps[s] == 2);
        for (int i = 0; i < FILES; i++) {
            char *path = text_format("%s/step-%lld/%s", where, (long long)steps[s], files[i]), *data = NULL;
            size_t size;
            Status status = file_read(&data, &size, path);
            if (status) fail_msg("%s: %s", when, status_text(status));
            if (size != expected_size[steps[s]][i] || memcmp(data, expected[steps[s]][i], size) != 0)
                fail_msg("%s: %s is not what was written", when, path);
            free(data);
            free(path);
        }
        newest = steps[s];
    }
    free(steps);
    char *path;
    int64_t step;
    assert_ok(checkpoint_find(where, &path, &step, say_unexpected, (void *)when));
    if (!path) fail_msg("%s: no checkpoint is left", when);
    assert_int_equal(step, newest);
    free(path);
    return newest;
}

static void assert_message(Status status, const Faults *faults, const char *when) {
    if (!faults->fired) fail_msg("%s: %s", when, status_text(status));
    if (!strstr(status_text(status), faults->path) || !strstr(status_text(status), strerror(faults->error)) ||
        !strstr(status_text(status), "step 2 was not written"))
        fail_msg("%s on %s: %s", when, faults->path, status_text(status));
}

// With the checkpoint of step `first` there, that of step 2 is written, and the n-th call fails, for every n.
static void write_with_fault(int64_t first, int keep_last, Faults faults) {
    int before = descriptors_open();
    do {
        faults.number++;
        char when[160];
        snprintf(when, sizeof when, "%s %d, errno %d%s, first %d, keep_last %d", fault_name(faults.kind), faults.number,
                 faults.error, faults.lasting ? " from then on" : "", (int)first, keep_last);
        start_with(first);
        CheckpointWriter *writer = writer_open(keep_last);
        int64_t done;
        stderr_catch();
        faults_start(&faults);
        Status status = write_step(writer, 2, &done);
        faults_stop();
        char *log = stderr_caught();
        if (status) assert_message(status, &faults, when);
        if (status && (faults.error == EINTR || faults.error == FAULT_SHORT))
            fail_msg("%s: %s", when, status_text(status));
        assert_int_equal(done, status ? -1 : 2);
        int64_t newest = assert_all_whole(folder, when);
        if (!status) assert_int_equal(newest, 2);
        if (!status && log[0] && !strstr(log, "older checkpoints were not removed")) fail_msg("%s: %s", when, log);
        free(log);
        status_free(status);
        assert_written(writer, 2); // the next try, with nothing in its way
        assert_int_equal(assert_all_whole(folder, when), 2);
        char **names;
        size_t count;
        assert_ok(dir_list(&names, &count, folder));
        if (count != (size_t)(first == 1 ? keep_last : 1)) fail_msg("%s: something is left over: %s", when, names[0]);
        names_free(names, count);
        checkpoint_writer_close(writer);
    } while (faults.fired);
    assert_true(faults.number > 1);
    assert_int_equal(descriptors_open(), before);
}

static void any_call_may_fail_and_no_checkpoint_is_lost(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN,   IO_WRITE,  IO_TRUNCATE, IO_SYNC, IO_CLOSE,
                                   IO_RENAME, IO_UNLINK, IO_RMDIR,    IO_MKDIR};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        write_with_fault(1, 1, (Faults){.kind = kinds[i], .error = EIO});
    write_with_fault(1, 2, (Faults){.kind = IO_KINDS, .error = EIO});
    write_with_fault(1, 1, (Faults){.kind = IO_KINDS, .error = EIO, .lasting = true});
    write_with_fault(2, 1, (Faults){.kind = IO_KINDS, .error = EIO}); // the same step again
    write_with_fault(2, 1, (Faults){.kind = IO_KINDS, .error = EINTR});
}

static void a_full_disk_and_short_writes_lose_no_checkpoint(void **state) {
    (void)state;
    write_with_fault(1, 1, (Faults){.kind = IO_WRITE, .error = ENOSPC});
    write_with_fault(1, 1, (Faults){.kind = IO_WRITE, .error = ENOSPC, .lasting = true});
    write_with_fault(2, 1, (Faults){.kind = IO_SYNC, .error = ENOSPC});
    write_with_fault(1, 1, (Faults){.kind = IO_WRITE, .error = FAULT_SHORT});
}

// ---- crashes -------------------------------------------------------------------------------------------------------

static void written_check(void *context, const char *where, const char *when, bool ended) {
    (void)context;
    int64_t newest = assert_all_whole(where, when);
    if (ended && newest != 2) fail_msg("%s: the new checkpoint is lost", when);
}

static void a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint(void **state) {
    (void)state;
    start_with(1);
    CheckpointWriter *writer = writer_open(1);
    int64_t done;
    Crash *crash = crash_record(folder);
    assert_ok(write_step(writer, 2, &done));
    crash_stop(crash);
    checkpoint_writer_close(writer);
    int states = crash_replay(crash, replayed, written_check, NULL);
    printf("%d states\n", states);
    assert_true(states > 50);
    crash_free(crash);
}

static void a_crash_in_writing_a_step_again_leaves_a_whole_checkpoint(void **state) {
    (void)state;
    start_with(1);
    CheckpointWriter *writer = writer_open(2);
    int64_t done;
    assert_written(writer, 2);
    Crash *crash = crash_record(folder);
    assert_ok(write_step(writer, 2, &done));
    crash_stop(crash);
    checkpoint_writer_close(writer);
    assert_true(crash_replay(crash, replayed, written_check, NULL) > 50);
    crash_free(crash);
}

static void aside_check(void *context, const char *where, const char *when, bool ended) {
    (void)context;
    if (assert_all_whole(where, when) == 1) {
        char *aside = path_join(where, "damaged-step-2");
        assert_ok(checkpoint_verify(aside));
        free(aside);
    } else if (ended) {
        fail_msg("%s: step 2 is back", when);
    }
}

static void what_is_set_aside_is_told_and_stays_aside_after_a_crash(void **state) {
    (void)state;
    start_with(1);
    CheckpointWriter *writer = writer_open(2);
    assert_written(writer, 2);
    checkpoint_writer_close(writer);
    Crash *crash = crash_record(folder);
    stderr_catch();
    Status status = checkpoint_set_aside(folder, 1);
    char *log = stderr_caught();
    assert_ok(status);
    crash_stop(crash);
    if (!strstr(log, "the checkpoint of step 2 is set aside as ")) fail_msg("it said: %s", log);
    free(log);
    assert_true(crash_replay(crash, replayed, aside_check, NULL) >= 2);
    crash_free(crash);
}

static void what_is_set_aside_in_the_place_of_another_is_told(void **state) {
    (void)state;
    char *older = path_join(folder, "damaged-step-2");
    start_with(2);
    assert_ok(dir_make(older));
    stderr_catch();
    Status status = checkpoint_set_aside(folder, 1);
    char *log = stderr_caught();
    assert_ok(status);
    if (!strstr(log, "damaged-step-2, in the place of an older one")) fail_msg("it said: %s", log);
    assert_ok(checkpoint_verify(older));
    free(log);
    free(older);
}

static void setting_aside_fails_whole_and_with_its_reason(void **state) {
    (void)state;
    Faults faults = {.kind = IO_KINDS, .error = EIO};
    do {
        faults.number++;
        start_with(1);
        CheckpointWriter *writer = writer_open(2);
        assert_written(writer, 2);
        checkpoint_writer_close(writer);
        stderr_catch();
        faults_start(&faults);
        Status status = checkpoint_set_aside(folder, 1);
        faults_stop();
        free(stderr_caught());
        assert_all_whole(folder, "set aside");
        if (status && (!strstr(status_text(status), faults.path) || !strstr(status_text(status), strerror(EIO))))
            fail_msg("%s", status_text(status));
        status_free(status);
    } while (faults.fired);
    assert_true(faults.number > 3);
}

// ---- reading -------------------------------------------------------------------------------------------------------

static int said;
static void count_said(void *context, const char *message) {
    (void)context, (void)message;
    said++;
}

static void two_steps(void) {
    start_with(1);
    CheckpointWriter *writer = writer_open(2);
    assert_written(writer, 2);
    checkpoint_writer_close(writer);
}

static void a_passing_read_error_does_not_make_a_checkpoint_damaged(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_READ, IO_MAP};
    int before = descriptors_open();
    two_steps();
    for (int i = 0; i < 3; i++) {
        Faults faults = {.kind = kinds[i], .error = kinds[i] == IO_MAP ? ENOMEM : EIO};
        do {
            char *path = NULL;
            int64_t step = -1;
            faults.number++;
            said = 0;
            faults_start(&faults);
            Status status = checkpoint_find(folder, &path, &step, count_said, NULL);
            faults_stop();
            if (status || step != 2 || said)
                fail_msg("%s %d: %s", fault_name(kinds[i]), faults.number, status ? status_text(status) : path);
            free(path);
        } while (faults.fired);
        assert_true(faults.number > 3);
    }
    assert_int_equal(descriptors_open(), before);
}

// An older one in its place would throw away good steps.
static void a_checkpoint_that_cannot_be_read_is_told_and_left_alone(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_READ, IO_MAP};
    two_steps();
    for (int i = 0; i < 3; i++) {
        Faults faults = {.kind = kinds[i], .error = EIO, .lasting = true};
        do {
            char *path = NULL;
            int64_t step = -1;
            faults.number++;
            said = 0;
            faults_start(&faults);
            Status status = checkpoint_find(folder, &path, &step, count_said, NULL);
            faults_stop();
            assert_int_equal(said, 0);
            if (faults.fired) {
                assert_null(path);
                assert_non_null(status);
                const char *text = status_text(status);
                if (status_code(status) != STATUS_RUNTIME || !strstr(text, "step-2 cannot be read") ||
                    !strstr(text, "/step-2/") || !strstr(text, strerror(EIO)))
                    fail_msg("%s", text);
            }
            status_free(status);
            free(path);
            assert_int_equal(assert_all_whole(folder, "read"), 2);
        } while (faults.fired);
    }
}

static void wrong_content_and_missing_files_are_damage_and_not_a_read_error(void **state) {
    (void)state;
    two_steps();
    char *path = path_join(folder, "step-2/state.json"), *step = path_join(folder, "step-2"), *found;
    int64_t at;
    assert_ok(file_write_atomic(path, "{}", 2));
    Status status = checkpoint_verify(step);
    assert_int_equal(status_code(status), STATUS_USAGE);
    status_free(status);
    assert_int_equal(unlink(path), 0);
    status = checkpoint_verify(step);
    assert_int_equal(status_code(status), STATUS_USAGE);
    status_free(status);
    said = 0;
    assert_ok(checkpoint_find(folder, &found, &at, count_said, NULL));
    assert_int_equal(at, 1);
    assert_int_equal(said, 1);
    free(found), free(path), free(step);
}

static void the_best_checkpoint_stays_when_its_loss_cannot_be_read(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_MAP};
    double loss = trainer.val_loss;
    int64_t at = trainer.val_step;
    for (int i = 0; i < 2; i++) {
        Faults faults = {.kind = kinds[i], .number = 1, .error = EIO, .where = "/step-1/state.json"};
        CheckpointPolicy policy = {.keep_last = 1, .keep_best = true};
        CheckpointWriter *writer;
        int64_t done;
        trainer.val_loss = 1, trainer.val_step = 1;
        start_with(1);
        trainer.val_loss = 2, trainer.val_step = 2;
        assert_ok(checkpoint_writer_open(&writer, folder, &trainer.model->layout, &policy, 0, 1));
        stderr_catch();
        faults_start(&faults);
        Status status = write_step(writer, 2, &done);
        faults_stop();
        char *log = stderr_caught(), *best = path_join(folder, "step-1");
        assert_ok(status);
        assert_true(faults.fired);
        assert_ok(checkpoint_verify(best));
        if (!strstr(log, "older checkpoints were not removed")) fail_msg("it said: %s", log);
        free(log);
        free(best);
        checkpoint_writer_close(writer);
    }
    trainer.val_loss = loss, trainer.val_step = at;
}

static void assert_says_unremoved(CheckpointWriter *writer, int64_t step, bool fails, bool says) {
    Faults faults = {.kind = IO_RENAME, .number = fails, .error = EIO, .where = "/step-", .lasting = true};
    int64_t done;
    stderr_catch();
    faults_start(&faults);
    Status status = write_step(writer, step, &done);
    faults_stop();
    char *log = stderr_caught();
    assert_ok(status);
    assert_int_equal(faults.fired, fails);
    if (says != (strstr(log, "older checkpoints were not removed") != NULL))
        fail_msg("with step %d it said: %s", (int)step, log);
    free(log);
}

static void older_checkpoints_that_stay_are_told_once_until_they_can_be_removed(void **state) {
    (void)state;
    start_with(1);
    CheckpointWriter *writer = writer_open(1);
    assert_says_unremoved(writer, 2, true, true);
    assert_says_unremoved(writer, 3, true, false);
    assert_says_unremoved(writer, 4, false, false);
    assert_says_unremoved(writer, 5, true, true);
    checkpoint_writer_close(writer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_fail_and_no_checkpoint_is_lost),
        cmocka_unit_test(a_full_disk_and_short_writes_lose_no_checkpoint),
        cmocka_unit_test(a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint),
        cmocka_unit_test(a_crash_in_writing_a_step_again_leaves_a_whole_checkpoint),
        cmocka_unit_test(what_is_set_aside_is_told_and_stays_aside_after_a_crash),
        cmocka_unit_test(what_is_set_aside_in_the_place_of_another_is_told),
        cmocka_unit_test(setting_aside_fails_whole_and_with_its_reason),
        cmocka_unit_test(a_passing_read_error_does_not_make_a_checkpoint_damaged),
        cmocka_unit_test(a_checkpoint_that_cannot_be_read_is_told_and_left_alone),
        cmocka_unit_test(the_best_checkpoint_stays_when_its_loss_cannot_be_read),
        cmocka_unit_test(older_checkpoints_that_stay_are_told_once_until_they_can_be_removed),
        cmocka_unit_test(wrong_content_and_missing_files_are_damage_and_not_a_read_error),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
