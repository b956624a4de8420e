// One adapter per op; see calls.h.
#include "calls.h"

#include <math.h>

static Tensor typed(void *data, DType dtype, int64_t rows, int64_t cols, const char *name) {
    return data ? tensor_make(data, dtype, rows, cols, name) : TENSOR_NONE;
}

static Tensor stored(void *data, const CallSizes *s, int64_t rows, int64_t cols, const char *name) {
    return typed(data, s->dtype, rows, cols, name);
}

static Tensor floats(void *data, int64_t rows, int64_t cols, const char *name) {
    return typed(data, DTYPE_F32, rows, cols, name);
}

static Tensor ints(void *data, int64_t rows, int64_t cols, const char *name) {
    return typed(data, DTYPE_I32, rows, cols, name);
}

void call_zero(Ops *ops, void **p, const CallSizes *s) {
    ops->zero(ops, stored(p[0], s, s->rows, s->dim, "out"));
}

void call_add(Ops *ops, void **p, const CallSizes *s) { // out in
    ops->add(ops, tensor_make(p[0], s->dtype, 1, s->count, "out"), tensor_make(p[1], s->dtype, 1, s->count, "in"));
}

void call_convert(Ops *ops, void **p, const CallSizes *s) { // out in: columns of wider ones
    ops->convert(ops, tensor_cols(stored(p[0], s, s->rows, s->out_dim, "out"), s->first, s->dim),
                 tensor_cols(typed(p[1], s->second, s->rows, s->in_dim, "in"), s->first, s->dim), s->flag);
}

void call_sum_f32(Ops *ops, void **p, const CallSizes *s) {
    ops->sum_f32(ops, floats(p[0], 1, 1, "out"), floats(p[1], 1, s->count, "in"), s->flag);
}

void call_norm_f32(Ops *ops, void **p, const CallSizes *s) {
    ops->norm_f32(ops, floats(p[0], 1, 1, "out"), floats(p[1], 1, s->count, "in"));
}

static Tensor linear_in(void *in, const CallSizes *s) {
    Tensor wide = stored(in, s, s->rows, s->in_stride ? s->in_stride : s->in_dim, "in");
    return tensor_cols(wide, s->in_first, s->in_dim);
}

void call_linear_forward(Ops *ops, void **p, const CallSizes *s) { // out in weight add
    ops->linear_forward(ops, stored(p[0], s, s->rows, s->out_dim, "out"), linear_in(p[1], s),
                        stored(p[2], s, s->out_dim, s->in_dim, "weight"), stored(p[3], s, s->rows, s->out_dim, "add"));
}

void call_linear_backward_input(Ops *ops, void **p, const CallSizes *s) { // din dout weight
    ops->linear_backward_input(ops, stored(p[0], s, s->rows, s->in_dim, "din"),
                               stored(p[1], s, s->rows, s->out_dim, "dout"),
                               stored(p[2], s, s->out_dim, s->in_dim, "weight"));
}

void call_linear_backward_weight(Ops *ops, void **p, const CallSizes *s) { // dweight dout in
    ops->linear_backward_weight(ops, floats(p[0], s->out_dim, s->in_dim, "dweight"),
                                stored(p[1], s, s->rows, s->out_dim, "dout"), linear_in(p[2], s), s->flag);
}

void call_embedding_forward(Ops *ops, void **p, const CallSizes *s) { // out ids weight
    ops->embedding_forward(ops, stored(p[0], s, s->rows, s->dim, "out"), ints(p[1], s->rows, 1, "ids"),
                           stored(p[2], s, s->vocab, s->dim, "weight"), s->first);
}

void call_embedding_backward(Ops *ops, void **p, const CallSizes *s) { // dweight dout ids
    ops->embedding_backward(ops, floats(p[0], s->vocab, s->dim, "dweight"), stored(p[1], s, s->rows, s->dim, "dout"),
                            ints(p[2], s->rows, 1, "ids"), s->first);
}

void call_add_rmsnorm_forward(Ops *ops, void **p, const CallSizes *s) { // out sum rstd residual branch weight
    ops->add_rmsnorm_forward(ops, stored(p[0], s, s->rows, s->dim, "out"), stored(p[1], s, s->rows, s->dim, "sum"),
                             floats(p[2], s->rows, 1, "rstd"), stored(p[3], s, s->rows, s->dim, "residual"),
                             stored(p[4], s, s->rows, s->dim, "branch"), stored(p[5], s, 1, s->dim, "weight"), 1e-5f);
}

