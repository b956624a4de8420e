#include "model/model.h"

#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "model/transformer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- life -----------------------------------------------------------------------------------------------------------

static void upload_rope(Model *model) {
    const LayoutRequest *request = &model->layout.request;
    size_t count = (size_t)request->seq * (size_t)(request->config.head_dim / 2);
    float *cos_table = xmalloc(2 * count * sizeof(float)), *sin_table = cos_table + count;
    model_rope_table(&request->config, request->seq, cos_table, sin_table);
    model->ops->upload(model->ops, model_const(model, CONST_COS).data, cos_table, count * sizeof(float));
    model->ops->upload(model->ops, model_const(model, CONST_SIN).data, sin_table, count * sizeof(float));
    free(cos_table);
}

// A block of the layout, as bytes.
static Tensor model_block(const Model *model, LayoutKind kind) {
    return tensor_make(model->memory[kind], DTYPE_U8, 1, model->layout.bytes[kind], layout_kind_name(kind));
}

Status model_create(Model **out, Ops *ops, const LayoutRequest *request) {
    *out = NULL;
    const Mesh *mesh = &request->mesh;
    if (mesh_ranks(mesh) * mesh->ep * mesh->etp != 1)
        return status_usage("this build trains on one rank; the parallel degrees must be 1 (hearth plan accepts any)");
    TRY(layout_check_kernels(request));
    Model *model = xcalloc(1, sizeof *model);
    model->ops = ops;
    Status status = layout_build(&model->layout, request);
    if (status) {
        free(model);
        return status;
    }
    for (int kind = 0; kind < LAYOUT_KIND_COUNT && !status; kind++)
        if (model->layout.bytes[kind])
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
    model_zero_optimizer(model);
    upload_rope(model);
    *out = model;
    return NULL;
}

void model_destroy(Model *model) {
    if (!model) return;
    for (int i = 0; i < 2; i++)
        if (model->recorded[i].graph) model->ops->graph_free(model->ops, model->recorded[i].graph);
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
    float *out;
    uint64_t seed, stream;
    float deviation;
} FillContext;

static void fill_normal(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    FillContext *fill = context;
    rng_fill_normal(fill->out + begin, end - begin, fill->seed, fill->stream, (uint64_t)begin, 0, fill->deviation);
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
        if (param->dims == 1) {
            for (int64_t k = 0; k < param->count; k++)
                host[k] = 1.0f;
        } else {
            // The stream names the parameter by what it is, not by its place, so that it is the same in any split.
            uint64_t stream = RNG_STREAM_PARAMETER + (uint64_t)(param->layer + 1) * PARAM_ID_COUNT + param->id;
            float deviation = config->init_std;
            if (scale_residual && param->residual) deviation /= sqrtf(2.0f * (float)config->layers);
            FillContext fill = {host, seed, stream, deviation};
            threads_for(param->count, 1 << 14, fill_normal, &fill);
        }
        model_write_param(model, param, MODEL_WEIGHTS, host);
    }
    free(host);
    model_zero_optimizer(model);
}

