// The order in which the ranks of a pipeline run their forward and backward passes: one definition for what runs a
// step, what simulates one and what counts the activations that are kept meanwhile.
//
// A rank holds `virtual_stages` chunks of layers (1 unless interleaved); chunk c of rank s is place c * stages + s
// along the model. A task is one pass of one micro-batch through one chunk.
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef enum PipelineSchedule {
    PIPELINE_1F1B,        // after a warm-up, one forward and one backward pass in turn
    PIPELINE_GPIPE,       // all forward passes, then all backward passes
    PIPELINE_INTERLEAVED, // 1F1B over several chunks per rank, in rounds of as many micro-batches as there are stages
    PIPELINE_SCHEDULE_COUNT,
} PipelineSchedule;

typedef enum PipelinePass { PIPELINE_FORWARD, PIPELINE_BACKWARD } PipelinePass;

typedef struct PipelineTask {
    PipelinePass pass;
    int micro_batch, chunk;
} PipelineTask;

// "gpipe", "1f1b", "interleaved"; or as torchtitan has them: "GPipe", "1F1B", "Interleaved1F1B".
Status pipeline_schedule_parse(PipelineSchedule *schedule, const char *name);
const char *pipeline_schedule_name(PipelineSchedule schedule);
// Whether the schedule can run: at least one of each, chunks only where they interleave, and whole rounds of those.
Status pipeline_schedule_check(PipelineSchedule schedule, int stages, int virtual_stages, int micro_batches);

// Tasks of one rank in a step: two per micro-batch and chunk.
int64_t pipeline_task_count(int virtual_stages, int micro_batches);
// The task that a rank runs at `index` of its order.
PipelineTask pipeline_task(PipelineSchedule schedule, int stages, int virtual_stages, int stage, int micro_batches,
                           int64_t index);

// The most (micro-batch, chunk) pairs that are between their forward and backward pass on a rank at one time. Also for
// numbers of micro-batches that the interleaved schedule does not take: they are counted as if the last round were
// whole.
int64_t pipeline_in_flight(PipelineSchedule schedule, int stages, int virtual_stages, int stage, int micro_batches);
