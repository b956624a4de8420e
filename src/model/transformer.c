// The heart of hearth: the forward and backward pass of one micro-batch, as calls of the op table.
//
//   tokens ─ embed ─▶ residual ─┬─▶ RMSNorm ─ QKV ─ (QK-norm) RoPE ─ attention ─ O ─▶ + residual
//                               └─▶ RMSNorm ─ gate·up ─ SwiGLU ─ down ─▶ + residual             (dense)
//                                   RMSNorm ─ router ─ gather ─ grouped products ─ sum, + residual (MoE)
//
// A sub-layer's last op adds the residual: it is summed in float and makes no way of its own through memory. What is
// kept per layer (model/layout.h) are the inputs of the linear layers, which their weight gradients need; the backward
// passes of RMSNorm and of a dense SwiGLU get along with these, so that the residual stream and SwiGLU's up are not
// kept.
#include "model/transformer.h"

#include <assert.h>

void *transformer_activation(const Model *model, ActId id, int layer) {
    const LayoutActivation *found = layout_activation(&model->layout, id, layer, model->pass);
    assert(found);
    return (char *)model->memory[found->kept ? LAYOUT_ACTIVATIONS : LAYOUT_TEMPORARIES] + found->offset;
}

static void *act(const Model *model, ActId id, int layer) {
    return transformer_activation(model, id, layer);
}

static void *weight(const Model *model, ParamId id, int layer) {
    return model_param(model, LAYOUT_WEIGHTS, id, layer);
}

static float *grad(const Model *model, ParamId id, int layer) {
    return model_param(model, LAYOUT_GRADIENTS, id, layer);
}

// ---- shapes ---------------------------------------------------------------------------------------------------------

static QkRopeShape rope_shape(const Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    return (QkRopeShape){.tokens = model->layout.tokens,
                         .seq = model->layout.request.seq,
                         .heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .cos = model_const(model, CONST_COS),
                         .sin = model_const(model, CONST_SIN),
                         .q_weight = weight(model, PARAM_Q_NORM, layer),
                         .k_weight = weight(model, PARAM_K_NORM, layer),
                         .eps = c->norm_eps};
}

// Where attention reads q, k and v: all from the fused qkv, or q and k from the normed and rotated copy under QK-norm.
typedef struct QkvView {
    const char *q, *k, *v;
    AttentionShape shape;
} QkvView;

static QkvView qkv_view(const Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    const char *qkv = act(model, ACT_QKV, layer);
    int64_t q_dim = model_attention_dim(c), kv_dim = (int64_t)c->kv_heads * c->head_dim, stride = model_qkv_dim(c);
    size_t size = dtype_size(model->layout.dtype);
    const char *qk = model_qk_norm(c) ? act(model, ACT_QK, layer) : qkv;
    int64_t qk_stride = model_qk_norm(c) ? q_dim + kv_dim : stride;
    return (QkvView){
        .q = qk,
        .k = qk + (size_t)q_dim * size,
        .v = qkv + (size_t)(q_dim + kv_dim) * size,
        .shape = {.batch = model->layout.request.micro_batch,
                  .seq = model->layout.request.seq,
                  .heads = c->heads,
                  .kv_heads = c->kv_heads,
                  .head_dim = c->head_dim,
                  .q_stride = qk_stride,
                  .k_stride = qk_stride,
                  .v_stride = stride,
                  .o_stride = q_dim,
                  .scale = 1.0f / __builtin_sqrtf((float)c->head_dim),
                  .doc_start = model->layout.request.documents ? model_const(model, CONST_DOC_START) : NULL}};
}

static MoeShape moe_shape(const Model *model) {
    const ModelConfig *c = &model->layout.request.config;
    return (MoeShape){.tokens = model->layout.tokens,
                      .experts = c->experts,
                      .top_k = c->top_k,
                      .norm_topk = c->norm_topk,
                      .rows = model->layout.rows,
                      .force = model->force};
}

static int sparse_index(const ModelConfig *c, int layer) { // of the layer among the sparse ones
    int index = 0;
    for (int i = 0; i < layer; i++)
        index += c->sparse[i];
    return index;
}

