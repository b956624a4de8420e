// Which shapes and types belong together, for every op: the one place that says so, with check_experts.c for experts.
#include "ops/check.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

// ---- products -------------------------------------------------------------------------------------------------------

static const char *check_linear_forward(const Tensor *t) {
    Tensor out = t[0], in = t[1], weight = t[2], add = t[3];
    NEED(is_storage(in.dtype) && in.cols > 0);
    NEED(has_shape(in, in.dtype, in.rows, in.cols));
    NEED(packed(weight, in.dtype, out.cols, in.cols));
    NEED(packed(out, in.dtype, in.rows, weight.rows));
    NEED(absent_or_packed(add, in.dtype, out.rows, out.cols));
    return NULL;
}

static const char *check_linear_backward_input(const Tensor *t) {
    Tensor din = t[0], dout = t[1], weight = t[2];
    NEED(is_storage(dout.dtype));
    NEED(packed(dout, dout.dtype, dout.rows, weight.rows));
    NEED(packed(weight, dout.dtype, dout.cols, din.cols));
    NEED(packed(din, dout.dtype, dout.rows, weight.cols));
    return NULL;
}

static const char *check_linear_backward_weight(const Tensor *t) {
    Tensor dweight = t[0], dout = t[1], in = t[2];
    NEED(is_storage(in.dtype));
    NEED(packed(dout, in.dtype, in.rows, dweight.rows));
    NEED(has_shape(in, dout.dtype, dout.rows, dweight.cols));
    NEED(packed(dweight, DTYPE_F32, dout.cols, in.cols));
    return NULL;
}

// ---- rotary and attention -------------------------------------------------------------------------------------------

static const char *check_rope(const Rope *rope, DType dtype) {
    NEED(rope->heads > 0 && rope->kv_heads > 0 && rope->head_dim > 0 && rope->head_dim % 2 == 0 && rope->seq > 0);
    NEED(packed(rope->cos, DTYPE_F32, rope->sin.rows, rope->head_dim / 2));
    NEED(packed(rope->sin, DTYPE_F32, rope->cos.rows, rope->head_dim / 2));
    NEED(absent_or_packed(rope->q_weight, dtype, 1, rope->head_dim));
    NEED(tensor_present(rope->q_weight) == tensor_present(rope->k_weight));
    NEED(absent_or_packed(rope->k_weight, dtype, 1, rope->head_dim));
    return NULL;
}

static const char *check_qk_rope_forward(const OpRecord *r) {
    Tensor out = r->tensor[0], rstd = r->tensor[1], in = r->tensor[2];
    const Rope *rope = &r->rope;
    int64_t heads = rope->heads + rope->kv_heads;
    NEED(is_storage(in.dtype));
    NEED(has_shape(in, in.dtype, in.rows, heads * rope->head_dim));
    NEED(has_shape(out, in.dtype, in.rows, in.cols));
    NEED(!tensor_present(rope->q_weight) || packed(rstd, DTYPE_F32, in.rows, heads));
    return check_rope(rope, in.dtype);
}

static const char *check_qk_rope_backward(const OpRecord *r) {
    Tensor grad = r->tensor[0], dq = r->tensor[1], dk = r->tensor[2], in = r->tensor[3], rstd = r->tensor[4];
    const Rope *rope = &r->rope;
    int64_t heads = rope->heads + rope->kv_heads;
    NEED(is_storage(grad.dtype));
    NEED(has_shape(grad, grad.dtype, grad.rows, heads * rope->head_dim));
    if (tensor_present(rope->q_weight)) {
        NEED(has_shape(in, grad.dtype, grad.rows, grad.cols));
        NEED(packed(rstd, DTYPE_F32, grad.rows, heads));
        NEED(packed(dq, DTYPE_F32, 1, rope->head_dim) && packed(dk, DTYPE_F32, 1, rope->head_dim));
    }
    return check_rope(rope, grad.dtype);
}

