// Parameters on a rank, and the state that training keeps of them.
#include "model/layout_build.h"

#include "base/text.h"

DType precision_storage(Precision precision) {
    return precision == PRECISION_FP32 ? DTYPE_F32 : precision == PRECISION_FP16 ? DTYPE_F16 : DTYPE_BF16;
}

int64_t precision_master_bytes(Precision precision) {
    return precision == PRECISION_BF16 || precision == PRECISION_FP8 ? 2 : precision == PRECISION_FP16 ? 4 : 0;
}

double layout_adamw_traffic(Precision precision) {
    double weight = precision == PRECISION_BF16_PURE ? 2 : 4; // bf16 with its master part is as long as a float
    double written = precision == PRECISION_FP16 ? 2 : 0;     // beside the master, and not read
    return sizeof(float) + 2 * (2 * sizeof(float) + weight) + written;
}

double layout_gradient_traffic(double added) {
    return sizeof(float) * (1 + added);
}

// Rows of the fused qkv on one tensor-parallel rank: KV heads are replicated when there are fewer than ranks.
int64_t layout_qkv_dim(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    int kv = mesh_kv_heads(&request->mesh, config->kv_heads);
    return (int64_t)(config->heads / request->mesh.tp + 2 * kv) * config->head_dim;
}

// A parameter of `dims` dimensions with its shape here and in the whole model.
static void add_param(Layout *layout, ParamId id, int layer, int dims, const int64_t *shape, const int64_t *global) {
    layout->params = layout_grow(layout->params, &layout->param_count, sizeof *layout->params);
    LayoutParam *param = &layout->params[layout->param_count - 1];
    *param = (LayoutParam){.id = id,
                           .layer = layer,
                           .dims = dims,
                           .count = 1,
                           .global_count = 1,
                           .decay = dims > 1,
                           .expert = id == PARAM_EXPERT_GATE_UP || id == PARAM_EXPERT_DOWN,
                           .residual = id == PARAM_O || id == PARAM_DOWN || id == PARAM_EXPERT_DOWN};
    for (int i = 0; i < dims; i++) {
        param->shape[i] = shape[i];
        param->global_shape[i] = global[i];
        param->count *= shape[i];
        param->global_count *= global[i];
    }
}

static void add_vector(Layout *layout, ParamId id, int layer, int64_t size) {
    add_param(layout, id, layer, 1, (int64_t[]){size}, (int64_t[]){size});
}

static void add_matrix(Layout *layout, ParamId id, int layer, int64_t rows, int64_t cols, int64_t global_rows,
                       int64_t global_cols) {
    add_param(layout, id, layer, 2, (int64_t[]){rows, cols}, (int64_t[]){global_rows, global_cols});
}

static void add_layer_matrices(Layout *layout, int layer) {
    const ModelConfig *c = &layout->request.config;
    const Mesh *mesh = &layout->request.mesh;
    int64_t d = c->hidden, attention = model_attention_dim(c), f = c->ffn, ef = c->moe_ffn, e = c->experts;
    add_matrix(layout, PARAM_QKV, layer, layout_qkv_dim(&layout->request), d, model_qkv_dim(c), d);
    add_matrix(layout, PARAM_O, layer, d, attention / mesh->tp, d, attention);
    if (c->sparse[layer]) {
        add_matrix(layout, PARAM_ROUTER, layer, e, d, e, d);
        add_param(layout, PARAM_EXPERT_GATE_UP, layer, 3, (int64_t[]){e / mesh->ep, 2 * ef / mesh->etp, d},
                  (int64_t[]){e, 2 * ef, d});
        add_param(layout, PARAM_EXPERT_DOWN, layer, 3, (int64_t[]){e / mesh->ep, d, ef / mesh->etp},
                  (int64_t[]){e, d, ef});
    } else {
        add_matrix(layout, PARAM_GATE_UP, layer, 2 * f / mesh->tp, d, 2 * f, d);
        add_matrix(layout, PARAM_DOWN, layer, d, f / mesh->tp, d, f);
    }
}

