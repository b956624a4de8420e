// One HTTP GET with libcurl: checks of status and range, retries with growing delays.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct HttpSettings {
    const char *token; // sent as a bearer token to the first host only; NULL: none
    int retries;       // in a row without a byte gained
    double retry_seconds;
    bool quiet; // no line for a try that failed
} HttpSettings;

typedef struct Http Http; // a connection that is kept between requests; one thread each
Status http_open(Http **http, const HttpSettings *settings);
void http_close(Http *http);

// Whole body as malloc'd, NUL-terminated text; *next is the target of a Link header with rel="next" (malloc'd) or NULL.
Status http_get_text(Http *http, const char *url, char **body, size_t *length, char **next);

// Bytes [start, end) of a file of `total` bytes; sink gets them in order, each once, over any number of tries. An
// answer for another range or of another total size counts as a failed try.
typedef Status HttpSink(void *context, int64_t offset, const void *data, size_t size);
Status http_get_range(Http *http, const char *url, int64_t start, int64_t end, int64_t total, HttpSink *sink,
                      void *context);
