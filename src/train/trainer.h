// The trainer: model, data and optimizer of one run, and the step that moves them. It writes no files; run.c does.
#pragma once

#include "data/loader.h"
#include "model/model.h"
#include "train/config.h"
#include "train/diloco.h"
#include "train/guard.h"
#include "train/loss_scale.h"
#include "train/ranks.h"
#include "train/schedule.h"
#include "watch/metrics.h"

#include <signal.h>

typedef struct Prediction Prediction;

typedef struct Trainer {
    const Config *config; // not owned
    Config resolved;      // the same with the model's shape written out, as the run's config.toml has it
    ModelConfig model_config;
    ModelParameters parameters;
    Ops *ops;
    Ranks ranks;
    Model *model;
    Diloco diloco;
    Samples train, val; // val.windows 0: there is none
    char *tokenizer;    // path, "bytes" or NULL
    Loader *loader;
    BatchPlan batch;
    Schedule schedule;
    Schedule schedule_before; // of the checkpoint that the run was restored from
    Guard guard;
    LossScale loss_scale;
    int64_t total_steps;                // 0: only hours stop it
    double flops_per_token, peak_flops; // peak 0: not known
    Prediction *prediction;             // NULL: the catalogue does not know the device
    ExpertLoad *expert_load;            // [sparse layers] as last taken
    double started;
    double memory_peak; // bytes, of the steps so far

    // Where the run is; together with weights and moments this is all of its state.
    int64_t step, tokens; // tokens of all islands
    int64_t applied;      // optimizer steps that were not skipped
    uint64_t sample;      // first sample of the next step
    double val_loss;      // of the fixed subset, NaN: not taken
    int64_t val_step;     // step it was taken after
} Trainer;

// Checks everything, opens the data, allocates the model and gives it its first weights. Nothing is left after an
// error.
Status trainer_open(Trainer *trainer, const Config *config);
// As one of the ranks of a world; NULL: alone.
Status trainer_open_ranks(Trainer *trainer, const Config *config, World *world);
void trainer_close(Trainer *trainer);

// One optimizer step. When *stop turns nonzero, the micro-batch under way is finished, the rest of the step is dropped,
// and *stopped is set: weights and position are those before the step. stop may be NULL. Damaged data is an error with
// *stopped set.
Status trainer_step(Trainer *trainer, MetricsStep *metrics, const volatile sig_atomic_t *stop, bool *stopped);
int64_t trainer_total_tokens(const Trainer *trainer); // of all steps; 0: not known

// For state.json: with islands, what differs between them too. Collective over all ranks.
json_t *trainer_state(const Trainer *trainer);
// Weights, moments and position. *same_config, *same_data: as they were when it was written.
Status trainer_restore(Trainer *trainer, const char *checkpoint, bool *same_config, bool *same_data);
