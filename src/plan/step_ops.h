// The compute of one pipeline stage in one micro-step, as a table of ops with their times: each call that the
// transformer makes (model/step_record.h) takes the longer of its FLOPs at the reachable rate and its bytes at the
// reachable bandwidth. Inside of step_model.
#pragma once

#include "model/step_record.h"
#include "plan/step_model.h"

typedef struct StageCost {
    StepOp ops[STEP_OPS_MAX];
    int op_count;
    double pass[4]; // seconds per StepPass, launch gaps included
} StageCost;

void stage_cost(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                double imbalance);
// One call by itself, as it was made: its lines (an op that is several in one has several; some have none).
void stage_call_cost(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                     double imbalance, const StepCall *call);
