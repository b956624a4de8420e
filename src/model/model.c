#include "model/model.h"

#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "model/fp8.h"
#include "model/pipeline.h"
#include "model/seam.h"
#include "model/transformer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// From which ZeRO stage on each is sharded.
enum { ZERO_MOMENTS = 1, ZERO_GRADIENTS = 2, ZERO_WEIGHTS = 3 };

// ---- life -----------------------------------------------------------------------------------------------------------

static void upload_rope(Model *model) {
    const LayoutRequest *request = &model->layout.request;
    size_t half = (size_t)(request->config.head_dim / 2), count = (size_t)request->seq * half;
    float *cos_table = xmalloc(2 * count * sizeof(float)), *sin_table = cos_table + count;
    model_rope_table(&request->config, request->seq, cos_table, sin_table);
    Tensor cos = model_const(model, CONST_COS), sin = model_const(model, CONST_SIN);
    int parts = request->mesh.cp > 1 ? 2 : 1; // of the sequence on this rank
    for (int i = 0; i < parts; i++) {
        int64_t rows = cos.rows / parts,
                first = parts > 1 ? mesh_chunk(&request->mesh, model->layout.place.cp, i) * rows : 0;
        size_t from = (size_t)first * half, bytes = (size_t)rows * half * sizeof(float);
        model->ops->upload(model->ops, tensor_at(cos, i * rows, 0), cos_table + from, bytes);
        model->ops->upload(model->ops, tensor_at(sin, i * rows, 0), sin_table + from, bytes);
    }
    free(cos_table);
}

// A block of the layout, as bytes.
static Tensor model_block(const Model *model, LayoutKind kind) {
    return tensor_make(model->memory[kind], DTYPE_U8, 1, model->layout.bytes[kind], layout_kind_name(kind));
}

Status model_create(Model **out, Ops *ops, const LayoutRequest *request) {
    return model_create_ranks(out, ops, request, &(ModelRanks){0});
}

Status model_create_ranks(Model **out, Ops *ops, const LayoutRequest *request, const ModelRanks *ranks) {
    *out = NULL;
    const Mesh *mesh = &request->mesh;
    int dp = ranks->dp ? ranks->dp->size : 1;
    int tp = ranks->tp ? ranks->tp->size : 1, cp = ranks->cp ? ranks->cp->size : 1;
    int pp = ranks->pp ? ranks->pp->size : 1;
    assert((ranks->dispatch ? ranks->dispatch->size : 1) == (request->config.experts ? mesh->ep * mesh->etp : 1));
    if (mesh_data_ranks(mesh) != dp || mesh->tp != tp || mesh->cp != cp || mesh->pp != pp)
        return status_usage("the mesh has %d x %d x %d x %d data-, context-, tensor- and pipeline-parallel ranks, and "
                            "this run has %d x %d x %d x %d",
                            mesh->dp, mesh->cp, mesh->tp, mesh->pp, dp / cp, cp, tp, pp);
    TRY(layout_check_kernels(request));
    Model *model = xcalloc(1, sizeof *model);
    model->ops = ops;
    ops->tf32 = request->tf32;
    model->ranks = *ranks;
    seam_micro_step_begin(model);
    LayoutRequest own = *request;
    own.row_align = ops->row_align;
    Status status = layout_build(&model->layout, &own);
    if (status) {
        free(model);
        return status;
    }
    for (int kind = 0; kind < LAYOUT_KIND_COUNT && !status; kind++)
        if (model->layout.bytes[kind] && kind != LAYOUT_OUTER)
            status = ops->alloc(ops, &model->memory[kind], (size_t)model->layout.bytes[kind], layout_kind_name(kind));
    if (status) {
        model_destroy(model);
        return status;
    }
    ops->bind_workspace(ops, model->memory[LAYOUT_WORKSPACE], (size_t)model->layout.bytes[LAYOUT_WORKSPACE]);
    model->tokens = model->layout.tokens;
    ops->zero(ops, model_block(model, LAYOUT_CONSTANTS));
    // Padding between parameters takes part in the optimizer's ranges and in the gradient norm: it must hold numbers,
    // and zeros in the gradients. Nothing writes it later.
    ops->zero(ops, model_block(model, LAYOUT_WEIGHTS));
    if (model->memory[LAYOUT_MASTER]) ops->zero(ops, model_block(model, LAYOUT_MASTER));
    if (model->memory[LAYOUT_GATHERED]) ops->zero(ops, model_block(model, LAYOUT_GATHERED));
    model_zero_optimizer(model);
    upload_rope(model);
    if (pp > 1) model->pipeline = pipeline_create(model);
    *out = model;
    return NULL;
}

