#include "data/prepare_unit.h"

#include "base/file.h"
#include "base/io.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#define UNIT_MAGIC   "HEARTHUN"
#define UNIT_VERSION 2
#define WRITE_BYTES  ((size_t)1 << 20)
#define MERGE_MEMORY ((size_t)192 << 20) // shared by the buffers of all runs
#ifndef MERGE_BUFFER_MAX                 // the fuzz target has small ones, whose borders short inputs cross
#define MERGE_BUFFER_MAX ((size_t)1 << 20)
#define MERGE_BUFFER_MIN ((size_t)4 << 10)
#endif

static_assert(sizeof(UnitRecord) == 24, "records are written as they are");

char *unit_path(const char *directory, size_t index) {
    return text_format("%s/unit-%06zu", directory, index);
}

static uint64_t header_checksum(const UnitHeader *header) {
    return XXH64(header, offsetof(UnitHeader, checksum), 0);
}

#define UNIT_HINT "start again with --overwrite"

static Status unit_damaged(const char *path) {
    return status_hint(status_usage("%s is damaged", path), UNIT_HINT);
}

Status unit_open(const char *path, UnitHeader *header, int *fd) {
    *fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (*fd < 0) return status_errno("cannot open %s", path);
    struct stat info;
    Status status = fstat(*fd, &info) ? status_errno("cannot stat %s", path) : NULL;
    bool sound = !status && info.st_size >= (off_t)sizeof *header;
    if (sound) status = bytes_read(*fd, header, sizeof *header, 0, path); // a disk that fails is no damage
    sound = sound && !status && memcmp(header->magic, UNIT_MAGIC, 8) == 0;
    bool other = sound && header->version != UNIT_VERSION;
    sound = sound && !other && header->checksum == header_checksum(header);
    if (sound) {
        uint64_t left = (uint64_t)info.st_size - sizeof *header, width = header->token_bytes;
        sound = (width == 2 || width == 4) && header->record_count <= left / sizeof(UnitRecord);
        if (sound) left -= header->record_count * sizeof(UnitRecord);
        sound = sound && left % width == 0 && header->token_count == left / width;
    }
    if (sound) return NULL;
    io_close(*fd);
    *fd = -1;
    if (status) return status;
    return other ? status_hint(status_usage("%s was written by another version of hearth", path), UNIT_HINT)
                 : unit_damaged(path);
}

// --- writing --------------------------------------------------------------------------------------------------------

typedef struct Entry {
    UnitRecord record;
    uint64_t offset; // of its tokens in `tokens`, in bytes
} Entry;

struct UnitBuffer {
    uint32_t token_bytes;
    Entry *entries;
    size_t count, capacity;
    char *tokens;
    size_t bytes, bytes_capacity;
};

UnitBuffer *unit_buffer_new(uint32_t token_bytes) {
    UnitBuffer *buffer = xcalloc(1, sizeof *buffer);
    buffer->token_bytes = token_bytes;
    return buffer;
}

void unit_buffer_free(UnitBuffer *buffer) {
    if (!buffer) return;
    free(buffer->entries);
    free(buffer->tokens);
    free(buffer);
}

void unit_buffer_add(UnitBuffer *buffer, DocumentHash hash, uint32_t text_bytes, const uint32_t *ids, size_t count) {
    if (buffer->count == buffer->capacity) {
        buffer->capacity = buffer->capacity ? buffer->capacity * 2 : 1024;
        buffer->entries = xrealloc(buffer->entries, buffer->capacity * sizeof *buffer->entries);
    }
    size_t bytes = count * buffer->token_bytes;
    if (buffer->bytes_capacity < buffer->bytes + bytes) {
        buffer->bytes_capacity = (buffer->bytes + bytes) * 3 / 2 + WRITE_BYTES;
        buffer->tokens = xrealloc(buffer->tokens, buffer->bytes_capacity);
    }
    buffer->entries[buffer->count++] = (Entry){{hash, (uint32_t)count, text_bytes}, buffer->bytes};
    char *to = buffer->tokens + buffer->bytes;
    if (buffer->token_bytes == 4) {
        memcpy(to, ids, bytes);
    } else {
        uint16_t *narrow = (uint16_t *)to;
        for (size_t i = 0; i < count; i++)
            narrow[i] = (uint16_t)ids[i];
    }
    buffer->bytes += bytes;
}

