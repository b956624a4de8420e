// The Error behind a Status, rendered only when somebody looks at it.
#include "base/status.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct Error {
    StatusCode code;
    char *message;
    char *file; // NULL when no place is known
    int line, column;
    char *hint;
    char *text; // rendered on demand
};

static Status error_new(StatusCode code, char *message) {
    Error *error = xcalloc(1, sizeof *error);
    error->code = code;
    error->message = message;
    return error;
}

Status status_usage(const char *what, ...) {
    va_list args;
    va_start(args, what);
    Status status = error_new(STATUS_USAGE, text_vformat(what, args));
    va_end(args);
    return status;
}

Status status_runtime(const char *what, ...) {
    va_list args;
    va_start(args, what);
    Status status = error_new(STATUS_RUNTIME, text_vformat(what, args));
    va_end(args);
    return status;
}

Status status_errno(const char *what, ...) {
    int number = errno;
    va_list args;
    va_start(args, what);
    char *prefix = text_vformat(what, args);
    va_end(args);
    Status status = error_new(STATUS_RUNTIME, text_format("%s: %s", prefix, strerror(number)));
    free(prefix);
    return status;
}

Status status_at(Status status, const char *file, int line, int column) {
    if (!status || status->file || !file) return status;
    status->file = text_copy(file);
    status->line = line;
    status->column = column;
    return status;
}

Status status_hint(Status status, const char *hint, ...) {
    if (!status || status->hint) return status;
    va_list args;
    va_start(args, hint);
    status->hint = text_vformat(hint, args);
    va_end(args);
    return status;
}

Status status_context(Status status, const char *context, ...) {
    if (!status) return status;
    va_list args;
    va_start(args, context);
    char *prefix = text_vformat(context, args);
    va_end(args);
    char *message = text_format("%s: %s", prefix, status->message);
    free(prefix);
    free(status->message);
    status->message = message;
    return status;
}

StatusCode status_code(Status status) {
    assert(status);
    return status->code;
}

const char *status_message(Status status) {
    assert(status);
    return status->message;
}

const char *status_text(Status status) {
    assert(status);
    char place[64] = "";
    if (status->line && status->column)
        snprintf(place, sizeof place, ":%d:%d", status->line, status->column);
    else if (status->line)
        snprintf(place, sizeof place, ":%d", status->line);
    free(status->text);
    status->text = text_format("%s%s%s%s%s%s", status->file ? status->file : "", status->file ? place : "",
                               status->file ? ": " : "", status->message, status->hint ? "\n  hint: " : "",
                               status->hint ? status->hint : "");
    return status->text;
}

void status_print(Status status, FILE *file) {
    status_text(status);
    text_mask_controls(status->text);
    fprintf(file, "hearth: error: %s\n", status->text);
}

void status_free(Status status) {
    if (!status) return;
    free(status->message);
    free(status->file);
    free(status->hint);
    free(status->text);
    free(status);
}