static void forget_graphs(Model *model) {
    for (int i = 0; i < 4; i++)
        if (model->recorded[i / 2][i % 2].graph)
            model->ops->graph_free(model->ops, model->recorded[i / 2][i % 2].graph);
    memset(model->recorded, 0, sizeof model->recorded);
}

void model_record_again(Model *model) {
    int runs[4];
    for (int i = 0; i < 4; i++)
        runs[i] = model->recorded[i / 2][i % 2].runs;
    forget_graphs(model);
    for (int i = 0; i < 4; i++)
        model->recorded[i / 2][i % 2].runs = runs[i] > 0; // it has run: the next one may be recorded
    pipeline_record_again(model);
}

const char *model_why_no_graph(const Model *model) {
    if (model->ops->kind == DEVICE_CPU) return "the CPU runs ops one by one: there is nothing to gain";
    if (model->direct) return "train.graph = false";
    if ((model->pipeline || seam_in_micro_step(model)) && !seam_in_graph(model))
        return "a micro-step talks to other ranks over MPI, which a graph cannot hold";
    return NULL;
}

void model_destroy(Model *model) {
    if (!model) return;
    pipeline_free(model);
    forget_graphs(model);
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++)
        if (model->memory[kind]) model->ops->free(model->ops, model->memory[kind], (size_t)model->layout.bytes[kind]);
    layout_free(&model->layout);
    free(model);
}

void model_zero_optimizer(Model *model) {
    if (model->layout.request.inference) return;
    model->ops->zero(model->ops, model_block(model, LAYOUT_GRADIENTS));
    model->ops->zero(model->ops, model_block(model, LAYOUT_MOMENTS));
}

// ---- weights --------------------------------------------------------------------------------------------------------

typedef struct FillContext {
    float *out; // of the parameter
    const LayoutSlice *slice;
    uint64_t seed, stream;
    float deviation;
} FillContext;

// Rows of a slice. An element's value depends on the parameter and on its place in it on a rank that holds all of it.
static void fill_rows(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const FillContext *fill = context;
    const LayoutSlice *slice = fill->slice;
    int64_t all_cols = slice->shape[1];
    for (int64_t row = begin; row < end; row++)
        rng_fill_normal(fill->out + slice->at + row * slice->stride, slice->cols, fill->seed, fill->stream,
                        (uint64_t)(slice->first + (slice->row + row) * all_cols + slice->col), 0, fill->deviation);
}

static void fill_matrix(const Layout *layout, const LayoutParam *param, uint64_t seed, float deviation, float *host) {
    memset(host, 0, (size_t)param->count * sizeof *host); // rows beyond the vocabulary
    // The stream names the parameter by what it is, not by its place, so that it is the same in any split.
    uint64_t stream = RNG_STREAM_PARAMETER + (uint64_t)(param->layer + 1) * PARAM_ID_COUNT + param->id;
    for (int i = 0; i < layout_slice_count(layout, param); i++) {
        LayoutSlice slice = layout_slice(layout, param, i);
        int64_t chunk = (1 << 14) / (slice.cols > 0 ? slice.cols : 1);
        FillContext fill = {host, &slice, seed, stream, deviation};
        threads_for(slice.rows, chunk > 0 ? chunk : 1, fill_rows, &fill);
    }
}

void model_init_weights(Model *model, uint64_t seed, bool scale_residual) {
    const Layout *layout = &model->layout;
    const ModelConfig *config = &layout->request.config;
    int64_t most = 0;
    for (int i = 0; i < layout->param_count; i++)
        most = layout->params[i].count > most ? layout->params[i].count : most;
    float *host = xmalloc((size_t)most * sizeof(float));
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        float deviation = config->init_std;
        if (scale_residual && param->residual) deviation /= sqrtf(2.0f * (float)config->layers);
        if (param->dims > 1) fill_matrix(layout, param, seed, deviation, host);
        for (int64_t k = 0; param->dims == 1 && k < param->count; k++)
            host[k] = 1.0f;
        model_write_param(model, param, MODEL_WEIGHTS, host);
    }
    free(host);
    seam_new_weights(model);
    model_zero_optimizer(model);
}

void model_share_weights(Model *model) {
    if (model->layout.zero >= ZERO_WEIGHTS) seam_new_weights(model);
}

