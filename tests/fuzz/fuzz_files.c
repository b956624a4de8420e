// See fuzz_files.h. Paths elsewhere, and descriptors that are not ours, go to the system.
#include "fuzz_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define ROOT "/mem/"
enum { FILES_MAX = 64, OPEN_MAX_FILES = 64, FIRST_DESCRIPTOR = 1 << 20 };

typedef struct MemoryFile {
    char path[128]; // "": free, or removed while something may still map it
    uint8_t *data;
    size_t size;
    bool fixed, directory;
} MemoryFile;

typedef struct OpenFile {
    MemoryFile *file; // NULL: free
    size_t at;
    bool append;
} OpenFile;

static MemoryFile memory_files[FILES_MAX];
static int memory_file_count;
static OpenFile open_files[OPEN_MAX_FILES];

static bool is_ours(const char *path) {
    return strncmp(path, ROOT, sizeof ROOT - 2) == 0 && (!path[sizeof ROOT - 2] || path[sizeof ROOT - 2] == '/');
}

static MemoryFile *file_find(const char *path) {
    for (int i = 0; i < memory_file_count; i++)
        if (strcmp(memory_files[i].path, path) == 0) return &memory_files[i];
    return NULL;
}

static bool directory_exists(const char *path) {
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        length--;
    for (int i = 0; i < memory_file_count; i++) {
        const MemoryFile *file = &memory_files[i];
        if (strncmp(file->path, path, length) == 0 &&
            (file->path[length] == '/' || (file->directory && !file->path[length])))
            return true;
    }
    return !path[sizeof ROOT - 2]; // the root
}

static MemoryFile *file_new(const char *path) {
    if (memory_file_count == FILES_MAX || strlen(path) >= sizeof memory_files[0].path) return NULL;
    MemoryFile *file = &memory_files[memory_file_count++];
    *file = (MemoryFile){.data = malloc(0)};
    strcpy(file->path, path);
    return file;
}

void fuzz_files_clear(void) {
    int kept = 0;
    for (int i = 0; i < memory_file_count; i++) {
        if (memory_files[i].fixed && memory_files[i].path[0])
            memory_files[kept++] = memory_files[i];
        else
            free(memory_files[i].data);
    }
    memory_file_count = kept;
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (open_files[i].file) abort(); // a descriptor was not closed
}

const char *fuzz_file_put(const char *path, const void *data, size_t size) {
    MemoryFile *file = file_find(path);
    if (!file && !(file = file_new(path))) abort();
    free(file->data);
    file->data = malloc(size);
    if (size) memcpy(file->data, data, size);
    file->size = size;
    return path;
}

void fuzz_files_fix(void) {
    for (int i = 0; i < memory_file_count; i++)
        memory_files[i].fixed = true;
}

const void *fuzz_file_get(const char *path, size_t *size) {
    const MemoryFile *file = file_find(path);
    if (!file) return NULL;
    *size = file->size;
    return file->data;
}

// ---- in the place of the system -------------------------------------------------------------------------------------

#define WRAP(result, name, ...)        \
    result __real_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__)

static OpenFile *ours(int fd) {
    return fd >= FIRST_DESCRIPTOR && fd < FIRST_DESCRIPTOR + OPEN_MAX_FILES ? &open_files[fd - FIRST_DESCRIPTOR] : NULL;
}

static int fail(int error) {
    errno = error;
    return -1;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!is_ours(path)) return __real_open(path, flags, mode);
    static MemoryFile directory = {.directory = true}; // opened to be synced
    MemoryFile *file = file_find(path);
    if (file && (flags & O_CREAT) && (flags & O_EXCL)) return fail(EEXIST);
    if (!file && directory_exists(path)) file = &directory;
    if (!file && !(flags & O_CREAT)) return fail(ENOENT);
    if (!file && !(file = file_new(path))) return fail(ENOSPC);
    if (flags & O_TRUNC) file->size = 0;
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (!open_files[i].file) {
            open_files[i] = (OpenFile){.file = file, .append = flags & O_APPEND};
            return FIRST_DESCRIPTOR + i;
        }
    return fail(EMFILE);
}

