// The run directory: its name, and the files that say what the run is.
#include "base/clock.h"
#include "base/file.h"
#include "base/io.h"
#include "base/json.h"
#include "base/leftovers.h"
#include "base/log.h"
#include "train/checkpoint.h"
#include "train/environment.h"
#include "train/prediction.h"
#include "train/run.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "watch/plan_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static char *run_base_name(const Config *config) {
    if (config->train.name[0]) return text_copy(config->train.name);
    const char *file = config->file ? path_name(config->file) : "run";
    size_t length = strlen(file);
    return text_copy_n(file, text_ends_with(file, ".toml") ? length - 5 : length);
}

static char *run_dated_name(const Config *config) {
    char *base = run_base_name(config);
    if (config->train.name[0]) return base;
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(date, sizeof date, "%Y-%m-%d", &local);
    char *name = text_format("%s-%s", date, base);
    free(base);
    return name;
}

static Status exists_already(const char *path) {
    return status_hint(status_usage("the run directory %s exists already", path),
                       "--resume continues it; --run DIR or train.name starts another");
}

Status run_directory_choose(const Config *config, const RunOptions *options, char **path) {
    if (options->directory) {
        *path = text_copy(options->directory);
    } else {
        char *name = run_dated_name(config);
        *path = path_join(config->train.runs, name);
        for (int i = 2; !config->train.name[0] && file_exists(*path); i++) { // the second run of a day
            free(*path);
            *path = text_format("%s/%s-%d", config->train.runs, name, i);
        }
        free(name);
    }
    if (!file_exists(*path)) return NULL;
    Status status = exists_already(*path);
    free(*path);
    *path = NULL;
    return config->train.name[0] && !options->directory ? config_blame(config, "train.name", status) : status;
}

// "YYYY-MM-DD-base" or "YYYY-MM-DD-base-N" (the N-th run of its day), or the base alone.
typedef struct RunName {
    char date[11]; // "" for the base alone
    int64_t number;
} RunName;

static bool run_name_parse(const char *name, const char *base, bool dated, RunName *out) {
    static const char pattern[] = "dddd-dd-dd-";
    *out = (RunName){.number = 1};
    if (strcmp(name, base) == 0) return true;
    if (!dated) return false;
    for (size_t i = 0; pattern[i]; i++) // stops at the end of a shorter name
        if (pattern[i] == 'd' ? name[i] < '0' || name[i] > '9' : name[i] != pattern[i]) return false;
    memcpy(out->date, name, sizeof out->date - 1);
    const char *rest = name + sizeof pattern - 1;
    if (!text_starts_with(rest, base)) return false;
    rest += strlen(base);
    if (!*rest) return true;
    bool digits = *rest == '-' && rest[1] && !rest[1 + strspn(rest + 1, "0123456789")];
    return digits && text_to_int64(rest + 1, &out->number);
}

static bool run_name_newer(const RunName *name, const RunName *than) {
    int order = strcmp(name->date, than->date);
    return order ? order > 0 : name->number > than->number;
}

Status run_directory_find(const Config *config, char **path) {
    char **names = NULL;
    size_t count = 0;
    *path = NULL;
    char *base = run_base_name(config);
    if (file_is_directory(config->train.runs)) {
        Status status = dir_list(&names, &count, config->train.runs);
        if (status) {
            free(base);
            return status;
        }
    }
    RunName newest = {.number = -1}, name;
    for (size_t i = 0; i < count; i++) {
        if (!run_name_parse(names[i], base, !config->train.name[0], &name) || !run_name_newer(&name, &newest)) continue;
        char *candidate = path_join(config->train.runs, names[i]), *file = path_join(candidate, "config.toml");
        if (file_exists(file)) {
            free(*path);
            *path = text_copy(candidate);
            newest = name;
        }
        free(candidate);
        free(file);
    }
    char *list = text_join((const char *const *)names, count);
    Status status = *path ? NULL
                          : status_hint(status_usage("no run of \"%s\" to resume below %s", base, config->train.runs),
                                        "--run DIR names one; there is: %s", list);
    free(list);
    names_free(names, count);
    free(base);
    return status;
}

// ---- starting again ------------------------------------------------------------------------------------------------

