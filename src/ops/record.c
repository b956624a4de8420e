#include "ops/record.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>

struct OpsObserver {
    OpsObserverCall *call, *after; // after: may be NULL
    void *context;
    OpsObserver *next;
};

// ---- from a call to a record ----------------------------------------------------------------------------------------

static void tell_observers(Ops *ops, const OpRecord *record) {
    for (const OpsObserver *observer = ops->observers; observer; observer = observer->next)
        observer->call(observer->context, record);
    if (ops->observed) op_run(ops->observed, ops, record);
    for (const OpsObserver *observer = ops->observers; observer; observer = observer->next)
        if (observer->after) observer->after(observer->context, record);
}

#define TELL(ops, ...) tell_observers(ops, &(OpRecord){__VA_ARGS__})

static void record_zero(Ops *ops, Tensor out) {
    TELL(ops, OP_ZERO, {out});
}

static void record_add(Ops *ops, Tensor out, Tensor in) {
    TELL(ops, OP_ADD, {out, in});
}

static void record_convert(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    TELL(ops, OP_CONVERT, {out, in}, accumulate);
}

static void record_sum_f32(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    TELL(ops, OP_SUM_F32, {out, in}, accumulate);
}

static void record_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add) {
    TELL(ops, OP_LINEAR_FORWARD, {out, in, weight, add});
}

static void record_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight) {
    TELL(ops, OP_LINEAR_BACKWARD_INPUT, {din, dout, weight});
}

static void record_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, bool accumulate) {
    TELL(ops, OP_LINEAR_BACKWARD_WEIGHT, {dweight, dout, in}, accumulate);
}

static int id_number(int64_t id) { // ids are int32, and so is the size of a vocabulary
    assert(id >= INT32_MIN && id <= INT32_MAX);
    return (int)id;
}

static void record_embedding_forward(Ops *ops, Tensor out, Tensor ids, Tensor weight, int64_t first) {
    TELL(ops, OP_EMBEDDING_FORWARD, {out, ids, weight}, .integer = {id_number(first)});
}

static void record_embedding_backward(Ops *ops, Tensor dweight, Tensor dout, Tensor ids, int64_t first) {
    TELL(ops, OP_EMBEDDING_BACKWARD, {dweight, dout, ids}, .integer = {id_number(first)});
}

static void record_add_rmsnorm_forward(Ops *ops, Tensor out, Tensor sum, Tensor rstd, Tensor residual, Tensor branch,
                                       Tensor weight, float eps) {
    TELL(ops, OP_ADD_RMSNORM_FORWARD, {out, sum, rstd, residual, branch, weight}, .number = {eps});
}

static void record_add_rmsnorm_backward(Ops *ops, Tensor dsum, Tensor dweight, Tensor dout, Tensor out, Tensor rstd,
                                        Tensor weight, bool dsum_is_zero) {
    TELL(ops, OP_ADD_RMSNORM_BACKWARD, {dsum, dweight, dout, out, rstd, weight}, dsum_is_zero);
}

static void record_qk_rope_forward(Ops *ops, Tensor out, Tensor rstd, Tensor in, const Rope *rope) {
    TELL(ops, OP_QK_ROPE_FORWARD, {out, rstd, in}, .rope = *rope);
}

static void record_qk_rope_backward(Ops *ops, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                                    const Rope *rope) {
    TELL(ops, OP_QK_ROPE_BACKWARD, {grad, dq_weight, dk_weight, in, rstd}, .rope = *rope);
}

static void record_linear_rope_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope) {
    TELL(ops, OP_LINEAR_ROPE_FORWARD, {out, in, weight}, .rope = *rope);
}

static void record_attention_forward(Ops *ops, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                     const Attention *how) {
    TELL(ops, OP_ATTENTION_FORWARD, {out, lse, q, k, v}, .attention = *how);
}

static void record_attention_backward(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                                      Tensor q, Tensor k, Tensor v, const Attention *how, const Rope *rope) {
    TELL(ops, OP_ATTENTION_BACKWARD, {dq, dk, dv, dout, out, lse, q, k, v}, .attention = *how,
         .rope = rope ? *rope : (Rope){0});
}

