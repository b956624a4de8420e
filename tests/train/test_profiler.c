// The profile of a few steps of a trainer: which steps, parts that add up, a GPU that a library makes up, files that
// cannot be written.
#include "tiny_run.h"

#include "train/profiler_internal.h"
#include "train/trainer.h"

static char *directory, *out;
static const char *fake_cupti; // "": this build has none

static int make_directory(void **state) {
    (void)state;
    setenv("HEARTH_MACHINE", "", 1); // the catalogue's figures
    directory = tiny_directory();
    out = path_join(directory, "profile");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(out);
    return 0;
}

static int forget_profile(void **state) {
    (void)state;
    status_free(dir_remove(out));
    return 0;
}

typedef struct Run {
    Config config;
    Trainer trainer;
    Profiler *profiler;
    double seconds; // of the last steps that ran
} Run;

static void open_run(Run *run, const char *const *sets, int set_count, ProfilerOptions options) {
    char *path = tiny_config(directory, "tiny.toml", 100, "");
    *run = (Run){0};
    assert_ok(config_read(&run->config, path, sets, set_count));
    assert_ok(trainer_open(&run->trainer, &run->config));
    options.model = run->trainer.model;
    options.prediction = run->trainer.prediction;
    options.directory = out;
    options.gpu = -1;
    run->profiler = profiler_open(&options);
    free(path);
}

static void run_steps_of(Run *run, int count) {
    MetricsStep metrics;
    bool stopped;
    run->seconds = 0;
    for (int i = 0; i < count; i++) {
        profiler_step_begin(run->profiler, run->trainer.step + 1);
        assert_ok(trainer_step(&run->trainer, &metrics, NULL, &stopped));
        profiler_step_end(run->profiler, &metrics);
        run->seconds += metrics.seconds;
    }
}

static void close_run(Run *run) {
    profiler_close(run->profiler);
    trainer_close(&run->trainer);
    config_free(&run->config);
}

static json_t *read_json(const char *name) {
    char *path = path_join(out, name);
    json_t *root = NULL;
    assert_ok(json_read_file(&root, path));
    free(path);
    return root;
}

static ProfileSummary read_summary(void) {
    ProfileSummary summary;
    json_t *root = read_json("summary.json");
    assert_true(profile_read(&summary, root));
    json_decref(root);
    return summary;
}

static int count_files(void) {
    char **names = NULL;
    size_t count = 0;
    if (!file_exists(out)) return 0;
    assert_ok(dir_list(&names, &count, out));
    names_free(names, count);
    return (int)count;
}

static int count_named(const char *file, const char *key, const char *text) {
    json_t *root = read_json(file), *events = json_object_get(root, "traceEvents");
    int count = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *value = json_string_value(json_object_get(json_array_get(events, i), key));
        count += value && strcmp(value, text) == 0;
    }
    json_decref(root);
    return count;
}

static void wait_warmup_and_active_say_which_steps(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.wait = 2, .warmup = 1, .active = 2});
    run_steps_of(&run, 3);
    assert_true(!timeline_on() && !run.trainer.ops->observed == !run.trainer.ops->observers);
    run_steps_of(&run, 1);
    assert_true(timeline_on());
    assert_null(profiler_said(run.profiler));
    assert_int_equal(count_files(), 0);
    run_steps_of(&run, 1);
    assert_false(timeline_on());
    char *said = profiler_said(run.profiler);
    assert_non_null(strstr(said, "profile of 2 steps from step 4 on"));
    assert_non_null(strstr(said, "The biggest loss of time is"));
    assert_null(profiler_said(run.profiler));
    free(said);
    run_steps_of(&run, 2); // nothing more comes of it
    assert_int_equal(count_files(), 2);
    ProfileSummary summary = read_summary();
    assert_true(summary.first_step == 4 && summary.steps == 2);
    static const char *const steps[] = {"step 3", "step 4", "step 5", "step 6"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(count_named("step-4.json", "name", steps[i]), i == 1 || i == 2);
    // Two micro-batches a step, of two layers; each kept where it belongs.
    assert_int_equal(count_named("step-4.json", "name", "micro-batch 1"), 2);
    assert_int_equal(count_named("step-4.json", "name", "forward, layer 1"), 4);
    assert_int_equal(count_named("step-4.json", "name", "backward, layer 0"), 4);
    assert_int_equal(count_named("step-4.json", "name", "AdamW"), 4); // matrices and vectors
    close_run(&run);
}