void call_add_rmsnorm_backward(Ops *ops, void **p, const CallSizes *s) { // dsum dweight dout out rstd weight
    ops->add_rmsnorm_backward(ops, stored(p[0], s, s->rows, s->dim, "dsum"), floats(p[1], 1, s->dim, "dweight"),
                              stored(p[2], s, s->rows, s->dim, "dout"), stored(p[3], s, s->rows, s->dim, "out"),
                              floats(p[4], s->rows, 1, "rstd"), stored(p[5], s, 1, s->dim, "weight"), s->flag);
}

// ---- heads ----------------------------------------------------------------------------------------------------------

// cos, sin, q_weight, k_weight stand in p[0..3].
static Rope rope_make(void **p, const CallSizes *s) {
    int positions = s->first + s->seq, half = s->head_dim / 2;
    return (Rope){.seq = s->seq,
                  .first_position = s->first,
                  .heads = s->heads,
                  .kv_heads = s->kv_heads,
                  .head_dim = s->head_dim,
                  .cos = floats(p[0], positions, half, "cos"),
                  .sin = floats(p[1], positions, half, "sin"),
                  .q_weight = stored(p[2], s, 1, s->head_dim, "q_weight"),
                  .k_weight = stored(p[3], s, 1, s->head_dim, "k_weight"),
                  .eps = CALL_ROPE_EPS};
}

// Query, key and value heads side by side, and what rotary embedding reads of them.
typedef struct Heads {
    Tensor all, rotated, q, k, v;
} Heads;

static Heads heads_make(void *data, const CallSizes *s, int64_t tokens, const char *name) {
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    Tensor all = stored(data, s, tokens, q + 2 * kv, name);
    if (!data) return (Heads){0};
    return (Heads){all, tensor_cols(all, 0, q + kv), tensor_cols(all, 0, q), tensor_cols(all, q, kv),
                   tensor_cols(all, q + kv, kv)};
}

static Tensor head_deviations(void *data, const CallSizes *s) {
    return floats(data, s->rows, s->heads + s->kv_heads, "rstd");
}

void call_qk_rope_forward(Ops *ops, void **p, const CallSizes *s) { // out rstd in + rope
    Rope rope = rope_make(p + 3, s);
    ops->qk_rope_forward(ops, heads_make(p[0], s, s->rows, "out").rotated, head_deviations(p[1], s),
                         heads_make(p[2], s, s->rows, "in").rotated, &rope);
}

void call_linear_rope_forward(Ops *ops, void **p, const CallSizes *s) { // out in weight cos sin
    Rope rope = rope_make((void *[]){p[3], p[4], NULL, NULL}, s);
    Tensor out = heads_make(p[0], s, s->rows, "out").all;
    ops->linear_rope_forward(ops, out, stored(p[1], s, s->rows, s->in_dim, "in"),
                             stored(p[2], s, out.cols, s->in_dim, "weight"), &rope);
}

void call_qk_rope_backward(Ops *ops, void **p, const CallSizes *s) { // grad dq_weight dk_weight in rstd + rope
    Rope rope = rope_make(p + 5, s);
    ops->qk_rope_backward(ops, heads_make(p[0], s, s->rows, "grad").rotated, floats(p[1], 1, s->head_dim, "dq_weight"),
                          floats(p[2], 1, s->head_dim, "dk_weight"), heads_make(p[3], s, s->rows, "in").rotated,
                          head_deviations(p[4], s), &rope);
}

static Attention attention_make(void *doc_start, const CallSizes *s) {
    return (Attention){.seq = s->seq,
                       .head_dim = s->head_dim,
                       .scale = 1.0f / sqrtf((float)s->head_dim),
                       .doc_start = ints(doc_start, (int64_t)s->batch * s->seq, 1, "doc_start"),
                       .full = s->full,
                       .first_key = s->first_key};
}

static Tensor attention_out(void *data, const CallSizes *s, const char *name) {
    return stored(data, s, (int64_t)s->batch * s->seq, (int64_t)s->heads * s->head_dim, name);
}

static Tensor attention_lse(void *data, const CallSizes *s) {
    return floats(data, (int64_t)s->batch * s->heads, s->seq, "lse");
}

