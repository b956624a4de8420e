// Files and directories over POSIX calls. Every failure names the path; a path that is not there is the user's error.
#include "base/file.h"

#include "base/io.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// A path that a user named: a missing file is the user's error, the rest is the system's.
static Status open_failed(const char *path) {
    if (errno == ENOENT || errno == ENOTDIR) return status_usage("no such file or directory: %s", path);
    return status_errno("cannot open %s", path);
}

// ---- maps ----------------------------------------------------------------------------------------------------------

struct FileMapped { // of a map that is open, so that a fault in it can name its file
    const char *data;
    size_t size;
    FileMapped *before, *next;
    char path[];
};

static FileMapped *mapped_first;
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction mapped_action_before;

// A page of a map is gone: the file was cut short, or its disk failed. The thread cannot go on, and nothing but the
// name of the file is left to save: checkpoints are whole at any moment.
static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    const char *at = info->si_addr;
    sigaction(SIGBUS, &mapped_action_before,
              NULL); // another fault, or one elsewhere, ends the program as it would have
    for (const FileMapped *map = mapped_first; map; map = map->next) {
        if (at < map->data || at >= map->data + map->size) continue;
        char line[4600];
        int length = snprintf(line, sizeof line,
                              "hearth: error: %.4096s was cut short or became unreadable while it was in use (byte "
                              "%zu of %zu)\n  hint: put the file back; what a run has written is intact, and --resume "
                              "goes on from it\n",
                              map->path, (size_t)(at - map->data), map->size);
        if (write(STDERR_FILENO, line, (size_t)length) >= 0) _exit(1);
        _exit(1);
    }
}

static FileMapped *mapped_add(const char *path, const void *data, size_t size) {
    FileMapped *map = xmalloc(sizeof *map + strlen(path) + 1);
    *map = (FileMapped){.data = data, .size = size};
    strcpy(map->path, path);
    pthread_mutex_lock(&mapped_lock);
    static bool caught;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    if (!caught) sigaction(SIGBUS, &action, &mapped_action_before);
    caught = true;
    map->next = mapped_first;
    if (map->next) map->next->before = map;
    mapped_first = map;
    pthread_mutex_unlock(&mapped_lock);
    return map;
}

static void mapped_remove(FileMapped *map) {
    pthread_mutex_lock(&mapped_lock);
    if (map->next) map->next->before = map->before;
    *(map->before ? &map->before->next : &mapped_first) = map->next;
    pthread_mutex_unlock(&mapped_lock);
    free(map);
}

Status file_map(FileMap *map, const char *path) {
    *map = (FileMap){0};
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return open_failed(path);
    struct stat info;
    Status status = NULL;
    if (fstat(fd, &info))
        status = status_errno("cannot stat %s", path);
    else if (!S_ISREG(info.st_mode))
        status = status_usage("not a regular file: %s", path);
    else if (info.st_size > 0) {
        void *data = io_map(fd, (size_t)info.st_size);
        if (data == MAP_FAILED)
            status = status_errno("cannot map %s", path);
        else
            *map = (FileMap){data, (size_t)info.st_size, mapped_add(path, data, (size_t)info.st_size)};
    }
    io_close(fd);
    return status;
}

void file_unmap(FileMap *map) {
    if (map->mapped) mapped_remove(map->mapped);
    if (map->data) munmap((void *)map->data, map->size);
    *map = (FileMap){0};
}

Status file_read(char **data, size_t *size, const char *path) {
    return file_read_most(data, size, path, SIZE_MAX);
}

Status file_read_most(char **data, size_t *size, const char *path, size_t most) {
    *data = NULL;
    *size = 0;
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return open_failed(path);
    TextBuffer buffer = {0};
    char chunk[65536];
    ssize_t n = 0;
    while (buffer.length <= most && (n = io_read(fd, chunk, sizeof chunk)) > 0)
        text_buffer_add(&buffer, chunk, (size_t)n);
    Status status = n < 0 ? status_errno("cannot read %s", path) : NULL;
    if (!status && buffer.length > most)
        status = status_usage("%s is larger than %zu MiB, and no file of this kind", path, most >> 20);
    io_close(fd);
    if (status) {
        text_buffer_free(&buffer);
        return status;
    }
    text_buffer_add(&buffer, "", 0);
    *data = buffer.data;
    *size = buffer.length;
    return NULL;
}