static void record_attention_merge(Ops *ops, Tensor out, Tensor lse, Tensor part, Tensor part_lse) {
    TELL(ops, OP_ATTENTION_MERGE, {out, lse, part, part_lse});
}

static void record_attention_cached(Ops *ops, Tensor out, Tensor q, Tensor k_cache, Tensor v_cache, int first,
                                    int head_dim, float scale) {
    TELL(ops, OP_ATTENTION_CACHED, {out, q, k_cache, v_cache}, .integer = {first, head_dim}, .number = {scale});
}

static void record_swiglu_forward(Ops *ops, Tensor out, Tensor gate_up, Tensor row_weight, Tensor row_count) {
    TELL(ops, OP_SWIGLU_FORWARD, {out, gate_up, row_weight, row_count});
}

static void record_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up,
                                   Tensor dout, Tensor row_weight, Tensor row_count) {
    TELL(ops, OP_SWIGLU_BACKWARD, {dgate_up, out, drow_weight, gate_up, dout, row_weight, row_count});
}

static void record_swiglu_packed_forward(Ops *ops, Tensor gate_up) {
    TELL(ops, OP_SWIGLU_PACKED_FORWARD, {gate_up});
}

static void record_swiglu_packed_backward(Ops *ops, Tensor dgate_up, Tensor gate_hidden, Tensor dhidden) {
    TELL(ops, OP_SWIGLU_PACKED_BACKWARD, {dgate_up, gate_hidden, dhidden});
}

static void record_linear_swiglu_forward(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight) {
    TELL(ops, OP_LINEAR_SWIGLU_FORWARD, {gate_hidden, in, weight});
}

static void record_linear_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                          Tensor weight) {
    TELL(ops, OP_LINEAR_SWIGLU_BACKWARD, {dgate_up, scratch, gate_hidden, dnext, weight});
}

static void record_quantize(Ops *ops, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale) {
    TELL(ops, OP_QUANTIZE, {rows, cols, amax, in, scale});
}

static void record_quantize_scales(Ops *ops, Tensor scale, Tensor amax, float most) {
    TELL(ops, OP_QUANTIZE_SCALES, {scale, amax}, .number = {most});
}

static void record_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor add,
                              bool accumulate) {
    TELL(ops, OP_LINEAR_FP8, {out, a, b, a_scale, b_scale, add}, accumulate);
}

static void record_rmsnorm_fp8_forward(Ops *ops, Tensor out, Tensor rows, Tensor amax, Tensor rstd, Tensor residual,
                                       Tensor weight, Tensor scale, float eps) {
    TELL(ops, OP_RMSNORM_FP8_FORWARD, {out, rows, amax, rstd, residual, weight, scale}, .number = {eps});
}

static void record_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                      Tensor gate_up, Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight,
                                      Tensor row_count) {
    TELL(ops, OP_SWIGLU_FP8_FORWARD,
         {hidden, hidden_amax, gate_up8, gate_up_amax, gate_up, hidden_scale, gate_up_scale, row_weight, row_count});
}

static void record_swiglu_fp8_backward(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                                       Tensor drow_weight, Tensor gate_up8, Tensor dhidden, Tensor dscale,
                                       Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight, Tensor row_count) {
    TELL(ops, OP_SWIGLU_FP8_BACKWARD,
         {drows, dcols, damax, hidden_cols, drow_weight, gate_up8, dhidden, dscale, hidden_scale, gate_up_scale,
          row_weight, row_count});
}

static void record_linear_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                             Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight,
                                             Tensor in_scale, Tensor weight_scale, Tensor hidden_scale,
                                             Tensor gate_up_scale) {
    TELL(ops, OP_LINEAR_SWIGLU_FP8_FORWARD,
         {hidden, hidden_amax, gate_up8, gate_up_amax, scratch, in, weight, in_scale, weight_scale, hidden_scale,
          gate_up_scale});
}

static void record_cross_entropy(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale) {
    TELL(ops, OP_CROSS_ENTROPY, {losses, logits, targets, scale});
}

