// The search over ways to run a model on a cluster: parallelism x micro-batch x sequence x recompute x ZeRO. What does
// not fit is discarded, the rest is ranked by tokens per second (time to target), never by MFU: a longer sequence
// raises MFU while it slows the run down.
#pragma once

#include "plan/plan.h"

enum { SEARCH_SEQS_MAX = 8 };

typedef struct SearchSpace {
    int seqs[SEARCH_SEQS_MAX], seq_count;
    double batch_tokens; // of a step: accumulation follows; 0: the run's grad_accum for all
    double memory_limit; // share of the device's memory
    // > 0: no more candidates than these, for an answer at once: meshes that cut the model least come first, one that
    // cannot hold the smallest batch is not tried further, and micro-batches double.
    int tries_max;
} SearchSpace;

typedef struct SearchCandidate {
    Mesh mesh;
    Recompute recompute;
    int micro_batch, seq, grad_accum, virtual_stages;
    double tokens_per_second, seconds, mfu;
    double memory, memory_fraction;
    StepPart first, second; // where most of its time goes
    double first_share, second_share;
    bool runs; // this program can train that way; false until somebody who knows says so
} SearchCandidate;

typedef struct SearchResult {
    SearchCandidate *found; // all that fit, best first
    int found_count;
    int tried, refused, too_large; // candidates; cannot be cut that way; do not fit
    int *frontier;                 // indices into found: less memory than any faster one; fastest first
    int frontier_count;
} SearchResult;

// `run` gives the model, precision, device and what the space leaves open.
Status search_run(SearchResult *result, const PlanMachine *machine, const PlanRun *run, const SearchSpace *space);
void search_free(SearchResult *result);
PlanRun search_candidate_run(const SearchCandidate *candidate, const PlanRun *run); // `run` as the search got it
// One line: why it stands where it stands. Static text parts, written into `out`.
void search_reason(const SearchResult *result, int index, char *out, size_t size);