void call_attention_forward(Ops *ops, void **p, const CallSizes *s) { // out lse qkv doc_start
    Attention how = attention_make(p[3], s);
    Heads x = heads_make(p[2], s, (int64_t)s->batch * s->seq, "qkv");
    ops->attention_forward(ops, attention_out(p[0], s, "out"), attention_lse(p[1], s), x.q, x.k, x.v, &how);
}

// dqkv dout out lse qkv doc_start, then cos and sin: NULL for no rotation
void call_attention_backward(Ops *ops, void **p, const CallSizes *s) {
    Attention how = attention_make(p[5], s);
    Rope rope = rope_make((void *[]){p[6], p[7], NULL, NULL}, s);
    int64_t tokens = (int64_t)s->batch * s->seq;
    Heads d = heads_make(p[0], s, tokens, "dqkv"), x = heads_make(p[4], s, tokens, "qkv");
    ops->attention_backward(ops, d.q, d.k, d.v, attention_out(p[1], s, "dout"), attention_out(p[2], s, "out"),
                            attention_lse(p[3], s), x.q, x.k, x.v, &how, p[6] ? &rope : NULL);
}

void call_attention_merge(Ops *ops, void **p, const CallSizes *s) { // out lse part part_lse
    Tensor part = attention_out(p[2], s, "part");
    ops->attention_merge(ops, floats(p[0], part.rows, part.cols, "out"), attention_lse(p[1], s), part,
                         attention_lse(p[3], s));
}

void call_attention_cached(Ops *ops, void **p, const CallSizes *s) { // out q k v
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim,
            positions = s->first + s->rows;
    ops->attention_cached(ops, stored(p[0], s, s->rows, q, "out"), stored(p[1], s, s->rows, q, "q"),
                          stored(p[2], s, positions, kv, "k_cache"), stored(p[3], s, positions, kv, "v_cache"),
                          s->first, s->head_dim, 1.0f / sqrtf((float)s->head_dim));
}

// ---- SwiGLU and cross entropy ---------------------------------------------------------------------------------------

static Tensor one_half(void *data, const CallSizes *s, const char *name) {
    return stored(data, s, s->rows, s->dim, name);
}

static Tensor both_halves(void *data, const CallSizes *s, const char *name) {
    return stored(data, s, s->rows, 2 * (int64_t)s->dim, name);
}

void call_swiglu_forward(Ops *ops, void **p, const CallSizes *s) { // out gate_up row_weight row_count
    ops->swiglu_forward(ops, one_half(p[0], s, "out"), both_halves(p[1], s, "gate_up"),
                        floats(p[2], s->rows, 1, "row_weight"), ints(p[3], 1, 1, "row_count"));
}

void call_swiglu_backward(Ops *ops, void **p,
                          const CallSizes *s) { // dgate_up out drow_weight gate_up dout weight count
    void *gate_up = s->flag ? p[0] : p[3], *dout = s->flag ? p[1] : p[4]; // flag: in place
    ops->swiglu_backward(ops, both_halves(p[0], s, "dgate_up"), one_half(p[1], s, "out"),
                         floats(p[2], s->rows, 1, "drow_weight"), both_halves(gate_up, s, "gate_up"),
                         one_half(dout, s, "dout"), floats(p[5], s->rows, 1, "row_weight"),
                         ints(p[6], 1, 1, "row_count"));
}

void call_swiglu_packed_forward(Ops *ops, void **p, const CallSizes *s) { // gate_up
    ops->swiglu_packed_forward(ops, both_halves(p[0], s, "gate_up"));
}

void call_swiglu_packed_backward(Ops *ops, void **p, const CallSizes *s) { // dgate_up gate_hidden dhidden
    void *gate_hidden = s->flag ? p[0] : p[1];                             // flag: in place
    ops->swiglu_packed_backward(ops, both_halves(p[0], s, "dgate_up"), both_halves(gate_hidden, s, "gate_hidden"),
                                one_half(p[2], s, "dhidden"));
}

void call_linear_swiglu_forward(Ops *ops, void **p, const CallSizes *s) { // gate_hidden in weight
    ops->linear_swiglu_forward(ops, both_halves(p[0], s, "gate_hidden"), stored(p[1], s, s->rows, s->in_dim, "in"),
                               stored(p[2], s, 2 * (int64_t)s->dim, s->in_dim, "weight"));
}

