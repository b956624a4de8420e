// What every test program includes: cmocka with its required headers, and where test data lies.
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

// Test data comes in two layers of one form (tests/fixtures/README.md says which). What the project ships is always
// there; larger data extends the tests where a folder HEARTH_SHARED, or ../shared, has it. Both are seen from the root
// of the project, where CTest runs the programs.
#define FIXTURES "tests/fixtures"

// The folder of the second layer where it has the file or folder `name`, else NULL. One that was asked for and is not
// there is a failure.
static inline const char *shared_root(const char *name) {
    const char *asked = getenv("HEARTH_SHARED"), *root = asked ? asked : "../shared";
    if (asked && !file_exists(asked)) fail_msg("HEARTH_SHARED names %s, which is not there", asked);
    char *path = path_join(root, name);
    bool found = file_exists(path);
    free(path);
    return found ? root : NULL;
}

// Path of a shipped file. Static storage for a few at a time.
static inline const char *fixture_path(const char *name) {
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], FIXTURES "/%s", name);
    if (!file_exists(path)) fail_msg("%s is not here; tests run in the root of the project", path);
    return path;
}
