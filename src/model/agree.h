// Ranks that choose the same kernels. One that repeats another's work with a kernel that rounds otherwise may route a
// token to another expert; so one rank measures for all (ops/tune.h), before the first step.
#pragma once

#include "dist/world.h"
#include "model/model.h"
#include "ops/tune.h"

// Micro-steps on made-up tokens, in which rank 0 measures its kernels while the others do not; then they take its
// choices. What only other ranks need is measured by the first of them. From here on nobody measures: what is still not
// known is done in the first way there is. The model's weights, moments, FP8 scales and position stay. Collective;
// nothing to do on one rank, or where there is nothing to choose.
Status model_agree_kernels(Model *model, World *world);

// The same for any work: rehearse() calls everything that has a choice.
void tune_agree(TuneFile *tune, World *world, void (*rehearse)(void *context), void *context);