// "damaged-step-5, damaged-step-10"; *newest: without its prefix, "step-10".
static Status list_set_aside(const char *path, TextBuffer *names, char **newest) {
    char *folder = path_join(path, "checkpoints"), **entries = NULL;
    size_t count = 0;
    int64_t last = -1;
    Status status = file_is_directory(folder) ? dir_list(&entries, &count, folder) : NULL;
    for (size_t i = 0; i < count; i++) {
        int64_t step;
        if (!text_starts_with(entries[i], CHECKPOINT_SET_ASIDE)) continue;
        text_buffer_format(names, "%s%s", names->length ? ", " : "", entries[i]);
        const char *name = entries[i] + strlen(CHECKPOINT_SET_ASIDE);
        if (!text_to_int64(name + strlen("step-"), &step) || step <= last) continue;
        last = step;
        free(*newest);
        *newest = text_copy(name);
    }
    if (entries) names_free(entries, count);
    free(folder);
    return status;
}

static Status refuse_set_aside(const char *path, const char *names, const char *newest, int64_t last_step) {
    Status status = status_runtime("every checkpoint of %s was set aside: checkpoints/ holds only %s; metrics.jsonl "
                                   "reaches step %lld, and is left as it is",
                                   path, names, (long long)last_step);
    if (!newest) return status;
    return status_hint(
        status,
        "to go on from one of them all the same, take the prefix off its name (mv %s/checkpoints/" CHECKPOINT_SET_ASIDE
        "%s %s/checkpoints/%s): --resume checks it first; to start again, give "
        "another --run DIR",
        path, newest, path, newest);
}

static Status move_metrics(const char *path, char **moved) {
    char *metrics = path_join(path, "metrics.jsonl"), *beside = NULL;
    Status status = NULL;
    if (metrics_last_step(metrics) > 0) {
        for (int i = 1; !beside || file_exists(beside); i++) {
            free(beside);
            beside = text_format("%s/metrics-before-%d.jsonl", path, i);
        }
        if (io_rename(metrics, beside) != 0) status = status_errno("cannot rename %s to %s", metrics, beside);
        if (!status) status = file_sync(path);
    }
    free(metrics);
    if (!status)
        *moved = beside;
    else
        free(beside);
    return status;
}

Status run_directory_restart(const char *path, char **moved) {
    TextBuffer names = {0};
    char *newest = NULL, *metrics = path_join(path, "metrics.jsonl");
    *moved = NULL;
    Status status = list_set_aside(path, &names, &newest);
    if (!status && names.length) status = refuse_set_aside(path, names.data, newest, metrics_last_step(metrics));
    if (!status) status = move_metrics(path, moved);
    text_buffer_free(&names);
    free(newest);
    free(metrics);
    return status;
}

// ---- what the run is -----------------------------------------------------------------------------------------------

static json_t *plan_json(const Trainer *trainer) {
    const Layout *layout = &trainer->model->layout;
    json_t *memory = json_object();
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++)
        json_object_set_new(memory, layout_kind_name(kind), json_integer(layout->bytes[kind]));
    json_object_set_new(memory, "total", json_integer(layout->total_bytes));
    json_t *root = json_pack("{s:I,s:I,s:I,s:I,s:f,s:o}", "parameters", (json_int_t)trainer->parameters.total,
                             "active_parameters", (json_int_t)trainer->parameters.active, "batch_tokens",
                             (json_int_t)(trainer->batch.micro_tokens * trainer->batch.grad_accum), "steps",
                             (json_int_t)trainer->total_steps, "flops_per_token", trainer->flops_per_token,
                             "memory_bytes", memory);
    const Prediction *prediction = trainer->prediction;
    if (prediction) {
        double seconds = prediction->plan.step.seconds;
        json_object_set_new(root, "predicted_step_seconds", json_real(seconds));
        json_object_set_new(root, "predicted_seconds", json_real(seconds * (double)trainer->total_steps));
        json_t *whole = plan_prediction_json(&prediction->machine, &prediction->run, &prediction->plan);
        json_object_set_new(whole, "calibration_runs", json_integer(prediction->calibration.runs));
        json_object_set_new(whole, "uncalibrated_step_seconds", json_real(prediction->raw_step_seconds));
        json_object_set_new(root, "prediction", whole);
    }
    return root;
}

