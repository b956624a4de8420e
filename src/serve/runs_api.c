// Runs as the pages show them.
#include "serve/runs_api.h"

#include "base/file.h"
#include "serve/live.h"
#include "serve/site.h"
#include "watch/report.h"
#include "watch/run_compare.h"

#include <stdlib.h>
#include <string.h>

enum { LOG_BYTES = 1 << 16 };

// The directory of the run that a request names, malloc'd. NULL: the reply says that there is none.
static char *runs_asked(const ServeRequest *request, ServeReply *reply) {
    const char *name = serve_parameter(request, "run");
    char *path = name ? serve_site_find(request->site, name) : NULL;
    if (!path) serve_reply_missing(reply, "such run");
    return path;
}

// Text of a buffer as a JSON string; it is empty afterwards.
static json_t *taken_text(TextBuffer *text) {
    json_t *string = json_stringn(text->data ? text->data : "", text->length);
    text_buffer_free(text);
    return string;
}

// ---- the list -------------------------------------------------------------------------------------------------------

static void add_summary(const RunSummary *summary, void *context) {
    json_t *run = run_summary_json(summary);
    json_object_set_new(run, "name", json_string(summary->name));
    json_array_append_new(context, run);
}

Status runs_answer_list(const ServeRequest *request, ServeReply *reply) {
    json_t *runs = json_array();
    Status status = serve_site_summaries(request->site, add_summary, runs);
    if (status) {
        json_decref(runs);
        return status;
    }
    serve_reply_json(reply, json_pack("{s:o,s:s,s:o}", "folder", json_text(serve_site_folder(request->site)),
                                      "looked_for", SERVE_LOOKED_FOR, "runs", runs));
    return NULL;
}

// ---- one run --------------------------------------------------------------------------------------------------------

// A run that has written no metrics yet is one without steps.
static Status record_read(RunRecord *record, const char *path) {
    char *metrics = path_join(path, "metrics.jsonl");
    bool begun = file_exists(metrics);
    free(metrics);
    return begun ? run_read(record, path) : run_read_settings(record, path);
}

static json_t *run_parts(const ServeRequest *request, ReportRun *run) {
    RunFigures figures = report_figures(run);
    Waterfall waterfall = report_waterfall(&run->record, &figures);
    TextBuffer subtitle = {0}, before = {0}, behind = {0};
    serve_site_prepare(request->site, run);
    figures = report_figures(run); // with prices
    report_subtitle(&run->record, &figures, &subtitle);
    if (run->record.step_count) report_run_before(run, &figures, &waterfall, &before);
    report_run_behind(run, &figures, &waterfall, 1, &behind);
    json_t *parts = json_object();
    json_object_set_new(parts, "subtitle", taken_text(&subtitle));
    json_object_set_new(parts, "before", taken_text(&before));
    json_object_set_new(parts, "behind", taken_text(&behind));
    return parts;
}

static void add_log(json_t *root, const char *path) {
    int64_t end;
    char *file = path_join(path, "log.txt"), *text = live_tail(file, LOG_BYTES, &end);
    json_object_set_new(root, "log", json_string(text));
    json_object_set_new(root, "log_at", json_integer(end));
    free(text);
    free(file);
}

static Status make_run(const ServeRequest *request, char *const *paths, int count, ServeReply *reply) {
    (void)count;
    ReportRun run = {0};
    Status status = record_read(&run.record, paths[0]);
    if (!status) {
        size_t steps = run.record.step_count;
        char *message;
        RunState state = run_state_read(paths[0], steps ? run.record.steps[steps - 1].step : 0, &message);
        json_t *root = run_parts(request, &run);
        json_object_set_new(root, "name", json_string(path_name(paths[0])));
        json_object_set_new(root, "state", json_string(run_state_name(state)));
        if (message) json_object_set_new(root, "message", json_string(message));
        add_log(root, paths[0]);
        serve_reply_json(reply, root);
        free(message);
    }
    run_record_free(&run.record);
    return status;
}

Status runs_answer_one(const ServeRequest *request, const char *what, ServeMake make, ServeReply *reply) {
    char *path = runs_asked(request, reply);
    if (!path) return NULL;
    char *key = text_format("%s %s", what, path);
    Status status = serve_site_cached(request, key, &path, 1, make, reply);
    free(key);
    free(path);
    return status;
}

Status runs_answer_run(const ServeRequest *request, ServeReply *reply) {
    return runs_answer_one(request, "run", make_run, reply);
}

