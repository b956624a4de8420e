// The profile of a few steps: which of them ([profile] wait, warmup, active), what is recorded while they run, and what
// is written afterwards: RUN/profile/step-N.json, a timeline of all ranks, and RUN/profile/summary.json.
//
// Where an op's time comes from: on the CPU from the call itself; on a GPU from the kernels that it launched, or that
// its recorded calls have put into a graph (ops/device_trace.h). A GPU whose library for that is missing runs the
// active steps op by op instead and times the ops by events, without a timeline.
#pragma once

#include "model/model.h"
#include "train/config.h"
#include "train/prediction.h"
#include "watch/metrics.h"

typedef struct Profiler Profiler;

typedef struct ProfilerOptions {
    int64_t wait, warmup, active; // steps; active 0: no profile
    Model *model;
    World *world;                 // NULL: one process
    const Prediction *prediction; // whose rates are the ops' floors; NULL: none are known
    const char *directory;        // that the files go to
    int gpu;                      // ordinal of the CUDA device for its sensors; -1: none
    const char *cupti;            // path of the library; NULL: the system's
} ProfilerOptions;

Profiler *profiler_open(const ProfilerOptions *options); // NULL: no profile. The strings must outlive it
// Around every step, on all ranks; NULL is allowed. The last active one ends with the writing of the files; it is a
// collective of the ranks, and what goes wrong is a warning.
void profiler_step_begin(Profiler *profiler, int64_t step);
void profiler_step_end(Profiler *profiler, const MetricsStep *metrics); // metrics NULL: the step was dropped
// What there is to say, once, after the end of the last active step: a table of several lines, malloc'd; else NULL.
char *profiler_said(Profiler *profiler);
// The run ends here, on all ranks: a profile that has begun is written as far as it goes.
void profiler_finish(Profiler *profiler);
void profiler_close(Profiler *profiler); // writes nothing; NULL is allowed
