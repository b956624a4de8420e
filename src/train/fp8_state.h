// The scales of FP8 training, as state.json of a checkpoint keeps them: "fp8_scales", one list per tensor kind
// (Fp8Slot) with a number for each layer, and "fp8_head_scale", that of the LM head's input. Those of weights are not
// there: they come from the weights.
#pragma once

#include "base/json.h"
#include "model/model.h"

void fp8_scales_save(Model *model, json_t *state);
// Sets them from a state, if it has any: a run that goes on in FP8 from a checkpoint of another precision looks for
// those of its first step as a fresh one does. Of a version whose LM head was in bf16, the head has FP8_FIRST_SCALE.
Status fp8_scales_restore(Model *model, const json_t *state, const char *where);
