// Two steps of small models on every mesh of the ranks that this program is started with (one without a launcher; 2 and
// 4 under mpirun), against the same steps on one rank, which every rank takes for itself. What memory holds before is
// poison, and experts' rows are padded as on a GPU too: what reads beyond its own rows shows.
#include "../model/small_models.h"
#include "dist/comm.h"
#include "train/ranks.h"

#include <math.h>

// Sums in another order, nothing else; u = 2^-24. The bounds of tests/ranks/jobs.py.
#define LOSS_BOUND     1e-6 // 16 u
#define GRADIENT_BOUND 1e-5 // of each tensor's L2 norm; and so of the norm of all
enum { ACCUM = 2, STEPS = 2, TOKENS_MAX = 64 };

static World *world;
static Ops *ops;

static LayoutRequest mesh_request(SmallModel which) {
    LayoutRequest request = small_request(which);
    request.seq = 20; // 40 tokens for up to 4 ranks
    request.config.heads = 8;
    request.config.init_std = 0.1f;
    if (which == SMALL_MOE) { // under ZeRO 2 a dense layer and a sparse one share a place, and differ in their gaps
        request.config.sparse[1] = true;
        request.config.sparse[2] = false;
    }
    request.recompute = RECOMPUTE_SELECTIVE; // experts' rows are gathered again for the backward pass
    return request;
}

static void poison(Model *model) {
    const LayoutKind kinds[] = {LAYOUT_ACTIVATIONS, LAYOUT_TEMPORARIES};
    for (size_t i = 0; i < 2; i++)
        memset(model->memory[kinds[i]], 0xff, (size_t)model->layout.bytes[kinds[i]]);
}

static Model *model_open(const LayoutRequest *request, const ModelRanks *groups) {
    Model *model;
    assert_ok(model_create_ranks(&model, ops, request, groups));
    poison(model);
    model_init_weights(model, 5, false);
    model->z_loss_coef = 1e-3f;
    model->router_bias = request->config.experts > 0;
    return model;
}

// Micro-batches first, first + stride, ... of the `all` of a step.
static StepResult model_step(Model *model, int step, int first, int stride, int all) {
    int32_t ids[TOKENS_MAX], targets[TOKENS_MAX], start[TOKENS_MAX] = {0};
    int64_t valid = 0;
    for (int i = 0; i < all; i++)
        valid += small_batch(&model->layout, ids, targets, (uint64_t)(100 * step + i));
    model_step_begin(model, valid, all / stride);
    for (int i = first; i < all; i += stride) {
        small_batch(&model->layout, ids, targets, (uint64_t)(100 * step + i));
        model_micro_step(model, ids, targets, start);
    }
    model_optimizer_step(model, &(OptimizerStep){.step = step,
                                                 .lr = 1e-3f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .max_norm = 0.5f,
                                                 .loss_limit = INFINITY,
                                                 .norm_limit = INFINITY});
    if (model->router_bias) model_update_router_bias(model, 1e-2f);
    StepResult result;
    model_step_result(model, &result);
    return result;
}

// ---- comparison -----------------------------------------------------------------------------------------------------

// Elements [*first, *first + *count) of a parameter whose whole gradient this rank has, and where.
static const float *gradient_here(const Model *model, const LayoutParam *param, int64_t *first, int64_t *count) {
    const LayoutUnit *unit = &model->layout.units[param->unit];
    *first = 0, *count = param->count;
    if (!model->layout.zero) return model_grad(model, param->id, param->layer).data;
    layout_owned(&model->layout, param, first, count);
    const float *piece = model_piece(model, LAYOUT_GRADIENTS, unit, false).data;
    return piece + (param->offset + *first - unit->offset - unit->rank * unit->piece);
}

static void compare_gradients(const Model *model, const Model *one, const char *name) {
    for (int p = 0; p < model->layout.param_count; p++) {
        const LayoutParam *param = &model->layout.params[p],
                          *whole = layout_param(&one->layout, param->id, param->layer);
        const float *want = model_grad(one, param->id, param->layer).data;
        int64_t first, count;
        const float *got = gradient_here(model, param, &first, &count);
        double apart = 0, norm = 0;
        for (int64_t i = 0; i < whole->count; i++)
            norm += (double)want[i] * want[i];
        for (int s = 0; s < layout_slice_count(&model->layout, param); s++) {
            LayoutSlice box = layout_slice(&model->layout, param, s);
            for (int64_t i = 0; i < box.rows * box.cols; i++) {
                int64_t row = i / box.cols, col = i % box.cols, at = box.at + row * box.stride + col - first;
                if (at < 0 || at >= count) continue;
                double difference = got[at] - want[box.first + (box.row + row) * box.shape[1] + box.col + col];
                apart += difference * difference;
            }
        }
        if (!(sqrt(apart) <= GRADIENT_BOUND * sqrt(norm)))
            fail_msg("%s: the gradient of %s in layer %d differs by %.2g of its norm %.2g", name,
                     layout_param_name(param->id), param->layer, sqrt(apart / norm), sqrt(norm));
    }
}

static void compare_constant(const Model *model, const Model *one, ConstId id, const char *name) {
    Tensor mine = model_const(model, id), theirs = model_const(one, id);
    if (!tensor_present(mine)) return;
    if (memcmp(mine.data, theirs.data, (size_t)tensor_count(mine) * 4) != 0)
        fail_msg("%s: %s is not one rank's", name, layout_const_name(id));
}

