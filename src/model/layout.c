#include "model/layout.h"

#include "base/text.h"
#include "model/scalars.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_ALIGN = 256, PARAM_ALIGN = 128 /* elements */, LOGITS_ROWS_DEFAULT = 8192 };

static const char *const kind_names[] = {"weights",     "master weights", "gradients", "moments",
                                         "activations", "temporaries",    "constants", "workspace"};
static const char *const precision_names[] = {"fp32", "bf16", "bf16-pure"};
static const char *const recompute_names[] = {"none", "selective", "full"};

const char *layout_kind_name(LayoutKind kind) {
    return kind_names[kind];
}

const char *precision_name(Precision precision) {
    return precision_names[precision];
}

const char *recompute_name(Recompute recompute) {
    return recompute_names[recompute];
}

Status precision_parse(Precision *precision, const char *name) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, precision_names[i]) == 0) {
            *precision = (Precision)i;
            return NULL;
        }
    }
    return status_usage("precision must be fp32, bf16 or bf16-pure, not \"%s\"", name);
}

Status recompute_parse(Recompute *recompute, const char *name) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, recompute_names[i]) == 0) {
            *recompute = (Recompute)i;
            return NULL;
        }
    }
    return status_usage("recompute must be none, selective or full, not \"%s\"", name);
}

static int64_t align_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

double layout_adamw_traffic(Precision precision) {
    double weight = precision == PRECISION_BF16_PURE ? 2 : 4; // bf16 with its master part is as long as a float
    return sizeof(float) + 2 * (2 * sizeof(float) + weight);
}

double layout_gradient_traffic(double added) {
    return sizeof(float) * (1 + added);
}

// ---- checks ---------------------------------------------------------------------------------------------------------

static Status check_divides(int whole, int parts, const char *whole_name, const char *parts_name) {
    if (parts >= 1 && whole % parts == 0) return NULL;
    return status_usage("%s %d does not divide by %s %d", whole_name, whole, parts_name, parts);
}

Status layout_check_kernels(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    if (request->device != LAYOUT_CUDA) return NULL;
    if (config->head_dim > OPS_CUDA_HEAD_DIM_MAX)
        return status_usage("attention on a GPU has heads of at most %d columns, and head_dim is %d",
                            OPS_CUDA_HEAD_DIM_MAX, config->head_dim);
    if (request->precision != PRECISION_FP32 && config->head_dim % OPS_CUDA_HEAD_DIM_PIECE)
        return status_usage("attention in bf16 on a GPU needs a head_dim that is a multiple of %d, and it is %d",
                            OPS_CUDA_HEAD_DIM_PIECE, config->head_dim);
    if (config->experts > OPS_CUDA_EXPERTS_MAX || config->top_k > OPS_CUDA_TOP_K_MAX)
        return status_usage("a GPU routes to at most %d experts, %d of them for a token, and the model has %d and %d",
                            OPS_CUDA_EXPERTS_MAX, OPS_CUDA_TOP_K_MAX, config->experts, config->top_k);
    return NULL;
}

