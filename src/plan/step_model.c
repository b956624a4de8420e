#include "plan/step_model.h"

#include "plan/collectives.h"
#include "plan/flops.h"
#include "plan/step_ops.h"

#include <math.h>

static const char *const other_part_names[STEP_PART_COUNT] = {
    [STEP_LAUNCH] = "launch gaps",
    [STEP_TENSOR] = "tensor-parallel all-reduce",
    [STEP_CONTEXT] = "context-parallel ring",
    [STEP_EXPERT] = "expert exchange",
    [STEP_PIPELINE] = "pipeline send/receive",
    [STEP_DATA_PARALLEL] = "data-parallel gradients and weights",
    [STEP_OUTER] = "outer steps of islands",
    [STEP_BUBBLE] = "pipeline bubble",
    [STEP_HOST_DATA] = "data",
    [STEP_PRESSURE] = "memory pressure",
};
static const char *const pass_names[] = {"forward", "backward", "recompute", "once"};

const char *step_part_name(StepPart part) {
    return part < (StepPart)CATEGORY_COUNT ? op_category_name((OpCategory)part) : other_part_names[part];
}

const char *step_pass_name(StepPass pass) {
    return pass_names[pass];
}

// fp16 has the rates of bf16, which are measured; GPUs from before bf16 have their own for it. A CPU makes floats of
// it.
HardwareDtype step_dtype(const PlanMachine *machine, const LayoutRequest *request) {
    const double *peak = machine->gpu.peak;
    if (request->precision == PRECISION_FP32)
        return request->tf32 && peak[HARDWARE_TF32] > 0 ? HARDWARE_TF32 : HARDWARE_FP32;
    if (machine->gpu.cpu && request->precision == PRECISION_FP16) return HARDWARE_FP32;
    if (peak[HARDWARE_BF16] > 0) return HARDWARE_BF16;
    return request->precision == PRECISION_FP16 && peak[HARDWARE_FP16] > 0 ? HARDWARE_FP16 : HARDWARE_FP32;
}

// ---- links ----------------------------------------------------------------------------------------------------------

// A group of `ranks` that stand `stride` GPUs apart.
typedef struct Group {
    double ranks, in_node, nodes;
} Group;

static Group group_of(const PlanMachine *machine, double ranks, double stride) {
    double in_node = fmin(ranks, fmax(1, floor(machine->gpus_per_node / stride)));
    return (Group){ranks, in_node, ceil(ranks / in_node)};
}

// One phase (reduce-scatter or all-gather): inside the node, then one ring of the node's share per GPU's own NIC.
static double phase_seconds(const PlanMachine *machine, Group group, double bytes) {
    double use = machine->gpu.efficiency.link, seconds = 0;
    if (group.in_node > 1)
        seconds += plan_ring_phase_seconds(bytes, group.in_node, machine->link_bandwidth * use, machine->link_latency);
    if (group.nodes > 1)
        seconds += plan_ring_phase_seconds(bytes / group.in_node, group.nodes, machine->nic_bandwidth * use,
                                           machine->nic_latency);
    return seconds;
}

static double send_seconds(const PlanMachine *machine, bool between_nodes, double bytes) {
    double use = machine->gpu.efficiency.link;
    return between_nodes ? bytes / (machine->nic_bandwidth * use) + machine->nic_latency
                         : bytes / (machine->link_bandwidth * use) + machine->link_latency;
}

// ---- communication inside layers ------------------------------------------------------------------------------------

typedef struct Comm { // of one micro-step of one stage
    double forward, backward;
    double bytes;
} Comm;

// Two all-reduces of [tokens, hidden] per layer and direction, on the critical path; full recompute repeats one.
static Comm tensor_comm(const PlanMachine *machine, const Layout *layout, StepAxis *axis) {
    const LayoutRequest *r = &layout->request;
    Group group = group_of(machine, r->mesh.tp, 1);
    *axis = (StepAxis){.ranks = r->mesh.tp, .between_nodes = group.nodes > 1};
    if (r->mesh.tp == 1) return (Comm){0};
    double bytes = (double)layout->tokens * r->config.hidden * (double)dtype_size(layout->dtype);
    double each = 2 * phase_seconds(machine, group, bytes), layers = layout->layer_count;
    double again = r->recompute == RECOMPUTE_FULL ? 1 : 0;
    return (Comm){.forward = 2 * layers * each,
                  .backward = (2 + again) * layers * each,
                  .bytes = (4 + again) * layers * plan_ring_allreduce_bytes(bytes, r->mesh.tp)};
}

