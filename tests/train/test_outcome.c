// The end of a run: predicted against measured, and the history that the next prediction learns from.
#include "tiny_run.h"

#include "base/json.h"
#include "train/outcome.h"

static char *directory, *history;

static int make_directory(void **state) {
    (void)state;
    setenv("HEARTH_CALIBRATION", "always", 1); // these runs are short, and the machine may have other work
    directory = tiny_directory();
    history = path_join(directory, "history.jsonl");
    setenv("HEARTH_HISTORY", history, 1);
    setenv("HEARTH_MACHINE", "", 1); // the catalogue's figures, whatever was measured here
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(history);
    return 0;
}

static void the_median_is_of_the_noted_steps(void **state) {
    (void)state;
    Outcome outcome = {0};
    PlanMeasured measured;
    static const double seconds[] = {4, 1, 100, 2, 3};
    for (int i = 0; i < 4; i++)
        outcome_note(&outcome, seconds[i], 10, 15);
    assert_false(outcome_measured(&outcome, 60, &measured)); // too few
    outcome_note(&outcome, seconds[4], 11, 15);
    assert_true(outcome_measured(&outcome, 60, &measured));
    assert_true(measured.step_seconds == 3 && measured.tokens_per_second == 20 && measured.memory == 11);
    assert_true(measured.memory_beside == 4); // in use, and not asked for here
    outcome_note(&outcome, 4, 11, 15);
    assert_true(outcome_measured(&outcome, 70, &measured));
    assert_true(measured.step_seconds == 3.5 && measured.tokens_per_second == 20);
    outcome_free(&outcome);
}

// Runs hearth for some steps; what it printed is malloc'd in *shown, its prediction in *prediction.
static void train(const char *name, int steps, char **shown, json_t **prediction) {
    char *config = tiny_config(directory, "outcome.toml", steps, ""), *run = path_join(directory, name);
    char *log = path_join(directory, "log"), *path = path_join(run, "plan.json");
    const char *const arguments[] = {"train", config, "--run", run, "--set", "watch.terminal=plain", NULL};
    int code = hearth_run(arguments, log);
    *shown = read_text(log);
    if (code) fail_msg("%s", *shown);
    json_t *plan = NULL;
    assert_ok(json_read_file(&plan, path));
    *prediction = json_incref(json_object_get(plan, "prediction"));
    assert_non_null(*prediction);
    json_decref(plan);
    free(path);
    free(log);
    free(run);
    free(config);
}

static int history_lines(void) {
    char *text = read_text(history);
    int count = 0;
    for (const char *at = text; *at; at++)
        count += *at == '\n';
    free(text);
    return count;
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no %s", key);
    return json_number_value(value);
}

static void a_few_steps_say_nothing(void **state) {
    (void)state;
    char *shown;
    json_t *prediction;
    train("short", 7, &shown, &prediction); // three of warm-up, four measured
    assert_null(strstr(shown, "predicted against measured"));
    assert_int_equal(history_lines(), 0);
    free(shown);
    json_decref(prediction);
}

static void a_run_ends_with_its_errors_and_teaches_the_next(void **state) {
    (void)state;
    char *shown;
    json_t *first, *second, *line = NULL;
    train("first", 12, &shown, &first);
    static const char *const parts[] = {"median of 9 steps, the first 3 left out", "  memory ", "  step ",
                                        "  throughput "};
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(shown, parts[i]);
        if (!at) fail_msg("no \"%s\" in:\n%s", parts[i], shown);
        const char *end = strchr(at, '\n'), *error = strstr(at, " error ");
        if (i) assert_true(strstr(at, "predicted") < error && strstr(at, "measured") < error && error < end);
    }
    assert_true(strstr(strstr(shown, "  memory "), "error +0.0 %") != NULL); // exact on the CPU
    free(shown);
    assert_true(number(first, "calibration") == 1 && number(first, "calibration_runs") == 0);
    assert_int_equal(history_lines(), 1);

    char *text = read_text(history);
    assert_ok(json_read_text(&line, text, strlen(text), history));
    double predicted = number(line, "predicted_step_seconds"), measured = number(line, "measured_step_seconds");
    assert_true(predicted == number(first, "uncalibrated_step_seconds"));
    json_decref(line);
    free(text);

    train("second", 12, &shown, &second);
    double factor = fmin(fmax(measured / predicted, 0.5), 2);
    assert_int_equal((int)number(second, "calibration_runs"), 1);
    assert_true(fabs(number(second, "calibration") / factor - 1) < 1e-9);
    assert_true(fabs(number(second, "step_seconds") / (factor * predicted) - 1) < 1e-9);
    assert_non_null(strstr(shown, "from 1 earlier run"));
    assert_int_equal(history_lines(), 2);
    free(shown);
    json_decref(first);
    json_decref(second);
}

