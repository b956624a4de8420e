#include "plan/plan.h"

#include "base/pipeline_schedule.h"
#include "plan/batch.h"
#include "plan/pipeline.h"
#include "plan/rounding.h"
#include "plan/throughput.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

PlanMachine plan_machine(const Hardware *hardware, const HardwareGpu *gpu, const HardwareNode *node,
                         const HardwareSoftware *software, int gpus, int gpus_per_node, double cores) {
    PlanMachine machine = {
        .gpu = *gpu,
        .software = *software,
        .defaults = hardware->defaults,
        .gpus = gpus,
        .gpus_per_node = gpus_per_node < gpus ? gpus_per_node : gpus,
        .link_bandwidth = gpu->link_bandwidth,
        .link_latency = gpu->link_latency,
        .nic_bandwidth = gpu->nic_bandwidth,
        .nic_latency = gpu->nic_latency,
        .typical = {hardware_typical(hardware, gpu, gpus, false), hardware_typical(hardware, gpu, gpus, true)}};
    if (gpu->cpu) hardware_share_cpu(&machine.gpu, cores / machine.gpus_per_node, cores);
    if (!node) return machine;
    if (node->link_bandwidth > 0) machine.link_bandwidth = node->link_bandwidth;
    if (node->link_latency > 0) machine.link_latency = node->link_latency;
    if (node->nic_bandwidth > 0) machine.nic_bandwidth = node->nic_bandwidth;
    if (node->nic_latency > 0) machine.nic_latency = node->nic_latency;
    if (node->usd_per_hour > 0) machine.gpu.usd_per_hour = node->usd_per_hour;
    return machine;
}

// ---- prediction -----------------------------------------------------------------------------------------------------

static Status check_virtual_stages(const PlanRun *run) {
    int pp = run->layout.mesh.pp;
    if (run->virtual_stages <= 1) return NULL;
    if (run->layout.config.layers < pp * run->virtual_stages)
        return status_usage("%d layers cannot fill %d x %d virtual stages", run->layout.config.layers, pp,
                            run->virtual_stages);
    return pipeline_schedule_check(PIPELINE_INTERLEAVED, pp, run->virtual_stages, run->grad_accum);
}

void plan_limit_virtual_stages(PlanRun *run) {
    Status status = check_virtual_stages(run);
    if (status) run->virtual_stages = 1;
    status_free(status);
}

int64_t plan_in_flight(const PlanRun *run, int stage) {
    LayoutRequest request = run->layout;
    request.virtual_stages = run->virtual_stages;
    return pipeline_in_flight(layout_schedule(&request), request.mesh.pp, run->virtual_stages, stage, run->grad_accum);
}

static LayoutRequest stage_request(const PlanRun *run, int stage) {
    LayoutRequest request = run->layout;
    request.rank = stage * mesh_stage_ranks(&request.mesh);
    request.virtual_stages = run->virtual_stages;
    request.micro_batches = run->grad_accum;
    return request;
}

// The first stage holds the embedding and the deepest stash, the last the head, the second the most layers.
Status plan_layouts(Layout *layouts, int *count, const PlanRun *run) {
    int pp = run->layout.mesh.pp, stages[3] = {0, pp > 2 ? 1 : pp - 1, pp - 1};
    int distinct = pp == 1 ? 1 : pp == 2 ? 2 : 3;
    TRY(check_virtual_stages(run));
    for (*count = 0; *count < distinct; (*count)++) {
        LayoutRequest request = stage_request(run, stages[*count]);
        Status status = layout_build(&layouts[*count], &request);
        if (status) {
            plan_layouts_free(layouts, *count);
            return status;
        }
    }
    return NULL;
}

void plan_layouts_free(Layout *layouts, int count) {
    for (int i = 0; i < count; i++)
        layout_free(&layouts[i]);
}