static void record_cross_entropy_fp8(Ops *ops, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale,
                                     Tensor codes_scale) {
    TELL(ops, OP_CROSS_ENTROPY_FP8, {losses, codes, logits, targets, scale, codes_scale});
}

static void record_cross_entropy_stats(Ops *ops, Tensor stats, Tensor logits, Tensor targets, int64_t first,
                                       int64_t vocab) {
    TELL(ops, OP_CROSS_ENTROPY_STATS, {stats, logits, targets}, .integer = {id_number(first), id_number(vocab)});
}

static void record_cross_entropy_apply(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor stats,
                                       Tensor scale, int64_t first, int64_t vocab) {
    TELL(ops, OP_CROSS_ENTROPY_APPLY, {losses, logits, targets, stats, scale},
         .integer = {id_number(first), id_number(vocab)});
}

static void record_moe_router_forward(Ops *ops, Tensor logits, Tensor in, Tensor weight) {
    TELL(ops, OP_MOE_ROUTER_FORWARD, {logits, in, weight});
}

static void record_moe_router_backward(Ops *ops, Tensor din, Tensor dweight, Tensor dlogits, Tensor in, Tensor weight,
                                       bool accumulate) {
    TELL(ops, OP_MOE_ROUTER_BACKWARD, {din, dweight, dlogits, in, weight}, accumulate);
}

static void record_moe_route_forward(Ops *ops, const MoeRouting *routing) {
    TELL(ops, OP_MOE_ROUTE_FORWARD, .routing = *routing);
}

static void record_moe_place_rows(Ops *ops, Tensor needed, const MoeRouting *routing) {
    TELL(ops, OP_MOE_PLACE_ROWS, {needed}, .routing = *routing);
}

static void record_moe_slot_gradient(Ops *ops, Tensor dweight, Tensor drow_weight, const MoeRouting *routing) {
    TELL(ops, OP_MOE_SLOT_GRADIENT, {dweight, drow_weight}, .routing = *routing);
}

static void record_moe_route_backward(Ops *ops, Tensor dlogits, Tensor drow_weight, Tensor dprob, Tensor z_coef,
                                      const MoeRouting *routing) {
    TELL(ops, OP_MOE_ROUTE_BACKWARD, {dlogits, drow_weight, dprob, z_coef}, .routing = *routing);
}

static void record_moe_balance(Ops *ops, Tensor loss, Tensor dprob, Tensor scale, Tensor counts, Tensor prob_sum,
                               MoeBalance balance, int64_t tokens) {
    TELL(ops, OP_MOE_BALANCE, {loss, dprob, scale, counts, prob_sum}, .integer = {(int)balance}, .tokens = tokens);
}

static void record_moe_add_counts(Ops *ops, Tensor total, Tensor counts, bool accumulate) {
    TELL(ops, OP_MOE_ADD_COUNTS, {total, counts}, accumulate);
}

static void record_moe_load_stats(Ops *ops, Tensor stats, Tensor counts) {
    TELL(ops, OP_MOE_LOAD_STATS, {stats, counts});
}

static void record_moe_bias_update(Ops *ops, Tensor bias, Tensor counts, Tensor skip, float rate) {
    TELL(ops, OP_MOE_BIAS_UPDATE, {bias, counts, skip}, .number = {rate});
}

static void record_moe_gather(Ops *ops, Tensor out, Tensor in, const MoeRouting *routing) {
    TELL(ops, OP_MOE_GATHER, {out, in}, .routing = *routing);
}

static void record_moe_gather_fp8(Ops *ops, Tensor rows, Tensor cols, Tensor in, const MoeRouting *routing) {
    TELL(ops, OP_MOE_GATHER_FP8, {rows, cols, in}, .routing = *routing);
}

static void record_moe_sum(Ops *ops, Tensor out, Tensor in, Tensor add, const MoeRouting *routing) {
    TELL(ops, OP_MOE_SUM, {out, in, add}, .routing = *routing);
}

static void record_grouped_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets,
                                          Tensor token_of_row, Tensor scratch) {
    TELL(ops, OP_GROUPED_LINEAR_FORWARD, {out, in, weight, offsets, token_of_row, scratch});
}

