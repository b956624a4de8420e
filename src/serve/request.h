// What a client asks for: a path and parameters, taken from the target of its request line.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct ServeSite ServeSite; // what is served

typedef struct ServeParameter {
    const char *name, *value; // percent-decoded, UTF-8; value "" without one
} ServeParameter;

enum { SERVE_PARAMETERS_MOST = 128, SERVE_TARGET_MOST = 8192 }; // more is refused

typedef struct ServeRequest {
    ServeSite *site; // NULL in tests of what needs none
    const char *path;
    ServeParameter parameters[SERVE_PARAMETERS_MOST]; // in the order of the query
    int parameter_count;
    char *text; // what the others point into
} ServeRequest;

// Of "/path?a=1&b=x%20y". A usage error where it cannot be read: escapes that are none, NUL, malformed UTF-8, too much.
// Free with serve_request_free in any case.
Status serve_request_parse(ServeRequest *request, ServeSite *site, const char *target);
void serve_request_free(ServeRequest *request);

const char *serve_parameter(const ServeRequest *request, const char *name); // the first of that name; NULL: not there
