// Any bytes as a text file, whole and line by line, and as JSON lines: read to the end, and from the middle the same.
#define CHUNK_BYTES ((size_t)64)
#include "data/reader_stream.c"
#include "fuzz_files.h"

#include "data/reader.h"

#include <xxhash.h>

// Documents behind `from` records, hashed in order.
static uint64_t documents_read(const char *path, const ReaderOptions *options, uint64_t from, uint64_t *records) {
    Reader *reader;
    Document document;
    bool more = true;
    uint64_t hash = 0;
    Status status = reader_open(&reader, options, &path, 1);
    if (!status && from) status = reader_seek(reader, (ReaderPosition){0, from});
    while (!status && more) {
        *records = reader_position(reader).record;
        status = reader_next(reader, &document, &more);
        if (!status && more) hash = XXH64(document.text, document.length, hash);
    }
    status_free(status);
    reader_close(reader);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const paths[] = {"/mem/in/text.txt", "/mem/in/lines.jsonl"};
    for (int i = 0; i < 2; i++) {
        fuzz_file_put(paths[i], data, size);
        uint64_t records = 0, again = 0;
        ReaderOptions options = {.lines = true, .skip_bad = true};
        uint64_t all = documents_read(paths[i], &options, 0, &records);
        if (documents_read(paths[i], &options, 0, &again) != all || again != records) abort();
        if (records > 1) documents_read(paths[i], &options, records / 2, &again);
        documents_read(paths[i], &(ReaderOptions){0}, 0, &records);
    }
    fuzz_files_clear();
    return 0;
}
