// Dynamic loss scaling: the rule, its state, and runs in fp16 whose gradients overflow.
#include "tiny_folder.h"

#include "base/json.h"
#include "train/loss_scale.h"
#include "train/trainer.h"

// ---- the rule ------------------------------------------------------------------------------------------------------

static void good_steps_in_a_row_double_it(void **state) {
    (void)state;
    LossScale scale = {.scale = 8, .every = 3};
    for (int i = 0; i < 2; i++)
        assert_false(loss_scale_note(&scale, false, false));
    assert_true(scale.scale == 8);
    assert_false(loss_scale_note(&scale, false, false));
    assert_true(scale.scale == 16 && scale.good == 0);
}

static void an_overflow_halves_it_and_begins_the_count_anew(void **state) {
    (void)state;
    LossScale scale = {.scale = 8, .every = 3, .good = 2};
    assert_true(loss_scale_note(&scale, true, true));
    assert_true(scale.scale == 4 && scale.good == 0);
}

static void a_step_skipped_for_its_loss_leaves_it_alone(void **state) {
    (void)state;
    LossScale scale = {.scale = 8, .every = 3, .good = 2};
    assert_false(loss_scale_note(&scale, true, false));
    assert_true(scale.scale == 8 && scale.good == 2);
}

static void at_one_an_overflow_is_not_its_doing(void **state) {
    (void)state;
    LossScale scale = {.scale = 1, .every = 3};
    assert_false(loss_scale_note(&scale, true, true));
    assert_true(scale.scale == 1);
}

static void it_ends_where_nothing_underflows_any_more(void **state) {
    (void)state;
    LossScale scale = {.scale = LOSS_SCALE_MOST, .every = 1};
    loss_scale_note(&scale, false, false);
    assert_true(scale.scale == LOSS_SCALE_MOST);
}

static void runs_of_other_precisions_have_none(void **state) {
    (void)state;
    LossScale scale = {0};
    assert_false(loss_scale_note(&scale, true, true));
    assert_false(loss_scale_note(&scale, false, false));
    assert_true(scale.scale == 0);
}

static void the_state_survives_json(void **state) {
    (void)state;
    LossScale scale = {.scale = 0x1p33, .every = 2000, .good = 1234}, again = {.scale = 4, .every = 2000};
    json_t *root = json_pack("{s:o}", "loss_scale", loss_scale_json(&scale)), *none = json_object();
    char *text = json_dumps(root, 0);
    json_t *read = json_loads(text, 0, NULL);
    assert_ok(loss_scale_restore(&again, none, "test")); // of a run of another precision
    assert_true(again.scale == 4);
    assert_ok(loss_scale_restore(&again, read, "test"));
    assert_memory_equal(&scale, &again, sizeof scale);
    static const double damaged[] = {0, 3, 0x1p41, -2};
    for (int i = 0; i < 4; i++) {
        json_object_set_new(json_object_get(read, "loss_scale"), "scale", json_real(damaged[i]));
        assert_error(loss_scale_restore(&again, read, "test"), "power of two");
    }
    free(text);
    json_decref(root);
    json_decref(read);
    json_decref(none);
}

// ---- runs ----------------------------------------------------------------------------------------------------------

typedef struct Fp16Run {
    Config config;
    Trainer trainer;
} Fp16Run;

static void open_run(Fp16Run *run, const char *scale, const char *every) {
    char *path = tiny_config(directory, "fp16.toml", 60, "");
    const char *sets[] = {"train.precision=fp16", scale, every};
    assert_ok(config_read(&run->config, path, sets, 3));
    assert_ok(trainer_open(&run->trainer, &run->config));
    free(path);
}

static void close_run(Fp16Run *run) {
    trainer_close(&run->trainer);
    config_free(&run->config);
}

static MetricsStep next_step(Fp16Run *run) {
    MetricsStep metrics;
    bool stopped;
    assert_ok(trainer_step(&run->trainer, &metrics, NULL, &stopped));
    return metrics;
}

// From 2^40 every step overflows until a gradient fits into f16: each halves the scale, is skipped and counted, more of
// them in a row than train.max_skips allows of others; then the run trains, with the optimizer at its first step.
static void gradients_that_overflow_halve_the_scale_and_the_run_goes_on(void **state) {
    (void)state;
    Fp16Run run;
    open_run(&run, "train.loss_scale=1099511627776", "train.loss_scale_steps=2000");
    double expected = 0x1p40;
    MetricsStep step = next_step(&run);
    double first = step.loss;
    while (step.skipped) {
        assert_true(step.overflow && step.loss_scale == expected && isfinite(step.loss));
        assert_int_equal(run.trainer.applied, 0);
        assert_int_equal(run.trainer.guard.skipped_in_row, 0);
        expected /= 2;
        assert_true(run.trainer.loss_scale.scale == expected);
        step = next_step(&run);
    }
    int64_t skipped = run.trainer.guard.skipped;
    assert_true(skipped > run.config.train.max_skips && expected > 1);
    assert_int_equal(step.step, skipped + 1);
    assert_int_equal(step.skipped_total, skipped);
    assert_true(step.loss_scale == expected && isfinite(step.grad_norm) && step.grad_norm < 1000);
    while (run.trainer.step < 60)
        step = next_step(&run);
    assert_true(step.loss < 0.8 * first);
    close_run(&run);
}

static void the_scale_is_doubled_after_good_steps(void **state) {
    (void)state;
    Fp16Run run;
    open_run(&run, "train.loss_scale=1024", "train.loss_scale_steps=3");
    for (int i = 0; i < 8; i++) {
        MetricsStep step = next_step(&run);
        assert_false(step.skipped);
        assert_true(step.loss_scale == 1024 * (double)(1 << i / 3));
    }
    close_run(&run);
}

