// One tiny_directory for all tests of a program: cmocka's group set-up and teardown.
#pragma once

#include "tiny_run.h"

static char *directory;

static inline int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    return 0;
}

static inline int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    return 0;
}
