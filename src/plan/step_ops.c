#include "plan/step_ops.h"

#include "model/step_record.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Pricing {
    StageCost *cost;
    const PlanMachine *machine;
    const Layout *layout;
    HardwareDtype dtype;
    bool fused;                           // of the software: hearth's own ops, or the same work in more passes
    double compute_factor, memory_factor; // of the software
    double expert_rows;                   // in use on the busiest rank
    double added;                         // of weight gradients: the share of micro-batches that add
} Pricing;

// ---- one line -------------------------------------------------------------------------------------------------------

// Factors of other software were fitted to logs and contain what the power limit takes.
static double sustained(const Pricing *p) {
    return p->fused ? p->machine->gpu.efficiency.sustained : 1;
}

// A CPU's peak counts two FLOPs for each lane of a multiply-add; other instructions of a vector start as often, and
// come as near to it as products do. A GPU has far more arithmetic beside its products than its memory feeds.
static double vector_seconds(const HardwareGpu *gpu, double work) {
    double rate = gpu->peak[HARDWARE_FP32] / 2 * gpu->efficiency.gemm;
    return gpu->cpu && rate > 0 ? work / rate : 0;
}

// A product has FLOPs and a rate, a pass over memory work as op_vector_work counts it.
static void add_line(Pricing *p, const char *name, OpCategory category, StepPass pass, double times, double flops,
                     double rate, double bytes, double share, double work) {
    StageCost *cost = p->cost;
    const HardwareGpu *gpu = &p->machine->gpu;
    double compute = flops > 0 ? flops / (rate * sustained(p)) * p->compute_factor : vector_seconds(gpu, work);
    double memory = bytes / (gpu->bandwidth * gpu->efficiency.memory * share);
    bool product = category == CATEGORY_GEMM || category == CATEGORY_GROUPED || category == CATEGORY_ATTENTION;
    if (!product) memory *= p->memory_factor;
    if (product && category != CATEGORY_ATTENTION) compute *= p->machine->software.gemm_factor;
    int i = 0;
    while (i < cost->op_count && (cost->ops[i].pass != pass || strcmp(cost->ops[i].name, name) != 0))
        i++;
    assert(i < STEP_OPS_MAX);
    StepOp *op = &cost->ops[i];
    if (i == cost->op_count) {
        cost->op_count++;
        *op = (StepOp){.part = (StepPart)category, .pass = pass, .compute_bound = compute > memory};
        snprintf(op->name, sizeof op->name, "%s", name);
    }
    double seconds = fmax(compute, memory) * times;
    op->kernels += times;
    op->flops += flops * times;
    op->bytes += bytes * times;
    op->seconds += seconds;
    cost->pass[pass] += seconds + times * gpu->efficiency.launch_gap;
}

// The share of a copy's rate that an op's kernels reach; what is inside a product or an attention has no kernel.
static double memory_share(const Pricing *p, OpCategory category, const OpRecord *r) {
    const HardwareEfficiency *e = &p->machine->gpu.efficiency;
    if (!p->fused) return 1; // within the factors of other software
    bool rope = r->op == OP_QK_ROPE_FORWARD || r->op == OP_QK_ROPE_BACKWARD;
    if (rope && tensor_present(r->rope.q_weight)) return e->scattered;
    bool gather = r->op == OP_MOE_GATHER || r->op == OP_MOE_GATHER_FP8;
    if (category == CATEGORY_ROUTING && !gather) return e->scattered;
    return category == CATEGORY_ELEMENTWISE || category == CATEGORY_ROUTING ? e->elementwise : 1;
}

static void add_pass_over(Pricing *p, const char *name, OpCategory category, const StepCall *c, double bytes,
                          double work) {
    if (bytes > 0)
        add_line(p, name, category, c->pass, c->times, 0, 1, bytes, memory_share(p, category, &c->call), work);
}

// Of a part of the call that is fused with a product or attention.
static double part_work(const Pricing *p, const StepCall *c, OpId part, Tensor out) {
    OpRecord record = {part, {out}, .rope = c->call.rope};
    return op_vector_work(&record, p->expert_rows);
}

