#include "watch/run_read.h"

#include "base/file.h"
#include "base/text.h"
#include "base/toml.h"
#include "watch/run_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MOST = 4096 };

// Room for one more at the end of a list whose room doubles.
static void *list_grow(void *list, size_t count, size_t bytes) {
    if (count & (count - 1)) return list;
    return xrealloc(list, (count ? 2 * count : 1) * bytes);
}

// No figure of a run is as large as what sums and units of a few of them could not hold.
static double number_value(const json_t *value) {
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    return fabs(number) < 1e100 ? number : NAN;
}

static double number_of(const json_t *object, const char *key) {
    return number_value(json_object_get(object, key));
}

// ---- metrics --------------------------------------------------------------------------------------------------------

double run_clock_advance(RunClock *clock, double elapsed) {
    if (isfinite(elapsed) && elapsed >= 0) {
        if (elapsed < clock->last) clock->before += clock->last;
        clock->last = elapsed;
    }
    return clock->before + clock->last;
}

static int take_split(RunRecord *run, const json_t *line) {
    const json_t *split = json_object_get(line, "split_ms");
    if (!json_is_object(split)) return -1;
    RunSplit taken = {0};
    for (int i = 0; i < STEP_LAUNCH; i++) {
        double ms = number_of(split, step_part_name((StepPart)i));
        if (ms > 0) taken.seconds[i] = ms / 1e3;
    }
    run->splits = list_grow(run->splits, run->split_count, sizeof *run->splits);
    run->splits[run->split_count] = taken;
    return (int)run->split_count++;
}

static void take_load(RunRecord *run, const json_t *line, int64_t step) {
    const json_t *layers = json_object_get(line, "moe_layers");
    const json_t *most = json_object_get(layers, "load_max"), *dead = json_object_get(layers, "dead");
    size_t count = json_array_size(most);
    if (!count || count > LAYERS_MOST) return;
    RunLoad load = {.step = step, .layers = (int)count, .most = xmalloc(2 * count * sizeof *load.most)};
    load.dead = load.most + count;
    for (size_t i = 0; i < count; i++) {
        load.most[i] = number_value(json_array_get(most, i));
        load.dead[i] = json_number_value(json_array_get(dead, i));
    }
    run->loads = list_grow(run->loads, run->load_count, sizeof *run->loads);
    run->loads[run->load_count++] = load;
}

static void take_step(RunRecord *run, const json_t *line, int64_t step, double time) {
    run->steps = list_grow(run->steps, run->step_count, sizeof *run->steps);
    run->steps[run->step_count++] = (RunStep){.step = step,
                                              .tokens = number_of(line, "tokens"),
                                              .loss = number_of(line, "loss"),
                                              .lr = number_of(line, "lr"),
                                              .norm = number_of(line, "grad_norm"),
                                              .rate = number_of(line, "tok_s"),
                                              .tflops = number_of(line, "tflops"),
                                              .mfu = number_of(line, "mfu"),
                                              .memory = number_of(line, "memory_bytes"),
                                              .memory_own = number_of(line, "memory_own_bytes"),
                                              .memory_fraction = number_of(line, "memory_fraction"),
                                              .data_wait = number_of(line, "data_wait"),
                                              .comm_wait = number_of(line, "comm_wait"),
                                              .seconds = number_of(line, "seconds"),
                                              .time = time,
                                              .accum = number_of(line, "grad_accum"),
                                              .clock = number_of(line, "gpu_clock"),
                                              .power = number_of(line, "gpu_power"),
                                              .energy = number_of(line, "gpu_energy"),
                                              .temperature = number_of(line, "gpu_temperature"),
                                              .throttled = number_of(line, "gpu_throttled"),
                                              .capped = number_of(line, "gpu_power_capped"),
                                              .skipped = json_is_true(json_object_get(line, "skipped")),
                                              .split = take_split(run, line)};
    take_load(run, line, step);
}

