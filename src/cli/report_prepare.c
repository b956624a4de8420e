#include "cli/report_prepare.h"

#include "base/file.h"
#include "train/loss_facts.h"
#include "train/ranks.h"
#include "train/setup.h"

#include <stdlib.h>
#include <string.h>

// The run's own configuration once more, on the device and as many as it had.
static Status advise_run(ReportRun *run, const Config *config, const char *device) {
    double ranks = run_plan_number(&run->record, "devices");
    const json_t *environment = json_array_get(run->record.environment, 0);
    double memory = json_number_value(json_object_get(environment, "device_memory_bytes"));
    int islands = (int)config->diloco.islands;
    ModelConfig model;
    LayoutRequest layout;
    TRY(setup_model(config, 0, &model));
    TRY(setup_layout(config, &model, hardware_names_cpu(device) ? DEVICE_CPU : DEVICE_CUDA, &layout));
    TRY(ranks_mesh(config, (int)ranks / islands, &layout.mesh));
    BatchPlan batch = batch_plan(config, layout.mesh.dp * islands);
    TRY(setup_micro_batches(config, &layout, &batch));
    Prediction *prediction = xmalloc(sizeof *prediction);
    Status status = prediction_make(prediction, &layout, (int)batch.grad_accum, device, memory, (int)ranks);
    if (!status) run->facts = loss_facts(prediction);
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

void report_prepare(ReportRun *run, const Hardware *hardware) {
    take_price(run, hardware);
    take_advice(run);
}