static const char *check_linear_rope(const OpRecord *r) {
    const Rope *rope = &r->rope;
    NEED(!tensor_present(rope->q_weight));
    NEED(r->tensor[0].cols == (int64_t)(rope->heads + 2 * rope->kv_heads) * rope->head_dim);
    const char *broken = check_linear_forward((Tensor[]){r->tensor[0], r->tensor[1], r->tensor[2], TENSOR_NONE});
    return broken ? broken : check_rope(rope, r->tensor[1].dtype);
}

static const char *check_attention(const Attention *how, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v) {
    int64_t head_dim = how->head_dim, heads = head_dim > 0 ? q.cols / head_dim : 0;
    NEED(how->seq > 0 && head_dim > 0 && is_storage(q.dtype));
    NEED(q.rows % how->seq == 0 && q.cols % head_dim == 0 && k.cols % head_dim == 0);
    NEED(k.cols > 0 && q.cols % k.cols == 0);
    NEED(has_shape(q, q.dtype, out.rows, out.cols));
    NEED(has_shape(k, q.dtype, q.rows, v.cols) && has_shape(v, q.dtype, q.rows, k.cols));
    NEED(packed(out, q.dtype, q.rows, q.cols));
    NEED(packed(lse, DTYPE_F32, q.rows / how->seq * heads, how->seq));
    NEED(absent_or_packed(how->doc_start, DTYPE_I32, q.rows, 1) && how->first_key >= 0);
    return NULL;
}

static const char *check_attention_backward(const OpRecord *r) {
    const Tensor *t = r->tensor;
    Tensor dq = t[0], dk = t[1], dv = t[2], dout = t[3], out = t[4], lse = t[5], q = t[6], k = t[7], v = t[8];
    NEED(has_shape(dq, q.dtype, q.rows, q.cols) && has_shape(dk, q.dtype, k.rows, k.cols));
    NEED(has_shape(dv, q.dtype, v.rows, v.cols));
    NEED(dq.stride == dk.stride && dk.stride == dv.stride);
    NEED(packed(dout, q.dtype, out.rows, out.cols));
    if (r->rope.head_dim) {
        NEED(!tensor_present(r->rope.q_weight));
        NEED(r->rope.head_dim == r->attention.head_dim && (int64_t)r->rope.heads * r->rope.head_dim == q.cols);
        NEED(dk.data == tensor_at(dq, 0, q.cols));
        const char *broken = check_rope(&r->rope, q.dtype);
        if (broken) return broken;
    }
    return check_attention(&r->attention, out, lse, q, k, v);
}

static const char *check_attention_merge(const Tensor *t) {
    Tensor out = t[0], lse = t[1], part = t[2], part_lse = t[3];
    NEED(is_storage(part.dtype) && packed(part, part.dtype, out.rows, out.cols));
    NEED(packed(out, DTYPE_F32, part.rows, part.cols));
    NEED(packed(lse, DTYPE_F32, part_lse.rows, part_lse.cols) && packed(part_lse, DTYPE_F32, lse.rows, lse.cols));
    NEED(lse.cols > 0 && out.rows % lse.cols == 0 && lse.rows % (out.rows / lse.cols) == 0);
    NEED(out.cols % (lse.rows / (out.rows / lse.cols)) == 0);
    return NULL;
}

static const char *check_convert(Tensor out, Tensor in) {
    NEED(is_storage(out.dtype) && is_storage(in.dtype));
    NEED(has_shape(out, out.dtype, in.rows, in.cols) && has_shape(in, in.dtype, out.rows, out.cols));
    return NULL;
}

static const char *check_attention_cached(const OpRecord *r) {
    Tensor out = r->tensor[0], q = r->tensor[1], k = r->tensor[2], v = r->tensor[3];
    int64_t first = r->integer[0], head_dim = r->integer[1];
    NEED(is_storage(q.dtype) && head_dim > 0 && first >= 0);
    NEED(q.cols % head_dim == 0 && k.cols % head_dim == 0 && q.cols % k.cols == 0);
    NEED(packed(q, q.dtype, out.rows, out.cols) && packed(out, q.dtype, q.rows, q.cols));
    NEED(packed(k, q.dtype, v.rows, v.cols) && packed(v, q.dtype, k.rows, k.cols));
    NEED(first + q.rows <= k.rows);
    return NULL;
}

