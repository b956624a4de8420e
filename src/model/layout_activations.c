// Activations: what a micro-batch leaves for its backward pass, and temporaries, which share one block of memory.
#include "model/layout_build.h"

#include "base/text.h"

#include <stdlib.h>

static bool rows_are_tokens(ActId id) {
    switch (id) {
    case ACT_RESIDUAL_IN:
    case ACT_ATTN_NORMED:
    case ACT_ATTN_RSTD:
    case ACT_QKV:
    case ACT_QK:
    case ACT_QK_RSTD:
    case ACT_ATTN_OUT:
    case ACT_MLP_NORMED:
    case ACT_MLP_RSTD:
    case ACT_GATE_UP8:
    case ACT_FP8_GATE_UP:
    case ACT_FP8_HIDDEN:
    case ACT_FP8_DOUT:
    case ACT_FP8_DGATE_UP:
    case ACT_FP8_DQKV:
    case ACT_PROBS:
    case ACT_ROUTER_LSE:
    case ACT_EXPERT:
    case ACT_EXPERT_WEIGHT:
    case ACT_ROW_OF_SLOT:
    case ACT_DISPATCHED:
    case ACT_ALL_EXPERT:
    case ACT_ALL_WEIGHT:
    case ACT_DWEIGHT:
    case ACT_FINAL_RSTD:
    case ACT_LOSSES:
    case ACT_RESIDUAL_MID:
    case ACT_RESIDUAL_FINAL:
    case ACT_FINAL_NORMED:
    case ACT_ROUTER_LOGITS:
    case ACT_DRESIDUAL:
    case ACT_DNORMED:
    case ACT_DATTN:
    case ACT_DQKV:
    case ACT_WIDE:
    case ACT_DWIDE:
    case ACT_DLOGITS:
    case ACT_STAGE_OUT: return true;
    default: return false;
    }
}

static void add_act(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols, bool kept,
                    Phase first, Phase last) {
    layout->activations = layout_grow(layout->activations, &layout->activation_count, sizeof *layout->activations);
    LayoutActivation *act = &layout->activations[layout->activation_count - 1];
    *act = (LayoutActivation){.id = id,
                              .layer = layer,
                              .dtype = dtype,
                              .rows = rows,
                              .cols = cols,
                              .kept = kept,
                              .per_token = rows_are_tokens(id),
                              .first = first,
                              .last = last};
    act->bytes = align_up(rows * cols * (int64_t)dtype_size(dtype), LAYOUT_ALIGN);
    int layers = layout->request.config.layers;
    for (int pass = 0; pass < 2; pass++) {
        // A kept tensor is the same in both passes; a temporary belongs to the pass of its phases, or to both.
        bool forward = first <= PHASE_HEAD, backward = last > PHASE_HEAD;
        if (!kept && !(pass == 0 ? forward : backward)) continue;
        layout->act_index[(pass * (layers + 1) + layer + 1) * ACT_ID_COUNT + id] = layout->activation_count;
    }
}

static void keep_tensor(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols) {
    add_act(layout, id, layer, dtype, rows, cols, true, PHASE_ATTENTION, PHASE_EMBEDDING_BACKWARD);
}

static void add_temporary(Layout *layout, ActId id, DType dtype, int64_t rows, int64_t cols, Phase first, Phase last) {
    add_act(layout, id, -1, dtype, rows, cols, false, first, last);
}

// Whether a layer's forward pass also runs in the backward pass, from its input on.
static bool runs_again(const LayoutRequest *request) {
    return request->recompute == RECOMPUTE_FULL && !request->inference;
}

// Where what the MLP's backward pass shares with the forward pass before it begins to live.
static Phase first_backward(const LayoutRequest *request) {
    return runs_again(request) ? PHASE_RECOMPUTE : PHASE_MLP_BACKWARD;
}

