// Learning rate over the steps, and the batch over the tokens.
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "train/config.h"

#include <stdint.h>

typedef enum ScheduleKind { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_WSD } ScheduleKind;

typedef struct Schedule {
    ScheduleKind kind;
    double lr, min_lr;                              // peak and last
    int64_t warmup_steps, decay_steps, total_steps; // total 0: unknown, constant only
} Schedule;

double schedule_lr(const Schedule *schedule, int64_t step); // step counts from 1

json_t *schedule_json(const Schedule *schedule); // for state.json
// *schedule stays as it is where root does not hold one.
void schedule_read(Schedule *schedule, const json_t *root);

// How many micro-batches make a step. With a warm-up of W tokens to accumulation N, tokens [k W/N, (k+1) W/N) train
// with k + 1 micro-batches, and the rest with N.
typedef struct BatchPlan {
    int64_t micro_tokens; // of one micro-batch over all data-parallel ranks
    int64_t grad_accum;
    int64_t warmup_tokens;
    int64_t asked_tokens; // what the config asked for, 0 when it gave micro-batches
} BatchPlan;

// Takes train.* of the config; ranks are the data-parallel ranks. batch_tokens is rounded to the nearest whole number
// of micro-batches.
BatchPlan batch_plan(const Config *config, int ranks);
int64_t batch_accum(const BatchPlan *plan, int64_t tokens_done); // of the step that starts after tokens_done
int64_t batch_steps(const BatchPlan *plan, int64_t tokens);      // steps that train on at least `tokens`
double batch_tokens(const BatchPlan *plan, int64_t steps);       // tokens that the first `steps` steps train on

// Steps of the whole run by train.tokens and train.steps (whichever is first); 0 when only hours stop it.
int64_t run_steps(const Config *config, const BatchPlan *plan, int64_t parameters);
// The same for a run whose first `step` steps took tokens_done, perhaps with another batch than the plan's.
int64_t run_steps_from(const Config *config, const BatchPlan *plan, int64_t parameters, int64_t step,
                       int64_t tokens_done);
// The token budget, with "20x" resolved; 0: none.
int64_t run_tokens(const Config *config, int64_t parameters);
// Peak learning rate after optimizer.lr_rescale.
double run_peak_lr(const Config *config, const BatchPlan *plan);
Status schedule_make(Schedule *schedule, const Config *config, const BatchPlan *plan, int64_t total_steps);
