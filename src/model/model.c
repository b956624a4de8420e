// A model's life, and its step: micro-batches, the optimizer, the result.
#include "model/model.h"

#include "base/text.h"
#include "model/fp8.h"
#include "model/pipeline.h"
#include "model/seam.h"
#include "model/transformer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    scalars[SCALAR_DLOGITS_SCALE] = fp8_dlogits_scale(scalars[SCALAR_CE_SCALE]);
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
    if (model->fp8_noting) fp8_step(model);
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

// Stochastic rounding is keyed by the parameter and the element of it, so that it does not depend on any split.
static void adamw_by_parameters(Model *model, AdamwArgs args, float weight_decay) {
    const Layout *layout = &model->layout;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        LayoutPart part = layout_part(layout, param, ZERO_MOMENTS), weight = layout_part(layout, param, ZERO_WEIGHTS);
        if (!part.count) continue;
        const LayoutUnit *unit = &layout->units[param->unit];
        int64_t start = param->offset + part.first - unit->offset; // in the unit
        Tensor grad = layout->zero ? tensor_cols(model_piece(model, LAYOUT_GRADIENTS, unit, false),
                                                 start - unit->rank * unit->piece, part.count)
                                   : model_range(model, LAYOUT_GRADIENTS, param->offset, part.count);
        int64_t at = weight.at + part.first - weight.first,
                all = layout->zero ? layout->shard_count : layout->element_count;
        args.weight = model_range(model, LAYOUT_WEIGHTS, at, part.count);
        args.m = model_range(model, LAYOUT_MOMENTS, part.at, part.count);
        args.v = model_range(model, LAYOUT_MOMENTS, all + part.at, part.count);
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
        args.weight = model_range(model, LAYOUT_WEIGHTS, first, count);
        args.master = model_range(model, LAYOUT_MASTER, first, count);
        args.m = model_range(model, LAYOUT_MOMENTS, first, count);
        args.v = model_range(model, LAYOUT_MOMENTS, layout->element_count + first, count);
        args.grad = model_range(model, LAYOUT_GRADIENTS, first, count);
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

// Blocks that have room for the experts' rows.
static const LayoutKind row_kinds[] = {LAYOUT_ACTIVATIONS, LAYOUT_TEMPORARIES};

// Parameters, what they are sharded into and their copies in FP8 stay as they are: writers of checkpoints hold on to
// them.
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
    for (int i = 0; i < 2; i++) {
        layout->total_bytes += from->bytes[row_kinds[i]] - layout->bytes[row_kinds[i]];
        layout->bytes[row_kinds[i]] = from->bytes[row_kinds[i]];
    }
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
    for (int i = 0; i < 2; i++) { // all are given back first: there may not be room for both
        ops->free(ops, model->memory[row_kinds[i]], (size_t)layout->bytes[row_kinds[i]]);
        model->memory[row_kinds[i]] = NULL;
    }
    take_activations(layout, &grown);
    Status status = NULL;
    for (int i = 0; i < 2 && !status; i++) {
        LayoutKind kind = row_kinds[i];
        status = ops->alloc(ops, &model->memory[kind], (size_t)layout->bytes[kind], layout_kind_name(kind));
    }
    return status;
}

void model_expert_load(Model *model, float *stats) {
    model->ops->fetch_wait(model->ops, LOAD_SLOT, stats, (size_t)model->layout.constants[CONST_EXPERT_LOAD].bytes);
}

void model_update_router_bias(Model *model, float rate) {
    model->ops->moe_bias_update(model->ops, model_const(model, CONST_ROUTER_BIAS),
                                model_const(model, CONST_EXPERT_TOTAL), model_scalar(model, SCALAR_SKIP), rate);
}
