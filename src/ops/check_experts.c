// Which shapes and types belong together: the ops of experts, which are their products and what chooses and moves rows.
#include "ops/check.h"

// ---- products -------------------------------------------------------------------------------------------------------

static const char *check_grouped(const Tensor *t, int64_t in_cols, int64_t out_cols, int64_t weight_rows,
                                 int64_t weight_cols) {
    Tensor offsets = t[3];
    NEED(packed(offsets, DTYPE_I32, 1, offsets.cols) && offsets.cols > 1);
    NEED(weight_rows == out_cols * (offsets.cols - 1));
    NEED(weight_cols == in_cols);
    return NULL;
}

// Rows, or the tokens that they are made of.
static const char *check_row_source(Tensor source, int64_t rows, Tensor token_of_row, Tensor scratch) {
    bool tokens = tensor_present(token_of_row);
    NEED(packed(source, source.dtype, tokens ? source.rows : rows, source.cols));
    NEED(absent_or_packed(token_of_row, DTYPE_I32, rows, 1));
    NEED(!tokens || packed(scratch, source.dtype, rows, source.cols));
    return NULL;
}

static const char *check_grouped_forward(const Tensor *t) {
    Tensor out = t[0], in = t[1], weight = t[2];
    NEED(is_storage(in.dtype));
    NEED(packed(out, in.dtype, out.rows, out.cols) && !check_row_source(in, out.rows, t[4], t[5]));
    NEED(packed(weight, in.dtype, weight.rows, in.cols));
    return check_grouped(t, in.cols, out.cols, weight.rows, weight.cols);
}

static const char *check_grouped_backward_input(const Tensor *t) {
    Tensor din = t[0], dout = t[1], weight = t[2];
    NEED(is_storage(dout.dtype));
    NEED(packed(din, dout.dtype, dout.rows, din.cols) && packed(dout, din.dtype, din.rows, dout.cols));
    NEED(packed(weight, dout.dtype, weight.rows, din.cols));
    return check_grouped(t, din.cols, dout.cols, weight.rows, weight.cols);
}

static const char *check_grouped_backward_weight(const Tensor *t) {
    Tensor dweight = t[0], dout = t[1], in = t[2];
    NEED(is_storage(in.dtype));
    NEED(packed(dout, in.dtype, dout.rows, dout.cols) && !check_row_source(in, dout.rows, t[4], t[5]));
    NEED(packed(dweight, DTYPE_F32, dweight.rows, in.cols));
    return check_grouped(t, in.cols, dout.cols, dweight.rows, dweight.cols);
}

static const char *check_grouped_swiglu_forward(const Tensor *t) {
    Tensor hidden = t[0], gate_up = t[1], in = t[2], weight = t[3], offsets = t[4], row_weight = t[5];
    NEED(tensor_present(row_weight));
    NEED(!check_grouped_forward((Tensor[]){gate_up, in, weight, offsets, t[6], t[7]}));
    return check_swiglu_forward((Tensor[]){hidden, gate_up, row_weight, TENSOR_NONE});
}

static const char *check_grouped_swiglu_backward(const Tensor *t) {
    Tensor dgate_up = t[0], hidden = t[1], drow_weight = t[2], gate_up = t[3], dnext = t[4], weight = t[5];
    NEED(!check_grouped_backward_input((Tensor[]){hidden, dnext, weight, t[6]}));
    return check_swiglu_backward((Tensor[]){dgate_up, hidden, drow_weight, gate_up, hidden, t[7], TENSOR_NONE});
}

static const char *check_grouped_fp8(const OpRecord *r) {
    Tensor out = r->tensor[0], a = r->tensor[1], b = r->tensor[2], offsets = r->tensor[5];
    NEED(packed(offsets, DTYPE_I32, 1, offsets.cols) && offsets.cols > 1);
    NEED(is_fp8(a.dtype) && packed(a, a.dtype, a.rows, b.cols) && packed(b, DTYPE_E4M3, b.rows, a.cols));
    NEED(one(r->tensor[3], DTYPE_F32) && one(r->tensor[4], DTYPE_F32));
    int64_t experts = offsets.cols - 1;
    if (out.dtype == DTYPE_F32) {
        NEED(a.dtype == DTYPE_E5M2 && packed(out, DTYPE_F32, experts * a.rows, b.rows));
        return NULL;
    }
    NEED(packed(out, DTYPE_BF16, a.rows, out.cols) && b.rows == experts * out.cols && !r->flag);
    return NULL;
}

