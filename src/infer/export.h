// A run's checkpoint, or any model hearth reads, as a Hugging Face directory.
#pragma once

#include "base/dtype.h"
#include "base/status.h"

// checkpoint as in LoadedRequest. `directory` must not hold a model yet. *source (may be NULL): where the weights came
// from, malloc'd.
Status export_hf(const char *path, const char *checkpoint, const char *directory, DType dtype, char **source);