// ---- elements -------------------------------------------------------------------------------------------------------

static const char *check_embedding(Tensor rows, Tensor ids, Tensor weight, DType weight_dtype, int64_t first) {
    NEED(is_storage(rows.dtype));
    NEED(packed(rows, rows.dtype, ids.rows, weight.cols));
    NEED(packed(ids, DTYPE_I32, rows.rows, 1));
    NEED(packed(weight, weight_dtype, weight.rows, rows.cols));
    NEED(first >= 0 && first + weight.rows <= INT32_MAX);
    return NULL;
}

static const char *check_norm_forward(const Tensor *t) {
    Tensor out = t[0], sum = t[1], rstd = t[2], residual = t[3], branch = t[4], weight = t[5];
    NEED(is_storage(residual.dtype));
    NEED(packed(residual, residual.dtype, out.rows, out.cols));
    NEED(packed(out, residual.dtype, residual.rows, residual.cols));
    NEED(tensor_present(sum) == tensor_present(branch));
    NEED(absent_or_packed(sum, residual.dtype, residual.rows, residual.cols));
    NEED(absent_or_packed(branch, residual.dtype, residual.rows, residual.cols));
    NEED(packed(rstd, DTYPE_F32, residual.rows, 1));
    NEED(packed(weight, residual.dtype, 1, residual.cols));
    return NULL;
}

static const char *check_norm_backward(const Tensor *t) {
    Tensor dsum = t[0], dweight = t[1], dout = t[2], out = t[3], rstd = t[4], weight = t[5];
    NEED(is_storage(out.dtype));
    NEED(packed(out, out.dtype, dout.rows, dout.cols) && packed(dout, out.dtype, out.rows, out.cols));
    NEED(packed(dsum, out.dtype, out.rows, out.cols));
    NEED(packed(dweight, DTYPE_F32, 1, out.cols) && packed(weight, out.dtype, 1, out.cols));
    NEED(packed(rstd, DTYPE_F32, out.rows, 1));
    return NULL;
}

const char *check_swiglu_forward(const Tensor *t) {
    Tensor out = t[0], gate_up = t[1], row_weight = t[2], row_count = t[3];
    NEED(is_storage(out.dtype));
    NEED(packed(out, out.dtype, gate_up.rows, out.cols));
    NEED(packed(gate_up, out.dtype, out.rows, 2 * out.cols));
    NEED(absent_or_packed(row_weight, DTYPE_F32, out.rows, 1));
    NEED(!tensor_present(row_count) || one(row_count, DTYPE_I32));
    return NULL;
}

const char *check_swiglu_backward(const Tensor *t) {
    Tensor dgate_up = t[0], out = t[1], drow_weight = t[2], gate_up = t[3], dout = t[4], row_weight = t[5];
    NEED(packed(dgate_up, out.dtype, gate_up.rows, gate_up.cols));
    NEED(packed(dout, out.dtype, out.rows, out.cols));
    NEED(packed(drow_weight, DTYPE_F32, out.rows, 1) && packed(row_weight, DTYPE_F32, out.rows, 1));
    return check_swiglu_forward((Tensor[]){out, gate_up, row_weight, t[6]});
}

static const char *check_swiglu_packed_backward(const Tensor *t) {
    Tensor dgate_up = t[0], gate_hidden = t[1], dhidden = t[2];
    NEED(is_storage(dhidden.dtype));
    NEED(packed(dhidden, dhidden.dtype, gate_hidden.rows, dhidden.cols));
    NEED(packed(gate_hidden, dhidden.dtype, dhidden.rows, 2 * dhidden.cols));
    NEED(packed(dgate_up, dhidden.dtype, gate_hidden.rows, gate_hidden.cols));
    return NULL;
}

static const char *check_linear_swiglu_forward(const Tensor *t) {
    NEED(t[0].cols % 2 == 0);
    NEED(tensor_contiguous(t[1]));
    return check_linear_forward((Tensor[]){t[0], t[1], t[2], TENSOR_NONE});
}

