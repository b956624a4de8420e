// A progress line on stderr: rewritten in place on a terminal, a plain line every ten seconds otherwise.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Progress {
    const char *what;
    bool quiet, terminal, shown;
    double start, last; // seconds
    double first_share; // where a resumed run began
    uint64_t first_documents, first_bytes;
} Progress;

Progress progress_start(const char *what, bool quiet, double share, uint64_t documents, uint64_t bytes);
// share: of the work, 0..1. Does nothing until it is time for the next line.
void progress_update(Progress *progress, double share, uint64_t documents, uint64_t bytes, uint64_t tokens);
void progress_end(Progress *progress, uint64_t documents, uint64_t bytes, uint64_t tokens); // a last line that stays
