// The settings in which runs differ, and what came of them: `hearth runs compare` and the page of `hearth serve`.
#pragma once

#include "watch/document.h"
#include "watch/run_read.h"
#include "watch/run_summary.h"

typedef struct RunCompared {
    RunSummary summary;
    RunRecord settings; // of which only these were read
} RunCompared;

Status run_compared_read(RunCompared *run, const char *directory);
void run_compared_free(RunCompared *run);
Document *run_compare(const RunCompared *runs, int count); // free with document_free