static void take_eval(RunRecord *run, const json_t *line, int64_t step, double time) {
    const char *kind = json_string_value(json_object_get(line, "eval"));
    run->evals = list_grow(run->evals, run->eval_count, sizeof *run->evals);
    run->evals[run->eval_count++] = (RunEval){.step = step,
                                              .tokens = number_of(line, "tokens"),
                                              .time = time,
                                              .loss = number_of(line, "val_loss"),
                                              .perplexity = number_of(line, "perplexity"),
                                              .bits_per_byte = number_of(line, "bits_per_byte"),
                                              .full = kind && strcmp(kind, "full") == 0};
}

static bool take_metrics(RunRecord *run, const json_t *line, void *context) {
    RunClock *clock = context;
    const json_t *step = json_object_get(line, "step");
    bool validation = json_object_get(line, "val_loss") != NULL;
    if (!json_is_integer(step) || (!validation && !json_object_get(line, "loss"))) return false;
    double time = run_clock_advance(clock, validation ? NAN : number_of(line, "elapsed"));
    if (validation)
        take_eval(run, line, json_integer_value(step), time);
    else
        take_step(run, line, json_integer_value(step), time);
    return true;
}

static bool take_sample(RunRecord *run, const json_t *line, void *context) {
    (void)context;
    const char *text = json_string_value(json_object_get(line, "text"));
    const char *prompt = json_string_value(json_object_get(line, "prompt"));
    if (!text) return false;
    run->samples = list_grow(run->samples, run->sample_count, sizeof *run->samples);
    run->samples[run->sample_count++] = (RunSample){.step = json_integer_value(json_object_get(line, "step")),
                                                    .prompt = text_copy(prompt ? prompt : ""),
                                                    .text = text_copy(text)};
    return true;
}

static bool take_alarm(RunRecord *run, const json_t *line, void *context) {
    (void)context;
    const char *message = json_string_value(json_object_get(line, "message"));
    const char *advice = json_string_value(json_object_get(line, "advice"));
    if (!message) return false;
    run->alarms = list_grow(run->alarms, run->alarm_count, sizeof *run->alarms);
    run->alarms[run->alarm_count++] = (RunAlarm){.step = json_integer_value(json_object_get(line, "step")),
                                                 .message = text_copy(message),
                                                 .advice = text_copy(advice ? advice : "")};
    return true;
}

// ---- files ----------------------------------------------------------------------------------------------------------

// What follows the last newline is not a line yet.
static Status read_lines(RunRecord *run, const char *name, bool (*take)(RunRecord *, const json_t *, void *),
                         void *context) {
    char *path = path_join(run->path, name), *text = NULL;
    size_t size = 0;
    Status status = file_read(&text, &size, path);
    free(path);
    if (status) return status;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end) break;
        size_t length = (size_t)(end - text) - at;
        json_t *line = json_loadb(text + at, length, 0, NULL);
        if (!json_is_object(line) || !take(run, line, context)) run->lines_passed_over++;
        json_decref(line);
        at += length + 1;
    }
    free(text);
    return NULL;
}

static void setting_add(RunRecord *run, char *key, char *value) {
    run->settings = list_grow(run->settings, run->setting_count, sizeof *run->settings);
    run->settings[run->setting_count++] = (RunSetting){key, value};
}

static void write_value(TextBuffer *out, const TomlValue *value) {
    char number[32];
    switch (value->type) {
    case TOML_INTEGER: text_buffer_format(out, "%lld", (long long)value->integer); break;
    case TOML_FLOAT: text_buffer_format(out, "%s", text_number(number, value->number)); break;
    case TOML_BOOLEAN: text_buffer_format(out, "%s", value->boolean ? "true" : "false"); break;
    case TOML_ARRAY:
        for (size_t i = 0; i < value->length; i++) {
            if (i) text_buffer_format(out, ", ");
            write_value(out, value->values[i]);
        }
        break;
    case TOML_TABLE: text_buffer_format(out, "{…}"); break;
    default: text_buffer_add(out, value->text, value->length);
    }
}