static void widen(const Layout *layout, const void *weights, const void *master, int64_t count, float *out) {
    if (layout->dtype == DTYPE_F32 || (layout->dtype == DTYPE_F16 && master)) {
        memcpy(out, master ? master : weights, (size_t)count * sizeof(float));
    } else if (master) {
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_join(((const bf16 *)weights)[i], ((const int16_t *)master)[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = storage_get(weights, i, layout->dtype);
    }
}

static void *master_at(void *block, const Layout *layout, int64_t index) { // NULL: there is none
    return block ? (char *)block + index * precision_master_bytes(layout->request.precision) : NULL;
}

// The part of a parameter that a sharded block has here: elements [first, first + count) of it, from element `at` of
// the block on. Of one that is not sharded: all of it. (Stage 0: of what is sharded always.)
typedef struct ParamPart {
    int64_t first, count, at;
} ParamPart;

static ParamPart param_part(const Layout *layout, const LayoutParam *param, int stage) {
    if (layout->zero < stage) return (ParamPart){0, param->count, param->offset};
    const LayoutUnit *unit = &layout->units[param->unit];
    ParamPart part;
    layout_owned(layout, param, &part.first, &part.count);
    part.at = unit->shard_offset + param->offset + part.first - unit->offset - unit->rank * unit->piece;
    return part;
}

static bool state_outer(ModelState state) {
    return state == MODEL_ANCHOR || state == MODEL_MOMENTUM;
}

static float *outer_pointer(float *outer, const Layout *layout, const LayoutParam *param, ModelState state) {
    return outer + (state == MODEL_MOMENTUM ? layout->shard_count : 0) + param_part(layout, param, 0).at;
}

static float *state_pointer(const Model *model, int64_t at, ModelState state) {
    assert(state != MODEL_WEIGHTS && !state_outer(state));
    if (state == MODEL_GRADIENTS) return (float *)model->memory[LAYOUT_GRADIENTS] + at;
    int64_t all = model->layout.zero >= ZERO_MOMENTS ? model->layout.shard_count : model->layout.element_count;
    return (float *)model->memory[LAYOUT_MOMENTS] + (state == MODEL_V ? all : 0) + at;
}

void model_read_param(Model *model, const LayoutParam *param, ModelState state, float *host) {
    Ops *ops = model->ops;
    size_t count = (size_t)param->count, size = dtype_size(model->layout.dtype);
    assert(model->layout.zero == 0);
    if (state != MODEL_WEIGHTS) {
        ops->download(ops, host, state_pointer(model, param->offset, state), count * sizeof(float));
        return;
    }
    void *weights = xmalloc(count * size);
    void *low = master_at(model->memory[LAYOUT_MASTER], &model->layout, param->offset);
    size_t low_bytes = count * (size_t)precision_master_bytes(model->layout.request.precision);
    void *master = low ? xmalloc(low_bytes) : NULL;
    ops->download(ops, weights, (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)param->offset * size, count * size);
    if (master) ops->download(ops, master, low, low_bytes);
    widen(&model->layout, weights, master, param->count, host);
    free(weights);
    free(master);
}

typedef struct NarrowContext {
    const float *in;
    uint16_t *out;
    int16_t *low; // of bf16; NULL: no master weights
    DType dtype;
    bool to_even; // where no run has any: halves round as everywhere else
} NarrowContext;

static void narrow_weights(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    NarrowContext *narrow = context;
    for (int64_t i = begin; i < end; i++)
        narrow->out[i] = narrow->dtype == DTYPE_F16 ? f16_from_f32(narrow->in[i])
                         : narrow->low              ? bf16_split(narrow->in[i], &narrow->low[i])
                         : narrow->to_even          ? bf16_from_f32(narrow->in[i])
                                                    : bf16_split_weight(narrow->in[i]);
}

static void write_weights(Model *model, const LayoutParam *param, const float *host) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    ParamPart part = param_part(layout, param, ZERO_WEIGHTS), low = param_part(layout, param, ZERO_MOMENTS);
    size_t size = dtype_size(layout->dtype);
    char *weights = (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)part.at * size;
    if (layout->dtype == DTYPE_F32) {
        ops->upload(ops, weights, host + part.first, (size_t)part.count * sizeof(float));
        return;
    }
    size_t count = (size_t)param->count;
    void *master = master_at(model->memory[LAYOUT_MASTER], layout, low.at);
    bool split = master && layout->dtype == DTYPE_BF16;
    NarrowContext narrow = {host, xmalloc(count * 2), split ? xmalloc(count * 2) : NULL, layout->dtype,
                            layout->request.precision == PRECISION_BF16_PURE};
    threads_for(param->count, 1 << 16, narrow_weights, &narrow);
    ops->upload(ops, weights, narrow.out + part.first, (size_t)part.count * 2);
    if (split)
        ops->upload(ops, master, narrow.low + low.first, (size_t)low.count * 2);
    else if (master)
        ops->upload(ops, master, host + low.first, (size_t)low.count * sizeof(float));
    free(narrow.out);
    free(narrow.low);
}

void model_write_param(Model *model, const LayoutParam *param, ModelState state, const float *host) {
    if (state == MODEL_WEIGHTS) {
        write_weights(model, param, host);
        model->fp8_fresh = false;
        return;
    }
    if (state_outer(state)) {
        ParamPart own = param_part(&model->layout, param, 0);
        memcpy(outer_pointer(model->outer, &model->layout, param, state), host + own.first,
               (size_t)own.count * sizeof(float));
        return;
    }
    ParamPart part = param_part(&model->layout, param, state == MODEL_GRADIENTS ? ZERO_GRADIENTS : ZERO_MOMENTS);
    model->ops->upload(model->ops, state_pointer(model, part.at, state), host + part.first,
                       (size_t)part.count * sizeof(float));
}

Status model_snapshot(Model *model, ModelSnapshot *snapshot, bool with_moments) {
    Ops *ops = model->ops;
    struct {
        LayoutKind kind;
        void **host;
    } block[] = {{LAYOUT_WEIGHTS, &snapshot->weights},
                 {LAYOUT_MASTER, &snapshot->master},
                 {LAYOUT_MOMENTS, (void **)&snapshot->moments}};
    for (int i = 0; i < (with_moments ? 3 : 2); i++) {
        size_t bytes = (size_t)model->layout.bytes[block[i].kind];
        if (!bytes) continue;
        if (!*block[i].host) *block[i].host = malloc(bytes);
        if (!*block[i].host) return status_runtime("no host memory for a checkpoint snapshot (%zu bytes)", bytes);
        ops->download(ops, *block[i].host, model->memory[block[i].kind], bytes);
    }
    if (!model->outer || !with_moments) return NULL;
    size_t bytes = 2 * (size_t)model->layout.shard_count * sizeof(float);
    if (!snapshot->outer) snapshot->outer = malloc(bytes);
    if (!snapshot->outer) return status_runtime("no host memory for a checkpoint snapshot (%zu bytes)", bytes);
    memcpy(snapshot->outer, model->outer, bytes);
    return NULL;
}

void model_snapshot_free(ModelSnapshot *snapshot) {
    free(snapshot->weights);
    free(snapshot->master);
    free(snapshot->moments);
    free(snapshot->outer);
    *snapshot = (ModelSnapshot){0};
}

void model_snapshot_read(const ModelSnapshot *snapshot, const Layout *layout, const LayoutParam *param,
                         ModelState state, int64_t first, int64_t count, float *out) {
    assert(state != MODEL_GRADIENTS && first + count <= param->count);
    ParamPart part = param_part(layout, param, ZERO_WEIGHTS), own = param_part(layout, param, ZERO_MOMENTS);
    assert(first >= own.first && first + count <= own.first + own.count);
    int64_t at = own.at + first - own.first;
    if (state_outer(state)) {
        const float *from = outer_pointer(snapshot->outer, layout, param, state);
        memcpy(out, from + first - param_part(layout, param, 0).first, (size_t)count * sizeof(float));
    } else if (state == MODEL_WEIGHTS) {
        const char *weights =
            (const char *)snapshot->weights + (size_t)(part.at + first - part.first) * dtype_size(layout->dtype);
        widen(layout, weights, master_at(snapshot->master, layout, at), count, out);
    } else {
        int64_t all = layout->zero >= ZERO_MOMENTS ? layout->shard_count : layout->element_count;
        memcpy(out, snapshot->moments + (state == MODEL_V ? all : 0) + at, (size_t)count * sizeof(float));
    }
}

// ---- training -------------------------------------------------------------------------------------------------------

static float model_loss_scale(const Model *model) {
    return model->loss_scale > 0 ? model->loss_scale : 1;
}

void model_step_begin(Model *model, int64_t valid, int micro_batches) {
    const ModelConfig *config = &model->layout.request.config;
    float scalars[MODEL_SCALARS] = {0};
    int sparse = model_sparse_layers(config);
    const Mesh *mesh = &model->layout.request.mesh;
    int all = micro_batches * mesh->dp; // of all ranks
    double micro_batch_tokens = (double)model->layout.tokens * mesh->cp;
    float scale = model_loss_scale(model); // of all that gradients begin with
    scalars[SCALAR_CE_SCALE] = valid > 0 ? scale * (float)(1.0 / (double)valid) : 0.0f;
    scalars[SCALAR_AUX_SCALE] = scale * (config->aux_coef / (float)all);
    if (sparse)
        scalars[SCALAR_Z_COEF] = scale * (float)((double)model->z_loss_coef / (micro_batch_tokens * sparse * all));
    model->step_valid = valid;
    model->step_micro_batches = micro_batches;
    model->aux_micro_batches = all * mesh->cp; // each of cp ranks has all of it
    if (mesh->pp > 1 && model->balance == BALANCE_LAYERS)
        model->aux_micro_batches *= sparse; // stages add up single layers
    model->accumulate = false;
    model->micro_batches_run = 0;
    model->ops->upload(model->ops, model_const(model, CONST_SCALARS).data, scalars, sizeof scalars);
}

static void upload_inputs(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    seam_upload_tokens(model, CONST_IDS, ids);
    seam_upload_tokens(model, CONST_TARGETS, targets);
    if (model->layout.request.documents) {
        assert(doc_start);
        seam_upload_tokens(model, CONST_DOC_START, doc_start);
    }
}

static void run_micro_step(Model *model) {
    seam_micro_step_begin(model);
    if (!model->accumulate || model->layout.zero >= 2) transformer_zero_added_gradients(model);
    transformer_forward(model);
    transformer_head(model, true);
    transformer_balance(model);
    transformer_backward(model);
    seam_micro_step_end(model);
}

void model_micro_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    Ops *ops = model->ops;
    fp8_step(model);
    if (model->pipeline) {
        pipeline_micro_step(model, ids, targets, doc_start);
        return;
    }
    upload_inputs(model, ids, targets, doc_start);
    model->last = ++model->micro_batches_run == model->step_micro_batches;
    // A group whose operations cannot be recorded leaves the micro-steps that use it unrecorded.
    bool direct = model->direct || (seam_in_micro_step(model) && !seam_in_graph(model));
    bool talks =
        seam_in_micro_step(model) && seam_ends_gradients(model); // one that ends them does more than the others
    void **graph = &model->recorded[model->accumulate][talks].graph;
    if (*graph && !direct) {
        ops->graph_launch(ops, *graph);
    } else if (direct || model->recorded[model->accumulate][talks].runs++ != 1) {
        // The first micro-step of its kind runs directly: libraries set themselves up and choose algorithms.
        run_micro_step(model);
    } else {
        ops->graph_begin(ops);
        run_micro_step(model);
        Status status = ops->graph_end(ops, graph);
        status_free(status); // a failure is kept for sync(), which ends the run with it
        if (*graph) ops->graph_launch(ops, *graph);
    }
    model->accumulate = true;
}