static PlanMemory fitted_memory(const PlanMachine *machine, const PlanRun *run) {
    const HardwareSoftware *s = &machine->software;
    const LayoutRequest *r = &run->layout;
    double ranks = machine->gpus, layers = ceil((double)r->config.layers / r->mesh.pp) * r->mesh.pp; // stash: p of L/p
    double each = r->recompute == RECOMPUTE_FULL        ? s->activation_full
                  : r->recompute == RECOMPUTE_SELECTIVE ? s->activation_selective
                                                        : s->activation_none;
    double tokens = (double)r->micro_batch * r->seq / r->mesh.cp;
    PlanMemory memory = {.states =
                             s->state_bytes * (double)model_parameters(&r->config).total / ranks + s->fixed_bytes};
    if (r->mesh.tp > 1) memory.states += s->fixed_tensor_bytes;
    memory.active =
        tokens * layers * r->config.hidden * each * (s->tp_replicated + (1 - s->tp_replicated) / r->mesh.tp);
    memory.total = memory.states + memory.active;
    memory.fraction = memory.total / machine->gpu.memory;
    return memory;
}

static void set_expert_rows(PlanMemory *memory, const Layout *layout) {
    if (layout->request.mesh.ep == 1 || !model_sparse_layers(&layout->request.config)) return;
    memory->expert_rows = layout->rows;
    memory->expert_rows_mean = layout_expert_slots(&layout->request);
    memory->expert_rows_most = layout_expert_slots_most(&layout->request);
}

PlanMemory plan_memory(const PlanMachine *machine, const PlanRun *run, const Layout *layouts, int count) {
    if (machine->software.state_bytes > 0) return fitted_memory(machine, run);
    int most = 0;
    for (int i = 1; i < count; i++)
        if (layouts[i].total_bytes > layouts[most].total_bytes) most = i;
    PlanMemory memory = {.exact = true,
                         .stage = layouts[most].place.pp,
                         .total = (double)layouts[most].total_bytes,
                         .fraction = (double)layouts[most].total_bytes / machine->gpu.memory};
    memcpy(memory.bytes, layouts[most].bytes, sizeof memory.bytes);
    set_expert_rows(&memory, &layouts[most]);
    return memory;
}

Status plan_predict(PlanPrediction *prediction, const PlanMachine *machine, const PlanRun *run) {
    Layout layouts[3];
    int count;
    TRY(plan_layouts(layouts, &count, run));
    prediction->memory = plan_memory(machine, run, layouts, count);
    step_model(&prediction->step, machine, run, layouts, count, prediction->memory.fraction);
    plan_layouts_free(layouts, count);
    return NULL;
}

// ---- report ---------------------------------------------------------------------------------------------------------

static Status check_plan(const PlanMachine *machine, const PlanRun *run, const PlanQuestions *questions) {
    const Mesh *mesh = &run->layout.mesh;
    int64_t ranks = mesh_ranks(mesh) * plan_islands(run);
    if (ranks != machine->gpus && plan_islands(run) > 1)
        return status_hint(status_usage("%d islands of dp %d x tp %d x pp %d x cp %d need %lld GPUs, there are %d",
                                        plan_islands(run), mesh->dp, mesh->tp, mesh->pp, mesh->cp, (long long)ranks,
                                        machine->gpus),
                           "leave dp out: it takes what the others leave of an island");
    if (ranks != machine->gpus)
        return status_hint(status_usage("dp %d x tp %d x pp %d x cp %d needs %lld GPUs, there are %d", mesh->dp,
                                        mesh->tp, mesh->pp, mesh->cp, (long long)ranks, machine->gpus),
                           "leave dp out: it takes what the others leave");
    if (questions->mfu > 1)
        return status_usage("a utilisation of %.0f %% cannot be: the peak is the most there is", 100 * questions->mfu);
    return NULL;
}