static MoeRouting moe_routing(const Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    int64_t place = (int64_t)sparse_index(c, layer) * c->experts;
    const LayoutActivation *logits = layout_activation(&model->layout, ACT_ROUTER_LOGITS, layer, model->pass);
    return (MoeRouting){.logits = logits ? act(model, ACT_ROUTER_LOGITS, layer) : NULL,
                        .bias = model->router_bias ? (float *)model_const(model, CONST_ROUTER_BIAS) + place : NULL,
                        .probs = act(model, ACT_PROBS, layer),
                        .lse = act(model, ACT_ROUTER_LSE, layer),
                        .expert = act(model, ACT_EXPERT, layer),
                        .weight = act(model, ACT_EXPERT_WEIGHT, layer),
                        .counts = (int32_t *)act(model, ACT_COUNTS, -1) + place,
                        .offsets = act(model, ACT_OFFSETS, layer),
                        .row_of_slot = act(model, ACT_ROW_OF_SLOT, layer),
                        .slot_of_row = act(model, ACT_SLOT_OF_ROW, layer),
                        .row_weight = act(model, ACT_ROW_WEIGHT, layer),
                        .prob_sum = (float *)act(model, ACT_PROB_SUM, -1) + place};
}

// ---- norms ----------------------------------------------------------------------------------------------------------

typedef struct Norm {
    ActId residual, normed, rstd; // what it reads, and what it writes
    ParamId weight;
} Norm;

static const Norm NORM_ATTENTION = {ACT_RESIDUAL_IN, ACT_ATTN_NORMED, ACT_ATTN_RSTD, PARAM_ATTN_NORM};
static const Norm NORM_MLP = {ACT_RESIDUAL_MID, ACT_MLP_NORMED, ACT_MLP_RSTD, PARAM_MLP_NORM};
static const Norm NORM_FINAL = {ACT_RESIDUAL_FINAL, ACT_FINAL_NORMED, ACT_FINAL_RSTD, PARAM_FINAL_NORM};

static void norm_forward(Model *model, int layer, const Norm *norm) {
    const ModelConfig *c = &model->layout.request.config;
    model->ops->add_rmsnorm_forward(model->ops, act(model, norm->normed, layer), NULL, act(model, norm->rstd, layer),
                                    act(model, norm->residual, layer), NULL, weight(model, norm->weight, layer),
                                    model->layout.tokens, c->hidden, c->norm_eps, model->layout.dtype);
}

// From ACT_DNORMED into ACT_DRESIDUAL; first: which holds nothing yet.
static void norm_backward(Model *model, int layer, const Norm *norm, bool first) {
    model->ops->add_rmsnorm_backward(
        model->ops, act(model, ACT_DRESIDUAL, -1), grad(model, norm->weight, layer), act(model, ACT_DNORMED, -1),
        act(model, norm->normed, layer), act(model, norm->rstd, layer), weight(model, norm->weight, layer),
        model->layout.tokens, model->layout.request.config.hidden, first, model->layout.dtype);
}

// ---- forward --------------------------------------------------------------------------------------------------------

// Queries and keys under QK-norm, into their own place.
static void qk_rope(Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    QkRopeShape shape = rope_shape(model, layer);
    model->ops->qk_rope_forward(model->ops, act(model, ACT_QK, layer), (int64_t)(c->heads + c->kv_heads) * c->head_dim,
                                act(model, ACT_QKV, layer), model_qkv_dim(c), act(model, ACT_QK_RSTD, layer), &shape,
                                model->layout.dtype);
}

static const void *attention_norm(Model *model, int layer) {
    norm_forward(model, layer, &NORM_ATTENTION);
    return act(model, ACT_ATTN_NORMED, layer);
}

// ACT_RESIDUAL_IN through the norm and the QKV product.
void transformer_qkv(Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    model->ops->linear_forward(model->ops, act(model, ACT_QKV, layer), attention_norm(model, layer), c->hidden,
                               weight(model, PARAM_QKV, layer), NULL, model->layout.tokens, c->hidden, model_qkv_dim(c),
                               model->layout.dtype);
}

// The same, and queries and keys as attention reads them.
static void qkv_rotated(Model *model, int layer) {
    const ModelConfig *c = &model->layout.request.config;
    if (model_qk_norm(c)) {
        transformer_qkv(model, layer);
        qk_rope(model, layer);
        return;
    }
    QkRopeShape shape = rope_shape(model, layer);
    model->ops->linear_rope_forward(model->ops, act(model, ACT_QKV, layer), attention_norm(model, layer),
                                    weight(model, PARAM_QKV, layer), c->hidden, &shape, model->layout.dtype);
}

