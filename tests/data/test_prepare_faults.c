// prepare, when any one call on files fails or the machine crashes: there is the old dataset, the new one, or work that
// goes on to the new one; never a mix, and nothing that has to be cleared away by hand.
#include "crash.h"
#include "data/dataset.h"
#include "data/prepare.h"
#include "faults.h"

#include <errno.h>

static char *memory, *output, *replayed, *old_made, *new_made; // the last two are datasets that nothing disturbed
static char *inputs[2];

static PrepareOptions options_for(int input, const char *to) {
    PrepareOptions options = prepare_defaults();
    options.inputs = (const char *const *)&inputs[input];
    options.input_count = 1;
    options.output = to;
    options.tokenizer = "bytes";
    options.threads = 1;
    options.quiet = true;
    options.shard_tokens = 1500;
    options.unit_bytes = 2000;
    options.val_tokens = 500;
    return options;
}

static Status prepare_new(const char *to, bool overwrite) {
    PrepareOptions options = options_for(1, to);
    options.overwrite = overwrite;
    return prepare_run(&options);
}

static void prepare_old(const char *to) {
    Faults none = {.kind = IO_KINDS};
    PrepareOptions options = options_for(0, to);
    faults_start(&none);
    assert_ok(prepare_run(&options));
    faults_stop();
}

static int make_folder(void **state) {
    (void)state;
    memory = memory_directory();
    output = path_join(memory, "output");
    replayed = path_join(memory, "replayed");
    old_made = path_join(memory, "old");
    new_made = path_join(memory, "new");
    for (int i = 0; i < 2; i++) {
        TextBuffer lines = {0};
        for (int k = 0; k < 24 + 8 * i; k++)
            text_buffer_format(&lines, "{\"text\":\"document %d %0*d of %s\"}\n", k, 50 + k * 3, k, i ? "new" : "old");
        inputs[i] = text_format("%s/input-%d.jsonl", memory, i);
        assert_ok(file_write_atomic(inputs[i], lines.data, lines.length));
        text_buffer_free(&lines);
    }
    prepare_old(old_made);
    assert_ok(prepare_new(new_made, false));
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    assert_ok(dir_remove(memory));
    free(memory), free(output), free(replayed), free(old_made), free(new_made);
    free(inputs[0]), free(inputs[1]);
    return 0;
}

static bool same_tree(const char *a, const char *b) {
    char **names[2];
    size_t counts[2];
    assert_ok(dir_list(&names[0], &counts[0], a));
    assert_ok(dir_list(&names[1], &counts[1], b));
    bool same = counts[0] == counts[1];
    for (size_t i = 0; i < counts[0] && same; i++) {
        char *left = path_join(a, names[0][i]), *right = path_join(b, names[1][i]), *x = NULL, *y = NULL;
        same = strcmp(names[0][i], names[1][i]) == 0 && file_is_directory(left) == file_is_directory(right);
        if (same && file_is_directory(left)) {
            same = same_tree(left, right);
        } else if (same) {
            size_t x_size, y_size;
            assert_ok(file_read(&x, &x_size, left));
            assert_ok(file_read(&y, &y_size, right));
            same = x_size == y_size && memcmp(x, y, x_size) == 0;
        }
        free(x), free(y), free(left), free(right);
    }
    names_free(names[0], counts[0]);
    names_free(names[1], counts[1]);
    return same;
}

static bool same_parts(const char *folder, const char *made) { // the dataset, whatever work lies beside it
    static const char *const parts[] = {"train", "val"};
    char *x = NULL, *y = NULL, *left = path_join(folder, DATASET_FILE), *right = path_join(made, DATASET_FILE);
    size_t x_size, y_size;
    assert_ok(file_read(&x, &x_size, left));
    assert_ok(file_read(&y, &y_size, right));
    bool same = x_size == y_size && memcmp(x, y, x_size) == 0;
    free(x), free(y), free(left), free(right);
    for (int i = 0; i < 2 && same; i++) {
        left = path_join(folder, parts[i]), right = path_join(made, parts[i]);
        same = file_is_directory(left) && same_tree(left, right);
        free(left), free(right);
    }
    return same;
}

