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
//
// No size stands here: a tensor brings its own, as the layout cut it for this rank.
#include "model/transformer.h"

#include "base/timeline.h"
#include "model/fp8.h"
#include "model/seam.h"

// ---- a layer as its tensors -----------------------------------------------------------------------------------------

// T: tokens of the micro-batch, R: expert rows. Where q_norm is absent there is no QK-norm, and so on.
typedef struct LayerWeights {
    Tensor attn_norm, mlp_norm; // [1, hidden]
    Tensor qkv;                 // [(heads + 2 kv_heads) * head_dim, hidden]
    Tensor q_norm, k_norm;      // [1, head_dim]
    Tensor o;                   // [hidden, heads * head_dim]
    Tensor gate_up, down;       // [2 ffn, hidden], [hidden, ffn]
    Tensor router;              // [experts, hidden]
    Tensor expert_gate_up;      // [experts * 2 moe_ffn, hidden]
    Tensor expert_down;         // [experts * hidden, moe_ffn]
} LayerWeights;

typedef struct Layer {
    int index;
    bool sparse, fp8_mlp; // dense and in FP8
    bool fp8_experts;     // sparse and in FP8
    LayerWeights w, dw;   // weights and their gradients

    Tensor residual_in;            // [T, hidden]
    Tensor attn_normed, attn_rstd; // [T, hidden], [T, 1]
    Tensor qkv;                    // [T, (heads + 2 kv_heads) * head_dim]
    Tensor qk, qk_rstd;            // with QK-norm: queries and keys as attention reads them, [T, heads + kv_heads]
    Tensor q, k, v;                // views of qkv or qk
    Tensor attn_out, lse;          // [T, heads * head_dim], [batch * heads, seq]
    Tensor residual_mid;           // [T, hidden]
    Tensor mlp_normed, mlp_rstd;   // [T, hidden], [T, 1]
    Tensor gate_up;                // [T, 2 ffn] gate and hidden side by side, or [R, 2 moe_ffn] gate and up
    Tensor hidden;                 // [T, ffn]: its second half, or [R, moe_ffn]
    Tensor gathered;               // [R, hidden], where experts are spread over ranks
    Tensor expert_out;             // [R, hidden]
    Tensor residual_out;           // [T, hidden]
    Attention attention;
    Rope rope;
    MoeRouting routing; // of this rank's tokens
    MoeRouting rows;    // of its experts: the same, or of the tokens of all ranks that share experts

    Tensor dresidual, dnormed; // [T, hidden]
    Tensor dattn;              // [T, heads * head_dim]
    Tensor dqkv, dq, dk, dv;   // [T, (heads + 2 kv_heads) * head_dim], and its parts
    Tensor dhidden;            // [T, ffn] or [R, moe_ffn]
    Tensor drows, drow_weight; // [R, hidden], [R, 1]
    Tensor dlogits, dprob;     // [T, experts], [1, experts]
} Layer;

static LayerWeights layer_weights(const Model *model, int layer, Tensor (*of)(const Model *, ParamId, int)) {
    return (LayerWeights){.attn_norm = of(model, PARAM_ATTN_NORM, layer),
                          .mlp_norm = of(model, PARAM_MLP_NORM, layer),
                          .qkv = of(model, PARAM_QKV, layer),
                          .q_norm = of(model, PARAM_Q_NORM, layer),
                          .k_norm = of(model, PARAM_K_NORM, layer),
                          .o = of(model, PARAM_O, layer),
                          .gate_up = of(model, PARAM_GATE_UP, layer),
                          .down = of(model, PARAM_DOWN, layer),
                          .router = of(model, PARAM_ROUTER, layer),
                          .expert_gate_up = of(model, PARAM_EXPERT_GATE_UP, layer),
                          .expert_down = of(model, PARAM_EXPERT_DOWN, layer)};
}

