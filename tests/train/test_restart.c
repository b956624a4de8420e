// --resume where there is nothing to resume from, or where going on would not be what it seems: nothing is lost, and
// the user is told.
#include "tiny_run.h"

#include "train/checkpoint.h"
#include "train/run.h"

static char *directory, *config, *log_path;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    config = tiny_config(directory, "run.toml", 20, "[checkpoint]\nevery = 5\nkeep_last = 2\n");
    log_path = path_join(directory, "log");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(config);
    free(log_path);
    return 0;
}

static char *in_run(const char *run, const char *name) { // malloc'd
    return text_format("%s/%s/%s", directory, run, name);
}

// Runs hearth train with these arguments for the run (up to two settings); what it said is malloc'd in *said.
static int train(const char *run, bool resume, const char *const *sets, int set_count, char **said) {
    char *path = path_join(directory, run);
    const char *words[32] = {"train", resume ? "--resume" : config, "--run", path};
    int count = 4;
    for (int i = 0; i < set_count; i++) {
        words[count++] = "--set";
        words[count++] = sets[i];
    }
    int code = hearth_run(words, log_path);
    *said = read_text(log_path);
    free(path);
    return code;
}

static int count_lines(const char *path) {
    char *text = read_text(path);
    int count = 0;
    for (const char *at = text; *at; at++)
        count += *at == '\n';
    free(text);
    return count;
}

static void assert_said(const char *said, const char *part) {
    if (!strstr(said, part)) fail_msg("\"%s\" is not in:\n%s", part, said);
}

// ---- no checkpoint to go on from ------------------------------------------------------------------------------------

static void ruin_run(const char *run) { // a learning rate that ruins the model right after a checkpoint
    static const char *const sets[] = {"train.spike_factor=1.5", "train.spike_window=4",     "train.max_skips=3",
                                       "optimizer.lr=4",         "schedule.warmup_steps=20", "checkpoint.every=1",
                                       "checkpoint.keep_last=1"};
    char *said;
    assert_int_equal(train(run, false, sets, 7, &said), 1);
    assert_said(said, "3 steps in a row were skipped");
    assert_said(said, "there is no checkpoint from before that");
    assert_said(said, "set aside as damaged-step-N");
    free(said);
}

static void a_run_whose_checkpoints_were_all_set_aside_is_refused_and_left_alone(void **state) {
    (void)state;
    char *metrics = in_run("aside", "metrics.jsonl"), *folder = in_run("aside", "checkpoints"), *said;
    ruin_run("aside");
    char *before = read_text(metrics), **names;
    size_t count;
    assert_ok(dir_list(&names, &count, folder));
    assert_int_equal(count, 1);
    assert_true(text_starts_with(names[0], "damaged-step-"));
    static const char *const gentle[] = {"optimizer.lr=1e-3", "train.spike_factor=0"};
    assert_int_equal(train("aside", true, gentle, 2, &said), 1);
    assert_said(said, "every checkpoint of ");
    assert_said(said, names[0]);
    char *reaches = text_format("metrics.jsonl reaches step %d", count_lines(metrics));
    assert_said(said, reaches);
    assert_said(said, "another --run DIR");
    char *after = read_text(metrics);
    assert_string_equal(before, after);
    // and what it proposes works
    char *from = path_join(folder, names[0]), *to = path_join(folder, names[0] + strlen("damaged-"));
    char *move = text_format("mv %s %s", from, to);
    assert_said(said, move);
    assert_int_equal(rename(from, to), 0);
    free(said);
    assert_int_equal(train("aside", true, gentle, 2, &said), 0);
    assert_int_equal(count_lines(metrics), 20);
    names_free(names, count);
    free(said), free(before), free(after), free(reaches), free(move), free(from), free(to);
    free(folder), free(metrics);
}

// Killed before its first checkpoint: starting again is right, and what was measured stays.
static void a_run_without_a_checkpoint_starts_again_and_keeps_its_metrics(void **state) {
    (void)state;
    static const char *const none[] = {"checkpoint.every=0", "checkpoint.at_end=false"};
    char *metrics = in_run("none", "metrics.jsonl"), *said;
    char *first = in_run("none", "metrics-before-1.jsonl"), *second = in_run("none", "metrics-before-2.jsonl");
    assert_int_equal(train("none", false, none, 2, &said), 0);
    free(said);
    char *before = read_text(metrics);
    for (int round = 1; round <= 2; round++) {
        const char *const kept = round == 1 ? first : second;
        assert_int_equal(train("none", true, none, 2, &said), 0);
        assert_said(said, "starting again with the first step");
        assert_said(said, round == 1 ? "kept as metrics-before-1.jsonl" : "kept as metrics-before-2.jsonl");
        assert_int_equal(count_lines(kept), 20);
        assert_int_equal(count_lines(metrics), 20);
        free(said);
    }
    char *kept = read_text(first);
    assert_string_equal(before, kept);
    free(kept), free(before), free(first), free(second), free(metrics);
}