static void widen(const Layout *layout, const void *weights, const int16_t *master, int64_t count, float *out) {
    if (layout->dtype == DTYPE_F32) {
        memcpy(out, weights, (size_t)count * sizeof(float));
    } else if (master) {
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_join(((const bf16 *)weights)[i], master[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_to_f32(((const bf16 *)weights)[i]);
    }
}

static float *state_pointer(const Model *model, const LayoutParam *param, ModelState state) {
    assert(state != MODEL_WEIGHTS);
    if (state == MODEL_GRADIENTS) return (float *)model->memory[LAYOUT_GRADIENTS] + param->offset;
    return (float *)model->memory[LAYOUT_MOMENTS] + (state == MODEL_V ? model->layout.element_count : 0) +
           param->offset;
}

void model_read_param(Model *model, const LayoutParam *param, ModelState state, float *host) {
    Ops *ops = model->ops;
    size_t count = (size_t)param->count, size = dtype_size(model->layout.dtype);
    if (state != MODEL_WEIGHTS) {
        ops->download(ops, host, state_pointer(model, param, state), count * sizeof(float));
        return;
    }
    void *weights = xmalloc(count * size);
    int16_t *master = model->memory[LAYOUT_MASTER] ? xmalloc(count * 2) : NULL;
    ops->download(ops, weights, (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)param->offset * size, count * size);
    if (master) ops->download(ops, master, (int16_t *)model->memory[LAYOUT_MASTER] + param->offset, count * 2);
    widen(&model->layout, weights, master, param->count, host);
    free(weights);
    free(master);
}

typedef struct NarrowContext {
    const float *in;
    bf16 *out;
    int16_t *low; // NULL: no master weights
    bool to_even; // where no run has any: halves round as everywhere else
} NarrowContext;

static void narrow_weights(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    NarrowContext *narrow = context;
    for (int64_t i = begin; i < end; i++)
        narrow->out[i] = narrow->low       ? bf16_split(narrow->in[i], &narrow->low[i])
                         : narrow->to_even ? bf16_from_f32(narrow->in[i])
                                           : bf16_split_weight(narrow->in[i]);
}

void model_write_param(Model *model, const LayoutParam *param, ModelState state, const float *host) {
    Ops *ops = model->ops;
    size_t count = (size_t)param->count, size = dtype_size(model->layout.dtype);
    char *weights = (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)param->offset * size;
    if (state != MODEL_WEIGHTS) {
        ops->upload(ops, state_pointer(model, param, state), host, count * sizeof(float));
    } else if (model->layout.dtype == DTYPE_F32) {
        ops->upload(ops, weights, host, count * sizeof(float));
    } else {
        bool master = model->memory[LAYOUT_MASTER] != NULL;
        NarrowContext narrow = {host, xmalloc(count * 2), master ? xmalloc(count * 2) : NULL,
                                model->layout.request.precision == PRECISION_BF16_PURE};
        threads_for(param->count, 1 << 16, narrow_weights, &narrow);
        ops->upload(ops, weights, narrow.out, count * 2);
        if (master) ops->upload(ops, (int16_t *)model->memory[LAYOUT_MASTER] + param->offset, narrow.low, count * 2);
        free(narrow.out);
        free(narrow.low);
    }
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
    return NULL;
}

void model_snapshot_free(ModelSnapshot *snapshot) {
    free(snapshot->weights);
    free(snapshot->master);
    free(snapshot->moments);
    *snapshot = (ModelSnapshot){0};
}

void model_snapshot_read(const ModelSnapshot *snapshot, const Layout *layout, const LayoutParam *param,
                         ModelState state, int64_t first, int64_t count, float *out) {
    assert(state != MODEL_GRADIENTS && first + count <= param->count);
    int64_t at = param->offset + first;
    if (state == MODEL_WEIGHTS) {
        const char *weights = (const char *)snapshot->weights + (size_t)at * dtype_size(layout->dtype);
        widen(layout, weights, snapshot->master ? (const int16_t *)snapshot->master + at : NULL, count, out);
    } else {
        memcpy(out, snapshot->moments + (state == MODEL_V ? layout->element_count : 0) + at,
               (size_t)count * sizeof(float));
    }
}

// ---- training -------------------------------------------------------------------------------------------------------

void model_step_begin(Model *model, int64_t valid, int micro_batches) {
    const ModelConfig *config = &model->layout.request.config;
    float scalars[MODEL_SCALARS] = {0};
    int sparse = model_sparse_layers(config);
    scalars[SCALAR_CE_SCALE] = valid > 0 ? (float)(1.0 / (double)valid) : 0.0f;
    scalars[SCALAR_AUX_SCALE] = config->aux_coef / (float)micro_batches;
    if (sparse)
        scalars[SCALAR_Z_COEF] =
            (float)((double)model->z_loss_coef / ((double)model->layout.tokens * sparse * micro_batches));
    model->step_valid = valid;
    model->step_micro_batches = micro_batches;
    model->accumulate = false;
    model->ops->upload(model->ops, model_const(model, CONST_SCALARS).data, scalars, sizeof scalars);
}

static void upload_inputs(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    Ops *ops = model->ops;
    size_t bytes = (size_t)model->layout.tokens * sizeof(int32_t);
    ops->upload(ops, model_const(model, CONST_IDS).data, ids, bytes);
    ops->upload(ops, model_const(model, CONST_TARGETS).data, targets, bytes);
    if (model->layout.request.documents) {
        assert(doc_start);
        ops->upload(ops, model_const(model, CONST_DOC_START).data, doc_start, bytes);
    }
}

static void run_micro_step(Model *model) {
    if (!model->accumulate) transformer_zero_added_gradients(model);
    transformer_forward(model);
    transformer_head(model, true);
    transformer_balance(model);
    transformer_backward(model);
}

void model_micro_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    Ops *ops = model->ops;
    upload_inputs(model, ids, targets, doc_start);
    void **graph = &model->recorded[model->accumulate].graph;
    if (*graph && !model->direct) {
        ops->graph_launch(ops, *graph);
    } else if (model->direct || model->recorded[model->accumulate].runs++ != 1) {
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
    upload_inputs(model, ids, targets, doc_start);
    transformer_forward(model);
    transformer_head(model, false);
    transformer_balance(model);
    model->accumulate = true; // the counts of the next one add up
}

// Elements [first, first + count) of a block that has a value of `dtype` for every parameter.
static Tensor parameter_range(const Model *model, LayoutKind kind, DType dtype, int64_t first, int64_t count) {
    char *memory = model->memory[kind];
    if (!memory) return TENSOR_NONE;
    return tensor_make(memory + (size_t)first * dtype_size(dtype), dtype, 1, count, layout_kind_name(kind));
}

void model_optimizer_step(Model *model, const OptimizerStep *step) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    Tensor norm = model_scalar(model, SCALAR_NORM), skip = model_scalar(model, SCALAR_SKIP);
    model->pass = STEP_ONCE;
    ops->norm_f32(ops, norm, model_gradients(model));
    float sum_limit = (float)((double)step->loss_limit * (double)model->step_valid);
    ops->guard(ops, skip, model_scalar(model, SCALAR_LOSS_SUM), norm, sum_limit, step->norm_limit);
    for (int range = 0; range < 2; range++) { // matrices decay, vectors do not
        int64_t first = range ? layout->decay_count : 0;
        int64_t count = (range ? layout->element_count : layout->decay_count) - first;
        AdamwArgs args = {
            .weight = parameter_range(model, LAYOUT_WEIGHTS, layout->dtype, first, count),
            .master_low = parameter_range(model, LAYOUT_MASTER, DTYPE_U16, first, count),
            .m = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, first, count),
            .v = parameter_range(model, LAYOUT_MOMENTS, DTYPE_F32, layout->element_count + first, count),
            .grad = parameter_range(model, LAYOUT_GRADIENTS, DTYPE_F32, first, count),
            .lr = step->lr,
            .beta1 = step->beta1,
            .beta2 = step->beta2,
            .eps = step->eps,
            .weight_decay = range ? 0.0f : step->weight_decay,
            .bias1 = (float)(1.0 - pow((double)step->beta1, (double)step->step)),
            .bias2 = (float)(1.0 - pow((double)step->beta2, (double)step->step)),
            .max_norm = step->max_norm,
            .norm = norm,
            .skip = skip,
            .seed = step->seed + (uint64_t)step->step,
            .first = (uint64_t)first,
        };
        ops->adamw(ops, &args);
    }
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
    int32_t skip;
    model->ops->fetch_wait(model->ops, RESULT_SLOT, scalars, sizeof scalars);
    memcpy(&skip, &scalars[SCALAR_SKIP], sizeof skip);
    *result = (StepResult){
        .loss = model->step_valid ? (double)scalars[SCALAR_LOSS_SUM] / (double)model->step_valid : 0,
        .loss_aux = model->step_micro_batches ? (double)scalars[SCALAR_AUX_SUM] / model->step_micro_batches : 0,
        .grad_norm = scalars[SCALAR_NORM],
        .skipped = skip != 0,
    };
}

