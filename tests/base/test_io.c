// The layer under all writing: interrupted calls, short writes, and the replacement of a file when any one call fails
// or the machine does.
#include "base/io.h"
#include "crash.h"
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static char folder[] = "/tmp/hearth-io-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    assert_ok(dir_remove(folder));
    return 0;
}

static void assert_content(const char *path, const char *expected) {
    char *data;
    size_t size;
    assert_ok(file_read(&data, &size, path));
    assert_string_equal(data, expected);
    free(data);
}

// Every kind of call at least once.
static void all_kinds_of_calls(void) {
    char *deep = path_join(folder, "kinds/deep"), *file = path_join(deep, "file"), *moved = path_join(folder, "moved");
    FileMap map;
    int lock;
    assert_ok(dir_make(deep));
    assert_ok(file_write_atomic(file, "0123456789", 10));
    assert_int_equal(io_rename(file, moved), 0);
    int fd = io_open(moved, O_RDWR | O_CLOEXEC, 0);
    char text[4];
    assert_true(fd >= 0);
    assert_int_equal(io_truncate(fd, 8), 0);
    assert_int_equal(io_read_at(fd, text, 4, 2), 4);
    assert_memory_equal(text, "2345", 4);
    assert_ok(file_write_all_at(fd, "cd", 2, 2, moved));
    assert_int_equal(io_close(fd), 0);
    assert_content(moved, "01cd4567");
    assert_ok(file_map(&map, moved));
    assert_int_equal(map.size, 8);
    file_unmap(&map);
    assert_ok(file_lock(&lock, moved, "it"));
    file_unlock(&lock);
    char *kinds = path_join(folder, "kinds");
    assert_ok(dir_remove(kinds));
    assert_ok(dir_remove(moved));
    assert_false(file_exists(kinds) || file_exists(moved));
    free(kinds);
    free(deep);
    free(file);
    free(moved);
}

static void a_call_that_a_signal_interrupts_is_made_again(void **state) {
    (void)state;
    int before = descriptors_open();
    for (int kind = 0; kind < IO_KINDS; kind++) {
        if (kind == IO_MAP) continue; // mmap has no EINTR
        Faults faults = {.kind = (IoKind)kind, .error = EINTR};
        int fired = 0;
        do {
            faults.number++;
            faults_start(&faults);
            all_kinds_of_calls();
            faults_stop();
            fired += faults.fired;
        } while (faults.fired);
        if (!fired) fail_msg("no %s was ever made", fault_name((IoKind)kind));
    }
    assert_int_equal(descriptors_open(), before);
}

static void a_short_write_is_continued(void **state) {
    (void)state;
    char *path = path_join(folder, "short");
    Faults faults = {.kind = IO_WRITE, .number = 1, .error = FAULT_SHORT, .lasting = true};
    faults_start(&faults);
    assert_ok(file_write_atomic(path, "in many pieces", 14));
    faults_stop();
    assert_true(faults.count >= 4);
    assert_content(path, "in many pieces");
    assert_ok(dir_remove(path));
    free(path);
}

static int take_nothing(void *context, IoCall *call) {
    (void)context;
    if (call->kind == IO_WRITE) call->size = 0;
    return IO_GO;
}

static void a_disk_that_takes_nothing_is_an_error_and_no_endless_loop(void **state) {
    (void)state;
    char *path = path_join(folder, "nothing");
    io_set_hook(take_nothing, NULL);
    assert_error(file_write_atomic(path, "x", 1), "nothing.tmp-");
    io_set_hook(NULL, NULL);
    assert_false(file_exists(path));
    free(path);
}

static void a_close_that_fails_closes(void **state) {
    (void)state;
    int before = descriptors_open(), fd = io_open("/dev/null", O_WRONLY | O_CLOEXEC, 0);
    Faults faults = {.kind = IO_CLOSE, .number = 1, .error = EIO};
    faults_start(&faults);
    assert_int_equal(io_close(fd), -1);
    assert_int_equal(errno, EIO);
    faults_stop();
    assert_int_equal(descriptors_open(), before);
}

// What the folder holds besides the file itself.
static size_t litter_count(const char *path) {
    char **names;
    size_t count;
    assert_ok(dir_list(&names, &count, path));
    names_free(names, count);
    return count - 1;
}

