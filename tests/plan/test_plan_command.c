// `hearth plan` as a command: pages it writes, requests it refuses; and the history that calibrates predictions.
#include "base/json.h"
#include "bench/bench_machine.h"
#include "caught.h"
#include "cli/commands.h"
#include "cli/plan_write.h"
#include "train/prediction.h"
#include "train/setup.h"
#include "watch/plan_text.h"

#include <unistd.h>

static Status plan(const char *const *words) {
    char *argv[40] = {"plan"};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    return cmd_plan(argc, argv);
}
#define PLAN(...) plan((const char *const[]){__VA_ARGS__, NULL})

#define TEXT(output, ...) CAUGHT(output, cmd_plan, __VA_ARGS__)

// The plan as the JSON object that --json prints.
static json_t *plan_json(const char *text) {
    json_t *root = NULL;
    assert_ok(json_read_text(&root, text, strlen(text), "output"));
    return root;
}

static double number(const json_t *root, const char *group, const char *name) {
    const json_t *value = json_object_get(group ? json_object_get(root, group) : root, name);
    if (!json_is_number(value)) fail_msg("the plan has no %s", name);
    return json_number_value(value);
}

static char directory[] = "/tmp/hearth-plan-XXXXXX";

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(directory)) return -1;
    char *history = path_join(directory, "history.jsonl");
    setenv("HEARTH_HISTORY", history, 1);
    setenv("HEARTH_MACHINE", "", 1);
    unsetenv("HEARTH_CALIBRATION");
    free(history);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    return 0;
}

static void the_html_page_needs_nothing_from_elsewhere(void **state) {
    char *page = path_join(directory, "plan.html"), *svg = path_join(directory, "step.svg"), *text;
    size_t size;
    (void)state;
    assert_ok(PLAN("llama-3-8b", "--gpus", "32", "--tp", "4", "--pp", "4", "--accum", "8", "--schedule", "1f1b",
                   "--html", page, "--svg", svg));
    assert_ok(file_read(&text, &size, page));
    for (const char *found = text; (found = strstr(found, "http")); found++) // only the name of the SVG format
        assert_true(text_starts_with(found, "http://www.w3.org/2000/svg"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "nan"));
    static const char *const sections[] = {"Model",    "Memory of one rank", "Step time",  "Communication",
                                           "Pipeline", "Checkpoints",        "Bottleneck", "Simulated step"};
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if (!strstr(text, sections[i])) fail_msg("the page has no section %s", sections[i]);
    free(text);
    assert_ok(file_read(&text, &size, svg));
    assert_true(text_starts_with(text, "<svg"));
    free(text);
    free(page);
    free(svg);
}

static void a_page_and_json_can_be_had_at_once(void **state) {
    char *page = path_join(directory, "both.html"), *text;
    (void)state;
    assert_ok(TEXT(&text, "smollm-360m", "--json", "--html", page));
    json_t *root = plan_json(text);
    assert_true(number(root, "budget", "tokens_per_second") > 0);
    assert_true(file_exists(page));
    json_decref(root);
    free(text);
    assert_ok(TEXT(&text, "smollm-360m", "--html", page)); // the page takes the place of the text
    assert_string_equal(text, "");
    free(text);
    free(page);
}

#define EXPERT_PARALLEL "qwen3-30b-a3b", "--node", "hgx-h200", "--ep", "8", "--seq", "4096", "--zero", "3"
static void expert_parallel_plans_name_the_bound_of_their_buffers(void **state) {
    char *text, *json;
    (void)state;
    assert_error(TEXT(&text, EXPERT_PARALLEL), "does not fit");
    assert_error(TEXT(&json, EXPERT_PARALLEL, "--json"), "does not fit");
    json_t *root = plan_json(json);
    const json_t *rows = json_object_get(json_object_get(root, "memory_bytes"), "expert_rows");
    char room[32];
    char *line = text_format("expert buffers: room for %s rows",
                             text_grouped(room, json_integer_value(json_object_get(rows, "room"))));
    assert_non_null(strstr(text, line));
    assert_true(number(rows, NULL, "most") == 8 * number(rows, NULL, "mean"));
    free(line);
    json_decref(root);
    free(text);
    free(json);
    assert_ok(TEXT(&text, "qwen3-30b-a3b", "--node", "hgx-h200", "--zero", "3"));
    assert_null(strstr(text, "expert buffers"));
    free(text);
}