typedef enum Holds { HOLDS_NONE, HOLDS_OLD, HOLDS_NEW } Holds;

// What opens in the folder.
static Holds dataset_held(const char *folder, const char *when) {
    static const char *const splits[] = {"train", "val"};
    for (int i = 0; i < 2; i++) {
        Dataset dataset;
        Status status = dataset_open(&dataset, folder, splits[i], true);
        if (!status) dataset_close(&dataset);
        bool opened = !status;
        status_free(status);
        if (!opened) return HOLDS_NONE;
    }
    if (same_parts(folder, old_made)) return HOLDS_OLD;
    if (!same_parts(folder, new_made)) fail_msg("%s: a mix is taken for a dataset", when);
    return HOLDS_NEW;
}

// Nothing of the old dataset goes before the new shards are whole: in the work folder, or where they belong.
static void assert_shards_whole(const char *folder, const char *when) {
    static const char *const splits[] = {"train", "val"};
    for (int i = 0; i < 2; i++) {
        char *up = path_join(folder, splits[i]), *work = text_format("%s/work/%s", folder, splits[i]),
             *made = path_join(new_made, splits[i]);
        if (!(file_is_directory(up) && same_tree(up, made)) && !(file_is_directory(work) && same_tree(work, made)))
            fail_msg("%s: neither the old dataset nor the new %s is there", when, splits[i]);
        free(up), free(work), free(made);
    }
}

// The next try without anything in its way. --overwrite is given again only while the old dataset is all there is.
static void assert_goes_on(const char *folder, Holds holds, const char *when) {
    char *mark = path_join(folder, "work/replaces");
    Faults none = {.kind = IO_KINDS};
    faults_start(&none);
    Status status = prepare_new(folder, holds == HOLDS_OLD && !file_exists(mark));
    faults_stop();
    if (status) fail_msg("%s: it does not go on: %s", when, status_text(status));
    if (!same_tree(folder, new_made)) fail_msg("%s: the result differs", when);
    free(mark);
}

// ---- failing calls -------------------------------------------------------------------------------------------------

static void prepare_with_fault(bool overwrite, Faults faults) {
    int before = descriptors_open();
    do {
        faults.number++;
        char when[160];
        snprintf(when, sizeof when, "%s %d, errno %d%s%s", fault_name(faults.kind), faults.number, faults.error,
                 faults.lasting ? " from then on" : "", overwrite ? ", overwrite" : "");
        assert_ok(dir_remove(output));
        if (overwrite) prepare_old(output);
        faults_start(&faults);
        Status status = prepare_new(output, overwrite);
        faults_stop();
        Holds holds = file_is_directory(output) ? dataset_held(output, when) : HOLDS_NONE;
        if (!status && holds != HOLDS_NEW) fail_msg("%s: it says that all is well", when);
        if (overwrite && holds == HOLDS_NONE) assert_shards_whole(output, when);
        if (status) {
            if (!faults.fired || faults.error < 0 || faults.error == EINTR ||
                !strstr(status_text(status), strerror(faults.error)) ||
                (!faults.lasting && !strstr(status_text(status), faults.path))) // the first may have been let pass
                fail_msg("%s on %s: %s", when, faults.path, status_text(status));
            status_free(status);
        }
        assert_goes_on(output, holds, when);
    } while (faults.fired);
    assert_true(faults.number > 1);
    assert_int_equal(descriptors_open(), before);
}