static Status check_request(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    const Mesh *mesh = &request->mesh;
    if (request->micro_batch < 1 || request->seq < 1)
        return status_usage("micro_batch and seq must be at least 1 (they are %d and %d)", request->micro_batch,
                            request->seq);
    if (mesh->dp < 1 || mesh->tp < 1 || mesh->pp < 1 || mesh->ep < 1 || mesh->cp < 1 || mesh->etp < 1)
        return status_usage("every parallel degree must be at least 1");
    if (mesh->zero < 0 || mesh->zero > 3)
        return status_usage("the ZeRO stage must be 0, 1, 2 or 3, not %d", mesh->zero);
    TRY(check_divides(config->heads, mesh->tp, "attention heads", "the tensor-parallel degree"));
    if (config->kv_heads % mesh->tp && mesh->tp % config->kv_heads)
        return status_usage("%d KV heads neither divide by nor divide the tensor-parallel degree %d", config->kv_heads,
                            mesh->tp);
    TRY(check_divides(config->ffn, mesh->tp, "the MLP width", "the tensor-parallel degree"));
    TRY(check_divides(request->seq, mesh->cp, "the sequence length", "the context-parallel degree"));
    TRY(check_divides(mesh->dp * mesh->cp * mesh->tp, mesh->ep * mesh->etp, "the data- and tensor-parallel ranks",
                      "expert-parallel ranks"));
    if (config->experts) {
        TRY(check_divides(config->experts, mesh->ep, "the number of experts", "the expert-parallel degree"));
        TRY(check_divides(config->moe_ffn, mesh->etp, "the expert width", "the expert-tensor-parallel degree"));
    } else if (mesh->ep > 1) {
        return status_usage("expert parallelism of degree %d needs a model with experts", mesh->ep);
    }
    if (mesh->pp > config->layers)
        return status_usage("%d layers cannot fill %d pipeline stages", config->layers, mesh->pp);
    if (request->stage < 0 || request->stage >= mesh->pp)
        return status_usage("pipeline stage %d of %d does not exist", request->stage, mesh->pp);
    return NULL;
}

// ---- parameters -----------------------------------------------------------------------------------------------------

static void add_param(Layout *layout, ParamId id, int layer, int dims, int64_t s0, int64_t s1, int64_t s2, int axis,
                      int degree) {
    LayoutParam *param = &layout->params[layout->param_count++];
    *param = (LayoutParam){.id = id,
                           .layer = layer,
                           .dims = dims,
                           .global_shape = {s0, s1, s2},
                           .shape = {s0, s1, s2},
                           .shard_axis = degree > 1 ? axis : -1,
                           .shard_degree = degree > 1 ? degree : 1,
                           .decay = dims > 1,
                           .expert = id == PARAM_EXPERT_GATE_UP || id == PARAM_EXPERT_DOWN,
                           .residual = id == PARAM_O || id == PARAM_DOWN || id == PARAM_EXPERT_DOWN};
    if (degree > 1) param->shape[axis] = (param->shape[axis] + degree - 1) / degree;
    param->count = param->global_count = 1;
    for (int i = 0; i < dims; i++) {
        param->count *= param->shape[i];
        param->global_count *= param->global_shape[i];
    }
}

// Rows of the fused qkv on one tensor-parallel rank: KV heads are replicated when there are fewer than ranks.
static int64_t local_qkv_dim(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    int tp = request->mesh.tp, kv = mesh_kv_heads(&request->mesh, config->kv_heads);
    return (int64_t)(config->heads / tp + 2 * kv) * config->head_dim;
}