static Status write_json(const char *directory, const char *name, json_t *root) {
    char *path = path_join(directory, name);
    Status status = json_write_file(root, path);
    json_decref(root);
    free(path);
    return status;
}

#define CONFIG_CHECKSUM "# XXH64 of the lines above: "

static Status write_config(const char *directory, const Config *resolved) {
    TextBuffer text = {0};
    config_write(resolved, &text);
    text_buffer_format(&text, CONFIG_CHECKSUM "%016llx\n", (unsigned long long)XXH64(text.data, text.length, 0));
    char *path = path_join(directory, "config.toml");
    Status status = file_write_atomic(path, text.data, text.length);
    free(path);
    text_buffer_free(&text);
    return status;
}

void run_directory_check_config(const char *path) {
    char *file = path_join(path, "config.toml"), *text = NULL, stated[24];
    size_t size;
    Status status = file_read(&text, &size, file);
    const char *line = status ? NULL : strstr(text, "\n" CONFIG_CHECKSUM);
    if (line) { // runs from before it have none
        line++;
        snprintf(stated, sizeof stated, "%016llx\n", (unsigned long long)XXH64(text, (size_t)(line - text), 0));
        if (strcmp(line + strlen(CONFIG_CHECKSUM), stated) != 0)
            log_warn("%s is not as hearth wrote it: it was edited, or damaged; what it says now is used", file);
    }
    status_free(status);
    free(text);
    free(file);
}

static Status write_run_files(const char *path, const Trainer *trainer) {
    TRY(dir_make(path));
    TRY(write_config(path, &trainer->resolved));
    TRY(environment_write(path, trainer));
    TRY(write_json(path, "plan.json", plan_json(trainer)));
    TRY(write_json(path, "model.json", model_config_json(&trainer->model_config)));
    // A copy, so that the run can be sampled and exported when the data is gone.
    return trainer->tokenizer ? tokenizer_copy_file(trainer->tokenizer, path) : NULL;
}

// Between the name of a run and the number of the process that makes it; of another host's, this one cannot tell
// whether it still runs.
static char *creating_mark(void) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return text_format(".creating-%s-", host);
}

// What starts that were killed left beside `path`, whatever run it was to be.
static void remove_half_made(const char *path) {
    char *mark = creating_mark(), *folder = path_directory(path);
    leftovers_remove(folder, mark);
    free(folder);
    free(mark);
}

// Under another name first: a run directory that can be seen can be resumed.
Status run_directory_create(const char *path, const Trainer *trainer) {
    char *mark = creating_mark();
    char *beside = text_format("%s%s%ld", path, mark, (long)getpid()); // two runs may start at the same moment
    free(mark);
    remove_half_made(path);
    Status status = dir_remove(beside);
    if (!status) status = write_run_files(beside, trainer);
    if (!status && io_rename(beside, path) != 0)
        status =
            errno == EEXIST || errno == ENOTEMPTY ? exists_already(path) : status_errno("cannot rename %s", beside);
    if (status) status_free(dir_remove(beside));
    free(beside);
    return status;
}

Status run_directory_restore(const char *path, const Trainer *trainer, bool *missing) {
    char *file = path_join(path, "config.toml");
    *missing = !file_exists(file);
    free(file);
    return *missing ? write_run_files(path, trainer) : NULL;
}

Status run_directory_update(const char *path, const Trainer *trainer, bool keep_shape) {
    remove_half_made(path); // where the start that made this run could not
    TRY(environment_write(path, trainer));
    if (!keep_shape) return write_config(path, &trainer->resolved);
    Config own, changed;
    char *file = path_join(path, "config.toml");
    Status status = config_read(&own, file, NULL, 0);
    free(file);
    TRY(status);
    status = config_copy(&changed, &trainer->resolved);
    if (!status) {
        changed.model.preset = own.model.preset;
        changed.model.config = own.model.config;
        changed.model.init = own.model.init;
        status = write_config(path, &changed);
        config_free(&changed);
    }
    config_free(&own);
    return status;
}
