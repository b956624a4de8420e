// While it comes in, a file lies beside its place as NAME.partial, with NAME.parts: a header and one byte per range
// that is done. The size and hash are checked before it gets its name.
#include "data/pull_file.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "data/pull_sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef HASH_BYTES // the fuzz target has fewer
#define HASH_BYTES ((size_t)1 << 20)
#endif

typedef struct PartsHeader { // NAME.parts: what its bytes are about; anything else and the download starts again
    char magic[8];
    int64_t size, part_bytes;
    char sha256[65];
    char padding[7];
} PartsHeader;

typedef struct Download {
    const PullFile *file;
    char *partial, *parts;
    int fd, parts_fd;
    uint8_t *done; // [part_count]
    size_t part_count, next;
    int64_t fetched;
    Status failure;
    pthread_mutex_t lock;
    double started, shown;
} Download;

static Status bytes_write(void *context, int64_t offset, const void *data, size_t size) {
    Download *download = context;
    TRY(file_write_all_at(download->fd, data, size, offset, download->partial));
    pthread_mutex_lock(&download->lock);
    download->fetched += (int64_t)size;
    double now = clock_seconds();
    bool show = !download->file->quiet && isatty(STDERR_FILENO) && now - download->shown > 0.2;
    if (show) {
        download->shown = now;
        char have[32], all[32];
        fprintf(stderr, "\r\033[K%s: %s of %s, %.1f MB/s", path_name(download->file->remote->shown),
                text_gib(have, (double)download->fetched), text_gib(all, (double)download->file->remote->size),
                (double)download->fetched / (now - download->started) / 1e6);
    }
    pthread_mutex_unlock(&download->lock);
    return NULL;
}

static Status part_fetch(Download *download, Http *http, size_t part) {
    int64_t size = download->file->remote->size, start = (int64_t)part * download->file->part_bytes;
    int64_t end = start + download->file->part_bytes < size ? start + download->file->part_bytes : size;
    TRY(http_get_range(http, download->file->url, start, end, size, bytes_write, download));
    const uint8_t one = 1;
    return file_write_all_at(download->parts_fd, &one, 1, (int64_t)(sizeof(PartsHeader) + part), download->parts);
}

static void *fetch_main(void *argument) {
    Download *download = argument;
    Http *http = NULL;
    Status status = http_open(&http, download->file->settings);
    while (!status) {
        pthread_mutex_lock(&download->lock);
        while (download->next < download->part_count && download->done[download->next])
            download->next++;
        size_t part = download->failure ? download->part_count : download->next++;
        pthread_mutex_unlock(&download->lock);
        if (part >= download->part_count) break;
        status = part_fetch(download, http, part);
    }
    http_close(http);
    if (status) {
        pthread_mutex_lock(&download->lock);
        if (download->failure) {
            status_free(status);
        } else {
            download->failure = status;
        }
        pthread_mutex_unlock(&download->lock);
    }
    return NULL;
}