static void compare_on_mesh(SmallModel which, int dp, int tp, int zero, int row_align) {
    char name[128];
    snprintf(name, sizeof name, "model %d, dp %d, tp %d, ZeRO %d, rows of %d", which, dp, tp, zero, row_align);
    ops->row_align = row_align;
    LayoutRequest request = mesh_request(which);
    Model *one = model_open(&request, &(ModelRanks){0});
    request.mesh.dp = dp;
    request.mesh.tp = tp;
    request.mesh.zero = zero;
    request.rank = world->rank;
    Ranks ranks = {.world = world, .mesh = request.mesh};
    assert_ok(ranks_open(&ranks, ops, &request));
    Model *here = model_open(&request, &ranks.groups);
    for (int step = 1; step <= STEPS; step++) {
        StepResult want = model_step(one, step, 0, 1, ACCUM * dp);
        StepResult got = model_step(here, step, ranks.place.dp, dp, ACCUM * dp);
        double loss = fabs(got.loss / want.loss - 1), norm = fabs(got.grad_norm / want.grad_norm - 1);
        double aux = fabs(got.loss_aux - want.loss_aux);
        if (!(loss <= LOSS_BOUND)) fail_msg("%s: the loss of step %d differs by %.2g", name, step, loss);
        if (!(norm <= GRADIENT_BOUND)) fail_msg("%s: the norm of step %d differs by %.2g", name, step, norm);
        if (!(aux <= LOSS_BOUND * want.loss_aux)) fail_msg("%s: the balancing loss differs by %.2g", name, aux);
        // Later ones are of weights that AdamW has moved apart where gradients are next to nothing.
        if (step == 1) compare_gradients(here, one, name);
        compare_constant(here, one, CONST_EXPERT_TOTAL, name);
        compare_constant(here, one, CONST_ROUTER_BIAS, name);
    }
    model_destroy(here);
    model_destroy(one);
    ranks_close(&ranks);
}

// tp 4 has more ranks than the 2 KV heads.
static void compare_on_meshes(SmallModel which, int row_align) {
    for (int tp = 1; tp <= world->size; tp *= 2)
        for (int zero = 0; zero <= 3; zero++)
            if (zero == 0 || world->size / tp > 1) compare_on_mesh(which, world->size / tp, tp, zero, row_align);
}

static void dense_models_train_as_on_one_rank(void **state) {
    (void)state;
    compare_on_meshes(SMALL_LLAMA, 1);
    compare_on_meshes(SMALL_QWEN3, 1);
}

static void experts_train_as_on_one_rank(void **state) {
    (void)state;
    compare_on_meshes(SMALL_MOE, 1);
}

static void experts_train_as_on_one_rank_with_a_gpus_padding(void **state) {
    (void)state;
    compare_on_meshes(SMALL_MOE, OPS_CUDA_ROW_ALIGN);
}

// A layer is gathered forward, and backward but for the last two, which are still there.
static void zero_3_gathers_a_byte_a_weight_in_fp8(void **state) {
    (void)state;
    int64_t sent[2], piece = 0, layers = 0;
    if (world->size == 1) skip();
    for (int fp8 = 0; fp8 < 2; fp8++) {
        LayoutRequest request = mesh_request(SMALL_LLAMA);
        request.seq = 16;
        request.config.ffn = 80; // whole pieces for the tensor cores
        request.precision = fp8 ? PRECISION_FP8 : PRECISION_BF16;
        request.mesh.dp = world->size;
        request.mesh.zero = 3;
        request.rank = world->rank;
        Ranks ranks = {.world = world, .mesh = request.mesh};
        assert_ok(ranks_open(&ranks, ops, &request));
        Model *model = model_open(&request, &ranks.groups);
        int32_t ids[TOKENS_MAX], targets[TOKENS_MAX], start[TOKENS_MAX] = {0};
        int64_t valid = small_batch(&model->layout, ids, targets, 1), before = 0;
        model_step_begin(model, valid, 2);
        for (int i = 0; i < 2; i++) { // the first makes the scales of the weights
            before = comm_sent_bytes(world);
            model_micro_step(model, ids, targets, start);
        }
        sent[fp8] = comm_sent_bytes(world) - before;
        piece = model->layout.units[layout_param(&model->layout, PARAM_QKV, 0)->unit].piece;
        layers = model->layout.layer_count;
        model_destroy(model);
        ranks_close(&ranks);
    }
    assert_int_equal(sent[0] - sent[1], (2 * layers - 2) * (world->size - 1) * piece);
}

int main(void) {
    assert_ok(world_open(&world, NULL));
    assert_ok(ops_cpu_create(&ops));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_models_train_as_on_one_rank),
        cmocka_unit_test(experts_train_as_on_one_rank),
        cmocka_unit_test(experts_train_as_on_one_rank_with_a_gpus_padding),
        cmocka_unit_test(zero_3_gathers_a_byte_a_weight_in_fp8),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) world_abort(world, status_runtime("%d tests failed on rank %d", failed, world->rank));
    world_close(world);
    ops_cpu_destroy(ops);
    return 0;
}
