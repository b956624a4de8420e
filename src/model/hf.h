// Hugging Face directories: weights in (model.safetensors, or model-0000x-of-0000y.safetensors with an index) and out,
// under the names that transformers uses.
#pragma once

#include "model/model.h"
#include "model/safetensors.h"

// Loads all weights of the model from a directory or one .safetensors file. A missing tensor, a tensor that the model
// does not have, or a wrong shape is an error that names it.
Status hf_load_weights(Model *model, const char *path);

// Writes config.json, generation_config.json and the weights as dtype (F32, BF16 or F16), in files of at most
// shard_bytes (0: 5 GB, as transformers does).
Status hf_save(const Layout *layout, const ModelSnapshot *snapshot, const char *directory, DType dtype,
               int64_t shard_bytes);
// The box of a tensor that a slice says, into the host copy of its parameter.
Status hf_read_slice(const SafeTensor *tensor, const LayoutSlice *slice, float *host, const char *path);
