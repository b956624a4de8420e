// hearth report: runs as one page that opens anywhere.
#include "base/file.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "train/prediction.h"
#include "train/ranks.h"
#include "train/setup.h"
#include "watch/report.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS_MOST = 64 };

// ---- what the planner knows of a run --------------------------------------------------------------------------------

// The run's own configuration once more, on the device and as many as it had.
static Status advise_run(ReportRun *run, const Config *config, const char *device) {
    double ranks = run_plan_number(&run->record, "devices");
    const json_t *environment = json_array_get(run->record.environment, 0);
    double memory = json_number_value(json_object_get(environment, "device_memory_bytes"));
    int islands = (int)config->diloco.islands;
    ModelConfig model;
    LayoutRequest layout;
    TRY(setup_model(config, 0, &model));
    TRY(setup_layout(config, &model, strcmp(device, "cpu") == 0 ? DEVICE_CPU : DEVICE_CUDA, &layout));
    TRY(ranks_mesh(config, (int)ranks / islands, &layout.mesh));
    BatchPlan batch = batch_plan(config, layout.mesh.dp * islands);
    TRY(setup_micro_batches(config, &layout, &batch));
    Prediction *prediction = xmalloc(sizeof *prediction);
    PlanReport *plan = xmalloc(sizeof *plan);
    PlanQuestions questions = {.memory_limit = 0.85};
    Status status = prediction_make(prediction, &layout, (int)batch.grad_accum, device, memory, (int)ranks);
    if (!status) status = plan_report(plan, run->record.name, &prediction->machine, &prediction->run, &questions);
    if (!status && plan->change_count) run->change = plan->changes[0];
    free(plan);
    free(prediction);
    return status;
}

// A run of another machine or of another version may not be one that can be planned here: then nothing is advised.
static void take_advice(ReportRun *run) {
    Config config;
    const char *device = json_string_value(json_object_get(json_array_get(run->record.environment, 0), "device"));
    double ranks = run_plan_number(&run->record, "devices");
    if (!device || !(ranks >= 1 && ranks <= 1e6)) return;
    char *path = path_join(run->record.path, "config.toml");
    Status status = config_read(&config, path, NULL, 0);
    free(path);
    if (!status) {
        status = advise_run(run, &config, device);
        config_free(&config);
    }
    status_free(status);
}

static void take_price(ReportRun *run, const Hardware *hardware) {
    const json_t *prediction = json_object_get(run->record.plan, "prediction");
    const char *name = json_string_value(json_object_get(prediction, "device"));
    const HardwareGpu *gpu = NULL;
    status_free(name ? hardware_find_gpu(hardware, name, &gpu) : NULL);
    if (!gpu) return;
    run->usd_per_hour = gpu->usd_per_hour;
    run->watts = gpu->watts;
    run->pue = hardware->defaults.pue;
}

// ---- the command ----------------------------------------------------------------------------------------------------

static Status read_runs(ReportRun *runs, const ArgList *words, const char *hardware_file) {
    Hardware hardware;
    Status status = NULL;
    for (int i = 0; i < words->count && !status; i++)
        status = run_read(&runs[i].record, words->items[i]);
    if (!status) status = prediction_hardware(&hardware, hardware_file, false);
    if (status) return status;
    for (int i = 0; i < words->count; i++) {
        take_price(&runs[i], &hardware);
        take_advice(&runs[i]);
    }
    hardware_free(&hardware);
    return NULL;
}

static Status make_report(const ArgList *words, const char *path, const char *hardware_file) {
    if (words->count > RUNS_MOST) return status_usage("a report takes at most %d runs", RUNS_MOST);
    ReportRun *runs = xcalloc((size_t)words->count, sizeof *runs);
    char *own = path ? NULL : path_join(words->items[0], "report.html");
    Status status = read_runs(runs, words, hardware_file);
    if (!status) {
        TextBuffer page = {0};
        report_write(runs, words->count, &page);
        status = file_write_atomic(path ? path : own, page.data, page.length);
        if (!status) printf("wrote %s\n", path ? path : own);
        text_buffer_free(&page);
    }
    for (int i = 0; i < words->count; i++)
        run_record_free(&runs[i].record);
    free(own);
    free(runs);
    return status;
}

Status cmd_report(int argc, char **argv) {
    const char *path = NULL, *hardware = NULL;
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"-o", ARG_TEXT, &path, "FILE", "where to write the page (default: report.html in the first run)"},
        {"--hardware", ARG_TEXT, &hardware, "FILE", "more or other hardware, as for `hearth plan`: prices and power"},
    };
    const ArgCommand command = {
        "hearth report RUN... [-o FILE]",
        "Writes one HTML page about a run: curves, where the time of a step went, predicted against measured, "
        "figures,\n"
        "configuration and environment. Of several runs: what each change brought against the run before it.",
        args,
        ARG_COUNT(args),
        1,
        -1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) status = make_report(&words, path, hardware);
    free(words.items);
    return status;
}