// What the backward pass of a layer reads. Under full recompute it is temporary: once for the forward pass, once for
// the forward run again inside the backward pass.
static void add_layer_tensor(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols,
                             bool droppable) {
    Recompute recompute = layout->request.recompute;
    if (recompute == RECOMPUTE_NONE || (recompute == RECOMPUTE_SELECTIVE && !droppable)) {
        keep_tensor(layout, id, layer, dtype, rows, cols);
        return;
    }
    int layers = layout->request.config.layers;
    for (int pass = 0; pass < 2;
         pass++) { // one instance serves all layers: kinds of layers differ, so take the largest
        int index = layout->act_index[(pass * (layers + 1)) * ACT_ID_COUNT + id];
        if (!index) {
            // Large, and needed in the MLP's phases only.
            bool mlp = id == ACT_GATHERED || id == ACT_GATE_UP || id == ACT_GATE_UP8 || id == ACT_MLP_NORMED ||
                       id == ACT_EXPERT_GATE_UP8;
            Phase first = pass ? first_backward(&layout->request) : mlp ? PHASE_MLP : PHASE_ATTENTION;
            Phase last = !pass ? PHASE_MLP : mlp ? PHASE_MLP_BACKWARD : PHASE_QKV_BACKWARD;
            add_temporary(layout, id, dtype, rows, cols, first, last);
            continue;
        }
        LayoutActivation *act = &layout->activations[index - 1];
        int64_t bytes = align_up(rows * cols * (int64_t)dtype_size(dtype), LAYOUT_ALIGN);
        // By elements: two sizes may round to the same bytes.
        if (rows * cols > act->rows * act->cols) act->rows = rows, act->cols = cols, act->bytes = bytes;
    }
}

static bool spreads_experts(const Layout *layout) { // over ranks, which exchange tokens
    return layout->request.config.experts && layout->request.mesh.ep * layout->request.mesh.etp > 1;
}