static void nothing_is_moved_when_there_are_no_steps(void **state) {
    (void)state;
    char *run = path_join(directory, "empty"), *metrics = in_run("empty", "metrics.jsonl"), *moved;
    assert_ok(dir_make(run));
    assert_ok(run_directory_restart(run, &moved));
    assert_null(moved);
    static const char line[] = "{\"step\":0,\"eval\":\"subset\",\"val_loss\":5}\n";
    assert_ok(file_write_atomic(metrics, line, sizeof line - 1));
    assert_ok(run_directory_restart(run, &moved));
    assert_null(moved);
    free(metrics);
    free(run);
}

// ---- another length -------------------------------------------------------------------------------------------------

static const char *const warning = "the learning rate of step 21 is ";

static double number_after(const char *said, const char *words) {
    const char *at = strstr(said, words);
    if (!at) fail_msg("\"%s\" is not in:\n%s", words, said);
    return at ? strtod(at + strlen(words), NULL) : 0;
}

static void a_longer_run_says_what_becomes_of_the_learning_rate(void **state) {
    (void)state;
    char *said, *metrics = in_run("longer", "metrics.jsonl");
    assert_int_equal(train("longer", false, NULL, 0, &said), 0);
    free(said);
    const char *longer[] = {"train.steps=40"};
    assert_int_equal(train("longer", true, longer, 1, &said), 0);
    assert_said(said, "the run is 40 steps long now and was 20");
    // cosine from 0.01 to 0.001: the end of 20 steps, and 18 of 37 steps after the warm-up of 3
    double is = 0.001 + 0.009 * (1 + cos(3.14159265358979323846 * 18 / 37)) / 2;
    assert_true(fabs(number_after(said, warning) - is) < 1e-4 * is);
    assert_true(fabs(number_after(said, "where it was to be ") - 0.001) < 1e-7);
    assert_said(said, "--set schedule.kind=constant --set optimizer.lr=0.001");
    free(said);
    char *text = read_text(metrics); // and that is what was trained with
    assert_true(fabs(number_after(strstr(text, "\"step\":21,"), "\"lr\":") - is) < 1e-6 * is);
    free(text);
    assert_int_equal(train("longer", true, NULL, 0, &said), 0); // the length of the last time is not news
    assert_null(strstr(said, "steps long now"));
    free(said), free(metrics);
}

static void what_the_warning_proposes_keeps_the_rate(void **state) {
    (void)state;
    static const char *const sets[] = {"train.steps=24", "schedule.kind=constant", "optimizer.lr=0.001",
                                       "optimizer.lr_rescale=none"};
    char *said, *metrics = in_run("kept", "metrics.jsonl");
    assert_int_equal(train("kept", false, NULL, 0, &said), 0);
    free(said);
    assert_int_equal(train("kept", true, sets, 4, &said), 0);
    assert_null(strstr(said, "steps long now"));
    char *text = read_text(metrics);
    for (int step = 20; step <= 24; step++) {
        char *words = text_format("\"step\":%d,", step);
        assert_true(fabs(number_after(strstr(text, words), "\"lr\":") - 0.001) < 1e-9);
        free(words);
    }
    free(text), free(said), free(metrics);
}

static void a_constant_rate_does_not_follow_the_length(void **state) {
    (void)state;
    static const char *const constant[] = {"schedule.kind=constant"}, *const longer[] = {"train.steps=24"};
    char *said;
    assert_int_equal(train("constant", false, constant, 1, &said), 0);
    free(said);
    assert_int_equal(train("constant", true, longer, 1, &said), 0);
    assert_null(strstr(said, "steps long now"));
    free(said);
    static const char *const other[] = {"train.steps=30", "schedule.kind=cosine"}; // said as a changed setting
    assert_int_equal(train("constant", true, other, 2, &said), 0);
    assert_null(strstr(said, "steps long now"));
    assert_said(said, "schedule.kind was \"constant\" and is \"cosine\"");
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_whose_checkpoints_were_all_set_aside_is_refused_and_left_alone),
        cmocka_unit_test(a_run_without_a_checkpoint_starts_again_and_keeps_its_metrics),
        cmocka_unit_test(nothing_is_moved_when_there_are_no_steps),
        cmocka_unit_test(a_longer_run_says_what_becomes_of_the_learning_rate),
        cmocka_unit_test(what_the_warning_proposes_keeps_the_rate),
        cmocka_unit_test(a_constant_rate_does_not_follow_the_length),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
