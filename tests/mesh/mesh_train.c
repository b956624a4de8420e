#include "mesh_train.h"

#include "base/rng.h"
#include "base/text.h"
#include "model/fp8.h"
#include "train/ranks.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void mesh_trained_free(MeshTrained *trained) {
    free(trained->gradients);
    free(trained->weights);
    *trained = (MeshTrained){0};
}

// ---- the whole model's tensors --------------------------------------------------------------------------------------

Status mesh_tensors_make(MeshTensors *tensors, const LayoutRequest *request) {
    LayoutRequest one = *request;
    Layout layout;
    one.mesh = MESH_SINGLE;
    TRY(layout_build(&layout, &one));
    *tensors = (MeshTensors){0};
    for (int i = 0; i < layout.param_count; i++)
        tensors->count += layout_slice_count(&layout, &layout.params[i]);
    tensors->slices = xcalloc((size_t)tensors->count, sizeof *tensors->slices);
    tensors->first = xcalloc((size_t)tensors->count + 1, sizeof *tensors->first);
    for (int i = 0, at = 0; i < layout.param_count; i++)
        for (int k = 0; k < layout_slice_count(&layout, &layout.params[i]); k++, at++) {
            tensors->slices[at] = layout_slice(&layout, &layout.params[i], k);
            tensors->first[at + 1] = tensors->first[at] + tensors->slices[at].count;
        }
    layout_free(&layout);
    return NULL;
}

void mesh_tensors_free(MeshTensors *tensors) {
    free(tensors->slices);
    free(tensors->first);
    *tensors = (MeshTensors){0};
}

static int64_t tensor_start(const MeshTensors *tensors, const char *name) {
    for (int i = 0; i < tensors->count; i++)
        if (strcmp(tensors->slices[i].name, name) == 0) return tensors->first[i];
    assert(!"a tensor that the model does not have");
    return 0;
}

// ---- what a rank has of them ----------------------------------------------------------------------------------------

static float *owned_gradient(Model *model, const LayoutParam *param, int64_t first, int64_t count) {
    const LayoutUnit *unit = &model->layout.units[param->unit];
    Tensor piece = model_piece(model, LAYOUT_GRADIENTS, unit, false);
    int64_t at = param->offset + first - unit->offset - unit->rank * unit->piece;
    float *host = xmalloc((size_t)(count + 1) * sizeof *host);
    model->ops->download(model->ops, host, (float *)piece.data + at, (size_t)count * sizeof *host);
    return host;
}

static float *owned_weight(Model *model, const ModelSnapshot *snapshot, const LayoutParam *param, int64_t first,
                           int64_t count) {
    float *host = xmalloc((size_t)(count + 1) * sizeof *host);
    model_snapshot_read(snapshot, &model->layout, param, MODEL_WEIGHTS, first, count, host);
    return host;
}

// Adds what this rank would write into a checkpoint to its place in `all`. Over all ranks every element is written
// once, so that the sum of their arrays is the whole model: what two ranks own doubles, what nobody owns is zero.
static void add_owned(Model *model, const MeshTensors *tensors, const ModelSnapshot *snapshot, float *all) {
    const Layout *layout = &model->layout;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        int64_t first, count;
        layout_owned(layout, param, &first, &count);
        if (!count) continue;
        float *own =
            snapshot ? owned_weight(model, snapshot, param, first, count) : owned_gradient(model, param, first, count);
        for (int k = 0; k < layout_slice_count(layout, param); k++) {
            LayoutSlice slice = layout_slice(layout, param, k);
            if (!layout_slice_owner(layout, param, k)) continue;
            float *tensor = all + tensor_start(tensors, slice.name);
            int64_t cols = slice.dims == 1 ? slice.shape[0] : slice.shape[1];
            for (int64_t row = 0; row < slice.rows; row++)
                for (int64_t col = 0; col < slice.cols; col++) {
                    int64_t at = slice.at + row * slice.stride + col - first;
                    if (at >= 0 && at < count) tensor[(slice.row + row) * cols + slice.col + col] += own[at];
                }
        }
        free(own);
    }
}

static float *gather(Model *model, const MeshTensors *tensors, const ModelSnapshot *snapshot) {
    int64_t count = tensors->first[tensors->count];
    float *all = xcalloc((size_t)count, sizeof *all);
    add_owned(model, tensors, snapshot, all);
    if (model->ranks.all)
        comm_wait(model->ranks.all, comm_all_reduce(model->ranks.all, tensor_make(all, DTYPE_F32, 1, count, "model")));
    return all;
}

// ---- training -------------------------------------------------------------------------------------------------------

