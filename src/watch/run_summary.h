// A run directory in figures, for lists and comparisons of runs.
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "watch/run_state.h"

typedef struct RunPoint { // of a step
    double tokens, loss;
} RunPoint;

typedef struct RunSummary {
    char *directory, *name;
    RunState state;
    char *message;             // why it failed; NULL: nothing to say
    int64_t step, tokens;      // of the last line
    int64_t size, checkpoints; // bytes of the directory, and of checkpoints/ in it
    double loss;               // mean of the last steps; NaN: none
    double val_loss;           // of the last validation; NaN: none
    double tok_s, mfu;         // medians without the first steps; NaN: not known
    double memory_bytes;       // the most; NaN: not known
    double seconds;            // of all steps
    double joules;             // that the GPU of rank 0 took, by its counter; NaN: not known
    double changed;            // seconds since 1970 when a line was last written, else when the directory was
    int64_t skipped, alarms;
    RunPoint *points; // of all steps with a finite loss
    size_t point_count;
} RunSummary;

bool run_directory_is(const char *path); // has a config.toml
// What lists of runs look for in a folder, where there is nothing to list.
#define RUNS_LOOKED_FOR "folders directly in it that have a config.toml, no deeper"
// metrics.jsonl may be missing or still growing.
Status run_summary_read(RunSummary *summary, const char *directory);
void run_summary_free(RunSummary *summary);
json_t *run_summary_json(const RunSummary *summary); // the caller's; figures that are not known are null
// Mean of the losses of the last steps up to so many tokens; NaN where there are none.
double run_summary_loss_at(const RunSummary *summary, double tokens);
int64_t directory_bytes(const char *path); // on the disk, all that is below it; links are not followed