// Queries, keys and values stand side by side in a row; what attention reads of them.
static void attention_tensors(const Model *model, Layer *l) {
    const ModelConfig *c = &model->layout.request.config;
    int64_t q = l->attn_out.cols, kv = (l->qkv.cols - q) / 2;
    bool documents = model->layout.request.documents;
    l->qk = tensor_present(l->w.q_norm) ? l->qk : tensor_cols(l->qkv, 0, q + kv);
    l->q = tensor_cols(l->qk, 0, q);
    l->k = tensor_cols(l->qk, q, kv);
    l->v = tensor_cols(l->qkv, q + kv, kv);
    l->attention = (Attention){.seq = (int)(model->tokens / model->layout.request.micro_batch),
                               .head_dim = c->head_dim,
                               .scale = 1.0f / __builtin_sqrtf((float)c->head_dim),
                               .doc_start = documents ? model_const(model, CONST_DOC_START) : TENSOR_NONE};
    l->rope = (Rope){.seq = l->attention.seq,
                     .first_position = model->first_position,
                     .heads = (int)(q / c->head_dim),
                     .kv_heads = (int)(kv / c->head_dim),
                     .head_dim = c->head_dim,
                     .cos = model_const(model, CONST_COS),
                     .sin = model_const(model, CONST_SIN),
                     .q_weight = l->w.q_norm,
                     .k_weight = l->w.k_norm,
                     .eps = c->norm_eps};
    if (!tensor_present(l->dqkv)) return;
    l->dq = tensor_cols(l->dqkv, 0, q);
    l->dk = tensor_cols(l->dqkv, q, kv);
    l->dv = tensor_cols(l->dqkv, q + kv, kv);
}

// gate_up and the gradient of hidden are one buffer for all layers under full recompute: each gives it its own shape.
static void dense_tensors(const Model *model, Layer *l) {
    int64_t ffn = l->w.down.cols;
    if (l->fp8_mlp) l->gate_up = model_act(model, ACT_FP8_GATE_UP, -1);
    if (tensor_present(l->gate_up)) l->gate_up = tensor_reshape(l->gate_up, l->qkv.rows, 2 * ffn);
    if (tensor_present(l->gate_up)) l->hidden = tensor_cols(l->gate_up, ffn, ffn);
    if (tensor_present(l->dhidden)) l->dhidden = tensor_reshape(l->dhidden, l->qkv.rows, ffn);
}

static int sparse_between(const Model *model, int first, int end) { // layers of [first, end)
    int count = 0;
    for (int i = first; i < end; i++)
        count += model->layout.request.config.sparse[i];
    return count;
}

static void moe_tensors(const Model *model, int layer, Layer *l) {
    int64_t index = sparse_between(model, layout_chunk(&model->layout, layer)->first, layer);
    int64_t ffn = l->w.expert_down.cols, of_all = sparse_between(model, 0, layer);
    Tensor token_of_row = model_act(model, ACT_TOKEN_OF_ROW, layer), offsets = model_act(model, ACT_OFFSETS, layer);
    Tensor bias = model->router_bias ? tensor_rows(model_const(model, CONST_ROUTER_BIAS), of_all, 1) : TENSOR_NONE;
    l->routing = (MoeRouting){.logits = model_act(model, ACT_ROUTER_LOGITS, layer),
                              .bias = bias,
                              .probs = model_act(model, ACT_PROBS, layer),
                              .lse = model_act(model, ACT_ROUTER_LSE, layer),
                              .expert = model_act(model, ACT_EXPERT, layer),
                              .weight = model_act(model, ACT_EXPERT_WEIGHT, layer),
                              .counts = tensor_rows(model_act(model, ACT_COUNTS, -1), index, 1),
                              .offsets = offsets,
                              .row_of_slot = model_act(model, ACT_ROW_OF_SLOT, layer),
                              .token_of_row = token_of_row,
                              .row_weight = model_act(model, ACT_ROW_WEIGHT, layer),
                              .prob_sum = tensor_rows(model_act(model, ACT_PROB_SUM, -1), index, 1),
                              .norm_topk = model->layout.request.config.norm_topk,
                              .force = model->force};
    l->rows = seam_expert_rows(model, layer, &l->routing);
    if (l->fp8_experts) l->gate_up = model_act(model, ACT_FP8_EXPERT_GATE_UP, -1);
    if (tensor_present(l->gate_up)) l->gate_up = tensor_reshape(l->gate_up, token_of_row.rows, 2 * ffn);
    l->hidden = model_act(model, ACT_HIDDEN, layer);
    l->gathered = model_act(model, ACT_GATHERED, layer);
    l->expert_out = model_act(model, ACT_EXPERT_OUT, layer);
    l->drows = model_act(model, ACT_DROWS, layer);
    l->drow_weight = model_act(model, ACT_DROW_WEIGHT, layer);
    l->dlogits = model_act(model, ACT_DLOGITS, layer);
    l->dprob = seam_dprob(model, tensor_rows(model_act(model, ACT_DPROB, -1), index, 1));
    if (tensor_present(l->dhidden)) l->dhidden = tensor_reshape(l->dhidden, token_of_row.rows, ffn);
}

