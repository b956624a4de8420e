// A step of one stage of a pipeline: the passes of base/pipeline_schedule.h in their order, each through one chunk of
// the rank's layers. Activations of a pass wait for its backward half in a slot of the layout.
#pragma once

#include "model/model.h"

enum { STAGE_MESSAGES = 3 }; // tensors that a pass hands on at most

Pipeline *pipeline_create(Model *model);
void pipeline_free(Model *model); // of a model that has none, too
// Before activations move: nothing is on its way from them any more, and no recorded pass knows them.
void pipeline_forget(Model *model);
void pipeline_record_again(Model *model); // the next pass of each kind; of a model without stages, too

// As model_micro_step and model_eval_step. Micro-batches are kept until the last one of the step has come; then the
// stage runs all its passes.
void pipeline_micro_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start);
void pipeline_eval_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start);

// For the seams: the sends of the place that a pass has taken (Model.half) are done; and one that was begun.
void pipeline_wait_sent(Model *model, PipelinePass pass);
void pipeline_note_sent(Model *model, PipelinePass pass, int index, CommTicket ticket);

// The passes of a step as they ran, in seconds since the mark that pipeline_watch set: of the first step after it.
typedef struct PipelineEvent {
    PipelineTask task;
    double begin, end; // without the wait for its input
} PipelineEvent;
// Passes that can be watched on this device; a step must not have more.
int64_t pipeline_watch_limit(const Model *model);
void pipeline_watch(Model *model);
int64_t pipeline_events(Model *model, const PipelineEvent **events); // after the step; waits for the device