static void record_grouped_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets) {
    TELL(ops, OP_GROUPED_LINEAR_BACKWARD_INPUT, {din, dout, weight, offsets});
}

static void record_grouped_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                                  Tensor token_of_row, Tensor scratch, bool accumulate) {
    TELL(ops, OP_GROUPED_LINEAR_BACKWARD_WEIGHT, {dweight, dout, in, offsets, token_of_row, scratch}, accumulate);
}

static void record_grouped_swiglu_forward(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight,
                                          Tensor offsets, Tensor row_weight, Tensor token_of_row, Tensor scratch) {
    TELL(ops, OP_GROUPED_SWIGLU_FORWARD, {hidden, gate_up, in, weight, offsets, row_weight, token_of_row, scratch});
}

static void record_grouped_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                           Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight) {
    TELL(ops, OP_GROUPED_SWIGLU_BACKWARD, {dgate_up, hidden, drow_weight, gate_up, dnext, weight, offsets, row_weight});
}

static void record_grouped_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale,
                                      Tensor offsets, bool accumulate) {
    TELL(ops, OP_GROUPED_LINEAR_FP8, {out, a, b, a_scale, b_scale, offsets}, accumulate);
}

static void record_grouped_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                              Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight,
                                              Tensor in_scale, Tensor weight_scale, Tensor hidden_scale,
                                              Tensor gate_up_scale, Tensor row_weight, Tensor offsets) {
    TELL(ops, OP_GROUPED_SWIGLU_FP8_FORWARD,
         {hidden, hidden_amax, gate_up8, gate_up_amax, scratch, in, weight, in_scale, weight_scale, hidden_scale,
          gate_up_scale, row_weight, offsets});
}

static void record_norm_f32(Ops *ops, Tensor out, Tensor in) {
    TELL(ops, OP_NORM_F32, {out, in});
}

static void record_guard(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit,
                         float norm_limit) {
    TELL(ops, OP_GUARD, {skip, loss, norm, refuse}, .number = {loss_limit, norm_limit});
}

static void record_adamw(Ops *ops, const AdamwArgs *args) {
    TELL(ops, OP_ADAMW, .adamw = *args);
}

// ---- and back -------------------------------------------------------------------------------------------------------

