// Everything that a run writes down about itself while it trains: metrics.jsonl, TensorBoard's files, alarms.jsonl. A
// thread of its own does it, so that no step waits for a disk; the step only hands over what it measured.
#pragma once

#include "watch/alarms.h"
#include "watch/histogram.h"
#include "watch/machine.h"
#include "watch/metrics.h"

typedef struct Recorder Recorder;

typedef struct RecorderOptions {
    const char *directory;   // of the run
    int64_t last_step;       // what the files have of later steps is superseded; -1: all that they have
    bool tensorboard;        // write RUN/tensorboard/
    const char *config_text; // shown there; NULL: none
    MachineOptions machine;
    AlarmOptions alarms;
} RecorderOptions;

// A failure is that of metrics.jsonl; TensorBoard's files and the alarms' are missed, with a warning, where they cannot
// be made.
Status recorder_open(Recorder **recorder, const RecorderOptions *options);
// Hands a step over, with the time of the call. The queue has room for thousands of steps; when it is full the call
// waits.
void recorder_step(Recorder *recorder, const MetricsStep *step);
void recorder_evaluation(Recorder *recorder, int64_t step, int64_t tokens, const Evaluation *evaluation);
void recorder_histogram(Recorder *recorder, int64_t step, const char *tag, const Histogram *histogram);
// Waits until all that was handed over is in the files, or was tried.
void recorder_flush(Recorder *recorder);
// What there is to warn of since the last call: a message at a time, malloc'd; NULL: no more. For the caller's thread,
// which owns the terminal. Costs nothing while there is none.
char *recorder_said(Recorder *recorder);
AppendMissing recorder_missing(Recorder *recorder); // lines of metrics that are not in the file, after one more try
double recorder_cpu_seconds(Recorder *recorder);    // of its thread, so far
void recorder_close(Recorder *recorder);            // writes what is left; NULL is fine
