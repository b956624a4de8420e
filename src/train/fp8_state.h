// The scales of FP8 training, as state.json of a checkpoint keeps them: "fp8_scales", one list per tensor kind
// (Fp8Slot) with a number for each layer. Those of weights are not there: they come from the weights.
#pragma once

#include "base/json.h"
#include "model/model.h"

json_t *fp8_scales_json(Model *model);
// Sets them from a state, if it has any: a run that goes on in FP8 from a checkpoint of another precision starts with
// those of a fresh one.
Status fp8_scales_restore(Model *model, const json_t *state, const char *where);