void call_linear_swiglu_backward(Ops *ops, void **p, const CallSizes *s) { // dgate_up scratch gate_hidden dnext weight
    void *gate_hidden = s->flag ? p[0] : p[2];                             // flag: in place
    ops->linear_swiglu_backward(
        ops, both_halves(p[0], s, "dgate_up"), one_half(p[1], s, "scratch"), both_halves(gate_hidden, s, "gate_hidden"),
        stored(p[3], s, s->rows, s->out_dim, "dnext"), stored(p[4], s, s->out_dim, s->dim, "weight"));
}

void call_cross_entropy(Ops *ops, void **p, const CallSizes *s) { // losses logits targets scale
    ops->cross_entropy(ops, floats(p[0], s->rows, 1, "losses"), stored(p[1], s, s->rows, s->vocab, "logits"),
                       ints(p[2], s->rows, 1, "targets"), floats(p[3], 1, 1, "scale"));
}

void call_cross_entropy_stats(Ops *ops, void **p, const CallSizes *s) { // stats logits targets
    ops->cross_entropy_stats(ops, floats(p[0], s->rows, SPLIT_STATS, "stats"),
                             stored(p[1], s, s->rows, s->dim, "logits"), ints(p[2], s->rows, 1, "targets"), s->first,
                             s->vocab);
}

void call_cross_entropy_apply(Ops *ops, void **p, const CallSizes *s) { // losses logits targets stats scale
    ops->cross_entropy_apply(ops, floats(p[0], s->rows, 1, "losses"), stored(p[1], s, s->rows, s->dim, "logits"),
                             ints(p[2], s->rows, 1, "targets"), floats(p[3], s->ranks * s->rows, SPLIT_STATS, "stats"),
                             floats(p[4], 1, 1, "scale"), s->first, s->vocab);
}

// ---- experts --------------------------------------------------------------------------------------------------------

static MoeRouting routing_make(void **p, const CallSizes *s) {
    const MoeSizes *m = &s->moe;
    return (MoeRouting){.logits = floats(p[0], m->tokens, m->experts, "logits"),
                        .bias = floats(p[1], 1, m->experts, "bias"),
                        .probs = floats(p[2], m->tokens, m->experts, "probs"),
                        .lse = floats(p[3], m->tokens, 1, "lse"),
                        .expert = ints(p[4], m->tokens, m->top_k, "expert"),
                        .weight = floats(p[5], m->tokens, m->top_k, "weight"),
                        .counts = ints(p[6], 1, m->experts, "counts"),
                        .offsets = ints(p[7], 1, m->experts + 1, "offsets"),
                        .row_of_slot = ints(p[8], m->tokens, m->top_k, "row_of_slot"),
                        .token_of_row = ints(p[9], m->rows, 1, "token_of_row"),
                        .row_weight = floats(p[10], m->rows, 1, "row_weight"),
                        .prob_sum = floats(p[11], 1, m->experts, "prob_sum"),
                        .norm_topk = m->norm_topk,
                        .force = m->force,
                        .first_expert = m->first_expert};
}

void call_moe_router_forward(Ops *ops, void **p, const CallSizes *s) { // logits in weight
    ops->moe_router_forward(ops, floats(p[0], s->rows, s->moe.experts, "logits"),
                            stored(p[1], s, s->rows, s->dim, "in"), stored(p[2], s, s->moe.experts, s->dim, "weight"));
}

void call_moe_router_backward(Ops *ops, void **p, const CallSizes *s) { // din dweight dlogits in weight
    ops->moe_router_backward(ops, stored(p[0], s, s->rows, s->dim, "din"),
                             floats(p[1], s->moe.experts, s->dim, "dweight"),
                             floats(p[2], s->rows, s->moe.experts, "dlogits"), stored(p[3], s, s->rows, s->dim, "in"),
                             stored(p[4], s, s->moe.experts, s->dim, "weight"), s->flag);
}

void call_moe_route_forward(Ops *ops, void **p, const CallSizes *s) {
    MoeRouting routing = routing_make(p, s);
    ops->moe_route_forward(ops, &routing);
}

void call_moe_place_rows(Ops *ops, void **p, const CallSizes *s) { // routing needed
    MoeRouting routing = routing_make(p, s);
    ops->moe_place_rows(ops, ints(p[ROUTING_BUFFERS], 1, 1, "needed"), &routing);
}

