// `hearth plan --search --write FILE`: a way that the search found, as a configuration.
#pragma once

#include "plan/search.h"
#include "train/config.h"

// Writes the config with the candidate's mesh, batch and recompute in it; every other key stays. head: lines of
// comment.
Status plan_write_config(const char *path, const Config *config, const SearchCandidate *candidate, const char *head);