Status events_answer(const ServeRequest *request, ServeReply *reply) {
    const char *from = serve_parameter(request, "from");
    int64_t offset = 0;
    if (from && (!text_to_int64(from, &offset) || offset < 0))
        return status_usage("from is an offset of metrics.jsonl");
    char *path = runs_asked(request, reply);
    if (path) *reply = (ServeReply){.status = 200, .type = "text/event-stream", .stream = path, .stream_from = offset};
    return NULL;
}

// ---- several --------------------------------------------------------------------------------------------------------

static Status compare_tables(char *const *paths, int count, TextBuffer *out) {
    RunCompared runs[SERVE_RUNS_MOST] = {0};
    Status status = NULL;
    int read = 0;
    for (; read < count && !status; read += !status)
        status = run_compared_read(&runs[read], paths[read]);
    if (!status) {
        Document *document = run_compare(runs, count);
        document_parts_html(document, out);
        document_free(document);
    }
    for (int i = 0; i < read; i++)
        run_compared_free(&runs[i]);
    return status;
}

static Status reports_read(const ServeRequest *request, char *const *paths, int count, ReportRun *runs) {
    Status status = NULL;
    for (int i = 0; i < count && !status; i++) {
        status = record_read(&runs[i].record, paths[i]);
        if (!status) serve_site_prepare(request->site, &runs[i]);
    }
    return status;
}

static void reports_free(ReportRun *runs, int count) {
    for (int i = 0; i < count; i++)
        run_record_free(&runs[i].record);
}

static Status make_compare(const ServeRequest *request, char *const *paths, int count, ServeReply *reply) {
    ReportRun runs[SERVE_RUNS_MOST] = {0};
    TextBuffer ladder = {0}, tables = {0};
    Status status = reports_read(request, paths, count, runs);
    if (!status) status = compare_tables(paths, count, &tables);
    if (!status) {
        RunFigures figures[SERVE_RUNS_MOST];
        json_t *names = json_array();
        for (int i = 0; i < count; i++) {
            figures[i] = report_figures(&runs[i]);
            json_array_append_new(names, json_string(runs[i].record.name));
        }
        report_ladder_table(runs, figures, count, &ladder);
        json_t *root = json_pack("{s:o}", "runs", names);
        json_object_set_new(root, "ladder", taken_text(&ladder));
        json_object_set_new(root, "tables", taken_text(&tables));
        serve_reply_json(reply, root);
    }
    text_buffer_free(&tables);
    reports_free(runs, count);
    return status;
}

static Status make_report(const ServeRequest *request, char *const *paths, int count, ServeReply *reply) {
    ReportRun runs[SERVE_RUNS_MOST] = {0};
    TextBuffer page = {0};
    Status status = reports_read(request, paths, count, runs);
    if (!status) {
        report_write(runs, count, &page);
        serve_reply_html(reply, &page);
    }
    reports_free(runs, count);
    return status;
}

static Status answer_several(const ServeRequest *request, int least, const char *what, ServeMake make,
                             ServeReply *reply) {
    char *paths[SERVE_RUNS_MOST];
    int count = 0;
    TextBuffer key = {0};
    Status status = NULL;
    bool missing = false;
    text_buffer_format(&key, "%s", what);
    for (int i = 0; i < request->parameter_count && !status && !missing; i++) {
        if (strcmp(request->parameters[i].name, "run") != 0) continue;
        if (count == SERVE_RUNS_MOST) {
            status = status_usage("at most %d runs at once", SERVE_RUNS_MOST);
            break;
        }
        paths[count] = serve_site_find(request->site, request->parameters[i].value);
        missing = !paths[count];
        if (!missing) text_buffer_format(&key, "\n%s", paths[count++]);
    }
    if (missing)
        serve_reply_missing(reply, "such run");
    else if (!status && count < least)
        status = status_usage("name %s, as in ?run=NAME%s", least > 1 ? "two runs or more" : "a run",
                              least > 1 ? "&run=NAME" : "");
    else if (!status)
        status = serve_site_cached(request, key.data, paths, count, make, reply);
    for (int i = 0; i < count; i++)
        free(paths[i]);
    text_buffer_free(&key);
    return status;
}

Status runs_answer_compare(const ServeRequest *request, ServeReply *reply) {
    return answer_several(request, 2, "compare", make_compare, reply);
}

Status runs_answer_report(const ServeRequest *request, ServeReply *reply) {
    return answer_several(request, 1, "report", make_report, reply);
}
