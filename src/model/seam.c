#include "model/seam.h"

#include <assert.h>

static bool alone(const Model *model) {
    return !model->ranks.dp || model->ranks.dp->size == 1;
}

static const LayoutUnit *unit_of(const Model *model, ParamId id, int layer) {
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    return param ? &model->layout.units[param->unit] : NULL;
}

// The units of a layer: its matrices, and its experts' behind them.
static const LayoutUnit *layer_units(const Model *model, int layer, int *count) {
    const LayoutUnit *first = unit_of(model, PARAM_QKV, layer), *end = model->layout.units + model->layout.unit_count;
    *count = 1;
    if (first + 1 < end && first[1].layer == layer) *count = 2;
    return first;
}

// ---- weights (ZeRO 3) -----------------------------------------------------------------------------------------------

static CommTicket gather_unit(Model *model, const LayoutUnit *unit) {
    return comm_all_gather(model->ranks.dp, model_unit(model, LAYOUT_WEIGHTS, unit),
                           model_piece(model, LAYOUT_WEIGHTS, unit, false));
}

static void start_layer_gather(Model *model, int layer) {
    int count, slot = layer % 2;
    if (model->slot[slot].weights == layer) return;
    const LayoutUnit *units = layer_units(model, layer, &count);
    for (int i = 0; i < count; i++) // operations run in order: the last ticket stands for all
        model->slot[slot].gathering = gather_unit(model, &units[i]);
    model->slot[slot].weights = layer;
}

void seam_layer_weights(Model *model, int layer) {
    if (alone(model) || model->layout.zero < 3) return;
    const Layout *layout = &model->layout;
    start_layer_gather(model, layer);
    comm_wait(model->ranks.dp, model->slot[layer % 2].gathering);
    int next = model->pass == STEP_FORWARD ? layer + 1 : layer - 1;
    if (next >= layout->first_layer && next < layout->first_layer + layout->layer_count)
        start_layer_gather(model, next);
}

void seam_edge_weights(Model *model, ParamId id) {
    if (alone(model) || model->layout.zero < 3) return;
    const LayoutUnit *unit = unit_of(model, id, -1);
    int slot = model_slot(unit);
    if (model->slot[slot].weights == (int)id) return;
    comm_wait(model->ranks.dp, gather_unit(model, unit));
    model->slot[slot].weights = (int)id;
}

// ---- gradients ------------------------------------------------------------------------------------------------------

static CommTicket reduce_unit(Model *model, const LayoutUnit *unit) {
    Comm *dp = model->ranks.dp;
    Tensor whole = model_unit(model, LAYOUT_GRADIENTS, unit);
    if (model->layout.zero == 0) return comm_all_reduce(dp, whole);
    return comm_reduce_scatter(dp, tensor_cols(whole, dp->rank * unit->piece, unit->piece), whole);
}

// ZeRO 2 and 3: what was reduced joins the rank's own gradients.
static void take_piece(Model *model, const LayoutUnit *unit) {
    Ops *ops = model->ops;
    Tensor own = model_piece(model, LAYOUT_GRADIENTS, unit, false);
    Tensor reduced =
        tensor_cols(model_unit(model, LAYOUT_GRADIENTS, unit), model->ranks.dp->rank * unit->piece, unit->piece);
    if (model->accumulate)
        ops->add(ops, own, reduced);
    else
        ops->copy(ops, own.data, reduced.data, (size_t)unit->piece * sizeof(float));
}

static void start_reduce(Model *model, const LayoutUnit *units, int count) {
    int slot = model_slot(units);
    for (int i = 0; i < count; i++)
        model->slot[slot].reducing[i] = reduce_unit(model, &units[i]);
    model->slot[slot].gradients = (int)(units - model->layout.units);
}

static void finish_reduce(Model *model, int slot) {
    if (model->slot[slot].gradients < 0) return;
    const LayoutUnit *units = &model->layout.units[model->slot[slot].gradients];
    int count = 1;
    if (units->layer >= 0) layer_units(model, units->layer, &count);
    for (int i = 0; i < count; i++) {
        comm_wait(model->ranks.dp, model->slot[slot].reducing[i]);
        if (model->layout.zero >= 2) take_piece(model, &units[i]);
    }
    model->slot[slot].gradients = -1;
}

bool seam_in_micro_step(const Model *model) {
    return !alone(model) && (model->last || model->layout.zero >= 2);
}