// ---- products -------------------------------------------------------------------------------------------------------

// What SwiGLU costs beside the products that it is fused with, and the rotary beside its product (forward) and
// attention (backward).
static double swiglu_left(const Pricing *p, Tensor t) {
    return p->fused && t.dtype == DTYPE_BF16 ? 1 - p->machine->gpu.efficiency.swiglu_hidden : 1;
}

static double rope_left(const Pricing *p, const OpRecord *r, bool backward) {
    bool inside = (r->rope.head_dim == 64 || (r->rope.head_dim == 128 && !backward)) &&
                  !(p->layout->request.documents && backward);
    return p->fused && r->tensor[0].dtype == DTYPE_BF16 && inside ? 1 - p->machine->gpu.efficiency.rope_hidden : 1;
}

// Queries and keys of the rows of `of`, which the rotary turns.
static Tensor rope_turned(Tensor of, const Rope *rope) {
    of.cols = (int64_t)(rope->heads + rope->kv_heads) * rope->head_dim;
    return of;
}

// Of hearth's own kernels, which know no TF32.
static HardwareDtype own_dtype(const Pricing *p) {
    return p->dtype == HARDWARE_TF32 ? HARDWARE_FP32 : p->dtype;
}

// m x n results, each a sum of k.
static void add_product(Pricing *p, const StepCall *c, const char *what, Tensor weight, double groups, double m,
                        double n, double k, OpCost cost) {
    char name[STEP_OP_NAME];
    snprintf(name, sizeof name, "%s%s", weight.name, what);
    add_line(p, name, groups > 0 ? CATEGORY_GROUPED : CATEGORY_GEMM, c->pass, c->times, cost.flops,
             hardware_gemm_rate(&p->machine->gpu, groups > 0 ? own_dtype(p) : p->dtype, groups, m, n, k), cost.bytes, 1,
             0);
}

// A product in FP8: which direction it is can be told by what it makes and of what.
static void fp8_name(char name[STEP_OP_NAME], const Tensor *t) {
    bool weight = t[0].dtype == DTYPE_F32, forward = t[1].dtype == DTYPE_E4M3;
    snprintf(name, STEP_OP_NAME, "%s%s, FP8", weight ? t[0].name : t[2].name,
             weight    ? ", weight gradient"
             : forward ? ""
                       : ", input gradient");
}

static HardwareDtype fp8_dtype(const Pricing *p) {
    return p->machine->gpu.peak[HARDWARE_FP8] > 0 ? HARDWARE_FP8 : p->dtype;
}

static void price_fp8(Pricing *p, const StepCall *c, OpCost cost) {
    const Tensor *t = c->call.tensor;
    char name[STEP_OP_NAME];
    const HardwareGpu *gpu = &p->machine->gpu;
    HardwareDtype dtype = fp8_dtype(p);
    fp8_name(name, t);
    double rate = hardware_gemm_rate(gpu, dtype, 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].cols);
    if (p->fused && dtype == HARDWARE_FP8)
        rate *= gpu->efficiency.sustained_fp8 / sustained(p); // the line has the other
    add_line(p, name, CATEGORY_GEMM, c->pass, c->times, cost.flops, rate, cost.bytes, 1, 0);
}

// An assumption: FP8 brings a grouped product what it brings a plain one of the size of a group.
static void price_grouped_fp8(Pricing *p, const StepCall *c, OpCost cost) {
    const Tensor *t = c->call.tensor;
    const HardwareGpu *gpu = &p->machine->gpu;
    bool weight = t[0].dtype == DTYPE_F32;
    double groups = (double)(t[5].cols - 1), each = p->expert_rows / groups, n = (double)t[0].cols;
    double m = weight ? (double)t[1].rows : each, k = weight ? each : (double)t[1].cols;
    double gain = hardware_gemm_rate(gpu, fp8_dtype(p), 0, m, n, k) / hardware_gemm_rate(gpu, p->dtype, 0, m, n, k);
    char name[STEP_OP_NAME];
    fp8_name(name, t);
    add_line(p, name, CATEGORY_GROUPED, c->pass, c->times, cost.flops,
             hardware_gemm_rate(gpu, own_dtype(p), groups, m, n, k) * gain, cost.bytes, 1, 0);
}

