// The layout as a whole: sizes, constants, workspace, and where to find a tensor in it.
#include "model/layout_build.h"

#include "base/text.h"
#include "model/scalars.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// In FP8 the gradient of the logits has a place beside them: half as many, and they take no more memory than in bf16.
enum { LOGITS_ROWS_DEFAULT = 8192, LOGITS_ROWS_FP8 = 4096 };

void *layout_grow(void *items, int *count, size_t size) {
    // Powers of two are when the array is full: every call before has filled one place.
    if ((*count & (*count - 1)) == 0) items = xrealloc(items, (size_t)(*count ? 2 * *count : 1) * size);
    memset((char *)items + (size_t)*count * size, 0, size);
    ++*count;
    return items;
}

// Whether ranks hold different parameters, as the mesh cuts them; ZeRO cuts them further.
static bool cuts_parameters(const Mesh *mesh) {
    return mesh->tp * mesh->pp * mesh->ep * mesh->etp > 1;
}

int layout_norm_ranks(const Layout *layout) {
    const Mesh *mesh = &layout->request.mesh;
    return layout->zero || cuts_parameters(mesh) ? (int)mesh_ranks(mesh) : 0;
}

int layout_norm_parts(const Layout *layout) {
    if (!layout_norm_ranks(layout)) return 0;
    return cuts_parameters(&layout->request.mesh) ? 2 * layout->param_count : layout->unit_count;
}

static void build_constants(Layout *layout) {
    const ModelConfig *c = &layout->request.config;
    int64_t T = layout->tokens * layout->slots, documents = layout->request.documents ? T : 0;
    int64_t sparse = model_sparse_layers(c);
    bool refusable = layout->fp8 && layout_rows_bounded(&layout->request); // a step, which then runs again
    const LayoutChunk *first = &layout->chunks[0], *last = &layout->chunks[layout->chunk_count - 1];
    int64_t seq = layout->request.seq / layout->request.mesh.cp, half = c->head_dim / 2;
    const LayoutConst shapes[CONST_ID_COUNT] = {
        [CONST_IDS] = {DTYPE_I32, first->embeds ? T : 0, 1},
        [CONST_TARGETS] = {DTYPE_I32, last->predicts ? T : 0, 1},
        [CONST_DOC_START] = {DTYPE_I32, documents, 1},
        [CONST_COS] = {DTYPE_F32, seq, half},
        [CONST_SIN] = {DTYPE_F32, seq, half},
        [CONST_SCALARS] = {DTYPE_F32, 1, MODEL_SCALARS},
        [CONST_ROUTER_BIAS] = {DTYPE_F32, sparse, c->experts},
        [CONST_EXPERT_TOTAL] = {DTYPE_I32, sparse, c->experts},
        [CONST_FP8_SCALE] = {DTYPE_F32, layout->fp8 ? FP8_SLOTS : 0, c->layers * FP8_SCALE_STEP},
        [CONST_FP8_AMAX] = {DTYPE_F32, layout->fp8 ? FP8_SLOTS : 0, c->layers * FP8_SCALE_STEP},
        [CONST_FP8_BEFORE] = {DTYPE_F32, refusable ? FP8_SLOTS : 0, c->layers * FP8_SCALE_STEP},
        [CONST_EXPERT_LOAD] = {DTYPE_F32, sparse, MOE_LOAD_STATS},
        [CONST_NORMS] = {DTYPE_F32, 1, layout_norm_parts(layout)},
        [CONST_RANK_NORMS] = {DTYPE_F32, 1, layout_norm_ranks(layout)},
    };
    int64_t offset = 0;
    for (int i = 0; i < CONST_ID_COUNT; i++) {
        LayoutConst *constant = &layout->constants[i];
        *constant = shapes[i];
        constant->offset = offset;
        constant->bytes = constant->rows * constant->cols * (int64_t)dtype_size(constant->dtype);
        offset += align_up(constant->bytes, LAYOUT_ALIGN);
    }
    layout->bytes[LAYOUT_CONSTANTS] = offset;
}

int64_t layout_vocab_rows(const LayoutRequest *request) {
    return (request->config.vocab + request->mesh.tp - 1) / request->mesh.tp;
}

