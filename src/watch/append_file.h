// A file that grows by whole records: a reader that follows it never sees half of one for long, and what a full disk
// does not take is kept until there is room.
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct AppendFile AppendFile;

Status append_open(AppendFile **file, const char *path);
// One write per record. One that cannot be written is kept in memory, up to 16 MiB of them, and written before the next
// one that can: the status tells of the failure, not of a loss. step: what the record is about.
Status append_record(AppendFile *file, const void *data, size_t size, int64_t step);
void append_close(AppendFile *file); // tries once more what could not be written; NULL is fine

typedef struct AppendMissing {
    int64_t records, first_step, last_step;
} AppendMissing;
AppendMissing append_missing(AppendFile *file); // in the file, after one more try
