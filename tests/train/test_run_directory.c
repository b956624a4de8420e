// Run directories: which one --resume means, and how a new one takes its name.
#include "tiny_folder.h"

#include "train/run.h"
#include "train/trainer.h"

static void add_run(const char *name) {
    char *run = text_format("%s/runs/%s", directory, name), *file = path_join(run, "config.toml");
    assert_ok(dir_make(run));
    assert_ok(file_write_atomic(file, "", 0));
    free(file);
    free(run);
}

static void assert_finds(const char *config_name, const char *set, const char *expected) {
    char *path = tiny_config(directory, config_name, 10, ""), *found = NULL;
    Config config;
    assert_ok(config_read(&config, path, &set, set ? 1 : 0));
    assert_ok(run_directory_find(&config, &found));
    assert_string_equal(path_name(found), expected);
    free(found);
    free(path);
    config_free(&config);
}

static void the_newest_run_of_the_config_is_found(void **state) {
    (void)state;
    static const char *const names[] = {"t",
                                        "2025-12-31-t-40",
                                        "2026-01-02-t",
                                        "2026-01-02-t-9",
                                        "2026-01-02-t-11",
                                        "2026-01-03-t-x",
                                        "2026-01-03-tiny",
                                        "2026-01-0",
                                        "2026-01-02-t-12.creating-7"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_run(names[i]);
    assert_finds("t.toml", NULL, "2026-01-02-t-11");
    assert_finds("tiny.toml", NULL, "2026-01-03-tiny");
    assert_finds("tiny.toml", "train.name=t", "t"); // a name that was given carries no date
}

static void a_directory_that_appeared_meanwhile_is_not_replaced(void **state) {
    (void)state;
    char *path = tiny_config(directory, "taken.toml", 10, ""), *run = path_join(directory, "runs/taken");
    Config config;
    Trainer trainer;
    assert_ok(config_read(&config, path, NULL, 0));
    assert_ok(trainer_open(&trainer, &config));
    add_run("taken");
    assert_error(run_directory_create(run, &trainer), "exists already");
    char *beside = text_format("%s.creating-%ld", run, (long)getpid()), *plan = path_join(run, "plan.json");
    assert_false(file_exists(beside));
    assert_false(file_exists(plan));
    free(plan);
    free(beside);
    trainer_close(&trainer);
    config_free(&config);
    free(run);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_run_of_the_config_is_found),
        cmocka_unit_test(a_directory_that_appeared_meanwhile_is_not_replaced),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
