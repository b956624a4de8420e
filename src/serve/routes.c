// The table of answers, and finding one.
#include "serve/routes.h"

#include "serve/pages.h"
#include "serve/planner_api.h"
#include "serve/runs_api.h"
#include "watch/report.h"

#include <stdlib.h>
#include <string.h>

// The style of reports, which every page has.
static Status answer_style(const ServeRequest *request, ServeReply *reply) {
    (void)request;
    *reply = (ServeReply){200, "text/css; charset=utf-8", .page = report_style, .page_size = strlen(report_style)};
    return NULL;
}

static const ServeRoute serve_routes[] = {
    {"/report.css", answer_style},      {"/report", runs_answer_report},
    {"/api/runs", runs_answer_list},    {"/api/run", runs_answer_run},
    {"/api/series", series_answer},     {"/api/compare", runs_answer_compare},
    {"/api/events", events_answer},     {"/metrics", prometheus_answer},
    {"/api/plan", planner_plan_answer}, {"/api/plan/lists", planner_lists_answer},
    {"/api/calc", planner_calc_answer}, {"/api/calc/list", planner_quantities_answer},
};

// ---- replies --------------------------------------------------------------------------------------------------------

static void reply_body(ServeReply *reply, const char *type, TextBuffer *body) {
    text_buffer_free(&reply->body);
    *reply = (ServeReply){.status = 200, .type = type, .body = *body};
    *body = (TextBuffer){0};
}

void serve_reply_html(ServeReply *reply, TextBuffer *page) {
    reply_body(reply, "text/html; charset=utf-8", page);
}

void serve_reply_text(ServeReply *reply, TextBuffer *text) {
    reply_body(reply, "text/plain; charset=utf-8", text);
}

void serve_reply_json(ServeReply *reply, json_t *root) {
    TextBuffer body = {0};
    char *text = json_dumps(root, JSON_COMPACT);
    if (text) text_buffer_add(&body, text, strlen(text));
    free(text);
    json_decref(root);
    reply_body(reply, "application/json", &body);
}

void serve_reply_error(ServeReply *reply, int http_status, Status status) {
    json_t *root = json_pack("{s:o}", "error", json_text(status_message(status)));
    const char *hint = status_text(status) ? strstr(status_text(status), "hint: ") : NULL;
    if (hint) json_object_set_new(root, "hint", json_text(hint + strlen("hint: ")));
    serve_reply_json(reply, root);
    reply->status = http_status;
    status_free(status);
}

Status serve_reply_missing(ServeReply *reply, const char *what) {
    serve_reply_error(reply, 404, status_usage("there is no %s", what));
    return NULL;
}

void serve_reply_free(ServeReply *reply) {
    text_buffer_free(&reply->body);
    free(reply->stream);
    reply->stream = NULL;
}

// ---- pages ----------------------------------------------------------------------------------------------------------

static const char *page_type(const char *name) {
    if (text_ends_with(name, ".svg")) return "image/svg+xml";
    if (text_ends_with(name, ".css")) return "text/css; charset=utf-8";
    return text_ends_with(name, ".js") ? "text/javascript; charset=utf-8" : "text/html; charset=utf-8";
}

// "/" is index.html, "/run" run.html, "/run.js" run.js. Browsers ask for /favicon.ico unasked.
static bool answer_page(const char *path, ServeReply *reply) {
    const char *name = path[1] ? path + 1 : "index";
    if (strcmp(name, "favicon.ico") == 0) name = "favicon.svg";
    for (int i = 0; i < serve_page_count; i++) {
        const ServePage *page = &serve_pages[i];
        size_t length = strlen(name);
        if (strncmp(page->name, name, length) != 0) continue;
        if (page->name[length] && strcmp(page->name + length, ".html") != 0) continue;
        *reply = (ServeReply){200, page_type(page->name), .page = page->data, .page_size = page->size};
        return true;
    }
    return false;
}

// ---- answers --------------------------------------------------------------------------------------------------------

static Status answer(const ServeRequest *request, ServeReply *reply) {
    if (request->path[0] != '/') return status_usage("an address begins with /");
    for (size_t i = 0; i < sizeof serve_routes / sizeof *serve_routes; i++)
        if (strcmp(serve_routes[i].path, request->path) == 0) return serve_routes[i].answer(request, reply);
    return answer_page(request->path, reply) ? NULL : serve_reply_missing(reply, "such page");
}

void serve_answer(ServeSite *site, const char *target, ServeReply *reply) {
    ServeRequest request;
    *reply = (ServeReply){0};
    Status status = serve_request_parse(&request, site, target);
    if (!status) status = answer(&request, reply);
    if (status) serve_reply_error(reply, status_code(status) == STATUS_USAGE ? 400 : 500, status);
    serve_request_free(&request);
}
