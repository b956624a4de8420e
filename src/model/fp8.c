#include "model/fp8.h"

#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

// Room that a scale leaves above the maximum of the step before. e5m2 has 30 binades of normal numbers, so that room
// for gradients costs no digits, and a step's may be many times the ones before.
#define HEADROOM          2.0f
#define GRADIENT_HEADROOM 64.0f

// ---- views ----------------------------------------------------------------------------------------------------------

static Tensor slot_of(const Model *model, ConstId id, Fp8Slot slot, int layer) {
    return tensor_cols(tensor_rows(model_const(model, id), slot, 1), layer < 0 ? 0 : (int64_t)layer * FP8_SCALE_STEP,
                       1);
}

Tensor fp8_scale(const Model *model, Fp8Slot slot, int layer) {
    return slot_of(model, CONST_FP8_SCALE, slot, layer);
}

Tensor fp8_amax(const Model *model, Fp8Slot slot, int layer) {
    return slot_of(model, CONST_FP8_AMAX, slot, layer);
}

static Fp8Slot weight_slot(ParamId id) {
    switch (id) {
    case PARAM_EMBEDDING:
    case PARAM_HEAD: return FP8_W_HEAD;
    case PARAM_QKV: return FP8_W_QKV;
    case PARAM_O: return FP8_W_O;
    case PARAM_GATE_UP:
    case PARAM_EXPERT_GATE_UP: return FP8_W_GATE_UP;
    default: return FP8_W_DOWN;
    }
}

static Fp8Slot input_slot(ParamId id) {
    return id == PARAM_QKV ? FP8_ATTN_IN : id == PARAM_O ? FP8_ATTN_OUT : id == PARAM_GATE_UP ? FP8_MLP_IN : FP8_HIDDEN;
}

// Codes as a weight, or as its transpose; of experts a pile of them.
static Tensor weight_codes(void *data, const LayoutParam *param, bool cols) {
    int64_t width = param->shape[param->dims - (cols ? 2 : 1)];
    return tensor_make(data, DTYPE_E4M3, param->count / width, width, layout_param_name(param->id));
}

// The place of a weight's copy.
static Tensor weight_place(const Model *model, ParamId id, int layer, bool cols) {
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    int64_t offset = param ? (cols ? param->fp8_cols : param->fp8_rows) : -1;
    if (offset < 0) return TENSOR_NONE;
    return weight_codes((char *)model->memory[LAYOUT_FP8] + offset, param, cols);
}

// ZeRO 3: weights are here for a layer's passes only, and their copies for one product.
static bool rounds_gathered(const Model *model) {
    return model->layout.zero >= 3;
}

// Whether a weight's copies are made for the product that reads them.
static bool copy_passes(const Model *model, ParamId id) {
    bool expert = id == PARAM_EXPERT_GATE_UP || id == PARAM_EXPERT_DOWN;
    return rounds_gathered(model) || (expert && model->layout.fp8_passing);
}

bool fp8_travels(const Model *model, const LayoutUnit *unit) {
    return unit->fp8 >= 0 && !model->evaluating;
}

// A gathered weight as it came: codes, or bf16.
static Tensor gathered_weight(const Model *model, ParamId id, int layer) {
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    const LayoutUnit *unit = &model->layout.units[param->unit];
    if (!fp8_travels(model, unit)) return model_weight(model, id, layer);
    Tensor codes = tensor_cols(model_unit(model, LAYOUT_FP8, unit), param->offset - unit->offset, param->count);
    return weight_codes(codes.data, param, false);
}

// ZeRO 3 rounds a weight for every product that reads it, that of the LM head once a chunk of tokens and again for its
// gradients. The codes are those of a kept copy, each time: neither the weight nor its scale, which is that of the
// whole tensor on all ranks (round_weights), changes within a step.
Tensor fp8_weight(Model *model, ParamId id, int layer, bool cols) {
    Tensor copy = weight_place(model, id, layer, cols);
    if (!copy_passes(model, id)) return copy;
    Tensor weight = gathered_weight(model, id, layer);
    if (!cols && weight.dtype == DTYPE_E4M3) return weight;
    model->ops->quantize(model->ops, cols ? TENSOR_NONE : copy, cols ? copy : TENSOR_NONE, TENSOR_NONE, weight,
                         fp8_scale(model, weight_slot(id), layer));
    return copy;
}

