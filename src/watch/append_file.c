// Appending whole records, and keeping what a full disk did not take.
#include "watch/append_file.h"

#include "base/file.h"
#include "base/io.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct AppendFile {
    char *path;
    int fd;
    int64_t size;       // of the whole records
    bool torn;          // the file ends with a part of a record that could not be written
    TextBuffer waiting; // records that could not be written yet, each behind its head, at most WAITING_MOST bytes
    AppendMissing dropped;
};

typedef struct RecordHead {
    int64_t size, step;
} RecordHead;

#define WAITING_MOST ((size_t)16 << 20)

Status append_open(AppendFile **out, const char *path) {
    *out = NULL;
    int fd = io_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return status_errno("cannot write %s", path);
    int64_t size = lseek(fd, 0, SEEK_END);
    if (size < 0) {
        Status status = status_errno("cannot read the size of %s", path);
        io_close(fd);
        return status;
    }
    AppendFile *file = xmalloc(sizeof *file);
    *file = (AppendFile){.path = text_copy(path), .fd = fd, .size = size};
    *out = file;
    return NULL;
}

// What a record left that could not be written whole must go, or the next one would be spoiled by it.
static Status torn_record_drop(AppendFile *file) {
    if (file->torn && io_truncate(file->fd, file->size))
        return status_errno("cannot cut %s back to whole records", file->path);
    file->torn = false;
    return NULL;
}

static Status waiting_write(AppendFile *file) {
    TextBuffer *waiting = &file->waiting;
    size_t done = 0;
    Status status = waiting->length ? torn_record_drop(file) : NULL;
    while (!status && done < waiting->length) {
        RecordHead head;
        memcpy(&head, waiting->data + done, sizeof head);
        status = file_write_all(file->fd, waiting->data + done + sizeof head, (size_t)head.size, file->path);
        file->torn = status != NULL;
        if (status)
            status_free(torn_record_drop(file)); // else before the next record
        else
            file->size += head.size, done += sizeof head + (size_t)head.size;
    }
    if (done) memmove(waiting->data, waiting->data + done, waiting->length - done + 1);
    waiting->length -= done;
    return status;
}

static void missing_add(AppendMissing *missing, int64_t step) {
    if (!missing->records || step < missing->first_step) missing->first_step = step;
    if (!missing->records || step > missing->last_step) missing->last_step = step;
    missing->records++;
}

// What cannot be written waits for the next one, in its order.
Status append_record(AppendFile *file, const void *data, size_t size, int64_t step) {
    RecordHead head = {(int64_t)size, step};
    if (file->waiting.length + sizeof head + size > WAITING_MOST) {
        missing_add(&file->dropped, step);
    } else {
        text_buffer_add(&file->waiting, (const char *)&head, sizeof head);
        text_buffer_add(&file->waiting, data, size);
    }
    return waiting_write(file);
}

AppendMissing append_missing(AppendFile *file) {
    status_free(waiting_write(file));
    AppendMissing missing = file->dropped;
    RecordHead head;
    for (size_t at = 0; at < file->waiting.length; at += sizeof head + (size_t)head.size) {
        memcpy(&head, file->waiting.data + at, sizeof head);
        missing_add(&missing, head.step);
    }
    return missing;
}

void append_close(AppendFile *file) {
    if (!file) return;
    status_free(waiting_write(file));
    text_buffer_free(&file->waiting);
    io_close(file->fd);
    free(file->path);
    free(file);
}