static void ops_inside_others_leave_no_row(void **state) { // the rotary of heads of 64 takes no time of its own
    char *page = path_join(directory, "inside.html"), *text;
    size_t size;
    (void)state;
    assert_ok(PLAN("smollm-360m", "--gpu", "h200-sxm", "--html", page));
    assert_ok(file_read(&text, &size, page));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "RoPE"));
    free(text);
    free(page);
}

static void what_does_not_fit_is_said_first_with_a_way_that_does(void **state) {
    char *text;
    (void)state;
    assert_error(TEXT(&text, "qwen3-30b-a3b", "--node", "hgx-h200", "--seq", "12288", "--micro-batch", "4"),
                 "the plan does not fit");
    const char *verdict = strstr(text, "Does not fit"), *model = strstr(text, "\nModel\n");
    assert_true(verdict && model && verdict < model);
    assert_non_null(strstr(text, "fits: ZeRO 3, micro_batch 1, grad_accum 4; "));
    assert_null(strstr(text, "gains more than"));
    free(text);
    assert_ok(TEXT(&text, "qwen3-30b-a3b", "--node", "hgx-h200", "--seq", "12288", "--zero", "3", "--micro-batch", "1",
                   "--accum", "4", "--json"));
    json_t *root = plan_json(text);
    assert_true(json_is_true(json_object_get(root, "fits")));
    assert_true(number(root, "memory_bytes", "fraction") < 0.85);
    json_decref(root);
    free(text);
    assert_error(TEXT(&text, "qwen3-30b-a3b", "--gpu", "rtx-4090"), "the plan does not fit");
    assert_non_null(strstr(text, "nothing fits below 85 % of memory"));
    free(text);
    assert_ok(TEXT(&text, "smollm-360m"));
    assert_null(strstr(text, "fit\n"));
    free(text);
}

static void the_search_says_what_the_trainer_takes(void **state) {
    char *text;
    (void)state;
    assert_ok(TEXT(&text, "smollm-360m", "--gpus", "2", "--search", "--json"));
    json_t *root = plan_json(text), *candidate;
    size_t i, data = 0;
    json_array_foreach(json_object_get(root, "top"), i, candidate) {
        assert_true(json_is_boolean(json_object_get(candidate, "runs")));
        if (number(candidate, NULL, "dp") != 2) continue;
        data++;
        assert_true(json_is_true(json_object_get(candidate, "runs")));
    }
    assert_true(data > 0);
    json_decref(root);
    free(text);
    assert_ok(TEXT(&text, "smollm-360m", "--gpu", "cpu", "--search"));
    assert_non_null(strstr(text, "runs: hearth trains on such a mesh\n"));
    free(text);
}

static void shipped_configs_fit_where_they_are_meant_to_run(void **state) {
    static const char *const configs[][3] = {{"configs/smollm-360m.toml", "--gpu", "a100-sxm"},
                                             {"configs/llama-3.2-1b.toml", "--gpu", "h100-sxm"},
                                             {"configs/qwen3-moe-500m.toml", "--gpu", "h100-sxm"},
                                             {"configs/qwen3-30b-a3b.toml", "--node", "hgx-h200"}};
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        char *text;
        assert_ok(TEXT(&text, configs[i][0], configs[i][1], configs[i][2], "--json"));
        json_t *root = plan_json(text);
        if (!(number(root, "memory_bytes", "fraction") < 0.85)) fail_msg("%s does not fit", configs[i][0]);
        json_decref(root);
        free(text);
    }
}