// The attention half of a layer, into ACT_RESIDUAL_MID.
static void attention_forward(Model *model, int layer) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    DType dtype = model->layout.dtype;
    qkv_rotated(model, layer);
    QkvView view = qkv_view(model, layer);
    ops->attention_forward(ops, act(model, ACT_ATTN_OUT, layer), act(model, ACT_LSE, layer), view.q, view.k, view.v,
                           &view.shape, dtype);
    ops->linear_forward(ops, act(model, ACT_RESIDUAL_MID, layer), act(model, ACT_ATTN_OUT, layer),
                        model_attention_dim(c), weight(model, PARAM_O, layer), act(model, ACT_RESIDUAL_IN, layer),
                        model->layout.tokens, model_attention_dim(c), c->hidden, dtype);
}

// Where a layer leaves its result: the input of the next one, or of the final norm.
static void *residual_out(Model *model, int layer) {
    bool last = layer == model->layout.request.config.layers - 1;
    return last ? act(model, ACT_RESIDUAL_FINAL, -1) : act(model, ACT_RESIDUAL_IN, layer + 1);
}

// The second half of a dense layer's ACT_GATE_UP rows: the input of its down projection.
static const void *hidden_part(const Model *model, int layer) {
    size_t gate_bytes = (size_t)model->layout.request.config.ffn * dtype_size(model->layout.dtype);
    return (const char *)act(model, ACT_GATE_UP, layer) + gate_bytes;
}

static void dense_forward(Model *model, int layer, bool output) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    int64_t T = model->layout.tokens;
    DType dtype = model->layout.dtype;
    ops->linear_swiglu_forward(ops, act(model, ACT_GATE_UP, layer), act(model, ACT_MLP_NORMED, layer),
                               weight(model, PARAM_GATE_UP, layer), T, c->hidden, c->ffn, dtype);
    if (!output) return;
    ops->linear_forward(ops, residual_out(model, layer), hidden_part(model, layer), 2 * (int64_t)c->ffn,
                        weight(model, PARAM_DOWN, layer), act(model, ACT_RESIDUAL_MID, layer), T, c->ffn, c->hidden,
                        dtype);
}

static void moe_forward(Model *model, int layer, bool output) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    int64_t T = model->layout.tokens, R = model->layout.rows;
    DType dtype = model->layout.dtype;
    MoeShape shape = moe_shape(model);
    MoeRouting routing = moe_routing(model, layer);
    const void *normed = act(model, ACT_MLP_NORMED, layer);
    ops->moe_router_forward(ops, routing.logits, normed, weight(model, PARAM_ROUTER, layer), T, c->hidden, c->experts,
                            dtype);
    ops->moe_route_forward(ops, &routing, &shape);
    void *gathered = act(model, ACT_GATHERED, layer), *gate_up = act(model, ACT_GATE_UP, layer);
    ops->moe_gather(ops, gathered, normed, &routing, &shape, c->hidden, dtype);
    ops->grouped_linear_forward(ops, gate_up, gathered, weight(model, PARAM_EXPERT_GATE_UP, layer), routing.offsets,
                                c->experts, R, c->hidden, 2 * c->moe_ffn, dtype);
    if (!output) return;
    void *hidden = act(model, ACT_HIDDEN, layer), *expert_out = act(model, ACT_EXPERT_OUT, layer);
    // The combine weight goes into SwiGLU, so that the sum over a token's experts is a plain one.
    ops->swiglu_forward(ops, hidden, gate_up, routing.row_weight, routing.offsets + c->experts, R, c->moe_ffn, dtype);
    ops->grouped_linear_forward(ops, expert_out, hidden, weight(model, PARAM_EXPERT_DOWN, layer), routing.offsets,
                                c->experts, R, c->moe_ffn, c->hidden, dtype);
    ops->moe_sum(ops, residual_out(model, layer), expert_out, act(model, ACT_RESIDUAL_MID, layer), &routing, &shape,
                 c->hidden, dtype);
}

// The MLP half of a layer, from ACT_RESIDUAL_MID. output false: stop at what the backward pass reads.
static void mlp_forward(Model *model, int layer, bool output) {
    norm_forward(model, layer, &NORM_MLP);
    if (model->layout.request.config.sparse[layer])
        moe_forward(model, layer, output);
    else
        dense_forward(model, layer, output);
}

void transformer_mlp(Model *model, int layer) {
    mlp_forward(model, layer, true);
}

