// Which ops a micro-step runs, with which shapes: keep in step with model/transformer.c.
#include "plan/step_ops.h"

#include <assert.h>
#include <math.h>

typedef struct Builder {
    StageCost *cost;
    const PlanMachine *machine;
    HardwareDtype dtype;
    double width;                         // bytes of an activation
    bool fused;                           // of the software
    double compute_factor, memory_factor; // of the software
    double layers;                        // how often the op runs in a micro-step
    double grad_accum;
} Builder;

static void add(Builder *b, const char *name, StepPart part, StepPass pass, double flops, double rate, double bytes) {
    assert(b->cost->op_count < STEP_OPS_MAX);
    if (b->layers <= 0) return;
    const HardwareGpu *gpu = &b->machine->gpu;
    // Factors of other software were fitted to logs and contain what the power limit takes.
    double sustained = b->fused ? gpu->efficiency.sustained : 1;
    double compute = flops > 0 ? flops / (rate * sustained) * b->compute_factor : 0;
    double memory = bytes / (gpu->bandwidth * gpu->efficiency.memory);
    if (part == STEP_MEMORY_OPS || part == STEP_OPTIMIZER) memory *= b->memory_factor;
    StepOp op = {.name = name,
                 .part = part,
                 .pass = pass,
                 .kernels = b->layers,
                 .flops = flops * b->layers,
                 .bytes = bytes * b->layers,
                 .seconds = fmax(compute, memory) * b->layers,
                 .compute_bound = compute > memory};
    b->cost->ops[b->cost->op_count++] = op;
    b->cost->pass[pass] += op.seconds + op.kernels * gpu->efficiency.launch_gap;
}

// y[rows, out] = x[rows, in] w[out, in]. Of a grouped product, rows are spread over `groups` weights.
static void product(Builder *b, const char *name, StepPass pass, double rows, double in, double out, double groups) {
    bool grouped = groups > 1;
    double each = rows / groups;
    add(b, name, grouped ? STEP_GROUPED_GEMM : STEP_GEMM, pass, 2 * rows * in * out,
        hardware_gemm_rate(&b->machine->gpu, b->dtype, grouped, each, out, in),
        (rows * (in + out) + groups * in * out) * b->width);
}

// The same, onto the residual: it is read as well. Software that does not fuse adds it with the next norm.
static void product_onto(Builder *b, const char *name, StepPass pass, double rows, double in, double out) {
    if (!b->fused) {
        product(b, name, pass, rows, in, out, 1);
        return;
    }
    add(b, name, STEP_GEMM, pass, 2 * rows * in * out,
        hardware_gemm_rate(&b->machine->gpu, b->dtype, false, rows, out, in),
        (rows * (in + 2 * out) + in * out) * b->width);
}

// chunks: how often a micro-step adds to the same weight gradient.
static void product_backward(Builder *b, const char *input_name, const char *weight_name, double rows, double in,
                             double out, double groups, double chunks) {
    bool grouped = groups > 1;
    double each = rows / groups;
    product(b, input_name, STEP_BACKWARD, rows, out, in, groups);
    add(b, weight_name, grouped ? STEP_GROUPED_GEMM : STEP_GEMM, STEP_BACKWARD, 2 * rows * in * out,
        hardware_gemm_rate(&b->machine->gpu, b->dtype, grouped, out, in, each),
        rows * (in + out) * b->width + groups * in * out * layout_gradient_traffic(1 - 1 / (b->grad_accum * chunks)));
}

static void pass_over(Builder *b, const char *name, StepPass pass, double bytes) {
    if (bytes > 0) add(b, name, STEP_MEMORY_OPS, pass, 0, 1, bytes);
}

typedef struct Shapes { // of one rank
    double tokens, rows, groups;
    double hidden, qkv, qk, attention, ffn, expert_ffn, experts;
    double head_dim, seq, heads, batch, context;
    double vocab;
    bool qk_norm, documents;
} Shapes;

