// Preflight: a short real run before the long one. It searches the micro-batch that trains fastest at the same global
// batch, then trains on the run's own data for a while and compares memory and speed with the prediction. It prints
// nothing: what happens is told to a listener as it happens, and the rest is in the result.
#pragma once

#include "base/status.h"
#include "dist/world.h"
#include "plan/calibration.h"
#include "plan/plan.h"
#include "train/config.h"

#include <stdbool.h>
#include <stdint.h>

enum { PREFLIGHT_TRIES_MAX = 8 };

typedef enum PreflightVerdict {
    PREFLIGHT_RAN,
    PREFLIGHT_TOO_LARGE, // over PLAN_MEMORY_FULL of the device
    PREFLIGHT_NOT_FREE,  // other programs hold too much of it
    PREFLIGHT_TOO_SLOW,  // measuring would take too long
    PREFLIGHT_FAILED,
} PreflightVerdict;

// A micro-batch that was tried.
typedef struct PreflightTry {
    int64_t micro_batch, grad_accum;
    double memory_fraction;   // of the device, as predicted
    double tokens_per_second; // 0: did not run
    double memory_bytes;
    PreflightVerdict verdict;
    double expected_seconds; // TOO_SLOW: that it would take
    const char *message;     // FAILED: why; valid while the listener is told
} PreflightTry;

typedef struct PreflightSearch {
    const char *model, *device;
    int64_t seq, sequences; // of a step
    PreflightTry tries[PREFLIGHT_TRIES_MAX];
    int count;
    int best, fastest; // -1: none ran, or there was no search
} PreflightSearch;

// Each may be NULL. A try is told before it starts, and again with its verdict.
typedef struct PreflightListener {
    void *context;
    void (*search_starts)(void *context, const PreflightSearch *search);
    void (*try_starts)(void *context, const PreflightTry *attempt);
    void (*try_ends)(void *context, const PreflightTry *attempt);
    void (*search_ends)(void *context, const PreflightSearch *search); // best >= 0
} PreflightListener;

typedef struct PreflightOptions {
    int64_t tokens;   // of the short run
    double seconds;   // whichever comes first
    bool search;      // try other micro-batches
    const char *save; // write the winning lines into this copy of the config, or NULL
    PreflightListener listener;
    World *world; // all ranks call preflight_run and get the same answers; NULL: one process
} PreflightOptions;

typedef struct PreflightResult {
    PreflightSearch search;
    int64_t steps, tokens; // of the short run
    double first_loss, last_loss;
    double data_wait;   // fraction of a step, mean
    bool predicted;     // the catalogue knows the device; else only `measured` of the three below is set
    PlanOutcome memory; // bytes
    PlanOutcome step;   // seconds, median; warm-up left out
    PlanOutcome tokens_per_second;
    const char *unfit; // why later predictions do not learn from it; NULL: they do, or it was too short to say
} PreflightResult;

Status preflight_run(const Config *config, const PreflightOptions *options, PreflightResult *result);

// The choice among tries: the fastest, but within 1 % of the fastest the one that comes nearest to the wanted share of
// memory from below.
int preflight_choose(const PreflightTry *tries, int count); // -1: none ran

// Micro-batches that keep the global batch (micro_batch * grad_accum sequences): up to `most` divisors of it, roughly
// doubling, the configured one among them; ascending. Returns how many.
int preflight_candidates(int64_t micro_batch, int64_t grad_accum, PreflightTry *tries, int most);