// What a rank always has of a weight: its part of its piece of LAYOUT_WEIGHTS or LAYOUT_FP8.
static Tensor own_part(const Model *model, LayoutKind kind, ParamId id, int layer) {
    enum { ROW = 128 }; // a kernel works on many rows at once; pieces are multiples of it, and so are FP8's weights
    const LayoutParam *param = layout_param(&model->layout, id, layer);
    const LayoutUnit *unit = &model->layout.units[param->unit];
    int64_t first, count;
    layout_owned(&model->layout, param, &first, &count);
    if (!count) return TENSOR_NONE;
    int64_t at = param->offset + first - unit->offset - unit->rank * unit->piece;
    Tensor own = tensor_cols(model_piece(model, kind, unit, false), at, count);
    assert(count % ROW == 0);
    return tensor_make(own.data, own.dtype, count / ROW, ROW, layout_param_name(id));
}

// The place of a copy under the shape that this use gives it.
static Tensor copy_place(const Model *model, ActId id, int64_t rows, int64_t cols) {
    return tensor_reshape(model_act(model, id, -1), rows, cols);
}

bool fp8_uses(const Model *model, Fp8Use use) {
    return model->layout.fp8 & ~model->fp8_masked & use && !model->evaluating;
}

static Fp8Use forward_use(ParamId id) {
    return id == PARAM_QKV ? FP8_QKV_FORWARD : id == PARAM_O ? FP8_O_FORWARD : FP8_MLP;
}

// ---- forward --------------------------------------------------------------------------------------------------------

static void note_largest(Model *model, Fp8Slot slot, int layer, Tensor of) {
    model->ops->quantize(model->ops, TENSOR_NONE, TENSOR_NONE, fp8_amax(model, slot, layer), of,
                         fp8_scale(model, slot, layer));
}

// Evaluation is in bf16: what a step would round is looked at, where that is asked for.
static void note_input(Model *model, Fp8Slot slot, int layer, Tensor in) {
    if (model->fp8_noting) note_largest(model, slot, layer, in);
}

// Experts of this rank alone read the norm's own tokens, whatever tensor-parallel ranks there are.
static bool norm_rounds(const Model *model, ParamId product, int layer) {
    const LayoutRequest *request = &model->layout.request;
    if (product == PARAM_GATE_UP && request->config.sparse[layer])
        return fp8_uses(model, FP8_EXPERTS) && request->mesh.ep * request->mesh.etp == 1;
    return fp8_uses(model, forward_use(product)) && request->mesh.tp == 1;
}

void fp8_norm_forward(Model *model, ParamId product, int layer, Tensor normed, Tensor rstd, Tensor residual,
                      Tensor weight) {
    Ops *ops = model->ops;
    float eps = model->layout.request.config.norm_eps;
    Fp8Slot slot = input_slot(product);
    bool experts = product == PARAM_GATE_UP && model->layout.request.config.sparse[layer];
    ActId place = experts ? ACT_FP8_TOKENS : ACT_FP8_IN;
    if (norm_rounds(model, product, layer)) {
        ops->rmsnorm_fp8_forward(ops, normed, copy_place(model, place, normed.rows, normed.cols),
                                 fp8_amax(model, slot, layer), rstd, residual, weight, fp8_scale(model, slot, layer),
                                 eps);
        return;
    }
    ops->add_rmsnorm_forward(ops, normed, TENSOR_NONE, rstd, residual, TENSOR_NONE, weight, eps);
    note_input(model, slot, layer, normed);
}

