// metrics.jsonl as those who read it rely on it: names, numbers, null, and what a reopened file holds.
#include "testing.h"

#include "base/json.h"
#include "watch/metrics.h"

#include <unistd.h>

static char *directory, *path;

static int make_directory(void **state) {
    (void)state;
    directory = text_copy("/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    path = path_join(directory, "metrics.jsonl");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(path);
    return 0;
}

static char *file_text(void) { // malloc'd
    char *text;
    size_t size;
    assert_ok(file_read(&text, &size, path));
    return text;
}

static void write_text(const char *text) {
    assert_ok(file_write_atomic(path, text, strlen(text)));
}

static MetricsStep plain_step(int64_t number) {
    return (MetricsStep){.step = number,
                         .tokens = 128 * number,
                         .loss = 5.25,
                         .lr = 0.0003,
                         .grad_norm = 1.5,
                         .tokens_per_second = 1000,
                         .tflops = 0.125,
                         .memory_bytes = 4096,
                         .memory_fraction = 0.5,
                         .data_wait = 0.0625,
                         .seconds = 0.128,
                         .elapsed = 2,
                         .grad_accum = 2};
}

// The one line that a fresh file gets.
static char *line_of(const MetricsStep *step) {
    Metrics *metrics;
    unlink(path);
    assert_ok(metrics_open(&metrics, path, 0));
    assert_ok(metrics_step(metrics, step));
    metrics_close(metrics);
    return file_text();
}

static void assert_line(const MetricsStep *step, const char *expected) {
    char *line = line_of(step);
    assert_string_equal(line, expected);
    free(line);
}

static void a_step_is_one_line_of_json(void **state) {
    (void)state;
    MetricsStep step = plain_step(7);
    assert_line(&step, "{\"step\":7,\"tokens\":896,\"loss\":5.25,\"loss_aux\":0,\"lr\":0.0003,\"grad_norm\":1.5,"
                       "\"grad_accum\":2,\"tok_s\":1000,\"tflops\":0.125,\"memory_bytes\":4096,\"memory_fraction\":0.5,"
                       "\"data_wait\":0.0625,\"seconds\":0.128,\"elapsed\":2,\"skipped\":false,\"skipped_total\":0}\n");
}

static void what_is_known_of_some_steps_only_stands_in_their_lines_only(void **state) {
    (void)state;
    static const ExpertLoad loads[] = {{1.5, 0.875, 0}, {1.25, 0.75, 2}};
    MetricsStep step = plain_step(1);
    step.mfu = 0.4;
    step.loss_aux = 1.125;
    step.skipped = true;
    step.skipped_total = 3;
    step.split_count = 2;
    step.split_name[0] = "gemm", step.split_ms[0] = 1.5;
    step.split_name[1] = "moe", step.split_ms[1] = 0.25;
    step.moe = loads;
    step.moe_count = 2;
    char *line = line_of(&step);
    static const char *const parts[] = {
        "\"loss_aux\":1.125,", "\"tflops\":0.125,\"mfu\":0.4,",
        "\"skipped\":true,\"skipped_total\":3,\"split_ms\":{\"gemm\":1.5,\"moe\":0.25},",
        "\"moe_load_max\":1.5,\"moe_entropy\":0.75,\"moe_dead\":2,", // the worst of each over the layers
        "\"moe_layers\":{\"load_max\":[1.5,1.25],\"entropy\":[0.875,0.75],\"dead\":[0,2]}}\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(line, parts[i])) fail_msg("%s is not in %s", parts[i], line);
    free(line);
}

static void a_loss_that_is_not_finite_is_null(void **state) {
    (void)state;
    MetricsStep step = plain_step(1);
    step.loss = NAN;
    step.grad_norm = INFINITY;
    char *line = line_of(&step);
    json_t *root = NULL;
    assert_ok(json_read_text(&root, line, strlen(line), path)); // still JSON
    assert_true(json_is_null(json_object_get(root, "loss")) && json_is_null(json_object_get(root, "grad_norm")));
    json_decref(root);
    free(line);
}

static void two_losses_that_differ_read_differently(void **state) {
    (void)state;
    for (int exponent = -20; exponent <= 3; exponent++) {
        float one = ldexpf(1.7320508f, exponent), two = nextafterf(one, 10);
        MetricsStep step = plain_step(1);
        step.loss = one;
        char *line = line_of(&step);
        float read = strtof(strstr(line, "\"loss\":") + 7, NULL);
        assert_true(read == one && read != two);
        free(line);
    }
}

static void an_evaluation_has_its_own_line(void **state) {
    (void)state;
    Metrics *metrics;
    Evaluation eval = {.loss = 2, .perplexity = 7.5, .bits_per_byte = 0.75, .targets = 320, .seconds = 0.5};
    unlink(path);
    assert_ok(metrics_open(&metrics, path, 0));
    assert_ok(metrics_evaluation(metrics, 40, 5120, 0, &eval));
    eval.full = true;
    eval.bits_per_byte = 0; // not known
    assert_ok(metrics_evaluation(metrics, 41, 5248, 0, &eval));
    metrics_close(metrics);
    char *text = file_text();
    assert_string_equal(text, "{\"step\":40,\"tokens\":5120,\"eval\":\"subset\",\"val_loss\":2,\"perplexity\":7.5,"
                              "\"bits_per_byte\":0.75,\"targets\":320,\"seconds\":0.5}\n"
                              "{\"step\":41,\"tokens\":5248,\"eval\":\"full\",\"val_loss\":2,\"perplexity\":7.5,"
                              "\"targets\":320,\"seconds\":0.5}\n");
    assert_true(metrics_has_full_eval(path, 41));
    assert_false(metrics_has_full_eval(path, 40)); // of the subset only
    free(text);
}

static void a_reopened_file_keeps_the_lines_up_to_its_step(void **state) {
    (void)state;
    Metrics *metrics;
    write_text(
        "{\"step\":0,\"eval\":\"subset\",\"val_loss\":5}\n{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n"
        "not a line\n{\"step\":2,\"eval\":\"subset\",\"val_loss\":2}\n{\"step\":3,\"loss\":1}\n{\"step\":4,\"lo");
    assert_ok(metrics_open(&metrics, path, 2));
    MetricsStep step = plain_step(3);
    assert_ok(metrics_step(metrics, &step));
    metrics_close(metrics);
    char *text = file_text();
    const char *kept =
        "{\"step\":0,\"eval\":\"subset\",\"val_loss\":5}\n{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n"
        "{\"step\":2,\"eval\":\"subset\",\"val_loss\":2}\n{\"step\":3,\"tokens\":";
    assert_true(text_starts_with(text, kept));
    free(text);
}

static void losses_and_the_last_step_are_those_of_step_lines(void **state) {
    (void)state;
    double *losses;
    int64_t count;
    write_text("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":null}\n{\"step\":9,\"eval\":\"full\",\"val_loss\":5}\n"
               "{\"step\":3,\"loss\":1.5}\n{\"step\":4,\"loss\":null}\n{\"step\":5,\"lo");
    assert_ok(metrics_read_losses(path, &losses, &count));
    assert_int_equal(count, 2);
    assert_true(losses[0] == 3 && losses[1] == 1.5);
    assert_int_equal(metrics_last_step(path), 4); // skipped steps count
    free(losses);
    unlink(path);
    assert_int_equal(metrics_last_step(path), 0);
    assert_false(metrics_has_full_eval(path, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_line_of_json),
        cmocka_unit_test(what_is_known_of_some_steps_only_stands_in_their_lines_only),
        cmocka_unit_test(a_loss_that_is_not_finite_is_null),
        cmocka_unit_test(two_losses_that_differ_read_differently),
        cmocka_unit_test(an_evaluation_has_its_own_line),
        cmocka_unit_test(a_reopened_file_keeps_the_lines_up_to_its_step),
        cmocka_unit_test(losses_and_the_last_step_are_those_of_step_lines),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