static void a_run_is_as_long_as_the_trainer_makes_it(void **state) {
    static const struct {
        const char *set[3];
        double steps, tokens;
    } cases[] = {
        {{"train.steps=200", "train.tokens=0", "train.batch_warmup_tokens=0"}, 200, 200 * 4096.0},
        {{"train.steps=200", "train.tokens=100K", "train.batch_warmup_tokens=0"}, 25, 100e3}, // the first of the two
        {{"train.steps=20", "train.tokens=100K", "train.batch_warmup_tokens=0"}, 20, 20 * 4096.0},
        // 2 micro-batches of 2,048: 8,192 tokens with one, the rest with two
        {{"train.steps=10", "train.tokens=0", "train.batch_warmup_tokens=16384"}, 10, 4 * 2048.0 + 6 * 4096.0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text;
        assert_ok(TEXT(&text, "smollm-360m", "--seq", "1024", "--micro-batch", "2", "--accum", "2", "--set",
                       cases[i].set[0], "--set", cases[i].set[1], "--set", cases[i].set[2], "--json"));
        json_t *root = plan_json(text);
        assert_true(number(root, "budget", "steps") == cases[i].steps);
        assert_true(number(root, "budget", "tokens") == cases[i].tokens);
        json_decref(root);
        free(text);
    }
}

static void a_plan_has_one_bubble(void **state) { // stages of unequal work: the closed form says 27 %
    char *text;
    (void)state;
    assert_ok(TEXT(&text, "llama-3.2-1b", "--gpus", "8", "--pp", "4", "--accum", "8"));
    assert_non_null(strstr(text, "bubble of equal stages"));
    assert_null(strstr(text, "! pipeline bubble"));
    free(text);
    assert_ok(TEXT(&text, "llama-3.2-1b", "--gpus", "8", "--pp", "4", "--accum", "2"));
    int share;
    double part;
    const char *warning = strstr(text, "! pipeline bubble "), *row = strstr(text, "\n  pipeline bubble ");
    assert_true(warning && row);
    assert_int_equal(sscanf(warning, "! pipeline bubble %d", &share), 1);
    assert_int_equal(sscanf(row, " pipeline bubble %*f ms %lf", &part), 1);
    assert_true(fabs(part - share) <= 0.55); // printed with one digit and with none
    free(text);
}

static void figures_of_the_page_stay_on_one_line(void **state) {
    char *page = path_join(directory, "search.html"), *text;
    size_t size;
    (void)state;
    assert_ok(PLAN("smollm-360m", "--search", "--html", page));
    assert_ok(file_read(&text, &size, page));
    assert_non_null(strstr(text, "td.r{white-space:nowrap}"));
    assert_non_null(strstr(text, " %</td><td class=\"r\">")); // figures with blanks are in such cells
    free(text);
    free(page);
}

static void the_frontiers_last_column_is_memory(void **state) {
    char *text;
    (void)state;
    assert_ok(TEXT(&text, "smollm-360m", "--search"));
    const char *frontier = strstr(text, "Frontier");
    assert_non_null(frontier);
    assert_null(strstr(frontier, "  why"));
    assert_non_null(strstr(frontier, "memory per device\n"));
    free(text);
}

static void wrong_requests_are_usage_errors(void **state) {
    (void)state;
    assert_error(PLAN("smolm-360m"), "did you mean smollm-360m");
    assert_error(PLAN("smollm-360m", "--gpu", "h300"), "no gpu \"h300\"");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--tp", "3"), "do not divide by tp 3");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--tp", "8"), "attention heads 15 does not divide");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--dp", "4"), "needs 4 GPUs, there are 8");
    assert_error(PLAN("smollm-360m", "--gpus", "-1"), "--gpus must be between");
    assert_error(PLAN("smollm-360m", "--gpus", "0"), "--gpus must be between 1 and");
    assert_error(PLAN("smollm-360m", "--hours", "0"), "--hours must be between");
    assert_error(PLAN("nope.toml"), "no such file or directory: nope.toml");
    assert_error(PLAN("nowhere/smollm-360m"), "no such file or directory: nowhere/smollm-360m");
    assert_error(PLAN("smollm-360m", "--mfu", "1.5"), "--mfu must be between");
    assert_error(PLAN("smollm-360m", "--hours", "-3"), "--hours must be between");
    assert_error(PLAN("smollm-360m", "--vocab", "-5"), "--vocab must be between");
    assert_error(PLAN("smollm-360m", "--tok-s", "-5"), "--tok-s must be between");
    assert_error(PLAN("smollm-360m", "--pue", "nan"), "--pue must be between");
    assert_error(PLAN("smollm-360m", "--price", "-1"), "--price must be between");
    assert_error(PLAN("smollm-360m", "--memory-limit", "-1"), "--memory-limit must be between");
    assert_error(PLAN("smollm-360m", "--svg", "/nowhere.svg"), "--svg needs --schedule");
    assert_error(PLAN("smollm-360m", "--mfu-count", "8n"), "--mfu-count must be");
    assert_error(PLAN("smollm-360m", "--recompute", "some"), "recompute.mode");
    assert_error(PLAN("smollm-360m", "--schedule", "zigzag"), "the schedule must be");
    assert_error(PLAN("smollm-360m", "--hardware", "/nowhere.toml"), "/nowhere.toml");
    assert_error(PLAN("smollm-360m", "--search", "--seqs", "4096,,"), "--seqs takes");
    assert_error(PLAN("smollm-360m", "--search", "--target-hours", "12"), "--target-hours does not go with --search");
    assert_error(PLAN("smollm-360m", "--search", "--schedule", "1f1b"), "--schedule does not go with --search");
    assert_error(PLAN("smollm-360m", "--schedule", "interleaved"), "needs --virtual-stages of 2 or more");
    assert_error(PLAN("smollm-360m", "--pp", "64", "--gpus", "64"), "cannot fill 64 pipeline stages");
}

