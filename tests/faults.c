#include "faults.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;

const char *fault_name(IoKind kind) {
    static const char *const names[] = {"open",  "read",   "map",    "write", "truncate", "sync",
                                        "close", "rename", "unlink", "rmdir", "mkdir",    "any call"};
    return names[kind];
}

void fault_path(const IoCall *call, char *path, size_t size) {
    if (call->path) {
        snprintf(path, size, "%s", call->path);
        return;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", call->fd);
    ssize_t n = readlink(link, path, size - 1);
    path[n < 0 ? 0 : n] = 0;
}

static int fault_answer(Faults *faults, IoCall *call) {
    bool counts = faults->kind == IO_KINDS ? call->kind != IO_READ && call->kind != IO_MAP : call->kind == faults->kind;
    char path[4096];
    if (counts && faults->where) {
        fault_path(call, path, sizeof path);
        counts = strstr(path, faults->where) != NULL;
    }
    bool fails = counts && ++faults->count >= faults->number && faults->number > 0 &&
                 (faults->lasting || faults->count == faults->number);
    if (faults->error == FAULT_SHORT && (call->kind != IO_WRITE || call->size < 2)) fails = false;
    if (fails) {
        if (!faults->fired) fault_path(call, faults->path, sizeof faults->path);
        faults->fired = true;
        if (faults->error != FAULT_SHORT) return faults->error;
        call->size /= 2;
    }
    return call->kind == IO_SYNC ? IO_DONE : IO_GO;
}

static int fault_hook(void *context, IoCall *call) {
    pthread_mutex_lock(&faults_lock);
    int answer = fault_answer(context, call);
    pthread_mutex_unlock(&faults_lock);
    return answer;
}

void faults_start(Faults *faults) {
    faults->count = 0;
    faults->fired = false;
    io_set_hook(fault_hook, faults);
}

void faults_stop(void) {
    io_set_hook(NULL, NULL);
}

int descriptors_open(void) {
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    int count = 0;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

char *memory_directory(void) {
    char *path = text_format("%s/hearth-faults-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static int caught_fd = -1, stderr_fd = -1;

void stderr_catch(void) {
    char path[] = "/tmp/hearth-caught-XXXXXX";
    caught_fd = mkstemp(path);
    assert_true(caught_fd >= 0);
    unlink(path);
    fflush(stderr);
    stderr_fd = dup(STDERR_FILENO);
    dup2(caught_fd, STDERR_FILENO);
}

char *stderr_caught(void) {
    fflush(stderr);
    dup2(stderr_fd, STDERR_FILENO);
    close(stderr_fd);
    off_t size = lseek(caught_fd, 0, SEEK_END);
    char *text = xcalloc((size_t)size + 1, 1);
    assert_int_equal(pread(caught_fd, text, (size_t)size, 0), size);
    close(caught_fd);
    return text;
}