static void build_layer(Layout *layout, int i) {
    const ModelConfig *c = &layout->request.config;
    int tp = layout->request.mesh.tp, etp = layout->request.mesh.etp;
    int64_t T = layout->tokens, L = layout->local_tokens, R = layout->rows, heads = c->heads / tp,
            qkv = layout_qkv_dim(&layout->request);
    int64_t qk = (qkv + heads * c->head_dim) / 2; // query and key heads
    DType dtype = layout->dtype;
    if (runs_again(&layout->request)) keep_tensor(layout, ACT_RESIDUAL_IN, i, dtype, L, c->hidden);
    add_layer_tensor(layout, ACT_ATTN_NORMED, i, dtype, L, c->hidden, false);
    add_layer_tensor(layout, ACT_ATTN_RSTD, i, DTYPE_F32, L, 1, false);
    add_layer_tensor(layout, ACT_QKV, i, dtype, T, qkv, false);
    if (model_qk_norm(c)) {
        add_layer_tensor(layout, ACT_QK, i, dtype, T, qk, true);
        add_layer_tensor(layout, ACT_QK_RSTD, i, DTYPE_F32, T, qk / c->head_dim, false);
    }
    add_layer_tensor(layout, ACT_ATTN_OUT, i, dtype, T, heads * c->head_dim, false);
    add_layer_tensor(layout, ACT_LSE, i, DTYPE_F32, layout->request.micro_batch * heads,
                     T / layout->request.micro_batch, false);
    add_layer_tensor(layout, ACT_MLP_NORMED, i, dtype, L, c->hidden, false);
    add_layer_tensor(layout, ACT_MLP_RSTD, i, DTYPE_F32, L, 1, false);
    if (!c->sparse[i] && (layout->fp8 & FP8_MLP)) {
        add_layer_tensor(layout, ACT_GATE_UP8, i, DTYPE_E4M3, T, 2 * (int64_t)c->ffn / tp, false);
        return;
    }
    if (!c->sparse[i]) {
        add_layer_tensor(layout, ACT_GATE_UP, i, dtype, T, 2 * (int64_t)c->ffn / tp, false);
        return;
    }
    bool fp8 = layout->fp8 & FP8_EXPERTS;
    add_layer_tensor(layout, fp8 ? ACT_EXPERT_GATE_UP8 : ACT_GATE_UP, i, fp8 ? DTYPE_E4M3 : dtype, R,
                     2 * (int64_t)c->moe_ffn / etp, false);
    add_layer_tensor(layout, ACT_PROBS, i, DTYPE_F32, L, c->experts, false);
    add_layer_tensor(layout, ACT_ROUTER_LSE, i, DTYPE_F32, L, 1, false);
    add_layer_tensor(layout, ACT_EXPERT, i, DTYPE_I32, L, c->top_k, false);
    add_layer_tensor(layout, ACT_EXPERT_WEIGHT, i, DTYPE_F32, L, c->top_k, false);
    add_layer_tensor(layout, ACT_OFFSETS, i, DTYPE_I32, 1, c->experts / layout->request.mesh.ep + 1, false);
    if (spreads_experts(layout))
        add_layer_tensor(layout, ACT_ROW_COUNTS, i, DTYPE_I32, 1, c->experts / layout->request.mesh.ep, false);
    int64_t slots_of = spreads_experts(layout) ? layout_dispatched_tokens(&layout->request) : L;
    add_layer_tensor(layout, ACT_ROW_OF_SLOT, i, DTYPE_I32, slots_of, c->top_k, false);
    add_layer_tensor(layout, ACT_TOKEN_OF_ROW, i, DTYPE_I32, R, 1, false);
    add_layer_tensor(layout, ACT_ROW_WEIGHT, i, DTYPE_F32, R, 1, false);
    if (spreads_experts(layout))
        add_layer_tensor(layout, ACT_GATHERED, i, fp8 ? DTYPE_E4M3 : dtype, R, c->hidden, true);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Copies in FP8. They live from the kernel that makes them to the product that reads them; several share a place.
static void build_fp8(Layout *layout, bool dense) {
    const ModelConfig *c = &layout->request.config;
    unsigned on = layout->fp8;
    int64_t T = layout->tokens, d = c->hidden, tp = layout->request.mesh.tp, qkv = layout_qkv_dim(&layout->request);
    int64_t attention = model_attention_dim(c) / tp, ffn = dense && on & FP8_MLP ? c->ffn / tp : 0;
    int64_t in = on & FP8_O_FORWARD ? larger(d, attention) : d;
    bool again = runs_again(&layout->request), rows = on & FP8_O_INPUT || ffn, cols = on & FP8_O_WEIGHT || ffn;
    if (on & (FP8_QKV_FORWARD | FP8_O_FORWARD) || ffn) {
        add_temporary(layout, ACT_FP8_IN, DTYPE_E4M3, T * in, 1, PHASE_ATTENTION, PHASE_MLP);
        if (again) add_temporary(layout, ACT_FP8_IN, DTYPE_E4M3, T * in, 1, PHASE_RECOMPUTE, PHASE_RECOMPUTE);
    }
    if (ffn) {
        for (int run = 0; run < (again ? 2 : 1); run++) {
            Phase phase = run ? PHASE_RECOMPUTE : PHASE_MLP;
            add_temporary(layout, ACT_FP8_GATE_UP, DTYPE_BF16, T, 2 * ffn, phase, phase);
            add_temporary(layout, ACT_FP8_HIDDEN, DTYPE_E4M3, T, ffn, phase, phase);
        }
        add_temporary(layout, ACT_FP8_DGATE_UP, DTYPE_E5M2, T, 2 * ffn, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
        add_temporary(layout, ACT_FP8_DGATE_UP_COLS, DTYPE_E5M2, 2 * ffn, T, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
        add_temporary(layout, ACT_FP8_MLP_COLS, DTYPE_E4M3, larger(ffn, d), T, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    }
    // None lives while attention itself runs backward: what they take is lent to it.
    Phase first = ffn ? PHASE_MLP_BACKWARD : PHASE_O_BACKWARD, qkv_phase = PHASE_QKV_BACKWARD;
    if (rows) add_temporary(layout, ACT_FP8_DOUT, DTYPE_E5M2, T, d, first, PHASE_O_BACKWARD);
    if (cols) add_temporary(layout, ACT_FP8_DOUT_COLS, DTYPE_E5M2, d, T, first, PHASE_O_BACKWARD);
    if (on & FP8_O_WEIGHT)
        add_temporary(layout, ACT_FP8_ATTN_COLS, DTYPE_E4M3, attention, T, PHASE_O_BACKWARD, PHASE_O_BACKWARD);
    if (on & FP8_QKV_INPUT) add_temporary(layout, ACT_FP8_DQKV, DTYPE_E5M2, T, qkv, qkv_phase, qkv_phase);
    if (on & FP8_QKV_WEIGHT) {
        add_temporary(layout, ACT_FP8_DQKV_COLS, DTYPE_E5M2, qkv, T, qkv_phase, qkv_phase);
        add_temporary(layout, ACT_FP8_QKV_COLS, DTYPE_E4M3, d, T, qkv_phase, qkv_phase);
    }
    if (!layout->chunks[layout->chunk_count - 1].predicts) return;
    int64_t chunk = layout->logits_rows;
    if (on & FP8_HEAD_FORWARD) add_temporary(layout, ACT_FP8_HEAD_IN, DTYPE_E4M3, chunk, d, PHASE_HEAD, PHASE_HEAD);
    if (on & FP8_HEAD_GRADIENTS) {
        add_temporary(layout, ACT_FP8_HEAD_COLS, DTYPE_E4M3, d, chunk, PHASE_HEAD, PHASE_HEAD);
        add_temporary(layout, ACT_FP8_DLOGITS, DTYPE_E5M2, chunk, layout_vocab_rows(&layout->request), PHASE_HEAD,
                      PHASE_HEAD);
    }
}

// The same of experts. Rows in FP8 on their way to a product have their place where that product's result, or another
// in bf16, stands before or after (fp8_experts.c).
static void build_fp8_experts(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    int64_t R = layout->rows, ffn = c->moe_ffn / layout->request.mesh.etp;
    int64_t tokens = spreads_experts(layout) ? layout_dispatched_tokens(&layout->request) : layout->local_tokens;
    Phase backward = PHASE_MLP_BACKWARD;
    add_temporary(layout, ACT_FP8_TOKENS, DTYPE_E4M3, tokens, c->hidden, PHASE_MLP, PHASE_MLP);
    add_temporary(layout, ACT_FP8_TOKENS, DTYPE_E4M3, tokens, c->hidden, first_backward(&layout->request), backward);
    add_temporary(layout, ACT_FP8_EXPERT_GATE_UP, DTYPE_BF16, R, 2 * ffn, PHASE_MLP, PHASE_MLP);
    if (runs_again(&layout->request))
        add_temporary(layout, ACT_FP8_EXPERT_GATE_UP, DTYPE_BF16, R, 2 * ffn, PHASE_RECOMPUTE, PHASE_RECOMPUTE);
    add_temporary(layout, ACT_FP8_EXPERT_DGATE_UP, DTYPE_E5M2, R, 2 * ffn, backward, backward);
    add_temporary(layout, ACT_FP8_EXPERT_DGATE_UP_COLS, DTYPE_E5M2, 2 * ffn, R, backward, backward);
    add_temporary(layout, ACT_FP8_HIDDEN_COLS, DTYPE_E4M3, ffn, R, backward, backward);
}

// Once for the forward pass, once for the backward pass and the forward run again there.
static void add_ring(Layout *layout, int64_t queries, int64_t keys, bool again) {
    const LayoutRequest *request = &layout->request;
    int64_t T = layout->tokens, heads = request->config.heads / request->mesh.tp;
    int64_t chunk = mesh_chunk_tokens(&request->mesh, request->seq);
    Phase backward = again ? PHASE_RECOMPUTE : PHASE_ATTENTION_BACKWARD;
    for (int pass = 0; pass < 2; pass++) {
        Phase first = pass ? backward : PHASE_ATTENTION, last = pass ? PHASE_ATTENTION_BACKWARD : PHASE_ATTENTION;
        add_temporary(layout, ACT_RING_KV, layout->dtype, 2 * T, keys, first, last);
        add_temporary(layout, ACT_RING_SUM, DTYPE_F32, T, queries, first, last);
        if (!pass || again)
            add_temporary(layout, ACT_RING_LSE, DTYPE_F32, request->micro_batch * heads, chunk, first,
                          pass ? PHASE_RECOMPUTE : last);
    }
    add_temporary(layout, ACT_RING_DKV, DTYPE_F32, 2 * T, keys, PHASE_ATTENTION_BACKWARD, PHASE_ATTENTION_BACKWARD);
}

// What ranks that share experts exchange, in the forward pass and in the backward pass, where it may run again.
static void build_exchange(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    int64_t all = layout_dispatched_tokens(&layout->request);
    for (int pass = 0; pass < 2; pass++) {
        Phase first = pass ? first_backward(&layout->request) : PHASE_MLP, last = pass ? PHASE_MLP_BACKWARD : PHASE_MLP;
        add_temporary(layout, ACT_DISPATCHED, layout->dtype, all, c->hidden, first, last);
        if (!pass || runs_again(&layout->request))
            add_temporary(layout, ACT_ALL_EXPERT, DTYPE_I32, all, c->top_k, first, last);
        add_temporary(layout, ACT_ALL_WEIGHT, DTYPE_F32, all, c->top_k, first, last);
    }
    add_temporary(layout, ACT_DWEIGHT, DTYPE_F32, layout->local_tokens, c->top_k, PHASE_MLP_BACKWARD,
                  PHASE_MLP_BACKWARD);
}

static void build_temporaries(Layout *layout, bool dense, bool sparse) {
    const ModelConfig *c = &layout->request.config;
    int tp = layout->request.mesh.tp, etp = layout->request.mesh.etp;
    int64_t T = layout->tokens, L = layout->local_tokens, R = layout->rows, d = c->hidden,
            qkv = layout_qkv_dim(&layout->request);
    int64_t attention = (int64_t)c->heads / tp * c->head_dim;
    int64_t hidden = 0; // elements after SwiGLU, dense or of the experts
    if (dense) hidden = T * c->ffn / tp;
    if (sparse && R * c->moe_ffn / etp > hidden) hidden = R * c->moe_ffn / etp;
    DType dtype = layout->dtype;
    bool again = runs_again(&layout->request);

    if (!again) add_temporary(layout, ACT_RESIDUAL_IN, dtype, L, d, PHASE_ATTENTION, PHASE_MLP);
    add_temporary(layout, ACT_RESIDUAL_MID, dtype, L, d, PHASE_ATTENTION, PHASE_MLP);
    if (again) add_temporary(layout, ACT_RESIDUAL_MID, dtype, L, d, PHASE_RECOMPUTE, PHASE_RECOMPUTE);
    // The final norm, which reads one and writes the other, counts as the end of the last MLP: before the logits.
    bool pipeline = layout->request.mesh.pp > 1, last_stage = layout->chunks[layout->chunk_count - 1].predicts;
    if (!pipeline) add_temporary(layout, ACT_RESIDUAL_FINAL, dtype, L, d, PHASE_MLP, PHASE_MLP);
    if (pipeline && last_stage) keep_tensor(layout, ACT_RESIDUAL_FINAL, c->layers - 1, dtype, L, d);
    if (last_stage) {
        add_temporary(layout, ACT_FINAL_NORMED, dtype, L, d, PHASE_MLP, PHASE_HEAD);
        add_temporary(layout, ACT_LOGITS, dtype, layout->logits_rows, layout_vocab_rows(&layout->request), PHASE_HEAD,
                      PHASE_HEAD);
    }
    if (!pipeline) add_temporary(layout, ACT_DRESIDUAL, dtype, L, d, PHASE_HEAD, PHASE_EMBEDDING_BACKWARD);
    add_temporary(layout, ACT_DNORMED, dtype, L, d, PHASE_HEAD, PHASE_QKV_BACKWARD);
    // Experts in FP8 that run forward again have codes there; their rows, in FP8 or gathered, stand in ACT_DROWS.
    Phase hidden_first = sparse && layout->fp8 & FP8_EXPERTS ? first_backward(&layout->request) : PHASE_MLP_BACKWARD;
    add_temporary(layout, ACT_DHIDDEN, dtype, hidden, 1, hidden_first, PHASE_MLP_BACKWARD);
    add_temporary(layout, ACT_DATTN, dtype, T, attention, PHASE_O_BACKWARD, PHASE_ATTENTION_BACKWARD);
    add_temporary(layout, ACT_DQKV, dtype, T, qkv, PHASE_ATTENTION_BACKWARD, PHASE_QKV_BACKWARD);
    if (layout->request.mesh.cp > 1) add_ring(layout, attention, qkv - attention, again);
    if (tp > 1) {
        add_temporary(layout, ACT_WIDE, dtype, T, d, PHASE_ATTENTION, PHASE_EMBEDDING_BACKWARD);
        add_temporary(layout, ACT_DWIDE, dtype, T, d, PHASE_HEAD, PHASE_EMBEDDING_BACKWARD);
        if (last_stage)
            add_temporary(layout, ACT_SPLIT_STATS, DTYPE_F32, tp * layout->logits_rows, SPLIT_STATS, PHASE_HEAD,
                          PHASE_HEAD);
    }
    build_fp8(layout, dense);
    if (!sparse) return;
    if (spreads_experts(layout)) build_exchange(layout);
    if (layout->fp8 & FP8_EXPERTS) build_fp8_experts(layout);
    add_temporary(layout, ACT_ROUTER_LOGITS, DTYPE_F32, L, c->experts, PHASE_MLP, PHASE_MLP);
    add_temporary(layout, ACT_HIDDEN, dtype, R, c->moe_ffn / etp, PHASE_MLP, PHASE_MLP);
    add_temporary(layout, ACT_EXPERT_OUT, dtype, R, d, PHASE_MLP, PHASE_MLP);
    add_temporary(layout, ACT_DROWS, dtype, R, d, first_backward(&layout->request), PHASE_MLP_BACKWARD);
    add_temporary(layout, ACT_DROW_WEIGHT, DTYPE_F32, R, 1, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    add_temporary(layout, ACT_DLOGITS, DTYPE_F32, L, c->experts, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    if (again) add_temporary(layout, ACT_ROUTER_LOGITS, DTYPE_F32, L, c->experts, PHASE_RECOMPUTE, PHASE_RECOMPUTE);
}

// Places temporaries so that those alive in a common phase do not overlap: largest first, each at the lowest free
// place.
static int64_t place_temporaries(Layout *layout) {
    int count = 0;
    LayoutActivation **order = xmalloc((size_t)layout->activation_count * sizeof(LayoutActivation *));
    for (int i = 0; i < layout->activation_count; i++)
        if (!layout->activations[i].kept) order[count++] = &layout->activations[i];
    for (int i = 1; i < count; i++) // insertion sort by size, stable
        for (int k = i; k > 0 && order[k]->bytes > order[k - 1]->bytes; k--) {
            LayoutActivation *swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
        LayoutActivation *act = order[i];
        act->offset = 0;
        for (int k = 0; k < i;) {
            const LayoutActivation *other = order[k];
            bool meet = act->first <= other->last && other->first <= act->last;
            bool overlap = act->offset < other->offset + other->bytes && other->offset < act->offset + act->bytes;
            if (meet && overlap) {
                act->offset = other->offset + other->bytes;
                k = 0; // the new place may meet an earlier one
            } else {
                k++;
            }
        }
        if (act->offset + act->bytes > end) end = act->offset + act->bytes;
    }
    free(order);
    return end;
}

static void add_scratch(Layout *layout, int64_t bytes) {
    add_temporary(layout, ACT_SCRATCH, DTYPE_U8, bytes / LAYOUT_ALIGN * LAYOUT_ALIGN, 1, PHASE_ATTENTION_BACKWARD,
                  PHASE_ATTENTION_BACKWARD);
}

// Attention's backward pass is faster with a large workspace, and the LM head's logits, which set the size of the
// block, are gone by then: whatever the other temporaries of that phase leave is lent to it. Where that is less than
// its fastest kernel takes (a small vocabulary, a stage without the head) the block grows by the rest, which is at most
// dQ in float: little beside what the layers keep, and without it attention took 1.6 times as long in smollm-360m. A
// request may name its size.
static int64_t place_with_scratch(Layout *layout) {
    if (layout->request.device != DEVICE_CUDA) return place_temporaries(layout);
    if (layout->request.scratch) {
        add_scratch(layout, layout->request.scratch);
        return place_temporaries(layout);
    }
    int64_t end = place_temporaries(layout), alive = 0;
    for (int i = 0; i < layout->activation_count; i++) {
        const LayoutActivation *act = &layout->activations[i];
        if (!act->kept && act->first <= PHASE_ATTENTION_BACKWARD && act->last >= PHASE_ATTENTION_BACKWARD)
            alive += act->bytes;
    }
    add_scratch(layout, end - alive < LAYOUT_SCRATCH_MAX ? end - alive : LAYOUT_SCRATCH_MAX);
    LayoutActivation *scratch = &layout->activations[layout->activation_count - 1];
    // The others may leave their room in pieces, and a smaller scratch takes its place later and lets them lie better.
    for (int64_t over; (over = place_temporaries(layout) - end) > 0 && scratch->bytes > 0;)
        scratch->rows = scratch->bytes = scratch->bytes > over ? scratch->bytes - over : 0;
    int64_t least = layout_scratch_least(&layout->request);
    if (scratch->bytes >= least) return end;
    scratch->rows = scratch->bytes = least;
    return place_temporaries(layout);
}

// Between two chunks of layers. A pass of a pipeline finds its input in the places of a layer's own, and leaves its
// output where it can stay until it is sent.
static void build_messages(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    if (layout->request.mesh.pp == 1) return;
    keep_tensor(layout, ACT_STAGE_OUT, -1, layout->dtype, 2 * layout->local_tokens, c->hidden);
    keep_tensor(layout, ACT_DRESIDUAL, -1, layout->dtype, 2 * layout->local_tokens, c->hidden);
    if (!model_sparse_layers(c)) return;
    keep_tensor(layout, ACT_STAGE_COUNTS, -1, DTYPE_I32, 2, c->experts);
    keep_tensor(layout, ACT_STAGE_PROBS, -1, DTYPE_F32, 2, c->experts);
    keep_tensor(layout, ACT_STAGE_DPROB, -1, DTYPE_F32, 2, c->experts);
}

static bool of_layers(const LayoutActivation *act) { // of each, or with a row for each
    return act->layer >= 0 || act->id == ACT_COUNTS || act->id == ACT_ALL_COUNTS || act->id == ACT_PROB_SUM ||
           act->id == ACT_DPROB;
}

static bool in_chunk(const LayoutActivation *act, const LayoutChunk *chunk) {
    return act->layer >= chunk->first && act->layer < chunk->first + chunk->count;
}

// What layers keep is there once for every pass through a chunk that the pipeline has between its forward and backward
// half on this rank: a slot, which has room for any of the chunks.
static int64_t place_kept(Layout *layout) {
    int64_t once = 0, shared = 0;
    for (int i = 0; i < layout->activation_count; i++) {
        LayoutActivation *act = &layout->activations[i];
        if (!act->kept || act->layer >= 0) continue;
        act->in_flight = of_layers(act);
        int64_t *end = act->in_flight ? &shared : &once;
        act->offset = *end;
        *end += act->bytes;
    }
    layout->slot_bytes = shared;
    for (int chunk = 0; chunk < layout->chunk_count; chunk++) {
        int64_t end = shared;
        for (int i = 0; i < layout->activation_count; i++) {
            LayoutActivation *act = &layout->activations[i];
            if (!act->kept || !in_chunk(act, &layout->chunks[chunk])) continue;
            act->in_flight = true;
            act->offset = end;
            end += act->bytes;
        }
        if (end > layout->slot_bytes) layout->slot_bytes = end;
    }
    layout->slot_offset = once;
    return once + layout->slots * layout->slot_bytes;
}

void layout_build_activations(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    int sparse = 0, most = 0; // layers of this rank, and of one chunk
    for (int i = 0; i < layout->chunk_count; i++) {
        sparse += layout->chunks[i].sparse;
        if (layout->chunks[i].sparse > most) most = layout->chunks[i].sparse;
    }
    layout->act_index = xcalloc((size_t)(2 * (c->layers + 1)) * ACT_ID_COUNT, sizeof(int));
    for (int i = 0; i < layout->layer_count; i++)
        build_layer(layout, layout_layer(layout, i));
    keep_tensor(layout, ACT_FINAL_RSTD, -1, DTYPE_F32, layout->local_tokens, 1);
    keep_tensor(layout, ACT_LOSSES, -1, DTYPE_F32, layout->tokens, 1);
    if (layout->request.mesh.pp > 1 && model_sparse_layers(c) && !most) most = 1; // sums over all layers
    if (most) {
        keep_tensor(layout, ACT_COUNTS, -1, DTYPE_I32, most, c->experts);
        if (layout->request.mesh.tp * layout->request.mesh.cp > 1)
            keep_tensor(layout, ACT_ALL_COUNTS, -1, DTYPE_I32, most, c->experts);
        keep_tensor(layout, ACT_PROB_SUM, -1, DTYPE_F32, most, c->experts);
        keep_tensor(layout, ACT_DPROB, -1, DTYPE_F32, most, c->experts);
    }
    build_messages(layout);
    build_temporaries(layout, sparse<layout->layer_count, sparse> 0);
    layout->bytes[LAYOUT_ACTIVATIONS] = place_kept(layout);
    layout->bytes[LAYOUT_TEMPORARIES] += place_with_scratch(layout);
}