// Where a layer leaves its result: for the next one, the head, or another stage.
static Tensor layer_output(const Model *model, int layer) {
    const LayoutChunk *chunk = layout_chunk(&model->layout, layer);
    if (layer < chunk->first + chunk->count - 1) return model_act(model, ACT_RESIDUAL_IN, layer + 1);
    return chunk->predicts ? model_act(model, ACT_RESIDUAL_FINAL, layer) : model_act(model, ACT_STAGE_OUT, -1);
}

static Layer layer_tensors(const Model *model, int layer) {
    bool sparse = model->layout.request.config.sparse[layer];
    Layer l = {
        .index = layer,
        .sparse = sparse,
        .fp8_mlp = !sparse && model->layout.fp8 & FP8_MLP,
        .fp8_experts = sparse && model->layout.fp8 & FP8_EXPERTS,
        .w = layer_weights(model, layer, model_weight),
        .dw = layer_weights(model, layer, model_grad),
        .residual_in = model_act(model, ACT_RESIDUAL_IN, layer),
        .attn_normed = model_act(model, ACT_ATTN_NORMED, layer),
        .attn_rstd = model_act(model, ACT_ATTN_RSTD, layer),
        .qkv = model_act(model, ACT_QKV, layer),
        .qk = model_act(model, ACT_QK, layer),
        .qk_rstd = model_act(model, ACT_QK_RSTD, layer),
        .attn_out = model_act(model, ACT_ATTN_OUT, layer),
        .lse = model_act(model, ACT_LSE, layer),
        .residual_mid = model_act(model, ACT_RESIDUAL_MID, layer),
        .mlp_normed = model_act(model, ACT_MLP_NORMED, layer),
        .mlp_rstd = model_act(model, ACT_MLP_RSTD, layer),
        .gate_up = model_act(model, ACT_GATE_UP, layer),
        .residual_out = layer_output(model, layer),
        .dresidual = model_act(model, ACT_DRESIDUAL, -1),
        .dnormed = model_act(model, ACT_DNORMED, -1),
        .dattn = model_act(model, ACT_DATTN, layer),
        .dqkv = model_act(model, ACT_DQKV, layer),
        .dhidden = model_act(model, ACT_DHIDDEN, layer),
    };
    attention_tensors(model, &l);
    if (l.sparse)
        moe_tensors(model, layer, &l);
    else
        dense_tensors(model, &l);
    return l;
}

// Whether weight gradients are added to. Under ZeRO 2 and 3 they are whole only for a while, and their pieces do the
// adding.
static bool adds(const Model *model) {
    return model->accumulate && model->layout.zero < 2;
}

// ---- forward --------------------------------------------------------------------------------------------------------

static void norm_forward(Model *model, Tensor normed, Tensor rstd, Tensor residual, Tensor weight) {
    model->ops->add_rmsnorm_forward(model->ops, normed, TENSOR_NONE, rstd, residual, TENSOR_NONE, weight,
                                    model->layout.request.config.norm_eps);
}

// residual_mid = residual_in + O(attention(QKV(norm(residual_in))))
static void attention_forward(Model *model, const Layer *l) {
    fp8_norm_forward(model, PARAM_QKV, l->index, l->attn_normed, l->attn_rstd, l->residual_in, l->w.attn_norm);
    Tensor normed = seam_all_tokens(model, l->attn_normed);
    if (tensor_present(l->w.q_norm) || fp8_uses(model, FP8_QKV_FORWARD)) {
        fp8_linear_forward(model, PARAM_QKV, l->index, l->qkv, normed, TENSOR_NONE);
        seam_rope_forward(model, l->qk, l->qk_rstd, tensor_cols(l->qkv, 0, l->qk.cols), &l->rope);
    } else {
        seam_linear_rope(model, l->qkv, normed, l->w.qkv, &l->rope);
    }
    seam_attention(model, l->attn_out, l->lse, l->q, l->k, l->v, &l->attention);
    seam_project(model, PARAM_O, l->index, l->residual_mid, l->attn_out, l->residual_in);
}