// Tokens over seconds of all steps but the first three.
static void the_average_speed_is_that_of_the_metrics(void **state) {
    (void)state;
    char *shown, *path = path_join(directory, "speed/metrics.jsonl");
    json_t *prediction;
    train("speed", 12, &shown, &prediction);
    char *text = read_text(path), grouped[32];
    double seconds = 0;
    int steps = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = NULL;
        assert_ok(json_read_text(&root, line, strlen(line), path));
        assert_true(fabs(number(root, "tok_s") * number(root, "seconds") / 128 - 1) < 1e-8); // nine digits each
        if (++steps > 3) seconds += number(root, "seconds");
        json_decref(root);
    }
    assert_int_equal(steps, 12);
    const char *average = strstr(shown, "\naverage ");
    assert_non_null(average);
    double expected = 9 * 128 / seconds, said = 0;
    for (const char *at = average + strlen("\naverage "); *at != ' '; at++)
        if (*at != ',') said = 10 * said + (*at - '0');
    if (!(fabs(said - expected) <= 0.5 + 1e-7 * expected))
        fail_msg("average %.0f tok/s, expected %s", said, text_grouped(grouped, (int64_t)expected));
    json_decref(prediction);
    free(text), free(path), free(shown);
}

static void switched_off_the_history_is_neither_read_nor_written(void **state) {
    (void)state;
    int before = history_lines();
    assert_true(before > 0);
    char *shown;
    json_t *prediction;
    setenv("HEARTH_CALIBRATION", "off", 1);
    train("off", 12, &shown, &prediction);
    setenv("HEARTH_CALIBRATION", "always", 1);
    assert_true(number(prediction, "calibration") == 1 && number(prediction, "calibration_runs") == 0);
    assert_int_equal(history_lines(), before);
    assert_non_null(strstr(shown, "predicted against measured")); // it is still said
    free(shown);
    json_decref(prediction);
}

// Ten seconds on four cores: of 30 seconds of work 20 were this run's, so others had a quarter of the machine.
static void a_short_run_or_a_busy_machine_teaches_nothing(void **state) {
    (void)state;
    MachineLoad from = {100, 1000, 50}, to = {110, 1030, 70};
    assert_true(fabs(machine_load_others(&from, &to, 1, 4) - 0.25) < 1e-12);
    assert_true(machine_load_others(&from, &(MachineLoad){110, 1045, 70}, 2, 4) == 0.125); // 5 of 45 s are another's
    assert_true(machine_load_others(&from, &(MachineLoad){110, 0, 70}, 1, 4) == 0);        // the system does not tell
    MachineLoad now = machine_load_now();
    assert_true(now.clock > 0 && now.own > 0 && now.busy >= 0);
    Outcome outcome = {0};
    unsetenv("HEARTH_CALIBRATION");
    for (int i = 0; i < OUTCOME_STEPS_TEACH; i++) {
        assert_string_equal(outcome_unfit(outcome.count, OUTCOME_STEPS_TEACH, 0), "the run was too short");
        outcome_note(&outcome, 1, 1, 1);
    }
    assert_null(outcome_unfit(outcome.count, OUTCOME_STEPS_TEACH, OUTCOME_OTHERS_MOST));
    assert_non_null(outcome_unfit(outcome.count, OUTCOME_STEPS_TEACH, 1.01 * OUTCOME_OTHERS_MOST));
    int before = history_lines();
    char *shown;
    json_t *prediction;
    train("brief", 12, &shown, &prediction);
    setenv("HEARTH_CALIBRATION", "always", 1);
    assert_non_null(strstr(shown, "not kept for later predictions: the run was too short"));
    assert_int_equal(history_lines(), before);
    outcome_free(&outcome);
    json_decref(prediction);
    free(shown);
}

static void a_failed_run_is_not_remembered(void **state) {
    (void)state;
    int before = history_lines();
    char *config = tiny_config(directory, "diverge.toml", 40, ""), *log = path_join(directory, "log");
    char *run = path_join(directory, "diverged");
    const char *const arguments[] = {"train", config,
                                     "--run", run,
                                     "--set", "optimizer.lr=100",
                                     "--set", "train.spike_factor=1.0001",
                                     "--set", "train.max_skips=3",
                                     NULL};
    int code = hearth_run(arguments, log);
    assert_int_equal(code, 1);
    assert_int_equal(history_lines(), before);
    free(run);
    free(log);
    free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_median_is_of_the_noted_steps),
        cmocka_unit_test(a_few_steps_say_nothing),
        cmocka_unit_test(a_run_ends_with_its_errors_and_teaches_the_next),
        cmocka_unit_test(the_average_speed_is_that_of_the_metrics),
        cmocka_unit_test(switched_off_the_history_is_neither_read_nor_written),
        cmocka_unit_test(a_short_run_or_a_busy_machine_teaches_nothing),
        cmocka_unit_test(a_failed_run_is_not_remembered),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