void transformer_forward(Model *model) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    model->pass = 0;
    ops->embedding_forward(ops, act(model, ACT_RESIDUAL_IN, 0), model_const(model, CONST_IDS),
                           weight(model, PARAM_EMBEDDING, -1), model->layout.tokens, c->hidden, model->layout.dtype);
    for (int i = 0; i < c->layers; i++) {
        attention_forward(model, i);
        mlp_forward(model, i, true);
    }
}

// ---- head -----------------------------------------------------------------------------------------------------------

void transformer_final_norm(Model *model) {
    norm_forward(model, -1, &NORM_FINAL);
}

ParamId transformer_head_param(const Model *model) {
    return model->layout.request.config.tied ? PARAM_EMBEDDING : PARAM_HEAD;
}

// Before the first gradients of a step: what no product overwrites. The vectors stand together behind the matrices; the
// embedding is overwritten only as the LM head.
static void zero_added_gradients(Model *model) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    size_t vectors = (size_t)(layout->element_count - layout->decay_count);
    ops->zero(ops, (float *)model->memory[LAYOUT_GRADIENTS] + layout->decay_count, vectors * sizeof(float));
    const LayoutParam *embedding = layout_param(layout, PARAM_EMBEDDING, -1);
    if (transformer_head_param(model) != PARAM_EMBEDDING)
        ops->zero(ops, grad(model, PARAM_EMBEDDING, -1), (size_t)embedding->count * sizeof(float));
}

void transformer_head(Model *model, bool backward) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    const ModelConfig *c = &layout->request.config;
    DType dtype = layout->dtype;
    size_t row_bytes = (size_t)c->hidden * dtype_size(dtype);
    model->pass = 0;
    if (backward && !model->accumulate) zero_added_gradients(model);
    transformer_final_norm(model);
    char *normed = act(model, ACT_FINAL_NORMED, -1), *dnormed = act(model, ACT_DNORMED, -1);
    void *logits = act(model, ACT_LOGITS, -1), *head = weight(model, transformer_head_param(model), -1);
    float *losses = act(model, ACT_LOSSES, -1);
    const int32_t *targets = model_const(model, CONST_TARGETS);
    // The full logits never exist: a chunk's loss and gradient are taken while it is there.
    for (int64_t first = 0; first < layout->tokens; first += layout->logits_rows) {
        int64_t rows = layout->tokens - first < layout->logits_rows ? layout->tokens - first : layout->logits_rows;
        char *chunk = normed + (size_t)first * row_bytes;
        ops->linear_forward(ops, logits, chunk, c->hidden, head, NULL, rows, c->hidden, c->vocab, dtype);
        ops->cross_entropy(ops, losses + first, logits, targets + first,
                           backward ? model_scalar(model, SCALAR_CE_SCALE) : NULL, rows, c->vocab, dtype);
        if (!backward) continue;
        ops->linear_backward_input(ops, dnormed + (size_t)first * row_bytes, logits, head, rows, c->hidden, c->vocab,
                                   dtype);
        ops->linear_backward_weight(ops, grad(model, transformer_head_param(model), -1), logits, chunk, c->hidden, rows,
                                    c->hidden, c->vocab, model->accumulate || first > 0, dtype);
    }
    ops->sum_f32(ops, model_scalar(model, SCALAR_LOSS_SUM), losses, layout->tokens, true);
    int sparse = model_sparse_layers(c);
    if (sparse)
        ops->moe_balance(ops, model_scalar(model, SCALAR_AUX_SUM), act(model, ACT_DPROB, -1),
                         model_scalar(model, SCALAR_AUX_SCALE), act(model, ACT_COUNTS, -1),
                         act(model, ACT_PROB_SUM, -1), model->balance, sparse, layout->tokens, c->experts);
    if (backward) norm_backward(model, -1, &NORM_FINAL, true);
}

void transformer_logits(Model *model, void *host) {
    const Layout *layout = &model->layout;
    const ModelConfig *c = &layout->request.config;
    size_t row_bytes = (size_t)c->hidden * dtype_size(layout->dtype),
           out_bytes = (size_t)c->vocab * dtype_size(layout->dtype);
    transformer_forward(model);
    transformer_final_norm(model);
    void *logits = act(model, ACT_LOGITS, -1);
    for (int64_t first = 0; first < layout->tokens; first += layout->logits_rows) {
        int64_t rows = layout->tokens - first < layout->logits_rows ? layout->tokens - first : layout->logits_rows;
        const char *chunk = (const char *)act(model, ACT_FINAL_NORMED, -1) + (size_t)first * row_bytes;
        model->ops->linear_forward(model->ops, logits, chunk, c->hidden,
                                   weight(model, transformer_head_param(model), -1), NULL, rows, c->hidden, c->vocab,
                                   layout->dtype);
        model->ops->download(model->ops, (char *)host + (size_t)first * out_bytes, logits, (size_t)rows * out_bytes);
    }
}