static const char *check_linear_swiglu_backward(const Tensor *t) {
    Tensor dgate_up = t[0], scratch = t[1], gate_hidden = t[2], dnext = t[3], weight = t[4];
    NEED(packed(dnext, weight.dtype, gate_hidden.rows, weight.rows));
    NEED(packed(weight, dnext.dtype, dnext.cols, scratch.cols));
    return check_swiglu_packed_backward((Tensor[]){dgate_up, gate_hidden, scratch});
}

// ---- FP8 ------------------------------------------------------------------------------------------------------------

// One transpose, or a pile of those of the matrices that `in` is a pile of.
static bool turned(Tensor cols, DType dtype, Tensor in) {
    int64_t piles = cols.cols > 0 ? in.rows / cols.cols : 1;
    return packed(cols, dtype, piles * in.cols, cols.cols) && piles * cols.cols == in.rows &&
           (piles == 1 || tensor_contiguous(in));
}

static const char *check_quantize(const Tensor *t) {
    Tensor rows = t[0], cols = t[1], amax = t[2], in = t[3], scale = t[4];
    if (is_fp8(in.dtype)) {
        NEED(!tensor_present(rows) && !tensor_present(amax) && packed(in, in.dtype, in.rows, in.cols));
        NEED(turned(cols, in.dtype, in));
        return one(scale, DTYPE_F32) ? NULL : "one(scale)";
    }
    NEED(has_shape(in, DTYPE_BF16, in.rows, in.cols));
    NEED(!tensor_present(rows) || (is_fp8(rows.dtype) && packed(rows, rows.dtype, in.rows, in.cols)));
    NEED(!tensor_present(cols) || (is_fp8(cols.dtype) && turned(cols, cols.dtype, in)));
    NEED(!tensor_present(rows) || !tensor_present(cols) || rows.dtype == cols.dtype);
    NEED(absent_or_one(amax) && one(scale, DTYPE_F32));
    return NULL;
}

static const char *check_linear_fp8(const OpRecord *r) {
    Tensor out = r->tensor[0], a = r->tensor[1], b = r->tensor[2], add = r->tensor[5];
    NEED(is_fp8(a.dtype) && b.dtype == DTYPE_E4M3);
    NEED(packed(a, a.dtype, out.rows, b.cols) && packed(b, b.dtype, out.cols, a.cols));
    NEED(out.dtype == DTYPE_BF16 || (out.dtype == DTYPE_F32 && !tensor_present(add)));
    NEED(packed(out, out.dtype, a.rows, b.rows) && absent_or_packed(add, out.dtype, out.rows, out.cols));
    NEED(one(r->tensor[3], DTYPE_F32) && one(r->tensor[4], DTYPE_F32));
    NEED(!r->flag || out.dtype == DTYPE_F32);
    return NULL;
}

static const char *check_rmsnorm_fp8(const Tensor *t) {
    Tensor out = t[0], rows = t[1], rstd = t[3], residual = t[4], weight = t[5];
    NEED(out.dtype == DTYPE_BF16 && packed(rows, DTYPE_E4M3, out.rows, out.cols));
    NEED(absent_or_one(t[2]) && one(t[6], DTYPE_F32));
    return check_norm_forward((Tensor[]){out, TENSOR_NONE, rstd, residual, TENSOR_NONE, weight});
}

// Of SwiGLU: all rows, or those that there are of experts.
static const char *check_expert_rows(Tensor row_weight, Tensor row_count, int64_t rows) {
    NEED(absent_or_packed(row_weight, DTYPE_F32, rows, 1) && tensor_present(row_count) == tensor_present(row_weight));
    NEED(!tensor_present(row_count) || one(row_count, DTYPE_I32));
    return NULL;
}

static const char *check_swiglu_fp8_forward(const Tensor *t) {
    Tensor hidden = t[0], gate_up8 = t[2], gate_up = t[4];
    NEED(packed(gate_up, DTYPE_BF16, hidden.rows, 2 * hidden.cols));
    NEED(packed(hidden, DTYPE_E4M3, gate_up.rows, hidden.cols));
    NEED(packed(gate_up8, DTYPE_E4M3, gate_up.rows, gate_up.cols));
    NEED(absent_or_one(t[1]) && absent_or_one(t[3]) && one(t[5], DTYPE_F32) && one(t[6], DTYPE_F32));
    return check_expert_rows(t[7], t[8], hidden.rows);
}