// As its parts: the product, and what is left of SwiGLU beside it. Where these are two kernels, and in other software,
// that is a pass over memory of its own.
static void price_swiglu_fp8(Pricing *p, const StepCall *c) {
    const Tensor *t = c->call.tensor, row_weight = t[11], offsets = t[12];
    bool experts = c->call.op == OP_GROUPED_SWIGLU_FP8_FORWARD;
    StepCall product = *c;
    product.call = (OpRecord){experts ? OP_GROUPED_LINEAR_FP8 : OP_LINEAR_FP8, {t[4], t[5], t[6], t[7], t[8], offsets}};
    OpRecord swiglu = {OP_SWIGLU_FP8_FORWARD, {t[0], t[1], t[2], t[3], t[4], t[9], t[10], row_weight, offsets}};
    (experts ? price_grouped_fp8 : price_fp8)(p, &product, op_cost(&product.call, p->expert_rows, p->added));
    double left = p->fused ? 1 - p->machine->gpu.efficiency.swiglu_fp8_hidden : 1;
    OpCategory inside = experts ? CATEGORY_GROUPED : CATEGORY_GEMM;
    add_pass_over(p, experts ? "SwiGLU (experts)" : "SwiGLU", left < 1 ? inside : CATEGORY_ELEMENTWISE, c,
                  op_cost(&swiglu, p->expert_rows, p->added).bytes * left, 0);
}

static void price_linear(Pricing *p, const StepCall *c, OpCost cost) {
    const Tensor *t = c->call.tensor;
    double width = (double)dtype_size(t[0].dtype);
    switch (c->call.op) {
    case OP_LINEAR_FORWARD:
        // Software that does not fuse adds the residual with the next norm.
        if (!p->fused && tensor_present(t[3])) cost.bytes -= (double)tensor_count(t[3]) * width;
        add_product(p, c, "", t[2], 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].cols, cost);
        break;
    case OP_LINEAR_ROPE_FORWARD: {
        Tensor turned = rope_turned(t[0], &c->call.rope);
        double left = rope_left(p, &c->call, false);
        add_product(p, c, "", t[2], 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].cols, cost);
        add_pass_over(p, "RoPE", CATEGORY_GEMM, c, 2 * (double)tensor_count(turned) * width * left,
                      part_work(p, c, OP_QK_ROPE_FORWARD, turned) * left);
        break;
    }
    case OP_LINEAR_SWIGLU_FORWARD:
        add_product(p, c, "", t[2], 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].cols, cost);
        add_pass_over(p, "SwiGLU", CATEGORY_GEMM, c, 1.5 * (double)tensor_count(t[0]) * width * swiglu_left(p, t[0]),
                      part_work(p, c, OP_SWIGLU_PACKED_FORWARD, t[0]) * swiglu_left(p, t[0]));
        break;
    case OP_LINEAR_SWIGLU_BACKWARD: {
        double rows = (double)t[0].rows, n = (double)t[1].cols, k = (double)t[3].cols;
        cost.bytes = (rows * (n + k) + n * k) * width; // of the product alone; SwiGLU's share is the next line
        add_product(p, c, ", input gradient", t[4], 0, rows, n, k, cost);
        add_pass_over(p, "SwiGLU backward", CATEGORY_GEMM, c,
                      (p->fused ? 5 : 6) * (double)tensor_count(t[1]) * width * swiglu_left(p, t[0]),
                      part_work(p, c, OP_SWIGLU_PACKED_BACKWARD, t[0]) * swiglu_left(p, t[0]));
        break;
    }
    case OP_LINEAR_BACKWARD_INPUT:
        add_product(p, c, ", input gradient", t[2], 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].cols, cost);
        break;
    case OP_LINEAR_BACKWARD_WEIGHT:
        add_product(p, c, ", weight gradient", t[0], 0, (double)t[0].rows, (double)t[0].cols, (double)t[1].rows, cost);
        break;
    case OP_LINEAR_FP8: price_fp8(p, c, cost); break;
    case OP_LINEAR_SWIGLU_FP8_FORWARD: price_swiglu_fp8(p, c); break;
    default: assert(!"a linear op"); break;
    }
}