// The rounded input of a product; norms and SwiGLU have made theirs already.
static Tensor input_rows(Model *model, ParamId id, int layer, Tensor in) {
    if (id == PARAM_DOWN) return model_act(model, ACT_FP8_HIDDEN, -1);
    Tensor rows = copy_place(model, ACT_FP8_IN, in.rows, in.cols);
    if (id != PARAM_O && norm_rounds(model, id, layer)) return rows;
    Fp8Slot slot = input_slot(id);
    model->ops->quantize(model->ops, rows, TENSOR_NONE, fp8_amax(model, slot, layer), in,
                         fp8_scale(model, slot, layer));
    return rows;
}

void fp8_linear_forward(Model *model, ParamId id, int layer, Tensor out, Tensor in, Tensor add) {
    Ops *ops = model->ops;
    if (!fp8_uses(model, forward_use(id))) {
        note_input(model, input_slot(id), layer, in);
        ops->linear_forward(ops, out, in, model_weight(model, id, layer), add);
        return;
    }
    ops->linear_fp8(ops, out, input_rows(model, id, layer, in), fp8_weight(model, id, layer, false),
                    fp8_scale(model, input_slot(id), layer), fp8_scale(model, weight_slot(id), layer), add, false);
}

void fp8_mlp_forward(Model *model, int layer, Tensor in) {
    Ops *ops = model->ops;
    Tensor hidden = model_act(model, ACT_FP8_HIDDEN, -1), gate_up8 = model_act(model, ACT_GATE_UP8, layer);
    Tensor gate_up = model_act(model, ACT_FP8_GATE_UP, -1);
    Tensor hidden_amax = fp8_amax(model, FP8_HIDDEN, layer), hidden_scale = fp8_scale(model, FP8_HIDDEN, layer);
    Tensor gate_up_amax = fp8_amax(model, FP8_GATE_UP, layer), gate_up_scale = fp8_scale(model, FP8_GATE_UP, layer);
    if (!fp8_uses(model, FP8_MLP)) { // of evaluation, whose product is bf16's, the maxima
        fp8_linear_forward(model, PARAM_GATE_UP, layer, gate_up, in, TENSOR_NONE);
        ops->swiglu_fp8_forward(ops, hidden, hidden_amax, gate_up8, gate_up_amax, gate_up, hidden_scale, gate_up_scale,
                                TENSOR_NONE, TENSOR_NONE);
        return;
    }
    Tensor rows = input_rows(model, PARAM_GATE_UP, layer, in), weight = fp8_weight(model, PARAM_GATE_UP, layer, false);
    ops->linear_swiglu_fp8_forward(ops, hidden, hidden_amax, gate_up8, gate_up_amax, gate_up, rows, weight,
                                   fp8_scale(model, FP8_MLP_IN, layer), fp8_scale(model, FP8_W_GATE_UP, layer),
                                   hidden_scale, gate_up_scale);
}

// ---- backward -------------------------------------------------------------------------------------------------------

static void input_gradient(Model *model, ParamId id, int layer, Tensor din, Tensor dout, Fp8Slot slot) {
    model->ops->linear_fp8(model->ops, din, dout, fp8_weight(model, id, layer, true), fp8_scale(model, slot, layer),
                           fp8_scale(model, weight_slot(id), layer), TENSOR_NONE, false);
}

static void weight_gradient(Model *model, ParamId id, int layer, Tensor dweight, Tensor dout_cols, Fp8Slot slot,
                            Tensor in_cols, bool accumulate) {
    model->ops->linear_fp8(model->ops, dweight, dout_cols, in_cols, fp8_scale(model, slot, layer),
                           fp8_scale(model, input_slot(id), layer), TENSOR_NONE, accumulate);
}

// The transpose of what the forward pass has rounded: the same numbers, so there is no new maximum.
static Tensor input_cols(Model *model, ParamId id, int layer, ActId place, Tensor in) {
    Tensor cols = copy_place(model, place, in.cols, in.rows);
    model->ops->quantize(model->ops, TENSOR_NONE, cols, TENSOR_NONE, in, fp8_scale(model, input_slot(id), layer));
    return cols;
}