static const char *check_swiglu_fp8_backward(const Tensor *t) {
    Tensor drows = t[0], dcols = t[1], hidden_cols = t[3], drow_weight = t[4], gate_up8 = t[5], dhidden = t[6];
    NEED(packed(dhidden, DTYPE_BF16, gate_up8.rows, dhidden.cols));
    NEED(packed(gate_up8, DTYPE_E4M3, dhidden.rows, 2 * dhidden.cols));
    NEED(packed(drows, DTYPE_E5M2, gate_up8.rows, gate_up8.cols));
    NEED(packed(dcols, DTYPE_E5M2, gate_up8.cols, gate_up8.rows));
    NEED(packed(hidden_cols, DTYPE_E4M3, dhidden.cols, dhidden.rows));
    NEED(absent_or_one(t[2]) && one(t[7], DTYPE_F32) && one(t[8], DTYPE_F32) && one(t[9], DTYPE_F32));
    NEED(absent_or_packed(drow_weight, DTYPE_F32, dhidden.rows, 1));
    NEED(tensor_present(drow_weight) == tensor_present(t[10]));
    return check_expert_rows(t[10], t[11], dhidden.rows);
}

static bool apart(Tensor a, Tensor b) { // in memory
    uintptr_t first = (uintptr_t)a.data, second = (uintptr_t)b.data;
    return first + (uintptr_t)tensor_count(a) * dtype_size(a.dtype) <= second ||
           second + (uintptr_t)tensor_count(b) * dtype_size(b.dtype) <= first;
}

const char *check_swiglu_fp8_of_product(const Tensor *t, Tensor row_weight, Tensor row_count) {
    Tensor hidden = t[0], gate_up8 = t[2], scratch = t[4], in = t[5];
    NEED(in.dtype == DTYPE_E4M3);
    NEED(apart(hidden, in) && apart(gate_up8, in) && apart(scratch, in));
    NEED(apart(scratch, hidden) && apart(scratch, gate_up8));
    return check_swiglu_fp8_forward(
        (Tensor[]){hidden, t[1], gate_up8, t[3], scratch, t[9], t[10], row_weight, row_count});
}

static const char *check_linear_swiglu_fp8(const Tensor *t) {
    NEED(!check_linear_fp8(&(OpRecord){OP_LINEAR_FP8, {t[4], t[5], t[6], t[7], t[8]}}));
    return check_swiglu_fp8_of_product(t, TENSOR_NONE, TENSOR_NONE);
}

static const char *check_cross_entropy(const Tensor *t) {
    Tensor losses = t[0], logits = t[1], targets = t[2], scale = t[3];
    NEED(is_storage(logits.dtype));
    NEED(packed(logits, logits.dtype, losses.rows, logits.cols));
    NEED(packed(losses, DTYPE_F32, logits.rows, 1) && packed(targets, DTYPE_I32, logits.rows, 1));
    NEED(!tensor_present(scale) || one(scale, DTYPE_F32));
    return NULL;
}

static const char *check_cross_entropy_fp8(const Tensor *t) {
    Tensor losses = t[0], codes = t[1], logits = t[2], targets = t[3], scale = t[4];
    NEED(logits.dtype == DTYPE_BF16 && logits.cols % 16 == 0 && tensor_present(scale));
    NEED(packed(codes, DTYPE_E5M2, logits.rows, logits.cols) && one(t[5], DTYPE_F32));
    return check_cross_entropy((Tensor[]){losses, logits, targets, scale});
}

static const char *check_split_logits(const OpRecord *r, Tensor logits) {
    int64_t first = r->integer[0], vocab = r->integer[1];
    NEED(is_storage(logits.dtype) && vocab > 0);
    NEED(first >= 0 && first + logits.cols <= INT32_MAX);
    return NULL;
}

