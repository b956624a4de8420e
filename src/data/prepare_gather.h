// The second half of prepare: units to shards of exactly the asked sizes.
#pragma once

#include "data/prepare.h"
#include "data/prepare_unit.h"

#include <jansson.h>

// Merges the units of `work` into work/<split>/NNNNN.shard, for output_publish, and returns the "splits" object of
// dataset.json.
Status gather_run(const PrepareOptions *options, const Tokenizer *tokenizer, const char *work, size_t unit_count,
                  const PrepareCounts *counts, json_t **splits);
