// What a killed process left is removed; what a living one writes, and what only looks like either, stays.
#include "testing.h"

#include "base/leftovers.h"

#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/hearth-leftovers-XXXXXX";

static char *make_entry(const char *name, bool directory) {
    char *path = path_join(folder, name);
    if (directory)
        assert_ok(dir_make(path));
    else
        assert_ok(file_write_atomic(path, "x", 1));
    return path;
}

static int ended_process(void) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return (int)child;
}

static void test_only_what_an_ended_process_left_is_removed(void **state) {
    (void)state;
    const int ended = ended_process(), alive = (int)getpid();
    const struct {
        const char *format;
        int process;
        bool directory, stays;
    } table[] = {
        {"config.json.tmp-%d-0", ended, false, false},
        {"model.safetensors.tmp-%d", ended, false, false},
        {"run.tmp-%d", ended, true, false},
        {"a.tmp-1.tmp-%d", ended, false, false},
        {"config.json.tmp-%d-0", alive, false, true},
        {"model.safetensors.tmp-%d", alive, false, true},
        {"notes.tmp-%d.txt", ended, false, true},
        {"notes.tmp-%d-", ended, false, true},
        {"notes.tmp-%d-x", ended, false, true},
        {"notes.creating-%d", ended, false, true},
        {"notes.tmp-99999999999999999999%d", ended, false, true},
        {"notes.tmp-0%.0d", 0, false, true},
    };
    enum { COUNT = sizeof table / sizeof table[0] };
    char *paths[COUNT];
    for (int i = 0; i < COUNT; i++) {
        char name[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(name, sizeof name, table[i].format, table[i].process);
#pragma GCC diagnostic pop
        paths[i] = make_entry(name, table[i].directory);
    }
    leftovers_remove(folder, ".tmp-");
    for (int i = 0; i < COUNT; i++) {
        if (file_exists(paths[i]) != table[i].stays)
            fail_msg("%s %s", paths[i], table[i].stays ? "was removed" : "was left");
        free(paths[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_what_an_ended_process_left_is_removed)};
    assert_non_null(mkdtemp(folder));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    status_free(dir_remove(folder));
    return failed;
}
