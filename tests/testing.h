// What every test program includes: cmocka with its required headers, and the shared test data.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

// Fails the test with the status's own text.
#define assert_ok(expression)                                            \
    do {                                                                 \
        Status assert_status_ = (expression);                            \
        if (assert_status_) fail_msg("%s", status_text(assert_status_)); \
    } while (0)

// Expects a failure whose text contains `part`.
#define assert_error(expression, part)                                                                   \
    do {                                                                                                 \
        Status assert_status_ = (expression);                                                            \
        if (!assert_status_) fail_msg("%s succeeded, expected an error with \"%s\"", #expression, part); \
        if (!strstr(status_text(assert_status_), part))                                                  \
            fail_msg("expected an error with \"%s\", got: %s", part, status_text(assert_status_));       \
        status_free(assert_status_);                                                                     \
    } while (0)

// Path of a shared test file (fixtures, tokenizers, corpora), found through HEARTH_SHARED or ../shared; NULL when it is
// not there, after saying so. The caller then calls skip() and the run shows a skipped test. Static storage.
static inline const char *shared_path(const char *name) {
    static char path[4096];
    const char *root = getenv("HEARTH_SHARED");
    snprintf(path, sizeof path, "%s/%s", root ? root : "../shared", name);
    if (file_exists(path)) return path;
    printf("SKIPPED: %s is not here (set HEARTH_SHARED to the folder of shared test data)\n", path);
    return NULL;
}