// What other software moves more where hearth's products read tokens: it makes their rows first, once in each pass, and
// keeps those of the forward pass for the weight gradient unless it recomputes.
static void price_rows_of_tokens(Pricing *p, const StepCall *c) {
    const Tensor *t = c->call.tensor;
    bool weight = c->call.op == OP_GROUPED_LINEAR_BACKWARD_WEIGHT;
    bool again = weight && p->layout->request.recompute == RECOMPUTE_SELECTIVE;
    if (p->fused || !tensor_present(t[4]) || (weight && !again)) return;
    Tensor tokens = t[weight ? 2 : 1];
    char name[STEP_OP_NAME];
    snprintf(name, sizeof name, "gather %s%s", tokens.name, again ? " again" : "");
    add_pass_over(p, name, CATEGORY_ROUTING, c,
                  2 * p->expert_rows * (double)tokens.cols * (double)dtype_size(tokens.dtype), 0);
}

static void price_grouped(Pricing *p, const StepCall *c, OpCost cost) {
    const Tensor *t = c->call.tensor;
    if (c->call.op == OP_GROUPED_LINEAR_FP8) {
        price_grouped_fp8(p, c, cost);
        return;
    }
    double groups = (double)(t[3].cols - 1), each = p->expert_rows / groups;
    price_rows_of_tokens(p, c);
    if (c->call.op == OP_GROUPED_LINEAR_BACKWARD_WEIGHT)
        add_product(p, c, ", weight gradient", t[0], groups, (double)t[1].cols, (double)t[2].cols, each, cost);
    else
        add_product(p, c, c->call.op == OP_GROUPED_LINEAR_FORWARD ? "" : ", input gradient", t[2], groups, each,
                    (double)t[0].cols, (double)t[1].cols, cost);
}

// As its parts: the product, and what is left of SwiGLU beside it. Where these are two kernels, and in other software,
// that is a pass over memory of its own.
static void price_grouped_swiglu(Pricing *p, const StepCall *c) {
    const Tensor *t = c->call.tensor;
    bool backward = c->call.op == OP_GROUPED_SWIGLU_BACKWARD;
    StepCall product = *c;
    product.call = backward ? (OpRecord){OP_GROUPED_LINEAR_BACKWARD_INPUT, {t[1], t[4], t[5], t[6]}}
                            : (OpRecord){OP_GROUPED_LINEAR_FORWARD, {t[1], t[2], t[3], t[4], t[6], t[7]}};
    price_grouped(p, &product, op_cost(&product.call, p->expert_rows, p->added));
    Tensor hidden = t[backward ? 1 : 0];
    OpRecord swiglu = {backward ? OP_SWIGLU_BACKWARD : OP_SWIGLU_FORWARD, {t[0], t[1]}};
    double left = swiglu_left(p, hidden);
    add_pass_over(p, backward ? "SwiGLU backward (experts)" : "SwiGLU (experts)",
                  left < 1 ? CATEGORY_GROUPED : CATEGORY_ELEMENTWISE, c,
                  (backward ? 6 : 3) * p->expert_rows * (double)hidden.cols * (double)dtype_size(hidden.dtype) * left,
                  op_vector_work(&swiglu, p->expert_rows) * left);
}

// ---- attention ------------------------------------------------------------------------------------------------------

// Of a full pair of chunks, the mean factor: one in 2 cp - 1 of them has keys of the rank itself.
static double context_factor(const Pricing *p) {
    double cp = p->layout->request.mesh.cp;
    return 1 + (p->machine->software.context_factor - 1) * (2 * cp - 2) / (2 * cp - 1);
}