// A line without the number is older than it.
static void outcomes_of_another_step_model_teach_nothing(void **state) {
    LayoutRequest layout = {.mesh = MESH_SINGLE, .micro_batch = 2, .seq = 128, .device = DEVICE_CPU, .threads = 2};
    Prediction first, second;
    char *history = prediction_history_path(), *text;
    size_t size;
    json_t *line;
    (void)state;
    assert_ok(model_preset(&layout.config, "demo-llama"));
    assert_ok(prediction_make(&first, &layout, 2, "cpu", 0, 1));
    assert_ok(prediction_remember(&first, &(PlanMeasured){.step_seconds = 1.5 * first.raw_step_seconds}));
    assert_ok(file_read(&text, &size, history));
    assert_ok(json_read_text(&line, text, size, history));
    free(text);
    for (int version = STEP_MODEL_VERSION; version <= STEP_MODEL_VERSION + 2; version++) {
        json_object_set_new(line, "step_model", json_integer(version));
        if (version > STEP_MODEL_VERSION + 1) json_object_del(line, "step_model");
        text = json_dumps(line, JSON_COMPACT);
        assert_ok(file_write_atomic(history, text, strlen(text)));
        free(text);
        assert_ok(prediction_make(&second, &layout, 2, "cpu", 0, 1));
        assert_int_equal(second.calibration.runs, version == STEP_MODEL_VERSION ? 1 : 0);
    }
    json_decref(line);
    assert_int_equal(unlink(history), 0);
    free(history);
}

static void earlier_runs_calibrate_the_next_prediction(void **state) {
    LayoutRequest layout = {.mesh = MESH_SINGLE, .micro_batch = 2, .seq = 128, .device = DEVICE_CPU, .threads = 2};
    Prediction first, second;
    (void)state;
    assert_ok(model_preset(&layout.config, "demo-llama"));
    assert_ok(prediction_make(&first, &layout, 2, "cpu", 0, 1));
    assert_int_equal(first.calibration.runs, 0);
    PlanMeasured measured = {
        .memory = first.plan.memory.total, .step_seconds = 1.5 * first.raw_step_seconds, .tokens_per_second = 1};
    assert_ok(prediction_remember(&first, &measured));
    char *history = prediction_history_path(); // what a crash tore is passed over
    FILE *file = fopen(history, "a");
    fputs("{\"device\": \"cp", file);
    fclose(file);
    free(history);
    assert_ok(prediction_make(&second, &layout, 2, "cpu", 0, 1));
    assert_int_equal(second.calibration.runs, 1);
    assert_true(fabs(second.plan.step.seconds / first.plan.step.seconds - 1.5) < 1e-9);
    assert_true(fabs(second.raw_step_seconds / first.raw_step_seconds - 1) < 1e-9);
    assert_true(second.plan.memory.total == first.plan.memory.total);
    assert_ok(prediction_make(&second, &layout, 200, "cpu", 0, 1)); // steps of another length: nothing to learn from
    assert_int_equal(second.calibration.runs, 0);
    layout.precision = PRECISION_BF16; // another kind of run: likewise
    assert_ok(prediction_make(&second, &layout, 2, "cpu", 0, 1));
    assert_int_equal(second.calibration.runs, 0);
    layout.precision = PRECISION_FP32;
    setenv("HEARTH_CALIBRATION", "off", 1);
    assert_ok(prediction_make(&second, &layout, 2, "cpu", 0, 1));
    assert_true(second.plan.step.seconds == first.plan.step.seconds);
    unsetenv("HEARTH_CALIBRATION");
    assert_error(prediction_make(&second, &layout, 2, "Radeon VII", 0, 1), "does not know the device");
}

