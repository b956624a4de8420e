#include "train/prediction.h"

#include "base/file.h"
#include "base/installed.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "base/toml.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- files ----------------------------------------------------------------------------------------------------------

static char *home_path(const char *variable, const char *below_home) {
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given) return given[0] ? text_copy(given) : NULL;
    return home && home[0] ? path_join(home, below_home) : NULL;
}

char *prediction_machine_path(void) {
    return home_path("HEARTH_MACHINE", ".config/hearth/machine.toml");
}

char *prediction_history_path(void) {
    return home_path("HEARTH_HISTORY", ".local/share/hearth/history.jsonl");
}

static char *catalogue_path(void) {
    const char *given = getenv("HEARTH_HARDWARE"), *name = "configs/hardware.toml";
    if (given && given[0]) return text_copy(given);
    return file_exists(name) ? text_copy(name) : installed_file(name);
}

static Status merge_file(Hardware *hardware, const char *path) {
    Toml toml;
    TRY(toml_read_file(&toml, path));
    Status status = hardware_merge(hardware, toml.root, path);
    toml_free(&toml);
    return status;
}

Status prediction_hardware(Hardware *hardware, const char *user_file, bool with_machine) {
    hardware_init(hardware);
    char *catalogue = catalogue_path(), *machine = with_machine ? prediction_machine_path() : NULL;
    Status status = NULL;
    if (!catalogue)
        status = status_hint(status_usage("the hardware catalogue hardware.toml is not to be found"),
                             "run where configs/ is, or name the file in HEARTH_HARDWARE");
    if (!status) status = merge_file(hardware, catalogue);
    if (!status && machine && file_exists(machine)) status = merge_file(hardware, machine);
    if (!status && user_file) status = merge_file(hardware, user_file);
    if (status) hardware_free(hardware);
    free(catalogue);
    free(machine);
    return status;
}

// ---- history --------------------------------------------------------------------------------------------------------

static const char *run_kind(const PlanRun *run) {
    return run->layout.config.experts ? "moe" : "dense";
}

// What holds back a step of a millisecond says nothing about one of a second.
static bool same_length(const json_t *line, double step_seconds) {
    const double most = 10;
    double ratio = json_number_value(json_object_get(line, "predicted_step_seconds")) / step_seconds;
    return ratio > 1 / most && ratio < most;
}

static const char *run_precision(const PlanRun *run) {
    return run->layout.tf32 ? "tf32" : precision_name(run->layout.precision);
}

static bool same_kind(const json_t *line, const PlanMachine *machine, const PlanRun *run) {
    const char *device = json_string_value(json_object_get(line, "device"));
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const char *precision = json_string_value(json_object_get(line, "precision"));
    bool many = json_integer_value(json_object_get(line, "devices")) > 1;
    return device && kind && precision && strcmp(device, machine->gpu.name) == 0 && strcmp(kind, run_kind(run)) == 0 &&
           strcmp(precision, run_precision(run)) == 0 && many == (machine->gpus > 1);
}

static bool same_model(const json_t *line) {
    return json_integer_value(json_object_get(line, "step_model")) == STEP_MODEL_VERSION;
}

static void say_other_models(int lines) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (lines && !atomic_flag_test_and_set(&said))
        log_debug("history: predictions by another version of the step model teach nothing (lines of this kind: %d)",
                  lines);
}

// A line that a crash tore, or that something else wrote, is passed over: the history is a help, not a record.
static PlanCalibration calibrate_from(const char *text, const PlanMachine *machine, const PlanRun *run,
                                      double step_seconds) {
    PlanOutcome *steps = NULL;
    int count = 0, others = 0;
    while (*text) {
        size_t length = strcspn(text, "\n");
        json_t *line = json_loadb(text, length, 0, NULL);
        bool similar = line && same_kind(line, machine, run) && same_length(line, step_seconds);
        if (similar && !same_model(line)) others++;
        if (similar && same_model(line)) {
            steps = xrealloc(steps, (size_t)(count + 1) * sizeof *steps);
            steps[count++] = (PlanOutcome){json_number_value(json_object_get(line, "predicted_step_seconds")),
                                           json_number_value(json_object_get(line, "measured_step_seconds"))};
        }
        json_decref(line);
        text += length + (text[length] == '\n');
    }
    say_other_models(others);
    PlanCalibration calibration = plan_calibrate(steps, count);
    free(steps);
    return calibration;
}