static LayoutUnit *add_unit(Layout *layout, const LayoutParam *param) {
    const Mesh *mesh = &layout->request.mesh;
    layout->units = layout_grow(layout->units, &layout->unit_count, sizeof *layout->units);
    LayoutUnit *unit = &layout->units[layout->unit_count - 1];
    *unit = (LayoutUnit){.layer = param->decay ? param->layer : -1,
                         .expert = param->expert,
                         .vectors = !param->decay,
                         .offset = layout->element_count,
                         .ranks = (int)(param->expert ? mesh_expert_data_ranks(mesh) : mesh_data_ranks(mesh)),
                         .rank = param->expert ? layout->place.copy : layout->place.data};
    return unit;
}

// A unit ends where all its ranks can have pieces of one size.
static void close_unit(Layout *layout) {
    if (!layout->unit_count) return;
    LayoutUnit *unit = &layout->units[layout->unit_count - 1];
    unit->count = layout->element_count - unit->offset;
    if (layout->zero || layout->request.islands)
        unit->count = align_up(unit->count, (int64_t)unit->ranks * PARAM_ALIGN);
    layout->element_count = unit->offset + unit->count;
    unit->piece = (unit->count + unit->ranks - 1) / unit->ranks;
    unit->shard_offset = layout->shard_count;
    layout->shard_count += unit->piece;
    if (unit->piece > layout->piece_elements) layout->piece_elements = unit->piece;
    if (unit->vectors)
        layout->vector_elements = unit->count;
    else
        layout->decay_count = layout->element_count;
}

static bool same_unit(const LayoutParam *a, const LayoutParam *b) {
    if (!a->decay || !b->decay) return a->decay == b->decay;
    return a->layer == b->layer && a->expert == b->expert && a->layer >= 0; // embedding and head are units of their own
}

// Whether a weight has a copy in FP8, as it is or transposed, for a forward product and for its input's gradient.
static bool has_fp8(const Layout *layout, const LayoutParam *param, bool cols) {
    switch (param->id) {
    case PARAM_QKV: return layout->fp8 & (cols ? FP8_QKV_INPUT : FP8_QKV_FORWARD);
    case PARAM_O: return layout->fp8 & (cols ? FP8_O_INPUT : FP8_O_FORWARD);
    case PARAM_GATE_UP:
    case PARAM_DOWN: return layout->fp8 & FP8_MLP;
    case PARAM_EMBEDDING:
    case PARAM_HEAD: // of a tied embedding, only where the model ends
        return param->id == layout_head(layout) && layout->chunks[layout->chunk_count - 1].predicts &&
               layout->fp8 & (cols ? FP8_HEAD_GRADIENTS : FP8_HEAD_FORWARD);
    case PARAM_EXPERT_GATE_UP:
    case PARAM_EXPERT_DOWN: return layout->fp8 & FP8_EXPERTS;
    default: return false;
    }
}

// Where weights are whole only for a while (ZeRO 3), so are their copies: all share the place of one, with which
// LAYOUT_FP8 begins. So do those of experts that are made for each product, for which `passing` has made room.
static void place_fp8(Layout *layout, LayoutParam *param, int64_t passing) {
    int64_t *bytes = &layout->bytes[LAYOUT_FP8];
    bool shared = layout->zero >= 3 || (param->expert && passing);
    for (int cols = 0; cols < 2; cols++) {
        bool there = has_fp8(layout, param, cols);
        int64_t at = shared ? 0 : *bytes, end = at + align_up(param->count, LAYOUT_ALIGN);
        *(cols ? &param->fp8_cols : &param->fp8_rows) = there ? at : -1;
        if (there && end > *bytes) *bytes = end;
    }
}

static int64_t passing_bytes(const Layout *layout) {
    int64_t most = 0;
    for (int i = 0; i < layout->param_count && layout->fp8_passing; i++)
        if (layout->params[i].expert && layout->params[i].count > most) most = layout->params[i].count;
    return align_up(most, LAYOUT_ALIGN);
}

// ZeRO 3 gathers a unit of a layer in FP8 where every pass of training reads it so, and a byte a weight is all that
// travels.
static bool travels_in_fp8(const Layout *layout, int unit) {
    const LayoutUnit *u = &layout->units[unit];
    if (layout->zero < 3 || !layout->fp8 || u->layer < 0 || u->ranks == 1) return false;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        if (param->unit == unit && (param->fp8_rows < 0 || param->fp8_cols < 0)) return false;
    }
    return true;
}