// residual_out = residual_mid + down(SwiGLU(gate_up(norm(residual_mid))))
static void dense_forward(Model *model, const Layer *l) {
    Tensor normed = seam_all_tokens(model, l->mlp_normed);
    bool fp8 = fp8_uses(model, FP8_MLP), notes = l->fp8_mlp && model->fp8_noting; // of gate and up
    if (fp8 || notes) fp8_mlp_forward(model, l->index, normed);
    if (!fp8) model->ops->linear_swiglu_forward(model->ops, l->gate_up, normed, l->w.gate_up);
    if (model->pass == STEP_RECOMPUTE) return; // this is what the backward pass reads
    seam_project(model, PARAM_DOWN, l->index, l->residual_out, l->hidden, l->residual_mid);
}

// An operand of the experts' products: rows, or the tokens that they are made of.
typedef struct RowSource {
    Tensor from, token_of_row;
} RowSource;

// The products read tokens where they stand, so that their rows need not exist. Only where experts are spread over
// ranks are they copied: the tokens of all ranks stand where the next exchange puts others.
static RowSource row_source(Model *model, const Layer *l, Tensor tokens, Tensor copy) {
    if (!tensor_present(l->gathered)) return (RowSource){tokens, l->rows.token_of_row};
    model->ops->moe_gather(model->ops, copy, tokens, &l->rows);
    return (RowSource){copy, TENSOR_NONE};
}

// In FP8. The backward pass, and the forward pass in it, has other places than the forward pass.
static Fp8Experts fp8_experts(const Layer *l) {
    bool backward = tensor_present(l->drows);
    return (Fp8Experts){.layer = l->index,
                        .rows = &l->rows,
                        .row_count = tensor_cols(l->rows.offsets, l->rows.offsets.cols - 1, 1),
                        .gathered = l->gathered,
                        .wide = backward ? l->drows : l->expert_out,
                        .narrow = backward ? l->dhidden : l->hidden};
}

// The same for each expert on the rows of its tokens. The combine weight goes into SwiGLU, so that the sum over a
// token's experts is a plain one.
static void moe_forward(Model *model, const Layer *l) {
    Ops *ops = model->ops;
    CommTicket tokens = seam_dispatch_start(model, l->mlp_normed);
    ops->moe_router_forward(ops, l->routing.logits, l->mlp_normed, l->w.router);
    ops->moe_route_forward(ops, &l->routing);
    seam_place_rows(model, &l->routing, &l->rows);
    if (fp8_uses(model, FP8_EXPERTS)) {
        Fp8Experts experts = fp8_experts(l);
        fp8_experts_forward(model, &experts, seam_dispatched(model, l->mlp_normed, tokens));
        if (model->pass != STEP_RECOMPUTE)
            seam_combine(model, l->residual_out, l->expert_out, l->residual_mid, &l->rows);
        return;
    }
    // Evaluation of a model in FP8 has no place of its own for rows, and need not keep them.
    Tensor copy = l->fp8_experts ? l->expert_out : l->gathered;
    RowSource in = row_source(model, l, seam_dispatched(model, l->mlp_normed, tokens), copy);
    Tensor scratch = tensor_present(l->drows) ? l->drows : l->expert_out; // neither holds anything yet
    if (model->pass == STEP_RECOMPUTE) {                                  // the backward pass makes hidden itself
        ops->grouped_linear_forward(ops, l->gate_up, in.from, l->w.expert_gate_up, l->rows.offsets, in.token_of_row,
                                    scratch);
        return;
    }
    ops->grouped_swiglu_forward(ops, l->hidden, l->gate_up, in.from, l->w.expert_gate_up, l->rows.offsets,
                                l->rows.row_weight, in.token_of_row, scratch);
    ops->grouped_linear_forward(ops, l->expert_out, l->hidden, l->w.expert_down, l->rows.offsets, TENSOR_NONE,
                                TENSOR_NONE);
    if (l->fp8_experts && model->fp8_noting) {
        Fp8Experts experts = fp8_experts(l);
        fp8_experts_note(model, &experts);
    }
    seam_combine(model, l->residual_out, l->expert_out, l->residual_mid, &l->rows);
}

static void mlp_forward(Model *model, const Layer *l) {
    fp8_norm_forward(model, PARAM_GATE_UP, l->index, l->mlp_normed, l->mlp_rstd, l->residual_mid, l->w.mlp_norm);
    if (l->sparse)
        moe_forward(model, l);
    else
        dense_forward(model, l);
}

void transformer_embed(Model *model) {
    model->pass = STEP_FORWARD;
    seam_edge_weights(model, PARAM_EMBEDDING);
    seam_embed(model, model_act(model, ACT_RESIDUAL_IN, model->layout.first_layer), model_const(model, CONST_IDS),
               model_weight(model, PARAM_EMBEDDING, -1));
}

