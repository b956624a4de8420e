// A process that was killed while it replaced a file leaves a part of it beside: gone after the next start.
#include "tiny_run.h"

static void put_leftover(const char *directory, const char *name, char **path) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    *path = text_format("%s/%s.tmp-%d-0", directory, name, (int)child);
    assert_ok(file_write_atomic(*path, "half", 4));
}

static void test_a_resumed_run_and_a_repeated_export_leave_none(void **state) {
    (void)state;
    char *directory = tiny_directory(), *config = tiny_config(directory, "config.toml", 3, NULL), *leftover[2];
    char *run = path_join(directory, "runs/a"), *out = path_join(directory, "out"), *log = path_join(directory, "log");
    assert_int_equal(hearth_run((const char *[]){"train", config, "--run", run, NULL}, log), 0);
    put_leftover(run, "metrics.jsonl", &leftover[0]);
    assert_int_equal(
        hearth_run((const char *[]){"train", "--resume", "--run", run, "--set", "train.steps=4", NULL}, log), 0);
    assert_false(file_exists(leftover[0]));
    assert_ok(dir_make(out));
    put_leftover(out, "model.safetensors", &leftover[1]);
    assert_int_equal(hearth_run((const char *[]){"export", run, out, NULL}, log), 0);
    assert_false(file_exists(leftover[1]));
    assert_ok(dir_remove(directory));
    for (int i = 0; i < 2; i++)
        free(leftover[i]);
    free(directory), free(config), free(run), free(out), free(log);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_resumed_run_and_a_repeated_export_leave_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
