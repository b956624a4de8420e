// `hearth plan` as a command: pages it writes, requests it refuses; and the history that calibrates predictions.
#include "cli/commands.h"
#include "testing.h"
#include "train/bench_machine.h"
#include "train/prediction.h"

#include <unistd.h>

static Status plan(const char *const *words) {
    char *argv[40] = {"plan"};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    return cmd_plan(argc, argv);
}
#define PLAN(...) plan((const char *const[]){__VA_ARGS__, NULL})

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

static void wrong_requests_are_usage_errors(void **state) {
    (void)state;
    assert_error(PLAN("smolm-360m"), "did you mean smollm-360m");
    assert_error(PLAN("smollm-360m", "--gpu", "h300"), "no gpu \"h300\"");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--tp", "3"), "do not divide by tp 3");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--tp", "8"), "attention heads 15 does not divide");
    assert_error(PLAN("smollm-360m", "--gpus", "8", "--dp", "4"), "needs 4 GPUs, there are 8");
    assert_error(PLAN("smollm-360m", "--gpus", "-1"), "--gpus must be between");
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
    assert_error(PLAN("smollm-360m", "--pp", "64", "--gpus", "64"), "cannot fill 64 pipeline stages");
}

static void earlier_runs_calibrate_the_next_prediction(void **state) {
    LayoutRequest layout = {.mesh = MESH_SINGLE, .micro_batch = 2, .seq = 128, .device = LAYOUT_CPU, .threads = 2};
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
    layout.precision = PRECISION_BF16; // another kind of run: nothing to learn from
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_html_page_needs_nothing_from_elsewhere),
        cmocka_unit_test(ops_inside_others_leave_no_row),
        cmocka_unit_test(wrong_requests_are_usage_errors),
        cmocka_unit_test(earlier_runs_calibrate_the_next_prediction),
        cmocka_unit_test(outcomes_are_printed_with_their_error),
        cmocka_unit_test(a_measured_profile_reads_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
