// An event simulation of one training step: pipeline stages that run their schedule, links that carry one transfer at a
// time, gradients reduced in buckets behind the last backward passes, and the optimizer. For clusters that nobody here
// owns, and as a check of the closed forms in pipeline.h and collectives.h, with which it agrees where those hold.
#pragma once

#include "base/pipeline_schedule.h"

typedef struct SimulateRequest {
    PipelineSchedule schedule;
    int stages, micro_batches;
    int virtual_stages;               // chunks of layers per stage; 1 unless interleaved
    const double *forward, *backward; // [stages] seconds of one micro-batch in all chunks of the stage
    double send;                      // seconds of one transfer between stages
    int buckets;                      // of gradients per stage; 0: no data parallelism
    double bucket_seconds;            // to reduce one
    double optimizer;                 // seconds, after all gradients of all stages are there
} SimulateRequest;

typedef enum SimulateKind {
    SIMULATE_FORWARD,
    SIMULATE_BACKWARD,
    SIMULATE_SEND,
    SIMULATE_REDUCE,
    SIMULATE_OPTIMIZER,
} SimulateKind;

typedef struct SimulateEvent {
    SimulateKind kind;
    int stage, micro_batch, chunk;
    double start, end;
} SimulateEvent;

typedef struct SimulateResult {
    SimulateEvent *events;
    int event_count;
    double compute_end; // of the last backward pass
    double seconds;     // of the step
    double bubble;      // share of compute_end that the stages idle, on average
    double exposed;     // reduction after compute_end
    int *stash;         // [stages] most micro-batches in flight at one time: chunks of them together, rounded up
    int stages;
} SimulateResult;

Status simulate_run(SimulateResult *result, const SimulateRequest *request);
void simulate_free(SimulateResult *result);