// Ops and waits are all that a step on the CPU does. A machine that takes the core away between two of them is tried
// again.
static void expect_parts_that_add_up(const char *const *sets, int set_count, bool experts) {
    enum { TRIES = 20 };
    bool named = false, same = false;
    for (int i = 0; i < TRIES && !(named && same); i++) {
        Run run;
        open_run(&run, sets, set_count, (ProfilerOptions){.warmup = 1, .active = 2});
        run_steps_of(&run, 1);
        run_steps_of(&run, 2);
        ProfileSummary summary = read_summary();
        double sum = 0;
        for (int k = 0; k < PROFILE_PART_COUNT; k++)
            sum += summary.part[k];
        assert_true(fabs(sum / summary.step_seconds - 1) < 1e-9);
        assert_true(summary.part[CATEGORY_GEMM] > 0 && summary.part[CATEGORY_ATTENTION] > 0 &&
                    summary.part[CATEGORY_OPTIMIZER] > 0 && summary.part[CATEGORY_ELEMENTWISE] > 0);
        assert_true((summary.part[CATEGORY_GROUPED] > 0) == experts && (summary.part[CATEGORY_ROUTING] > 0) == experts);
        for (int k = 0; k < summary.op_count; k++)
            assert_true(summary.ops[k].floor > 0 && summary.ops[k].calls >= 1);
        same = fabs(2 * sum / run.seconds - 1) < 0.02;
        named = 1 - summary.part[PROFILE_GAPS] / summary.step_seconds > 0.95;
        close_run(&run);
    }
    assert_true(same);
    assert_true(named);
}

static void the_parts_of_a_dense_step_add_up(void **state) {
    (void)state;
    static const char *const sets[] = {"model.hidden=128", "model.ffn=256", "train.seq=64"};
    expect_parts_that_add_up(sets, 3, false);
}

static void the_parts_of_a_step_with_experts_add_up(void **state) {
    (void)state;
    static const char *const sets[] = {"model.arch=qwen3_moe", "model.hidden=128",   "model.head_dim=32",
                                       "model.experts=4",      "model.top_k=2",      "model.expert_ffn=64",
                                       "train.seq=64",         "recompute.mode=full"};
    expect_parts_that_add_up(sets, 8, true);
    ProfileSummary summary = read_summary();
    assert_true(summary.recompute > 0 && summary.recompute < summary.step_seconds);
}

// The CPU's table, taken for a GPU's: its calls are what the library makes kernels of.
static void a_gpu_s_parts_are_those_of_its_kernels(void **state) {
    (void)state;
    if (!fake_cupti[0]) skip();
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.wait = 1, .warmup = 1, .active = 2, .cupti = fake_cupti});
    run.trainer.ops->kind = DEVICE_CUDA;
    run_steps_of(&run, 4);
    run.trainer.ops->kind = DEVICE_CPU;
    ProfileSummary summary = read_summary();
    assert_string_equal(summary.device_missing, "");
    assert_string_equal(summary.no_graph, "");
    assert_true(summary.part[CATEGORY_GEMM] > 0 && summary.part[CATEGORY_OPTIMIZER] > 0);
    assert_true(summary.op_count == PROFILE_OPS_SHOWN && summary.ops[0].seconds > 0 && summary.ops[0].floor > 0);
    assert_true(summary.first_step == 3 && summary.steps == 2);
    // On the thread and on the device, of the active steps alone.
    assert_int_equal(count_named("step-3.json", "name", "AdamW"), 4 + 4);
    json_t *root = read_json("step-3.json"), *events = json_object_get(root, "traceEvents");
    int kernels = 0, streams = 0, calls = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
        const char *name = json_string_value(json_object_get(args, "name"));
        const char *kernel = json_string_value(json_object_get(args, "kernel"));
        kernels += kernel != NULL;
        if (kernel) assert_string_equal(kernel, "_Z6kernelv");
        if (kernel) assert_non_null(json_object_get(args, "op"));
        streams += name && strcmp(name, "GPU, stream 7") == 0;
        calls += name && strcmp(name, "CUDA calls of thread 5") == 0;
    }
    json_decref(root);
    assert_true(kernels > 50 && streams == 1 && calls == 1);
    close_run(&run);
}

