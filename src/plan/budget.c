#include "plan/budget.h"

#include "plan/checkpointing.h"
#include "plan/cost.h"
#include "plan/data_budget.h"
#include "plan/flops.h"
#include "plan/throughput.h"

#include <math.h>
#include <stdio.h>

PlanSpan plan_span(double seconds) {
    return (PlanSpan){.hours = seconds / 3600, .days = seconds / 86400, .months = seconds / (30 * 86400)};
}

double plan_machine_write_seconds(const PlanMachine *machine, double bytes) {
    double nodes = ceil((double)machine->gpus / machine->gpus_per_node);
    double bandwidth = fmin(machine->defaults.checkpoint_bandwidth, machine->defaults.storage_bandwidth / nodes);
    return plan_write_seconds(bytes, bandwidth, nodes);
}

static void set_time(PlanBudget *b, const PlanMachine *machine, const PlanBudgetRequest *request) {
    const HardwareDefaults *d = &machine->defaults;
    b->chinchilla_tokens = plan_chinchilla_tokens(request->parameters);
    b->tokens = request->tokens > 0 ? request->tokens : b->chinchilla_tokens;
    b->seconds = plan_seconds_for_tokens(b->tokens, request->rate);
    b->gpu_hours = b->seconds / 3600 * machine->gpus;
    b->cost = plan_gpu_cost(machine->gpus, b->seconds, machine->gpu.usd_per_hour);
    b->energy_kwh = plan_energy_kwh(machine->gpus, machine->gpu.watts, b->seconds, d->pue);
    b->energy_cost = plan_electricity_cost(machine->gpus, machine->gpu.watts, b->seconds, d->usd_per_kwh, d->pue);
    b->petaflop_days = plan_train_flops(request->active, b->tokens) / (1e15 * 86400);
}

static void set_crashes(PlanBudget *b, const PlanMachine *machine, const PlanBudgetRequest *request) {
    const HardwareDefaults *d = &machine->defaults;
    b->checkpoint_bytes = plan_checkpoint_parameter_bytes(request->islands) * request->parameters;
    b->checkpoint_seconds = plan_machine_write_seconds(machine, b->checkpoint_bytes);
    b->mtbf = request->mtbf_hours > 0 ? request->mtbf_hours * 3600 : d->gpu_mtbf / machine->gpus;
    b->checkpoint_interval = plan_young_interval(b->mtbf, b->checkpoint_seconds);
    b->checkpoint_waste = plan_young_waste(b->mtbf, b->checkpoint_seconds);
    b->crash_cost = plan_crash_cost(machine->gpus, machine->gpu.usd_per_hour, b->checkpoint_interval, d->recovery);
    b->calendar_seconds = plan_calendar_seconds(b->seconds, b->mtbf, b->checkpoint_seconds, d->recovery);
    b->calendar_cost = plan_gpu_cost(machine->gpus, b->calendar_seconds, machine->gpu.usd_per_hour);
    b->crashes = plan_expected_crashes(b->calendar_seconds, b->mtbf);
    b->crashes_cost = b->crashes * b->crash_cost;
}

static void set_storage(PlanBudget *b, const PlanMachine *machine, const PlanBudgetRequest *request) {
    b->checkpoints = request->checkpoints > 0 ? request->checkpoints : 3;
    b->dataset_bytes = plan_dataset_bytes(b->tokens, plan_token_bytes(request->vocab));
    b->stored_bytes = b->dataset_bytes + b->checkpoints * b->checkpoint_bytes;
    b->storage_month_cost = plan_storage_cost(b->stored_bytes, 1, machine->defaults.usd_per_gb_month);
    b->storage_cost =
        plan_storage_cost(b->stored_bytes, plan_span(b->calendar_seconds).months, machine->defaults.usd_per_gb_month);
}

PlanBudget plan_budget(const PlanMachine *machine, const PlanBudgetRequest *request) {
    PlanBudget budget = {0};
    set_time(&budget, machine, request);
    set_crashes(&budget, machine, request);
    set_storage(&budget, machine, request);
    return budget;
}

void plan_chinchilla_words(double tokens, double parameters, char *out, size_t size) {
    double times = tokens / plan_chinchilla_tokens(parameters);
    const char *words =
        times < 0.5   ? "undertrained; for this compute a smaller model on more tokens reaches a lower loss"
        : times < 1.5 ? "about compute-optimal, the best loss for this compute; it still falls when the tokens end"
        : times < 10 ? "overtrained, with more compute than this loss needs, for a smaller model that is cheaper to run"
                     : "far overtrained, for a small model that is run a lot (Llama 3 8B: 94 x); each further token "
                       "brings less";
    snprintf(out, size, "%.*f x Chinchilla: %s", times < 9.95 ? 2 : 0, times, words);
}
