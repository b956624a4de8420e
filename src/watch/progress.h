// What a run shows while it works: a banner at the start, then one live line on a terminal or plain lines elsewhere,
// and a curve in letters at the end.
#pragma once

#include "watch/metrics.h"

#include <stdio.h>

typedef enum ProgressMode { PROGRESS_LIVE, PROGRESS_PLAIN, PROGRESS_OFF } ProgressMode;

typedef struct Progress {
    ProgressMode mode;
    int64_t print_every;
    int64_t first_step, total_steps; // total 0: not known
    double hours;                    // limit of this process, 0: none
    double last_draw;                // seconds
    double started, warm;            // seconds; warm: when the first step, which tunes and records, was done
    bool drawn;                      // a live line is on the screen
    bool has_load;                   // MoE
    ExpertLoad load;                 // worst over the layers, as last taken
} Progress;

ProgressMode progress_mode(const char *name); // "auto", "live", "plain", "off"
void progress_begin(Progress *progress);
void progress_step(Progress *progress, const MetricsStep *step);
void progress_evaluation(Progress *progress, int64_t step, const Evaluation *evaluation);
void progress_clear(Progress *progress); // takes the live line away, for what somebody else prints
// A message between steps that does not tear the live line.
void progress_say(Progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct ProgressBanner {
    const char *run, *model, *device, *precision;
    int64_t parameters, active_parameters;
    const char *mesh; // how ranks share the work, in words; NULL: there is one
    int64_t micro_batch, seq, grad_accum, ranks, batch_tokens, asked_batch_tokens, batch_warmup_tokens;
    int64_t total_steps, total_tokens, data_tokens;
    double hours;
    double memory_bytes, memory_total; // predicted, and what the device has
    double predicted_seconds;          // of the steps to come, 0: not known
    int64_t resumed_step;              // 0: from the start
} ProgressBanner;
void progress_banner(const ProgressBanner *banner, FILE *file);

// Losses as a chart of width x height characters.
void progress_curve(FILE *file, const double *losses, int64_t count, int width, int height);
