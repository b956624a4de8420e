// The experts' products in FP8 (FP8_EXPERTS): forward, and both gradients.
//
// Tokens are rounded once, and their codes become expert rows: of the bf16 rows that products would read nothing
// exists. Backward they are rounded and gathered again, transposed, so that no rows are kept (unless experts are spread
// over ranks: their tokens have gone by then, and the rows are kept in FP8). A combine weight is part of SwiGLU, as in
// bf16.
#include "model/fp8.h"

#include <assert.h>

// Codes in memory that holds something in bf16 before or after; `part` of as many bytes.
static Tensor codes_in(Tensor place, DType dtype, int64_t rows, int64_t cols, int part, const char *name) {
    assert((part + 1) * rows * cols <= tensor_count(place) * (int64_t)dtype_size(place.dtype));
    return tensor_make((char *)place.data + part * rows * cols, dtype, rows, cols, name);
}

static Tensor rows_in(const Fp8Experts *e, DType dtype, const char *name) { // [R, hidden]
    return codes_in(e->wide, dtype, e->wide.rows, e->wide.cols, 0, name);
}

static Tensor cols_in(const Fp8Experts *e, DType dtype, int part, const char *name) { // [hidden, R]
    return codes_in(e->wide, dtype, e->wide.cols, e->wide.rows, part, name);
}

static Tensor tokens_place(const Model *model, DType dtype, Tensor tokens) {
    Tensor place = tensor_reshape(model_act(model, ACT_FP8_TOKENS, -1), tokens.rows, tokens.cols);
    place.dtype = dtype;
    place.name = tokens.name;
    return place;
}

static Tensor tokens_round(Model *model, const Fp8Experts *e, DType dtype, Tensor tokens, Fp8Slot slot, bool note) {
    Tensor codes = tokens_place(model, dtype, tokens);
    model->ops->quantize(model->ops, codes, TENSOR_NONE, note ? fp8_amax(model, slot, e->layer) : TENSOR_NONE, tokens,
                         fp8_scale(model, slot, e->layer));
    return codes;
}

static void multiply(Model *model, const Fp8Experts *e, Tensor out, Tensor a, Fp8Slot a_slot, Tensor b, Fp8Slot b_slot,
                     bool accumulate) {
    model->ops->grouped_linear_fp8(model->ops, out, a, b, fp8_scale(model, a_slot, e->layer),
                                   fp8_scale(model, b_slot, e->layer), e->rows->offsets, accumulate);
}

static Tensor hidden_in(const Fp8Experts *e) { // [R, moe_ffn]
    return codes_in(e->narrow, DTYPE_E4M3, e->narrow.rows, e->narrow.cols, 0, "hidden");
}

void fp8_experts_note(Model *model, const Fp8Experts *e) {
    model->ops->swiglu_fp8_forward(model->ops, hidden_in(e), fp8_amax(model, FP8_HIDDEN, e->layer),
                                   model_act(model, ACT_EXPERT_GATE_UP8, e->layer),
                                   fp8_amax(model, FP8_GATE_UP, e->layer), model_act(model, ACT_FP8_EXPERT_GATE_UP, -1),
                                   fp8_scale(model, FP8_HIDDEN, e->layer), fp8_scale(model, FP8_GATE_UP, e->layer),
                                   e->rows->row_weight, e->row_count);
}

// Hidden of the rows, which stand apart from it.
static Tensor rows_to_hidden(Model *model, const Fp8Experts *e, Tensor rows) {
    Tensor hidden = hidden_in(e);
    model->ops->grouped_swiglu_fp8_forward(
        model->ops, hidden, fp8_amax(model, FP8_HIDDEN, e->layer), model_act(model, ACT_EXPERT_GATE_UP8, e->layer),
        fp8_amax(model, FP8_GATE_UP, e->layer), model_act(model, ACT_FP8_EXPERT_GATE_UP, -1), rows,
        fp8_weight(model, PARAM_EXPERT_GATE_UP, e->layer, false), fp8_scale(model, FP8_MLP_IN, e->layer),
        fp8_scale(model, FP8_W_GATE_UP, e->layer), fp8_scale(model, FP8_HIDDEN, e->layer),
        fp8_scale(model, FP8_GATE_UP, e->layer), e->rows->row_weight, e->rows->offsets);
    return hidden;
}