void model_eval_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    model->evaluating = true;
    if (model->pipeline) {
        pipeline_eval_step(model, ids, targets, doc_start);
        model->evaluating = false;
        return;
    }
    upload_inputs(model, ids, targets, doc_start);
    seam_micro_step_begin(model);
    transformer_forward(model);
    transformer_head(model, false);
    transformer_balance(model);
    model->evaluating = false;
    model->accumulate = true; // the counts of the next one add up
}

static DType master_dtype(const Layout *layout) {
    return layout->dtype == DTYPE_F16 ? DTYPE_F32 : DTYPE_U16;
}

// Elements [first, first + count) of a block that has a value of `dtype` for every parameter.
static Tensor parameter_range(const Model *model, LayoutKind kind, DType dtype, int64_t first, int64_t count) {
    char *memory = model->memory[kind];
    if (!memory) return TENSOR_NONE;
    return tensor_make(memory + (size_t)first * dtype_size(dtype), dtype, 1, count, layout_kind_name(kind));
}

// Stochastic rounding is keyed by the parameter and the element of it, so that it does not depend on any split.
static void adamw_by_parameters(Model *model, AdamwArgs args, float weight_decay) {
    const Layout *layout = &model->layout;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        ParamPart part = param_part(layout, param, ZERO_MOMENTS), weight = param_part(layout, param, ZERO_WEIGHTS);
        if (!part.count) continue;
        const LayoutUnit *unit = &layout->units[param->unit];
        int64_t start = param->offset + part.first - unit->offset; // in the unit
        Tensor grad = layout->zero ? tensor_cols(model_piece(model, LAYOUT_GRADIENTS, unit, false),
                                                 start - unit->rank * unit->piece, part.count)
                                   : parameter_range(model, LAYOUT_GRADIENTS, DTYPE_F32, param->offset, part.count);
        int64_t at = weight.at + part.first - weight.first,
                all = layout->zero ? layout->shard_count : layout->element_count;
        args.weight = parameter_range(model, LAYOUT_WEIGHTS, layout->dtype, at, part.count);
        args.m = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, part.at, part.count);
        args.v = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, all + part.at, part.count);
        args.grad = grad;
        args.weight_decay = param->decay ? weight_decay : 0;
        args.first = ((uint64_t)(param->layer + 1) * PARAM_ID_COUNT + param->id) << 40 | (uint64_t)part.first;
        model->ops->adamw(model->ops, &args);
    }
}

