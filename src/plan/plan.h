// The plan of a run: everything that can be said before it starts. plan_predict gives memory and step time of one
// configuration; plan_report adds budget, cost, checkpoints, the bottleneck, what would help, and warnings.
#pragma once

#include "plan/budget.h"
#include "plan/flops.h"
#include "plan/step_model.h"

enum {
    PLAN_WARNINGS_MAX = 16,
    PLAN_CHANGES_MAX = 2,
    PLAN_CHECKLIST_MAX = 8,
    PLAN_STAGES_SHOWN = 16,
    PLAN_TEXT_MAX = 200
};

typedef struct PlanMemory { // of the rank that needs most
    bool exact;             // from the layout: what will be allocated; else the software's fitted model
    int stage;
    int64_t bytes[LAYOUT_KIND_COUNT]; // of the layout
    double total;
    double fraction;       // of the device's memory
    double states, active; // of a fitted model: states and activations
    // Rows that the buffers of one rank's experts have room for, the mean of balanced routing, and the most that any
    // routing could send there; 0 unless the layout is exact and expert-parallel.
    int64_t expert_rows, expert_rows_mean, expert_rows_most;
} PlanMemory;

typedef struct PlanPrediction {
    PlanMemory memory;
    StepModel step;
} PlanPrediction;

// Memory and step time. A mesh or batch that the model cannot have is a usage error; one that does not fit is not.
Status plan_predict(PlanPrediction *prediction, const PlanMachine *machine, const PlanRun *run);
// Memory only: cheap, for the search. Fills up to three layouts of distinct stages, freed by plan_layouts_free.
Status plan_layouts(Layout *layouts, int *count, const PlanRun *run);
void plan_layouts_free(Layout *layouts, int count);
PlanMemory plan_memory(const PlanMachine *machine, const PlanRun *run, const Layout *layouts, int count);

// One chunk of layers per stage where layers or micro-batches do not allow the virtual stages that the run names.
void plan_limit_virtual_stages(PlanRun *run);
// Chunks of layers that a pipeline stage keeps activations of, at most.
int64_t plan_in_flight(const PlanRun *run, int stage);

// `gpus` of `gpu` in nodes of gpus_per_node; links and price as the GPU (and node, may be NULL) say. Ranks
// on a CPU share the `cores` of their node.
PlanMachine plan_machine(const Hardware *hardware, const HardwareGpu *gpu, const HardwareNode *node,
                         const HardwareSoftware *software, int gpus, int gpus_per_node, double cores);

// ---- the report -----------------------------------------------------------------------------------------------------

// The share of the device's memory to aim at: what is above it, up to PLAN_MEMORY_FULL, is room for other programs and
// fragmentation; below it the device could take a larger batch.
#define PLAN_MEMORY_LIMIT 0.85

typedef struct PlanQuestions {
    double tokens;       // to train on; 0: 20 per parameter
    double steps;        // that these take; 0: whole batches, all of one size
    double hours;        // > 0: how many tokens fit into this time
    double target_hours; // > 0: the largest model of this family that reaches 20 tokens per parameter in this time
    int vocab;           // > 0: the same model with this vocabulary
    double mfu;          // > 0: assume this utilisation instead of the modelled step
    PlanAttention count; // whose FLOPs that utilisation counts: full (torchtitan), causal, or none (6N)
    double rate;         // > 0: measured tokens/s of all GPUs instead of the modelled step
    double mtbf_hours;   // > 0: of the whole job
    double checkpoints;  // > 0: kept on storage
    double memory_limit; // share of memory that counts as comfortable, 0: PLAN_MEMORY_LIMIT
} PlanQuestions;

typedef enum PlanRateSource { PLAN_RATE_MODEL, PLAN_RATE_MFU, PLAN_RATE_MEASURED } PlanRateSource;

typedef struct PlanChange { // something that would make the run faster, or make it fit
    char what[PLAN_TEXT_MAX];
    double gain; // of tokens/s: 0.1 is 10 % more
    double tokens_per_second, memory_fraction;
} PlanChange;

typedef struct PlanTry { // a change and the run that it makes
    PlanChange change;
    PlanRun run;
} PlanTry;

typedef struct PlanVocab {
    int vocab;
    ModelParameters parameters;
    double flops_per_token, tokens_per_second, memory_total, seconds;
} PlanVocab;

typedef struct PlanLargest {
    bool found;
    ModelConfig config;
    ModelParameters parameters;
    int micro_batch;
    double tokens, tokens_per_second, seconds, memory_fraction;
} PlanLargest;

typedef struct PlanReport {
    char name[HARDWARE_TITLE_MAX];
    PlanMachine machine;
    PlanRun run;
    PlanQuestions questions;
    PlanPrediction prediction;
    ModelParameters parameters;

    PlanRateSource rate_source;
    double rate, mfu; // tokens/s of all GPUs and its utilisation
    double steps;
    PlanBudget budget;

    double bubble_of_wall, bubble_of_ideal; // closed form, equal stages
    double stash[PLAN_STAGES_SHOWN];        // bytes of activations in flight per stage
    int64_t stage_bytes[PLAN_STAGES_SHOWN]; // all of its memory
    double in_flight[PLAN_STAGES_SHOWN]; // micro-batches that these belong to; a chunk of a stage counts for its part
    int stash_count;

    bool fits;       // in the device's memory
    PlanTry fitting; // when it does not: the fastest way that does, of those that were tried; what is "": none

    double critical_batch; // tokens; an estimate
    StepPart bottleneck;
    char bottleneck_text[PLAN_TEXT_MAX];
    PlanChange changes[PLAN_CHANGES_MAX];
    int change_count;
    // What to do in which order: the best change, then the best one after it, and so on; a gain is that over the entry
    // before. A plan that does not fit starts with the way that does.
    PlanChange checklist[PLAN_CHECKLIST_MAX];
    int checklist_count;
    PlanChange fp8; // what it would bring; what is "" where the device has no such units or the run has it already
    char warnings[PLAN_WARNINGS_MAX][PLAN_TEXT_MAX];
    int warning_count;

    double hours_tokens;
    PlanVocab vocab[2]; // as configured, and as asked
    PlanLargest largest;
} PlanReport;

Status plan_report(PlanReport *report, const char *name, const PlanMachine *machine, const PlanRun *run,
                   const PlanQuestions *questions);

// ---- parts of the report (plan_advice.c, plan_inverse.c) ------------------------------------------------------------

void plan_advise(PlanReport *report);
// Single changes of a run of the report's that fit and gain (or make it fit), most gain first; returns how many.
int plan_changes(PlanTry *best, int most, const PlanReport *report, const PlanRun *run, const PlanPrediction *now);
// The fastest way to cut and batch the run at its sequence length and tokens a step, those tried first that cut the
// model least; false when none fits.
bool plan_fastest_fit(PlanTry *found, const PlanMachine *machine, const PlanRun *run, const StepModel *step,
                      double memory_limit);
void plan_fit(PlanReport *report);
void plan_checklist(PlanReport *report);
void plan_what_if_fp8(PlanReport *report);
void plan_warn(PlanReport *report);
Status plan_vocab(PlanVocab *result, const PlanReport *report, int vocab);
// Width and depth scale together (depth within a quarter), the rest of the shape is kept; every size gets the fastest
// micro-batch that fits.
void plan_largest(PlanLargest *largest, const PlanReport *report);
// Batch beyond which more data in a step no longer saves steps in proportion (Kaplan et al.: 2e8 tokens / loss^4.76),
// at the loss that Chinchilla's law gives for the end of the run.
double plan_critical_batch(double params, double tokens);
