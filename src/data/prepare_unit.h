// Units: the journal of `prepare`. A unit is a file of tokenized documents sorted by hash, with a header that says how
// far reading had come and what had been counted. Units appear whole or not at all, so the last one is where work
// resumes; all of them together are the runs of an external merge sort by hash, which is the shuffle.
//
//   UnitHeader, UnitRecord[record_count], tokens of the records in the same order
#pragma once

#include "data/prepare_dedup.h"
#include "data/reader.h"

typedef struct PrepareCounts {              // since the very beginning
    uint64_t read, read_bytes;              // documents with text, and their bytes
    uint64_t nulls, bad, damaged, empty;    // damaged: files, see reader.h
    uint64_t low_score, length, duplicates; // left out by a filter
    uint64_t documents, tokens, text_bytes; // kept
    uint64_t longest;                       // tokens of the longest document kept
    uint64_t extra;                         // tokens to read beyond the targets, found missing by a first gather
} PrepareCounts;

typedef enum UnitComplete {
    UNIT_MORE = 0,   // reading goes on behind it
    UNIT_ENOUGH = 1, // the targets can be filled
    UNIT_END = 2,    // the input ends here
} UnitComplete;

typedef struct UnitHeader {
    char magic[8];
    uint32_t version, token_bytes;
    uint64_t record_count, token_count;
    ReaderPosition after; // where reading goes on
    PrepareCounts counts;
    uint64_t complete; // UnitComplete
    uint64_t records_checksum, tokens_checksum;
    uint64_t checksum; // of the bytes before it
} UnitHeader;

typedef struct UnitRecord {
    DocumentHash hash;
    uint32_t token_count, text_bytes;
} UnitRecord;

char *unit_path(const char *directory, size_t index); // malloc'd
// Opens and checks a unit; the caller closes *fd.
Status unit_open(const char *path, UnitHeader *header, int *fd);

// Documents collected for the next unit.
typedef struct UnitBuffer UnitBuffer;
UnitBuffer *unit_buffer_new(uint32_t token_bytes);
void unit_buffer_free(UnitBuffer *buffer);
void unit_buffer_add(UnitBuffer *buffer, DocumentHash hash, uint32_t text_bytes, const uint32_t *ids, size_t count);
size_t unit_buffer_bytes(const UnitBuffer *buffer);
// Writes what was collected as unit `index` and empties the buffer.
Status unit_buffer_write(UnitBuffer *buffer, const char *directory, size_t index, ReaderPosition after,
                         const PrepareCounts *counts, UnitComplete complete);

// All units merged: records in order of their hash, equal ones in order of reading.
typedef struct UnitMerge UnitMerge;
Status unit_merge_open(UnitMerge **merge, const char *directory, size_t unit_count);
// ids: valid until the next call. *more is false at the end.
Status unit_merge_next(UnitMerge *merge, UnitRecord *record, const uint32_t **ids, bool *more);
void unit_merge_close(UnitMerge *merge);