void fp8_linear_backward(Model *model, ParamId id, int layer, Tensor din, Tensor dweight, Tensor dout, Tensor in,
                         bool accumulate) {
    assert(id == PARAM_QKV || id == PARAM_O);
    Ops *ops = model->ops;
    bool qkv = id == PARAM_QKV;
    bool input = fp8_uses(model, qkv ? FP8_QKV_INPUT : FP8_O_INPUT);
    bool weight = fp8_uses(model, qkv ? FP8_QKV_WEIGHT : FP8_O_WEIGHT);
    Fp8Slot slot = qkv ? FP8_DQKV : FP8_DATTN;
    Tensor rows = input ? model_act(model, qkv ? ACT_FP8_DQKV : ACT_FP8_DOUT, -1) : TENSOR_NONE;
    Tensor cols = weight ? model_act(model, qkv ? ACT_FP8_DQKV_COLS : ACT_FP8_DOUT_COLS, -1) : TENSOR_NONE;
    if (input || weight)
        ops->quantize(ops, rows, cols, fp8_amax(model, slot, layer), dout, fp8_scale(model, slot, layer));
    if (input)
        input_gradient(model, id, layer, din, rows, slot);
    else
        ops->linear_backward_input(ops, din, dout, model_weight(model, id, layer));
    if (weight)
        weight_gradient(model, id, layer, dweight, cols, slot,
                        input_cols(model, id, layer, qkv ? ACT_FP8_QKV_COLS : ACT_FP8_ATTN_COLS, in), accumulate);
    else
        ops->linear_backward_weight(ops, dweight, dout, in, accumulate);
}

void fp8_mlp_backward(Model *model, int layer, Tensor din, Tensor dgate_up, Tensor ddown, Tensor dout, Tensor in,
                      Tensor dhidden, bool accumulate) {
    Ops *ops = model->ops;
    Tensor rows = model_act(model, ACT_FP8_DOUT, -1), cols = model_act(model, ACT_FP8_DOUT_COLS, -1);
    Tensor wide_rows = model_act(model, ACT_FP8_DGATE_UP, -1), wide_cols = model_act(model, ACT_FP8_DGATE_UP_COLS, -1);
    Tensor hidden_cols = copy_place(model, ACT_FP8_MLP_COLS, dhidden.cols, dhidden.rows);
    ops->quantize(ops, rows, cols, fp8_amax(model, FP8_DMLP, layer), dout, fp8_scale(model, FP8_DMLP, layer));
    input_gradient(model, PARAM_DOWN, layer, dhidden, rows, FP8_DMLP);
    ops->swiglu_fp8_backward(ops, wide_rows, wide_cols, fp8_amax(model, FP8_DGATE_UP, layer), hidden_cols, TENSOR_NONE,
                             model_act(model, ACT_GATE_UP8, layer), dhidden, fp8_scale(model, FP8_DGATE_UP, layer),
                             fp8_scale(model, FP8_HIDDEN, layer), fp8_scale(model, FP8_GATE_UP, layer), TENSOR_NONE,
                             TENSOR_NONE);
    weight_gradient(model, PARAM_DOWN, layer, ddown, cols, FP8_DMLP, hidden_cols, accumulate);
    input_gradient(model, PARAM_GATE_UP, layer, din, wide_rows, FP8_DGATE_UP);
    weight_gradient(model, PARAM_GATE_UP, layer, dgate_up, wide_cols, FP8_DGATE_UP,
                    input_cols(model, PARAM_GATE_UP, layer, ACT_FP8_MLP_COLS, in), accumulate);
}

// ---- LM head --------------------------------------------------------------------------------------------------------

Fp8HeadChunk fp8_head_chunk(const Model *model, Tensor in, Tensor logits) {
    bool gradients = fp8_uses(model, FP8_HEAD_GRADIENTS);
    Fp8HeadChunk chunk = {.weight = layout_head(&model->layout), .in = in, .logits = logits};
    if (fp8_uses(model, FP8_HEAD_FORWARD)) chunk.in_rows = copy_place(model, ACT_FP8_HEAD_IN, in.rows, in.cols);
    if (gradients) chunk.in_cols = copy_place(model, ACT_FP8_HEAD_COLS, in.cols, in.rows);
    if (gradients) chunk.dlogits = copy_place(model, ACT_FP8_DLOGITS, logits.rows, logits.cols);
    return chunk;
}