static void outcomes_are_printed_with_their_error(void **state) {
    PlanPrediction prediction = {.memory.total = 2 * 1073741824.0, .step = {.seconds = 0.11, .tokens_per_second = 900}};
    PlanMeasured measured = {.memory = 2 * 1073741824.0, .step_seconds = 0.1, .tokens_per_second = 1000};
    TextBuffer out = {0};
    (void)state;
    plan_outcome_text(&prediction, &measured, &out);
    assert_non_null(strstr(out.data, "error +0.0 %"));
    assert_non_null(strstr(out.data, "error +10.0 %"));
    assert_non_null(strstr(out.data, "error -10.0 %"));
    text_buffer_free(&out);
}

static void a_measured_profile_reads_back(void **state) {
    Ops *ops;
    Hardware hardware;
    Toml toml;
    TextBuffer text = {0};
    const HardwareGpu *cpu;
    (void)state;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(bench_machine(ops, "cpu", true, &text));
    ops_destroy(ops);
    assert_ok(prediction_hardware(&hardware, NULL, false));
    assert_ok(toml_parse(&toml, text.data, text.length, "machine.toml"));
    assert_ok(hardware_merge(&hardware, toml.root, "machine.toml"));
    assert_ok(hardware_find_gpu(&hardware, "cpu", &cpu));
    assert_true(cpu->measured && cpu->gemm_count > 0 && cpu->attention_count > 0);
    toml_free(&toml);
    hardware_free(&hardware);
    text_buffer_free(&text);
}

static void a_way_with_virtual_stages_is_written_so_that_it_is_read_back(void **state) {
    static const char *const sets[] = {"model.preset=llama-3-8b", "train.batch_tokens=1M",
                                       "parallelism.layers_per_stage=4"};
    SearchCandidate way = {.mesh = {.dp = 4, .tp = 2, .pp = 2, .ep = 1, .cp = 1, .etp = 1, .zero = 1},
                           .recompute = RECOMPUTE_FULL,
                           .micro_batch = 3,
                           .seq = 4096,
                           .grad_accum = 6,
                           .virtual_stages = 2};
    char *file = path_join(directory, "way.toml");
    Config config, back;
    ModelConfig model;
    LayoutRequest layout;
    (void)state;
    assert_ok(config_read(&config, NULL, sets, 3));
    for (int stages = 2; stages >= 1; stages--) { // interleaved, and plain again from a config that is interleaved
        way.virtual_stages = stages;
        assert_ok(plan_write_config(file, &config, &way, "# a way\n"));
        config_free(&config);
        assert_ok(config_read(&back, file, NULL, 0));
        assert_ok(setup_model(&back, 0, &model));
        assert_ok(setup_layout(&back, &model, DEVICE_CUDA, &layout));
        assert_int_equal(layout_chunks(&layout), stages);
        assert_memory_equal(&layout.mesh, &way.mesh, sizeof way.mesh);
        assert_true(layout.recompute == RECOMPUTE_FULL && layout.micro_batch == 3 && layout.seq == 4096);
        assert_int_equal(batch_plan(&back, way.mesh.dp).grad_accum, 6);
        assert_true(back.train.batch_tokens == 0 && back.parallelism.layers_per_stage == 0);
        config = back;
    }
    config_free(&config);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_html_page_needs_nothing_from_elsewhere),
        cmocka_unit_test(a_page_and_json_can_be_had_at_once),
        cmocka_unit_test(expert_parallel_plans_name_the_bound_of_their_buffers),
        cmocka_unit_test(ops_inside_others_leave_no_row),
        cmocka_unit_test(what_does_not_fit_is_said_first_with_a_way_that_does),
        cmocka_unit_test(the_search_says_what_the_trainer_takes),
        cmocka_unit_test(shipped_configs_fit_where_they_are_meant_to_run),
        cmocka_unit_test(a_run_is_as_long_as_the_trainer_makes_it),
        cmocka_unit_test(a_plan_has_one_bubble),
        cmocka_unit_test(figures_of_the_page_stay_on_one_line),
        cmocka_unit_test(the_frontiers_last_column_is_memory),
        cmocka_unit_test(wrong_requests_are_usage_errors),
        cmocka_unit_test(outcomes_of_another_step_model_teach_nothing),
        cmocka_unit_test(earlier_runs_calibrate_the_next_prediction),
        cmocka_unit_test(outcomes_are_printed_with_their_error),
        cmocka_unit_test(a_measured_profile_reads_back),
        cmocka_unit_test(a_way_with_virtual_stages_is_written_so_that_it_is_read_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