static const char *check_cross_entropy_stats(const OpRecord *r) {
    Tensor stats = r->tensor[0], logits = r->tensor[1], targets = r->tensor[2];
    NEED(packed(stats, DTYPE_F32, logits.rows, SPLIT_STATS));
    NEED(packed(logits, logits.dtype, stats.rows, logits.cols) && packed(targets, DTYPE_I32, logits.rows, 1));
    return check_split_logits(r, logits);
}

static const char *check_cross_entropy_apply(const OpRecord *r) {
    Tensor losses = r->tensor[0], logits = r->tensor[1], targets = r->tensor[2], stats = r->tensor[3];
    const char *broken = check_cross_entropy((Tensor[]){losses, logits, targets, r->tensor[4]});
    if (broken) return broken;
    NEED(packed(stats, DTYPE_F32, stats.rows, SPLIT_STATS));
    NEED(stats.rows >= logits.rows && (logits.rows == 0 || stats.rows % logits.rows == 0));
    return check_split_logits(r, logits);
}

// ---- optimizer ------------------------------------------------------------------------------------------------------

static const char *check_adamw(const AdamwArgs *a) {
    int64_t count = tensor_count(a->grad);
    NEED(flat(a->grad, DTYPE_F32));
    NEED(is_storage(a->weight.dtype) && flat(a->weight, a->weight.dtype) && tensor_count(a->weight) == count);
    NEED(!tensor_present(a->master) ||
         (a->weight.dtype == DTYPE_BF16 && flat(a->master, DTYPE_U16) && tensor_count(a->master) == count) ||
         (a->weight.dtype == DTYPE_F16 && flat(a->master, DTYPE_F32) && tensor_count(a->master) == count));
    NEED(a->weight.dtype != DTYPE_F16 || tensor_present(a->master));
    NEED(flat(a->m, DTYPE_F32) && tensor_count(a->m) == count && flat(a->v, DTYPE_F32) && tensor_count(a->v) == count);
    NEED(one(a->norm, DTYPE_F32) && one(a->skip, DTYPE_I32));
    return NULL;
}

