// Any bytes as a Parquet file: a status or rows, with and without a score column.
#include "data/reader_source.h"
#include "fuzz_files.h"

#define ROWS_MAX 2000 // a few bytes can stand for billions of equal rows

static void rows_read(const char *path, const ReaderOptions *options) {
    Source *source;
    Status status = source_open_parquet(&source, path, options);
    for (int i = 0; i < ROWS_MAX && !status; i++) {
        Document document;
        RecordKind kind;
        bool resumable;
        status = source->next(source, &document, &kind, &resumable);
        if (status && resumable) {
            status_free(status);
            status = NULL;
        } else if (!status && kind == RECORD_END) {
            break;
        }
    }
    status_free(status);
    if (source) source->close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file(data, size);
    rows_read(path, &(ReaderOptions){0});
    rows_read(path, &(ReaderOptions){.score = "score"});
    fuzz_files_clear();
    return 0;
}