static void any_call_may_fail_and_a_dataset_is_whole(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_WRITE, IO_SYNC, IO_CLOSE, IO_RENAME, IO_MKDIR};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        prepare_with_fault(false, (Faults){.kind = kinds[i], .error = EIO});
    prepare_with_fault(true, (Faults){.kind = IO_KINDS, .error = EIO});
    prepare_with_fault(true, (Faults){.kind = IO_KINDS, .error = EIO, .lasting = true});
    prepare_with_fault(true, (Faults){.kind = IO_KINDS, .error = EINTR});
    prepare_with_fault(false, (Faults){.kind = IO_READ, .error = EINTR});
}

static void a_full_disk_and_short_writes_leave_whole_datasets(void **state) {
    (void)state;
    prepare_with_fault(false, (Faults){.kind = IO_WRITE, .error = ENOSPC, .lasting = true});
    prepare_with_fault(true, (Faults){.kind = IO_WRITE, .error = ENOSPC, .lasting = true});
    prepare_with_fault(true, (Faults){.kind = IO_WRITE, .error = FAULT_SHORT});
}

// A second try after a failure reads the units of the first.
static void a_passing_read_error_does_not_make_work_damaged(void **state) {
    (void)state;
    Faults full = {.kind = IO_WRITE, .error = ENOSPC, .number = 1, .where = ".shard", .lasting = true};
    static const int errors[] = {EINTR, EIO};
    for (int e = 0; e < 2; e++) {
        int error = errors[e];
        Faults faults = {.kind = IO_READ, .error = error, .where = "/work/unit-"};
        do {
            faults.number++;
            assert_ok(dir_remove(output));
            faults_start(&full);
            assert_error(prepare_new(output, false), strerror(ENOSPC));
            faults_start(&faults);
            Status status = prepare_new(output, false);
            faults_stop();
            if (status && (error == EINTR || !strstr(status_text(status), strerror(error)) ||
                           !strstr(status_text(status), faults.path)))
                fail_msg("read %d: %s", faults.number, status_text(status));
            status_free(status);
            assert_goes_on(output, HOLDS_NONE, "after a read error");
        } while (faults.fired);
        assert_true(faults.number > 3);
    }
}

// ---- crashes -------------------------------------------------------------------------------------------------------

static void crash_check(void *context, const char *directory, const char *when, bool ended) {
    bool overwrite = *(bool *)context;
    char *folder = path_join(directory, "dataset");
    Holds holds = file_is_directory(folder) ? dataset_held(folder, when) : HOLDS_NONE;
    if (ended && holds != HOLDS_NEW) fail_msg("%s: the new dataset is lost", when);
    if (overwrite && holds == HOLDS_NONE) assert_shards_whole(folder, when);
    assert_goes_on(folder, holds, when);
    free(folder);
}

static void crash_anywhere(bool overwrite) {
    assert_ok(dir_remove(output));
    assert_ok(dir_make(output));
    char *folder = path_join(output, "dataset");
    if (overwrite) prepare_old(folder);
    Crash *crash = crash_record(output);
    assert_ok(prepare_new(folder, overwrite));
    crash_stop(crash);
    int states = crash_replay(crash, replayed, crash_check, &overwrite);
    printf("%d states\n", states);
    assert_true(states > 50);
    crash_free(crash);
    free(folder);
}

static void a_crash_at_any_moment_leaves_a_dataset_or_work_that_goes_on(void **state) {
    (void)state;
    crash_anywhere(false);
}

static void a_crash_while_a_dataset_is_replaced_leaves_the_old_or_the_new_or_work(void **state) {
    (void)state;
    crash_anywhere(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_fail_and_a_dataset_is_whole),
        cmocka_unit_test(a_full_disk_and_short_writes_leave_whole_datasets),
        cmocka_unit_test(a_passing_read_error_does_not_make_work_damaged),
        cmocka_unit_test(a_crash_at_any_moment_leaves_a_dataset_or_work_that_goes_on),
        cmocka_unit_test(a_crash_while_a_dataset_is_replaced_leaves_the_old_or_the_new_or_work),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
