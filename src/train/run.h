// A run: the trainer's steps, with everything that is written and shown around them.
#pragma once

#include "base/status.h"
#include "dist/world.h"
#include "train/config.h"

#include <stdbool.h>

typedef struct RunOptions {
    const char *config; // path; NULL with resume: the run's own config.toml
    const char *const *sets;
    int set_count;
    const char *directory; // run directory; NULL: train.runs / train.name
    bool resume;
    const char *rescue; // where the last checkpoint goes when the run directory cannot take it; NULL: TMPDIR or /tmp
    int64_t profile;    // steps of a profile, of this process alone; 0: as the configuration says
    World *world;       // whose ranks run it together; NULL: this process alone
} RunOptions;

// *stopped_by: the signal that ended it before its end, after a checkpoint; 0: none.
Status run_train(const RunOptions *options, int *stopped_by);

// ---- the run directory (run_directory.c) ---------------------------------------------------------------------------

typedef struct Trainer Trainer;

// Where a new run goes; an existing directory is an error. *path is malloc'd.
Status run_directory_choose(const Config *config, const RunOptions *options, char **path);
// The newest directory of this config's name below train.runs. *path is malloc'd.
Status run_directory_find(const Config *config, char **path);
// Makes the directory with config.toml, environment.json, plan.json, model.json and the tokenizer; removes it on
// failure.
Status run_directory_create(const char *path, const Trainer *trainer);
// Before a --resume that found no checkpoint starts again with the first step. A run all of whose checkpoints were set
// aside is refused: they may be all that is left of it. Otherwise the lines of the earlier try move from metrics.jsonl
// to the first free metrics-before-N.jsonl; *moved (malloc'd) is its path, NULL when there were none.
Status run_directory_restart(const char *path, char **moved);
// Makes the directory and its files again where somebody has removed them. *missing: they were.
Status run_directory_restore(const char *path, const Trainer *trainer, bool *missing);
void run_directory_check_config(const char *path); // warns of a config.toml that something else has changed
// Writes config.toml anew, so that the next --resume goes on with the settings of this one. keep_shape: model.preset,
// config and init stay as the file has them, because the shape came from a checkpoint.
Status run_directory_update(const char *path, const Trainer *trainer, bool keep_shape);