size_t unit_buffer_bytes(const UnitBuffer *buffer) {
    return buffer->bytes + buffer->count * sizeof(Entry);
}

static int entry_order(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    int order = document_hash_compare(x->record.hash, y->record.hash);
    return order ? order : x->offset < y->offset ? -1 : x->offset > y->offset;
}

typedef struct UnitOutput { // collects pieces to writes of WRITE_BYTES
    int fd;
    const char *path;
    char *data;
    size_t used;
} UnitOutput;

static Status unit_output_flush(UnitOutput *output) {
    size_t bytes = output->used;
    output->used = 0;
    return file_write_all(output->fd, output->data, bytes, output->path);
}

static Status unit_output_add(UnitOutput *output, const void *data, size_t bytes) {
    if (output->used + bytes > WRITE_BYTES) TRY(unit_output_flush(output));
    if (bytes > WRITE_BYTES) return file_write_all(output->fd, data, bytes, output->path);
    memcpy(output->data + output->used, data, bytes);
    output->used += bytes;
    return NULL;
}

static Status entries_write(const UnitBuffer *buffer, UnitOutput *output) {
    for (size_t i = 0; i < buffer->count; i++)
        TRY(unit_output_add(output, &buffer->entries[i].record, sizeof(UnitRecord)));
    for (size_t i = 0; i < buffer->count; i++)
        TRY(unit_output_add(output, buffer->tokens + buffer->entries[i].offset,
                            (size_t)buffer->entries[i].record.token_count * buffer->token_bytes));
    return unit_output_flush(output);
}

// What entries_write will write.
static void entries_checksum(const UnitBuffer *buffer, UnitHeader *header) {
    XXH64_state_t *digest = memory_or_exit(XXH64_createState(), 88);
    XXH64_reset(digest, 0);
    for (size_t i = 0; i < buffer->count; i++)
        XXH64_update(digest, &buffer->entries[i].record, sizeof(UnitRecord));
    header->records_checksum = XXH64_digest(digest);
    XXH64_reset(digest, 0);
    for (size_t i = 0; i < buffer->count; i++)
        XXH64_update(digest, buffer->tokens + buffer->entries[i].offset,
                     (size_t)buffer->entries[i].record.token_count * buffer->token_bytes);
    header->tokens_checksum = XXH64_digest(digest);
    XXH64_freeState(digest);
}

Status unit_buffer_write(UnitBuffer *buffer, const char *directory, size_t index, ReaderPosition after,
                         const PrepareCounts *counts, UnitComplete complete) {
    if (buffer->count) qsort(buffer->entries, buffer->count, sizeof *buffer->entries, entry_order);
    UnitHeader header = {.version = UNIT_VERSION,
                         .token_bytes = buffer->token_bytes,
                         .record_count = buffer->count,
                         .token_count = buffer->bytes / buffer->token_bytes,
                         .after = after,
                         .counts = *counts,
                         .complete = complete};
    memcpy(header.magic, UNIT_MAGIC, 8);
    entries_checksum(buffer, &header);
    header.checksum = header_checksum(&header);
    char *path = unit_path(directory, index), *partial = text_format("%s.partial", path);
    Status status = NULL;
    int fd = io_open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = status_errno("cannot write %s", partial);
    } else {
        UnitOutput output = {.fd = fd, .path = partial, .data = xmalloc(WRITE_BYTES)};
        status = unit_output_add(&output, &header, sizeof header);
        if (!status) status = entries_write(buffer, &output);
        if (status)
            file_discard(fd, partial);
        else
            status = file_publish(fd, partial, path);
        free(output.data);
    }
    buffer->count = buffer->bytes = 0;
    free(path);
    free(partial);
    return status;
}