void model_step_result(Model *model, StepResult *result) {
    model_result_start(model);
    model_result_wait(model, result);
}

// ---- expert load ----------------------------------------------------------------------------------------------------

void model_expert_load(Model *model, float *stats) {
    model->ops->fetch_wait(model->ops, LOAD_SLOT, stats, (size_t)model->layout.constants[CONST_EXPERT_LOAD].bytes);
}

void model_update_router_bias(Model *model, float rate) {
    model->ops->moe_bias_update(model->ops, model_const(model, CONST_ROUTER_BIAS),
                                model_const(model, CONST_EXPERT_TOTAL), model_scalar(model, SCALAR_SKIP), rate);
}

// ---- views ----------------------------------------------------------------------------------------------------------

static Tensor param_view(const Model *model, LayoutKind kind, DType dtype, ParamId id, int layer) {
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    char *memory = model->memory[kind];
    if (!param || !memory) return TENSOR_NONE;
    int64_t cols = param->shape[param->dims - 1];
    return tensor_make(memory + (size_t)param->offset * dtype_size(dtype), dtype, param->count / cols, cols,
                       layout_param_name(id));
}

Tensor model_weight(const Model *model, ParamId id, int layer) {
    return param_view(model, LAYOUT_WEIGHTS, model->layout.dtype, id, layer);
}

