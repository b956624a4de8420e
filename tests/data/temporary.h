// A folder of its own for a test program, removed when it ends.
#pragma once

#include "testing.h"

#include <unistd.h>

static char temporary_folder[64];

static inline int temporary_make(void **state) {
    (void)state;
    snprintf(temporary_folder, sizeof temporary_folder, "/tmp/hearth-test-XXXXXX");
    return mkdtemp(temporary_folder) ? 0 : -1;
}

static inline int temporary_remove(void **state) {
    (void)state;
    Status status = dir_remove(temporary_folder);
    status_free(status);
    return status ? -1 : 0;
}

// Path below the folder; static storage for a few at a time.
static inline const char *temporary_path(const char *name) {
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", temporary_folder, name);
    return path;
}

static inline const char *temporary_file(const char *name, const void *data, size_t size) {
    const char *path = temporary_path(name);
    unlink(path);                   // a file system may flush a file that is cut and written again
    FILE *file = fopen(path, "wb"); // not file_write_atomic: thousands of fsyncs would take minutes
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}
