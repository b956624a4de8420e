#include "plan/nodes.h"

#include "plan/cost.h"
#include "plan/throughput.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Comparison {
    PlanNodes *nodes;
    const Hardware *hardware;
    const PlanMachine *here;
    double tokens;
    PlanNodeTry try;
    const void *context;
} Comparison;

static void add_row(const Comparison *c, const HardwareGpu *gpu, const HardwareNode *node) {
    if (c->nodes->count == PLAN_NODES_MAX) return;
    PlanNode *row = &c->nodes->rows[c->nodes->count++];
    *row = (PlanNode){.here = strcmp(gpu->name, c->here->gpu.name) == 0};
    snprintf(row->name, sizeof row->name, "%s", node ? node->name : gpu->name);
    snprintf(row->title, sizeof row->title, "%s", gpu->title);
    int per_node = node ? (int)node->gpus : row->here ? c->here->gpus_per_node : 8;
    PlanMachine machine = plan_machine(c->hardware, gpu, node, &c->here->software, c->here->gpus, per_node, 1);
    if (row->here) machine.gpu = c->here->gpu;
    machine.defaults = c->here->defaults;
    c->try(row, &machine, c->context);
    if (!row->fits) return;
    row->seconds = plan_seconds_for_tokens(c->tokens, row->rate);
    row->cost = plan_gpu_cost(machine.gpus, row->seconds, machine.gpu.usd_per_hour);
    row->energy_kwh = plan_energy_kwh(machine.gpus, machine.gpu.watts, row->seconds, machine.defaults.pue);
}

static int by_cost(const void *a, const void *b) {
    const PlanNode *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return strcmp(x->name, y->name);
}

void plan_nodes(PlanNodes *nodes, const Hardware *hardware, const PlanMachine *machine, double tokens, PlanNodeTry try,
                const void *context) {
    const Comparison c = {nodes, hardware, machine, tokens, try, context};
    *nodes = (PlanNodes){.cheapest = -1, .fastest = -1};
    for (int g = 0; g < hardware->gpu_count; g++) {
        const HardwareGpu *gpu = &hardware->gpus[g];
        int of_it = 0;
        for (int n = 0; n < hardware->node_count; n++)
            if (strcmp(hardware->nodes[n].gpu, gpu->name) == 0) add_row(&c, gpu, &hardware->nodes[n]), of_it++;
        // CPUs are for small things: beside GPUs only when the plan is of one.
        if (!of_it && (!gpu->cpu || machine->gpu.cpu)) add_row(&c, gpu, NULL);
    }
    qsort(nodes->rows, (size_t)nodes->count, sizeof nodes->rows[0], by_cost);
    for (int i = 0; i < nodes->count && nodes->rows[i].fits; i++) {
        if (nodes->cheapest < 0) nodes->cheapest = i;
        if (nodes->fastest < 0 || nodes->rows[i].seconds < nodes->rows[nodes->fastest].seconds) nodes->fastest = i;
    }
}

static void try_report(PlanNode *row, const PlanMachine *machine, const void *context) {
    const PlanReport *report = context;
    PlanRun run = report->run;
    PlanPrediction prediction;
    PlanTry fitting;
    run.layout.device = machine->gpu.cpu ? DEVICE_CPU : DEVICE_CUDA;
    if (!row->here) run.calibration = 1; // learned on the other device
    Status status = machine->software.state_bytes > 0 ? NULL : layout_check_kernels(&run.layout);
    if (!status) status = plan_predict(&prediction, machine, &run);
    bool planned = !status;
    status_free(status); // a shape that there are no kernels for: it does not run there
    if (!planned) return;
    row->fits = prediction.memory.fraction <= 1;
    row->rate = prediction.step.tokens_per_second;
    if (!row->fits) {
        row->fits = plan_fastest_fit(&fitting, machine, &run, &prediction.step, report->questions.memory_limit);
        if (!row->fits) return;
        row->rate = fitting.change.tokens_per_second;
        snprintf(row->how, sizeof row->how, "%s", fitting.change.what);
    }
    double flops = prediction.step.flops_per_token;
    if (report->rate_source == PLAN_RATE_MFU)
        row->rate = plan_tokens_per_second(flops, prediction.step.peak, machine->gpus, report->mfu);
    else
        row->rate *= report->rate / report->prediction.step.tokens_per_second;
    row->mfu = plan_mfu(flops, row->rate, prediction.step.peak, machine->gpus);
}

void plan_nodes_of_report(PlanNodes *nodes, const Hardware *hardware, const PlanReport *report) {
    plan_nodes(nodes, hardware, &report->machine, report->budget.tokens, try_report, report);
}
