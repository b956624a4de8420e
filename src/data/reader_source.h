// What a reader of one file offers to reader.c: records one by one.
#pragma once

#include "data/reader.h"

typedef enum RecordKind { RECORD_DOCUMENT, RECORD_NULL, RECORD_END } RecordKind;

typedef struct Source Source;
struct Source {
    // A failed record is a Status; afterwards *resumable says whether next may be called for the record behind it.
    Status (*next)(Source *source, Document *document, RecordKind *kind, bool *resumable);
    int64_t (*consumed)(const Source *source); // bytes of the file read so far
    void (*close)(Source *source);
    // Of the failed record:
    uint64_t lost; // records that cannot be read with it, it included, where they are known; 0: it alone
    bool damaged;  // compressed data that does not decode, and no record at all
};

Status source_open_text(Source **source, const char *path, const ReaderOptions *options);
Status source_open_jsonl(Source **source, const char *path, const ReaderOptions *options);
Status source_open_parquet(Source **source, const char *path, const ReaderOptions *options);