static void set_rate(PlanReport *r) {
    const StepModel *step = &r->prediction.step;
    r->rate_source = r->questions.rate > 0  ? PLAN_RATE_MEASURED
                     : r->questions.mfu > 0 ? PLAN_RATE_MFU
                                            : PLAN_RATE_MODEL;
    r->rate = step->tokens_per_second;
    if (r->rate_source == PLAN_RATE_MEASURED) r->rate = r->questions.rate;
    double flops = r->questions.count == PLAN_ATTENTION_NONE     ? step->flops_per_token_6n
                   : r->questions.count == PLAN_ATTENTION_CAUSAL ? step->flops_per_token_causal
                                                                 : step->flops_per_token;
    if (r->rate_source == PLAN_RATE_MFU)
        r->rate = plan_tokens_per_second(flops, step->peak, r->machine.gpus, r->questions.mfu);
    r->mfu = plan_mfu(step->flops_per_token, r->rate, step->peak, r->machine.gpus);
}

static void set_budget(PlanReport *r) {
    r->budget = plan_budget(&r->machine, &(PlanBudgetRequest){.parameters = (double)r->parameters.total,
                                                              .active = (double)r->parameters.active,
                                                              .tokens = r->questions.tokens,
                                                              .rate = r->rate,
                                                              .mtbf_hours = r->questions.mtbf_hours,
                                                              .checkpoints = r->questions.checkpoints,
                                                              .vocab = r->run.layout.config.vocab,
                                                              .islands = r->run.layout.islands});
    r->steps = r->questions.steps > 0 ? r->questions.steps
                                      : plan_ceil(plan_optimizer_steps(r->budget.tokens, r->prediction.step.tokens));
    r->hours_tokens = r->questions.hours > 0 ? r->rate * r->questions.hours * 3600 : 0;
    r->critical_batch = plan_critical_batch((double)r->parameters.active, r->budget.tokens);
}

// The schedule says how many micro-batches a stage holds; the layout has their bytes.
static Status set_pipeline(PlanReport *r) {
    int pp = r->run.layout.mesh.pp;
    r->bubble_of_wall = plan_bubble_of_wall(pp, r->run.grad_accum, r->run.virtual_stages);
    r->bubble_of_ideal = plan_bubble_of_ideal(pp, r->run.grad_accum, r->run.virtual_stages);
    r->stash_count = pp > 1 ? (pp < PLAN_STAGES_SHOWN ? pp : PLAN_STAGES_SHOWN) : 0;
    for (int i = 0; i < r->stash_count; i++) {
        LayoutRequest request = stage_request(&r->run, i);
        Layout layout;
        TRY(layout_build(&layout, &request));
        r->in_flight[i] = (double)plan_in_flight(&r->run, i) / r->run.virtual_stages;
        r->stash[i] = (double)layout.bytes[LAYOUT_ACTIVATIONS];
        r->stage_bytes[i] = layout.total_bytes;
        layout_free(&layout);
    }
    return NULL;
}

Status plan_report(PlanReport *report, const char *name, const PlanMachine *machine, const PlanRun *run,
                   const PlanQuestions *questions) {
    *report = (PlanReport){
        .machine = *machine, .run = *run, .questions = *questions, .parameters = model_parameters(&run->layout.config)};
    snprintf(report->name, sizeof report->name, "%s", name);
    if (report->questions.memory_limit <= 0) report->questions.memory_limit = PLAN_MEMORY_LIMIT;
    TRY(check_plan(machine, run, questions));
    TRY(plan_predict(&report->prediction, machine, run));
    set_rate(report);
    set_budget(report);
    TRY(set_pipeline(report));
    plan_fit(report);
    plan_advise(report);
    plan_checklist(report);
    plan_what_if_fp8(report);
    plan_warn(report);
    if (questions->vocab > 0) {
        TRY(plan_vocab(&report->vocab[0], report, run->layout.config.vocab));
        TRY(plan_vocab(&report->vocab[1], report, questions->vocab));
    }
    if (questions->target_hours > 0) plan_largest(&report->largest, report);
    return NULL;
}