void transformer_layer_forward(Model *model, int layer) {
    double begin = timeline_begin();
    model->pass = STEP_FORWARD;
    model->layer = layer + 1;
    seam_layer_weights(model, layer);
    Layer l = layer_tensors(model, layer);
    attention_forward(model, &l);
    mlp_forward(model, &l);
    model->layer = 0;
    timeline_end(begin, "forward, layer", layer);
}

void transformer_forward(Model *model) {
    transformer_embed(model);
    for (int i = 0; i < model->layout.layer_count; i++)
        transformer_layer_forward(model, model->layout.first_layer + i);
}

void transformer_layer_cached(Model *model, int layer, Tensor keys, Tensor values, int used) {
    Ops *ops = model->ops;
    model->pass = STEP_FORWARD;
    Layer l = layer_tensors(model, layer);
    norm_forward(model, l.attn_normed, l.attn_rstd, l.residual_in, l.w.attn_norm);
    ops->linear_forward(ops, l.qkv, l.attn_normed, l.w.qkv, TENSOR_NONE);
    ops->qk_rope_forward(ops, l.qk, l.qk_rstd, tensor_cols(l.qkv, 0, l.qk.cols), &l.rope);
    size_t row_bytes = (size_t)keys.cols * dtype_size(keys.dtype);
    for (int64_t i = 0; i < l.k.rows; i++) {
        ops->copy(ops, tensor_at(keys, used + i, 0), tensor_at(l.k, i, 0), row_bytes);
        ops->copy(ops, tensor_at(values, used + i, 0), tensor_at(l.v, i, 0), row_bytes);
    }
    // One by one: queries stand apart by the stride of qkv, the op takes adjacent ones.
    for (int64_t i = 0; i < l.q.rows; i++)
        ops->attention_cached(ops, tensor_rows(l.attn_out, i, 1), tensor_rows(l.q, i, 1), keys, values, used + (int)i,
                              l.attention.head_dim, l.attention.scale);
    ops->linear_forward(ops, l.residual_mid, l.attn_out, l.w.o, l.residual_in);
    mlp_forward(model, &l);
}

// ---- head -----------------------------------------------------------------------------------------------------------

// The embedding is tied to a head that is here: both add to one gradient.
static bool shares_embedding(const Model *model) {
    return layout_head(&model->layout) == PARAM_EMBEDDING && model->layout.request.mesh.pp == 1;
}

static void final_norm(Model *model) {
    norm_forward(model, model_act(model, ACT_FINAL_NORMED, -1), model_act(model, ACT_FINAL_RSTD, -1),
                 model_act(model, ACT_RESIDUAL_FINAL, model->layout.request.config.layers - 1),
                 model_weight(model, PARAM_FINAL_NORM, -1));
}

void transformer_zero_added_gradients(Model *model) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    model->pass = STEP_ONCE;
    ops->zero(ops, model_unit(model, LAYOUT_GRADIENTS, &layout->units[layout->unit_count - 1])); // the vectors
    Tensor embedding = model_grad(model, PARAM_EMBEDDING, -1);
    bool head = layout_head(&model->layout) == PARAM_EMBEDDING && layout->chunks[layout->chunk_count - 1].predicts;
    bool overwritten = head || layout->zero >= 2; // by the head, or cleared at its seam
    if (tensor_present(embedding) && !overwritten) ops->zero(ops, embedding);
}

// Rows of normed that one chunk of logits takes.
static int64_t chunk_rows(Tensor normed, Tensor logits, int64_t first) {
    return normed.rows - first < logits.rows ? normed.rows - first : logits.rows;
}