void fp8_experts_forward(Model *model, const Fp8Experts *e, Tensor tokens) {
    Ops *ops = model->ops;
    bool spread = tensor_present(e->gathered); // else the norm has rounded them
    Tensor codes =
        spread ? tokens_round(model, e, DTYPE_E4M3, tokens, FP8_MLP_IN, true) : tokens_place(model, DTYPE_E4M3, tokens);
    Tensor rows = spread ? e->gathered : rows_in(e, DTYPE_E4M3, "expert rows");
    ops->moe_gather_fp8(ops, rows, TENSOR_NONE, codes, e->rows);
    Tensor hidden = rows_to_hidden(model, e, rows);
    if (model->pass == STEP_RECOMPUTE) return; // this is what the backward pass reads
    multiply(model, e, e->wide, hidden, FP8_HIDDEN, fp8_weight(model, PARAM_EXPERT_DOWN, e->layer, false), FP8_W_DOWN,
             false);
}

void fp8_experts_backward_hidden(Model *model, const Fp8Experts *e, Tensor dtokens, Tensor drow_weight) {
    Ops *ops = model->ops;
    Tensor codes = tokens_round(model, e, DTYPE_E5M2, dtokens, FP8_DMLP, true);
    Tensor rows = rows_in(e, DTYPE_E5M2, "expert row gradients"), cols = cols_in(e, DTYPE_E5M2, 1, rows.name);
    ops->moe_gather_fp8(ops, rows, cols, codes, e->rows);
    multiply(model, e, e->narrow, rows, FP8_DMLP, fp8_weight(model, PARAM_EXPERT_DOWN, e->layer, true), FP8_W_DOWN,
             false);
    ops->swiglu_fp8_backward(ops, model_act(model, ACT_FP8_EXPERT_DGATE_UP, -1),
                             model_act(model, ACT_FP8_EXPERT_DGATE_UP_COLS, -1),
                             fp8_amax(model, FP8_DGATE_UP, e->layer), model_act(model, ACT_FP8_HIDDEN_COLS, -1),
                             drow_weight, model_act(model, ACT_EXPERT_GATE_UP8, e->layer), e->narrow,
                             fp8_scale(model, FP8_DGATE_UP, e->layer), fp8_scale(model, FP8_HIDDEN, e->layer),
                             fp8_scale(model, FP8_GATE_UP, e->layer), e->rows->row_weight, e->row_count);
}

void fp8_experts_backward_rows(Model *model, const Fp8Experts *e, Tensor ddown, bool accumulate) {
    multiply(model, e, ddown, cols_in(e, DTYPE_E5M2, 1, "expert row gradients"), FP8_DMLP,
             model_act(model, ACT_FP8_HIDDEN_COLS, -1), FP8_HIDDEN, accumulate);
    multiply(model, e, e->wide, model_act(model, ACT_FP8_EXPERT_DGATE_UP, -1), FP8_DGATE_UP,
             fp8_weight(model, PARAM_EXPERT_GATE_UP, e->layer, true), FP8_W_GATE_UP, false);
}

void fp8_experts_gather_again(Model *model, const Fp8Experts *e, Tensor tokens) {
    Tensor codes = tokens_round(model, e, DTYPE_E4M3, tokens, FP8_MLP_IN, false);
    model->ops->moe_gather_fp8(model->ops, e->gathered, TENSOR_NONE, codes, e->rows);
}

void fp8_experts_backward_weight(Model *model, const Fp8Experts *e, Tensor dgate_up, Tensor normed, bool accumulate) {
    Ops *ops = model->ops;
    Tensor cols = cols_in(e, DTYPE_E4M3, 0, "expert rows");
    if (tensor_present(e->gathered))
        ops->quantize(ops, TENSOR_NONE, cols, TENSOR_NONE, e->gathered, fp8_scale(model, FP8_MLP_IN, e->layer));
    else
        ops->moe_gather_fp8(ops, TENSOR_NONE, cols, tokens_round(model, e, DTYPE_E4M3, normed, FP8_MLP_IN, false),
                            e->rows);
    multiply(model, e, dgate_up, model_act(model, ACT_FP8_EXPERT_DGATE_UP_COLS, -1), FP8_DGATE_UP, cols, FP8_MLP_IN,
             accumulate);
}
