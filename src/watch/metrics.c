// Writing metrics.jsonl line by line, and cutting it back on resume.
#include "watch/metrics.h"

#include "base/file.h"
#include "base/text.h"
#include "watch/metrics_table.h"

#include <stdlib.h>
#include <string.h>

struct Metrics {
    AppendFile *file;
};

// The step of a whole, well-formed line; -1 for anything else.
static int64_t line_step(const char *line, size_t length) {
    json_t *root = NULL;
    Status status = json_read_text(&root, line, length, "metrics.jsonl");
    int64_t step = -1;
    if (!status) status = json_get_int(root, "step", &step, "metrics.jsonl");
    status_free(status);
    json_decref(root);
    return step;
}

static Status drop_lines_after(const char *path, int64_t last_step) {
    if (!file_exists(path)) return NULL;
    char *text;
    size_t size;
    TRY(file_read(&text, &size, path));
    TextBuffer kept = {0};
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end) break;
        size_t length = (size_t)(end - text) - at;
        int64_t step = line_step(text + at, length);
        if (step >= 0 && step <= last_step) text_buffer_add(&kept, text + at, length + 1);
        at += length + 1;
    }
    Status status = kept.length == size ? NULL : file_write_atomic(path, kept.data ? kept.data : "", kept.length);
    text_buffer_free(&kept);
    free(text);
    return status;
}

Status metrics_open(Metrics **out, const char *path, int64_t last_step) {
    *out = NULL;
    TRY(drop_lines_after(path, last_step));
    AppendFile *file;
    TRY(append_open(&file, path));
    *out = xmalloc(sizeof **out);
    **out = (Metrics){file};
    return NULL;
}

void metrics_close(Metrics *metrics) {
    if (!metrics) return;
    append_close(metrics->file);
    free(metrics);
}

AppendMissing metrics_missing(Metrics *metrics) {
    return append_missing(metrics->file);
}

static Status write_line(Metrics *metrics, MetricsLine kind, const void *values, int64_t step) {
    TextBuffer line = {0};
    metrics_line_write(kind, values, &line);
    Status status = append_record(metrics->file, line.data, line.length, step);
    text_buffer_free(&line);
    return status;
}

Status metrics_step(Metrics *metrics, const MetricsStep *step) {
    MetricsStep whole = metrics_step_whole(step);
    return write_line(metrics, METRICS_STEP, &whole, step->step);
}

Status metrics_evaluation(Metrics *metrics, int64_t step, int64_t tokens, double time, const Evaluation *evaluation) {
    MetricsEvaluation values = {step, tokens, *evaluation, time};
    return write_line(metrics, METRICS_EVALUATION, &values, step);
}

Status metrics_read(const char *path, void (*take)(const json_t *line, void *context), void *context) {
    return metrics_read_from(path, &(int64_t){0}, SIZE_MAX, take, context);
}

Status metrics_read_from(const char *path, int64_t *offset, size_t most,
                         void (*take)(const json_t *line, void *context), void *context) {
    char *text;
    size_t size;
    int64_t begin = *offset;
    TRY(file_read_from(&text, &size, path, begin, most));
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end) break;
        size_t length = (size_t)(end - text) - at;
        json_t *root = NULL;
        Status status = json_read_text(&root, text + at, length, path);
        at += length + 1;
        *offset = begin + (int64_t)at;
        if (!status) take(root, context);
        status_free(status);
        json_decref(root);
    }
    free(text);
    return NULL;
}

typedef struct Losses {
    double **losses;
    int64_t *count;
    size_t capacity;
} Losses;

static void loss_take(const json_t *root, void *context) {
    Losses *into = context;
    const json_t *loss = json_object_get(root, "loss");
    if (!json_is_number(loss)) return;
    if ((size_t)*into->count == into->capacity) {
        into->capacity = into->capacity ? into->capacity * 2 : 1024;
        *into->losses = xrealloc(*into->losses, into->capacity * sizeof **into->losses);
    }
    (*into->losses)[(*into->count)++] = json_number_value(loss);
}

Status metrics_read_losses(const char *path, double **losses, int64_t *count) {
    *losses = NULL;
    *count = 0;
    return metrics_read(path, loss_take, &(Losses){losses, count, 0});
}

typedef struct FullEval {
    int64_t step;
    bool found;
} FullEval;

static void full_eval_take(const json_t *root, void *context) {
    FullEval *wanted = context;
    const char *kind = json_string_value(json_object_get(root, "eval"));
    if (kind && strcmp(kind, "full") == 0 && json_integer_value(json_object_get(root, "step")) == wanted->step)
        wanted->found = true;
}

bool metrics_has_full_eval(const char *path, int64_t step) {
    FullEval wanted = {.step = step};
    status_free(metrics_read(path, full_eval_take, &wanted));
    return wanted.found;
}

static void last_step_take(const json_t *root, void *context) {
    int64_t *last = context, step = json_integer_value(json_object_get(root, "step"));
    if (metrics_line_kind(root) == METRICS_STEP && step > *last) *last = step;
}

int64_t metrics_last_step(const char *path) {
    int64_t last = 0;
    status_free(metrics_read(path, last_step_take, &last));
    return last;
}