void call_moe_slot_gradient(Ops *ops, void **p, const CallSizes *s) { // routing dweight drow_weight
    MoeRouting routing = routing_make(p, s);
    void **rest = p + ROUTING_BUFFERS;
    ops->moe_slot_gradient(ops, floats(rest[0], s->moe.tokens, s->moe.top_k, "dweight"),
                           floats(rest[1], s->moe.rows, 1, "drow_weight"), &routing);
}

void call_moe_route_backward(Ops *ops, void **p, const CallSizes *s) { // routing dlogits drow_weight dprob z_coef
    MoeRouting routing = routing_make(p, s);
    void **rest = p + ROUTING_BUFFERS;
    bool rows = tensor_present(routing.offsets);
    ops->moe_route_backward(ops, floats(rest[0], s->moe.tokens, s->moe.experts, "dlogits"),
                            floats(rest[1], rows ? s->moe.rows : s->moe.tokens, rows ? 1 : s->moe.top_k, "drow_weight"),
                            floats(rest[2], 1, s->moe.experts, "dprob"), floats(rest[3], 1, 1, "z_coef"), &routing);
}

void call_moe_balance(Ops *ops, void **p, const CallSizes *s) { // loss dprob scale counts prob_sum; flag: by layers
    ops->moe_balance(ops, floats(p[0], 1, 1, "loss"), floats(p[1], s->layers, s->moe.experts, "dprob"),
                     floats(p[2], 1, 1, "scale"), ints(p[3], s->layers, s->moe.experts, "counts"),
                     floats(p[4], s->layers, s->moe.experts, "prob_sum"), s->flag ? BALANCE_LAYERS : BALANCE_TOGETHER,
                     s->moe.tokens);
}

void call_moe_add_counts(Ops *ops, void **p, const CallSizes *s) { // total counts
    ops->moe_add_counts(ops, ints(p[0], s->layers, s->moe.experts, "total"),
                        ints(p[1], s->layers, s->moe.experts, "counts"), s->flag);
}

void call_moe_load_stats(Ops *ops, void **p, const CallSizes *s) { // stats counts
    ops->moe_load_stats(ops, floats(p[0], s->layers, MOE_LOAD_STATS, "stats"),
                        ints(p[1], s->layers, s->moe.experts, "counts"));
}

void call_moe_bias_update(Ops *ops, void **p, const CallSizes *s) { // bias counts skip
    ops->moe_bias_update(ops, floats(p[0], s->layers, s->moe.experts, "bias"),
                         ints(p[1], s->layers, s->moe.experts, "counts"), ints(p[2], 1, 1, "skip"), s->value);
}

void call_moe_gather(Ops *ops, void **p, const CallSizes *s) { // routing out in
    MoeRouting routing = routing_make(p, s);
    void **rest = p + ROUTING_BUFFERS;
    ops->moe_gather(ops, stored(rest[0], s, s->moe.rows, s->dim, "out"),
                    stored(rest[1], s, s->moe.tokens, s->dim, "in"), &routing);
}

void call_moe_gather_fp8(Ops *ops, void **p, const CallSizes *s) { // routing rows cols in
    MoeRouting routing = routing_make(p, s);
    void **rest = p + ROUTING_BUFFERS;
    ops->moe_gather_fp8(ops, stored(rest[0], s, s->moe.rows, s->dim, "rows"),
                        stored(rest[1], s, s->dim, s->moe.rows, "cols"),
                        stored(rest[2], s, s->moe.tokens, s->dim, "in"), &routing);
}

void call_moe_sum(Ops *ops, void **p, const CallSizes *s) { // routing out in add
    MoeRouting routing = routing_make(p, s);
    void **rest = p + ROUTING_BUFFERS;
    ops->moe_sum(ops, stored(rest[0], s, s->moe.tokens, s->dim, "out"), stored(rest[1], s, s->moe.rows, s->dim, "in"),
                 stored(rest[2], s, s->moe.tokens, s->dim, "add"), &routing);
}

static int64_t grouped_outputs(const CallSizes *s) { // of all experts
    return (int64_t)s->moe.experts * s->out_dim;
}

// Rows, or with a place for them the tokens that they are made of.
static Tensor row_source(void *data, const CallSizes *s, int cols, bool tokens, const char *name) {
    return stored(data, s, tokens ? s->moe.tokens : s->moe.rows, cols, name);
}