static void a_gpu_without_the_library_is_timed_by_events(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.active = 2, .cupti = "/nowhere/libcupti.so"});
    run.trainer.ops->kind = DEVICE_CUDA;
    run_steps_of(&run, 2);
    run.trainer.ops->kind = DEVICE_CPU;
    ProfileSummary summary = read_summary();
    assert_true(strstr(summary.device_missing, "CUPTI") || strstr(summary.device_missing, "libcupti"));
    double sum = 0;
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        sum += summary.part[i];
    assert_true(fabs(sum / summary.step_seconds - 1) < 1e-9);
    assert_true(summary.part[CATEGORY_GEMM] > 0 && summary.op_count > 0);
    assert_false(run.trainer.model->direct); // as it was
    close_run(&run);
}

// A graph of two calls, launched three times; one call outside; an exchange half behind them.
static void a_recorded_call_counts_with_every_launch_of_its_graph(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.active = 1});
    Ops ops = *run.trainer.ops;
    Model model = *run.trainer.model;
    ops.kind = DEVICE_CUDA;
    model.ops = &ops;
    ProfilerStep step = {7, 100, 110};
    ProfilerKind kinds[] = {{.call = {.call = {.op = OP_LINEAR_FORWARD}, .pass = STEP_FORWARD}, "a", 0.25},
                            {.call = {.call = {.op = OP_ADAMW}, .pass = STEP_ONCE}, "b", 1}};
    ProfilerCall calls[] = {{0, 0, 0, 0}, {0, 1, 0, 0}, {1, -1, 0, 0}};
    DeviceActivity activities[] = {
        {DEVICE_KERNEL, "k", 100, 101, .graph = 1, .launched = 5, .call = 1},
        {DEVICE_KERNEL, "k", 101, 101.5, .graph = 1, .launched = 5, .call = 1}, // the same call
        {DEVICE_KERNEL, "k", 102, 103, .graph = 1, .launched = 5, .call = 2},
        {DEVICE_KERNEL, "k", 103, 104, .graph = 1, .launched = 6, .call = 1},
        {DEVICE_KERNEL, "_Z23ncclDevKernel_AllReducev", 103.5, 105, .graph = 1, .launched = 6},
        {DEVICE_KERNEL, "k", 105, 106, .graph = 1, .launched = 7, .call = 1},
        {DEVICE_KERNEL, "k", 107, 108, .launched = 8, .call = 3},
        {DEVICE_KERNEL, "k", 108, 108.5, .launched = 9, .call = 3},
        {DEVICE_COPY, "copy", 108.5, 109, .launched = 10},
        {DEVICE_KERNEL, "k", 200, 201, .launched = 11, .call = 3}, // of another step
        {DEVICE_API, "f", 100, 110, .launched = 12, .call = 3},    // takes no time of the device
    };
    Profiler profiler = {.options = {.model = &model},
                         .steps = &step,
                         .step_count = 1,
                         .kinds = kinds,
                         .kind_count = 2,
                         .calls = calls,
                         .call_count = 3};
    ProfilerRecord record = {NULL, activities, 0, sizeof activities / sizeof *activities, 0};
    ProfileSummary summary;
    profiler_summarize(&profiler, &record, &summary);
    assert_true(summary.part[CATEGORY_GEMM] == 4.5 && summary.part[CATEGORY_OPTIMIZER] == 1.5);
    assert_true(summary.part[PROFILE_COMMUNICATION] == 1 && summary.hidden == 0.5);
    assert_true(summary.part[CATEGORY_COPY] == 0.5 && summary.part[PROFILE_GAPS] == 2.5);
    assert_int_equal(summary.op_count, 2);
    assert_true(strcmp(summary.ops[0].name, "a") == 0 && summary.ops[0].calls == 4 && summary.ops[0].floor == 1);
    assert_true(summary.ops[0].seconds == 4.5);
    assert_true(strcmp(summary.ops[1].name, "b") == 0 && summary.ops[1].calls == 1 && summary.ops[1].floor == 1);
    close_run(&run);
}