// Each of tp ranks routes its share of the tokens.
int64_t layout_dispatched_tokens(const LayoutRequest *request) {
    const Mesh *mesh = &request->mesh;
    return (int64_t)request->micro_batch * request->seq / mesh->cp / mesh->tp * mesh->ep * mesh->etp;
}

int64_t layout_expert_slots(const LayoutRequest *request) {
    return layout_dispatched_tokens(request) * request->config.top_k / request->mesh.ep;
}

// A token visits top_k different experts, so a rank that holds fewer gets no more rows than experts from it.
int64_t layout_expert_slots_most(const LayoutRequest *request) {
    int held = request->config.experts / request->mesh.ep, top_k = request->config.top_k;
    return layout_dispatched_tokens(request) * (top_k < held ? top_k : held);
}

static int64_t rows_for(const LayoutRequest *request, int64_t slots) {
    int align = request->device == DEVICE_CUDA ? OPS_CUDA_ROW_ALIGN : OPS_CPU_ROW_ALIGN;
    return moe_rows_capacity(slots, 1, request->config.experts / request->mesh.ep,
                             request->row_align ? request->row_align : align);
}

// Of a layer's experts: three matrices both ways round, against gate and up of all rows in one byte instead of two.
static bool copies_exceed_savings(const Layout *layout) {
    const LayoutRequest *request = &layout->request;
    int64_t weights = 3 * (int64_t)request->config.hidden * (request->config.experts / request->mesh.ep);
    int64_t kept = request->recompute == RECOMPUTE_FULL ? 0 : 2 * layout->rows * layout->slots;
    return 2 * weights > kept; // both times the experts' width
}

int64_t layout_expert_rows(const LayoutRequest *request) {
    if (!request->config.experts) return 0;
    double headroom = request->expert_headroom > 0 ? request->expert_headroom : LAYOUT_EXPERT_HEADROOM;
    int64_t room = (int64_t)ceil(headroom * (double)layout_expert_slots(request));
    int64_t most = layout_expert_slots_most(request);
    return rows_for(request, room < most ? room : most);
}

bool layout_rows_bounded(const LayoutRequest *request) {
    return request->config.experts &&
           layout_expert_rows(request) < rows_for(request, layout_expert_slots_most(request));
}

int64_t layout_logits_rows(const LayoutRequest *request) {
    bool fp8 = layout_fp8(request) & FP8_HEAD_GRADIENTS;
    int64_t rows = request->logits_rows > 0 ? request->logits_rows : fp8 ? LOGITS_ROWS_FP8 : LOGITS_ROWS_DEFAULT;
    int64_t tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    return rows < tokens ? rows : tokens;
}

static OpsWorkspaceRequest workspace_request(const LayoutRequest *request) {
    const ModelConfig *c = &request->config;
    int tp = request->mesh.tp;
    bool spread = c->experts && request->mesh.ep * request->mesh.etp > 1;
    int64_t tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    return (OpsWorkspaceRequest){.tokens = tokens,
                                 .batch = request->micro_batch,
                                 .seq = request->mesh.cp > 1 ? mesh_chunk_tokens(&request->mesh, request->seq)
                                                             : request->seq, // of one call of attention
                                 .hidden = c->hidden,
                                 .heads = c->heads / tp,
                                 .kv_heads = mesh_kv_heads(&request->mesh, c->kv_heads),
                                 .head_dim = c->head_dim,
                                 .vocab = c->vocab,
                                 .experts = c->experts,
                                 .top_k = c->top_k,
                                 .placed_tokens = spread ? layout_dispatched_tokens(request) : 0,
                                 .placed_experts = c->experts / request->mesh.ep,
                                 .logits_rows = layout_logits_rows(request),
                                 .parameters = model_parameters(c).total,
                                 .dtype = precision_storage(request->precision),
                                 .threads = request->threads};
}

size_t layout_workspace_bytes(const LayoutRequest *request) {
    OpsWorkspaceRequest wanted = workspace_request(request);
    return request->device == DEVICE_CUDA ? ops_cuda_workspace(&wanted) : ops_cpu_workspace(&wanted);
}

int64_t layout_scratch_least(const LayoutRequest *request) {
    if (request->device != DEVICE_CUDA || request->inference) return 0;
    OpsWorkspaceRequest wanted = workspace_request(request);
    size_t needed = ops_cuda_attention_scratch(&wanted);
    return needed > ops_cuda_workspace(&wanted) ? (int64_t)needed : 0;
}