static Shapes stage_shapes(const Layout *layout, double imbalance) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    double tp = r->mesh.tp, kv = mesh_kv_heads(&r->mesh, c->kv_heads), heads = c->heads / tp;
    double tokens = (double)layout->tokens, groups = c->experts ? (double)c->experts / r->mesh.ep : 0;
    double align = r->device == LAYOUT_CUDA ? OPS_CUDA_ROW_ALIGN : OPS_CPU_ROW_ALIGN;
    return (Shapes){.tokens = tokens,
                    // Each row of a group of tensor-parallel ranks is worked on by etp of them.
                    .rows = tokens * c->top_k * r->mesh.etp / tp * imbalance + groups * (align - 1) / 2,
                    .groups = groups,
                    .hidden = c->hidden,
                    .qkv = (heads + 2 * kv) * c->head_dim,
                    .qk = (heads + kv) * c->head_dim,
                    .attention = heads * c->head_dim,
                    .ffn = c->ffn / tp,
                    .expert_ffn = (double)c->moe_ffn / r->mesh.etp,
                    .experts = c->experts,
                    .head_dim = c->head_dim,
                    .seq = r->seq,
                    .heads = heads,
                    .batch = r->micro_batch,
                    .context = r->mesh.cp,
                    .vocab = c->vocab / tp,
                    .qk_norm = model_qk_norm(c),
                    .documents = r->documents};
}

// Scores and values of the lower triangle: 2 products forward, 5 backward.
static void attention(Builder *b, const Shapes *s, StepPass pass) {
    bool backward = pass == STEP_BACKWARD;
    double triangle = s->batch * s->heads * s->seq * s->seq * s->head_dim / s->context;
    double bytes = s->tokens * (s->qkv + s->attention) * b->width * (backward ? 3 : 1);
    add(b, backward ? "attention backward" : "attention", STEP_ATTENTION, pass, triangle * (backward ? 5 : 2),
        hardware_attention_rate(&b->machine->gpu, b->dtype, s->head_dim, s->seq / s->context, backward), bytes);
    if (s->context == 1) return;
    // A ring runs one block per rank: each further one is merged into what is there, in float.
    double layers = b->layers;
    b->layers *= s->context - 1;
    pass_over(b, backward ? "ring blocks, gradients" : "ring blocks", pass, s->tokens * s->attention * 12);
    b->layers = layers;
}

static void norm(Builder *b, const char *name, const Shapes *s, StepPass pass) {
    pass_over(b, name, pass, (b->fused ? 2 : 4) * s->tokens * s->hidden * b->width);
}

// hearth reads the norm's result, its gradient and the residual's, and writes the last.
static void norm_backward(Builder *b, const char *name, const Shapes *s) {
    pass_over(b, name, STEP_BACKWARD, (b->fused ? 4 : 5) * s->tokens * s->hidden * b->width);
}

// What SwiGLU costs beside the products that it is fused with, and the rotary beside its product (forward) and
// attention (backward).
static double swiglu_left(const Builder *b) {
    return b->fused && b->width == 2 ? 1 - b->machine->gpu.efficiency.swiglu_hidden : 1;
}

static double rope_left(const Builder *b, const Shapes *s, bool backward) {
    bool inside =
        !s->qk_norm && (s->head_dim == 64 || (s->head_dim == 128 && !backward)) && !(s->documents && backward);
    return b->fused && b->width == 2 && inside ? 1 - b->machine->gpu.efficiency.rope_hidden : 1;
}

static void attention_forward(Builder *b, const Shapes *s, StepPass pass) {
    double T = s->tokens, w = b->width;
    norm(b, b->fused ? "norm (attention)" : "add + norm (attention)", s, pass);
    product(b, "qkv", pass, T, s->hidden, s->qkv, 1);
    pass_over(b, s->qk_norm ? "QK-norm + RoPE" : "RoPE", pass, 2 * T * s->qk * w * rope_left(b, s, false));
    attention(b, s, pass);
    product_onto(b, "o", pass, T, s->attention, s->hidden);
}