static void files_that_cannot_be_written_are_said_and_no_more(void **state) {
    (void)state;
    Run run;
    assert_ok(file_write_atomic(out, "in the way", 10));
    open_run(&run, NULL, 0, (ProfilerOptions){.active = 1});
    run_steps_of(&run, 2);
    char *said = profiler_said(run.profiler);
    assert_non_null(strstr(said, "the profile is not kept"));
    assert_non_null(strstr(said, "profile of 1 step"));
    free(said);
    close_run(&run);
    assert_int_equal(remove(out), 0);
}

static void an_end_before_the_last_active_step_keeps_what_there_is(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.wait = 1, .active = 5});
    run_steps_of(&run, 3);
    profiler_step_begin(run.profiler, run.trainer.step + 1);
    profiler_step_end(run.profiler, NULL); // dropped: it does not count
    profiler_finish(run.profiler);
    profiler_finish(run.profiler); // once
    ProfileSummary summary = read_summary();
    assert_true(summary.first_step == 2 && summary.steps == 2);
    assert_int_equal(count_named("step-2.json", "name", "step 4"), 0);
    close_run(&run);
}

static void an_end_before_the_first_active_step_writes_nothing(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.wait = 1, .warmup = 4, .active = 5});
    run_steps_of(&run, 3);
    profiler_finish(run.profiler);
    assert_int_equal(count_files(), 0);
    close_run(&run);
}

static void an_end_with_an_error_leaves_nothing_behind(void **state) {
    (void)state;
    Run run;
    open_run(&run, NULL, 0, (ProfilerOptions){.active = 5});
    Ops before = *run.trainer.ops;
    run_steps_of(&run, 1);
    assert_true(timeline_on() && run.trainer.ops->observers);
    profiler_close(run.profiler);
    run.profiler = NULL;
    assert_true(!timeline_on() && run.trainer.ops->linear_forward == before.linear_forward);
    run_steps_of(&run, 1); // and NULL is no profile
    assert_int_equal(count_files(), 0);
    assert_null(profiler_open(&(ProfilerOptions){.wait = 1}));
    close_run(&run);
}

int main(int argc, char **argv) {
    fake_cupti = argc > 1 ? argv[1] : "";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(wait_warmup_and_active_say_which_steps, forget_profile),
        cmocka_unit_test_teardown(the_parts_of_a_dense_step_add_up, forget_profile),
        cmocka_unit_test_teardown(the_parts_of_a_step_with_experts_add_up, forget_profile),
        cmocka_unit_test_teardown(a_gpu_s_parts_are_those_of_its_kernels, forget_profile),
        cmocka_unit_test_teardown(a_gpu_without_the_library_is_timed_by_events, forget_profile),
        cmocka_unit_test(a_recorded_call_counts_with_every_launch_of_its_graph),
        cmocka_unit_test(files_that_cannot_be_written_are_said_and_no_more),
        cmocka_unit_test_teardown(an_end_before_the_last_active_step_keeps_what_there_is, forget_profile),
        cmocka_unit_test_teardown(an_end_before_the_first_active_step_writes_nothing, forget_profile),
        cmocka_unit_test(an_end_with_an_error_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