void fp8_head_forward(Model *model, const Fp8HeadChunk *chunk) {
    Ops *ops = model->ops;
    if (tensor_present(chunk->in_rows) || tensor_present(chunk->in_cols))
        ops->quantize(ops, chunk->in_rows, chunk->in_cols, fp8_amax(model, FP8_HEAD_IN, -1), chunk->in,
                      fp8_scale(model, FP8_HEAD_IN, -1));
    note_input(model, FP8_HEAD_IN, -1, chunk->in);
    if (tensor_present(chunk->in_rows))
        ops->linear_fp8(ops, chunk->logits, chunk->in_rows, fp8_weight(model, chunk->weight, -1, false),
                        fp8_scale(model, FP8_HEAD_IN, -1), fp8_scale(model, FP8_W_HEAD, -1), TENSOR_NONE, false);
    else
        ops->linear_forward(ops, chunk->logits, chunk->in, model_weight(model, chunk->weight, -1), TENSOR_NONE);
}

void fp8_head_backward(Model *model, const Fp8HeadChunk *chunk, Tensor din, Tensor dweight, bool accumulate) {
    Ops *ops = model->ops;
    if (!tensor_present(chunk->dlogits)) {
        ops->linear_backward_input(ops, din, chunk->logits, model_weight(model, chunk->weight, -1));
        ops->linear_backward_weight(ops, dweight, chunk->logits, chunk->in, accumulate);
        return;
    }
    Tensor dlogits = chunk->dlogits, scale = model_scalar(model, SCALAR_DLOGITS_SCALE);
    Tensor cols = tensor_make(chunk->logits.data, dlogits.dtype, dlogits.cols, dlogits.rows, dlogits.name);
    ops->linear_fp8(ops, din, dlogits, fp8_weight(model, chunk->weight, -1, true), scale,
                    fp8_scale(model, FP8_W_HEAD, -1), TENSOR_NONE, false);
    ops->quantize(ops, TENSOR_NONE, cols, TENSOR_NONE, dlogits, scale);
    ops->linear_fp8(ops, dweight, cols, chunk->in_cols, scale, fp8_scale(model, FP8_HEAD_IN, -1), TENSOR_NONE,
                    accumulate);
}

float fp8_dlogits_scale(float most) {
    return most > 0 ? ldexpf(1, -ilogbf(E5M2_MAX / most)) : 1;
}

// ---- around a step --------------------------------------------------------------------------------------------------

// Gradients carry 1 / targets; e5m2 has room for eight orders of magnitude around that.
static void first_scales(Model *model) {
    Tensor scales = model_const(model, CONST_FP8_SCALE);
    float *values = xmalloc((size_t)tensor_count(scales) * sizeof(float));
    float gradients = ldexpf(1, -ilogbf((float)(model->step_valid > 0 ? model->step_valid : 1)));
    for (int64_t i = 0; i < tensor_count(scales); i++) {
        int64_t slot = i / scales.cols;
        values[i] = slot >= FP8_FIRST_WEIGHT ? 1 : slot >= FP8_FIRST_GRADIENT ? gradients : FP8_FIRST_SCALE;
    }
    model->ops->upload(model->ops, scales.data, values, (size_t)tensor_count(scales) * sizeof(float));
    free(values);
    model->fp8_scaled = true;
}

// A rank may have a part of the weights or of the tokens.
static void share_amax(Model *model, Tensor amax) {
    Comm *all = model->ranks.all;
    if (all) comm_wait(all, comm_all_reduce_max(all, tensor_reshape(amax, 1, tensor_count(amax))));
}

