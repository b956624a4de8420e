// Errors that a user can cause. A Status is NULL on success, else an owned Error that says what went wrong, where, and
// what to do next. What only a bug can cause is an assert instead.
#pragma once

#include <stdio.h>

typedef enum StatusCode {
    STATUS_RUNTIME = 1, // the world failed us: disk full, file vanished, GPU lost; exit code 1
    STATUS_USAGE = 2,   // the request is wrong: bad config, bad argument, bad input file; exit code 2
} StatusCode;

typedef struct Error Error;
typedef Error *Status; // NULL = success; the receiver frees it or returns it

// what: one sentence without a full stop. Both return a new Error (never NULL).
Status status_usage(const char *what, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
Status status_runtime(const char *what, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
// The same, with ": <strerror(errno)>" added.
Status status_errno(const char *what, ...) __attribute__((format(printf, 1, 2), returns_nonnull));

// Decorate and return the same status; each is a no-op on success. The innermost place wins: a place that is already
// set stays. line and column count from 1; 0 leaves them out. file NULL: there is no place to name.
Status status_at(Status status, const char *file, int line, int column);
Status status_hint(Status status, const char *hint, ...) __attribute__((format(printf, 2, 3)));
// Puts "context: " before the message.
Status status_context(Status status, const char *context, ...) __attribute__((format(printf, 2, 3)));

StatusCode status_code(Status status);        // of a failure
const char *status_message(Status status);    // what went wrong, without place or hint
const char *status_text(Status status);       // "file:line:column: message\n  hint: ..." owned by the status
void status_print(Status status, FILE *file); // "hearth: error: <text>"
void status_free(Status status);

#define TRY(expression)                      \
    do {                                     \
        Status try_status_ = (expression);   \
        if (try_status_) return try_status_; \
    } while (0)

// For a function with one cleanup label: Status status = NULL; ... TRY_GOTO(f(), done); ... done: free; return status;
#define TRY_GOTO(expression, label) \
    do {                            \
        status = (expression);      \
        if (status) goto label;     \
    } while (0)