static void price_attention(Pricing *p, const StepCall *c, OpCost cost) {
    bool backward = c->call.op == OP_ATTENTION_BACKWARD;
    const OpRecord *r = &c->call;
    double width = (double)dtype_size(r->tensor[0].dtype);
    double seq = (double)r->attention.seq * (r->attention.full ? 2 : 1); // causal, with as many keys to a query
    Tensor out = backward ? r->tensor[4] : r->tensor[0];
    const char *name = r->attention.full ? "attention to earlier chunks" : "attention";
    char text[STEP_OP_NAME];
    snprintf(text, sizeof text, "%s%s", name, backward ? " backward" : "");
    double rate = hardware_attention_rate(&p->machine->gpu, own_dtype(p), r->attention.head_dim, seq, backward);
    if (r->attention.full) rate /= context_factor(p);
    add_line(p, text, CATEGORY_ATTENTION, c->pass, c->times, cost.flops, rate, cost.bytes, 1, 0);
    if (backward && r->rope.head_dim) {
        Tensor turned = rope_turned(out, &r->rope);
        double left = rope_left(p, r, true);
        add_pass_over(p, "RoPE backward", CATEGORY_ATTENTION, c, 2 * (double)tensor_count(turned) * width * left,
                      part_work(p, c, OP_QK_ROPE_BACKWARD, turned) * left);
    }
}

// ---- passes over memory ---------------------------------------------------------------------------------------------

// What other software, which keeps ops apart, moves more than hearth does.
static double unfused(const Pricing *p, const OpRecord *r) {
    if (p->fused) return 1;
    switch (r->op) {
    case OP_ADD_RMSNORM_FORWARD: return 2; // the residual is added in a pass of its own
    case OP_ADD_RMSNORM_BACKWARD: return r->flag ? 4.0 / 3 : 5.0 / 4;
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_FP8: return 1.5;
    default: return 1;
    }
}

static void price_elements(Pricing *p, const StepCall *c, OpCost cost) {
    const OpRecord *r = &c->call;
    const Tensor *t = r->tensor;
    char name[STEP_OP_NAME];
    const char *again = c->pass == STEP_RECOMPUTE ? " again" : "";
    double bytes = cost.bytes * unfused(p, r);
    switch (r->op) {
    case OP_ADD_RMSNORM_FORWARD:
    case OP_RMSNORM_FP8_FORWARD: snprintf(name, sizeof name, "%s", t[5].name); break;
    case OP_QUANTIZE:
        snprintf(name, sizeof name, t[3].dtype != DTYPE_BF16 ? "%s in FP8, transposed" : "%s to FP8", t[3].name);
        break;
    case OP_CROSS_ENTROPY_FP8: snprintf(name, sizeof name, "cross entropy"); break;
    case OP_SWIGLU_FP8_FORWARD:
        snprintf(name, sizeof name, tensor_present(t[7]) ? "SwiGLU (experts)" : "SwiGLU");
        break;
    case OP_SWIGLU_FP8_BACKWARD:
        snprintf(name, sizeof name, tensor_present(t[10]) ? "SwiGLU backward (experts)" : "SwiGLU backward");
        break;
    case OP_MOE_GATHER_FP8: snprintf(name, sizeof name, "gather %s in FP8", t[2].name); break;
    case OP_ADD_RMSNORM_BACKWARD: snprintf(name, sizeof name, "%s backward", t[5].name); break;
    case OP_QK_ROPE_FORWARD: snprintf(name, sizeof name, "QK-norm + RoPE%s", again); break;
    case OP_QK_ROPE_BACKWARD: snprintf(name, sizeof name, "QK-norm + RoPE backward"); break;
    case OP_MOE_GATHER:
        // Sorted rows, not tokens: each is read again for every expert that has it.
        if (!p->fused) bytes = 2 * p->expert_rows * (double)t[0].cols * (double)dtype_size(t[0].dtype);
        snprintf(name, sizeof name, "gather %s%s", t[0].name, again);
        break;
    case OP_MOE_SUM:
        if (!p->fused && tensor_present(t[2])) bytes -= (double)tensor_count(t[2]) * (double)dtype_size(t[2].dtype);
        // What others exchange are rows: they sum the tokens of the rank alone.
        if (!p->fused)
            bytes -= (double)(t[0].rows - p->layout->local_tokens) * (double)t[0].cols * (double)dtype_size(t[0].dtype);
        snprintf(name, sizeof name, "sum %s", t[1].name);
        break;
    case OP_ZERO: snprintf(name, sizeof name, "clear gradients"); break;
    case OP_NORM_F32: snprintf(name, sizeof name, "gradient norm"); break;
    case OP_ADAMW: snprintf(name, sizeof name, "AdamW"); break;
    default: {
        snprintf(name, sizeof name, "%s", op_name(r->op));
        for (char *at = name; *at; at++)
            if (*at == '_') *at = ' ';
        break;
    }
    }
    add_pass_over(p, name, c->pass == STEP_ONCE ? CATEGORY_OPTIMIZER : op_category(r->op), c, bytes,
                  op_vector_work(r, p->expert_rows));
}

