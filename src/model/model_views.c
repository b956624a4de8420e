// Where the tensors of a model lie in its blocks.
#include "model/model.h"

static DType block_dtype(const Layout *layout, LayoutKind kind) {
    if (kind == LAYOUT_MASTER) return layout->dtype == DTYPE_F16 ? DTYPE_F32 : DTYPE_U16;
    return kind == LAYOUT_WEIGHTS ? layout->dtype : DTYPE_F32;
}

Tensor model_range(const Model *model, LayoutKind kind, int64_t first, int64_t count) {
    char *memory = model->memory[kind];
    DType dtype = block_dtype(&model->layout, kind);
    if (!memory) return TENSOR_NONE;
    return tensor_make(memory + (size_t)first * dtype_size(dtype), dtype, 1, count, layout_kind_name(kind));
}

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
    DType dtype = block_dtype(layout, kind);
    if (layout->zero < (weights ? ZERO_WEIGHTS : ZERO_GRADIENTS))
        return model_range(model, kind, unit->offset, unit->count);
    if (weights && unit->ranks == 1) return model_range(model, kind, unit->shard_offset, unit->count);
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
    bool sharded = layout->zero >= stage;
    int64_t at = sharded ? unit->shard_offset : unit->offset + unit->rank * unit->piece;
    if (second) at += sharded ? layout->shard_count : layout->element_count;
    return model_range(model, kind, at, unit->piece);
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
    return model_range(model, LAYOUT_GRADIENTS, 0, model->layout.element_count);
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
