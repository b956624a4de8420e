// The figures of a report: what a run came to, where the time of its step went down to the limit of the hardware, and
// what to try. Pure arithmetic on what run_read found.
#pragma once

#include "watch/loss.h"
#include "watch/run_read.h"

// What the files of a run do not say, and its report shows: from the catalogue and the planner.
typedef struct ReportRun {
    RunRecord record;
    double usd_per_hour, watts, pue; // of one device; 0: not known
    LossFacts facts;                 // of the run and its planner: what an advice rests on
} ReportRun;

typedef struct RunFigures {
    size_t first;             // step line after the warm-up
    size_t measured;          // ordinary steps behind the medians
    double step_seconds;      // median; NaN: nothing was measured
    double rate, mfu, tflops; // of all steps after the warm-up
    double data_wait, comm_wait;
    double loss;                    // of training, smoothed, at the end
    const RunEval *eval;            // the last over all of the data, else the last; NULL: none
    double perplexity;              // of that, else of the loss
    double memory, memory_fraction; // at their peak
    double memory_own;              // likewise, of what hearth asked for; NaN: not known
    double clock, capped;           // mean of rank 0's GPU: MHz, share of the time at its power limit; NaN: not known
    double tokens, seconds;         // wall clock
    double devices;
    double watts; // of a device: measured on rank 0, else as rated; NaN: not known
    bool watts_measured;
    double cost, energy; // USD, kWh; NaN: no price or power
    int64_t skipped;
} RunFigures;
RunFigures report_figures(const ReportRun *run);

// The mean of the values around each, of report_window of them; at the end, of those before it. NaN is left out.
// [count], malloc'd.
double *report_smooth(const double *values, size_t count);
size_t report_window(size_t count);
double *report_losses(const RunRecord *run); // smoothed, without skipped steps: [step_count], malloc'd
// At this many tokens, between the two lines beside it; NaN: not reached.
double report_loss_at(const RunRecord *run, const double *smooth, double tokens);
double report_validation_at(const RunRecord *run, double tokens);

typedef enum WaterfallKind { WATERFALL_LEVEL, WATERFALL_LOSS } WaterfallKind;

typedef struct WaterfallRow {
    const char *name;
    WaterfallKind kind;
    double seconds; // of the level, or what is lost between two of them
} WaterfallRow;

enum { WATERFALL_MAX = 16 };

// From the measured step down: levels, and the losses between each and the next.
typedef struct Waterfall {
    WaterfallRow rows[WATERFALL_MAX];
    int count;
    double floor;                 // products and attention at the rates of the device; 0: not known
    int worst;                    // row of the loss to name; -1: there is none
    int unexplained;              // row of time that belongs to no part; -1: there is none
    LossTable losses;             // what the sentence is of
    bool profiled;                // parts were measured; else they are as predicted
    bool by_profile;              // then: in the steps of the run's profile
    double shrunk;                // factor on the parts where, op by op, they took longer than a whole step; 1: none
    double part[STEP_PART_COUNT]; // measured seconds (communication: all of it in STEP_DATA_PARALLEL); NaN: not known
    double floors[STEP_LAUNCH];   // of the first of them, at the rates of the device; 0: not known
} Waterfall;
Waterfall report_waterfall(const RunRecord *run, const RunFigures *figures);

// The biggest loss, what to try, and what the planner expects (watch/loss.h). malloc'd.
char *report_sentence(const ReportRun *run, const RunFigures *figures, const Waterfall *waterfall);
