// The router's bias of aux-free balancing, as state.json of a checkpoint keeps it: "router_bias", one list per sparse
// layer.
#pragma once

#include "base/json.h"
#include "model/model.h"

json_t *router_bias_json(Model *model);
// Puts the bias of `state` into the model and turns it on; a state without one leaves the model as it is. `where` is
// the place that errors name.
Status router_bias_restore(Model *model, const json_t *state, const char *where);