const char *op_check(const OpRecord *r) {
    const Tensor *t = r->tensor;
    switch (r->op) {
    case OP_ZERO: return flat(t[0], t[0].dtype) ? NULL : "flat(out)";
    case OP_ADD:
        return is_storage(t[0].dtype) && flat(t[0], t[0].dtype) && packed(t[1], t[0].dtype, t[0].rows, t[0].cols)
                   ? NULL
                   : "in like out";
    case OP_CONVERT: return check_convert(t[0], t[1]);
    case OP_SUM_F32:
    case OP_NORM_F32: return one(t[0], DTYPE_F32) && flat(t[1], DTYPE_F32) ? NULL : "one(out) && flat(in)";
    case OP_LINEAR_FORWARD: return check_linear_forward(t);
    case OP_LINEAR_BACKWARD_INPUT: return check_linear_backward_input(t);
    case OP_LINEAR_BACKWARD_WEIGHT: return check_linear_backward_weight(t);
    case OP_EMBEDDING_FORWARD: return check_embedding(t[0], t[1], t[2], t[0].dtype, r->integer[0]);
    case OP_EMBEDDING_BACKWARD: return check_embedding(t[1], t[2], t[0], DTYPE_F32, r->integer[0]);
    case OP_ADD_RMSNORM_FORWARD: return check_norm_forward(t);
    case OP_ADD_RMSNORM_BACKWARD: return check_norm_backward(t);
    case OP_QK_ROPE_FORWARD: return check_qk_rope_forward(r);
    case OP_QK_ROPE_BACKWARD: return check_qk_rope_backward(r);
    case OP_LINEAR_ROPE_FORWARD: return check_linear_rope(r);
    case OP_ATTENTION_FORWARD: return check_attention(&r->attention, t[0], t[1], t[2], t[3], t[4]);
    case OP_ATTENTION_BACKWARD: return check_attention_backward(r);
    case OP_ATTENTION_MERGE: return check_attention_merge(t);
    case OP_ATTENTION_CACHED: return check_attention_cached(r);
    case OP_SWIGLU_FORWARD: return check_swiglu_forward(t);
    case OP_SWIGLU_BACKWARD: return check_swiglu_backward(t);
    case OP_SWIGLU_PACKED_FORWARD:
        return is_storage(t[0].dtype) && flat(t[0], t[0].dtype) && t[0].cols % 2 == 0 ? NULL : "gate_up in two halves";
    case OP_SWIGLU_PACKED_BACKWARD: return check_swiglu_packed_backward(t);
    case OP_LINEAR_SWIGLU_FORWARD: return check_linear_swiglu_forward(t);
    case OP_LINEAR_SWIGLU_BACKWARD: return check_linear_swiglu_backward(t);
    case OP_QUANTIZE: return check_quantize(t);
    case OP_QUANTIZE_SCALES:
        return flat(t[0], DTYPE_F32) && packed(t[1], DTYPE_F32, t[0].rows, t[0].cols) ? NULL : "amax like scale";
    case OP_LINEAR_FP8: return check_linear_fp8(r);
    case OP_RMSNORM_FP8_FORWARD: return check_rmsnorm_fp8(t);
    case OP_SWIGLU_FP8_FORWARD: return check_swiglu_fp8_forward(t);
    case OP_SWIGLU_FP8_BACKWARD: return check_swiglu_fp8_backward(t);
    case OP_LINEAR_SWIGLU_FP8_FORWARD: return check_linear_swiglu_fp8(t);
    case OP_CROSS_ENTROPY: return check_cross_entropy(t);
    case OP_CROSS_ENTROPY_FP8: return check_cross_entropy_fp8(t);
    case OP_CROSS_ENTROPY_STATS: return check_cross_entropy_stats(r);
    case OP_CROSS_ENTROPY_APPLY: return check_cross_entropy_apply(r);
    case OP_MOE_ROUTER_FORWARD:
    case OP_MOE_ROUTER_BACKWARD:
    case OP_MOE_ROUTE_FORWARD:
    case OP_MOE_PLACE_ROWS:
    case OP_MOE_SLOT_GRADIENT:
    case OP_MOE_ROUTE_BACKWARD:
    case OP_MOE_BALANCE:
    case OP_MOE_ADD_COUNTS:
    case OP_MOE_LOAD_STATS:
    case OP_MOE_BIAS_UPDATE:
    case OP_MOE_GATHER:
    case OP_MOE_GATHER_FP8:
    case OP_MOE_SUM:
    case OP_GROUPED_LINEAR_FORWARD:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
    case OP_GROUPED_SWIGLU_FORWARD:
    case OP_GROUPED_SWIGLU_BACKWARD:
    case OP_GROUPED_LINEAR_FP8:
    case OP_GROUPED_SWIGLU_FP8_FORWARD: return op_check_experts(r);
    case OP_GUARD:
        if (tensor_present(t[3]) && !one(t[3], DTYPE_I32)) return "one(refuse)";
        return one(t[0], DTYPE_I32) && one(t[1], DTYPE_F32) && one(t[2], DTYPE_F32) ? NULL : "one(skip, loss, norm)";
    case OP_ADAMW: return check_adamw(&r->adamw);
    case OP_UPLOAD:
    case OP_COPY:
    case OP_COUNT: break;
    }
    return "an op that is recorded";
}

void op_check_or_abort(const OpRecord *record) {
    const char *broken = op_check(record);
    if (!broken) return;
    fprintf(stderr, "hearth: a call of %s breaks the rule: %s\n", op_name(record->op), broken);
    for (int i = 0; i < OP_RECORD_TENSORS; i++) {
        Tensor t = record->tensor[i];
        if (tensor_present(t))
            fprintf(stderr, "  argument %d: %s [%lld, %lld] %s, stride %lld\n", i, t.name ? t.name : "tensor",
                    (long long)t.rows, (long long)t.cols, dtype_name(t.dtype), (long long)t.stride);
    }
    abort();
}

#ifdef HEARTH_CHECK_OPS
static void checker_call(void *context, const OpRecord *record) {
    (void)context;
    op_check_or_abort(record);
}
#endif

void ops_check_calls(Ops *ops) {
#ifdef HEARTH_CHECK_OPS
    ops_observe(ops, checker_call, NULL);
#else
    (void)ops;
#endif
}
