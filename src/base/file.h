// Files: whole-file reads, read-only maps, replacement that a crash cannot tear, paths and directories.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct FileMapped FileMapped;

typedef struct FileMap {
    const void *data; // NULL for an empty file
    size_t size;
    FileMapped *mapped; // file.c's own
} FileMap;

// Read-only, shared. A file that is cut short while it is mapped ends the program at the first use of what is gone,
// with its name and exit code 1.
Status file_map(FileMap *map, const char *path);
void file_unmap(FileMap *map);

Status file_read(char **data, size_t *size, const char *path);                   // malloc'd, NUL-terminated beyond size
Status file_read_most(char **data, size_t *size, const char *path, size_t most); // more than `most` bytes: an error
// What lies from `offset` on, at most `most` bytes of it: *size is 0 where the file ends before. As above otherwise.
Status file_read_from(char **data, size_t *size, const char *path, int64_t offset, size_t most);
// Writes beside the target, fsyncs, renames over it, fsyncs the directory: readers see the old or the new file, whole.
Status file_write_atomic(const char *path, const void *data, size_t size);
// Adds to the end of a file, all of it or nothing; processes that do so at the same time do not mix. Not synced.
Status file_append(const char *path, const void *data, size_t size);
// Removes what a process that was killed inside file_write_atomic(path) left beside it. Only the one writer may call
// it.
void file_remove_leftovers(const char *path);

bool file_exists(const char *path); // anything at that path
bool file_is_directory(const char *path);
Status file_size(int64_t *size, const char *path);
Status file_sync(const char *path); // fsync of a file or a directory
Status file_sync_descriptor(int fd, const char *path);
Status file_write_all(int fd, const void *data, size_t size, const char *path); // loops over short writes
Status file_write_all_at(int fd, const void *data, size_t size, int64_t offset, const char *path); // likewise
// The end of writing `beside`: fsync, close, rename to path, fsync of the directory. When it fails before the rename,
// `beside` is removed.
Status file_publish(int fd, const char *beside, const char *path);
void file_discard(int fd, const char *beside); // closes and removes it

// Takes a lock file for as long as this process lives or until file_unlock; *fd is -1 when that fails. Another holder
// is an error that names `what`; a holder that was killed holds nothing.
Status file_lock(int *fd, const char *path, const char *what);
void file_unlock(int *fd);
bool file_is_locked(const char *path); // by any process; looks without making the file

Status dir_make(const char *path);   // like mkdir -p, and what is made is there after a crash
Status dir_remove(const char *path); // like rm -rf; a missing directory is fine
const char *dir_temporary(void);     // TMPDIR, or /tmp
// Sorted names (no "." or ".."), malloc'd strings in a malloc'd array.
Status dir_list(char ***names, size_t *count, const char *path);
void names_free(char **names, size_t count);

char *path_join(const char *directory, const char *name); // malloc'd; an absolute name is returned as it is
char *path_absolute(const char *path);                    // malloc'd; links and patterns stay as they are
// The topmost part of a path that is not there (malloc'd), NULL when all of it is: what a failed command has to remove.
char *path_first_missing(const char *path);
char *path_directory(const char *path);  // malloc'd; "." when there is none
const char *path_name(const char *path); // the part after the last '/'
// Whether it is the folder or lies in it, by the names alone; both as realpath gives them.
bool path_is_within(const char *path, const char *folder);
Status disk_free_bytes(int64_t *bytes, const char *path);