WRAP(int, close, int fd) {
    OpenFile *open = ours(fd);
    if (!open) return __real_close(fd);
    if (!open->file) abort(); // closed twice
    open->file = NULL;
    return 0;
}

static ssize_t bytes_read_at(const OpenFile *open, void *data, size_t size, size_t at) {
    size_t left = at < open->file->size ? open->file->size - at : 0;
    if (size > left) size = left;
    if (size) memcpy(data, open->file->data + at, size);
    return (ssize_t)size;
}

WRAP(ssize_t, read, int fd, void *data, size_t size) {
    OpenFile *open = ours(fd);
    if (!open) return __real_read(fd, data, size);
    ssize_t n = bytes_read_at(open, data, size, open->at);
    open->at += (size_t)n;
    return n;
}

WRAP(ssize_t, pread, int fd, void *data, size_t size, off_t at) {
    OpenFile *open = ours(fd);
    if (!open) return __real_pread(fd, data, size, at);
    return at < 0 ? fail(EINVAL) : bytes_read_at(open, data, size, (size_t)at);
}

static int file_resize(MemoryFile *file, size_t size) {
    if (size > (size_t)1 << 24) return fail(EFBIG);
    uint8_t *data = malloc(size);
    if (size) memset(data, 0, size);
    if (size && file->size) memcpy(data, file->data, file->size < size ? file->size : size);
    free(file->data);
    file->data = data;
    file->size = size;
    return 0;
}

static ssize_t bytes_write_at(OpenFile *open, const void *data, size_t size, size_t at) {
    if (at + size > open->file->size && file_resize(open->file, at + size)) return -1;
    if (size) memcpy(open->file->data + at, data, size);
    return (ssize_t)size;
}

WRAP(ssize_t, write, int fd, const void *data, size_t size) {
    OpenFile *open = ours(fd);
    if (!open) return __real_write(fd, data, size);
    if (open->append) open->at = open->file->size;
    ssize_t n = bytes_write_at(open, data, size, open->at);
    if (n > 0) open->at += (size_t)n;
    return n;
}

WRAP(ssize_t, pwrite, int fd, const void *data, size_t size, off_t at) {
    OpenFile *open = ours(fd);
    if (!open) return __real_pwrite(fd, data, size, at);
    return at < 0 ? fail(EINVAL) : bytes_write_at(open, data, size, (size_t)at);
}

WRAP(off_t, lseek, int fd, off_t offset, int whence) {
    OpenFile *open = ours(fd);
    if (!open) return __real_lseek(fd, offset, whence);
    off_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (off_t)open->at : (off_t)open->file->size;
    if (offset < -base) return fail(EINVAL);
    open->at = (size_t)(base + offset);
    return base + offset;
}

WRAP(int, ftruncate, int fd, off_t size) {
    OpenFile *open = ours(fd);
    if (!open) return __real_ftruncate(fd, size);
    return size < 0 ? fail(EINVAL) : file_resize(open->file, (size_t)size);
}

WRAP(int, fsync, int fd) {
    return ours(fd) ? 0 : __real_fsync(fd);
}

WRAP(int, flock, int fd, int operation) {
    return ours(fd) ? 0 : __real_flock(fd, operation);
}

WRAP(int, posix_fadvise, int fd, off_t offset, off_t size, int advice) {
    return ours(fd) ? 0 : __real_posix_fadvise(fd, offset, size, advice);
}

WRAP(void *, mmap, void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    OpenFile *open = ours(fd);
    if (!open) return __real_mmap(address, size, protection, flags, fd, offset);
    return open->file->data;
}

WRAP(int, munmap, void *address, size_t size) {
    for (int i = 0; i < memory_file_count; i++)
        if (memory_files[i].data == address) return 0;
    return __real_munmap(address, size);
}

static int file_stat(const MemoryFile *file, bool directory, struct stat *info) {
    *info = (struct stat){.st_mode = directory ? S_IFDIR | 0755 : S_IFREG | 0644,
                          .st_dev = 1,
                          .st_ino = file ? (ino_t)(file - memory_files) + 2 : 1,
                          .st_nlink = 1,
                          .st_size = file ? (off_t)file->size : 0};
    return 0;
}

