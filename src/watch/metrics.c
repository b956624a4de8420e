// Writing metrics.jsonl line by line, and cutting it back on resume.
#include "watch/metrics.h"

#include "base/file.h"
#include "base/io.h"
#include "base/json.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Metrics {
    char *path;
    int fd;
    int64_t size;       // of the whole lines
    bool torn;          // the file ends with a part of a line that could not be written
    TextBuffer waiting; // lines that could not be written yet, at most WAITING_MOST bytes
    MetricsMissing dropped;
};

#define WAITING_MOST ((size_t)16 << 20)

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
    int fd = io_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return status_errno("cannot write %s", path);
    int64_t size = lseek(fd, 0, SEEK_END);
    if (size < 0) {
        Status status = status_errno("cannot read the size of %s", path);
        io_close(fd);
        return status;
    }
    Metrics *metrics = xmalloc(sizeof *metrics);
    *metrics = (Metrics){.path = text_copy(path), .fd = fd, .size = size};
    *out = metrics;
    return NULL;
}

// What a line left that could not be written whole must go, or the next line would be spoiled by it.
static Status torn_line_drop(Metrics *metrics) {
    if (metrics->torn && io_truncate(metrics->fd, metrics->size))
        return status_errno("cannot cut %s back to whole lines", metrics->path);
    metrics->torn = false;
    return NULL;
}

// One write per line: a reader that follows the file sees whole lines.
static Status waiting_write(Metrics *metrics) {
    TextBuffer *waiting = &metrics->waiting;
    size_t done = 0;
    Status status = waiting->length ? torn_line_drop(metrics) : NULL;
    while (!status && done < waiting->length) {
        size_t length = strcspn(waiting->data + done, "\n") + 1;
        status = file_write_all(metrics->fd, waiting->data + done, length, metrics->path);
        metrics->torn = status != NULL;
        if (status)
            status_free(torn_line_drop(metrics)); // else before the next line
        else
            metrics->size += (int64_t)length, done += length;
    }
    if (done) memmove(waiting->data, waiting->data + done, waiting->length - done + 1);
    waiting->length -= done;
    return status;
}

void metrics_close(Metrics *metrics) {
    if (!metrics) return;
    status_free(waiting_write(metrics));
    text_buffer_free(&metrics->waiting);
    io_close(metrics->fd);
    free(metrics->path);
    free(metrics);
}

static void add_json_number(TextBuffer *line, const char *key, double value) {
    if (isfinite(value))
        text_buffer_format(line, ",\"%s\":%.9g", key, value);
    else
        text_buffer_format(line, ",\"%s\":null", key); // JSON has no NaN
}

static void missing_add(MetricsMissing *missing, int64_t step) {
    if (!missing->lines++) missing->first_step = step;
    missing->last_step = step;
}

MetricsMissing metrics_missing(Metrics *metrics) {
    status_free(waiting_write(metrics));
    MetricsMissing missing = metrics->dropped;
    for (size_t at = 0; at < metrics->waiting.length;) {
        size_t length = strcspn(metrics->waiting.data + at, "\n");
        int64_t step = line_step(metrics->waiting.data + at, length);
        if (!missing.lines || step < missing.first_step) missing.first_step = step;
        if (step > missing.last_step) missing.last_step = step;
        missing.lines++;
        at += length + 1;
    }
    return missing;
}

// Takes the line over. What cannot be written waits for the next one, in its order.
static Status write_line(Metrics *metrics, TextBuffer *line, int64_t step) {
    if (metrics->waiting.length + line->length > WAITING_MOST)
        missing_add(&metrics->dropped, step);
    else
        text_buffer_add(&metrics->waiting, line->data, line->length);
    text_buffer_free(line);
    return waiting_write(metrics);
}

// The worst over the layers, and each layer.
static void add_expert_load(TextBuffer *line, const ExpertLoad *layers, int count) {
    ExpertLoad worst = expert_load_worst(layers, count);
    text_buffer_format(line, ",\"moe_load_max\":%.6g,\"moe_entropy\":%.6g,\"moe_dead\":%d", worst.load_max,
                       worst.entropy, worst.dead);
    text_buffer_format(line, ",\"moe_layers\":{\"load_max\":");
    for (int i = 0; i < count; i++)
        text_buffer_format(line, "%c%.6g", i ? ',' : '[', layers[i].load_max);
    text_buffer_format(line, "],\"entropy\":");
    for (int i = 0; i < count; i++)
        text_buffer_format(line, "%c%.6g", i ? ',' : '[', layers[i].entropy);
    text_buffer_format(line, "],\"dead\":");
    for (int i = 0; i < count; i++)
        text_buffer_format(line, "%c%d", i ? ',' : '[', layers[i].dead);
    text_buffer_format(line, "]}");
}