static void settings_flatten(RunRecord *run, const TomlValue *table, const char *before) {
    for (size_t i = 0; i < table->length; i++) {
        const TomlValue *value = table->values[i];
        char *key = text_format("%s%s%s", before, before[0] ? "." : "", table->keys[i]);
        if (value->type == TOML_TABLE) {
            settings_flatten(run, value, key);
            free(key);
            continue;
        }
        TextBuffer text = {0};
        text_buffer_add(&text, "", 0);
        write_value(&text, value);
        setting_add(run, key, text.data);
    }
}

static void read_config(RunRecord *run) {
    Toml toml;
    char *path = path_join(run->path, "config.toml");
    Status status = toml_read_file(&toml, path);
    if (!status) {
        settings_flatten(run, toml.root, "");
        toml_free(&toml);
    }
    status_free(status);
    free(path);
}

// "runs/a/" and "runs/a" are one run, and "." has the name of where it is.
static char *run_name(const char *path) {
    char *whole = realpath(path, NULL), *name = text_copy(path_name(whole ? whole : path));
    free(whole);
    return name;
}

Status run_read_settings(RunRecord *run, const char *path) {
    *run = (RunRecord){.path = text_copy(path), .name = run_name(path)};
    if (!file_is_directory(path)) return status_usage("there is no run directory %s", path);
    read_config(run);
    if (!run->setting_count)
        return status_usage("%s is not a run directory: it has no config.toml that can be read", path);
    return NULL;
}

Status run_read(RunRecord *run, const char *path) {
    *run = (RunRecord){.path = text_copy(path), .name = run_name(path)};
    char *metrics = path_join(path, "metrics.jsonl");
    bool found = file_exists(metrics);
    free(metrics);
    if (!file_is_directory(path)) return status_usage("there is no run directory %s", path);
    if (!found)
        return status_hint(status_usage("%s has no metrics.jsonl", path),
                           "name the directory of a run, as `hearth train` prints it");
    TRY(read_lines(run, "metrics.jsonl", take_metrics, &(RunClock){0}));
    status_free(read_lines(run, "samples.jsonl", take_sample, NULL)); // a run need not have any
    status_free(read_lines(run, "alarms.jsonl", take_alarm, NULL));   // nor these
    read_config(run);
    run->plan = run_file_json(path, "plan.json");
    run->profile = run_file_json(path, "profile/summary.json");
    run->environment = run_file_json(path, "environment.json");
    if (json_is_object(run->environment)) { // of a run before it was a list
        json_t *list = json_array();
        json_array_append_new(list, run->environment);
        run->environment = list;
    }
    return NULL;
}

void run_record_free(RunRecord *run) {
    for (size_t i = 0; i < run->load_count; i++)
        free(run->loads[i].most);
    for (size_t i = 0; i < run->sample_count; i++) {
        free(run->samples[i].prompt);
        free(run->samples[i].text);
    }
    for (size_t i = 0; i < run->alarm_count; i++) {
        free(run->alarms[i].message);
        free(run->alarms[i].advice);
    }
    for (size_t i = 0; i < run->setting_count; i++) {
        free(run->settings[i].key);
        free(run->settings[i].value);
    }
    free(run->steps);
    free(run->splits);
    free(run->evals);
    free(run->loads);
    free(run->samples);
    free(run->alarms);
    free(run->settings);
    json_decref(run->plan);
    json_decref(run->profile);
    json_decref(run->environment);
    free(run->path);
    free(run->name);
    *run = (RunRecord){0};
}

// ---- single figures -------------------------------------------------------------------------------------------------

const char *run_setting(const RunRecord *run, const char *key) {
    for (size_t i = 0; i < run->setting_count; i++)
        if (strcmp(run->settings[i].key, key) == 0) return run->settings[i].value;
    return NULL;
}

double run_plan_number(const RunRecord *run, const char *key) {
    return number_of(json_object_get(run->plan, "prediction"), key);
}

double run_plan_part(const RunRecord *run, StepPart part) {
    const json_t *parts = json_object_get(json_object_get(run->plan, "prediction"), "step_parts");
    double seconds = number_of(parts, step_part_name(part));
    return seconds > 0 ? seconds : 0;
}
