// Mean loss of a model over samples, forward passes only.
#pragma once

#include "data/loader_samples.h"
#include "model/model.h"
#include "plan/evaluation.h"

// Over the first `windows` windows (0: all), in the samples' own fixed order.
Status evaluate_samples(Model *model, const Samples *samples, uint64_t windows, Evaluation *evaluation);