static int path_stat(const char *path, struct stat *info) {
    const MemoryFile *file = file_find(path);
    if (file && !file->directory) return file_stat(file, false, info);
    return directory_exists(path) ? file_stat(NULL, true, info) : fail(ENOENT);
}

WRAP(int, stat, const char *path, struct stat *info) {
    return is_ours(path) ? path_stat(path, info) : __real_stat(path, info);
}

WRAP(int, lstat, const char *path, struct stat *info) {
    return is_ours(path) ? path_stat(path, info) : __real_lstat(path, info);
}

WRAP(int, fstat, int fd, struct stat *info) {
    OpenFile *open = ours(fd);
    return open ? file_stat(open->file, open->file->directory, info) : __real_fstat(fd, info);
}

WRAP(int, statvfs, const char *path, struct statvfs *info) {
    if (!is_ours(path)) return __real_statvfs(path, info);
    *info = (struct statvfs){.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 20, .f_bavail = 1 << 20};
    return 0;
}

WRAP(int, mkdir, const char *path, mode_t mode) {
    if (!is_ours(path)) return __real_mkdir(path, mode);
    if (file_find(path) || directory_exists(path)) return fail(EEXIST);
    MemoryFile *file = file_new(path);
    if (!file) return fail(ENOSPC);
    file->directory = true;
    return 0;
}

WRAP(int, unlink, const char *path) {
    if (!is_ours(path)) return __real_unlink(path);
    MemoryFile *file = file_find(path);
    if (!file) return fail(ENOENT);
    file->path[0] = 0;
    return 0;
}

WRAP(int, rmdir, const char *path) {
    return is_ours(path) ? __wrap_unlink(path) : __real_rmdir(path);
}

WRAP(int, rename, const char *from, const char *to) {
    if (!is_ours(from)) return __real_rename(from, to);
    MemoryFile *file = file_find(from), *over = file_find(to);
    if (!file) return fail(ENOENT);
    if (strlen(to) >= sizeof file->path) return fail(ENAMETOOLONG);
    if (over) over->path[0] = 0;
    strcpy(file->path, to);
    return 0;
}

typedef int (*EntryFilter)(const struct dirent *);
typedef int (*EntryOrder)(const struct dirent **, const struct dirent **);
WRAP(int, scandir, const char *path, struct dirent ***entries, EntryFilter filter, EntryOrder order) {
    if (!is_ours(path)) return __real_scandir(path, entries, filter, order);
    if (!directory_exists(path)) return fail(ENOENT);
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        length--;
    int count = 0;
    *entries = malloc(FILES_MAX * sizeof **entries);
    for (int i = 0; i < memory_file_count; i++) {
        const char *name = memory_files[i].path;
        if (strncmp(name, path, length) != 0 || name[length] != '/' || !name[length + 1]) continue;
        struct dirent entry = {.d_ino = 2};
        size_t part = strcspn(name + length + 1, "/");
        memcpy(entry.d_name, name + length + 1, part);
        bool known = false;
        for (int k = 0; k < count; k++)
            known = known || strcmp((*entries)[k]->d_name, entry.d_name) == 0;
        if (known || (filter && !filter(&entry))) continue;
        (*entries)[count] = malloc(sizeof entry);
        *(*entries)[count++] = entry;
    }
    if (order) qsort(*entries, (size_t)count, sizeof **entries, (int (*)(const void *, const void *))order);
    return count;
}

// ---- threads
// ---------------------------------------------------------------------------------------------------------

FuzzThreads fuzz_threads = FUZZ_THREADS_REAL;

WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    if (fuzz_threads == FUZZ_THREADS_REAL) return __real_pthread_create(thread, attributes, run, argument);
    if (fuzz_threads == FUZZ_THREADS_NONE) return EAGAIN;
    run(argument);
    *thread = 0;
    return 0;
}

WRAP(int, pthread_join, pthread_t thread, void **result) {
    return fuzz_threads == FUZZ_THREADS_INLINE ? 0 : __real_pthread_join(thread, result);
}