static bool mixed_layers(const Model *model) {
    int sparse = model_sparse_layers(&model->layout.request.config);
    return sparse > 0 && sparse < model->layout.request.config.layers;
}

void seam_layer_gradients(Model *model, int layer) {
    if (alone(model) || model->layout.zero < 2) return;
    finish_reduce(model, layer % 2);
    // Gaps between parameters count in the norm: another kind of layer may have left something there.
    int count;
    const LayoutUnit *units = layer_units(model, layer, &count);
    for (int i = 0; i < count && mixed_layers(model); i++)
        model->ops->zero(model->ops, model_unit(model, LAYOUT_GRADIENTS, &units[i]));
}

void seam_layer_done(Model *model, int layer) {
    if (!seam_in_micro_step(model)) return;
    int count;
    const LayoutUnit *units = layer_units(model, layer, &count);
    start_reduce(model, units, count);
}

void seam_edge_gradients(Model *model, ParamId id) {
    if (alone(model) || model->layout.zero < 2) return;
    const LayoutUnit *unit = unit_of(model, id, -1);
    finish_reduce(model, model_slot(unit));
    model->ops->zero(model->ops, model_unit(model, LAYOUT_GRADIENTS, unit));
}

void seam_edge_done(Model *model, ParamId id) {
    if (!seam_in_micro_step(model)) return;
    start_reduce(model, unit_of(model, id, -1), 1);
}

// Nothing is taken over from the micro-step before, so that a recorded one is right whenever it runs.
void seam_micro_step_begin(Model *model) {
    for (int i = 0; i < SEAM_SLOTS; i++)
        model->slot[i].gradients = model->slot[i].weights = -1;
}

void seam_micro_step_end(Model *model) {
    if (!seam_in_micro_step(model)) return;
    const LayoutUnit *vectors = &model->layout.units[model->layout.unit_count - 1];
    assert(vectors->vectors);
    start_reduce(model, vectors, 1);
    for (int i = 0; i < SEAM_SLOTS; i++) // operations run in order: that of the vectors is the last
        finish_reduce(model, (SEAM_SLOTS - 1 + i) % SEAM_SLOTS);
}

// ---- the optimizer step ---------------------------------------------------------------------------------------------

void seam_step_sums(Model *model) {
    if (alone(model)) return;
    Comm *dp = model->ranks.dp;
    Tensor sums = tensor_cols(model_const(model, CONST_SCALARS), SCALAR_LOSS_SUM, 2); // and SCALAR_AUX_SUM
    comm_wait(dp, comm_all_reduce(dp, sums));
    Tensor counts = model_const(model, CONST_EXPERT_TOTAL);
    if (tensor_present(counts)) comm_wait(dp, comm_all_reduce(dp, tensor_reshape(counts, 1, tensor_count(counts))));
}

void seam_gradient_norm(Model *model) {
    Ops *ops = model->ops;
    Tensor norm = model_scalar(model, SCALAR_NORM);
    if (model->layout.zero == 0) {
        ops->norm_f32(ops, norm, model_gradients(model));
        return;
    }
    // Every rank's norms of its pieces, in the order of the ranks; their norm is the norm of all.
    Comm *dp = model->ranks.dp;
    Tensor all = model_const(model, CONST_NORMS), own = tensor_rows(all, dp ? dp->rank : 0, 1);
    for (int i = 0; i < model->layout.unit_count; i++)
        ops->norm_f32(ops, tensor_cols(own, i, 1),
                      model_piece(model, LAYOUT_GRADIENTS, &model->layout.units[i], false));
    if (dp) comm_wait(dp, comm_all_gather(dp, tensor_reshape(all, 1, tensor_count(all)), own));
    ops->norm_f32(ops, norm, tensor_reshape(all, 1, tensor_count(all)));
}

void seam_new_weights(Model *model) {
    if (alone(model) || model->layout.zero == 0) return;
    CommTicket ticket = 0;
    for (int i = 0; i < model->layout.unit_count; i++) {
        const LayoutUnit *unit = &model->layout.units[i];
        if (model->layout.zero < 3 || unit->vectors) ticket = gather_unit(model, unit);
    }
    comm_wait(model->ranks.dp, ticket);
    for (int i = 0; i < SEAM_SLOTS; i++)
        model->slot[i].weights = -1; // what was gathered before is of the step before
}
