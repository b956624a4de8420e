// Parameters on a rank as boxes of the tensors that Hugging Face files hold: their names, and which rows and columns of
// them are here.
#include "model/layout.h"

#include <assert.h>
#include <stdio.h>

int layout_slice_count(const Layout *layout, const LayoutParam *param) {
    (void)layout;
    switch (param->id) {
    case PARAM_QKV: return 3;
    case PARAM_GATE_UP: return 2;
    case PARAM_EXPERT_GATE_UP: return 2 * (int)param->shape[0];
    case PARAM_EXPERT_DOWN: return (int)param->shape[0];
    default: return 1;
    }
}

// A box of [rows, cols] at (row, col) of the HF tensor `name` of shape [all_rows, all_cols], stored from `at` on.
static LayoutSlice matrix_slice(const LayoutParam *param, const char *name, int64_t all_rows, int64_t all_cols,
                                int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t at) {
    if (row + rows > all_rows) rows = row < all_rows ? all_rows - row : 0; // padding of an uneven cut
    LayoutSlice slice = {.dims = param->dims == 1 ? 1 : 2,
                         .shape = {param->dims == 1 ? all_cols : all_rows, param->dims == 1 ? 1 : all_cols},
                         .row = row,
                         .rows = rows,
                         .col = col,
                         .cols = cols,
                         .at = at,
                         .stride = param->shape[param->dims - 1],
                         .count = rows * cols};
    if (param->layer < 0)
        snprintf(slice.name, sizeof slice.name, "%s.weight", name);
    else
        snprintf(slice.name, sizeof slice.name, "model.layers.%d.%s.weight", param->layer, name);
    return slice;
}

// Rows [index * rows, (index + 1) * rows) of `all`, all columns.
static LayoutSlice row_slice(const LayoutParam *param, const char *name, int64_t all, int64_t index, int64_t rows,
                             int64_t at) {
    int64_t cols = param->shape[param->dims - 1];
    return matrix_slice(param, name, all, cols, index * rows, rows, 0, cols, at);
}

// All rows, columns [index * cols, (index + 1) * cols) of `all`.
static LayoutSlice column_slice(const LayoutParam *param, const char *name, int64_t rows, int64_t all, int64_t index,
                                int64_t at) {
    int64_t cols = param->shape[param->dims - 1];
    return matrix_slice(param, name, rows, all, 0, rows, index * cols, cols, at);
}

static LayoutSlice vector_slice(const LayoutParam *param, const char *name) {
    return matrix_slice(param, name, 1, param->shape[0], 0, 1, 0, param->shape[0], 0);
}

static LayoutSlice qkv_slice(const Layout *layout, const LayoutParam *param, int index) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    int64_t hd = c->head_dim, q_rows = c->heads / r->mesh.tp * hd, kv_rows = mesh_kv_heads(&r->mesh, c->kv_heads) * hd;
    if (index == 0) return row_slice(param, "self_attn.q_proj", c->heads * hd, layout->place.tp, q_rows, 0);
    // With fewer KV heads than ranks, tp / kv_heads neighbours hold the same one.
    int64_t share = c->kv_heads >= r->mesh.tp ? layout->place.tp : (int64_t)layout->place.tp * c->kv_heads / r->mesh.tp;
    return row_slice(param, index == 1 ? "self_attn.k_proj" : "self_attn.v_proj", c->kv_heads * hd, share, kv_rows,
                     (q_rows + (index - 1) * kv_rows) * c->hidden);
}

static LayoutSlice expert_slice(const Layout *layout, const LayoutParam *param, int index) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    char name[64];
    int64_t rows = param->shape[1], cols = param->shape[2];
    if (param->id == PARAM_EXPERT_DOWN) {
        int64_t expert = layout->place.ep * param->shape[0] + index;
        snprintf(name, sizeof name, "mlp.experts.%lld.down_proj", (long long)expert);
        return column_slice(param, name, c->hidden, c->moe_ffn, layout->place.etp, index * rows * cols);
    }
    int64_t expert = layout->place.ep * param->shape[0] + index / 2, half = rows / 2; // gate rows, then up rows
    snprintf(name, sizeof name, "mlp.experts.%lld.%s", (long long)expert, index % 2 ? "up_proj" : "gate_proj");
    return row_slice(param, name, c->moe_ffn, layout->place.etp, half, index * half * cols);
}