// ---- backward -------------------------------------------------------------------------------------------------------

static void dense_backward(Model *model, int layer) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    int64_t T = model->layout.tokens;
    DType dtype = model->layout.dtype;
    void *dresidual = act(model, ACT_DRESIDUAL, -1), *gate_hidden = act(model, ACT_GATE_UP, layer);
    ops->linear_backward_weight(ops, grad(model, PARAM_DOWN, layer), dresidual, hidden_part(model, layer),
                                2 * (int64_t)c->ffn, T, c->ffn, c->hidden, model->accumulate, dtype);
    ops->linear_swiglu_backward(ops, gate_hidden, act(model, ACT_DHIDDEN, layer), gate_hidden, dresidual,
                                weight(model, PARAM_DOWN, layer), T, c->ffn, c->hidden, dtype);
    const void *dgate_up = gate_hidden; // by now
    ops->linear_backward_weight(ops, grad(model, PARAM_GATE_UP, layer), dgate_up, act(model, ACT_MLP_NORMED, layer),
                                c->hidden, T, c->hidden, 2 * c->ffn, model->accumulate, dtype);
    ops->linear_backward_input(ops, act(model, ACT_DNORMED, -1), dgate_up, weight(model, PARAM_GATE_UP, layer), T,
                               c->hidden, 2 * c->ffn, dtype);
    norm_backward(model, layer, &NORM_MLP, false);
}

static void moe_backward(Model *model, int layer) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    int64_t T = model->layout.tokens, R = model->layout.rows;
    DType dtype = model->layout.dtype;
    MoeShape shape = moe_shape(model);
    MoeRouting routing = moe_routing(model, layer);
    const int32_t *row_count = routing.offsets + c->experts;
    void *drows = act(model, ACT_DROWS, layer), *dhidden = act(model, ACT_DHIDDEN, layer);
    void *gate_up = act(model, ACT_GATE_UP, layer), *dnormed = act(model, ACT_DNORMED, -1);
    float *drow_weight = act(model, ACT_DROW_WEIGHT, layer), *dlogits = act(model, ACT_DLOGITS, layer);
    const void *down = weight(model, PARAM_EXPERT_DOWN, layer), *router = weight(model, PARAM_ROUTER, layer);

    ops->moe_gather(ops, drows, act(model, ACT_DRESIDUAL, -1), &routing, &shape, c->hidden, dtype);
    ops->grouped_linear_backward_input(ops, dhidden, drows, down, routing.offsets, c->experts, R, c->moe_ffn, c->hidden,
                                       dtype);
    ops->swiglu_backward(ops, gate_up, dhidden, drow_weight, gate_up, dhidden, routing.row_weight, row_count, R,
                         c->moe_ffn, dtype);
    ops->grouped_linear_backward_weight(ops, grad(model, PARAM_EXPERT_DOWN, layer), drows, dhidden, routing.offsets,
                                        c->experts, R, c->moe_ffn, c->hidden, model->accumulate, dtype);
    ops->grouped_linear_backward_input(ops, drows, gate_up, weight(model, PARAM_EXPERT_GATE_UP, layer), routing.offsets,
                                       c->experts, R, c->hidden, 2 * c->moe_ffn, dtype);
    ops->moe_sum(ops, dnormed, drows, NULL, &routing, &shape, c->hidden, dtype);
    const float *dprob = (float *)act(model, ACT_DPROB, -1) + (int64_t)sparse_index(c, layer) * c->experts;
    ops->moe_route_backward(ops, dlogits, drow_weight, dprob,
                            model->z_loss_coef != 0 ? model_scalar(model, SCALAR_Z_COEF) : NULL, &routing, &shape);
    const void *normed = act(model, ACT_MLP_NORMED, layer);
    ops->moe_router_backward(ops, dnormed, grad(model, PARAM_ROUTER, layer), dlogits, normed, router, T, c->hidden,
                             c->experts, model->accumulate, dtype);
    norm_backward(model, layer, &NORM_MLP, false);
    void *gathered = act(model, ACT_GATHERED, layer);
    if (model->layout.request.recompute == RECOMPUTE_SELECTIVE)
        ops->moe_gather(ops, gathered, normed, &routing, &shape, c->hidden, dtype);
    ops->grouped_linear_backward_weight(ops, grad(model, PARAM_EXPERT_GATE_UP, layer), gate_up, gathered,
                                        routing.offsets, c->experts, R, c->hidden, 2 * c->moe_ffn, model->accumulate,
                                        dtype);
}