void transformer_head(Model *model, bool backward) {
    Ops *ops = model->ops;
    model->pass = STEP_FORWARD;
    final_norm(model);
    seam_edge_weights(model, layout_head(&model->layout));
    if (backward) seam_edge_gradients(model, layout_head(&model->layout));
    Tensor normed = seam_all_tokens(model, model_act(model, ACT_FINAL_NORMED, -1));
    Tensor dnormed = seam_gradient_of_all_tokens(model, model_act(model, ACT_DNORMED, -1));
    Tensor logits = model_act(model, ACT_LOGITS, -1), losses = model_act(model, ACT_LOSSES, -1);
    Tensor dhead = model_grad(model, layout_head(&model->layout), -1), targets = model_const(model, CONST_TARGETS);
    Tensor scale = backward ? model_scalar(model, SCALAR_CE_SCALE) : TENSOR_NONE;
    // The full logits never exist: a chunk's loss and gradient are taken while it is there.
    for (int64_t first = 0, rows; first < normed.rows; first += rows) {
        rows = chunk_rows(normed, logits, first);
        Tensor in = tensor_rows(normed, first, rows), out = tensor_rows(logits, 0, rows);
        Fp8HeadChunk chunk = fp8_head_chunk(model, in, out);
        fp8_head_forward(model, &chunk);
        seam_cross_entropy(model, tensor_rows(losses, first, rows), chunk.dlogits, out,
                           tensor_rows(targets, first, rows), scale);
        if (!backward) continue;
        model->pass = STEP_BACKWARD;
        fp8_head_backward(model, &chunk, tensor_rows(dnormed, first, rows), dhead, adds(model) || first > 0);
        model->pass = STEP_FORWARD;
    }
    if (backward && !shares_embedding(model)) seam_edge_done(model, layout_head(&model->layout));
    if (backward) seam_sum_tokens(model, model_act(model, ACT_DNORMED, -1), dnormed);
    ops->sum_f32(ops, model_scalar(model, SCALAR_LOSS_SUM), losses, true);
}

// The final norm's backward pass: from dnormed into dresidual, which holds nothing yet.
void transformer_head_backward(Model *model) {
    model->pass = STEP_FORWARD; // of the final norm's tensors
    Tensor normed = model_act(model, ACT_FINAL_NORMED, -1), rstd = model_act(model, ACT_FINAL_RSTD, -1);
    model->pass = STEP_BACKWARD;
    model->ops->add_rmsnorm_backward(model->ops, model_act(model, ACT_DRESIDUAL, -1),
                                     model_grad(model, PARAM_FINAL_NORM, -1), model_act(model, ACT_DNORMED, -1), normed,
                                     rstd, model_weight(model, PARAM_FINAL_NORM, -1), true);
}

// Counts of all layers are there: the balancing loss, its gradients, and the step's load.
void transformer_balance(Model *model) {
    Ops *ops = model->ops;
    model->pass = STEP_FORWARD;
    const LayoutChunk *chunk = &model->layout.chunks[model->chunk];
    if (seam_stage_balance(model, chunk) || !chunk->sparse) return;
    Tensor counts = tensor_rows(model_act(model, ACT_COUNTS, -1), 0, chunk->sparse);
    Tensor all_counts = seam_balance_sums(model, counts, model_act(model, ACT_PROB_SUM, -1));
    ops->moe_balance(ops, model_scalar(model, SCALAR_AUX_SUM), model_act(model, ACT_DPROB, -1),
                     model_scalar(model, SCALAR_AUX_SCALE), all_counts, model_act(model, ACT_PROB_SUM, -1),
                     model->balance, model->tokens * model->layout.request.mesh.cp);
    ops->moe_add_counts(ops, model_const(model, CONST_EXPERT_TOTAL), counts, model->accumulate);
}

static void head_logits(Model *model, Tensor logits, Tensor normed) {
    seam_edge_weights(model, layout_head(&model->layout));
    model->ops->linear_forward(model->ops, logits, normed, model_weight(model, layout_head(&model->layout), -1),
                               TENSOR_NONE);
}

Tensor transformer_last_logits(Model *model) {
    final_norm(model);
    Tensor normed = model_act(model, ACT_FINAL_NORMED, -1);
    Tensor logits = tensor_rows(model_act(model, ACT_LOGITS, -1), 0, 1);
    head_logits(model, logits, tensor_rows(normed, normed.rows - 1, 1));
    return logits;
}

void transformer_logits(Model *model, void *host) {
    transformer_forward(model);
    final_norm(model);
    Tensor normed = model_act(model, ACT_FINAL_NORMED, -1), logits = model_act(model, ACT_LOGITS, -1);
    size_t row_bytes = (size_t)logits.cols * dtype_size(logits.dtype);
    for (int64_t first = 0, rows; first < normed.rows; first += rows) {
        rows = chunk_rows(normed, logits, first);
        head_logits(model, tensor_rows(logits, 0, rows), tensor_rows(normed, first, rows));
        model->ops->download(model->ops, (char *)host + (size_t)first * row_bytes, logits.data,
                             (size_t)rows * row_bytes);
    }
}

// ---- backward -------------------------------------------------------------------------------------------------------

