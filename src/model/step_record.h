// The ops of a training step on one rank, as records: the transformer itself, run against a recording table. There is
// no other list of what a step does; planner and `bench ops` work from this one.
#pragma once

#include "model/layout.h"
#include "ops/record.h"

typedef struct StepCall {
    OpRecord call; // tensors have shapes and names; with a model their memory too, else addresses of nothing
    StepPass pass;
    double times; // in a micro-step (STEP_ONCE: in an optimizer step); layers of one kind are recorded once
} StepCall;

typedef struct StepRecord {
    StepCall *calls;
    int count;
} StepRecord;

struct Model;

// The first micro-step of a step, and the optimizer step. Every call's shapes are checked.
void step_record_make(StepRecord *record, const Layout *layout);
// The same with the memory of a model, so that calls can be run (op_run).
void step_record_of_model(StepRecord *record, const struct Model *model);
void step_record_free(StepRecord *record);
// Is it the same op in the same pass on tensors of the same names and shapes?
bool step_call_is(const StepCall *a, const OpRecord *call, StepPass pass);