static double attention_seconds(const StageCost *cost, StepPass pass) {
    double seconds = 0;
    for (int i = 0; i < cost->op_count; i++)
        if (cost->ops[i].part == STEP_ATTENTION && cost->ops[i].pass == pass) seconds += cost->ops[i].seconds;
    return seconds;
}

// hearth (model/seam_context.c): keys and values travel around the ring, in the backward pass again, and once more
// where the forward pass runs again. Those of a block pass on behind the attention to it; the float sums of their
// gradients behind that of the next block, beside its keys; after the last one they go home, behind nothing. Other
// software gathers the keys and values of all query heads at once behind the attention to its own block; the sums
// travel as in hearth.
static Comm context_comm(const PlanMachine *machine, const Layout *layout, const StageCost *cost, StepAxis *axis,
                         double *on_links) {
    const LayoutRequest *r = &layout->request;
    const Mesh *mesh = &r->mesh;
    Group group = group_of(machine, mesh->cp, mesh->tp);
    *axis = (StepAxis){.ranks = mesh->cp, .between_nodes = group.nodes > 1};
    *on_links = 0;
    if (mesh->cp == 1) return (Comm){0};
    bool ring = machine->software.fused;
    double cp = mesh->cp, layers = layout->layer_count, again = r->recompute == RECOMPUTE_FULL ? 1 : 0;
    double heads = ring ? mesh_kv_heads(mesh, r->config.kv_heads) : (double)r->config.heads / mesh->tp;
    double count = 2.0 * (double)layout->tokens * heads * r->config.head_dim;
    double bytes = count * (double)dtype_size(layout->dtype), sum_bytes = count * sizeof(float);
    double hop = send_seconds(machine, group.nodes > 1, bytes), sum = send_seconds(machine, group.nodes > 1, sum_bytes);
    double gather = ring ? (cp - 1) * hop : phase_seconds(machine, group, cp * bytes);
    double forward_block = attention_seconds(cost, STEP_FORWARD) / (layers * cp);
    double backward_block = attention_seconds(cost, STEP_BACKWARD) / (layers * cp);
    double forward, backward; // exposed, of a layer
    if (ring) {
        forward = (cp - 1) * fmax(0, hop - forward_block);
        backward = fmax(0, hop - backward_block) + (cp - 2) * fmax(0, hop + sum - backward_block) +
                   fmax(0, sum - backward_block) + sum;
    } else {
        forward = fmax(0, gather - forward_block);
        backward = fmax(0, gather - backward_block) + (cp - 1) * fmax(0, sum - backward_block) + sum;
    }
    *on_links = layers * ((2 + again) * gather + cp * sum);
    return (Comm){.forward = layers * forward,
                  .backward = layers * (backward + again * forward),
                  .bytes = layers * ((2 + again) * (cp - 1) * bytes + cp * sum_bytes)};
}

static double sparse_layers(const Layout *layout) { // of the stage
    double sparse = 0;
    for (int i = 0; i < layout->chunk_count; i++)
        sparse += layout->chunks[i].sparse;
    return sparse;
}

// hearth (model/seam_experts.c): the ranks that share experts gather all tokens with their choices and reduce parts of
// the sums, each way; the gradients of the combine weights go back too. What is gathered again is gathered again.
static Comm dispatch_comm(const PlanMachine *machine, const Layout *layout, StepAxis *axis) {
    const LayoutRequest *r = &layout->request;
    int ranks = r->mesh.ep * r->mesh.etp;
    Group group = group_of(machine, ranks, 1);
    *axis = (StepAxis){.ranks = ranks, .between_nodes = group.nodes > 1};
    if (!r->config.experts || ranks == 1) return (Comm){0};
    double sparse = sparse_layers(layout), all = (double)layout_dispatched_tokens(r);
    double tokens = all * r->config.hidden * (double)dtype_size(layout->dtype), slots = all * r->config.top_k * 4;
    double sync = (ranks - 1) * machine->software.exchange_sync, use = machine->software.exchange_efficiency;
    double gather = phase_seconds(machine, group, tokens) / use + sync; // and as much to reduce
    double small = phase_seconds(machine, group, slots) / use;          // experts, weights, or their gradients
    double again = r->recompute == RECOMPUTE_NONE ? 0 : 1, choose_again = r->recompute == RECOMPUTE_FULL ? 2 : 0;
    return (Comm){.forward = sparse * (2 * gather + 2 * small),
                  .backward = sparse * ((2 + again) * gather + (1 + choose_again) * small),
                  .bytes = sparse * plan_ring_phase_bytes((4 + again) * tokens + (3 + choose_again) * slots, ranks)};
}