// --- merging --------------------------------------------------------------------------------------------------------

typedef struct Stream { // a part of a unit file, read through a buffer
    uint64_t offset, end;
    char *data;
    size_t at, size;
    XXH64_state_t *digest; // of what was read
    uint64_t checksum;     // that it must have at the end
} Stream;

typedef struct Run {
    int fd;
    uint32_t token_bytes;
    uint64_t left; // records not yet looked at
    Stream records, tokens;
    UnitRecord record; // the next one
} Run;

struct UnitMerge {
    char *directory;
    Run *runs;
    size_t run_count;
    size_t *heap; // runs with records left, the least first
    size_t heap_count;
    size_t buffer_bytes;
    uint32_t *ids;
    char *narrow;
    size_t ids_capacity;
};

static Status unit_unread(const UnitMerge *merge, const Run *run, bool failed) {
    int error = errno;
    char *path = unit_path(merge->directory, (size_t)(run - merge->runs));
    errno = error;
    Status status =
        failed ? status_errno("cannot read %s", path) : status_runtime("%s became shorter while it was read", path);
    free(path);
    return status;
}

static Status run_damaged(const UnitMerge *merge, const Run *run) {
    char *path = unit_path(merge->directory, (size_t)(run - merge->runs));
    Status status = unit_damaged(path);
    free(path);
    return status;
}

// Checksums are known to hold only at the end: no record may claim more tokens than are left of its unit.
static Status record_check(const UnitMerge *merge, const Run *run) {
    uint64_t left = run->tokens.end - run->tokens.offset + (run->tokens.size - run->tokens.at);
    return run->record.token_count <= left / run->token_bytes ? NULL : run_damaged(merge, run);
}

static Status stream_take(UnitMerge *merge, const Run *run, Stream *stream, void *out, size_t bytes) {
    char *to = out;
    while (bytes > 0) {
        if (stream->at == stream->size) {
            uint64_t left = stream->end - stream->offset;
            size_t wanted = left < merge->buffer_bytes ? (size_t)left : merge->buffer_bytes;
            ssize_t n = io_read_at(run->fd, stream->data, wanted, (int64_t)stream->offset);
            if (n <= 0) return unit_unread(merge, run, n < 0);
            stream->offset += (uint64_t)n;
            stream->size = (size_t)n;
            stream->at = 0;
            XXH64_update(stream->digest, stream->data, (size_t)n);
            if (stream->offset == stream->end && XXH64_digest(stream->digest) != stream->checksum)
                return run_damaged(merge, run);
        }
        size_t now = stream->size - stream->at < bytes ? stream->size - stream->at : bytes;
        memcpy(to, stream->data + stream->at, now);
        stream->at += now;
        to += now;
        bytes -= now;
    }
    return NULL;
}

static bool run_before(const UnitMerge *merge, size_t a, size_t b) {
    int order = document_hash_compare(merge->runs[a].record.hash, merge->runs[b].record.hash);
    return order ? order < 0 : a < b;
}

static void heap_sink(UnitMerge *merge, size_t at) {
    for (;;) {
        size_t least = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < merge->heap_count; child++) {
            if (run_before(merge, merge->heap[child], merge->heap[least])) least = child;
        }
        if (least == at) return;
        size_t moved = merge->heap[at];
        merge->heap[at] = merge->heap[least];
        merge->heap[least] = moved;
        at = least;
    }
}

static Stream stream_make(const UnitMerge *merge, uint64_t offset, uint64_t end, uint64_t checksum) {
    Stream stream = {.offset = offset, .end = end, .data = xmalloc(merge->buffer_bytes), .checksum = checksum};
    stream.digest = memory_or_exit(XXH64_createState(), 88);
    XXH64_reset(stream.digest, 0);
    return stream;
}

static void stream_free(Stream *stream) {
    if (stream->digest) XXH64_freeState(stream->digest);
    free(stream->data);
}