Tensor model_grad(const Model *model, ParamId id, int layer) {
    return param_view(model, LAYOUT_GRADIENTS, DTYPE_F32, id, layer);
}

Tensor model_gradients(const Model *model) {
    return parameter_range(model, LAYOUT_GRADIENTS, DTYPE_F32, 0, model->layout.element_count);
}

Tensor model_act(const Model *model, ActId id, int layer) {
    const LayoutActivation *act = layout_activation(&model->layout, id, layer, model->pass);
    if (!act || act->rows * act->cols == 0) return TENSOR_NONE;
    char *memory = model->memory[act->kept ? LAYOUT_ACTIVATIONS : LAYOUT_TEMPORARIES];
    return tensor_make(memory + act->offset, act->dtype, act->per_token ? model->tokens : act->rows, act->cols,
                       layout_act_name(id));
}

Tensor model_const(const Model *model, ConstId id) {
    const LayoutConst *constant = &model->layout.constants[id];
    if (!constant->bytes) return TENSOR_NONE;
    bool per_token = id == CONST_IDS || id == CONST_TARGETS || id == CONST_DOC_START;
    return tensor_make((char *)model->memory[LAYOUT_CONSTANTS] + constant->offset, constant->dtype,
                       per_token ? model->tokens : constant->rows, constant->cols, layout_const_name(id));
}

Tensor model_scalar(const Model *model, int index) {
    Tensor scalar = tensor_cols(model_const(model, CONST_SCALARS), index, 1);
    if (index == SCALAR_SKIP) scalar.dtype = DTYPE_I32;
    return scalar;
}

void model_lend_scratch(Model *model, bool lend) {
    const LayoutActivation *scratch = layout_activation(&model->layout, ACT_SCRATCH, -1, STEP_BACKWARD);
    int64_t usual = model->layout.bytes[LAYOUT_WORKSPACE];
    if (!scratch || scratch->bytes <= usual) return;
    char *memory = lend ? (char *)model->memory[LAYOUT_TEMPORARIES] + scratch->offset : model->memory[LAYOUT_WORKSPACE];
    model->ops->bind_workspace(model->ops, memory, (size_t)(lend ? scratch->bytes : usual));
}
