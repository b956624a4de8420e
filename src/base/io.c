// Thin calls: one load of a pointer that is NULL outside of tests, then the system call.
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic(IoHook *) io_hook;
static void *io_hook_context;

void io_set_hook(IoHook *hook, void *context) {
    io_hook_context = context;
    atomic_store(&io_hook, hook);
}

// Whether a test answers in the place of the system: then *result is what the caller gets, and errno is set.
static bool call_answered(IoCall *call, int *result) {
    IoHook *hook = atomic_load_explicit(&io_hook, memory_order_acquire);
    if (__builtin_expect(!hook, 1)) return false;
    int answer = hook(io_hook_context, call);
    if (answer == IO_GO) return false;
    if (answer > 0) errno = answer;
    *result = answer > 0 ? -1 : 0;
    return true;
}

// The call, unless a test answers it, and again for as long as signals interrupt it.
#define IO_CALL(result, call, ...)                                        \
    do {                                                                  \
        int answer_;                                                      \
        result = call_answered(call, &answer_) ? answer_ : (__VA_ARGS__); \
    } while (result < 0 && errno == EINTR)

int io_open(const char *path, int flags, mode_t mode) {
    int fd;
    IO_CALL(fd, (&(IoCall){.kind = IO_OPEN, .fd = -1, .path = path, .flags = flags}), open(path, flags, mode));
    return fd;
}

ssize_t io_read(int fd, void *data, size_t size) {
    ssize_t n;
    IO_CALL(n, (&(IoCall){.kind = IO_READ, .fd = fd, .size = size}), read(fd, data, size));
    return n;
}

ssize_t io_read_at(int fd, void *data, size_t size, int64_t offset) {
    ssize_t n;
    IO_CALL(n, (&(IoCall){.kind = IO_READ, .fd = fd, .size = size}), pread(fd, data, size, offset));
    return n;
}

void *io_map(int fd, size_t size) {
    int answer;
    if (call_answered(&(IoCall){.kind = IO_MAP, .fd = fd, .size = size}, &answer)) return MAP_FAILED;
    return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
}

ssize_t io_write(int fd, const void *data, size_t size) {
    ssize_t n;
    IoCall call = {.kind = IO_WRITE, .fd = fd, .data = data, .offset = -1, .size = size};
    IO_CALL(n, &call, write(fd, data, call.size));
    return n;
}

ssize_t io_write_at(int fd, const void *data, size_t size, int64_t offset) {
    ssize_t n;
    IoCall call = {.kind = IO_WRITE, .fd = fd, .data = data, .offset = offset, .size = size};
    IO_CALL(n, &call, pwrite(fd, data, call.size, offset));
    return n;
}

int io_truncate(int fd, int64_t size) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_TRUNCATE, .fd = fd, .size = (size_t)size}), ftruncate(fd, size));
    return result;
}

int io_sync(int fd) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_SYNC, .fd = fd}), fsync(fd));
    return result;
}

// Never made again: Linux has let go of the number even when close fails, and another thread may have it by then.
int io_close(int fd) {
    int answer, result = 0;
    bool answered = call_answered(&(IoCall){.kind = IO_CLOSE, .fd = fd}, &answer);
    int error = errno;
    result = close(fd);
    if (answered) {
        errno = error;
        result = answer;
    }
    return result && errno == EINTR ? 0 : result;
}

int io_rename(const char *from, const char *to) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_RENAME, .fd = -1, .path = from, .to = to}), rename(from, to));
    return result;
}

int io_unlink(const char *path) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_UNLINK, .fd = -1, .path = path}), unlink(path));
    return result;
}

int io_rmdir(const char *path) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_RMDIR, .fd = -1, .path = path}), rmdir(path));
    return result;
}

int io_mkdir(const char *path, mode_t mode) {
    int result;
    IO_CALL(result, (&(IoCall){.kind = IO_MKDIR, .fd = -1, .path = path}), mkdir(path, mode));
    return result;
}