static void nudge_weights(Model *model, const MeshCase *c, int nudge) {
    for (int i = 0; i < model->layout.param_count && nudge; i++) {
        const LayoutParam *param = &model->layout.params[i];
        float *host = xmalloc((size_t)param->count * sizeof *host);
        model_read_param(model, param, MODEL_WEIGHTS, host);
        for (int64_t k = 0; k < param->count; k++) {
            bool up = rng_below(c->seed + 1, RNG_STREAM_TEST, (uint64_t)((int64_t)i << 32 | k), 2);
            host[k] *= 1 + (float)(up ? nudge : -nudge) * 0x1p-23f;
        }
        model_write_param(model, param, MODEL_WEIGHTS, host);
        free(host);
    }
}

static void run_step(Model *model, const MeshCase *c, int step) {
    const Mesh *mesh = &model->layout.request.mesh;
    int tokens = c->request.micro_batch * c->request.seq, all = mesh_case_micro_batches(c), own = all / mesh->dp;
    int32_t *ids = xmalloc(3 * (size_t)tokens * sizeof *ids), *targets = ids + tokens, *doc_start = targets + tokens;
    int64_t valid = 0;
    for (int i = 0; i < all; i++)
        valid += mesh_case_batch(c, step, i, ids, targets, doc_start);
    model_step_begin(model, valid, own);
    for (int i = 0; i < own; i++) {
        mesh_case_batch(c, step, i * mesh->dp + model->layout.place.dp, ids, targets, doc_start);
        model_micro_step(model, ids, targets, c->request.documents ? doc_start : NULL);
    }
    // eps is far above the error of a gradient, so that AdamW does not turn rounding into steps of full length.
    model_optimizer_step(model, &(OptimizerStep){.step = step + 1,
                                                 .lr = 1e-3f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-4f,
                                                 .weight_decay = 0.1f,
                                                 .max_norm = c->clip,
                                                 .loss_limit = INFINITY,
                                                 .norm_limit = INFINITY});
    if (c->router_bias) model_update_router_bias(model, 1e-3f);
    free(ids);
}

static Status train_model(Model *model, const MeshCase *c, int nudge, MeshTrained *trained) {
    MeshTensors tensors;
    TRY(mesh_tensors_make(&tensors, &c->request));
    model->z_loss_coef = c->z_loss_coef;
    model->balance = c->balance;
    model->router_bias = c->router_bias;
    // Weights of another size are of another scale in FP8.
    model_init_weights(model, c->seed, c->request.precision == PRECISION_FP8);
    nudge_weights(model, c, nudge);
    for (int step = 0; step < MESH_CASE_STEPS; step++) {
        StepResult result;
        run_step(model, c, step);
        model_step_result(model, &result);
        while (result.rows_needed) { // by experts, beyond the room for them: the guard has refused the step
            TRY(model_grow_experts(model, result.rows_needed));
            fp8_scales_undo(model);
            run_step(model, c, step);
            model_step_result(model, &result);
        }
        trained->loss[step] = result.loss;
        trained->loss_aux[step] = result.loss_aux;
        trained->norm[step] = result.grad_norm;
        if (step == 0) trained->gradients = gather(model, &tensors, NULL);
    }
    ModelSnapshot snapshot = {0};
    Status status = model_snapshot(model, &snapshot, false);
    if (!status) trained->weights = gather(model, &tensors, &snapshot);
    model_snapshot_free(&snapshot);
    mesh_tensors_free(&tensors);
    return status;
}

Status mesh_train(const MeshCase *c, World *world, int nudge, MeshTrained *trained) {
    *trained = (MeshTrained){0};
    LayoutRequest request = c->request;
    if (!world) request.mesh = MESH_SINGLE, request.micro_batches = mesh_case_micro_batches(c);
    request.rank = world ? world->rank : 0;
    Ops *ops;
    Model *model = NULL;
    Ranks ranks = {.world = world, .mesh = request.mesh};
    TRY(ops_create(&ops, "cpu"));
    Status status = ranks_open(&ranks, ops, &request);
    if (!status) status = model_create_ranks(&model, ops, &request, &ranks.groups);
    if (!status) {
        int64_t current, peak;
        ops_cpu_allocated(ops, &current, &peak);
        if (peak != model->layout.total_bytes)
            status = status_runtime("%lld bytes are allocated, and %lld planned", (long long)peak,
                                    (long long)model->layout.total_bytes);
    }
    if (!status) status = train_model(model, c, nudge, trained);
    model_destroy(model);
    ranks_close(&ranks);
    ops_destroy(ops);
    return status;
}
