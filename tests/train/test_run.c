// When a run validates, writes checkpoints and ends, and which of its steps it counts.
#include "tiny_run.h"

#include "base/json.h"
#include "train/checkpoint.h"

static char *directory, *log_path;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    log_path = path_join(directory, "log");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(log_path);
    return 0;
}

// A run of 12 steps with these settings, NULL-terminated; returns its directory (malloc'd).
static char *train(const char *name, const char *const *sets) {
    char *config = tiny_config(directory, "run.toml", 12, ""), *run = path_join(directory, name);
    const char *words[32] = {"train", config, "--run", run};
    for (int i = 0, count = 4; sets[i]; i++) {
        words[count++] = "--set";
        words[count++] = sets[i];
    }
    int code = hearth_run(words, log_path);
    char *said = read_text(log_path);
    if (code) fail_msg("%s", said);
    free(said);
    free(config);
    return run;
}

typedef struct Lines {
    json_t *root[256];
    int count;
} Lines;

static Lines read_lines(const char *run) {
    Lines lines = {0};
    char *path = path_join(run, "metrics.jsonl"), *text = read_text(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(lines.count < 256);
        assert_ok(json_read_text(&lines.root[lines.count++], line, strlen(line), path));
    }
    free(text);
    free(path);
    return lines;
}

static void free_lines(Lines *lines) {
    for (int i = 0; i < lines->count; i++)
        json_decref(lines->root[i]);
}

static int64_t step_of(const json_t *line) {
    return json_integer_value(json_object_get(line, "step"));
}

static void validation_comes_at_the_start_every_so_often_and_in_full_at_the_end(void **state) {
    (void)state;
    static const char *const sets[] = {"eval.at_start=true", "eval.every=5", "eval.at_end=true", NULL};
    static const struct {
        int64_t step;
        const char *kind;
    } expected[] = {{0, "subset"}, {5, "subset"}, {10, "subset"}, {12, "full"}};
    char *run = train("validated", sets);
    Lines lines = read_lines(run);
    int found = 0;
    for (int i = 0; i < lines.count; i++) {
        const char *kind = json_string_value(json_object_get(lines.root[i], "eval"));
        if (!kind) continue;
        assert_true(found < 4);
        assert_int_equal(step_of(lines.root[i]), expected[found].step);
        assert_int_equal(json_integer_value(json_object_get(lines.root[i], "tokens")), 128 * expected[found].step);
        assert_string_equal(kind, expected[found].kind);
        int64_t targets = json_integer_value(json_object_get(lines.root[i], "targets"));
        assert_true(strcmp(kind, "full") == 0 ? targets > 8 * 32 : targets == 8 * 32); // eval.windows = 8
        found++;
    }
    assert_int_equal(found, 4);
    assert_int_equal(lines.count, 16);
    free_lines(&lines);
    free(run);
}

static json_t *state_loss(const char *run, int step) { // "val_loss" of a checkpoint; owned
    char *path = text_format("%s/checkpoints/step-%d/state.json", run, step);
    json_t *root = NULL;
    assert_ok(json_read_file(&root, path));
    json_t *loss = json_incref(json_object_get(root, "val_loss"));
    json_decref(root);
    free(path);
    return loss;
}

// The best checkpoint is chosen by it, so it must be of the very weights, and of the same subset for all of them.
static void a_checkpoint_states_the_subset_loss_of_its_own_step(void **state) {
    (void)state;
    static const char *const sets[] = {"eval.every=4", "eval.at_end=true", "checkpoint.every=2",
                                       "checkpoint.keep_last=50", NULL};
    char *run = train("scored", sets);
    Lines lines = read_lines(run);
    for (int step = 2; step <= 12; step += 2) {
        json_t *loss = state_loss(run, step);
        if (step % 4) {
            assert_true(json_is_null(loss)); // not the one of two steps before
        } else {
            const json_t *line = NULL;
            for (int i = 0; i < lines.count; i++) {
                const char *kind = json_string_value(json_object_get(lines.root[i], "eval"));
                if (kind && strcmp(kind, "subset") == 0 && step_of(lines.root[i]) == step) line = lines.root[i];
            }
            assert_non_null(line);
            double said = json_number_value(json_object_get(line, "val_loss"));
            assert_true(fabs(json_number_value(loss) - said) <= 1e-8 * said); // nine digits
        }
        json_decref(loss);
    }
    free_lines(&lines);
    free(run);
}

// A skipped step says that the weights may be what is wrong.
static void no_checkpoint_is_written_after_a_skipped_step(void **state) {
    (void)state;
    static const char *const sets[] = {"train.steps=40",          "train.spike_factor=1.001", "train.max_skips=1000",
                                       "optimizer.lr=1e-4",       "model.init_std=0.3",       "checkpoint.every=1",
                                       "checkpoint.at_end=false", "checkpoint.keep_last=50",  NULL};
    char *run = train("doubtful", sets), *folder = path_join(run, "checkpoints");
    Lines lines = read_lines(run);
    int64_t *steps;
    int count, at = 0, skipped = 0;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    for (int i = 0; i < lines.count; i++) {
        if (json_is_true(json_object_get(lines.root[i], "skipped")))
            skipped++;
        else if (at < count)
            assert_int_equal(steps[at++], step_of(lines.root[i]));
    }
    assert_int_equal(at, count);
    assert_int_equal(count, 40 - skipped);
    assert_true(skipped > 3);
    free(steps);
    free_lines(&lines);
    free(folder);
    free(run);
}

static void hours_end_a_run_before_its_steps(void **state) {
    (void)state;
    static const char *const sets[] = {"train.steps=250", "train.hours=1e-5", NULL}; // 36 milliseconds
    char *run = train("hours", sets), *folder = path_join(run, "checkpoints");
    Lines lines = read_lines(run);
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_true(lines.count < 250);
    if (lines.count) assert_true(count == 1 && steps[0] == lines.count); // and it ends as any other
    free(steps);
    free_lines(&lines);
    free(folder);
    free(run);
}

static void assert_median_of(const char *name, const char *const *sets, int steps) {
    char *run = train(name, sets), *said = read_text(log_path);
    char *words = text_format("median of %d steps, the first 3 left out", steps);
    if (!strstr(said, words)) fail_msg("\"%s\" is not in:\n%s", words, said);
    free(words), free(said), free(run);
}

// The prediction is of the full batch, and of a step that nobody takes apart.
static void only_steps_like_the_predicted_one_are_compared_with_it(void **state) {
    (void)state;
    static const char *const profiled[] = {"watch.terminal=plain", "profile.every=4", NULL};
    static const char *const growing[] = {"watch.terminal=plain", "train.batch_warmup_tokens=640", NULL};
    assert_median_of("profiled", profiled, 6); // of steps 4 to 12, without 4, 8 and 12
    assert_median_of("growing", growing, 7);   // the first five have one micro-batch, for half of the 640 tokens
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_comes_at_the_start_every_so_often_and_in_full_at_the_end),
        cmocka_unit_test(a_checkpoint_states_the_subset_loss_of_its_own_step),
        cmocka_unit_test(no_checkpoint_is_written_after_a_skipped_step),
        cmocka_unit_test(hours_end_a_run_before_its_steps),
        cmocka_unit_test(only_steps_like_the_predicted_one_are_compared_with_it),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
