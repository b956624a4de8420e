// The keys of a Hugging Face config.json, and what hearth makes of each: read, known to change nothing, or accepted
// only with the value that leaves the computation as it is.
#pragma once

#include "base/json.h"
#include "base/status.h"

// Refuses, by name, what changes the computation in a way that hearth does not have; warns of keys it does not know.
Status model_config_check_keys(const json_t *root, const char *where);