static void build_params(Layout *layout) {
    const LayoutRequest *request = &layout->request;
    const ModelConfig *c = &request->config;
    const Mesh *mesh = &request->mesh;
    bool first_stage = request->stage == 0, last_stage = request->stage == mesh->pp - 1;
    int64_t d = c->hidden, qkv = model_qkv_dim(c), attention = model_attention_dim(c);
    int end = layout->first_layer + layout->layer_count;
    layout->params = xcalloc((size_t)(3 + 10 * layout->layer_count), sizeof *layout->params);
    if (first_stage || (c->tied && last_stage)) add_param(layout, PARAM_EMBEDDING, -1, 2, c->vocab, d, 1, 0, mesh->tp);
    if (last_stage && !c->tied) add_param(layout, PARAM_HEAD, -1, 2, c->vocab, d, 1, 0, mesh->tp);
    for (int i = layout->first_layer; i < end; i++) {
        add_param(layout, PARAM_QKV, i, 2, qkv, d, 1, 0, mesh->tp);
        LayoutParam *fused = &layout->params[layout->param_count - 1];
        fused->shape[0] = local_qkv_dim(request);
        fused->count = fused->shape[0] * d;
        add_param(layout, PARAM_O, i, 2, d, attention, 1, 1, mesh->tp);
        if (c->sparse[i]) {
            add_param(layout, PARAM_ROUTER, i, 2, c->experts, d, 1, 0, 1);
            add_param(layout, PARAM_EXPERT_GATE_UP, i, 3, c->experts, 2 * (int64_t)c->moe_ffn, d, 0, mesh->ep);
            add_param(layout, PARAM_EXPERT_DOWN, i, 3, c->experts, d, c->moe_ffn, 0, mesh->ep);
            for (int k = 1; k <= 2 && mesh->etp > 1; k++) { // experts cut a second time, inside each
                LayoutParam *expert = &layout->params[layout->param_count - k];
                expert->shape[k == 1 ? 2 : 1] /= mesh->etp;
                expert->count /= mesh->etp;
            }
        } else {
            add_param(layout, PARAM_GATE_UP, i, 2, 2 * (int64_t)c->ffn, d, 1, 0, mesh->tp);
            add_param(layout, PARAM_DOWN, i, 2, d, c->ffn, 1, 1, mesh->tp);
        }
    }
    if (last_stage) add_param(layout, PARAM_FINAL_NORM, -1, 1, d, 1, 1, 0, 1);
    for (int i = layout->first_layer; i < end; i++) {
        add_param(layout, PARAM_ATTN_NORM, i, 1, d, 1, 1, 0, 1);
        add_param(layout, PARAM_MLP_NORM, i, 1, d, 1, 1, 0, 1);
        if (!model_qk_norm(c)) continue;
        add_param(layout, PARAM_Q_NORM, i, 1, c->head_dim, 1, 1, 0, 1);
        add_param(layout, PARAM_K_NORM, i, 1, c->head_dim, 1, 1, 0, 1);
    }
    layout->param_index = xcalloc((size_t)(c->layers + 1) * PARAM_ID_COUNT, sizeof(int));
    for (int i = 0; i < layout->param_count; i++) {
        LayoutParam *param = &layout->params[i];
        param->offset = layout->element_count;
        layout->element_count += align_up(param->count, PARAM_ALIGN);
        if (param->decay) layout->decay_count = layout->element_count;
        layout->param_index[(param->layer + 1) * PARAM_ID_COUNT + param->id] = i + 1;
    }
}

// Elements that one rank keeps of state sharded over the data-parallel ranks: each tensor is cut evenly, rounded up.
static int64_t sharded_elements(const Layout *layout) {
    const Mesh *mesh = &layout->request.mesh;
    int dense_ranks = (int)mesh_data_ranks(mesh), expert_ranks = (int)mesh_expert_data_ranks(mesh);
    int64_t elements = 0;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        int ranks = param->expert ? expert_ranks : dense_ranks;
        elements += align_up((param->count + ranks - 1) / ranks, PARAM_ALIGN);
    }
    return elements;
}

static int64_t largest_layer_elements(const Layout *layout) {
    int64_t most = 0;
    for (int layer = -1; layer < layout->request.config.layers; layer++) {
        int64_t sum = 0;
        for (int i = 0; i < layout->param_count; i++)
            if (layout->params[i].layer == layer) sum += align_up(layout->params[i].count, PARAM_ALIGN);
        if (sum > most) most = sum;
    }
    return most;
}

static void build_states(Layout *layout) {
    const LayoutRequest *request = &layout->request;
    int zero = request->mesh.dp > 1 || request->mesh.cp > 1 ? request->mesh.zero : 0; // else nobody to share with
    if (request->inference) {
        layout->bytes[LAYOUT_WEIGHTS] = layout->element_count * (int64_t)dtype_size(layout->dtype);
        return;
    }
    int64_t whole = layout->element_count, shard = sharded_elements(layout), size = (int64_t)dtype_size(layout->dtype);
    layout->bytes[LAYOUT_WEIGHTS] = (zero >= 3 ? shard : whole) * size;
    layout->bytes[LAYOUT_GRADIENTS] = (zero >= 2 ? shard : whole) * 4;
    layout->bytes[LAYOUT_MOMENTS] = (zero >= 1 ? shard : whole) * 8;
    layout->bytes[LAYOUT_MASTER] = request->precision == PRECISION_BF16 ? (zero >= 1 ? shard : whole) * 2 : 0;
    // Sharded weights are gathered, and sharded gradients reduced, one layer at a time with the next one in flight.
    if (zero >= 2) layout->bytes[LAYOUT_TEMPORARIES] += largest_layer_elements(layout) * 4;
    if (zero >= 3) layout->bytes[LAYOUT_TEMPORARIES] += 2 * largest_layer_elements(layout) * size;
}

