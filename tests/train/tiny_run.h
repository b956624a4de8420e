// A run that trains in a second: a small corpus, a model of a few ten thousand parameters, and the hearth program as a
// child process whose end can be violent.
#pragma once

#include "testing.h"

#include "data/synth.h"
#include "train/config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static inline char *tiny_directory(void) { // a fresh directory with data in it; remove with dir_remove
    char *directory = text_copy("/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    char *data = path_join(directory, "data");
    SynthRequest request = {data, "bytes", 0, 7, 200, 20, false};
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    free(data);
    return directory;
}

// config.toml in the directory, for `steps` steps; `more` is added at the end. Returns its path (malloc'd).
static inline char *tiny_config(const char *directory, const char *name, int steps, const char *more) {
    char *path = path_join(directory, name);
    char *text = text_format("[model]\nhidden = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 64\n"
                             "[data]\ntrain = [\"%s/data\"]\n"
                             "[train]\nseq = 32\nmicro_batch = 2\ngrad_accum = 2\nsteps = %d\nprecision = \"fp32\"\n"
                             "device = \"cpu\"\nthreads = 1\nruns = \"%s/runs\"\n"
                             "[optimizer]\nlr = 1e-2\n[schedule]\nwarmup_steps = 3\n"
                             "[eval]\nwindows = 8\nat_end = false\n[watch]\nterminal = \"off\"\n%s",
                             directory, steps, directory, more ? more : "");
    assert_ok(file_write_atomic(path, text, strlen(text)));
    free(text);
    return path;
}

static inline const char *hearth_program(void) {
    static char path[4096];
    const char *build = getenv("HEARTH_BUILD");
    snprintf(path, sizeof path, "%s/hearth", build ? build : "build");
    return path;
}

// Starts hearth with the arguments (NULL-terminated, without the program's name); stdout and stderr go to `log`.
static inline pid_t hearth_start(const char *const *arguments, const char *log) {
    const char *argv[32] = {hearth_program()};
    for (int i = 0; arguments[i]; i++)
        argv[i + 1] = arguments[i];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("HEARTH_HISTORY", "", 0); // the user's own history is no place for tests
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return child;
}

static inline int hearth_wait(pid_t child) { // the exit code, or 128 + signal
    int state;
    while (waitpid(child, &state, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static inline int hearth_run(const char *const *arguments, const char *log) {
    return hearth_wait(hearth_start(arguments, log));
}

static inline char *read_text(const char *path) { // malloc'd, "" when there is no such file
    char *text = NULL;
    size_t size;
    Status status = file_read(&text, &size, path);
    if (!status) return text;
    status_free(status);
    return text_copy("");
}
