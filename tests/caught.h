// A command run as a user runs it, with what it prints caught.
#pragma once

#include "testing.h"

#include <unistd.h>

enum { CAUGHT_WORDS_MAX = 40 };

typedef Status CommandCall(int argc, char **argv);

// The output is malloc'd, also when the command fails.
static inline Status command_caught(char **output, CommandCall *command, int count, const char *const *words) {
    char *argv[CAUGHT_WORDS_MAX + 2] = {"command"};
    assert_true(count <= CAUGHT_WORDS_MAX);
    for (int i = 0; i < count; i++)
        argv[i + 1] = (char *)words[i];
    fflush(stdout);
    FILE *file = tmpfile();
    assert_non_null(file);
    int saved = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    Status status = command(count + 1, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    *output = xcalloc((size_t)size + 1, 1);
    assert_int_equal(fread(*output, 1, (size_t)size, file), (size_t)size);
    fclose(file);
    return status;
}

#define CAUGHT(output, command, ...)                                                               \
    command_caught(output, command, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
                   (const char *[]){__VA_ARGS__})
