// The timeline of a pipeline's step: as it ran, and as the simulator has it for passes that take as long.
#pragma once

#include "model/model.h"
#include "plan/simulate.h"

typedef struct BenchTimeline {
    SimulateResult measured, simulated; // of rank 0; the others have none
} BenchTimeline;

// Runs one step of `micro_batches` and watches it. Collective over the ranks of the world.
Status bench_timeline(BenchTimeline *timeline, Model *model, World *world, int micro_batches, void (*step)(void *),
                      void *context);
void bench_timeline_free(BenchTimeline *timeline);