Status file_read_from(char **data, size_t *size, const char *path, int64_t offset, size_t most) {
    *data = NULL;
    *size = 0;
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return open_failed(path);
    TextBuffer buffer = {0};
    char chunk[65536];
    ssize_t n = 0;
    text_buffer_add(&buffer, "", 0);
    while (buffer.length < most) {
        size_t left = most - buffer.length;
        n = io_read_at(fd, chunk, left < sizeof chunk ? left : sizeof chunk, offset + (int64_t)buffer.length);
        if (n <= 0) break;
        text_buffer_add(&buffer, chunk, (size_t)n);
    }
    Status status = n < 0 ? status_errno("cannot read %s", path) : NULL;
    io_close(fd);
    if (status) {
        text_buffer_free(&buffer);
        return status;
    }
    *data = buffer.data;
    *size = buffer.length;
    return NULL;
}

Status file_write_all(int fd, const void *data, size_t size, const char *path) {
    const char *at = data;
    while (size) {
        ssize_t n = io_write(fd, at, size < (1u << 30) ? size : (1u << 30));
        if (n == 0) errno = EIO; // nothing was taken, and no reason given
        if (n <= 0) return status_errno("cannot write %s", path);
        at += n;
        size -= (size_t)n;
    }
    return NULL;
}

Status file_write_all_at(int fd, const void *data, size_t size, int64_t offset, const char *path) {
    const char *at = data;
    while (size) {
        ssize_t n = io_write_at(fd, at, size < (1u << 30) ? size : (1u << 30), offset);
        if (n == 0) errno = EIO; // nothing was taken, and no reason given
        if (n <= 0) return status_errno("cannot write %s", path);
        at += n;
        offset += n;
        size -= (size_t)n;
    }
    return NULL;
}

Status file_sync_descriptor(int fd, const char *path) {
    return io_sync(fd) ? status_errno("cannot flush %s to disk", path) : NULL;
}

Status file_sync(const char *path) {
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return open_failed(path);
    Status status = file_sync_descriptor(fd, path);
    io_close(fd);
    return status;
}

static Status directory_sync_of(const char *path) {
    char *directory = path_directory(path);
    Status status = file_sync(directory);
    free(directory);
    return status;
}

Status file_publish(int fd, const char *beside, const char *path) {
    Status status = file_sync_descriptor(fd, beside);
    if (io_close(fd) && !status) status = status_errno("cannot close %s", beside);
    if (!status && io_rename(beside, path)) status = status_errno("cannot rename %s to %s", beside, path);
    if (!status) return directory_sync_of(path);
    io_unlink(beside);
    return status;
}

void file_discard(int fd, const char *beside) {
    io_close(fd);
    io_unlink(beside);
}

Status file_write_atomic(const char *path, const void *data, size_t size) {
    static atomic_int serial; // two threads may replace the same file: the later rename wins, neither file is torn
    char *beside = text_format("%s.tmp-%d-%d", path, (int)getpid(), atomic_fetch_add(&serial, 1));
    int fd = io_open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    Status status = fd < 0 ? status_errno("cannot create %s", beside) : file_write_all(fd, data, size, beside);
    if (fd >= 0 && status)
        file_discard(fd, beside);
    else if (!status)
        status = file_publish(fd, beside, path);
    free(beside);
    return status;
}

Status file_append(const char *path, const void *data, size_t size) {
    int fd = io_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return status_errno("cannot write %s", path);
    while (flock(fd, LOCK_EX) && errno == EINTR) // where there are no locks, a torn line is all that can come of it
        continue;
    off_t before = lseek(fd, 0, SEEK_END);
    Status status = file_write_all(fd, data, size, path);
    if (status && before >= 0) io_truncate(fd, before);
    if (io_close(fd) && !status) status = status_errno("cannot close %s", path);
    return status;
}

