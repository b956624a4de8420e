#include "data/reader_stream.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#if HEARTH_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEARTH_HAVE_ZSTD
#include <zstd.h>
#endif

#ifndef CHUNK_BYTES // the fuzz target has small ones, whose borders short inputs cross
#define CHUNK_BYTES ((size_t)1 << 20)
#endif
#define CHUNK_COUNT 4

typedef enum Codec { CODEC_PLAIN, CODEC_GZIP, CODEC_ZSTD } Codec;

typedef struct Chunk {
    char *data; // [CHUNK_BYTES]
    size_t size;
    int64_t consumed; // of the compressed file, when the chunk was full
} Chunk;

struct ByteStream {
    char *path;
    int fd;
    Codec codec;
    char *input; // [CHUNK_BYTES] compressed bytes
    size_t input_at, input_size;
    int64_t input_offset; // file offset behind the input buffer
    int64_t consumed;
    bool frame_open; // inside a gzip member or zstd frame: the file must not end here
    uint64_t output; // decompressed bytes of the chunks before the one being filled
    uint64_t sound;  // of all decompressed bytes those up to the last end of a member or frame
#if HEARTH_HAVE_ZLIB
    z_stream gzip;
#endif
#if HEARTH_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    // A ring of chunks between the decompressing thread and the caller; a plain file uses chunks[0] without a thread.
    Chunk chunks[CHUNK_COUNT];
    uint64_t produced, taken; // chunks so far; the caller holds chunk taken - 1
    bool threaded, finished, stopping;
    Status failure;        // delivered after the chunks before it
    uint64_t given, limit; // decompressed bytes handed out; where a verified file ends to be sound
    Status damage;         // delivered there
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static Status input_fill(ByteStream *stream) {
    ssize_t n;
    do {
        n = read(stream->fd, stream->input, CHUNK_BYTES);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return status_errno("cannot read %s", stream->path);
    stream->input_at = 0;
    stream->input_size = (size_t)n;
    stream->input_offset += n;
    return NULL;
}

// A decoder notices damage late: a checksum that fails stands behind all that it covers.
static Status stream_damaged(const ByteStream *stream, const char *what) {
    const char *format = stream->codec == CODEC_GZIP ? "gzip" : "zstd";
    long long offset = stream->input_offset - (int64_t)(stream->input_size - stream->input_at);
    Status status = status_usage("damaged %s data at or before byte %lld of the file: %s", format, offset, what);
    return status_hint(status_at(status, stream->path, 0, 0),
                       "fetch the file again; --skip-bad leaves out what cannot be trusted");
}

#if HEARTH_HAVE_ZLIB
static Status gzip_step(ByteStream *stream, Chunk *chunk) {
    z_stream *gzip = &stream->gzip;
    gzip->next_in = (Bytef *)stream->input + stream->input_at;
    gzip->avail_in = (uInt)(stream->input_size - stream->input_at);
    gzip->next_out = (Bytef *)chunk->data + chunk->size;
    gzip->avail_out = (uInt)(CHUNK_BYTES - chunk->size);
    stream->frame_open = true;
    int result = inflate(gzip, Z_NO_FLUSH);
    stream->input_at = stream->input_size - gzip->avail_in;
    chunk->size = CHUNK_BYTES - gzip->avail_out;
    if (result == Z_STREAM_END) { // another member may follow
        stream->frame_open = false;
        stream->sound = stream->output + chunk->size;
        inflateReset(gzip);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return stream_damaged(stream, gzip->msg ? gzip->msg : "not a gzip stream");
    }
    return NULL;
}
#endif

#if HEARTH_HAVE_ZSTD
static Status zstd_step(ByteStream *stream, Chunk *chunk) {
    ZSTD_inBuffer in = {stream->input, stream->input_size, stream->input_at};
    ZSTD_outBuffer out = {chunk->data, CHUNK_BYTES, chunk->size};
    size_t result = ZSTD_decompressStream(stream->zstd, &out, &in);
    stream->input_at = in.pos;
    chunk->size = out.pos;
    if (ZSTD_isError(result)) return stream_damaged(stream, ZSTD_getErrorName(result));
    stream->frame_open = result != 0;
    if (!stream->frame_open) stream->sound = stream->output + chunk->size;
    return NULL;
}
#endif

static Status decompress_step(ByteStream *stream, Chunk *chunk) {
#if HEARTH_HAVE_ZLIB
    if (stream->codec == CODEC_GZIP) return gzip_step(stream, chunk);
#endif
#if HEARTH_HAVE_ZSTD
    if (stream->codec == CODEC_ZSTD) return zstd_step(stream, chunk);
#endif
    (void)stream, (void)chunk;
    return NULL;
}

// Fills one chunk; an empty one means the end.
static Status chunk_fill(ByteStream *stream, Chunk *chunk) {
    chunk->size = 0;
    while (chunk->size < CHUNK_BYTES) {
        size_t before = chunk->size, at = stream->input_at;
        if (at < stream->input_size || stream->frame_open) TRY(decompress_step(stream, chunk));
        if (stream->input_at < stream->input_size || chunk->size > before) {
            if (stream->input_at == at && chunk->size == before) return stream_damaged(stream, "no progress");
            continue;
        }
        TRY(input_fill(stream));
        if (stream->input_size == 0) {
            if (stream->frame_open) return stream_damaged(stream, "the file ends in the middle");
            break;
        }
    }
    chunk->consumed = stream->input_offset - (int64_t)(stream->input_size - stream->input_at);
    stream->output += chunk->size;
    return NULL;
}

static Status stream_rewind(ByteStream *stream) {
    if (lseek(stream->fd, 0, SEEK_SET) != 0) return status_errno("cannot read %s again", stream->path);
    stream->input_at = stream->input_size = 0;
    stream->input_offset = 0;
    stream->output = stream->sound = 0;
    stream->frame_open = false;
#if HEARTH_HAVE_ZLIB
    if (stream->codec == CODEC_GZIP) inflateReset(&stream->gzip);
#endif
#if HEARTH_HAVE_ZSTD
    if (stream->codec == CODEC_ZSTD) ZSTD_initDStream(stream->zstd);
#endif
    return NULL;
}

static Status stream_verify(ByteStream *stream) {
    Chunk *chunk = &stream->chunks[0];
    Status status;
    do {
        status = chunk_fill(stream, chunk);
    } while (!status && chunk->size > 0);
    if (status && status_code(status) == STATUS_RUNTIME) return status;
    stream->damage = status;
    if (status) stream->limit = stream->sound;
    return stream_rewind(stream);
}

static void *decompress_main(void *argument) {
    ByteStream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&stream->lock);
        // One chunk of the ring is in the caller's hands, so only CHUNK_COUNT - 1 may be waiting.
        while (!stream->stopping && stream->produced - stream->taken >= CHUNK_COUNT - 1)
            pthread_cond_wait(&stream->changed, &stream->lock);
        bool stop = stream->stopping;
        pthread_mutex_unlock(&stream->lock);
        if (stop) return NULL;
        Chunk *chunk = &stream->chunks[stream->produced % CHUNK_COUNT];
        Status status = chunk_fill(stream, chunk);
        pthread_mutex_lock(&stream->lock);
        if (chunk->size > 0) stream->produced++;
        stream->failure = status;
        stream->finished = status || chunk->size == 0;
        bool finished = stream->finished;
        pthread_cond_signal(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        if (finished) return NULL;
    }
}

static Status codec_start(ByteStream *stream) {
    if (text_ends_with(stream->path, ".gz")) {
#if HEARTH_HAVE_ZLIB
        stream->codec = CODEC_GZIP;
        if (inflateInit2(&stream->gzip, 15 + 32) != Z_OK) return status_runtime("zlib could not start");
#else
        return status_usage("%s: this hearth was built without zlib, so it cannot read .gz files", stream->path);
#endif
    } else if (text_ends_with(stream->path, ".zst")) {
#if HEARTH_HAVE_ZSTD
        stream->codec = CODEC_ZSTD;
        stream->zstd = ZSTD_createDStream();
        if (!stream->zstd) return status_runtime("zstd could not start");
#else
        return status_usage("%s: this hearth was built without zstd, so it cannot read .zst files", stream->path);
#endif
    }
    return NULL;
}

static Status stream_start(ByteStream *stream, bool verify) {
    stream->fd = open(stream->path, O_RDONLY | O_CLOEXEC);
    if (stream->fd < 0) {
        if (errno == ENOENT) return status_usage("no such file: %s", stream->path);
        return status_errno("cannot open %s", stream->path);
    }
    TRY(codec_start(stream));
    posix_fadvise(stream->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    stream->input = xmalloc(CHUNK_BYTES);
    if (stream->codec == CODEC_PLAIN) return NULL;
    for (int i = 0; i < CHUNK_COUNT; i++)
        stream->chunks[i].data = xmalloc(CHUNK_BYTES);
    if (verify) TRY(stream_verify(stream));
    if (pthread_create(&stream->thread, NULL, decompress_main, stream) != 0) {
        return status_runtime("cannot start a thread to decompress %s", stream->path);
    }
    stream->threaded = true;
    return NULL;
}

Status stream_open(ByteStream **out, const char *path, bool verify) {
    ByteStream *stream = xcalloc(1, sizeof *stream);
    stream->limit = UINT64_MAX;
    stream->path = text_copy(path);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    Status status = stream_start(stream, verify);
    if (status) {
        stream_close(stream);
        stream = NULL;
    }
    *out = stream;
    return status;
}

Status stream_next(ByteStream *stream, const char **data, size_t *size) {
    *data = NULL;
    *size = 0;
    if (!stream->threaded) {
        TRY(input_fill(stream));
        *data = stream->input;
        *size = stream->input_size;
        stream->consumed = stream->input_offset;
        return NULL;
    }
    Status status = NULL;
    if (stream->given == stream->limit) {
        status = stream->damage;
        stream->damage = NULL;
        return status;
    }
    pthread_mutex_lock(&stream->lock);
    while (stream->taken == stream->produced && !stream->finished)
        pthread_cond_wait(&stream->changed, &stream->lock);
    if (stream->taken < stream->produced) {
        const Chunk *chunk = &stream->chunks[stream->taken % CHUNK_COUNT];
        *data = chunk->data;
        *size = chunk->size < stream->limit - stream->given ? chunk->size : (size_t)(stream->limit - stream->given);
        stream->given += *size;
        stream->consumed = chunk->consumed;
        stream->taken++;
        pthread_cond_signal(&stream->changed);
    } else {
        status = stream->failure;
        stream->failure = NULL;
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

Status stream_drain(ByteStream *stream) {
    const char *data;
    size_t size = 1;
    while (stream->threaded && size > 0) // only compressed files have a thread, and something to verify
        TRY(stream_next(stream, &data, &size));
    return NULL;
}

bool stream_is_compressed(const ByteStream *stream) {
    return stream->codec != CODEC_PLAIN;
}

int64_t stream_consumed(const ByteStream *stream) {
    return stream->consumed;
}

void stream_close(ByteStream *stream) {
    if (!stream) return;
    if (stream->threaded) {
        pthread_mutex_lock(&stream->lock);
        stream->stopping = true;
        pthread_cond_signal(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        pthread_join(stream->thread, NULL);
    }
    status_free(stream->failure);
    status_free(stream->damage);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
#if HEARTH_HAVE_ZLIB
    if (stream->codec == CODEC_GZIP) inflateEnd(&stream->gzip);
#endif
#if HEARTH_HAVE_ZSTD
    ZSTD_freeDStream(stream->zstd);
#endif
    for (int i = 0; i < CHUNK_COUNT; i++)
        free(stream->chunks[i].data);
    free(stream->input);
    if (stream->fd >= 0) close(stream->fd);
    free(stream->path);
    free(stream);
}