static void replace_with_fault(const char *path, const char *directory, Faults faults) {
    int before = descriptors_open();
    do {
        faults.number++;
        assert_ok(file_write_atomic(path, "old", 3));
        faults_start(&faults);
        Status status = file_write_atomic(path, "new content", 11);
        faults_stop();
        char *content;
        size_t size;
        assert_ok(file_read(&content, &size, path));
        if (status) {
            const char *reason = strerror(faults.error);
            if (!faults.fired || !strstr(status_text(status), faults.path) || !strstr(status_text(status), reason))
                fail_msg("%s %d: %s", fault_name(faults.kind), faults.number, status_text(status));
            if (strcmp(content, "old") != 0 && strcmp(content, "new content") != 0)
                fail_msg("%s %d left \"%s\"", fault_name(faults.kind), faults.number, content);
            // What fails before the rename leaves nothing new, except when what fails is the removal too.
            if (faults.kind == IO_WRITE || (faults.kind == IO_SYNC && faults.number == 1)) {
                assert_string_equal(content, "old");
                assert_int_equal(litter_count(directory), 0);
            }
            status_free(status);
        } else {
            bool may_fail = faults.kind == IO_UNLINK || faults.kind == IO_KINDS;
            if (faults.kind == IO_CLOSE) may_fail = faults.number > 1; // of the directory, that only was synced
            if (faults.fired && !may_fail) fail_msg("%s %d was not told", fault_name(faults.kind), faults.number);
            assert_string_equal(content, "new content");
            assert_int_equal(litter_count(directory), 0);
        }
        free(content);
        file_remove_leftovers(path);
    } while (faults.fired);
    assert_int_equal(descriptors_open(), before);
    assert_true(faults.number > 1 || faults.kind == IO_UNLINK);
}

static void a_replacement_in_which_any_call_fails_leaves_a_whole_file(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_WRITE, IO_SYNC, IO_CLOSE, IO_RENAME, IO_UNLINK, IO_KINDS};
    static const int errors[] = {EIO, ENOSPC};
    char *directory = path_join(folder, "replaced"), *path = path_join(directory, "replaced");
    assert_ok(dir_make(directory));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int error = 0; error < 2; error++)
            for (int lasting = 0; lasting < 2; lasting++)
                replace_with_fault(path, directory,
                                   (Faults){.kind = kinds[i], .error = errors[error], .lasting = lasting});
    assert_ok(dir_remove(directory));
    free(directory);
    free(path);
}

static void replacement_check(void *context, const char *directory, const char *when, bool ended) {
    (void)context;
    char *path = path_join(directory, "deep/file"), *content = NULL;
    size_t size;
    Status status = file_read(&content, &size, path);
    if (status || (strcmp(content, "old") != 0 && strcmp(content, "new content") != 0))
        fail_msg("%s: %s", when, status ? status_text(status) : content);
    if (ended && strcmp(content, "old") == 0) fail_msg("%s: the new content is lost", when);
    free(content);
    free(path);
}

static void a_crash_in_a_replacement_leaves_the_old_or_the_new_file(void **state) {
    (void)state;
    char *root = path_join(folder, "crash"), *path = path_join(root, "deep/file"), *deep = path_join(root, "deep"),
         *replay = path_join(folder, "replay");
    assert_ok(dir_make(deep));
    assert_ok(file_write_atomic(path, "old", 3));
    Crash *crash = crash_record(root);
    assert_ok(file_write_atomic(path, "new content", 11));
    crash_stop(crash);
    assert_true(crash_replay(crash, replay, replacement_check, NULL) > 5);
    crash_free(crash);
    free(root), free(path), free(deep), free(replay);
}

static void made_check(void *context, const char *directory, const char *when, bool ended) {
    (void)context;
    char *path = path_join(directory, "a/b/c");
    if (ended && !file_is_directory(path)) fail_msg("%s: the directory is lost", when);
    free(path);
}

static void a_directory_that_was_made_survives_a_crash(void **state) {
    (void)state;
    char *root = path_join(folder, "made"), *path = path_join(root, "a/b/c"),
         *replay = path_join(folder, "made-replay");
    assert_ok(dir_make(root));
    Crash *crash = crash_record(root);
    assert_ok(dir_make(path));
    crash_stop(crash);
    assert_true(crash_replay(crash, replay, made_check, NULL) >= 4);
    crash_free(crash);
    free(root), free(path), free(replay);
}

// Or a second try would find it, and never sync it.
static void a_directory_that_cannot_be_synced_is_not_left_behind(void **state) {
    (void)state;
    char *path = path_join(folder, "unsynced");
    Faults faults = {.kind = IO_SYNC, .number = 1, .error = EIO};
    faults_start(&faults);
    Status status = dir_make(path);
    faults_stop();
    assert_error(status, "Input/output error");
    assert_false(file_exists(path));
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_a_signal_interrupts_is_made_again),
        cmocka_unit_test(a_short_write_is_continued),
        cmocka_unit_test(a_disk_that_takes_nothing_is_an_error_and_no_endless_loop),
        cmocka_unit_test(a_close_that_fails_closes),
        cmocka_unit_test(a_replacement_in_which_any_call_fails_leaves_a_whole_file),
        cmocka_unit_test(a_crash_in_a_replacement_leaves_the_old_or_the_new_file),
        cmocka_unit_test(a_directory_that_was_made_survives_a_crash),
        cmocka_unit_test(a_directory_that_cannot_be_synced_is_not_left_behind),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
