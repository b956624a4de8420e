// A run directory written by hand, for tests of those who read one.
#pragma once

#include "testing.h"

#include <unistd.h>

static char *run_folder;

static int run_folder_make(void **state) {
    (void)state;
    run_folder = text_copy("/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(run_folder));
    return 0;
}

static int run_folder_remove(void **state) {
    (void)state;
    status_free(dir_remove(run_folder));
    free(run_folder);
    return 0;
}

static inline void run_folder_write(const char *name, const char *text) {
    char *path = path_join(run_folder, name);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    free(path);
}