// Powers of two round nothing as long as no gradient is subnormal: the loss of every step but for what underflows is
// that of any other scale. 2^-24 of a subnormal's size beside gradients of 2^-6 and more at 2^16.
static void the_scale_does_not_show_in_what_is_learned(void **state) {
    (void)state;
    MetricsStep first[4];
    static const char *const scales[] = {"train.loss_scale=65536", "train.loss_scale=262144"};
    for (int i = 0; i < 2; i++) {
        Fp16Run run;
        open_run(&run, scales[i], "train.loss_scale_steps=2000");
        for (int k = 0; k < 4; k++) {
            MetricsStep step = next_step(&run);
            if (!i) first[k] = step;
            assert_true(fabs(step.loss - first[k].loss) <= 1e-4 * first[k].loss);
            assert_true(fabs(step.grad_norm - first[k].grad_norm) <= 1e-3 * first[k].grad_norm);
        }
        close_run(&run);
    }
}

// ---- kept and taken up again ----------------------------------------------------------------------------------------

static char *field_of(const char *line, const char *key) { // up to the next comma, malloc'd
    const char *at = strstr(line, key);
    assert_non_null(at);
    at += strlen(key);
    return text_format("%.*s", (int)strcspn(at, ",}"), at);
}

static void assert_same_lines(const char *one, const char *two, int steps) {
    static const char *const keys[] = {"\"loss\":", "\"grad_norm\":", "\"loss_scale\":", "\"skipped_total\":"};
    char *left = read_text(one), *right = read_text(two), *left_rest = NULL, *right_rest = NULL;
    char *a = strtok_r(left, "\n", &left_rest), *b = strtok_r(right, "\n", &right_rest);
    for (int step = 1; step <= steps; step++) {
        assert_true(a && b);
        for (int i = 0; i < 4; i++) {
            char *x = field_of(a, keys[i]), *y = field_of(b, keys[i]);
            assert_string_equal(x, y);
            free(x);
            free(y);
        }
        a = strtok_r(NULL, "\n", &left_rest), b = strtok_r(NULL, "\n", &right_rest);
    }
    free(left);
    free(right);
}

static int64_t kept_good_steps(const char *run, int step) {
    char *path = text_format("%s/checkpoints/step-%d/state.json", run, step), *text = read_text(path);
    json_t *root = json_loads(text, 0, NULL);
    int64_t good = json_integer_value(json_object_get(json_object_get(root, "loss_scale"), "good_steps"));
    json_decref(root);
    free(path), free(text);
    return good;
}

// Steps overflow, the scale grows by three good ones, and the run is left between these.
static void a_resumed_run_is_that_of_an_undisturbed_one(void **state) {
    (void)state;
    char *config = tiny_config(directory, "chain.toml", 24, "[checkpoint]\nkeep_last = 9\n");
    char *log = path_join(directory, "log"), *straight = path_join(directory, "straight");
    char *broken = path_join(directory, "broken");
    const char *common[] = {"--set", "train.precision=fp16",     "--set", "train.loss_scale=8388608",
                            "--set", "train.loss_scale_steps=3", "--set", "schedule.kind=constant"};
    const char *one[] = {"train",   config,    "--run",   straight,  common[0], common[1], common[2],
                         common[3], common[4], common[5], common[6], common[7], NULL};
    const char *two[] = {"train",   config,    "--run",   broken,    common[0], common[1],        common[2], common[3],
                         common[4], common[5], common[6], common[7], "--set",   "train.steps=13", NULL};
    assert_int_equal(hearth_run(one, log), 0);
    assert_int_equal(hearth_run(two, log), 0);
    bool counting = false;
    static const char *const ends[] = {"train.steps=14", "train.steps=15", "train.steps=24"};
    for (int i = 0; i < 3; i++) { // of three steps in a row one at least is a first or second good one
        counting = counting || kept_good_steps(broken, 13 + i) > 0;
        const char *again[] = {"train", "--resume", "--run", broken, "--set", ends[i], NULL};
        assert_int_equal(hearth_run(again, log), 0);
    }
    assert_true(counting);
    char *left = path_join(straight, "metrics.jsonl"), *right = path_join(broken, "metrics.jsonl");
    assert_same_lines(left, right, 24);
    char *lines = read_text(left);
    assert_non_null(strstr(lines, "\"skipped\":true")); // else it would show nothing
    static const char *const files[] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors"};
    for (int i = 0; i < 3; i++) {
        char *x = text_format("%s/checkpoints/step-24/%s", straight, files[i]);
        char *y = text_format("%s/checkpoints/step-24/%s", broken, files[i]);
        FileMap a, b;
        assert_ok(file_map(&a, x));
        assert_ok(file_map(&b, y));
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data, b.data, a.size);
        file_unmap(&a);
        file_unmap(&b);
        free(x), free(y);
    }
    free(config), free(log), free(straight), free(broken), free(left), free(right), free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_steps_in_a_row_double_it),
        cmocka_unit_test(an_overflow_halves_it_and_begins_the_count_anew),
        cmocka_unit_test(a_step_skipped_for_its_loss_leaves_it_alone),
        cmocka_unit_test(at_one_an_overflow_is_not_its_doing),
        cmocka_unit_test(it_ends_where_nothing_underflows_any_more),
        cmocka_unit_test(runs_of_other_precisions_have_none),
        cmocka_unit_test(the_state_survives_json),
        cmocka_unit_test(gradients_that_overflow_halve_the_scale_and_the_run_goes_on),
        cmocka_unit_test(the_scale_is_doubled_after_good_steps),
        cmocka_unit_test(the_scale_does_not_show_in_what_is_learned),
        cmocka_unit_test(a_resumed_run_is_that_of_an_undisturbed_one),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