void call_grouped_linear_forward(Ops *ops, void **p, const CallSizes *s) { // routing out in weight scratch
    void **rest = p + ROUTING_BUFFERS;
    MoeRouting r = routing_make(p, s);
    ops->grouped_linear_forward(
        ops, stored(rest[0], s, s->moe.rows, s->out_dim, "out"), row_source(rest[1], s, s->in_dim, rest[3], "in"),
        stored(rest[2], s, grouped_outputs(s), s->in_dim, "weight"), r.offsets, rest[3] ? r.token_of_row : TENSOR_NONE,
        stored(rest[3], s, s->moe.rows, s->in_dim, "scratch"));
}

void call_grouped_linear_backward_input(Ops *ops, void **p, const CallSizes *s) { // routing din dout weight
    void **rest = p + ROUTING_BUFFERS;
    ops->grouped_linear_backward_input(
        ops, stored(rest[0], s, s->moe.rows, s->in_dim, "din"), stored(rest[1], s, s->moe.rows, s->out_dim, "dout"),
        stored(rest[2], s, grouped_outputs(s), s->in_dim, "weight"), routing_make(p, s).offsets);
}

void call_grouped_linear_backward_weight(Ops *ops, void **p, const CallSizes *s) { // routing dweight dout in scratch
    void **rest = p + ROUTING_BUFFERS;
    MoeRouting r = routing_make(p, s);
    ops->grouped_linear_backward_weight(ops, floats(rest[0], grouped_outputs(s), s->in_dim, "dweight"),
                                        stored(rest[1], s, s->moe.rows, s->out_dim, "dout"),
                                        row_source(rest[2], s, s->in_dim, rest[3], "in"), r.offsets,
                                        rest[3] ? r.token_of_row : TENSOR_NONE,
                                        stored(rest[3], s, s->moe.rows, s->in_dim, "scratch"), s->flag);
}

void call_grouped_swiglu_forward(Ops *ops, void **p, const CallSizes *s) { // routing hidden gate_up in weight scratch
    void **rest = p + ROUTING_BUFFERS;
    MoeRouting r = routing_make(p, s);
    ops->grouped_swiglu_forward(
        ops, stored(rest[0], s, s->moe.rows, s->dim, "hidden"), stored(rest[1], s, s->moe.rows, 2 * s->dim, "gate_up"),
        row_source(rest[2], s, s->in_dim, rest[4], "in"),
        stored(rest[3], s, (int64_t)s->moe.experts * 2 * s->dim, s->in_dim, "weight"), r.offsets, r.row_weight,
        rest[4] ? r.token_of_row : TENSOR_NONE, stored(rest[4], s, s->moe.rows, s->in_dim, "scratch"));
}

// routing dgate_up hidden drow_weight gate_up dnext weight
void call_grouped_swiglu_backward(Ops *ops, void **p, const CallSizes *s) {
    void **rest = p + ROUTING_BUFFERS, *gate_up = s->flag ? rest[0] : rest[3]; // flag: in place
    MoeRouting r = routing_make(p, s);
    ops->grouped_swiglu_backward(
        ops, stored(rest[0], s, s->moe.rows, 2 * s->dim, "dgate_up"), stored(rest[1], s, s->moe.rows, s->dim, "hidden"),
        floats(rest[2], s->moe.rows, 1, "drow_weight"), stored(gate_up, s, s->moe.rows, 2 * s->dim, "gate_up"),
        stored(rest[4], s, s->moe.rows, s->out_dim, "dnext"), stored(rest[5], s, grouped_outputs(s), s->dim, "weight"),
        r.offsets, r.row_weight);
}

// routing out a b a_scale b_scale; first: a weight gradient, of [out_dim, rows] and [in_dim, rows]
void call_grouped_linear_fp8(Ops *ops, void **p, const CallSizes *s) {
    void **rest = p + ROUTING_BUFFERS;
    MoeRouting r = routing_make(p, s);
    int64_t rows = s->moe.rows, outputs = grouped_outputs(s);
    bool weight = s->first;
    ops->grouped_linear_fp8(
        ops,
        weight ? floats(rest[0], outputs, s->in_dim, "dweight") : typed(rest[0], DTYPE_BF16, rows, s->out_dim, "out"),
        weight ? stored(rest[1], s, s->out_dim, rows, "a") : stored(rest[1], s, rows, s->in_dim, "a"),
        weight ? typed(rest[2], DTYPE_E4M3, s->in_dim, rows, "b") : typed(rest[2], DTYPE_E4M3, outputs, s->in_dim, "b"),
        floats(rest[3], 1, 1, "a_scale"), floats(rest[4], 1, 1, "b_scale"), r.offsets, s->flag);
}

