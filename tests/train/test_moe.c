// How a run watches and steers the load of experts.
#include "tiny_folder.h"

#include "base/json.h"
#include "train/trainer.h"
#include "watch/expert_load.h"

// ---- the statistics ------------------------------------------------------------------------------------------------

static void the_worst_is_taken_figure_by_figure(void **state) {
    (void)state;
    static const ExpertLoad layers[] = {{1.5, 0.9, 0}, {1.2, 0.7, 2}, {3.0, 0.8, 1}};
    ExpertLoad worst = expert_load_worst(layers, 3);
    assert_true(worst.load_max == 3.0 && worst.entropy == 0.7 && worst.dead == 2);
}

// ---- in a run ------------------------------------------------------------------------------------------------------

static const char *const shape = "[model]\narch = \"qwen3_moe\"\nexperts = 8\ntop_k = 2\nexpert_ffn = 32\n";

// The tiny config names [model] first; the MoE lines go into the same table.
static char *moe_config(const char *name, int steps, const char *more) {
    char *dense = tiny_config(directory, name, steps, more), *text = read_text(dense);
    char *whole = text_format("%s%s", shape, text + strlen("[model]\n"));
    assert_ok(file_write_atomic(dense, whole, strlen(whole)));
    free(whole);
    free(text);
    return dense;
}

static void every_printed_step_logs_the_load_of_every_layer(void **state) {
    (void)state;
    char *config = moe_config("load.toml", 9, "print_every = 4\n"), *run = path_join(directory, "load");
    char *log = path_join(directory, "log"), *path = path_join(run, "metrics.jsonl");
    const char *const arguments[] = {"train", config, "--run", run, "--set", "watch.terminal=plain", NULL};
    assert_int_equal(hearth_run(arguments, log), 0);
    char *text = read_text(path), *shown = read_text(log);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = NULL;
        assert_ok(json_read_text(&root, line, strlen(line), path));
        int64_t step = json_integer_value(json_object_get(root, "step"));
        const json_t *layers = json_object_get(root, "moe_layers");
        bool wanted = step == 1 || step == 4 || step == 8 || step == 9;
        assert_int_equal(layers != NULL, wanted);
        if (wanted) {
            double most = json_number_value(json_object_get(root, "moe_load_max"));
            double entropy = json_number_value(json_object_get(root, "moe_entropy"));
            assert_true(most >= 1 && most <= 4 && entropy > 0 && entropy <= 1);
            assert_true(json_is_integer(json_object_get(root, "moe_dead")));
            static const char *const lists[] = {"load_max", "entropy", "dead"};
            for (int i = 0; i < 3; i++)
                assert_int_equal(json_array_size(json_object_get(layers, lists[i])), 2);
        }
        json_decref(root);
    }
    assert_non_null(strstr(shown, "  load "));
    free(shown);
    free(text);
    free(path);
    free(log);
    free(run);
    free(config);
}

// Load of the busiest expert of the worst layer over the mean, in the last ten steps of a run with these settings.
static double last_load(const char *const sets[4], int steps) {
    char *path = moe_config("bias.toml", steps, "print_every = 1\n");
    Config config;
    Trainer trainer;
    MetricsStep metrics;
    bool stopped;
    double sum = 0;
    assert_ok(config_read(&config, path, sets, 4));
    assert_ok(trainer_open(&trainer, &config));
    for (int i = 0; i < steps; i++) {
        assert_ok(trainer_step(&trainer, &metrics, NULL, &stopped));
        if (i >= steps - 10) sum += expert_load_worst(metrics.moe, metrics.moe_count).load_max;
    }
    trainer_close(&trainer);
    config_free(&config);
    free(path);
    return sum / 10;
}

// With weights that stand still, only the bias can change the load.
static void the_bias_evens_out_the_load(void **state) {
    (void)state;
    const char *sets[4] = {"model.aux_coef=0", "model.router_bias_rate=0", "optimizer.lr=0", "train.grad_accum=1"};
    double without = last_load(sets, 60);
    sets[1] = "model.router_bias_rate=0.001";
    double with = last_load(sets, 60);
    if (!(with < 0.9 * without)) fail_msg("busiest expert %.2f x mean with the bias, %.2f without", with, without);
}

// Layers that each prefer other experts look balanced when they are counted together.
static void layers_counted_alone_are_more_even(void **state) {
    (void)state;
    const char *sets[4] = {"model.aux_coef=1", "model.balance=together", "optimizer.lr=1e-2", "train.grad_accum=1"};
    double together = last_load(sets, 100);
    sets[1] = "model.balance=layers";
    double alone = last_load(sets, 100);
    if (!(alone < 0.9 * together)) fail_msg("busiest expert %.2f x mean alone, %.2f together", alone, together);
}

// A config.json must state a dense width, though no layer of this model has one.
static void a_run_whose_layers_are_all_sparse_resumes(void **state) {
    (void)state;
    char *path = moe_config("sparse.toml", 4, ""), *run = path_join(directory, "sparse");
    char *log = path_join(directory, "log"), *text = read_text(path), *ffn = strstr(text, "ffn = 64\n");
    memmove(ffn, ffn + strlen("ffn = 64\n"), strlen(ffn + strlen("ffn = 64\n")) + 1);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    const char *const start[] = {"train", path, "--run", run, NULL};
    const char *const again[] = {"train", "--resume", "--run", run, "--set", "train.steps=6", NULL};
    assert_int_equal(hearth_run(start, log), 0);
    int code = hearth_run(again, log);
    if (code) {
        free(text);
        text = read_text(log);
        fail_msg("%s", text);
    }
    free(text);
    free(log);
    free(run);
    free(path);
}

static void a_bias_without_experts_is_refused(void **state) {
    (void)state;
    char *path = tiny_config(directory, "dense.toml", 5, "");
    const char *const sets[] = {"model.router_bias_rate=0.001"};
    Config config;
    Trainer trainer;
    assert_ok(config_read(&config, path, sets, 1));
    assert_error(trainer_open(&trainer, &config), "this model has none");
    config_free(&config);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worst_is_taken_figure_by_figure),
        cmocka_unit_test(every_printed_step_logs_the_load_of_every_layer),
        cmocka_unit_test(the_bias_evens_out_the_load),
        cmocka_unit_test(layers_counted_alone_are_more_even),
        cmocka_unit_test(a_run_whose_layers_are_all_sparse_resumes),
        cmocka_unit_test(a_bias_without_experts_is_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