static Status parts_fetch(Download *download) {
    int wanted = download->file->parallel;
    if ((size_t)wanted > download->part_count) wanted = (int)download->part_count;
    pthread_t *threads = xcalloc((size_t)wanted + 1, sizeof *threads);
    int started = 0;
    while (started < wanted && pthread_create(&threads[started], NULL, fetch_main, download) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    if (download->failure) {
        Status status = download->failure;
        download->failure = NULL;
        return status;
    }
    return started || !wanted ? NULL
                              : status_runtime("cannot start a thread to fetch %s", download->file->remote->shown);
}

// Takes up the parts that an earlier try finished, or starts from nothing.
static Status parts_open(Download *download) {
    const RemoteFile *remote = download->file->remote;
    PartsHeader header = {"HEARTHPT", remote->size, download->file->part_bytes, "", ""}, before;
    memcpy(header.sha256, remote->sha256, sizeof header.sha256);
    download->part_count = (size_t)((remote->size + header.part_bytes - 1) / header.part_bytes);
    download->done = xcalloc(download->part_count + 1, 1);
    download->fd = io_open(download->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    download->parts_fd = io_open(download->parts, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (download->fd < 0 || download->parts_fd < 0) return status_errno("cannot write %s", download->partial);
    if (io_read_at(download->parts_fd, &before, sizeof before, 0) == (ssize_t)sizeof before &&
        memcmp(&before, &header, sizeof header) == 0) {
        if (io_read_at(download->parts_fd, download->done, download->part_count, sizeof header) < 0) {
            return status_errno("cannot read %s", download->parts);
        }
        return NULL;
    }
    if (io_truncate(download->parts_fd, 0) != 0 || io_truncate(download->fd, 0) != 0)
        return status_errno("cannot write %s", download->parts);
    return file_write_all_at(download->parts_fd, &header, sizeof header, 0, download->parts);
}

static Status hash_check(Download *download) {
    const RemoteFile *remote = download->file->remote;
    if (!remote->sha256[0]) return NULL;
    Sha256 sha;
    char hex[65], *buffer = xmalloc(HASH_BYTES);
    sha256_start(&sha);
    Status status = NULL;
    for (int64_t at = 0; at < remote->size;) {
        ssize_t n = io_read_at(download->fd, buffer, HASH_BYTES, at);
        if (n == 0) errno = EIO; // shorter than it was made
        if (n <= 0) {
            status = status_errno("cannot read %s", download->partial);
            break;
        }
        sha256_add(&sha, buffer, (size_t)n);
        at += n;
    }
    free(buffer);
    TRY(status);
    sha256_hex(&sha, hex);
    if (strcmp(hex, remote->sha256) == 0) return NULL;
    return status_runtime("%s: what came has the SHA-256 %s, the hub says %s", remote->shown, hex, remote->sha256);
}

static Status download_run(Download *download) {
    TRY(parts_open(download));
    TRY(parts_fetch(download));
    if (io_truncate(download->fd, download->file->remote->size) != 0)
        return status_errno("cannot write %s", download->partial);
    TRY(file_sync_descriptor(download->fd, download->partial));
    Status status = hash_check(download);
    if (status) { // nothing of it can be trusted
        io_unlink(download->partial);
        io_unlink(download->parts);
        return status;
    }
    if (io_rename(download->partial, download->file->local) != 0)
        return status_errno("cannot rename %s", download->partial);
    io_unlink(download->parts);
    char *directory = path_directory(download->file->local);
    status = file_sync(directory);
    free(directory);
    return status;
}

static Status download_once(const PullFile *file, int64_t *fetched) {
    Download download = {.file = file, .fd = -1, .parts_fd = -1, .started = clock_seconds()};
    download.partial = text_format("%s.partial", file->local);
    download.parts = text_format("%s.parts", file->local);
    pthread_mutex_init(&download.lock, NULL);
    Status status = download_run(&download);
    *fetched += download.fetched;
    if (download.shown > 0) fprintf(stderr, "\r\033[K");
    if (download.fd >= 0) io_close(download.fd);
    if (download.parts_fd >= 0) io_close(download.parts_fd);
    pthread_mutex_destroy(&download.lock);
    free(download.done);
    free(download.partial);
    free(download.parts);
    return status;
}

Status pull_file(const PullFile *file, int64_t *fetched, bool *present) {
    int64_t size = -1;
    *fetched = 0;
    *present = false;
    if (file_exists(file->local)) {
        TRY(file_size(&size, file->local));
        *present = size == file->remote->size; // it got its name after its hash was checked
        if (*present) return NULL;
        return status_hint(status_usage("%s is there with %lld bytes; the hub has %lld", file->local, (long long)size,
                                        (long long)file->remote->size),
                           "move it away or choose another --output");
    }
    char *directory = path_directory(file->local);
    Status status = dir_make(directory);
    free(directory);
    TRY(status);
    status = download_once(file, fetched);
    char *partial = text_format("%s.partial", file->local);
    bool damaged = status && !file_exists(partial); // only a wrong hash throws it away
    free(partial);
    if (damaged) {
        log_warn("%s; fetching it once more", status_message(status));
        status_free(status);
        status = download_once(file, fetched);
    }
    return status;
}