// Other software: dispatch and combine as all-to-alls, each way. Beside the bytes: latency per peer, the wait for the
// busiest rank, and what the software adds per exchange and peer. Experts cut by etp also gather their rows over those
// ranks.
static Comm expert_comm(const PlanMachine *machine, const Layout *layout, double imbalance, StepAxis *axis) {
    if (machine->software.fused) return dispatch_comm(machine, layout, axis);
    const LayoutRequest *r = &layout->request;
    const Mesh *mesh = &r->mesh;
    Group group = group_of(machine, mesh->ep, mesh->etp);
    *axis = (StepAxis){.ranks = mesh->ep, .between_nodes = group.nodes > 1};
    if (!r->config.experts) return (Comm){0};
    double sparse = sparse_layers(layout);
    double width = (double)dtype_size(layout->dtype), seconds = 0, bytes = 0;
    double rows_bytes = (double)layout->tokens * r->config.top_k / mesh->tp * r->config.hidden * width;
    if (mesh->ep > 1) {
        double use = machine->software.exchange_efficiency * machine->gpu.efficiency.link;
        double bandwidth = (group.nodes > 1 ? machine->nic_bandwidth : machine->link_bandwidth) * use;
        double latency = group.nodes > 1 ? machine->nic_latency : machine->link_latency;
        bytes = rows_bytes * (mesh->ep - 1) / mesh->ep;
        seconds = imbalance * bytes / bandwidth + (mesh->ep - 1) * (latency + machine->software.exchange_sync);
    }
    if (mesh->etp > 1) {
        Group tensor = group_of(machine, mesh->etp, 1);
        double gathered = rows_bytes * mesh->etp;
        seconds += phase_seconds(machine, tensor, gathered) / machine->software.exchange_efficiency;
        bytes += plan_ring_phase_bytes(gathered, mesh->etp);
    }
    double again = r->recompute == RECOMPUTE_FULL ? 1 : 0;
    return (Comm){.forward = 2 * sparse * seconds,
                  .backward = (2 + again) * sparse * seconds,
                  .bytes = (4 + again) * sparse * bytes};
}

// ---- data parallelism -----------------------------------------------------------------------------------------------

// Gradients are reduced at the end of the accumulation window (ZeRO 0, 1) or after each micro-step (2, 3: nobody keeps
// whole gradients), layer by layer behind the backward pass. ZeRO 3 also gathers weights, one layer ahead.
static void data_parallel(const PlanMachine *machine, const PlanRun *run, const Layout *layout, double forward,
                          double backward, StepAxis *axis) {
    const Mesh *mesh = &layout->request.mesh;
    double stride = (double)mesh->tp * mesh->cp * (mesh->ep > 1 ? 1 : mesh->pp);
    double ranks = (double)mesh_data_ranks(mesh), expert_ranks = (double)mesh_expert_data_ranks(mesh);
    Group dense = group_of(machine, ranks, stride / mesh->cp);
    Group expert = group_of(machine, expert_ranks, (double)mesh->ep * mesh->etp);
    *axis = (StepAxis){.ranks = (int)ranks, .between_nodes = dense.nodes > 1};
    if (ranks == 1 && expert_ranks == 1) return;
    double counts[2] = {0, 0}, weights[2] = {0, 0}; // of experts apart: elements, and bytes that are gathered
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        counts[param->expert] += (double)param->count;
        DType dtype = layout->units[param->unit].fp8 >= 0 ? DTYPE_E4M3 : layout->dtype;
        weights[param->expert] += (double)param->count * (double)dtype_size(dtype);
    }
    double grad_bytes = (double)dtype_size(layout->request.reduce);
    double reduce =
        phase_seconds(machine, dense, counts[0] * grad_bytes) + phase_seconds(machine, expert, counts[1] * grad_bytes);
    double gather = phase_seconds(machine, dense, weights[0]) + phase_seconds(machine, expert, weights[1]);
    double reduce_bytes = plan_ring_phase_bytes(counts[0] * grad_bytes, ranks) +
                          plan_ring_phase_bytes(counts[1] * grad_bytes, expert_ranks);
    double gather_bytes = plan_ring_phase_bytes(weights[0], ranks) + plan_ring_phase_bytes(weights[1], expert_ranks);
    double layers = layout->layer_count, times = mesh->zero >= 2 ? run->grad_accum : 1;
    if (mesh->zero == 0) reduce *= 2, reduce_bytes *= 2; // all-reduce: both phases of the gradients
    double behind = reduce + (mesh->zero == 3 ? gather : 0);
    axis->bytes = reduce_bytes * times;
    axis->seconds = behind * times;
    axis->exposed = plan_exposed_comm_seconds(layers, behind / layers, backward / layers) * times;
    if (mesh->zero == 3) {
        axis->bytes += 2 * gather_bytes * times;
        axis->seconds += gather * times;
        axis->exposed += plan_exposed_comm_seconds(layers, gather / layers, forward / layers) * times;
    } else if (mesh->zero > 0) { // the new weights, after the optimizer
        axis->bytes += gather_bytes;
        axis->seconds += gather;
        axis->exposed += gather;
    }
}

