// Who answers what. No sockets here: a request in, a reply out.
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "serve/request.h"

typedef struct ServeReply {
    int status; // of HTTP
    const char *type;
    TextBuffer body;
    const void *page; // in place of the body: bytes that stay
    size_t page_size;
    char *stream; // or the directory of a run, whose events follow (live.h)
    int64_t stream_from;
} ServeReply;

// NULL: the reply is filled in. A usage error becomes 400, another 500; what was filled in is dropped. It is called
// from several threads at once.
typedef Status (*ServeHandler)(const ServeRequest *request, ServeReply *reply);

typedef struct ServeRoute {
    const char *path; // whole, as decoded
    ServeHandler answer;
} ServeRoute;

void serve_reply_json(ServeReply *reply, json_t *root); // takes it
// These take over the buffer, and leave it empty.
void serve_reply_html(ServeReply *reply, TextBuffer *page);
void serve_reply_text(ServeReply *reply, TextBuffer *text);
void serve_reply_error(ServeReply *reply, int http_status, Status status); // frees it
Status serve_reply_missing(ServeReply *reply, const char *what);           // 404; NULL

// Of a GET for this target ("/path?query"). Whatever it holds, the reply is a whole one; free it in any case.
void serve_answer(ServeSite *site, const char *target, ServeReply *reply);
void serve_reply_free(ServeReply *reply);