static void adamw_by_units(Model *model, AdamwArgs args, float weight_decay) {
    for (int i = 0; i < model->layout.unit_count; i++) {
        const LayoutUnit *unit = &model->layout.units[i];
        args.weight = model_piece(model, LAYOUT_WEIGHTS, unit, false);
        args.master = model_piece(model, LAYOUT_MASTER, unit, false);
        args.m = model_piece(model, LAYOUT_MOMENTS, unit, false);
        args.v = model_piece(model, LAYOUT_MOMENTS, unit, true);
        args.grad = model_piece(model, LAYOUT_GRADIENTS, unit, false);
        args.weight_decay = unit->vectors ? 0 : weight_decay;
        model->ops->adamw(model->ops, &args);
    }
}

static void adamw_by_decay(Model *model, AdamwArgs args, float weight_decay) {
    const Layout *layout = &model->layout;
    for (int range = 0; range < 2; range++) { // matrices decay, vectors do not
        int64_t first = range ? layout->decay_count : 0;
        int64_t count = (range ? layout->element_count : layout->decay_count) - first;
        args.weight = parameter_range(model, LAYOUT_WEIGHTS, layout->dtype, first, count);
        args.master = parameter_range(model, LAYOUT_MASTER, master_dtype(layout), first, count);
        args.m = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, first, count);
        args.v = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, layout->element_count + first, count);
        args.grad = parameter_range(model, LAYOUT_GRADIENTS, DTYPE_F32, first, count);
        args.weight_decay = range ? 0.0f : weight_decay;
        model->ops->adamw(model->ops, &args);
    }
}

