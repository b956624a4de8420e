// What a run directory says, read for a report: metrics.jsonl, alarms.jsonl, samples.jsonl, config.toml, plan.json and
// environment.json. A run that is still being written, a line that a crash tore, unknown keys and values that make no
// sense are passed over; figures that are missing are NaN.
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "plan/step_model.h"

typedef struct RunStep {
    int64_t step;
    double tokens, loss, lr, norm, rate, tflops, mfu, memory, memory_fraction, data_wait, comm_wait, seconds;
    double memory_own;                // of memory, what hearth asked for; NaN: the line does not say
    double time;                      // seconds of wall clock since the run began, over all of its processes
    double accum;                     // micro-batches
    double clock, power, temperature; // of rank 0's GPU: MHz, W, degrees C
    double throttled, capped;         // share of the time: by heat or a fault, at its power limit
    double energy;                    // J that it took since the line before
    bool skipped;
    int split; // into RunRecord.splits; -1: not taken apart
} RunStep;

typedef struct RunSplit {
    double seconds[STEP_LAUNCH]; // of the step, by kind of operation (plan/step_model.h: the first parts)
} RunSplit;

typedef struct RunEval {
    int64_t step;
    double tokens, time, loss, perplexity, bits_per_byte;
    bool full;
} RunEval;

typedef struct RunLoad { // of experts, in one step
    int64_t step;
    int layers;
    double *most; // [layers] busiest expert over the mean
    double *dead; // [layers] experts without a token
} RunLoad;

typedef struct RunSample {
    int64_t step;
    char *prompt, *text;
} RunSample;

typedef struct RunAlarm {
    int64_t step;
    char *message, *advice;
} RunAlarm;

typedef struct RunSetting {
    char *key, *value; // "train.seq", "256"
} RunSetting;

typedef struct RunRecord {
    char *path, *name;
    RunStep *steps;
    RunSplit *splits;
    RunEval *evals;
    RunLoad *loads;
    RunSample *samples;
    RunAlarm *alarms;
    RunSetting *settings; // of config.toml, in its order
    size_t step_count, split_count, eval_count, load_count, sample_count, alarm_count, setting_count;
    json_t *plan, *environment; // an object and a list of objects; NULL: not there or damaged
    json_t *profile;            // profile/summary.json; likewise
    size_t lines_passed_over;
} RunRecord;

// A usage error when there is no such directory, or it has no metrics.jsonl. Free with run_record_free in any case.
Status run_read(RunRecord *run, const char *path);
// The name and the settings alone.
Status run_read_settings(RunRecord *run, const char *path);
void run_record_free(RunRecord *run);

// The clock of a run over all of its processes: `elapsed` of a line starts again with every one.
typedef struct RunClock {
    double before, last; // of the processes that ended, and `elapsed` of the newest line
} RunClock;
double run_clock_advance(RunClock *clock, double elapsed); // NaN: of a line without one

const char *run_setting(const RunRecord *run, const char *key); // NULL: not in config.toml
double run_plan_number(const RunRecord *run, const char *key);  // of plan.json's "prediction"; NaN: not there
double run_plan_part(const RunRecord *run, StepPart part);      // seconds of "step_parts"; 0: not there