static void place_fp8_pieces(Layout *layout) {
    for (int i = 0; i < layout->unit_count; i++) {
        LayoutUnit *unit = &layout->units[i];
        unit->fp8 = travels_in_fp8(layout, i) ? layout->bytes[LAYOUT_FP8] : -1;
        if (unit->fp8 >= 0) layout->bytes[LAYOUT_FP8] += align_up(unit->piece, LAYOUT_ALIGN);
    }
}

static void place_params(Layout *layout) {
    layout->param_index = xcalloc((size_t)(layout->request.config.layers + 1) * PARAM_ID_COUNT, sizeof(int));
    int64_t passing = layout->bytes[LAYOUT_FP8] = passing_bytes(layout);
    for (int i = 0; i < layout->param_count; i++) {
        LayoutParam *param = &layout->params[i];
        if (i == 0 || !same_unit(&layout->params[i - 1], param)) {
            close_unit(layout);
            add_unit(layout, param);
        }
        param->unit = layout->unit_count - 1;
        param->offset = layout->element_count;
        layout->element_count += align_up(param->count, PARAM_ALIGN);
        place_fp8(layout, param, passing);
        layout->param_index[(param->layer + 1) * PARAM_ID_COUNT + param->id] = i + 1;
    }
    close_unit(layout);
    place_fp8_pieces(layout);
    for (int i = 0; i < layout->unit_count; i++) {
        const LayoutUnit *unit = &layout->units[i];
        int64_t elements = unit->count;
        if (unit->vectors) continue;
        if (unit->layer < 0 && elements > layout->edge_elements) layout->edge_elements = elements;
        // A layer's experts stand behind its other matrices.
        if (unit->layer >= 0 && i + 1 < layout->unit_count && layout->units[i + 1].layer == unit->layer)
            elements += layout->units[i + 1].count;
        if (unit->layer >= 0 && elements > layout->layer_elements) layout->layer_elements = elements;
    }
}

void layout_owned(const Layout *layout, const LayoutParam *param, int64_t *first, int64_t *count) {
    const LayoutUnit *unit = &layout->units[param->unit];
    int64_t begin = unit->offset + unit->rank * unit->piece, end = begin + unit->piece;
    int64_t from = param->offset > begin ? param->offset : begin;
    int64_t to = param->offset + param->count < end ? param->offset + param->count : end;
    *first = from - param->offset;
    *count = to > from ? to - from : 0;
}

LayoutPart layout_part(const Layout *layout, const LayoutParam *param, int stage) {
    if (layout->zero < stage) return (LayoutPart){0, param->count, param->offset};
    const LayoutUnit *unit = &layout->units[param->unit];
    LayoutPart part;
    layout_owned(layout, param, &part.first, &part.count);
    part.at = unit->shard_offset + param->offset + part.first - unit->offset - unit->rank * unit->piece;
    return part;
}

void layout_build_params(Layout *layout) {
    const LayoutRequest *request = &layout->request;
    const ModelConfig *c = &request->config;
    bool first_stage = layout->place.pp == 0, last_stage = layout->place.pp == request->mesh.pp - 1;
    int64_t vocab = layout_vocab_rows(request);
    if (first_stage || (c->tied && last_stage))
        add_matrix(layout, PARAM_EMBEDDING, -1, vocab, c->hidden, c->vocab, c->hidden);
    if (last_stage && !c->tied) add_matrix(layout, PARAM_HEAD, -1, vocab, c->hidden, c->vocab, c->hidden);
    for (int i = 0; i < layout->layer_count; i++)
        add_layer_matrices(layout, layout_layer(layout, i));
    if (last_stage) add_vector(layout, PARAM_FINAL_NORM, -1, c->hidden);
    for (int i = 0; i < layout->layer_count; i++) {
        int layer = layout_layer(layout, i);
        add_vector(layout, PARAM_ATTN_NORM, layer, c->hidden);
        add_vector(layout, PARAM_MLP_NORM, layer, c->hidden);
        if (!model_qk_norm(c)) continue;
        add_vector(layout, PARAM_Q_NORM, layer, c->head_dim);
        add_vector(layout, PARAM_K_NORM, layer, c->head_dim);
    }
    place_params(layout);
}