// ---- activations ----------------------------------------------------------------------------------------------------

static void add_act(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols, bool kept,
                    Phase first, Phase last) {
    LayoutActivation *act = &layout->activations[layout->activation_count++];
    *act = (LayoutActivation){.id = id,
                              .layer = layer,
                              .dtype = dtype,
                              .rows = rows,
                              .cols = cols,
                              .kept = kept,
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

static void keep(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols) {
    add_act(layout, id, layer, dtype, rows, cols, true, PHASE_ATTENTION, PHASE_EMBEDDING_BACKWARD);
}

static void temporary(Layout *layout, ActId id, DType dtype, int64_t rows, int64_t cols, Phase first, Phase last) {
    add_act(layout, id, -1, dtype, rows, cols, false, first, last);
}

// What the backward pass of a layer reads. Under full recompute it is temporary: once for the forward pass, once for
// the forward run again inside the backward pass.
static void add_layer(Layout *layout, ActId id, int layer, DType dtype, int64_t rows, int64_t cols, bool droppable) {
    Recompute recompute = layout->request.recompute;
    if (recompute == RECOMPUTE_NONE || (recompute == RECOMPUTE_SELECTIVE && !droppable)) {
        keep(layout, id, layer, dtype, rows, cols);
        return;
    }
    int layers = layout->request.config.layers;
    for (int pass = 0; pass < 2;
         pass++) { // one instance serves all layers: kinds of layers differ, so take the largest
        int index = layout->act_index[(pass * (layers + 1)) * ACT_ID_COUNT + id];
        if (!index) {
            // Large, and needed in the MLP's phases only.
            bool mlp = id == ACT_GATHERED || id == ACT_GATE_UP || id == ACT_MLP_NORMED;
            Phase first = pass ? PHASE_MLP_BACKWARD : mlp ? PHASE_MLP : PHASE_ATTENTION;
            Phase last = !pass ? PHASE_MLP : mlp ? PHASE_MLP_BACKWARD : PHASE_ATTENTION_BACKWARD;
            temporary(layout, id, dtype, rows, cols, first, last);
            continue;
        }
        LayoutActivation *act = &layout->activations[index - 1];
        int64_t bytes = align_up(rows * cols * (int64_t)dtype_size(dtype), LAYOUT_ALIGN);
        if (bytes > act->bytes) act->rows = rows, act->cols = cols, act->bytes = bytes;
    }
}

// Whether a layer's forward pass also runs in the backward pass, from its input on.
static bool runs_again(const LayoutRequest *request) {
    return request->recompute == RECOMPUTE_FULL && !request->inference;
}

static void build_layer(Layout *layout, int i) {
    const ModelConfig *c = &layout->request.config;
    int tp = layout->request.mesh.tp, etp = layout->request.mesh.etp;
    int64_t T = layout->tokens, R = layout->rows, heads = c->heads / tp, qkv = local_qkv_dim(&layout->request);
    int64_t qk = (qkv + heads * c->head_dim) / 2; // query and key heads
    DType dtype = layout->dtype;
    if (runs_again(&layout->request)) keep(layout, ACT_RESIDUAL_IN, i, dtype, T, c->hidden);
    add_layer(layout, ACT_ATTN_NORMED, i, dtype, T, c->hidden, false);
    add_layer(layout, ACT_ATTN_RSTD, i, DTYPE_F32, T, 1, false);
    add_layer(layout, ACT_QKV, i, dtype, T, qkv, false);
    if (model_qk_norm(c)) {
        add_layer(layout, ACT_QK, i, dtype, T, qk, true);
        add_layer(layout, ACT_QK_RSTD, i, DTYPE_F32, T, qk / c->head_dim, false);
    }
    add_layer(layout, ACT_ATTN_OUT, i, dtype, T, heads * c->head_dim, false);
    add_layer(layout, ACT_LSE, i, DTYPE_F32, T, heads, false);
    add_layer(layout, ACT_MLP_NORMED, i, dtype, T, c->hidden, false);
    add_layer(layout, ACT_MLP_RSTD, i, DTYPE_F32, T, 1, false);
    if (!c->sparse[i]) {
        add_layer(layout, ACT_GATE_UP, i, dtype, T, 2 * (int64_t)c->ffn / tp, false);
        return;
    }
    add_layer(layout, ACT_GATE_UP, i, dtype, R, 2 * (int64_t)c->moe_ffn / etp, false);
    add_layer(layout, ACT_PROBS, i, DTYPE_F32, T, c->experts, false);
    add_layer(layout, ACT_ROUTER_LSE, i, DTYPE_F32, T, 1, false);
    add_layer(layout, ACT_EXPERT, i, DTYPE_I32, T, c->top_k, false);
    add_layer(layout, ACT_EXPERT_WEIGHT, i, DTYPE_F32, T, c->top_k, false);
    add_layer(layout, ACT_OFFSETS, i, DTYPE_I32, c->experts + 1, 1, false);
    add_layer(layout, ACT_ROW_OF_SLOT, i, DTYPE_I32, T, c->top_k, false);
    add_layer(layout, ACT_SLOT_OF_ROW, i, DTYPE_I32, R, 1, false);
    add_layer(layout, ACT_ROW_WEIGHT, i, DTYPE_F32, R, 1, false);
    add_layer(layout, ACT_GATHERED, i, dtype, R, c->hidden, true);
}

static void build_temporaries(Layout *layout, bool dense, bool sparse) {
    const ModelConfig *c = &layout->request.config;
    int tp = layout->request.mesh.tp, etp = layout->request.mesh.etp;
    int64_t T = layout->tokens, R = layout->rows, d = c->hidden, qkv = local_qkv_dim(&layout->request);
    int64_t attention = (int64_t)c->heads / tp * c->head_dim;
    int64_t hidden = 0; // elements after SwiGLU, dense or of the experts
    if (dense) hidden = T * c->ffn / tp;
    if (sparse && R * c->moe_ffn / etp > hidden) hidden = R * c->moe_ffn / etp;
    DType dtype = layout->dtype;
    bool again = runs_again(&layout->request);

    if (!again) temporary(layout, ACT_RESIDUAL_IN, dtype, T, d, PHASE_ATTENTION, PHASE_MLP);
    temporary(layout, ACT_RESIDUAL_MID, dtype, T, d, PHASE_ATTENTION, PHASE_MLP);
    if (again) temporary(layout, ACT_RESIDUAL_MID, dtype, T, d, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    // The final norm, which reads one and writes the other, counts as the end of the last MLP: before the logits.
    temporary(layout, ACT_RESIDUAL_FINAL, dtype, T, d, PHASE_MLP, PHASE_MLP);
    temporary(layout, ACT_FINAL_NORMED, dtype, T, d, PHASE_MLP, PHASE_HEAD);
    temporary(layout, ACT_LOGITS, dtype, layout->logits_rows, c->vocab / tp + (c->vocab % tp > 0), PHASE_HEAD,
              PHASE_HEAD);
    temporary(layout, ACT_DRESIDUAL, dtype, T, d, PHASE_HEAD, PHASE_EMBEDDING_BACKWARD);
    temporary(layout, ACT_DNORMED, dtype, T, d, PHASE_HEAD, PHASE_ATTENTION_BACKWARD);
    temporary(layout, ACT_DHIDDEN, dtype, hidden, 1, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    temporary(layout, ACT_DATTN, dtype, T, attention, PHASE_ATTENTION_BACKWARD, PHASE_ATTENTION_BACKWARD);
    temporary(layout, ACT_DQKV, dtype, T, qkv, PHASE_ATTENTION_BACKWARD, PHASE_ATTENTION_BACKWARD);
    if (!sparse) return;
    temporary(layout, ACT_ROUTER_LOGITS, DTYPE_F32, T, c->experts, PHASE_MLP, PHASE_MLP);
    temporary(layout, ACT_HIDDEN, dtype, R, c->moe_ffn / etp, PHASE_MLP, PHASE_MLP);
    temporary(layout, ACT_EXPERT_OUT, dtype, R, d, PHASE_MLP, PHASE_MLP);
    temporary(layout, ACT_DROWS, dtype, R, d, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    temporary(layout, ACT_DROW_WEIGHT, DTYPE_F32, R, 1, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    temporary(layout, ACT_DLOGITS, DTYPE_F32, T, c->experts, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
    if (again) temporary(layout, ACT_ROUTER_LOGITS, DTYPE_F32, T, c->experts, PHASE_MLP_BACKWARD, PHASE_MLP_BACKWARD);
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

// Attention's backward pass is faster with a large workspace, and the LM head's logits, which set the size of the
// block, are gone by then: whatever the other temporaries of that phase leave is lent to it. The block does not grow.
static int64_t place_with_scratch(Layout *layout) {
    int64_t end = place_temporaries(layout), alive = 0;
    if (layout->request.device != LAYOUT_CUDA) return end;
    for (int i = 0; i < layout->activation_count; i++) {
        const LayoutActivation *act = &layout->activations[i];
        if (!act->kept && act->first <= PHASE_ATTENTION_BACKWARD && act->last >= PHASE_ATTENTION_BACKWARD)
            alive += act->bytes;
    }
    int64_t bytes = end - alive < LAYOUT_SCRATCH_MAX ? end - alive : LAYOUT_SCRATCH_MAX;
    temporary(layout, ACT_SCRATCH, DTYPE_U8, bytes / LAYOUT_ALIGN * LAYOUT_ALIGN, 1, PHASE_ATTENTION_BACKWARD,
              PHASE_ATTENTION_BACKWARD);
    LayoutActivation *scratch = &layout->activations[layout->activation_count - 1];
    int64_t grown = place_temporaries(layout);
    if (grown > end) { // holes between the others: take what fits
        scratch->rows = scratch->bytes = scratch->bytes > grown - end ? scratch->bytes - (grown - end) : 0;
        if (place_temporaries(layout) > end) scratch->rows = scratch->bytes = 0, place_temporaries(layout);
    }
    return end;
}

static void build_activations(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    const Mesh *mesh = &layout->request.mesh;
    int end = layout->first_layer + layout->layer_count;
    int sparse = 0;
    for (int i = layout->first_layer; i < end; i++)
        sparse += c->sparse[i];
    layout->activations = xcalloc((size_t)(20 * layout->layer_count + 80), sizeof *layout->activations);
    layout->act_index = xcalloc((size_t)(2 * (c->layers + 1)) * ACT_ID_COUNT, sizeof(int));
    for (int i = layout->first_layer; i < end; i++)
        build_layer(layout, i);
    int layer_tensors = layout->activation_count;
    keep(layout, ACT_FINAL_RSTD, -1, DTYPE_F32, layout->tokens, 1);
    keep(layout, ACT_LOSSES, -1, DTYPE_F32, layout->tokens, 1);
    if (sparse) {
        keep(layout, ACT_COUNTS, -1, DTYPE_I32, sparse, c->experts);
        keep(layout, ACT_PROB_SUM, -1, DTYPE_F32, sparse, c->experts);
        keep(layout, ACT_DPROB, -1, DTYPE_F32, sparse, c->experts);
    }
    build_temporaries(layout, sparse<layout->layer_count, sparse> 0);
    // 1F1B: stage s has pp - s micro-batches between their forward and backward pass.
    int in_flight = mesh->pp - layout->request.stage;
    int64_t kept = 0;
    for (int i = 0; i < layout->activation_count; i++) {
        LayoutActivation *act = &layout->activations[i];
        if (!act->kept) continue;
        act->offset = kept;
        kept += act->bytes * (i < layer_tensors ? in_flight : 1);
    }
    layout->bytes[LAYOUT_ACTIVATIONS] = kept;
    layout->bytes[LAYOUT_TEMPORARIES] += place_with_scratch(layout);
}

// ---- the rest -------------------------------------------------------------------------------------------------------

static void build_constants(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    int64_t tokens = layout->tokens * 4, table = (int64_t)layout->request.seq * (c->head_dim / 2) * 4;
    layout->const_bytes[CONST_IDS] = layout->const_bytes[CONST_TARGETS] = tokens;
    layout->const_bytes[CONST_DOC_START] = layout->request.documents ? tokens : 0;
    layout->const_bytes[CONST_COS] = layout->const_bytes[CONST_SIN] = table;
    layout->const_bytes[CONST_SCALARS] = MODEL_SCALARS * 4;
    layout->const_bytes[CONST_ROUTER_BIAS] = (int64_t)model_sparse_layers(c) * c->experts * 4;
    layout->const_bytes[CONST_EXPERT_LOAD] = (int64_t)model_sparse_layers(c) * MOE_LOAD_STATS * 4;
    int64_t offset = 0;
    for (int i = 0; i < CONST_ID_COUNT; i++) {
        layout->const_offset[i] = offset;
        offset += align_up(layout->const_bytes[i], LAYOUT_ALIGN);
    }
    layout->bytes[LAYOUT_CONSTANTS] = offset;
}

static int64_t default_logits_rows(const LayoutRequest *request, int64_t tokens) {
    int64_t rows = request->logits_rows > 0 ? request->logits_rows : LOGITS_ROWS_DEFAULT;
    return rows < tokens ? rows : tokens;
}

static OpsWorkspaceRequest workspace_request(const LayoutRequest *request) {
    const ModelConfig *c = &request->config;
    int tp = request->mesh.tp, kv = mesh_kv_heads(&request->mesh, c->kv_heads);
    int64_t tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    return (OpsWorkspaceRequest){.tokens = tokens,
                                 .batch = request->micro_batch,
                                 .seq = request->seq / request->mesh.cp,
                                 .hidden = c->hidden,
                                 .heads = c->heads / tp,
                                 .kv_heads = kv,
                                 .head_dim = c->head_dim,
                                 .vocab = c->vocab,
                                 .experts = c->experts / request->mesh.ep,
                                 .top_k = c->top_k,
                                 .logits_rows = default_logits_rows(request, tokens),
                                 .parameters = model_parameters(c).total,
                                 .dtype = request->precision == PRECISION_FP32 ? DTYPE_F32 : DTYPE_BF16,
                                 .threads = request->threads};
}

size_t layout_workspace_bytes(const LayoutRequest *request) {
    OpsWorkspaceRequest wanted = workspace_request(request);
    return request->device == LAYOUT_CUDA ? ops_cuda_workspace(&wanted) : ops_cpu_workspace(&wanted);
}

Status layout_build(Layout *layout, const LayoutRequest *request) {
    *layout = (Layout){.request = *request};
    TRY(check_request(request));
    const ModelConfig *config = &request->config;
    layout->dtype = request->precision == PRECISION_FP32 ? DTYPE_F32 : DTYPE_BF16;
    layout->tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    layout->logits_rows = default_logits_rows(request, layout->tokens);
    if (config->experts)
        layout->rows = moe_rows_capacity(layout->tokens, config->top_k, config->experts / request->mesh.ep,
                                         request->device == LAYOUT_CUDA ? OPS_CUDA_ROW_ALIGN : OPS_CPU_ROW_ALIGN);
    mesh_stage_layers(&request->mesh, config->layers, request->stage, &layout->first_layer, &layout->layer_count);
    build_params(layout);
    build_states(layout);
    build_activations(layout);
    build_constants(layout);
    layout->bytes[LAYOUT_WORKSPACE] = (int64_t)layout_workspace_bytes(request);
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++) {
        layout->bytes[kind] = align_up(layout->bytes[kind], LAYOUT_ALIGN);
        layout->total_bytes += layout->bytes[kind];
    }
    return NULL;
}

void layout_free(Layout *layout) {
    free(layout->params);
    free(layout->activations);
    free(layout->param_index);
    free(layout->act_index);
    *layout = (Layout){0};
}

const LayoutParam *layout_param(const Layout *layout, ParamId id, int layer) {
    int index = layout->param_index[(layer + 1) * PARAM_ID_COUNT + id];
    return index ? &layout->params[index - 1] : NULL;
}

const LayoutActivation *layout_activation(const Layout *layout, ActId id, int layer, int pass) {
    int layers = layout->request.config.layers;
    int index = layout->act_index[(pass * (layers + 1) + layer + 1) * ACT_ID_COUNT + id];
    if (!index) index = layout->act_index[(pass * (layers + 1)) * ACT_ID_COUNT + id]; // one for all layers
    return index ? &layout->activations[index - 1] : NULL;
}

// ---- names ----------------------------------------------------------------------------------------------------------

int layout_hf_part_count(const Layout *layout, const LayoutParam *param) {
    switch (param->id) {
    case PARAM_QKV: return 3;
    case PARAM_GATE_UP: return 2;
    case PARAM_EXPERT_GATE_UP: return 2 * layout->request.config.experts;
    case PARAM_EXPERT_DOWN: return layout->request.config.experts;
    default: return 1;
    }
}

// A whole parameter, or rows [first, first + rows) of one, under the name after "model.layers.N.".
static HfPart part(const LayoutParam *param, const char *name, int64_t first_row, int64_t rows) {
    HfPart result = {.dims = param->dims == 1 ? 1 : 2};
    int64_t cols = param->global_shape[param->dims - 1];
    if (param->dims == 1) {
        result.shape[0] = cols;
        result.count = cols;
    } else {
        result.shape[0] = rows;
        result.shape[1] = cols;
        result.offset = first_row * cols;
        result.count = rows * cols;
    }
    if (param->layer < 0)
        snprintf(result.name, sizeof result.name, "%s.weight", name);
    else
        snprintf(result.name, sizeof result.name, "model.layers.%d.%s.weight", param->layer, name);
    return result;
}

HfPart layout_hf_part(const Layout *layout, const LayoutParam *param, int index) {
    const ModelConfig *c = &layout->request.config;
    int64_t q = model_attention_dim(c), kv = (int64_t)c->kv_heads * c->head_dim, f = c->moe_ffn;
    char name[64];
    switch (param->id) {
    case PARAM_EMBEDDING: return part(param, "model.embed_tokens", 0, c->vocab);
    case PARAM_HEAD: return part(param, "lm_head", 0, c->vocab);
    case PARAM_FINAL_NORM: return part(param, "model.norm", 0, 0);
    case PARAM_ATTN_NORM: return part(param, "input_layernorm", 0, 0);
    case PARAM_MLP_NORM: return part(param, "post_attention_layernorm", 0, 0);
    case PARAM_Q_NORM: return part(param, "self_attn.q_norm", 0, 0);
    case PARAM_K_NORM: return part(param, "self_attn.k_norm", 0, 0);
    case PARAM_QKV:
        if (index == 0) return part(param, "self_attn.q_proj", 0, q);
        return part(param, index == 1 ? "self_attn.k_proj" : "self_attn.v_proj", q + (index - 1) * kv, kv);
    case PARAM_O: return part(param, "self_attn.o_proj", 0, c->hidden);
    case PARAM_GATE_UP: return part(param, index ? "mlp.up_proj" : "mlp.gate_proj", index * (int64_t)c->ffn, c->ffn);
    case PARAM_DOWN: return part(param, "mlp.down_proj", 0, c->hidden);
    case PARAM_ROUTER: return part(param, "mlp.gate", 0, c->experts);
    case PARAM_EXPERT_GATE_UP:
        snprintf(name, sizeof name, "mlp.experts.%d.%s", index / 2, index % 2 ? "up_proj" : "gate_proj");
        return part(param, name, index * f, f);
    case PARAM_EXPERT_DOWN:
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj", index);
        return part(param, name, index * (int64_t)c->hidden, c->hidden);
    case PARAM_ID_COUNT: break;
    }
    assert(!"no such parameter");
    return (HfPart){0};
}