static Status run_open(UnitMerge *merge, size_t index) {
    Run *run = &merge->runs[index];
    UnitHeader header;
    char *path = unit_path(merge->directory, index);
    Status status = unit_open(path, &header, &run->fd);
    free(path);
    TRY(status);
    uint64_t tokens = sizeof header + header.record_count * sizeof(UnitRecord);
    run->token_bytes = header.token_bytes;
    run->left = header.record_count;
    run->records = stream_make(merge, sizeof header, tokens, header.records_checksum);
    run->tokens = stream_make(merge, tokens, tokens + header.token_count * header.token_bytes, header.tokens_checksum);
    if (run->left == 0) return NULL;
    merge->heap[merge->heap_count++] = index;
    return stream_take(merge, run, &run->records, &run->record, sizeof run->record);
}

// Every unit is open while they are merged; the usual soft limit of 1,024 files is often below the hard one.
static void file_limit_raise(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

Status unit_merge_open(UnitMerge **out, const char *directory, size_t unit_count) {
    UnitMerge *merge = xcalloc(1, sizeof *merge);
    file_limit_raise();
    merge->directory = text_copy(directory);
    merge->runs = xcalloc(unit_count, sizeof *merge->runs);
    merge->heap = xcalloc(unit_count, sizeof *merge->heap);
    merge->run_count = unit_count;
    for (size_t i = 0; i < unit_count; i++)
        merge->runs[i].fd = -1;
    merge->buffer_bytes = MERGE_MEMORY / (2 * (unit_count + 1));
    if (merge->buffer_bytes > MERGE_BUFFER_MAX) merge->buffer_bytes = MERGE_BUFFER_MAX;
    if (merge->buffer_bytes < MERGE_BUFFER_MIN) merge->buffer_bytes = MERGE_BUFFER_MIN;
    Status status = NULL;
    for (size_t i = 0; i < unit_count && !status; i++)
        status = run_open(merge, i);
    for (size_t i = merge->heap_count; i-- > 0 && !status;)
        heap_sink(merge, i);
    if (status) {
        unit_merge_close(merge);
        merge = NULL;
    }
    *out = merge;
    return status;
}

Status unit_merge_next(UnitMerge *merge, UnitRecord *record, const uint32_t **ids, bool *more) {
    *more = merge->heap_count > 0;
    if (!*more) return NULL;
    Run *run = &merge->runs[merge->heap[0]];
    size_t count = run->record.token_count;
    TRY(record_check(merge, run));
    *record = run->record;
    if (merge->ids_capacity < count) {
        merge->ids_capacity = count + count / 2;
        merge->ids = xrealloc(merge->ids, merge->ids_capacity * 4);
        merge->narrow = xrealloc(merge->narrow, merge->ids_capacity * 2);
    }
    if (run->token_bytes == 4) {
        TRY(stream_take(merge, run, &run->tokens, merge->ids, count * 4));
    } else {
        TRY(stream_take(merge, run, &run->tokens, merge->narrow, count * 2));
        const uint16_t *narrow = (const uint16_t *)merge->narrow;
        for (size_t i = 0; i < count; i++)
            merge->ids[i] = narrow[i];
    }
    *ids = merge->ids;
    if (--run->left > 0) {
        TRY(stream_take(merge, run, &run->records, &run->record, sizeof run->record));
    } else {
        merge->heap[0] = merge->heap[--merge->heap_count];
    }
    heap_sink(merge, 0);
    return NULL;
}

void unit_merge_close(UnitMerge *merge) {
    if (!merge) return;
    for (size_t i = 0; i < merge->run_count; i++) {
        if (merge->runs[i].fd >= 0) io_close(merge->runs[i].fd);
        stream_free(&merge->runs[i].records);
        stream_free(&merge->runs[i].tokens);
    }
    free(merge->runs);
    free(merge->heap);
    free(merge->ids);
    free(merge->narrow);
    free(merge->directory);
    free(merge);
}
