// Dynamic loss scaling of fp16 runs. Gradients begin with a factor that keeps them above fp16's smallest numbers and
// below its largest; AdamW takes it out again. A step whose gradients overflow is refused on the device, on all ranks
// at once (ops->guard), and halves the factor; enough good steps in a row double it. Powers of two: they round nothing.
#pragma once

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

// Below 1 an overflow is not the factor's doing; above the most there is nothing left that underflows.
#define LOSS_SCALE_LEAST 1.0
#define LOSS_SCALE_MOST  0x1p40

typedef struct LossScale {
    double scale;  // 0: the run has none
    int64_t every; // good steps in a row that double it
    int64_t good;  // in a row so far
} LossScale;

// After a step. True when its gradients were too large for the scale, which is halved: the weights are not to blame.
bool loss_scale_note(LossScale *scale, bool skipped, bool overflow);

json_t *loss_scale_json(const LossScale *scale);
// "loss_scale" of a state; one without it, from a run of another precision, leaves the scale at its start.
Status loss_scale_restore(LossScale *scale, const json_t *state, const char *where);