// ---- a stage --------------------------------------------------------------------------------------------------------

static void price_call(Pricing *p, const StepCall *c) {
    OpCost cost = op_cost(&c->call, p->expert_rows, p->added);
    // Other software spreads experts in its own way, and adds residuals with the next norm.
    bool own = c->call.op == OP_MOE_PLACE_ROWS || c->call.op == OP_MOE_SLOT_GRADIENT || c->call.op == OP_ADD;
    if (own && !p->fused) return;
    switch (op_category(c->call.op)) {
    case CATEGORY_GEMM: price_linear(p, c, cost); break;
    case CATEGORY_GROUPED:
        if (c->call.op == OP_GROUPED_SWIGLU_FORWARD || c->call.op == OP_GROUPED_SWIGLU_BACKWARD)
            price_grouped_swiglu(p, c);
        else if (c->call.op == OP_GROUPED_SWIGLU_FP8_FORWARD)
            price_swiglu_fp8(p, c);
        else
            price_grouped(p, c, cost);
        break;
    case CATEGORY_ATTENTION: price_attention(p, c, cost); break;
    default: price_elements(p, c, cost); break;
    }
}

// Rows that the experts of this rank work on: every token's choices, spread unevenly, and half a tile of padding each.
static double expert_rows(const Layout *layout, double imbalance) {
    const LayoutRequest *r = &layout->request;
    if (!r->config.experts) return 0;
    double align = r->device == DEVICE_CUDA ? OPS_CUDA_ROW_ALIGN : OPS_CPU_ROW_ALIGN;
    double groups = (double)r->config.experts / r->mesh.ep;
    return (double)layout->tokens * r->config.top_k * r->mesh.etp / r->mesh.tp * imbalance + groups * (align - 1) / 2;
}

static Pricing pricing_make(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                            double imbalance) {
    *cost = (StageCost){0};
    double eager = run->eager ? machine->software.eager_factor : 1;
    return (Pricing){.cost = cost,
                     .machine = machine,
                     .layout = layout,
                     .dtype = step_dtype(machine, &layout->request),
                     .fused = machine->software.fused,
                     .compute_factor = machine->software.compute_factor * eager,
                     .memory_factor = machine->software.memory_factor * eager,
                     .expert_rows = expert_rows(layout, imbalance),
                     .added = 1 - 1.0 / run->grad_accum};
}

void stage_call_cost(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                     double imbalance, const StepCall *call) {
    Pricing pricing = pricing_make(cost, machine, run, layout, imbalance);
    pricing.added = 0; // this call says itself whether it adds
    price_call(&pricing, call);
}

void stage_cost(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                double imbalance) {
    Pricing pricing = pricing_make(cost, machine, run, layout, imbalance);
    StepRecord record;
    step_record_make(&record, layout);
    for (int i = 0; i < record.count; i++)
        price_call(&pricing, &record.calls[i]);
    step_record_free(&record);
}