void op_run(const Ops *table, Ops *ops, const OpRecord *r) {
    const Tensor *t = r->tensor;
    switch (r->op) {
    case OP_ZERO: table->zero(ops, t[0]); return;
    case OP_ADD: table->add(ops, t[0], t[1]); return;
    case OP_CONVERT: table->convert(ops, t[0], t[1], r->flag); return;
    case OP_SUM_F32: table->sum_f32(ops, t[0], t[1], r->flag); return;
    case OP_LINEAR_FORWARD: table->linear_forward(ops, t[0], t[1], t[2], t[3]); return;
    case OP_LINEAR_BACKWARD_INPUT: table->linear_backward_input(ops, t[0], t[1], t[2]); return;
    case OP_LINEAR_BACKWARD_WEIGHT: table->linear_backward_weight(ops, t[0], t[1], t[2], r->flag); return;
    case OP_EMBEDDING_FORWARD: table->embedding_forward(ops, t[0], t[1], t[2], r->integer[0]); return;
    case OP_EMBEDDING_BACKWARD: table->embedding_backward(ops, t[0], t[1], t[2], r->integer[0]); return;
    case OP_ADD_RMSNORM_FORWARD:
        table->add_rmsnorm_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], r->number[0]);
        return;
    case OP_ADD_RMSNORM_BACKWARD: table->add_rmsnorm_backward(ops, t[0], t[1], t[2], t[3], t[4], t[5], r->flag); return;
    case OP_QK_ROPE_FORWARD: table->qk_rope_forward(ops, t[0], t[1], t[2], &r->rope); return;
    case OP_QK_ROPE_BACKWARD: table->qk_rope_backward(ops, t[0], t[1], t[2], t[3], t[4], &r->rope); return;
    case OP_LINEAR_ROPE_FORWARD: table->linear_rope_forward(ops, t[0], t[1], t[2], &r->rope); return;
    case OP_ATTENTION_FORWARD: table->attention_forward(ops, t[0], t[1], t[2], t[3], t[4], &r->attention); return;
    case OP_ATTENTION_BACKWARD:
        table->attention_backward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], &r->attention,
                                  r->rope.head_dim ? &r->rope : NULL);
        return;
    case OP_ATTENTION_MERGE: table->attention_merge(ops, t[0], t[1], t[2], t[3]); return;
    case OP_ATTENTION_CACHED:
        table->attention_cached(ops, t[0], t[1], t[2], t[3], r->integer[0], r->integer[1], r->number[0]);
        return;
    case OP_SWIGLU_FORWARD: table->swiglu_forward(ops, t[0], t[1], t[2], t[3]); return;
    case OP_SWIGLU_BACKWARD: table->swiglu_backward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6]); return;
    case OP_SWIGLU_PACKED_FORWARD: table->swiglu_packed_forward(ops, t[0]); return;
    case OP_SWIGLU_PACKED_BACKWARD: table->swiglu_packed_backward(ops, t[0], t[1], t[2]); return;
    case OP_LINEAR_SWIGLU_FORWARD: table->linear_swiglu_forward(ops, t[0], t[1], t[2]); return;
    case OP_LINEAR_SWIGLU_BACKWARD: table->linear_swiglu_backward(ops, t[0], t[1], t[2], t[3], t[4]); return;
    case OP_QUANTIZE: table->quantize(ops, t[0], t[1], t[2], t[3], t[4]); return;
    case OP_QUANTIZE_SCALES: table->quantize_scales(ops, t[0], t[1], r->number[0]); return;
    case OP_LINEAR_FP8: table->linear_fp8(ops, t[0], t[1], t[2], t[3], t[4], t[5], r->flag); return;
    case OP_RMSNORM_FP8_FORWARD:
        table->rmsnorm_fp8_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], r->number[0]);
        return;
    case OP_SWIGLU_FP8_FORWARD:
        table->swiglu_fp8_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]);
        return;
    case OP_SWIGLU_FP8_BACKWARD:
        table->swiglu_fp8_backward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11]);
        return;
    case OP_LINEAR_SWIGLU_FP8_FORWARD:
        table->linear_swiglu_fp8_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10]);
        return;
    case OP_CROSS_ENTROPY: table->cross_entropy(ops, t[0], t[1], t[2], t[3]); return;
    case OP_CROSS_ENTROPY_FP8: table->cross_entropy_fp8(ops, t[0], t[1], t[2], t[3], t[4], t[5]); return;
    case OP_CROSS_ENTROPY_STATS:
        table->cross_entropy_stats(ops, t[0], t[1], t[2], r->integer[0], r->integer[1]);
        return;
    case OP_CROSS_ENTROPY_APPLY:
        table->cross_entropy_apply(ops, t[0], t[1], t[2], t[3], t[4], r->integer[0], r->integer[1]);
        return;
    case OP_MOE_ROUTER_FORWARD: table->moe_router_forward(ops, t[0], t[1], t[2]); return;
    case OP_MOE_ROUTER_BACKWARD: table->moe_router_backward(ops, t[0], t[1], t[2], t[3], t[4], r->flag); return;
    case OP_MOE_ROUTE_FORWARD: table->moe_route_forward(ops, &r->routing); return;
    case OP_MOE_PLACE_ROWS: table->moe_place_rows(ops, t[0], &r->routing); return;
    case OP_MOE_SLOT_GRADIENT: table->moe_slot_gradient(ops, t[0], t[1], &r->routing); return;
    case OP_MOE_ROUTE_BACKWARD: table->moe_route_backward(ops, t[0], t[1], t[2], t[3], &r->routing); return;
    case OP_MOE_BALANCE:
        table->moe_balance(ops, t[0], t[1], t[2], t[3], t[4], (MoeBalance)r->integer[0], r->tokens);
        return;
    case OP_MOE_ADD_COUNTS: table->moe_add_counts(ops, t[0], t[1], r->flag); return;
    case OP_MOE_LOAD_STATS: table->moe_load_stats(ops, t[0], t[1]); return;
    case OP_MOE_BIAS_UPDATE: table->moe_bias_update(ops, t[0], t[1], t[2], r->number[0]); return;
    case OP_MOE_GATHER: table->moe_gather(ops, t[0], t[1], &r->routing); return;
    case OP_MOE_GATHER_FP8: table->moe_gather_fp8(ops, t[0], t[1], t[2], &r->routing); return;
    case OP_MOE_SUM: table->moe_sum(ops, t[0], t[1], t[2], &r->routing); return;
    case OP_GROUPED_LINEAR_FORWARD: table->grouped_linear_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5]); return;
    case OP_GROUPED_LINEAR_BACKWARD_INPUT: table->grouped_linear_backward_input(ops, t[0], t[1], t[2], t[3]); return;
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
        table->grouped_linear_backward_weight(ops, t[0], t[1], t[2], t[3], t[4], t[5], r->flag);
        return;
    case OP_GROUPED_SWIGLU_FORWARD:
        table->grouped_swiglu_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
        return;
    case OP_GROUPED_SWIGLU_BACKWARD:
        table->grouped_swiglu_backward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
        return;
    case OP_GROUPED_LINEAR_FP8: table->grouped_linear_fp8(ops, t[0], t[1], t[2], t[3], t[4], t[5], r->flag); return;
    case OP_GROUPED_SWIGLU_FP8_FORWARD:
        table->grouped_swiglu_fp8_forward(ops, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11],
                                          t[12]);
        return;
    case OP_NORM_F32: table->norm_f32(ops, t[0], t[1]); return;
    case OP_GUARD: table->guard(ops, t[0], t[1], t[2], t[3], r->number[0], r->number[1]); return;
    case OP_ADAMW: table->adamw(ops, &r->adamw); return;
    case OP_UPLOAD:
    case OP_COPY:
    case OP_COUNT: break;
    }
    assert(!"an op that is not recorded");
}