// A meeting of islands stops all of them: nothing hides it. Its share of a step.
static void outer_axis(StepModel *model, const PlanMachine *machine, const PlanRun *run, const Layout *layout) {
    StepAxis *axis = &model->axis[STEP_OUTER];
    Group group = group_of(machine, plan_islands(run), (double)mesh_ranks(&run->layout.mesh));
    *axis = (StepAxis){.ranks = plan_islands(run), .between_nodes = group.nodes > 1};
    if (axis->ranks == 1) return;
    double bytes = (double)layout->shard_count * run->outer_bytes;
    axis->bytes = plan_ring_allreduce_bytes(bytes, axis->ranks) / run->outer_every;
    axis->seconds = axis->exposed = 2 * phase_seconds(machine, group, bytes) / run->outer_every;
    model->part[STEP_OUTER] = axis->exposed;
}

// ---- the step -------------------------------------------------------------------------------------------------------

typedef struct Stage {
    StageCost cost;
    Comm tensor, context, expert;
    double context_links;
    double forward, backward;
} Stage;

static void stage_model(Stage *stage, StepModel *model, const PlanMachine *machine, const PlanRun *run,
                        const Layout *layout) {
    stage_cost(&stage->cost, machine, run, layout, model->imbalance);
    stage->tensor = tensor_comm(machine, layout, &model->axis[STEP_TENSOR]);
    stage->context = context_comm(machine, layout, &stage->cost, &model->axis[STEP_CONTEXT], &stage->context_links);
    stage->expert = expert_comm(machine, layout, model->imbalance, &model->axis[STEP_EXPERT]);
    stage->forward =
        stage->cost.pass[STEP_FORWARD] + stage->tensor.forward + stage->context.forward + stage->expert.forward;
    stage->backward = stage->cost.pass[STEP_BACKWARD] + stage->cost.pass[STEP_RECOMPUTE] + stage->tensor.backward +
                      stage->context.backward + stage->expert.backward;
}

static void in_layer_axis(StepModel *model, StepPart part, Comm comm, double on_links, double micro_steps) {
    StepAxis *axis = &model->axis[part];
    axis->bytes = comm.bytes * micro_steps;
    axis->exposed = (comm.forward + comm.backward) * micro_steps;
    axis->seconds = on_links * micro_steps;
    model->part[part] = axis->exposed;
}

static void pipeline_axis(StepModel *model, const PlanMachine *machine, const PlanRun *run, const Layout *layout) {
    const Mesh *mesh = &layout->request.mesh;
    StepAxis *axis = &model->axis[STEP_PIPELINE];
    double stride = (double)mesh->tp * mesh->cp * (mesh->ep > 1 ? mesh->dp : 1);
    axis->ranks = mesh->pp;
    axis->between_nodes = stride * mesh->pp > machine->gpus_per_node;
    if (mesh->pp == 1) return;
    double bytes = (double)layout->tokens * layout->request.config.hidden * (double)dtype_size(layout->dtype);
    double each = send_seconds(machine, axis->between_nodes, bytes), virtual_stages = run->virtual_stages;
    axis->bytes = 2 * bytes * virtual_stages * run->grad_accum;
    axis->seconds = 2 * each * virtual_stages * run->grad_accum;
    axis->exposed = 2 * each * (mesh->pp * virtual_stages - 1); // filling and draining; between, sends overlap
    model->part[STEP_PIPELINE] = axis->exposed;
}