static void dense_forward(Builder *b, const Shapes *s, StepPass pass) {
    double T = s->tokens, w = b->width;
    norm(b, b->fused ? "norm (MLP)" : "add + norm (MLP)", s, pass);
    product(b, "gate_up", pass, T, s->hidden, 2 * s->ffn, 1);
    pass_over(b, "SwiGLU", pass, 3 * T * s->ffn * w * swiglu_left(b));
    if (pass == STEP_RECOMPUTE) return; // what follows is not needed again
    product_onto(b, "down", pass, T, s->ffn, s->hidden);
}

static void moe_forward(Builder *b, const Shapes *s, StepPass pass) {
    double T = s->tokens, R = s->rows, w = b->width;
    norm(b, b->fused ? "norm (MLP)" : "add + norm (MLP)", s, pass);
    pass_over(b, "router", pass, T * s->hidden * w + T * s->experts * 4);
    pass_over(b, "route", pass, 4 * T * s->experts * 4);
    pass_over(b, "gather rows", pass, 2 * R * s->hidden * w);
    product(b, "experts gate_up", pass, R, s->hidden, 2 * s->expert_ffn, s->groups);
    if (pass == STEP_RECOMPUTE) return;
    pass_over(b, "SwiGLU (experts)", pass, 3 * R * s->expert_ffn * w);
    product(b, "experts down", pass, R, s->expert_ffn, s->hidden, s->groups);
    pass_over(b, "sum rows", pass, (R + (b->fused ? 2 : 1) * T) * s->hidden * w);
}

static void dense_backward(Builder *b, const Shapes *s) {
    double T = s->tokens, w = b->width;
    product_backward(b, "down, input gradient", "down, weight gradient", T, s->ffn, s->hidden, 1, 1);
    pass_over(b, "SwiGLU backward", STEP_BACKWARD, (b->fused ? 5 : 6) * T * s->ffn * w * swiglu_left(b));
    product_backward(b, "gate_up, input gradient", "gate_up, weight gradient", T, s->hidden, 2 * s->ffn, 1, 1);
    norm_backward(b, "norm backward (MLP)", s);
}

static void moe_backward(Builder *b, const Shapes *s, bool selective) {
    double T = s->tokens, R = s->rows, w = b->width;
    pass_over(b, "gather gradient rows", STEP_BACKWARD, 2 * R * s->hidden * w);
    product_backward(b, "experts down, input gradient", "experts down, weight gradient", R, s->expert_ffn, s->hidden,
                     s->groups, 1);
    pass_over(b, "SwiGLU backward (experts)", STEP_BACKWARD, 6 * R * s->expert_ffn * w);
    product_backward(b, "experts gate_up, input gradient", "experts gate_up, weight gradient", R, s->hidden,
                     2 * s->expert_ffn, s->groups, 1);
    pass_over(b, "sum gradient rows", STEP_BACKWARD, (R + T) * s->hidden * w);
    pass_over(b, "router backward", STEP_BACKWARD, 4 * T * s->hidden * w + 6 * T * s->experts * 4);
    norm_backward(b, "norm backward (MLP)", s);
    if (selective) pass_over(b, "gather rows again", STEP_RECOMPUTE, 2 * R * s->hidden * w);
}

static void attention_backward(Builder *b, const Shapes *s, bool selective) {
    double T = s->tokens, w = b->width;
    product_backward(b, "o, input gradient", "o, weight gradient", T, s->attention, s->hidden, 1, 1);
    if (selective && s->qk_norm) pass_over(b, "QK-norm + RoPE again", STEP_RECOMPUTE, 2 * T * s->qk * w);
    attention(b, s, STEP_BACKWARD);
    pass_over(b, s->qk_norm ? "QK-norm + RoPE backward" : "RoPE backward", STEP_BACKWARD,
              (s->qk_norm ? 3 : 2 * rope_left(b, s, true)) * T * s->qk * w);
    product_backward(b, "qkv, input gradient", "qkv, weight gradient", T, s->hidden, s->qkv, 1, 1);
    norm_backward(b, "norm backward (attention)", s);
}