// Which layers are here, and how many passes through them are in flight at one time.
static void build_chunks(Layout *layout) {
    const LayoutRequest *request = &layout->request;
    int pp = request->mesh.pp, stage = layout->place.pp, count = layout_chunks(request), places = pp * count;
    int micro_batches = request->micro_batches > 0 ? request->micro_batches : places;
    layout->chunk_count = count;
    layout->micro_batches = micro_batches;
    layout->chunks = xcalloc((size_t)count, sizeof *layout->chunks);
    for (int i = 0; i < count; i++) {
        LayoutChunk *chunk = &layout->chunks[i];
        int place = i * pp + stage;
        mesh_place_layers(places, request->config.layers, place, &chunk->first, &chunk->count);
        chunk->embeds = place == 0;
        chunk->predicts = place == places - 1;
        layout->layer_count += chunk->count;
        for (int k = 0; k < chunk->count; k++)
            chunk->sparse += request->config.sparse[chunk->first + k];
    }
    layout->first_layer = layout->chunks[0].first;
    layout->slots = pp == 1 ? 1 : (int)pipeline_in_flight(layout_schedule(request), pp, count, stage, micro_batches);
}

int layout_layer(const Layout *layout, int index) {
    const LayoutChunk *chunk = layout->chunks;
    for (; index >= chunk->count; chunk++)
        index -= chunk->count;
    return chunk->first + index;
}

const LayoutChunk *layout_chunk(const Layout *layout, int layer) {
    const LayoutChunk *chunk = layout->chunks;
    while (layer < chunk->first || layer >= chunk->first + chunk->count)
        chunk++;
    return chunk;
}

Status layout_build(Layout *layout, const LayoutRequest *request) {
    *layout = (Layout){.request = *request};
    TRY(layout_check_request(request));
    layout->place = mesh_place(&request->mesh, request->rank);
    layout->dtype = precision_storage(request->precision);
    layout->tokens = (int64_t)request->micro_batch * request->seq / request->mesh.cp;
    layout->local_tokens = layout->tokens / request->mesh.tp;
    layout->logits_rows = layout_logits_rows(request);
    layout->rows = layout_expert_rows(request);
    layout->zero = mesh_data_ranks(&request->mesh) > 1 && !request->inference ? request->mesh.zero : 0;
    build_chunks(layout);
    layout->fp8 = layout_fp8(request);
    layout->fp8_passing = layout->fp8 & FP8_EXPERTS && copies_exceed_savings(layout);
    layout_build_params(layout);
    layout_build_states(layout);
    layout_build_activations(layout);
    build_constants(layout);
    layout->bytes[LAYOUT_WORKSPACE] = (int64_t)layout_workspace_bytes(request);
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++) {
        layout->bytes[kind] = align_up(layout->bytes[kind], LAYOUT_ALIGN);
        if (kind != LAYOUT_OUTER || request->device == DEVICE_CPU) layout->total_bytes += layout->bytes[kind];
    }
    return NULL;
}

void layout_free(Layout *layout) {
    free(layout->params);
    free(layout->units);
    free(layout->activations);
    free(layout->param_index);
    free(layout->act_index);
    free(layout->chunks);
    *layout = (Layout){0};
}

ParamId layout_head(const Layout *layout) {
    return layout->request.config.tied ? PARAM_EMBEDDING : PARAM_HEAD;
}

const LayoutParam *layout_param(const Layout *layout, ParamId id, int layer) {
    int index = layout->param_index[(layer + 1) * PARAM_ID_COUNT + id];
    return index ? &layout->params[index - 1] : NULL;
}

const LayoutActivation *layout_activation(const Layout *layout, ActId id, int layer, StepPass in) {
    int pass = in != STEP_FORWARD;
    int layers = layout->request.config.layers;
    int index = layout->act_index[(pass * (layers + 1) + layer + 1) * ACT_ID_COUNT + id];
    if (!index) index = layout->act_index[(pass * (layers + 1)) * ACT_ID_COUNT + id]; // one for all layers
    return index ? &layout->activations[index - 1] : NULL;
}