// dresidual, the gradient of what a sub-layer hands on, gets the part that goes through its norm added.
static void norm_backward(Model *model, const Layer *l, Tensor dweight, Tensor normed, Tensor rstd, Tensor weight) {
    model->ops->add_rmsnorm_backward(model->ops, l->dresidual, dweight, l->dnormed, normed, rstd, weight, false);
}

static void dense_backward(Model *model, const Layer *l) {
    Ops *ops = model->ops;
    Tensor dout = seam_all_gradients(model, l->dresidual), normed = seam_all_tokens(model, l->mlp_normed);
    Tensor dgate_up = l->gate_up; // after SwiGLU
    if (l->fp8_mlp) {
        Tensor din = seam_gradient_of_all_tokens(model, l->dnormed);
        fp8_mlp_backward(model, l->index, din, l->dw.gate_up, l->dw.down, dout, normed, l->dhidden, adds(model));
        seam_sum_tokens(model, l->dnormed, din);
    } else {
        ops->linear_backward_weight(ops, l->dw.down, dout, l->hidden, adds(model));
        ops->linear_swiglu_backward(ops, l->gate_up, l->dhidden, l->gate_up, dout, l->w.down);
        ops->linear_backward_weight(ops, l->dw.gate_up, dgate_up, normed, adds(model));
        Tensor din = seam_gradient_of_all_tokens(model, l->dnormed);
        ops->linear_backward_input(ops, din, dgate_up, l->w.gate_up);
        seam_sum_tokens(model, l->dnormed, din);
    }
    norm_backward(model, l, l->dw.mlp_norm, l->mlp_normed, l->mlp_rstd, l->w.mlp_norm);
}

static bool recomputes(const Model *model, Recompute policy) {
    return model->layout.request.recompute == policy;
}

// What follows the experts: their inputs' gradients are on their way into dnormed.
static void router_backward(Model *model, const Layer *l, SlotGradient dweight, CommTicket sums) {
    Ops *ops = model->ops;
    Tensor z_coef = model->z_loss_coef != 0 ? model_scalar(model, SCALAR_Z_COEF) : TENSOR_NONE;
    ops->moe_route_backward(ops, l->dlogits, seam_slot_gradient(model, dweight), l->dprob, z_coef, &l->routing);
    seam_combine_wait(model, sums);
    ops->moe_router_backward(ops, l->dnormed, l->dw.router, l->dlogits, l->mlp_normed, l->w.router, adds(model));
    norm_backward(model, l, l->dw.mlp_norm, l->mlp_normed, l->mlp_rstd, l->w.mlp_norm);
}

static void moe_backward_fp8(Model *model, const Layer *l) {
    Fp8Experts experts = fp8_experts(l);
    CommTicket tokens = seam_dispatch_start(model, l->dresidual);
    fp8_experts_backward_hidden(model, &experts, seam_dispatched(model, l->dresidual, tokens), l->drow_weight);
    bool again = tensor_present(l->gathered) && recomputes(model, RECOMPUTE_SELECTIVE);
    if (again) tokens = seam_dispatch_start(model, l->mlp_normed);
    SlotGradient dweight = seam_slot_gradient_start(model, l->drow_weight, &l->rows);
    fp8_experts_backward_rows(model, &experts, l->dw.expert_down, adds(model));
    if (again) {
        model->pass = STEP_RECOMPUTE;
        fp8_experts_gather_again(model, &experts, seam_dispatched(model, l->mlp_normed, tokens));
        model->pass = STEP_BACKWARD;
    }
    CommTicket sums = seam_combine_start(model, l->dnormed, l->drows, &l->rows);
    fp8_experts_backward_weight(model, &experts, l->dw.expert_gate_up, l->mlp_normed, adds(model));
    router_backward(model, l, dweight, sums);
}

