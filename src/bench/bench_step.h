// Times whole training steps of a model on random tokens: what this machine can do, without data or checkpoints.
#pragma once

#include "base/status.h"
#include "bench/bench_timeline.h"
#include "model/model.h"
#include "model/trace.h"

typedef struct BenchStep {
    LayoutRequest request;   // of this rank
    ModelRanks groups;       // that it is part of
    World *world;            // of all ranks; NULL: one
    int accum, steps;        // steps timed; warm-up steps come on top
    MoeForce force;          // routing of MoE models
    BenchTimeline *timeline; // of one more step of a pipeline; NULL: none
    // Afterwards, to run steps (step(run), which does not wait for the device) and look at them; NULL: nobody does.
    Status (*look)(void *context, Model *model, void (*step)(void *run), void *run);
    void *look_context;
    double embedding_std; // > 0: deviation of the embedding's first values (the power a GPU draws depends on its data)
} BenchStep;

// What ranks said to each other in one more step, run op by op, as this rank saw it.
typedef struct BenchExchange {
    double begin, end; // of the step, clock_seconds()
    double running;    // seconds in which an operation ran,
    double behind;     // of these, while the last micro-batch's backward pass computed,
    double exposed;    // seconds for which the computation stood still
    int64_t sent_bytes;
    Trace trace;
    CommEvent *events; // in order; their names live as long as the groups
    int event_count;
} BenchExchange;

typedef struct BenchResult {
    double step_seconds;      // median
    double spread;            // (slowest - fastest) / median of the timed steps
    double tokens_per_second; // of all ranks
    // One more step, run op by op and profiled; slower than the median step where that is a replayed graph.
    double split_ms[CATEGORY_COUNT];
    double gaps_ms;                      // of that step, between its ops
    double split_step_ms;                // all of it: the sum of split_ms and gaps_ms
    double start_seconds;                // from nothing to the end of the first step
    int64_t predicted_bytes, used_bytes; // by the layout; taken from the device in all, libraries included
    double loss;
    unsigned fp8;       // products that ran in FP8: bits of Fp8Use
    BenchExchange comm; // of several ranks
} BenchResult;

Status bench_step(Ops *ops, const BenchStep *bench, BenchResult *result);
void bench_result_free(BenchResult *result);

// FLOPs per token by the three conventions of plan/flops.h: 12 L H hd S, 6 L H hd S, none.
void bench_flops_per_token(const ModelConfig *config, int seq, double flops[3]);