void model_optimizer_step(Model *model, const OptimizerStep *step) {
    Ops *ops = model->ops;
    Tensor norm = model_scalar(model, SCALAR_NORM), skip = model_scalar(model, SCALAR_SKIP);
    model->pass = STEP_ONCE;
    seam_step_sums(model);
    seam_gradient_norm(model);
    float sum_limit = (float)((double)step->loss_limit * (double)model->step_valid);
    Tensor refuse =
        layout_rows_bounded(&model->layout.request) ? model_scalar(model, SCALAR_ROWS) : TENSOR_NONE; // not enough room
    ops->guard(ops, skip, model_scalar(model, SCALAR_LOSS_SUM), norm, refuse, sum_limit,
               step->norm_limit * model_loss_scale(model));
    AdamwArgs args = {.lr = step->lr,
                      .beta1 = step->beta1,
                      .beta2 = step->beta2,
                      .eps = step->eps,
                      .bias1 = (float)(1.0 - pow((double)step->beta1, (double)step->step)),
                      .bias2 = (float)(1.0 - pow((double)step->beta2, (double)step->step)),
                      .max_norm = step->max_norm,
                      .norm = norm,
                      .unscale = 1 / model_loss_scale(model),
                      .skip = skip,
                      .seed = step->seed + (uint64_t)step->step};
    if (model->layout.request.precision == PRECISION_BF16_PURE)
        adamw_by_parameters(model, args, step->weight_decay);
    else if (model->layout.zero)
        adamw_by_units(model, args, step->weight_decay);
    else
        adamw_by_decay(model, args, step->weight_decay);
    seam_new_weights(model);
    fp8_scales(model);
}

enum { RESULT_SLOT = 0, LOAD_SLOT = 1 };

void model_result_start(Model *model) {
    Ops *ops = model->ops;
    ops->fetch_start(ops, RESULT_SLOT, model_const(model, CONST_SCALARS).data, MODEL_SCALARS * sizeof(float));
    Tensor load = model_const(model, CONST_EXPERT_LOAD);
    if (!tensor_present(load)) return;
    ops->moe_load_stats(ops, load, model_const(model, CONST_EXPERT_TOTAL));
    ops->fetch_start(ops, LOAD_SLOT, load.data, (size_t)model->layout.constants[CONST_EXPERT_LOAD].bytes);
}

void model_result_wait(Model *model, StepResult *result) {
    float scalars[MODEL_SCALARS];
    int32_t skip, rows;
    model->ops->fetch_wait(model->ops, RESULT_SLOT, scalars, sizeof scalars);
    memcpy(&skip, &scalars[SCALAR_SKIP], sizeof skip);
    memcpy(&rows, &scalars[SCALAR_ROWS], sizeof rows);
    *result = (StepResult){
        .loss = model->step_valid ? (double)scalars[SCALAR_LOSS_SUM] / (double)model->step_valid : 0,
        .loss_aux = model->aux_micro_batches ? (double)scalars[SCALAR_AUX_SUM] / model->aux_micro_batches : 0,
        .grad_norm = scalars[SCALAR_NORM] / model_loss_scale(model),
        .skipped = skip != 0,
        .overflow = skip && isfinite(scalars[SCALAR_LOSS_SUM]) && !isfinite(scalars[SCALAR_NORM]),
        .rows_needed = rows,
    };
}

void model_step_result(Model *model, StepResult *result) {
    model_result_start(model);
    model_result_wait(model, result);
}

// ---- experts ----------------------------------------------------------------------------------------------------