static void head(Builder *b, const Shapes *s, const Layout *layout) {
    double chunks = ceil(s->tokens / (double)layout->logits_rows), rows = s->tokens / chunks;
    b->layers = 1;
    pass_over(b, "final norm", STEP_FORWARD, (b->fused ? 2 : 4) * s->tokens * s->hidden * b->width);
    pass_over(b, "final norm backward", STEP_BACKWARD, (b->fused ? 3 : 4) * s->tokens * s->hidden * b->width);
    b->layers = chunks;
    product(b, "LM head", STEP_FORWARD, rows, s->hidden, s->vocab, 1);
    pass_over(b, "cross entropy", STEP_FORWARD, (b->fused ? 2 : 3) * rows * s->vocab * b->width);
    product_backward(b, "LM head, input gradient", "LM head, weight gradient", rows, s->hidden, s->vocab, 1, chunks);
}

// The optimizer's elements on this rank, after ZeRO.
static void optimizer(Builder *b, const Layout *layout) {
    const Mesh *mesh = &layout->request.mesh;
    double dense_ranks = (double)mesh_data_ranks(mesh), expert_ranks = (double)mesh_expert_data_ranks(mesh);
    double elements = 0;
    for (int i = 0; i < layout->param_count; i++)
        elements += (double)layout->params[i].count /
                    (mesh->zero ? (layout->params[i].expert ? expert_ranks : dense_ranks) : 1);
    b->layers = 1;
    // What is looked up is added row by row; only a gradient that is also the LM head's is overwritten by a product.
    const LayoutParam *embedding = layout_param(layout, PARAM_EMBEDDING, -1);
    if (layout->request.stage == 0 && embedding && !layout->request.config.tied)
        add(b, "clear embedding gradient", STEP_OPTIMIZER, STEP_ONCE, 0, 1, 4 * (double)embedding->count);
    add(b, "gradient norm", STEP_OPTIMIZER, STEP_ONCE, 0, 1, 4 * elements);
    add(b, "AdamW", STEP_OPTIMIZER, STEP_ONCE, 0, 1, layout_adamw_traffic(layout->request.precision) * elements);
}

void stage_cost(StageCost *cost, const PlanMachine *machine, const PlanRun *run, const Layout *layout,
                double imbalance) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    *cost = (StageCost){0};
    double eager = run->eager ? machine->software.eager_factor : 1;
    Builder b = {.cost = cost,
                 .machine = machine,
                 .dtype = step_dtype(machine, r->precision),
                 .width = (double)dtype_size(layout->dtype),
                 .fused = machine->software.fused,
                 .compute_factor = machine->software.compute_factor * eager,
                 .memory_factor = machine->software.memory_factor * eager,
                 .grad_accum = run->grad_accum};
    Shapes s = stage_shapes(layout, imbalance);
    double sparse = 0, all = layout->layer_count;
    for (int i = layout->first_layer; i < layout->first_layer + layout->layer_count; i++)
        sparse += c->sparse[i];
    bool full = r->recompute == RECOMPUTE_FULL, selective = r->recompute == RECOMPUTE_SELECTIVE;
    for (int again = 0; again <= full; again++) {
        StepPass pass = again ? STEP_RECOMPUTE : STEP_FORWARD;
        b.layers = all;
        attention_forward(&b, &s, pass);
        b.layers = all - sparse;
        if (b.layers > 0) dense_forward(&b, &s, pass);
        b.layers = sparse;
        if (b.layers > 0) moe_forward(&b, &s, pass);
    }
    b.layers = all - sparse;
    if (b.layers > 0) dense_backward(&b, &s);
    b.layers = sparse;
    if (b.layers > 0) moe_backward(&b, &s, selective);
    b.layers = all;
    attention_backward(&b, &s, selective);
    b.layers = 1;
    if (r->stage == 0) {
        pass_over(&b, "embedding", STEP_FORWARD, 2 * s.tokens * s.hidden * b.width);
        pass_over(&b, "embedding backward", STEP_BACKWARD, s.tokens * s.hidden * (b.width + 8));
    }
    if (r->stage == r->mesh.pp - 1) head(&b, &s, layout);
    optimizer(&b, layout);
}
