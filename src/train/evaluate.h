// Mean loss of a model over samples, forward passes only.
#pragma once

#include "data/loader_samples.h"
#include "model/model.h"
#include "plan/evaluation.h"

// A training batch: micro-batch i on this rank has the samples from first + i * round on.
typedef struct EvaluateBatch {
    const Samples *samples;
    uint64_t first, round;
    int micro_batches;
    int64_t valid; // targets of the whole batch, over all ranks
} EvaluateBatch;
// Its mean loss, as a step would report it, unless experts have no room for the batch (rows_needed). Damaged data is an
// error. Collective over the ranks of the model.
Status evaluate_batch(Model *model, const EvaluateBatch *batch, StepResult *result);

// Over the first `windows` windows (0: all), in the samples' own fixed order.
Status evaluate_samples(Model *model, const Samples *samples, uint64_t windows, Evaluation *evaluation);