static void moe_backward(Model *model, const Layer *l) {
    Ops *ops = model->ops;
    Tensor offsets = l->rows.offsets;
    bool copied = tensor_present(l->gathered), again = copied && recomputes(model, RECOMPUTE_SELECTIVE);
    CommTicket tokens = seam_dispatch_start(model, l->dresidual);
    // Two products read these rows: one copy costs less than finding the tokens in the loads of both.
    ops->moe_gather(ops, l->drows, seam_dispatched(model, l->dresidual, tokens), &l->rows);
    if (again) tokens = seam_dispatch_start(model, l->mlp_normed);
    Tensor dgate_up = l->gate_up, hidden = l->dhidden; // after SwiGLU
    ops->grouped_swiglu_backward(ops, dgate_up, hidden, l->drow_weight, l->gate_up, l->drows, l->w.expert_down, offsets,
                                 l->rows.row_weight);
    SlotGradient dweight = seam_slot_gradient_start(model, l->drow_weight, &l->rows);
    ops->grouped_linear_backward_weight(ops, l->dw.expert_down, l->drows, hidden, offsets, TENSOR_NONE, TENSOR_NONE,
                                        adds(model));
    ops->grouped_linear_backward_input(ops, l->drows, dgate_up, l->w.expert_gate_up, offsets);
    if (again) {
        model->pass = STEP_RECOMPUTE;
        ops->moe_gather(ops, l->gathered, seam_dispatched(model, l->mlp_normed, tokens), &l->rows);
        model->pass = STEP_BACKWARD;
    }
    CommTicket sums = seam_combine_start(model, l->dnormed, l->drows, &l->rows);
    RowSource in = copied ? (RowSource){l->gathered, TENSOR_NONE} : (RowSource){l->mlp_normed, l->rows.token_of_row};
    ops->grouped_linear_backward_weight(ops, l->dw.expert_gate_up, dgate_up, in.from, offsets, in.token_of_row,
                                        l->drows, adds(model)); // drows has been summed
    router_backward(model, l, dweight, sums);
}

static void attention_backward(Model *model, const Layer *l) {
    bool qk_norm = tensor_present(l->w.q_norm);
    Tensor qk_in = tensor_cols(l->qkv, 0, l->qk.cols), dqk = tensor_cols(l->dqkv, 0, l->qk.cols);
    Tensor dout = seam_all_gradients(model, l->dresidual);
    fp8_linear_backward(model, PARAM_O, l->index, l->dattn, l->dw.o, dout, l->attn_out, adds(model));
    if (qk_norm && recomputes(model, RECOMPUTE_SELECTIVE)) {
        model->pass = STEP_RECOMPUTE;
        seam_rope_forward(model, l->qk, l->qk_rstd, qk_in, &l->rope);
        model->pass = STEP_BACKWARD;
    }
    model_lend_scratch(model, true);
    seam_attention_backward(model, l->dq, l->dk, l->dv, l->dattn, l->attn_out, l->lse, l->q, l->k, l->v, &l->attention,
                            qk_norm ? NULL : &l->rope);
    model_lend_scratch(model, false);
    if (qk_norm) // without it attention has taken the rotation back
        seam_rope_backward(model, dqk, l->dw.q_norm, l->dw.k_norm, qk_in, l->qk_rstd, &l->rope);
    Tensor din = seam_gradient_of_all_tokens(model, l->dnormed);
    fp8_linear_backward(model, PARAM_QKV, l->index, din, l->dw.qkv, l->dqkv, seam_all_tokens(model, l->attn_normed),
                        adds(model));
    seam_sum_tokens(model, l->dnormed, din);
    norm_backward(model, l, l->dw.attn_norm, l->attn_normed, l->attn_rstd, l->w.attn_norm);
}

void transformer_layer_backward(Model *model, int layer) {
    double begin = timeline_begin();
    model->pass = STEP_BACKWARD;
    model->layer = layer + 1;
    seam_layer_weights(model, layer);
    seam_layer_gradients(model, layer);
    Layer l = layer_tensors(model, layer);
    if (recomputes(model, RECOMPUTE_FULL)) {
        model->pass = STEP_RECOMPUTE;
        attention_forward(model, &l);
        mlp_forward(model, &l);
        model->pass = STEP_BACKWARD;
    }
    if (l.fp8_experts)
        moe_backward_fp8(model, &l);
    else if (l.sparse)
        moe_backward(model, &l);
    else
        dense_backward(model, &l);
    attention_backward(model, &l);
    seam_layer_done(model, layer);
    model->layer = 0;
    timeline_end(begin, "backward, layer", layer);
}

void transformer_embed_backward(Model *model) {
    model->pass = STEP_BACKWARD;
    if (!shares_embedding(model)) seam_edge_gradients(model, PARAM_EMBEDDING);
    seam_embed_backward(model, model_grad(model, PARAM_EMBEDDING, -1), model_act(model, ACT_DRESIDUAL, -1),
                        model_const(model, CONST_IDS));
    seam_edge_done(model, PARAM_EMBEDDING);
}

void transformer_backward(Model *model) {
    transformer_head_backward(model);
    for (int i = model->layout.layer_count - 1; i >= 0; i--)
        transformer_layer_backward(model, model->layout.first_layer + i);
    transformer_embed_backward(model);
}