static const char *check_grouped_swiglu_fp8(const Tensor *t) {
    Tensor row_weight = t[11], offsets = t[12];
    NEED(tensor_present(row_weight));
    NEED(!check_grouped_fp8(&(OpRecord){OP_GROUPED_LINEAR_FP8, {t[4], t[5], t[6], t[7], t[8], offsets}}));
    return check_swiglu_fp8_of_product(t, row_weight, tensor_cols(offsets, offsets.cols - 1, 1));
}

// ---- routing --------------------------------------------------------------------------------------------------------

static const char *check_router(Tensor logits, Tensor in, Tensor weight, Tensor weight_or_gradient, DType dtype) {
    NEED(is_storage(in.dtype));
    NEED(packed(in, in.dtype, logits.rows, weight.cols));
    NEED(packed(logits, DTYPE_F32, in.rows, weight.rows));
    NEED(packed(weight, in.dtype, logits.cols, in.cols));
    NEED(packed(weight_or_gradient, dtype, logits.cols, in.cols));
    return NULL;
}

static bool has_rows(const MoeRouting *r) {
    return tensor_present(r->offsets) || tensor_present(r->row_of_slot) || tensor_present(r->token_of_row) ||
           tensor_present(r->row_weight);
}

// Of the experts that are here: all of them, or a rank's share.
static const char *check_rows(const MoeRouting *r) {
    int64_t tokens = r->expert.rows, top_k = r->expert.cols, rows = r->token_of_row.rows;
    NEED(tokens > 0 && top_k > 0 && r->counts.cols > 0 && r->first_expert >= 0);
    NEED(packed(r->expert, DTYPE_I32, tokens, top_k) && packed(r->counts, DTYPE_I32, 1, r->counts.cols));
    NEED(packed(r->offsets, DTYPE_I32, 1, r->counts.cols + 1) && packed(r->row_of_slot, DTYPE_I32, tokens, top_k));
    NEED(packed(r->token_of_row, DTYPE_I32, rows, 1) && packed(r->row_weight, DTYPE_F32, rows, 1));
    return NULL;
}

static const char *check_routing(const MoeRouting *r) {
    int64_t tokens = r->expert.rows, top_k = r->expert.cols, experts = r->probs.cols;
    NEED(tokens > 0 && top_k > 0 && top_k <= experts && r->first_expert == 0);
    NEED(packed(r->probs, DTYPE_F32, tokens, experts) && packed(r->lse, DTYPE_F32, tokens, 1));
    NEED(packed(r->expert, DTYPE_I32, tokens, top_k) && packed(r->weight, DTYPE_F32, tokens, top_k));
    NEED(packed(r->counts, DTYPE_I32, 1, experts) && packed(r->prob_sum, DTYPE_F32, 1, experts));
    NEED(absent_or_packed(r->bias, DTYPE_F32, 1, experts));
    return has_rows(r) ? check_rows(r) : NULL;
}

static const char *check_place_rows(Tensor needed, const MoeRouting *r) {
    NEED(one(needed, DTYPE_I32));
    NEED(packed(r->weight, DTYPE_F32, r->expert.rows, r->expert.cols));
    return check_rows(r);
}

static const char *check_slot_gradient(Tensor dweight, Tensor drow_weight, const MoeRouting *r) {
    NEED(packed(dweight, DTYPE_F32, r->expert.rows, r->expert.cols));
    NEED(packed(drow_weight, DTYPE_F32, r->token_of_row.rows, 1));
    return check_rows(r);
}

static const char *check_route_forward(const MoeRouting *r) {
    NEED(packed(r->logits, DTYPE_F32, r->expert.rows, r->probs.cols));
    return check_routing(r);
}

static const char *check_route_backward(const OpRecord *record) {
    const MoeRouting *r = &record->routing;
    Tensor dlogits = record->tensor[0], drow_weight = record->tensor[1], dprob = record->tensor[2];
    NEED(packed(dlogits, DTYPE_F32, r->probs.rows, r->probs.cols));
    NEED(has_rows(r) ? absent_or_packed(drow_weight, DTYPE_F32, r->token_of_row.rows, 1)
                     : absent_or_packed(drow_weight, DTYPE_F32, r->expert.rows, r->expert.cols));
    NEED(absent_or_packed(dprob, DTYPE_F32, 1, r->probs.cols));
    NEED(!tensor_present(record->tensor[3]) || one(record->tensor[3], DTYPE_F32));
    return check_routing(r);
}