// routing hidden hidden_amax gate_up8 gate_up_amax scratch in weight in_scale weight_scale hidden_scale gate_up_scale
void call_grouped_swiglu_fp8_forward(Ops *ops, void **p, const CallSizes *s) {
    void **rest = p + ROUTING_BUFFERS;
    MoeRouting r = routing_make(p, s);
    int64_t rows = s->moe.rows;
    ops->grouped_swiglu_fp8_forward(
        ops, typed(rest[0], DTYPE_E4M3, rows, s->dim, "hidden"), floats(rest[1], 1, 1, "hidden_amax"),
        typed(rest[2], DTYPE_E4M3, rows, 2 * s->dim, "gate_up8"), floats(rest[3], 1, 1, "gate_up_amax"),
        typed(rest[4], DTYPE_BF16, rows, 2 * s->dim, "scratch"), typed(rest[5], DTYPE_E4M3, rows, s->in_dim, "in"),
        typed(rest[6], DTYPE_E4M3, (int64_t)s->moe.experts * 2 * s->dim, s->in_dim, "weight"),
        floats(rest[7], 1, 1, "in_scale"), floats(rest[8], 1, 1, "weight_scale"), floats(rest[9], 1, 1, "hidden_scale"),
        floats(rest[10], 1, 1, "gate_up_scale"), r.row_weight, r.offsets);
}

// ---- optimizer ------------------------------------------------------------------------------------------------------

void call_guard(Ops *ops, void **p, const CallSizes *s) { // skip loss norm refuse
    ops->guard(ops, ints(p[0], 1, 1, "skip"), floats(p[1], 1, 1, "loss"), floats(p[2], 1, 1, "norm"),
               ints(p[3], 1, 1, "refuse"), s->value, 3.0f);
}

void call_adamw(Ops *ops, void **p, const CallSizes *s) { // weight master m v grad norm skip
    AdamwArgs args = s->adamw;
    args.weight = stored(p[0], s, 1, s->count, "weight");
    args.master = typed(p[1], s->dtype == DTYPE_F16 ? DTYPE_F32 : DTYPE_U16, 1, s->count, "master");
    args.m = floats(p[2], 1, s->count, "m");
    args.v = floats(p[3], 1, s->count, "v");
    args.grad = floats(p[4], 1, s->count, "grad");
    args.norm = floats(p[5], 1, 1, "norm");
    args.skip = ints(p[6], 1, 1, "skip");
    ops->adamw(ops, &args);
}

// ---- FP8: dtype is the format of what is rounded --------------------------------------------------------------------

void call_quantize(Ops *ops, void **p, const CallSizes *s) { // rows cols amax in scale; flag: in is codes
    int64_t stride = s->in_stride ? s->in_stride : s->dim;
    DType from = s->flag ? s->dtype : DTYPE_BF16;
    Tensor in = tensor_cols(typed(p[3], from, s->rows, stride, "in"), s->in_first, s->dim);
    int64_t piles = s->moe.experts ? s->moe.experts : 1;
    ops->quantize(ops, stored(p[0], s, s->rows, s->dim, "rows"),
                  stored(p[1], s, piles * s->dim, s->rows / piles, "cols"), floats(p[2], 1, 1, "amax"), in,
                  floats(p[4], 1, 1, "scale"));
}

void call_quantize_scales(Ops *ops, void **p, const CallSizes *s) { // scale amax
    ops->quantize_scales(ops, floats(p[0], s->rows, s->dim, "scale"), floats(p[1], s->rows, s->dim, "amax"), s->value);
}

void call_linear_fp8(Ops *ops, void **p, const CallSizes *s) { // out a b a_scale b_scale add
    DType out = s->first ? DTYPE_F32 : DTYPE_BF16;
    ops->linear_fp8(ops, typed(p[0], out, s->rows, s->out_dim, "out"), stored(p[1], s, s->rows, s->in_dim, "a"),
                    typed(p[2], DTYPE_E4M3, s->out_dim, s->in_dim, "b"), floats(p[3], 1, 1, "a_scale"),
                    floats(p[4], 1, 1, "b_scale"), typed(p[5], out, s->rows, s->out_dim, "add"), s->flag);
}