// Lends attention the larger workspace that is free in its backward phase, where there is one, and takes it back.
static void bind_scratch(Model *model, bool lend) {
    const LayoutActivation *scratch = layout_activation(&model->layout, ACT_SCRATCH, -1, 1);
    int64_t usual = model->layout.bytes[LAYOUT_WORKSPACE];
    if (!scratch || scratch->bytes <= usual) return;
    void *memory = lend ? act(model, ACT_SCRATCH, -1) : model->memory[LAYOUT_WORKSPACE];
    model->ops->bind_workspace(model->ops, memory, (size_t)(lend ? scratch->bytes : usual));
}

static void attention_backward(Model *model, int layer) {
    Ops *ops = model->ops;
    const ModelConfig *c = &model->layout.request.config;
    int64_t T = model->layout.tokens, qkv_dim = model_qkv_dim(c), q_dim = model_attention_dim(c);
    int64_t kv_dim = (int64_t)c->kv_heads * c->head_dim;
    DType dtype = model->layout.dtype;
    size_t size = dtype_size(dtype);
    void *dresidual = act(model, ACT_DRESIDUAL, -1), *dattn = act(model, ACT_DATTN, layer);
    const void *attn_out = act(model, ACT_ATTN_OUT, layer);
    char *dqkv = act(model, ACT_DQKV, layer);
    ops->linear_backward_input(ops, dattn, dresidual, weight(model, PARAM_O, layer), T, (int)q_dim, c->hidden, dtype);
    ops->linear_backward_weight(ops, grad(model, PARAM_O, layer), dresidual, attn_out, q_dim, T, (int)q_dim, c->hidden,
                                model->accumulate, dtype);
    if (model_qk_norm(c) && model->layout.request.recompute == RECOMPUTE_SELECTIVE) qk_rope(model, layer);
    QkvView view = qkv_view(model, layer);
    QkRopeShape rope = rope_shape(model, layer);
    bind_scratch(model, true);
    ops->attention_backward(ops, dqkv, dqkv + (size_t)q_dim * size, dqkv + (size_t)(q_dim + kv_dim) * size, qkv_dim,
                            dattn, attn_out, act(model, ACT_LSE, layer), view.q, view.k, view.v, &view.shape,
                            model_qk_norm(c) ? NULL : &rope, dtype);
    bind_scratch(model, false);
    if (model_qk_norm(c)) // without it attention has taken the rotation back
        ops->qk_rope_backward(ops, dqkv, qkv_dim, act(model, ACT_QKV, layer), qkv_dim, act(model, ACT_QK_RSTD, layer),
                              grad(model, PARAM_Q_NORM, layer), grad(model, PARAM_K_NORM, layer), &rope, dtype);
    ops->linear_backward_weight(ops, grad(model, PARAM_QKV, layer), dqkv, act(model, ACT_ATTN_NORMED, layer), c->hidden,
                                T, c->hidden, (int)qkv_dim, model->accumulate, dtype);
    ops->linear_backward_input(ops, act(model, ACT_DNORMED, -1), dqkv, weight(model, PARAM_QKV, layer), T, c->hidden,
                               (int)qkv_dim, dtype);
    norm_backward(model, layer, &NORM_ATTENTION, false);
}

void transformer_backward(Model *model) {
    const ModelConfig *c = &model->layout.request.config;
    model->pass = 1;
    for (int i = c->layers - 1; i >= 0; i--) {
        if (model->layout.request.recompute == RECOMPUTE_FULL) {
            attention_forward(model, i);
            mlp_forward(model, i, false);
        }
        if (c->sparse[i])
            moe_backward(model, i);
        else
            dense_backward(model, i);
        attention_backward(model, i);
    }
    model->ops->embedding_backward(model->ops, grad(model, PARAM_EMBEDDING, -1), act(model, ACT_DRESIDUAL, -1),
                                   model_const(model, CONST_IDS), model->layout.tokens, c->hidden, c->vocab,
                                   model->layout.dtype);
}
