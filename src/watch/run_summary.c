// Reading run directories.
#include "watch/run_summary.h"

#include "base/file.h"
#include "base/stats.h"
#include "watch/metrics_table.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIRST_STEPS = 3, LOSS_STEPS = 20 }; // left out of medians; that a loss is the mean of

int64_t directory_bytes(const char *path) {
    struct stat found;
    if (lstat(path, &found) != 0) return 0; // it may be gone since it was listed
    int64_t bytes = (int64_t)found.st_blocks * 512;
    DIR *folder = S_ISDIR(found.st_mode) ? opendir(path) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *inside = path_join(path, entry->d_name);
        bytes += directory_bytes(inside);
        free(inside);
    }
    if (folder) closedir(folder);
    return bytes;
}

bool run_directory_is(const char *path) {
    char *config = path_join(path, "config.toml");
    bool is = file_exists(config);
    free(config);
    return is;
}

typedef struct Series {
    double *values;
    size_t count, capacity;
} Series;

static void series_add(Series *series, double value) {
    if (!isfinite(value)) return;
    if (series->count == series->capacity) {
        series->capacity = series->capacity ? 2 * series->capacity : 1024;
        series->values = xrealloc(series->values, series->capacity * sizeof *series->values);
    }
    series->values[series->count++] = value;
}

static double series_median(Series *series) { // frees it
    size_t skip = series->count > 2 * FIRST_STEPS ? FIRST_STEPS : 0;
    double median = series->count ? double_median(series->values + skip, series->count - skip) : NAN;
    free(series->values);
    return median;
}

typedef struct Reading {
    RunSummary *summary;
    size_t capacity;
    Series tok_s, mfu;
} Reading;

static void take_step(const json_t *line, Reading *reading) {
    RunSummary *summary = reading->summary;
    if (!json_is_integer(json_object_get(line, "step"))) return; // of a damaged file
    double loss = metrics_line_value(line, "loss"), tokens = metrics_line_value(line, "tokens");
    double peak = metrics_line_value(line, "memory_peak_bytes");
    if (isnan(peak)) peak = metrics_line_value(line, "memory_bytes");
    summary->step = json_integer_value(json_object_get(line, "step"));
    summary->tokens = json_integer_value(json_object_get(line, "tokens"));
    summary->skipped = json_integer_value(json_object_get(line, "skipped_total"));
    summary->memory_bytes = fmax(summary->memory_bytes, peak); // of a number and a NaN, the number
    summary->seconds += fmax(0, metrics_line_value(line, "seconds"));
    double joules = metrics_line_value(line, "gpu_energy");
    if (joules > 0) summary->joules = joules + (isnan(summary->joules) ? 0 : summary->joules);
    series_add(&reading->tok_s, metrics_line_value(line, "tok_s"));
    series_add(&reading->mfu, metrics_line_value(line, "mfu"));
    if (!isfinite(loss) || !isfinite(tokens)) return;
    if (summary->point_count == reading->capacity) {
        reading->capacity = reading->capacity ? 2 * reading->capacity : 1024;
        summary->points = xrealloc(summary->points, reading->capacity * sizeof *summary->points);
    }
    summary->points[summary->point_count++] = (RunPoint){tokens, loss};
}

static void take_line(const json_t *line, void *context) {
    Reading *reading = context;
    double time = metrics_line_value(line, "time");
    if (time > reading->summary->changed) reading->summary->changed = time;
    MetricsLine kind = metrics_line_kind(line);
    if (kind == METRICS_STEP) take_step(line, reading);
    if (kind == METRICS_EVALUATION) reading->summary->val_loss = metrics_line_value(line, "val_loss");
}

static void count_alarm(const json_t *line, void *context) {
    if (json_object_get(line, "alarm")) ++*(int64_t *)context;
}

static double changed_at(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 ? (double)found.st_mtime : 0;
}

Status run_summary_read(RunSummary *summary, const char *directory) {
    if (!file_is_directory(directory)) return status_usage("there is no run directory %s", directory);
    if (!run_directory_is(directory))
        return status_usage("%s is not a run directory: it has no config.toml", directory);
    char *whole = path_absolute(directory), *metrics = path_join(directory, "metrics.jsonl");
    char *alarms = path_join(directory, "alarms.jsonl"), *checkpoints = path_join(directory, "checkpoints");
    while (strlen(whole) > 1 && text_ends_with(whole, "/"))
        whole[strlen(whole) - 1] = 0;
    *summary = (RunSummary){.directory = text_copy(directory),
                            .name = text_copy(path_name(whole)),
                            .val_loss = NAN,
                            .memory_bytes = NAN,
                            .joules = NAN,
                            .size = directory_bytes(directory),
                            .checkpoints = directory_bytes(checkpoints)};
    Reading reading = {.summary = summary};
    Status status = file_exists(metrics) ? metrics_read(metrics, take_line, &reading) : NULL;
    if (file_exists(alarms)) status_free(metrics_read(alarms, count_alarm, &summary->alarms));
    if (summary->changed <= 0) summary->changed = changed_at(directory);
    summary->tok_s = series_median(&reading.tok_s);
    summary->mfu = series_median(&reading.mfu);
    summary->loss = run_summary_loss_at(summary, INFINITY);
    summary->state = run_state_read(directory, summary->step, &summary->message);
    free(whole), free(metrics), free(alarms), free(checkpoints);
    if (status) run_summary_free(summary);
    return status;
}

void run_summary_free(RunSummary *summary) {
    free(summary->directory);
    free(summary->name);
    free(summary->message);
    free(summary->points);
    *summary = (RunSummary){0};
}

static void set_number(json_t *root, const char *key, double value) {
    json_object_set_new(root, key, isfinite(value) ? json_real(value) : json_null());
}

json_t *run_summary_json(const RunSummary *run) {
    json_t *root =
        json_pack("{s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "run", json_text(run->directory), "state",
                  run_state_name(run->state), "step", (json_int_t)run->step, "tokens", (json_int_t)run->tokens,
                  "size_bytes", (json_int_t)run->size, "checkpoint_bytes", (json_int_t)run->checkpoints, "skipped",
                  (json_int_t)run->skipped, "alarms", (json_int_t)run->alarms);
    set_number(root, "loss", run->loss);
    set_number(root, "val_loss", run->val_loss);
    set_number(root, "tok_s", run->tok_s);
    set_number(root, "mfu", run->mfu);
    set_number(root, "memory_bytes", run->memory_bytes);
    set_number(root, "gpu_joules", run->joules);
    set_number(root, "time", run->changed);
    if (run->message) json_object_set_new(root, "message", json_string(run->message));
    return root;
}

double run_summary_loss_at(const RunSummary *summary, double tokens) {
    size_t end = summary->point_count;
    while (end > 0 && summary->points[end - 1].tokens > tokens)
        end--;
    size_t from = end > LOSS_STEPS ? end - LOSS_STEPS : 0;
    double sum = 0;
    for (size_t i = from; i < end; i++)
        sum += summary->points[i].loss;
    return end ? sum / (double)(end - from) : NAN;
}