void call_rmsnorm_fp8_forward(Ops *ops, void **p, const CallSizes *s) { // out rows amax rstd residual weight scale
    ops->rmsnorm_fp8_forward(ops, typed(p[0], DTYPE_BF16, s->rows, s->dim, "out"),
                             typed(p[1], DTYPE_E4M3, s->rows, s->dim, "rows"), floats(p[2], 1, 1, "amax"),
                             floats(p[3], s->rows, 1, "rstd"), typed(p[4], DTYPE_BF16, s->rows, s->dim, "residual"),
                             typed(p[5], DTYPE_BF16, 1, s->dim, "weight"), floats(p[6], 1, 1, "scale"), 1e-5f);
}

void call_cross_entropy_fp8(Ops *ops, void **p, const CallSizes *s) { // losses codes logits targets scale codes_scale
    ops->cross_entropy_fp8(ops, floats(p[0], s->rows, 1, "losses"), typed(p[1], DTYPE_E5M2, s->rows, s->vocab, "codes"),
                           typed(p[2], DTYPE_BF16, s->rows, s->vocab, "logits"), ints(p[3], s->rows, 1, "targets"),
                           floats(p[4], 1, 1, "scale"), floats(p[5], 1, 1, "codes_scale"));
}

// hidden hidden_amax gate_up8 gate_up_amax gate_up hidden_scale gate_up_scale row_weight row_count
void call_swiglu_fp8_forward(Ops *ops, void **p, const CallSizes *s) {
    ops->swiglu_fp8_forward(ops, typed(p[0], DTYPE_E4M3, s->rows, s->dim, "hidden"), floats(p[1], 1, 1, "hidden_amax"),
                            typed(p[2], DTYPE_E4M3, s->rows, 2 * s->dim, "gate_up8"),
                            floats(p[3], 1, 1, "gate_up_amax"), typed(p[4], DTYPE_BF16, s->rows, 2 * s->dim, "gate_up"),
                            floats(p[5], 1, 1, "hidden_scale"), floats(p[6], 1, 1, "gate_up_scale"),
                            floats(p[7], s->rows, 1, "row_weight"), ints(p[8], 1, 1, "row_count"));
}

// hidden hidden_amax gate_up8 gate_up_amax scratch in weight in_scale weight_scale hidden_scale gate_up_scale
void call_linear_swiglu_fp8_forward(Ops *ops, void **p, const CallSizes *s) {
    ops->linear_swiglu_fp8_forward(
        ops, typed(p[0], DTYPE_E4M3, s->rows, s->dim, "hidden"), floats(p[1], 1, 1, "hidden_amax"),
        typed(p[2], DTYPE_E4M3, s->rows, 2 * s->dim, "gate_up8"), floats(p[3], 1, 1, "gate_up_amax"),
        typed(p[4], DTYPE_BF16, s->rows, 2 * s->dim, "scratch"), typed(p[5], DTYPE_E4M3, s->rows, s->in_dim, "in"),
        typed(p[6], DTYPE_E4M3, 2 * s->dim, s->in_dim, "weight"), floats(p[7], 1, 1, "in_scale"),
        floats(p[8], 1, 1, "weight_scale"), floats(p[9], 1, 1, "hidden_scale"), floats(p[10], 1, 1, "gate_up_scale"));
}

// drows dcols damax hidden_cols drow_weight gate_up8 dhidden dscale hidden_scale gate_up_scale row_weight row_count
void call_swiglu_fp8_backward(Ops *ops, void **p, const CallSizes *s) {
    ops->swiglu_fp8_backward(
        ops, typed(p[0], DTYPE_E5M2, s->rows, 2 * s->dim, "drows"),
        typed(p[1], DTYPE_E5M2, 2 * s->dim, s->rows, "dcols"), floats(p[2], 1, 1, "damax"),
        typed(p[3], DTYPE_E4M3, s->dim, s->rows, "hidden_cols"), floats(p[4], s->rows, 1, "drow_weight"),
        typed(p[5], DTYPE_E4M3, s->rows, 2 * s->dim, "gate_up8"), typed(p[6], DTYPE_BF16, s->rows, s->dim, "dhidden"),
        floats(p[7], 1, 1, "dscale"), floats(p[8], 1, 1, "hidden_scale"), floats(p[9], 1, 1, "gate_up_scale"),
        floats(p[10], s->rows, 1, "row_weight"), ints(p[11], 1, 1, "row_count"));
}