Status metrics_step(Metrics *metrics, const MetricsStep *step) {
    TextBuffer line = {0};
    text_buffer_format(&line, "{\"step\":%lld,\"tokens\":%lld", (long long)step->step, (long long)step->tokens);
    add_json_number(&line, "loss", step->loss);
    add_json_number(&line, "loss_aux", step->loss_aux);
    add_json_number(&line, "lr", step->lr);
    add_json_number(&line, "grad_norm", step->grad_norm);
    text_buffer_format(&line, ",\"grad_accum\":%lld", (long long)step->grad_accum);
    add_json_number(&line, "tok_s", step->tokens_per_second);
    add_json_number(&line, "tflops", step->tflops);
    if (step->mfu > 0) add_json_number(&line, "mfu", step->mfu);
    add_json_number(&line, "memory_bytes", step->memory_bytes);
    add_json_number(&line, "memory_fraction", step->memory_fraction);
    add_json_number(&line, "data_wait", step->data_wait);
    if (step->comm_wait > 0) add_json_number(&line, "comm_wait", step->comm_wait);
    add_json_number(&line, "seconds", step->seconds);
    add_json_number(&line, "elapsed", step->elapsed);
    text_buffer_format(&line, ",\"skipped\":%s,\"skipped_total\":%lld", step->skipped ? "true" : "false",
                       (long long)step->skipped_total);
    for (int i = 0; i < step->split_count; i++)
        text_buffer_format(&line, "%s\"%s\":%.6g", i ? "," : ",\"split_ms\":{", step->split_name[i], step->split_ms[i]);
    if (step->split_count) text_buffer_format(&line, "}");
    if (step->expert_rows_grown)
        text_buffer_format(&line, ",\"expert_rows_grown\":%lld", (long long)step->expert_rows_grown);
    if (step->moe_count) add_expert_load(&line, step->moe, step->moe_count);
    text_buffer_format(&line, "}\n");
    return write_line(metrics, &line, step->step);
}

Status metrics_evaluation(Metrics *metrics, int64_t step, int64_t tokens, const Evaluation *evaluation) {
    TextBuffer line = {0};
    text_buffer_format(&line, "{\"step\":%lld,\"tokens\":%lld,\"eval\":\"%s\"", (long long)step, (long long)tokens,
                       evaluation->full ? "full" : "subset");
    add_json_number(&line, "val_loss", evaluation->loss);
    add_json_number(&line, "perplexity", evaluation->perplexity);
    if (evaluation->bits_per_byte > 0) add_json_number(&line, "bits_per_byte", evaluation->bits_per_byte);
    text_buffer_format(&line, ",\"targets\":%lld", (long long)evaluation->targets);
    add_json_number(&line, "seconds", evaluation->seconds);
    text_buffer_format(&line, "}\n");
    return write_line(metrics, &line, step);
}

// Calls take(root, context) for every whole line.
static Status lines_read(const char *path, void (*take)(const json_t *root, void *context), void *context) {
    char *text;
    size_t size;
    TRY(file_read(&text, &size, path));
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end) break;
        size_t length = (size_t)(end - text) - at;
        json_t *root = NULL;
        Status status = json_read_text(&root, text + at, length, path);
        if (!status) take(root, context);
        status_free(status);
        json_decref(root);
        at += length + 1;
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
    return lines_read(path, loss_take, &(Losses){losses, count, 0});
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
    status_free(lines_read(path, full_eval_take, &wanted));
    return wanted.found;
}

static void last_step_take(const json_t *root, void *context) {
    int64_t *last = context, step = json_integer_value(json_object_get(root, "step"));
    bool of_step = json_object_get(root, "loss") != NULL; // null where it was not finite
    if (of_step && step > *last) *last = step;
}

int64_t metrics_last_step(const char *path) {
    int64_t last = 0;
    status_free(lines_read(path, last_step_take, &last));
    return last;
}