// Parameters, and what they are sharded into, stay as they are: writers of checkpoints hold on to them.
static void take_activations(Layout *layout, Layout *from) {
    free(layout->activations);
    free(layout->act_index);
    layout->request = from->request;
    layout->rows = from->rows;
    layout->activations = from->activations;
    layout->activation_count = from->activation_count;
    layout->act_index = from->act_index;
    layout->slot_offset = from->slot_offset;
    layout->slot_bytes = from->slot_bytes;
    memcpy(layout->bytes, from->bytes, sizeof layout->bytes);
    layout->total_bytes = from->total_bytes;
    from->activations = NULL;
    from->act_index = NULL;
    layout_free(from);
}

Status model_grow_experts(Model *model, int64_t rows_needed) {
    Ops *ops = model->ops;
    Layout *layout = &model->layout, grown;
    LayoutRequest request = layout->request;
    double now = request.expert_headroom > 0 ? request.expert_headroom : LAYOUT_EXPERT_HEADROOM;
    // What one step needed, the next may exceed a little.
    request.expert_headroom = fmax(2 * now, 1.25 * (double)rows_needed / (double)layout_expert_slots(&request));
    assert(layout_rows_bounded(&layout->request));
    TRY(layout_build(&grown, &request));
    forget_graphs(model);
    pipeline_forget(model);
    static const LayoutKind kinds[] = {LAYOUT_ACTIVATIONS, LAYOUT_TEMPORARIES};
    for (int i = 0; i < 2; i++) { // all are given back first: there may not be room for both
        ops->free(ops, model->memory[kinds[i]], (size_t)layout->bytes[kinds[i]]);
        model->memory[kinds[i]] = NULL;
    }
    take_activations(layout, &grown);
    Status status = NULL;
    for (int i = 0; i < 2 && !status; i++)
        status = ops->alloc(ops, &model->memory[kinds[i]], (size_t)layout->bytes[kinds[i]], layout_kind_name(kinds[i]));
    return status;
}

void model_expert_load(Model *model, float *stats) {
    model->ops->fetch_wait(model->ops, LOAD_SLOT, stats, (size_t)model->layout.constants[CONST_EXPERT_LOAD].bytes);
}

void model_update_router_bias(Model *model, float rate) {
    model->ops->moe_bias_update(model->ops, model_const(model, CONST_ROUTER_BIAS),
                                model_const(model, CONST_EXPERT_TOTAL), model_scalar(model, SCALAR_SKIP), rate);
}

// ---- views ----------------------------------------------------------------------------------------------------------

int model_slot(const LayoutUnit *unit) {
    return unit->vectors ? 3 : unit->layer < 0 ? 2 : unit->layer % 2;
}

// Elements before a unit in its slot of the gathered block, and before the slot.
static int64_t gathered_at(const Layout *layout, const LayoutUnit *unit) {
    int slot = model_slot(unit);
    int64_t before =
        slot < 2 ? slot * layout->layer_elements : 2 * layout->layer_elements + (slot == 3) * layout->edge_elements;
    bool second = unit->layer >= 0 && unit > layout->units && unit[-1].layer == unit->layer && !unit[-1].vectors;
    return before + (second ? unit[-1].count : 0);
}

Tensor model_unit(const Model *model, LayoutKind kind, const LayoutUnit *unit) {
    const Layout *layout = &model->layout;
    if (kind == LAYOUT_FP8)
        return tensor_make(model_unit(model, LAYOUT_WEIGHTS, unit).data, DTYPE_E4M3, 1, unit->count,
                           layout_kind_name(kind));
    bool weights = kind == LAYOUT_WEIGHTS;
    DType dtype = weights ? layout->dtype : DTYPE_F32;
    if (layout->zero < (weights ? ZERO_WEIGHTS : ZERO_GRADIENTS))
        return parameter_range(model, kind, dtype, unit->offset, unit->count);
    if (weights && unit->ranks == 1) return parameter_range(model, kind, dtype, unit->shard_offset, unit->count);
    int64_t elements = 2 * layout->layer_elements + layout->edge_elements + layout->vector_elements;
    char *region = (char *)model->memory[LAYOUT_GATHERED] + (weights ? (elements * 4 + 255) / 256 * 256 : 0);
    return tensor_make(region + (size_t)gathered_at(layout, unit) * dtype_size(dtype), dtype, 1, unit->count,
                       layout_kind_name(kind));
}

Tensor model_wire(const Model *model, const LayoutUnit *unit) {
    const Layout *layout = &model->layout;
    if (layout->wire_offset < 0 || unit->ranks == 1) return TENSOR_NONE;
    bf16 *region = (bf16 *)((char *)model->memory[LAYOUT_GATHERED] + layout->wire_offset);
    return tensor_make(region + gathered_at(layout, unit), DTYPE_BF16, 1, unit->count, "wire");
}

