// A trained model opened for use: from a run directory, one checkpoint, or a Hugging Face directory.
#pragma once

#include "data/tokenizer.h"
#include "model/model.h"
#include "train/config.h"

typedef struct LoadedRequest {
    const char *path;       // run directory, checkpoint directory or HF directory
    const char *checkpoint; // of a run: "newest" (NULL), "best" or a step number
    const char *tokenizer;  // NULL: the one found beside the model
    const char *device;     // as ops_create
    const char *precision;  // "fp32", "bf16", "fp16"; NULL: fp32 on a CPU, bf16 on a GPU
    int micro_batch, seq;   // seq 0: the model's longest, at most 4096
    bool documents;
} LoadedRequest;

typedef struct Loaded {
    Ops *ops;
    Model *model; // without gradients and moments
    ModelConfig config;
    Tokenizer *tokenizer; // NULL when none was found
    char *tokenizer_path; // "bytes" for the built-in one
    char *source;         // the directory the weights came from
    bool checkpoint;      // which is a run's
} Loaded;

Status loaded_open(Loaded *loaded, const LoadedRequest *request);
void loaded_close(Loaded *loaded);

// The directory with the weights: `path` itself, or the wanted checkpoint of a run. *source is malloc'd.
Status loaded_source(const char *path, const char *checkpoint, char **source);
// The configuration of the run that `path` is, or is a checkpoint of. *found: whether there is one.
Status loaded_run_config(const char *path, Config *config, bool *found);
// The tokenizer's path beside a model ("bytes" for the built-in one), malloc'd, NULL: none.
char *loaded_tokenizer_path(const char *path, const char *source);
