// What so many tokens at such a rate mean on a machine: time, money, energy, crashes, storage. Plans of a model and of
// bare numbers both come through here.
#pragma once

#include "plan/step_model.h"

typedef struct PlanSpan { // one length of time
    double hours, days, months;
} PlanSpan;
PlanSpan plan_span(double seconds); // months of 30 days

typedef struct PlanBudgetRequest {
    double parameters, active; // of a MoE model: all, and those that a token meets
    double tokens;             // 0: 20 per parameter
    double rate;               // tokens/s of all GPUs
    double mtbf_hours;         // of the whole job; 0: of one GPU over their number
    double checkpoints;        // kept on storage; 0: 3, the last two and the best
    double vocab;              // decides the bytes of a token on disk; 0: not known
    int islands;               // with an outer optimizer; 0: none
} PlanBudgetRequest;

typedef struct PlanBudget {
    double tokens, chinchilla_tokens;
    double seconds, gpu_hours, cost, energy_kwh, energy_cost;
    double petaflop_days;

    double checkpoint_bytes, checkpoint_seconds, mtbf, checkpoint_interval, checkpoint_waste, crash_cost;
    // Over the whole run, crashes included; INFINITY where crashes cost more time than there is between them.
    double calendar_seconds, calendar_cost, crashes, crashes_cost;

    double dataset_bytes, checkpoints, stored_bytes; // stored: the dataset and all checkpoints that are kept
    double storage_month_cost, storage_cost;         // of a month, and of the calendar time
} PlanBudget;

PlanBudget plan_budget(const PlanMachine *machine, const PlanBudgetRequest *request);

double plan_machine_write_seconds(const PlanMachine *machine, double bytes); // of a checkpoint, by all of its nodes

// How the tokens compare with Chinchilla's 20 per parameter, in words: "94 x Chinchilla: ...".
void plan_chinchilla_words(double tokens, double parameters, char *out, size_t size);