static void set_scales(Model *model, Fp8Slot first, Fp8Slot end, float most) {
    Tensor scale = tensor_rows(model_const(model, CONST_FP8_SCALE), first, end - first);
    Tensor amax = tensor_rows(model_const(model, CONST_FP8_AMAX), first, end - first);
    model->ops->quantize_scales(model->ops, scale, amax, most);
}

// Calls for every weight of this rank that products read in FP8.
static void each_weight(Model *model, void (*call)(Model *, ParamId, int layer)) {
    for (int i = 0; i < model->layout.param_count; i++) {
        const LayoutParam *param = &model->layout.params[i];
        if (param->fp8_rows >= 0 || param->fp8_cols >= 0) call(model, param->id, param->layer);
    }
}

static void note_weight(Model *model, ParamId id, int layer) {
    Tensor own = rounds_gathered(model) ? own_part(model, LAYOUT_WEIGHTS, id, layer) : model_weight(model, id, layer);
    if (tensor_present(own)) note_largest(model, weight_slot(id), layer, own);
}

// What is kept in FP8 of a weight: its copies, or this rank's part of what travels.
static void round_weight(Model *model, ParamId id, int layer) {
    Tensor rows = weight_place(model, id, layer, false), cols = weight_place(model, id, layer, true);
    Tensor weight = model_weight(model, id, layer);
    if (rounds_gathered(model)) {
        if (model->layout.units[layout_param(&model->layout, id, layer)->unit].fp8 < 0) return;
        weight = own_part(model, LAYOUT_WEIGHTS, id, layer);
        rows = own_part(model, LAYOUT_FP8, id, layer);
        cols = TENSOR_NONE;
    } else if (copy_passes(model, id)) {
        return;
    }
    if (tensor_present(weight))
        model->ops->quantize(model->ops, rows, cols, TENSOR_NONE, weight, fp8_scale(model, weight_slot(id), layer));
}

// First the maxima, which give the scales, then the copies.
static void round_weights(Model *model) {
    each_weight(model, note_weight);
    share_amax(model, tensor_rows(model_const(model, CONST_FP8_AMAX), FP8_FIRST_WEIGHT, FP8_SLOTS - FP8_FIRST_WEIGHT));
    set_scales(model, FP8_FIRST_WEIGHT, FP8_SLOTS, E4M3_MAX);
    each_weight(model, round_weight);
    model->fp8_fresh = true;
}

void fp8_step(Model *model) {
    if (!model->layout.fp8) return;
    if (!model->fp8_scaled) first_scales(model);
    if (!model->fp8_fresh) round_weights(model);
}

void fp8_scales(Model *model) {
    if (!model->layout.fp8) return;
    Tensor before = model_const(model, CONST_FP8_BEFORE);
    if (tensor_present(before)) model->ops->convert(model->ops, before, model_const(model, CONST_FP8_SCALE), false);
    share_amax(model, tensor_rows(model_const(model, CONST_FP8_AMAX), 0, FP8_FIRST_WEIGHT));
    set_scales(model, FP8_ATTN_IN, FP8_FIRST_GRADIENT, E4M3_MAX / HEADROOM);
    set_scales(model, FP8_FIRST_GRADIENT, FP8_FIRST_WEIGHT, E5M2_MAX / GRADIENT_HEADROOM);
    model->fp8_fresh = false; // there are new weights
}

void fp8_scales_undo(Model *model) {
    Tensor before = model_const(model, CONST_FP8_BEFORE);
    if (tensor_present(before)) model->ops->convert(model->ops, model_const(model, CONST_FP8_SCALE), before, false);
}

void fp8_scales_noted(Model *model) {
    share_amax(model, tensor_rows(model_const(model, CONST_FP8_AMAX), 0, FP8_FIRST_GRADIENT));
    set_scales(model, FP8_ATTN_IN, FP8_FIRST_GRADIENT, E4M3_MAX / HEADROOM);
}

void fp8_forget(Model *model, bool scaled) {
    if (!model->layout.fp8) return;
    model->ops->zero(model->ops, model_const(model, CONST_FP8_AMAX));
    model->fp8_scaled = scaled;
    model->fp8_fresh = false; // the first scales are weights' as well
}
