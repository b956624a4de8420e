// Preflight: a short real run before the long one. It searches the micro-batch that trains fastest at the same global
// batch, then trains on the run's own data for a while and compares memory and speed with the prediction.
#pragma once

#include "base/status.h"
#include "train/config.h"

#include <stdbool.h>
#include <stdint.h>

// Share of device memory: wanted, and never passed.
#define PREFLIGHT_MEMORY_WANTED 0.85
#define PREFLIGHT_MEMORY_MAX    0.95

typedef struct PreflightOptions {
    int64_t tokens;   // of the short run
    double seconds;   // whichever comes first
    bool search;      // try other micro-batches
    const char *save; // write the winning lines into this copy of the config, or NULL
} PreflightOptions;

Status preflight_run(const Config *config, const PreflightOptions *options);

// A micro-batch that was tried, and the choice among them: the fastest, but within 1 % of the fastest the one that
// comes nearest to the wanted share of memory from below.
typedef struct PreflightTry {
    int64_t micro_batch, grad_accum;
    double memory_fraction;
    double tokens_per_second; // 0: did not run
} PreflightTry;
int preflight_choose(const PreflightTry *tries, int count); // -1: none ran

// Micro-batches that keep the global batch (micro_batch * grad_accum sequences): up to `most` divisors of it, roughly
// doubling, the configured one among them; ascending. Returns how many.
int preflight_candidates(int64_t micro_batch, int64_t grad_accum, PreflightTry *tries, int most);