static bool calibration_off(void) {
    const char *wanted = getenv("HEARTH_CALIBRATION");
    return wanted && strcmp(wanted, "off") == 0;
}

Status prediction_calibration(PlanCalibration *calibration, const PlanMachine *machine, const PlanRun *run) {
    *calibration = (PlanCalibration){.factor = 1, .spread = 1};
    if (calibration_off()) return NULL;
    char *path = prediction_history_path(), *text = NULL;
    size_t size;
    Status status = NULL;
    if (path && file_exists(path)) status = file_read(&text, &size, path);
    if (!status && text) {
        PlanRun plain = *run;
        PlanPrediction *plan = xmalloc(sizeof *plan);
        plain.calibration = 1;
        status = plan_predict(plan, machine, &plain);
        if (!status) *calibration = calibrate_from(text, machine, run, plan->step.seconds);
        free(plan);
    }
    free(text);
    free(path);
    return status;
}

Status prediction_remember(const Prediction *prediction, const PlanMeasured *measured) {
    char *path = calibration_off() ? NULL : prediction_history_path();
    if (!path) return NULL;
    const PlanRun *run = &prediction->run;
    json_t *line = json_pack("{s:I,s:i,s:s,s:i,s:s,s:s,s:i,s:i,s:f,s:f,s:f,s:f}", "time", (json_int_t)time(NULL),
                             "step_model", STEP_MODEL_VERSION, "device", prediction->machine.gpu.name, "devices",
                             prediction->machine.gpus, "kind", run_kind(run), "precision", run_precision(run),
                             "micro_batch", run->layout.micro_batch, "seq", run->layout.seq, "predicted_step_seconds",
                             prediction->raw_step_seconds, "measured_step_seconds", measured->step_seconds,
                             "predicted_memory", prediction->plan.memory.total, "measured_memory", measured->memory);
    char *text = json_dumps(line, JSON_COMPACT), *whole = text_format("%s\n", text), *directory = path_directory(path);
    Status status = dir_make(directory);
    if (!status) status = file_append(path, whole, strlen(whole));
    free(directory);
    free(whole);
    free(text);
    json_decref(line);
    free(path);
    return status;
}

// ---- prediction -----------------------------------------------------------------------------------------------------

static Status device_gpu(const Hardware *hardware, const char *device, const HardwareGpu **gpu) {
    if (hardware_names_cpu(device)) return hardware_find_cpu(hardware, device, gpu);
    *gpu = hardware_match_device(hardware, device);
    if (*gpu) return NULL;
    return status_hint(status_usage("the hardware catalogue does not know the device \"%s\"", device),
                       "add a [gpu.NAME] with title = \"%s\" to a file and name it in --hardware or HEARTH_HARDWARE",
                       device);
}

Status prediction_make(Prediction *prediction, const LayoutRequest *layout, int grad_accum, const char *device,
                       double device_memory, int ranks) {
    Hardware hardware;
    const HardwareGpu *gpu;
    const HardwareSoftware *software;
    TRY(prediction_hardware(&hardware, NULL, true));
    Status status = device_gpu(&hardware, device, &gpu);
    if (!status) status = hardware_find_software(&hardware, "hearth", &software);
    if (!status) {
        // Ranks on the CPU share the cores of this machine, also where each has a thread of its own and they are fewer.
        int local = gpu->cpu ? ranks : 8, cores = threads_cores(), threads = threads_count() * local;
        *prediction = (Prediction){
            .machine = plan_machine(&hardware, gpu, NULL, software, ranks, local, threads < cores ? threads : cores),
            .run = {.layout = *layout,
                    .grad_accum = grad_accum,
                    .virtual_stages = layout_chunks(layout),
                    .calibration = 1,
                    .outer_every = INFINITY}}; // of a step between meetings, as the median is
        if (device_memory > 0) prediction->machine.gpu.memory = device_memory / (gpu->cpu ? local : 1);
        status = prediction_calibration(&prediction->calibration, &prediction->machine, &prediction->run);
    }
    if (!status) {
        prediction->run.calibration = prediction->calibration.factor;
        status = plan_predict(&prediction->plan, &prediction->machine, &prediction->run);
    }
    if (!status) prediction->raw_step_seconds = prediction->plan.step.seconds / prediction->calibration.factor;
    hardware_free(&hardware);
    return status;
}