Tensor model_piece(const Model *model, LayoutKind kind, const LayoutUnit *unit, bool second) {
    const Layout *layout = &model->layout;
    if (kind == LAYOUT_FP8)
        return tensor_make((char *)model->memory[kind] + unit->fp8, DTYPE_E4M3, 1, unit->piece, layout_kind_name(kind));
    int stage = kind == LAYOUT_WEIGHTS ? ZERO_WEIGHTS : kind == LAYOUT_GRADIENTS ? ZERO_GRADIENTS : ZERO_MOMENTS;
    DType dtype = kind == LAYOUT_WEIGHTS ? layout->dtype : kind == LAYOUT_MASTER ? master_dtype(layout) : DTYPE_F32;
    bool sharded = layout->zero >= stage;
    int64_t at = sharded ? unit->shard_offset : unit->offset + unit->rank * unit->piece;
    if (second) at += sharded ? layout->shard_count : layout->element_count;
    return parameter_range(model, kind, dtype, at, unit->piece);
}

static Tensor param_view(const Model *model, LayoutKind kind, ParamId id, int layer) {
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    if (!param || !model->memory[kind]) return TENSOR_NONE;
    const LayoutUnit *unit = &model->layout.units[param->unit];
    Tensor view = tensor_cols(model_unit(model, kind, unit), param->offset - unit->offset, param->count);
    int64_t cols = param->shape[param->dims - 1];
    return tensor_make(view.data, view.dtype, param->count / cols, cols, layout_param_name(id));
}

Tensor model_weight(const Model *model, ParamId id, int layer) {
    return param_view(model, LAYOUT_WEIGHTS, id, layer);
}

Tensor model_grad(const Model *model, ParamId id, int layer) {
    return param_view(model, LAYOUT_GRADIENTS, id, layer);
}

Tensor model_gradients(const Model *model) {
    return parameter_range(model, LAYOUT_GRADIENTS, DTYPE_F32, 0, model->layout.element_count);
}

// Which of the two places of a message between stages the pass under way has; -1: it is none.
static int message_half(const Model *model, const LayoutActivation *act) {
    switch (act->id) {
    case ACT_STAGE_OUT:
    case ACT_STAGE_COUNTS:
    case ACT_STAGE_PROBS: return model->half[PIPELINE_FORWARD];
    case ACT_DRESIDUAL: return act->kept ? model->half[PIPELINE_BACKWARD] : -1;
    case ACT_STAGE_DPROB: return model->half[PIPELINE_BACKWARD];
    default: return -1;
    }
}

Tensor model_act(const Model *model, ActId id, int layer) {
    const LayoutActivation *act = layout_activation(&model->layout, id, layer, model->pass);
    if (!act || act->rows * act->cols == 0) return TENSOR_NONE;
    char *memory = (char *)model->memory[act->kept ? LAYOUT_ACTIVATIONS : LAYOUT_TEMPORARIES] + act->offset;
    if (act->in_flight) memory += model->layout.slot_offset + model->flight * model->layout.slot_bytes;
    int64_t rows = act->per_token ? act->rows * model->tokens / model->layout.tokens : act->rows;
    Tensor all = tensor_make(memory, act->dtype, rows, act->cols, layout_act_name(id));
    int half = message_half(model, act);
    return half < 0 ? all : tensor_rows(all, half * rows / 2, rows / 2);
}

Tensor model_const(const Model *model, ConstId id) {
    const LayoutConst *constant = &model->layout.constants[id];
    if (!constant->bytes) return TENSOR_NONE;
    bool per_token = id == CONST_IDS || id == CONST_TARGETS || id == CONST_DOC_START;
    int64_t slot = per_token ? model->flight * constant->bytes / model->layout.slots : 0;
    return tensor_make((char *)model->memory[LAYOUT_CONSTANTS] + constant->offset + slot, constant->dtype,
                       per_token ? model->tokens : constant->rows, constant->cols, layout_const_name(id));
}

Tensor model_scalar(const Model *model, int index) {
    Tensor scalar = tensor_cols(model_const(model, CONST_SCALARS), index, 1);
    if (index == SCALAR_SKIP || index == SCALAR_ROWS) scalar.dtype = DTYPE_I32;
    return scalar;
}

void model_lend_scratch(Model *model, bool lend) {
    const LayoutActivation *scratch = layout_activation(&model->layout, ACT_SCRATCH, -1, STEP_BACKWARD);
    int64_t usual = model->layout.bytes[LAYOUT_WORKSPACE];
    if (!scratch || scratch->bytes <= usual) return;
    char *memory = lend ? (char *)model->memory[LAYOUT_TEMPORARIES] + scratch->offset : model->memory[LAYOUT_WORKSPACE];
    model->ops->bind_workspace(model->ops, memory, (size_t)(lend ? scratch->bytes : usual));
}
