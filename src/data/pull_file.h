// The download of one file in parallel ranges.
#pragma once

#include "data/pull_http.h"
#include "data/pull_list.h"

typedef struct PullFile {
    const RemoteFile *remote;
    const char *url, *local;
    const HttpSettings *settings;
    int parallel;
    int64_t part_bytes;
    bool quiet;
} PullFile;

// *fetched: bytes that came over the wire and were kept. A file that is already there with the right size is left
// alone.
Status pull_file(const PullFile *file, int64_t *fetched, bool *present);
