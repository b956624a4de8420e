// Any bytes as a gzip and as a zstd file, with buffers small enough for short inputs to cross their borders: what the
// first reading says is sound is what the second gives out.
#define CHUNK_BYTES ((size_t)64)
#include "data/reader_stream.c"
#include "fuzz_files.h"

#define OUTPUT_MAX 65536 // a few bytes can stand for very many

static void stream_try(const char *path) {
    ByteStream *stream = xcalloc(1, sizeof *stream);
    stream->limit = UINT64_MAX;
    stream->path = text_copy(path);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    Status status = stream_start(stream, false); // no thread starts here
    if (status && stream->chunks[0].data) {
        Chunk *chunk = &stream->chunks[0];
        uint64_t sound[2], output[2];
        for (int reading = 0; reading < 2; reading++) {
            status_free(status);
            do {
                status = chunk_fill(stream, chunk);
                if (chunk->size > CHUNK_BYTES || stream->sound > stream->output + chunk->size) abort();
            } while (!status && chunk->size > 0 && stream->output < OUTPUT_MAX);
            sound[reading] = stream->sound;
            output[reading] = stream->output;
            status_free(status);
            status = stream_rewind(stream);
        }
        if (sound[0] != sound[1] || output[0] != output[1]) abort();
    }
    status_free(status);
    stream_close(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_threads = FUZZ_THREADS_NONE;
    if (size && data[0] & 1) // 0x1f begins a gzip file, 0x28 or 0x50 a zstd frame
        stream_try(fuzz_file_put("/mem/input.gz", data, size));
    else
        stream_try(fuzz_file_put("/mem/input.zst", data, size));
    fuzz_files_clear();
    return 0;
}
