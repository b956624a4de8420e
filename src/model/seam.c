#include "model/seam.h"
#include "model/fp8.h"

#include "model/trace.h"

#include <assert.h>

static bool alone(const Model *model) { // as far as gradients go
    return !model->ranks.dp && !model->ranks.expert_dp;
}

// The ranks that share a unit; NULL: this one alone.
static Comm *unit_group(const Model *model, const LayoutUnit *unit) {
    return unit->expert ? model->ranks.expert_dp : model->ranks.dp;
}

static int tensor_ranks(const Model *model) { // also of a model that is only recorded
    return model->layout.request.mesh.tp;
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

// One that nobody shares is whole where it is (model_unit).
static CommTicket gather_unit(Model *model, const LayoutUnit *unit) {
    if (!unit_group(model, unit)) return 0;
    LayoutKind kind = fp8_travels(model, unit) ? LAYOUT_FP8 : LAYOUT_WEIGHTS;
    return comm_all_gather(unit_group(model, unit), model_unit(model, kind, unit),
                           model_piece(model, kind, unit, false));
}

static void start_layer_gather(Model *model, int layer) {
    int count, slot = layer % 2;
    if (model->slot[slot].weights == layer) return;
    const LayoutUnit *units = layer_units(model, layer, &count);
    for (int i = 0; i < count; i++)
        model->slot[slot].gathering[i] = gather_unit(model, &units[i]);
    model->slot[slot].weights = layer;
}

void seam_layer_weights(Model *model, int layer) {
    if (alone(model) || model->layout.zero < 3) return;
    int count;
    const LayoutUnit *units = layer_units(model, layer, &count);
    start_layer_gather(model, layer);
    for (int i = 0; i < count; i++)
        comm_wait(unit_group(model, &units[i]), model->slot[layer % 2].gathering[i]);
    const LayoutChunk *chunk = layout_chunk(&model->layout, layer);
    int next = model->pass == STEP_FORWARD ? layer + 1 : layer - 1;
    if (next >= chunk->first && next < chunk->first + chunk->count) start_layer_gather(model, next);
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

// What travels of a unit's gradients: the floats themselves, or a copy in bf16.
static Tensor narrow_unit(Model *model, const LayoutUnit *unit, Tensor whole) {
    Tensor wire = model_wire(model, unit);
    if (!tensor_present(wire)) return whole;
    model->ops->convert(model->ops, wire, whole, false);
    return wire;
}

// Back from there: under ZeRO, this rank's piece.
static void widen_unit(Model *model, const LayoutUnit *unit) {
    Tensor wire = model_wire(model, unit), whole = model_unit(model, LAYOUT_GRADIENTS, unit);
    if (!tensor_present(wire)) return;
    if (model->layout.zero) {
        wire = tensor_cols(wire, unit->rank * unit->piece, unit->piece);
        whole = tensor_cols(whole, unit->rank * unit->piece, unit->piece);
    }
    model->ops->convert(model->ops, whole, wire, false);
}

static CommTicket reduce_unit(Model *model, const LayoutUnit *unit) {
    Comm *group = unit_group(model, unit);
    Tensor whole = model_unit(model, LAYOUT_GRADIENTS, unit);
    if (!group) return 0;
    whole = narrow_unit(model, unit, whole);
    if (model->layout.zero == 0) return comm_all_reduce(group, whole);
    return comm_reduce_scatter(group, tensor_cols(whole, unit->rank * unit->piece, unit->piece), whole);
}

// ZeRO 2 and 3: what was reduced joins the rank's own gradients.
static void take_piece(Model *model, const LayoutUnit *unit) {
    Ops *ops = model->ops;
    Tensor own = model_piece(model, LAYOUT_GRADIENTS, unit, false);
    Tensor reduced = tensor_cols(model_unit(model, LAYOUT_GRADIENTS, unit), unit->rank * unit->piece, unit->piece);
    if (model->accumulate)
        ops->add(ops, own, reduced);
    else
        ops->copy(ops, own.data, reduced.data, (size_t)unit->piece * sizeof(float));
}

static void finish_reduce(Model *model, int slot) {
    if (model->slot[slot].gradients < 0) return;
    const LayoutUnit *units = &model->layout.units[model->slot[slot].gradients];
    int count = 1;
    if (units->layer >= 0) layer_units(model, units->layer, &count);
    for (int i = 0; i < count; i++) {
        if (model->slot[slot].reducing[i]) comm_wait(unit_group(model, &units[i]), model->slot[slot].reducing[i]);
        widen_unit(model, &units[i]);
        if (model->layout.zero >= 2) take_piece(model, &units[i]);
    }
    model->slot[slot].gradients = -1;
}

static void start_reduce(Model *model, const LayoutUnit *units, int count) {
    int slot = model_slot(units);
    if (model->layout.wire_offset >= 0) finish_reduce(model, slot); // its place for bf16 is needed again
    for (int i = 0; i < count; i++)
        model->slot[slot].reducing[i] = reduce_unit(model, &units[i]);
    model->slot[slot].gradients = (int)(units - model->layout.units);
}

bool seam_ends_gradients(const Model *model) {
    return model->last || model->layout.zero >= 2;
}

bool seam_in_micro_step(const Model *model) {
    return model->ranks.tp || model->ranks.cp || model->ranks.dispatch || (!alone(model) && seam_ends_gradients(model));
}

bool seam_in_graph(const Model *model) {
    const ModelRanks *ranks = &model->ranks;
    return (!ranks->dp || ranks->dp->in_graph) && (!ranks->tp || ranks->tp->in_graph) &&
           (!ranks->cp || ranks->cp->in_graph) && (!ranks->dispatch || ranks->dispatch->in_graph);
}

// ---- gradients that tensor-parallel ranks have parts of -------------------------------------------------------------

static CommTicket sum_over(Comm *comm, Tensor gradient) {
    return comm_all_reduce(comm, tensor_reshape(gradient, 1, tensor_count(gradient)));
}

// Of what every rank holds: the router, which saw this rank's tokens, and KV heads, which saw its queries.
// The operations of a rank run in their order: nothing need wait for these, but a copy in bf16, which is made at once.
static void sum_layer_copies(Model *model, int layer) {
    const ModelRanks *ranks = &model->ranks;
    if (!ranks->tp || !seam_ends_gradients(model)) return;
    if (model->layout.request.config.sparse[layer]) // experts have a group of their own
        model->copies = sum_over(ranks->tp, model_grad(model, PARAM_ROUTER, layer));
    if (ranks->kv) {
        Tensor qkv = model_grad(model, PARAM_QKV, layer);
        int64_t kv_rows = 2 * (int64_t)model->layout.request.config.head_dim;
        model->copies = sum_over(ranks->kv, tensor_rows(qkv, qkv.rows - kv_rows, kv_rows));
    }
    if (model->layout.wire_offset >= 0) comm_wait(ranks->tp, model->copies);
}

static bool mixed_layers(const Model *model) {
    int sparse = model_sparse_layers(&model->layout.request.config);
    return sparse > 0 && sparse < model->layout.request.config.layers;
}

void seam_layer_gradients(Model *model, int layer) {
    trace_backward(model);
    if (alone(model) || model->layout.zero < 2) return;
    finish_reduce(model, layer % 2);
    // Gaps between parameters count in the norm: another kind of layer may have left something there.
    int count;
    const LayoutUnit *units = layer_units(model, layer, &count);
    for (int i = 0; i < count && mixed_layers(model); i++)
        model->ops->zero(model->ops, model_unit(model, LAYOUT_GRADIENTS, &units[i]));
}

void seam_layer_done(Model *model, int layer) {
    trace_layer(model, layer);
    sum_layer_copies(model, layer);
    if (alone(model) || !seam_ends_gradients(model)) return;
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
    if (alone(model) || !seam_ends_gradients(model)) return;
    start_reduce(model, unit_of(model, id, -1), 1);
}

// Nothing is taken over from the micro-step before, so that a recorded one is right whenever it runs.
void seam_micro_step_begin(Model *model) {
    for (int i = 0; i < SEAM_SLOTS; i++)
        model->slot[i].gradients = model->slot[i].weights = -1;
    model->copies = 0;
}

void seam_pass_end(Model *model) {
    if (model->copies) comm_wait(model->ranks.tp, model->copies); // in a graph nothing is left behind
    model->copies = 0;
    if (alone(model) || !seam_ends_gradients(model)) return;
    for (int i = 0; i < SEAM_SLOTS - 1; i++)
        finish_reduce(model, i);
}

void seam_micro_step_end(Model *model) {
    trace_mark(model, "the backward pass ends", -1);
    if (!seam_ends_gradients(model)) return;
    const LayoutUnit *vectors = &model->layout.units[model->layout.unit_count - 1];
    assert(vectors->vectors);
    if (model->ranks.tp) // norms saw this rank's tokens, QK-norms its heads
        comm_wait(model->ranks.tp, comm_all_reduce(model->ranks.tp, model_unit(model, LAYOUT_GRADIENTS, vectors)));
    if (alone(model)) return;
    start_reduce(model, vectors, 1);
    for (int i = 0; i < SEAM_SLOTS; i++) // operations run in order: that of the vectors is the last
        finish_reduce(model, (SEAM_SLOTS - 1 + i) % SEAM_SLOTS);
}

// ---- the optimizer step ---------------------------------------------------------------------------------------------

void seam_step_sums(Model *model) {
    Comm *dp = model->ranks.dp, *stage = model->ranks.stage;
    Tensor counts = model_const(model, CONST_EXPERT_TOTAL);
    seam_rows_needed(model);
    if (stage && tensor_present(counts)) sum_over(stage, counts);
    Tensor sums = tensor_cols(model_const(model, CONST_SCALARS), SCALAR_LOSS_SUM, 2); // and SCALAR_AUX_SUM
    if (dp) comm_wait(dp, comm_all_reduce(dp, sums));
    seam_stage_sums(model, sums, counts);
}

// Part of a parameter's gradient, elements [first, first + count), as far as it is in this rank's piece.
static Tensor gradient_part(const Model *model, const LayoutParam *param, int64_t first, int64_t count) {
    const Layout *layout = &model->layout;
    const LayoutUnit *unit = &layout->units[param->unit];
    int64_t begin = param->offset - unit->offset + first, end = begin + count, piece = 0;
    if (layout->zero) {
        piece = unit->rank * unit->piece;
        begin = begin > piece ? begin : piece;
        end = end < piece + unit->piece ? end : piece + unit->piece;
    }
    if (end <= begin) return TENSOR_NONE;
    Tensor from =
        layout->zero ? model_piece(model, LAYOUT_GRADIENTS, unit, false) : model_unit(model, LAYOUT_GRADIENTS, unit);
    return tensor_cols(from, begin - piece, end - begin);
}

// Every parameter counts once: on the rank that writes it into checkpoints, which is the first of those that hold it,
// and under ZeRO each its own piece.
static void norms_of_parameters(Model *model, Tensor own) {
    const Layout *layout = &model->layout;
    const ModelConfig *c = &layout->request.config;
    bool shares_kv = layout->request.mesh.tp > c->kv_heads; // with other ranks: the last rows of QKV
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        if (!layout->zero && layout->units[param->unit].rank) continue;
        int64_t kv = param->id == PARAM_QKV && shares_kv ? 2 * (int64_t)c->head_dim * c->hidden : 0;
        Tensor part[2] = {gradient_part(model, param, 0, param->count - kv),
                          gradient_part(model, param, param->count - kv, kv)};
        for (int k = 0; k < 2; k++)
            if (tensor_present(part[k]) && layout_slice_owner(layout, param, k))
                model->ops->norm_f32(model->ops, tensor_cols(own, 2 * i + k, 1), part[k]);
    }
}

static void norms_of_units(Model *model, Tensor own) {
    for (int i = 0; i < model->layout.unit_count; i++)
        model->ops->norm_f32(model->ops, tensor_cols(own, i, 1),
                             model_piece(model, LAYOUT_GRADIENTS, &model->layout.units[i], false));
}

void seam_gradient_norm(Model *model) {
    Ops *ops = model->ops;
    Tensor norm = model_scalar(model, SCALAR_NORM), parts = model_const(model, CONST_NORMS);
    Tensor all = model_const(model, CONST_RANK_NORMS);
    if (!tensor_present(all)) {
        ops->norm_f32(ops, norm, model_gradients(model));
        return;
    }
    ops->zero(ops, parts);
    if (parts.cols == model->layout.unit_count)
        norms_of_units(model, parts);
    else
        norms_of_parameters(model, parts);
    // The norms of all ranks in their order; their norm is that of all gradients.
    Comm *everyone = model->ranks.all;
    Tensor own = tensor_cols(all, everyone ? everyone->rank : 0, 1);
    ops->norm_f32(ops, own, parts);
    if (everyone) comm_wait(everyone, comm_all_gather(everyone, all, own));
    ops->norm_f32(ops, norm, all);
}

static void gather_weights(Model *model) {
    CommTicket dense = 0, experts = 0; // operations of a group run in order: its last ticket stands for all
    for (int i = 0; i < model->layout.unit_count; i++) {
        const LayoutUnit *unit = &model->layout.units[i];
        if (!unit_group(model, unit)) continue;
        if (model->layout.zero < 3 || unit->vectors) *(unit->expert ? &experts : &dense) = gather_unit(model, unit);
    }
    if (dense) comm_wait(model->ranks.dp, dense);
    if (experts) comm_wait(model->ranks.expert_dp, experts);
    for (int i = 0; i < SEAM_SLOTS; i++)
        model->slot[i].weights = -1; // what was gathered before is of the step before
}

void seam_new_weights(Model *model) {
    if (!alone(model) && model->layout.zero > 0) gather_weights(model);
}

void seam_outer_weights(Model *model) {
    if (alone(model)) return;
    gather_weights(model);
    for (int i = 0; i < model->layout.unit_count && model->layout.zero == 0; i++) { // else each rank has its own alone
        const LayoutUnit *unit = &model->layout.units[i];
        Comm *group = unit_group(model, unit);
        Tensor piece = model_piece(model, LAYOUT_MASTER, unit, false);
        if (!group || !tensor_present(piece)) continue;
        char *start = (char *)piece.data - (size_t)(unit->rank * unit->piece) * dtype_size(piece.dtype);
        comm_wait(group, comm_all_gather(group, tensor_make(start, piece.dtype, 1, unit->count, piece.name), piece));
    }
}

// ---- tensor parallelism ---------------------------------------------------------------------------------------------

static Tensor gather_tokens(Model *model, ActId place, Tensor local) {
    if (tensor_ranks(model) == 1) return local;
    Tensor all = model_act(model, place, -1);
    Comm *tp = model->ranks.tp;
    if (tp) comm_wait(tp, comm_all_gather(tp, flat_view(all), flat_view(local)));
    return all;
}

Tensor seam_all_tokens(Model *model, Tensor local) {
    return gather_tokens(model, ACT_WIDE, local);
}

Tensor seam_all_gradients(Model *model, Tensor local) {
    return gather_tokens(model, ACT_DWIDE, local);
}

Tensor seam_gradient_of_all_tokens(Model *model, Tensor local) {
    return tensor_ranks(model) == 1 ? local : model_act(model, ACT_DWIDE, -1);
}

void seam_sum_tokens(Model *model, Tensor local, Tensor all) {
    Comm *tp = model->ranks.tp;
    if (tp) comm_wait(tp, comm_reduce_scatter(tp, flat_view(local), flat_view(all)));
}

void seam_project(Model *model, ParamId id, int layer, Tensor out, Tensor in, Tensor residual) {
    if (tensor_ranks(model) == 1) {
        fp8_linear_forward(model, id, layer, out, in, residual);
        return;
    }
    Tensor part = model_act(model, ACT_WIDE, -1);
    fp8_linear_forward(model, id, layer, part, in, TENSOR_NONE);
    seam_sum_tokens(model, out, part);
    model->ops->add(model->ops, out, residual); // once, by the rank whose tokens these are
}

// First row of the vocabulary on this rank.
static int64_t first_word(const Model *model) {
    return model->layout.place.tp * layout_vocab_rows(&model->layout.request);
}

void seam_embed(Model *model, Tensor out, Tensor ids, Tensor weight) {
    Tensor all = tensor_ranks(model) == 1 ? out : model_act(model, ACT_WIDE, -1);
    model->ops->embedding_forward(model->ops, all, ids, weight, first_word(model));
    seam_sum_tokens(model, out, all);
}

void seam_embed_backward(Model *model, Tensor dweight, Tensor dout, Tensor ids) {
    model->ops->embedding_backward(model->ops, dweight, seam_all_gradients(model, dout), ids, first_word(model));
}

void seam_cross_entropy(Model *model, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale) {
    Ops *ops = model->ops;
    Tensor codes_scale = model_scalar(model, SCALAR_DLOGITS_SCALE);
    if (tensor_ranks(model) == 1 && tensor_present(codes)) {
        ops->cross_entropy_fp8(ops, losses, codes, logits, targets, scale, codes_scale);
        return;
    }
    if (tensor_ranks(model) == 1) {
        ops->cross_entropy(ops, losses, logits, targets, scale);
        return;
    }
    int64_t first = first_word(model), vocab = model->layout.request.config.vocab, rows = logits.rows;
    Tensor stats = tensor_rows(model_act(model, ACT_SPLIT_STATS, -1), 0, tensor_ranks(model) * rows);
    Tensor own = tensor_rows(stats, model->layout.place.tp * rows, rows);
    ops->cross_entropy_stats(ops, own, logits, targets, first, vocab);
    Comm *tp = model->ranks.tp;
    if (tp) comm_wait(tp, comm_all_gather(tp, flat_view(stats), flat_view(own)));
    ops->cross_entropy_apply(ops, losses, logits, targets, stats, scale, first, vocab);
    if (tensor_present(codes)) ops->quantize(ops, codes, TENSOR_NONE, TENSOR_NONE, logits, codes_scale);
}

Tensor seam_balance_sums(Model *model, Tensor counts, Tensor prob_sum) {
    Tensor all = model_act(model, ACT_ALL_COUNTS, -1);
    if (!tensor_present(all)) return counts;
    all = tensor_rows(all, 0, counts.rows);
    Comm *sharing = model->ranks.micro_batch;
    if (!sharing) return all; // a model that is only recorded
    model->ops->copy(model->ops, all.data, counts.data, (size_t)tensor_count(counts) * sizeof(int32_t));
    comm_all_reduce(sharing, flat_view(all));
    comm_wait(sharing, comm_all_reduce(sharing, flat_view(prob_sum)));
    return all;
}