// Tensor cores take FP8 in pieces of 16 numbers along the reduction, which is any of a product's sizes in one of its
// directions.
unsigned layout_fp8(const LayoutRequest *request) {
    enum { PIECE = 16 };
    const ModelConfig *c = &request->config;
    int tp = request->mesh.tp;
    int64_t tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    int64_t attention = model_attention_dim(c) / tp, ffn = c->ffn / tp;
    unsigned on = request->precision == PRECISION_FP8 && !request->inference ? FP8_ALL & ~request->fp8_off : 0;
    if (c->hidden % PIECE || tokens % PIECE) on = 0;
    if (layout_qkv_dim(request) % PIECE) on &= ~(unsigned)(FP8_QKV_FORWARD | FP8_QKV_INPUT | FP8_QKV_WEIGHT);
    if (attention % PIECE) on &= ~(unsigned)(FP8_O_FORWARD | FP8_O_INPUT | FP8_O_WEIGHT);
    if (ffn % PIECE || model_sparse_layers(c) == c->layers) on &= ~(unsigned)FP8_MLP;
    // A chunk of the head is all tokens, what was asked for, or the default, which is whole pieces and depends on this.
    bool odd_chunks = request->logits_rows < tokens && request->logits_rows % PIECE;
    if (layout_vocab_rows(request) % PIECE || odd_chunks) on &= ~(unsigned)FP8_HEAD;
    if (c->moe_ffn / request->mesh.etp % PIECE || !model_sparse_layers(c)) on &= ~(unsigned)FP8_EXPERTS;
    return on;
}

static bool has_shared_unit(const Layout *layout) {
    for (int i = 0; i < layout->unit_count; i++)
        if (layout->units[i].ranks > 1) return true;
    return false;
}

void layout_build_states(Layout *layout) {
    const LayoutRequest *request = &layout->request;
    int zero = layout->zero;
    int64_t whole = layout->element_count, shard = layout->shard_count, size = (int64_t)dtype_size(layout->dtype);
    int64_t vectors = layout->vector_elements, edge = layout->edge_elements, layer = layout->layer_elements;
    layout->wire_offset = -1;
    if (request->inference) {
        layout->bytes[LAYOUT_WEIGHTS] = whole * size;
        return;
    }
    layout->bytes[LAYOUT_WEIGHTS] = (zero >= 3 ? shard : whole) * size;
    layout->bytes[LAYOUT_GRADIENTS] = (zero >= 2 ? shard : whole) * 4;
    layout->bytes[LAYOUT_MOMENTS] = (zero >= 1 ? shard : whole) * 8;
    layout->bytes[LAYOUT_MASTER] = (zero >= 1 ? shard : whole) * precision_master_bytes(request->precision);
    // Every rank has the outer optimizer of its pieces, whatever the ZeRO stage: what islands exchange goes over the
    // links between them once. A slot has a piece's weights and its change.
    int64_t slot = (request->precision == PRECISION_FP16 ? 6 : 4) + 4;
    if (request->islands) layout->bytes[LAYOUT_OUTER] = shard * 8 + 2 * layout->piece_elements * slot;
    // Sharded gradients are reduced, and sharded weights gathered, one layer at a time with the next one in flight;
    // embedding or head, and the vectors, have places of their own.
    int64_t gathered = 2 * layer + edge + vectors;
    if (zero >= 2) layout->bytes[LAYOUT_GATHERED] += align_up(gathered * 4, LAYOUT_ALIGN);
    if (zero >= 3) layout->bytes[LAYOUT_GATHERED] += align_up(gathered * size, LAYOUT_ALIGN);
    if (request->reduce != DTYPE_BF16 || !has_shared_unit(layout)) return;
    layout->wire_offset = layout->bytes[LAYOUT_GATHERED];
    layout->bytes[LAYOUT_GATHERED] += align_up(gathered * 2, LAYOUT_ALIGN);
}
