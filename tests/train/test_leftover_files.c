// A process that was killed while it made something leaves a part of it beside: gone after the next start.
#include "tiny_run.h"

static char *leftover_name(const char *directory, const char *name) { // of a process that has ended
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return text_format("%s/%s-%d", directory, name, (int)child);
}

static void test_a_resumed_run_and_a_repeated_export_leave_none(void **state) {
    (void)state;
    char *directory = tiny_directory(), *config = tiny_config(directory, "config.toml", 3, NULL), *leftover[2];
    char *run = path_join(directory, "runs/a"), *out = path_join(directory, "out"), *log = path_join(directory, "log");
    assert_int_equal(hearth_run((const char *[]){"train", config, "--run", run, NULL}, log), 0);
    leftover[0] = leftover_name(run, "metrics.jsonl.tmp");
    assert_ok(file_write_atomic(leftover[0], "half", 4));
    assert_int_equal(
        hearth_run((const char *[]){"train", "--resume", "--run", run, "--set", "train.steps=4", NULL}, log), 0);
    assert_false(file_exists(leftover[0]));
    leftover[1] = leftover_name(directory, "out.exporting");
    assert_ok(dir_make(leftover[1]));
    assert_int_equal(hearth_run((const char *[]){"export", run, out, NULL}, log), 0);
    assert_false(file_exists(leftover[1]));
    char *model = path_join(out, "model.safetensors");
    assert_true(file_exists(model));
    free(model);
    assert_ok(dir_remove(directory));
    for (int i = 0; i < 2; i++)
        free(leftover[i]);
    free(directory), free(config), free(run), free(out), free(log);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_resumed_run_and_a_repeated_export_leave_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