static void add_ops(StepModel *model, const StageCost *cost, const PlanMachine *machine, double micro_steps,
                    double *flops) {
    model->op_count = cost->op_count;
    *flops = 0;
    for (int i = 0; i < cost->op_count; i++) {
        const StepOp *op = &cost->ops[i];
        double times = op->pass == STEP_ONCE ? 1 : micro_steps;
        model->ops[i] = *op;
        model->part[op->part] += op->seconds * times;
        model->part[STEP_LAUNCH] += op->kernels * machine->gpu.efficiency.launch_gap * times;
        *flops += op->flops * times;
    }
}

static void rates(StepModel *model, const PlanMachine *machine, const ModelConfig *c, double seq, double step_flops) {
    ModelParameters count = model_parameters(c);
    double matmul = (double)count.matmul_active;
    model->tokens_per_second = model->tokens / model->seconds;
    model->flops_per_token = plan_flops_per_token(matmul, c->layers, c->heads, c->head_dim, seq, PLAN_ATTENTION_FULL);
    model->flops_per_token_causal =
        plan_flops_per_token(matmul, c->layers, c->heads, c->head_dim, seq, PLAN_ATTENTION_CAUSAL);
    model->flops_per_token_6n = 6 * (double)count.active;
    model->peak = machine->gpu.peak[model->dtype];
    model->mfu = plan_mfu(model->flops_per_token, model->tokens_per_second, model->peak, machine->gpus);
    model->mfu_causal = plan_mfu(model->flops_per_token_causal, model->tokens_per_second, model->peak, machine->gpus);
    model->mfu_6n = plan_mfu(model->flops_per_token_6n, model->tokens_per_second, model->peak, machine->gpus);
    model->hfu = step_flops / (model->seconds * model->peak);
}

void step_model(StepModel *model, const PlanMachine *machine, const PlanRun *run, const Layout *layouts, int count,
                double used_fraction) {
    const LayoutRequest *r = &run->layout;
    const Mesh *mesh = &r->mesh;
    double micro_steps = run->grad_accum, slowest = 0;
    *model = (StepModel){.dtype = step_dtype(machine, r),
                         .imbalance = 1 + machine->software.imbalance * log2(mesh->ep),
                         .tokens = (double)r->micro_batch * r->seq * mesh->dp * micro_steps * plan_islands(run)};
    Stage stages[3];
    int busiest = 0;
    double inner = 0; // of the stages between the first and the last
    for (int i = 0; i < count; i++) {
        stage_model(&stages[i], model, machine, run, &layouts[i]);
        double seconds = stages[i].forward + stages[i].backward;
        bool middle = count == 3 && i == 1;
        if (middle)
            inner = seconds * (mesh->pp - 2);
        else
            model->fill += seconds;
        if (seconds > slowest) slowest = seconds, busiest = i;
    }
    model->fill += inner;
    const Stage *stage = &stages[busiest];
    const Layout *layout = &layouts[busiest];
    double flops;
    model->stage = layout->place.pp;
    model->forward = stage->forward, model->backward = stage->backward;
    add_ops(model, &stage->cost, machine, micro_steps, &flops);
    in_layer_axis(model, STEP_TENSOR, stage->tensor, stage->tensor.forward + stage->tensor.backward, micro_steps);
    in_layer_axis(model, STEP_CONTEXT, stage->context, stage->context_links, micro_steps);
    in_layer_axis(model, STEP_EXPERT, stage->expert, stage->expert.forward + stage->expert.backward, micro_steps);
    pipeline_axis(model, machine, run, layout);
    model->part[STEP_BUBBLE] = (model->fill - slowest) / run->virtual_stages;
    data_parallel(machine, run, layout, stage->forward, stage->backward, &model->axis[STEP_DATA_PARALLEL]);
    model->part[STEP_DATA_PARALLEL] = model->axis[STEP_DATA_PARALLEL].exposed;
    outer_axis(model, machine, run, layout);
    double host = (double)layout->tokens * (r->documents ? 12 : 8) / machine->gpu.host_bandwidth;
    model->part[STEP_HOST_DATA] = r->device == DEVICE_CUDA ? fmax(0, host - slowest) * micro_steps : 0;
    for (int i = 0; i < STEP_PART_COUNT; i++)
        model->seconds += model->part[i];
    double over = fmax(0, used_fraction - PLAN_MEMORY_FULL);
    model->part[STEP_PRESSURE] = model->seconds * machine->software.pressure * over * over;
    model->seconds += model->part[STEP_PRESSURE];
    if (run->calibration > 0 && run->calibration != 1) {
        for (int i = 0; i < STEP_PART_COUNT; i++)
            model->part[i] *= run->calibration;
        model->seconds *= run->calibration;
    }
    rates(model, machine, &r->config, r->seq, flops);
}