void file_remove_leftovers(const char *path) {
    char *directory = path_directory(path), *prefix = text_format("%s.tmp-", path_name(path)), **names;
    size_t count;
    Status status = dir_list(&names, &count, directory);
    for (size_t i = 0; !status && i < count; i++) {
        if (!text_starts_with(names[i], prefix)) continue;
        char *leftover = path_join(directory, names[i]);
        io_unlink(leftover);
        free(leftover);
    }
    if (!status) names_free(names, count);
    status_free(status);
    free(prefix);
    free(directory);
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

Status file_size(int64_t *size, const char *path) {
    struct stat info;
    if (stat(path, &info)) return open_failed(path);
    *size = info.st_size;
    return NULL;
}

Status file_lock(int *fd, const char *path, const char *what) {
    *fd = io_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) return status_errno("cannot create %s", path);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return NULL;
    bool held = errno == EWOULDBLOCK;
    Status status = held ? status_usage("%s is in use by another process", what) : status_errno("cannot lock %s", path);
    file_unlock(fd);
    return status;
}

void file_unlock(int *fd) {
    if (*fd >= 0) io_close(*fd);
    *fd = -1;
}

bool file_is_locked(const char *path) {
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return false;
    bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    io_close(fd);
    return locked;
}

Status dir_make(const char *path) {
    if (!path[0]) return status_usage("the path of a directory is empty");
    char *partial = text_copy(path);
    Status status = NULL;
    for (char *at = partial + 1; !status; at++) {
        if (*at && *at != '/') continue;
        char kept = *at;
        *at = 0;
        if (io_mkdir(partial, 0755) == 0) {
            status = directory_sync_of(partial);
            if (status) io_rmdir(partial); // or a second try would find it and leave it unsynced
        } else if (!(errno == EEXIST && file_is_directory(partial)))
            status = status_errno("cannot create directory %s", partial);
        *at = kept;
        if (!kept) break;
    }
    free(partial);
    return status;
}

Status dir_list(char ***names, size_t *count, const char *path) {
    *names = NULL;
    *count = 0;
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) return open_failed(path);
    *names = xcalloc((size_t)n + 1, sizeof **names);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) (*names)[(*count)++] = text_copy(name);
        free(entries[i]);
    }
    free(entries);
    return NULL;
}

void names_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

Status dir_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info)) return errno == ENOENT ? NULL : status_errno("cannot stat %s", path);
    if (!S_ISDIR(info.st_mode)) return io_unlink(path) ? status_errno("cannot remove %s", path) : NULL;
    char **names;
    size_t count;
    TRY(dir_list(&names, &count, path));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        char *child = path_join(path, names[i]);
        status = dir_remove(child);
        free(child);
    }
    names_free(names, count);
    if (!status && io_rmdir(path)) status = status_errno("cannot remove %s", path);
    return status;
}

const char *dir_temporary(void) {
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/tmp";
}

char *path_join(const char *directory, const char *name) {
    if (name[0] == '/' || !directory[0]) return text_copy(name);
    return text_format("%s%s%s", directory, text_ends_with(directory, "/") ? "" : "/", name);
}

char *path_absolute(const char *path) {
    char *folder = path[0] == '/' ? NULL : getcwd(NULL, 0);
    if (!folder) return text_copy(path);
    while (path[0] == '.' && path[1] == '/')
        path += 2 + strspn(path + 2, "/");
    char *whole = path_join(folder, path);
    free(folder);
    return whole;
}

char *path_first_missing(const char *path) {
    char *partial = text_copy(path), *first = NULL;
    for (char *at = partial + (partial[0] != 0); !first; at++) {
        if (*at && *at != '/') continue;
        char kept = *at;
        *at = 0;
        if (!file_exists(partial)) first = text_copy(partial);
        *at = kept;
        if (!kept) break;
    }
    free(partial);
    return first;
}

char *path_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return text_copy(".");
    return slash == path ? text_copy("/") : text_copy_n(path, (size_t)(slash - path));
}

bool path_is_within(const char *path, const char *folder) {
    size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder); // the one that ends in what follows the others
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]);
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

Status disk_free_bytes(int64_t *bytes, const char *path) {
    struct statvfs info;
    if (statvfs(path, &info)) return status_errno("cannot read the free space of %s", path);
    *bytes = (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    return NULL;
}
