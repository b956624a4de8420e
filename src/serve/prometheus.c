// Runs that train, for Prometheus: the last line of each, under the names of the table of metrics.
#include "base/file.h"
#include "serve/runs_api.h"
#include "serve/site.h"
#include "watch/metrics_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAIL_BYTES = 1 << 18 }; // a line is far shorter

typedef struct Training {
    char *label; // the run's name, escaped
    char *path;
    json_t *last[METRICS_NO_LINE]; // lines; NULL: none
} Training;

typedef struct TrainingList {
    Training *runs;
    size_t count;
} TrainingList;

static char *label_escape(const char *text) {
    TextBuffer out = {0};
    text_buffer_add(&out, "", 0);
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') text_buffer_add(&out, "\\", 1);
        text_buffer_add(&out, *text == '\n' ? "\\n" : text, *text == '\n' ? 2 : 1);
    }
    return out.data;
}

static void add_training(const RunSummary *summary, void *context) {
    TrainingList *list = context;
    if (summary->state != RUN_RUNNING) return;
    list->runs = xrealloc(list->runs, (list->count + 1) * sizeof *list->runs);
    list->runs[list->count++] = (Training){label_escape(summary->name), text_copy(summary->directory), {NULL}};
}

static void take_line(const json_t *line, void *context) {
    Training *run = context;
    MetricsLine kind = metrics_line_kind(line);
    if (kind == METRICS_NO_LINE) return;
    json_decref(run->last[kind]);
    run->last[kind] = json_incref((json_t *)line);
}

static void read_last_lines(Training *run) {
    char *metrics = path_join(run->path, "metrics.jsonl");
    int64_t size = 0;
    status_free(file_size(&size, metrics));
    int64_t offset = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
    status_free(metrics_read_from(metrics, &offset, TAIL_BYTES, take_line, run));
    free(metrics);
}

static bool is_number(const MetricsField *field) {
    return field->type == METRICS_INT64 || field->type == METRICS_INT || field->type == METRICS_DOUBLE ||
           field->type == METRICS_BOOL;
}

static void field_write(const MetricsField *field, const TrainingList *list, TextBuffer *out) {
    char number[32], name[128];
    bool named = false;
    snprintf(name, sizeof name, "hearth_%s%s", field->line == METRICS_EVALUATION ? "evaluation_" : "", field->key);
    for (size_t i = 0; i < list->count; i++) {
        const json_t *line = list->runs[i].last[field->line];
        double value = line ? metrics_line_value(line, field->key) : NAN;
        if (isnan(value)) continue;
        if (!named)
            text_buffer_format(out, "# HELP %s %s%s%s%s\n# TYPE %s %s\n", name, field->meaning,
                               field->unit[0] ? " [" : "", field->unit, field->unit[0] ? "]" : "", name,
                               text_ends_with(field->key, "_total") ? "counter" : "gauge");
        named = true;
        text_buffer_format(out, "%s{run=\"%s\"} %s\n", name, list->runs[i].label, text_number(number, value));
    }
}

Status prometheus_answer(const ServeRequest *request, ServeReply *reply) {
    TrainingList list = {0};
    TextBuffer out = {0};
    Status status = serve_site_summaries(request->site, add_training, &list);
    for (size_t i = 0; i < list.count; i++)
        read_last_lines(&list.runs[i]);
    text_buffer_format(&out,
                       "# HELP hearth_runs_training runs that train now\n# TYPE hearth_runs_training gauge\n"
                       "hearth_runs_training %zu\n",
                       list.count);
    for (int i = 0; i < metrics_field_count(); i++)
        if (is_number(metrics_field(i))) field_write(metrics_field(i), &list, &out);
    for (size_t i = 0; i < list.count; i++) {
        free(list.runs[i].label);
        free(list.runs[i].path);
        for (int k = 0; k < METRICS_NO_LINE; k++)
            json_decref(list.runs[i].last[k]);
    }
    free(list.runs);
    if (status) {
        text_buffer_free(&out);
        return status;
    }
    serve_reply_text(reply, &out);
    reply->type = "text/plain; version=0.0.4; charset=utf-8";
    return NULL;
}