// ---- observers ------------------------------------------------------------------------------------------------------

static void install_recording(Ops *ops) {
#define OPS_LIST_INSTALL(id, function, category) ops->function = record_##function;
    OPS_TENSOR_LIST(OPS_LIST_INSTALL)
#undef OPS_LIST_INSTALL
}

static void add_observer(Ops *ops, OpsObserverCall *call, OpsObserverCall *after, void *context) {
    OpsObserver *observer = xmalloc(sizeof *observer);
    *observer = (OpsObserver){call, after, context, ops->observers};
    ops->observers = observer;
}

void ops_observe_both(Ops *ops, OpsObserverCall *before, OpsObserverCall *after, void *context) {
    if (!ops->observers) {
        Ops *own = xmalloc(sizeof *own);
        *own = *ops;
        ops->observed = own;
        install_recording(ops);
    }
    add_observer(ops, before, after, context);
}

void ops_observe(Ops *ops, OpsObserverCall *call, void *context) {
    ops_observe_both(ops, call, NULL, context);
}

static void restore_functions(Ops *ops) {
    if (ops->observers || !ops->observed) return;
    Ops *own = (Ops *)ops->observed;
    *ops = *own;
    free(own);
}

void ops_stop_observing(Ops *ops) {
    while (ops->observers)
        ops_stop_observer(ops, ops->observers->context);
}

void ops_stop_observer(Ops *ops, void *context) {
    for (OpsObserver **at = &ops->observers; *at;) {
        OpsObserver *observer = *at;
        if (observer->context != context) {
            at = &observer->next;
            continue;
        }
        *at = observer->next;
        free(observer);
    }
    restore_functions(ops);
}

static void recorder_bind_workspace(Ops *ops, void *memory, size_t bytes) {
    (void)ops, (void)memory, (void)bytes;
}

void ops_recorder(Ops *ops, OpsObserverCall *call, void *context) {
    *ops = (Ops){.device = "recorder", .gpu = -1, .bind_workspace = recorder_bind_workspace};
    install_recording(ops);
    add_observer(ops, call, NULL, context);
}
