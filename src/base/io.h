// The system calls that open, read, change and remove files, under the names of the calls themselves and with their
// results, except that one which a signal has interrupted is made again. Whatever must survive a crash or a full disk
// is written through these, so that tests can let any single call fail and can see every call in its order.
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef enum IoKind {
    IO_OPEN,
    IO_READ,
    IO_MAP,
    IO_WRITE,
    IO_TRUNCATE,
    IO_SYNC,
    IO_CLOSE,
    IO_RENAME,
    IO_UNLINK,
    IO_RMDIR,
    IO_MKDIR,
    IO_KINDS,
} IoKind;

int io_open(const char *path, int flags, mode_t mode); // mode: of a file that O_CREAT makes
ssize_t io_read(int fd, void *data, size_t size);
ssize_t io_read_at(int fd, void *data, size_t size, int64_t offset);
void *io_map(int fd, size_t size); // read-only, shared; MAP_FAILED as mmap
ssize_t io_write(int fd, const void *data, size_t size);
ssize_t io_write_at(int fd, const void *data, size_t size, int64_t offset);
int io_truncate(int fd, int64_t size);
int io_sync(int fd);  // fsync
int io_close(int fd); // the descriptor is gone, whatever is returned
int io_rename(const char *from, const char *to);
int io_unlink(const char *path);
int io_rmdir(const char *path);
int io_mkdir(const char *path, mode_t mode);

// ---- for tests alone -----------------------------------------------------------------------------------------------

typedef struct IoCall {
    IoKind kind;
    int fd;           // of read, map, write, truncate, sync, close
    const char *path; // of open, rename, unlink, rmdir, mkdir
    const char *to;   // of rename
    int flags;        // of open
    const void *data; // of write
    int64_t offset;   // of write: where to; -1: where the descriptor stands
    size_t size;      // of read, map, write and truncate; a hook may make a write shorter
} IoCall;

enum { IO_GO = 0, IO_DONE = -1 };

// Asked before each call, from whatever thread makes it: IO_GO lets it go ahead, IO_DONE reports success without it
// (for truncate, sync, rename, unlink, rmdir and mkdir), a positive errno makes it fail with that. A close that fails
// closes.
typedef int IoHook(void *context, IoCall *call);
void io_set_hook(IoHook *hook, void *context); // NULL: none. No call may be under way
