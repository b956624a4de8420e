// Documents from any mix of files, directories and globs, one after the other, in bounded memory:
//   .txt              one document a file (with `lines`: one a line)
//   .jsonl, .ndjson   one a line, a string field by name
//   .parquet          one a row, a string column by name
// The first two also as .gz and .zst. Directories are searched with their subdirectories; files come in sorted order of
// each input, inputs in the order given. Documents are well-formed UTF-8; what is not counts as a bad record.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READER_DOCUMENT_LIMIT ((size_t)64 << 20) // bytes of one document; a larger one is a bad record

typedef struct ReaderOptions {
    const char *field; // NULL: "text"
    const char *score; // a numeric field or column to read with each document, or NULL
    bool lines;        // .txt: a document a line
    bool skip_bad;     // count and skip bad records instead of failing; compressed files are then verified first
    bool sampled;      // only the start of each file is wanted: nothing is verified
} ReaderOptions;

typedef struct Document {
    const char *text; // valid until the next call
    size_t length;
    double score;
    bool has_score;
} Document;

typedef struct ReaderCounts {
    uint64_t documents; // handed out
    uint64_t nulls;     // rows whose text is null
    uint64_t bad;       // skipped by skip_bad
    uint64_t damaged;   // compressed files of which the rest, or all, was skipped by it
} ReaderCounts;

typedef struct ReaderPosition {
    uint64_t file;   // index into the list of files
    uint64_t record; // records of that file already seen, bad and null ones included
} ReaderPosition;

typedef struct Reader Reader;

Status reader_open(Reader **reader, const ReaderOptions *options, const char *const *inputs, size_t count);
Status reader_next(Reader *reader, Document *document, bool *more); // *more is false at the end
Status reader_seek(Reader *reader, ReaderPosition position); // before the first reader_next only; counts stay zero
ReaderPosition reader_position(const Reader *reader);        // behind the last document
ReaderCounts reader_counts(const Reader *reader);
void reader_close(Reader *reader);

size_t reader_file_count(const Reader *reader);
const char *reader_file(const Reader *reader, size_t index);
int64_t reader_file_bytes(const Reader *reader, size_t index);
int64_t reader_total_bytes(const Reader *reader);    // of all files, as they lie on disk
int64_t reader_consumed_bytes(const Reader *reader); // of them read so far, for progress