// Elements of the parameter that stand before the HF tensor where one rank holds all of it.
static int64_t elements_before(const Layout *layout, const LayoutParam *param, int index) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    int64_t d = c->hidden, f = c->moe_ffn, q = model_attention_dim(c), kv = (int64_t)c->kv_heads * c->head_dim;
    switch (param->id) {
    case PARAM_QKV: return (index ? q + (index - 1) * kv : 0) * d;
    case PARAM_GATE_UP: return index * (int64_t)c->ffn * d;
    case PARAM_EXPERT_GATE_UP: return (2 * layout->place.ep * param->shape[0] + index) * f * d;
    case PARAM_EXPERT_DOWN: return (layout->place.ep * param->shape[0] + index) * d * f;
    default: return 0;
    }
}

static LayoutSlice slice_of(const Layout *layout, const LayoutParam *param, int index) {
    const LayoutRequest *r = &layout->request;
    const ModelConfig *c = &r->config;
    int64_t rows = param->shape[0];
    switch (param->id) {
    case PARAM_EMBEDDING: return row_slice(param, "model.embed_tokens", c->vocab, layout->place.tp, rows, 0);
    case PARAM_HEAD: return row_slice(param, "lm_head", c->vocab, layout->place.tp, rows, 0);
    case PARAM_FINAL_NORM: return vector_slice(param, "model.norm");
    case PARAM_ATTN_NORM: return vector_slice(param, "input_layernorm");
    case PARAM_MLP_NORM: return vector_slice(param, "post_attention_layernorm");
    case PARAM_Q_NORM: return vector_slice(param, "self_attn.q_norm");
    case PARAM_K_NORM: return vector_slice(param, "self_attn.k_norm");
    case PARAM_QKV: return qkv_slice(layout, param, index);
    case PARAM_O:
        return column_slice(param, "self_attn.o_proj", c->hidden, model_attention_dim(c), layout->place.tp, 0);
    case PARAM_GATE_UP:
        return row_slice(param, index ? "mlp.up_proj" : "mlp.gate_proj", c->ffn, layout->place.tp, rows / 2,
                         index * (rows / 2) * c->hidden);
    case PARAM_DOWN: return column_slice(param, "mlp.down_proj", c->hidden, c->ffn, layout->place.tp, 0);
    case PARAM_ROUTER: return row_slice(param, "mlp.gate", c->experts, 0, rows, 0);
    case PARAM_EXPERT_GATE_UP:
    case PARAM_EXPERT_DOWN: return expert_slice(layout, param, index);
    case PARAM_ID_COUNT: break;
    }
    assert(!"no such parameter");
    return (LayoutSlice){0};
}

LayoutSlice layout_slice(const Layout *layout, const LayoutParam *param, int index) {
    LayoutSlice slice = slice_of(layout, param, index);
    slice.first = elements_before(layout, param, index);
    return slice;
}

bool layout_slice_owner(const Layout *layout, const LayoutParam *param, int index) {
    const LayoutRequest *r = &layout->request;
    int tp = r->mesh.tp, kv_heads = r->config.kv_heads;
    switch (param->id) {
    case PARAM_EMBEDDING: return layout->place.pp == 0;
    case PARAM_QKV:
        return index == 0 || kv_heads >= tp || layout->place.tp % (tp / kv_heads) == 0; // the first neighbour
    case PARAM_ROUTER:
    case PARAM_FINAL_NORM:
    case PARAM_ATTN_NORM:
    case PARAM_MLP_NORM:
    case PARAM_Q_NORM:
    case PARAM_K_NORM: return layout->place.tp == 0;
    default: return true; // cut by tp, or experts, whose copies are all in their unit
    }
}