// rows_side: [rows, dim], token_side: [tokens, dim].
static const char *check_permutation(const MoeRouting *r, Tensor rows_side, Tensor token_side, Tensor add) {
    NEED(is_storage(rows_side.dtype));
    NEED(packed(rows_side, token_side.dtype, r->token_of_row.rows, token_side.cols));
    NEED(packed(token_side, rows_side.dtype, r->expert.rows, rows_side.cols));
    NEED(absent_or_packed(add, token_side.dtype, token_side.rows, token_side.cols));
    return check_rows(r);
}

static const char *check_gather_fp8(const MoeRouting *r, Tensor rows, Tensor cols, Tensor in) {
    int64_t count = r->token_of_row.rows;
    NEED(is_fp8(in.dtype) && packed(in, in.dtype, r->expert.rows, in.cols));
    NEED(absent_or_packed(rows, in.dtype, count, in.cols) && absent_or_packed(cols, in.dtype, in.cols, count));
    return check_rows(r);
}

static const char *check_balance(const Tensor *t) {
    Tensor dprob = t[1], counts = t[3], prob_sum = t[4];
    NEED(one(t[0], DTYPE_F32) && one(t[2], DTYPE_F32));
    NEED(packed(counts, DTYPE_I32, dprob.rows, dprob.cols));
    NEED(packed(prob_sum, DTYPE_F32, counts.rows, counts.cols) && packed(dprob, DTYPE_F32, counts.rows, counts.cols));
    return NULL;
}

static const char *check_counts(const Tensor *t, DType dtype, int64_t cols) { // t[0] of the layers of counts t[1]
    NEED(packed(t[1], DTYPE_I32, t[0].rows, t[1].cols));
    NEED(packed(t[0], dtype, t[1].rows, cols));
    return NULL;
}

const char *op_check_experts(const OpRecord *r) {
    const Tensor *t = r->tensor;
    switch (r->op) {
    case OP_MOE_ROUTER_FORWARD: return check_router(t[0], t[1], t[2], t[2], t[2].dtype);
    case OP_MOE_ROUTER_BACKWARD:
        if (!packed(t[0], t[3].dtype, t[3].rows, t[3].cols)) return "din like in";
        return check_router(t[2], t[3], t[4], t[1], DTYPE_F32);
    case OP_MOE_ROUTE_FORWARD: return check_route_forward(&r->routing);
    case OP_MOE_PLACE_ROWS: return check_place_rows(t[0], &r->routing);
    case OP_MOE_SLOT_GRADIENT: return check_slot_gradient(t[0], t[1], &r->routing);
    case OP_MOE_ROUTE_BACKWARD: return check_route_backward(r);
    case OP_MOE_BALANCE: return check_balance(t);
    case OP_MOE_ADD_COUNTS: return check_counts(t, DTYPE_I32, t[1].cols);
    case OP_MOE_LOAD_STATS: return check_counts(t, DTYPE_F32, MOE_LOAD_STATS);
    case OP_MOE_BIAS_UPDATE: return one(t[2], DTYPE_I32) ? check_counts(t, DTYPE_F32, t[1].cols) : "one(skip)";
    case OP_MOE_GATHER: return check_permutation(&r->routing, t[0], t[1], TENSOR_NONE);
    case OP_MOE_GATHER_FP8: return check_gather_fp8(&r->routing, t[0], t[1], t[2]);
    case OP_MOE_SUM: return check_permutation(&r->routing, t[1], t[0], t[2]);
    case OP_GROUPED_LINEAR_FORWARD: return check_grouped_forward(t);
    case OP_GROUPED_LINEAR_BACKWARD_INPUT: return check_grouped_backward_input(t);
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT: return check_grouped_backward_weight(t);
    case OP_GROUPED_SWIGLU_FORWARD: return check_grouped_swiglu_forward(t);
    case OP_GROUPED_SWIGLU_BACKWARD: return check_grouped_swiglu_backward(t);
    case OP_GROUPED_LINEAR_FP8: return check_grouped_fp8(r);
    case OP_GROUPED_SWIGLU_FP8_FORWARD: return check_grouped_swiglu_fp8(t);
    default: return "an op of experts";
    }
}
