// From a configuration to what it names: the model's shape, the layout to allocate, the data, the tokenizer. Everything
// that a user can get wrong is found here, before a run directory exists, and blamed on its line.
#pragma once

#include "data/loader_samples.h"
#include "data/tokenizer.h"
#include "model/layout.h"
#include "train/config.h"
#include "train/schedule.h"

// The model's shape: preset, config.json or init directory, with the sizes written out on top. fallback_vocab (0: none)
// is used when nothing else gives the vocabulary.
Status setup_model(const Config *config, int64_t fallback_vocab, ModelConfig *model);
Status setup_layout(const Config *config, const ModelConfig *model, DeviceKind device, LayoutRequest *request);
// The micro-batches of a step, which a pipeline's memory depends on; refused where its schedule does not take them.
Status setup_micro_batches(const Config *config, LayoutRequest *request, const BatchPlan *batch);

// Training samples; val is left empty (windows 0) when the config and the data offer none.
Status setup_data(const Config *config, Samples *train, Samples *val);
Status setup_validation(const Config *config, Samples *val); // the second of the two alone
// The vocabulary of the data where the config leaves it to the data and the data is there; 0: not known here.
int64_t setup_data_vocab(const Config *config);
// A model to start from whose tokenizer is not the data's is worth a warning.
Status setup_check_init(const Config *config, const Samples *samples);
// Vocabulary and special tokens must fit: blames data.train.
Status setup_check_vocab(const Config *config, const ModelConfig *model, const Samples *samples);

// The tokenizer of the data: data.tokenizer, else what the dataset names. *path is malloc'd; NULL when there is none to
// be found (training works without). A tokenizer that did not make the shards is an error.
Status setup_tokenizer(const Config *config, const Samples *samples, char **path);

// Writes the shape that was found into the sizes of [model], so that a resolved config.toml states them.
void setup_resolve(Config *config, const ModelConfig *model);

// Paths as they are seen from any folder: a run's config.toml is read again from wherever somebody stands.
void setup_resolve_paths(Config *config);

// "how the model's shape was given", for banners: "smollm-360m", "config.json of x", ...
const char *setup_model_name(const Config *config);
