// One adapter per op; see calls.h.
#include "ops/calls.h"

#include <math.h>

MoeRouting routing_of(void **p) {
    return (MoeRouting){p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11]};
}

static void *element(void *base, int64_t index, DType dtype) {
    return (char *)base + (size_t)index * dtype_size(dtype);
}

void call_fill_f32(Ops *ops, void **p, const CallSizes *s) {
    ops->fill_f32(ops, p[0], s->value, s->count);
}

void call_cast(Ops *ops, void **p, const CallSizes *s) { // flag: from float to bf16
    ops->cast(ops, p[0], s->flag ? DTYPE_BF16 : DTYPE_F32, p[1], s->flag ? DTYPE_F32 : DTYPE_BF16, s->count);
}

void call_sum_f32(Ops *ops, void **p, const CallSizes *s) {
    ops->sum_f32(ops, p[0], p[1], s->count, s->flag);
}

void call_norm_f32(Ops *ops, void **p, const CallSizes *s) {
    ops->norm_f32(ops, p[0], p[1], s->count);
}

static int64_t in_stride(const CallSizes *s) {
    return s->in_stride ? s->in_stride : s->in_dim;
}

static const void *in_first(const void *in, const CallSizes *s) {
    return (const char *)in + (size_t)s->in_first * dtype_size(s->dtype);
}

void call_linear_forward(Ops *ops, void **p, const CallSizes *s) { // out in weight add
    ops->linear_forward(ops, p[0], in_first(p[1], s), in_stride(s), p[2], p[3], s->rows, s->in_dim, s->out_dim,
                        s->dtype);
}

void call_linear_backward_input(Ops *ops, void **p, const CallSizes *s) {
    ops->linear_backward_input(ops, p[0], p[1], p[2], s->rows, s->in_dim, s->out_dim, s->dtype);
}

void call_linear_backward_weight(Ops *ops, void **p, const CallSizes *s) {
    ops->linear_backward_weight(ops, p[0], p[1], in_first(p[2], s), in_stride(s), s->rows, s->in_dim, s->out_dim,
                                s->flag, s->dtype);
}

void call_embedding_forward(Ops *ops, void **p, const CallSizes *s) {
    ops->embedding_forward(ops, p[0], p[1], p[2], s->rows, s->dim, s->dtype);
}

void call_embedding_backward(Ops *ops, void **p, const CallSizes *s) {
    ops->embedding_backward(ops, p[0], p[1], p[2], s->rows, s->dim, s->vocab, s->dtype);
}

void call_add_rmsnorm_forward(Ops *ops, void **p, const CallSizes *s) { // out sum rstd residual branch weight
    ops->add_rmsnorm_forward(ops, p[0], p[1], p[2], p[3], p[4], p[5], s->rows, s->dim, 1e-5f, s->dtype);
}

void call_add_rmsnorm_backward(Ops *ops, void **p, const CallSizes *s) { // dsum dweight dout out rstd weight
    ops->add_rmsnorm_backward(ops, p[0], p[1], p[2], p[3], p[4], p[5], s->rows, s->dim, s->flag, s->dtype);
}

// cos, sin, q_weight, k_weight stand in p[0..3].
static QkRopeShape rope_shape(void **p, const CallSizes *s) {
    return (QkRopeShape){.tokens = s->rows,
                         .seq = s->seq,
                         .first_position = s->first,
                         .heads = s->heads,
                         .kv_heads = s->kv_heads,
                         .head_dim = s->head_dim,
                         .cos = p[0],
                         .sin = p[1],
                         .q_weight = p[2],
                         .k_weight = p[3],
                         .eps = 1e-6f};
}

static int64_t qkv_stride(const CallSizes *s) {
    return (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
}

void call_qk_rope_forward(Ops *ops, void **p, const CallSizes *s) { // out rstd in + shape
    QkRopeShape shape = rope_shape(p + 3, s);
    ops->qk_rope_forward(ops, p[0], qkv_stride(s), p[2], qkv_stride(s), p[1], &shape, s->dtype);
}

void call_linear_rope_forward(Ops *ops, void **p, const CallSizes *s) { // out in weight cos sin
    QkRopeShape shape = rope_shape((void *[]){p[3], p[4], NULL, NULL}, s);
    ops->linear_rope_forward(ops, p[0], p[1], p[2], s->in_dim, &shape, s->dtype);
}

void call_qk_rope_backward(Ops *ops, void **p, const CallSizes *s) { // grad dq_weight dk_weight in rstd + shape
    QkRopeShape shape = rope_shape(p + 5, s);
    ops->qk_rope_backward(ops, p[0], qkv_stride(s), p[3], qkv_stride(s), p[4], p[1], p[2], &shape, s->dtype);
}

static AttentionShape attention_shape(const int32_t *doc_start, const CallSizes *s) {
    int64_t stride = qkv_stride(s);
    return (AttentionShape){.batch = s->batch,
                            .seq = s->seq,
                            .heads = s->heads,
                            .kv_heads = s->kv_heads,
                            .head_dim = s->head_dim,
                            .q_stride = stride,
                            .k_stride = stride,
                            .v_stride = stride,
                            .o_stride = (int64_t)s->heads * s->head_dim,
                            .scale = 1.0f / sqrtf((float)s->head_dim),
                            .doc_start = doc_start};
}

void call_attention_forward(Ops *ops, void **p, const CallSizes *s) { // out lse qkv doc_start
    AttentionShape shape = attention_shape(p[3], s);
    int64_t k = (int64_t)s->heads * s->head_dim, v = k + (int64_t)s->kv_heads * s->head_dim;
    ops->attention_forward(ops, p[0], p[1], p[2], element(p[2], k, s->dtype), element(p[2], v, s->dtype), &shape,
                           s->dtype);
}

// dqkv dout out lse qkv doc_start, then cos and sin: NULL for no rotation
void call_attention_backward(Ops *ops, void **p, const CallSizes *s) {
    AttentionShape shape = attention_shape(p[5], s);
    QkRopeShape rope = rope_shape((void *[]){p[6], p[7], NULL, NULL}, s);
    rope.tokens = (int64_t)s->batch * s->seq;
    int64_t k = (int64_t)s->heads * s->head_dim, v = k + (int64_t)s->kv_heads * s->head_dim;
    ops->attention_backward(ops, p[0], element(p[0], k, s->dtype), element(p[0], v, s->dtype), qkv_stride(s), p[1],
                            p[2], p[3], p[4], element(p[4], k, s->dtype), element(p[4], v, s->dtype), &shape,
                            p[6] ? &rope : NULL, s->dtype);
}

void call_attention_cached(Ops *ops, void **p, const CallSizes *s) { // out q k v
    ops->attention_cached(ops, p[0], p[1], p[2], p[3], (int)s->rows, s->first, s->heads, s->kv_heads, s->head_dim,
                          1.0f / sqrtf((float)s->head_dim), s->dtype);
}

void call_swiglu_forward(Ops *ops, void **p, const CallSizes *s) { // out gate_up row_weight row_count
    ops->swiglu_forward(ops, p[0], p[1], p[2], p[3], s->rows, s->dim, s->dtype);
}

void call_swiglu_backward(Ops *ops, void **p,
                          const CallSizes *s) { // dgate_up out drow_weight gate_up dout weight count
    void *gate_up = s->flag ? p[0] : p[3], *dout = s->flag ? p[1] : p[4]; // flag: in place
    ops->swiglu_backward(ops, p[0], p[1], p[2], gate_up, dout, p[5], p[6], s->rows, s->dim, s->dtype);
}

void call_swiglu_packed_forward(Ops *ops, void **p, const CallSizes *s) { // gate_up
    ops->swiglu_packed_forward(ops, p[0], s->rows, s->dim, s->dtype);
}

void call_swiglu_packed_backward(Ops *ops, void **p, const CallSizes *s) { // dgate_up gate_hidden dhidden
    ops->swiglu_packed_backward(ops, p[0], s->flag ? p[0] : p[1], p[2], s->rows, s->dim, s->dtype); // flag: in place
}

void call_linear_swiglu_forward(Ops *ops, void **p, const CallSizes *s) { // gate_hidden in weight
    ops->linear_swiglu_forward(ops, p[0], p[1], p[2], s->rows, s->in_dim, s->dim, s->dtype);
}

void call_linear_swiglu_backward(Ops *ops, void **p, const CallSizes *s) { // dgate_up scratch gate_hidden dnext weight
    void *gate_hidden = s->flag ? p[0] : p[2];                             // flag: in place
    ops->linear_swiglu_backward(ops, p[0], p[1], gate_hidden, p[3], p[4], s->rows, s->dim, s->out_dim, s->dtype);
}

void call_cross_entropy(Ops *ops, void **p, const CallSizes *s) { // losses logits targets scale
    ops->cross_entropy(ops, p[0], p[1], p[2], p[3], s->rows, s->vocab, s->dtype);
}

void call_moe_router_forward(Ops *ops, void **p, const CallSizes *s) {
    ops->moe_router_forward(ops, p[0], p[1], p[2], s->rows, s->dim, s->moe.experts, s->dtype);
}

void call_moe_router_backward(Ops *ops, void **p, const CallSizes *s) { // din dweight dlogits in weight
    ops->moe_router_backward(ops, p[0], p[1], p[2], p[3], p[4], s->rows, s->dim, s->moe.experts, s->flag, s->dtype);
}

void call_moe_route_forward(Ops *ops, void **p, const CallSizes *s) {
    MoeRouting routing = routing_of(p);
    ops->moe_route_forward(ops, &routing, &s->moe);
}

void call_moe_route_backward(Ops *ops, void **p, const CallSizes *s) { // routing dlogits drow_weight dprob z_coef
    MoeRouting routing = routing_of(p);
    void **rest = p + ROUTING_BUFFERS;
    ops->moe_route_backward(ops, rest[0], rest[1], rest[2], rest[3], &routing, &s->moe);
}

void call_moe_balance(Ops *ops, void **p, const CallSizes *s) { // loss dprob scale counts prob_sum; flag: by layers
    ops->moe_balance(ops, p[0], p[1], p[2], p[3], p[4], s->flag ? BALANCE_LAYERS : BALANCE_TOGETHER, s->layers,
                     s->moe.tokens, s->moe.experts);
}

void call_moe_load_stats(Ops *ops, void **p, const CallSizes *s) { // stats counts
    ops->moe_load_stats(ops, p[0], p[1], s->layers, s->moe.experts);
}

void call_moe_bias_update(Ops *ops, void **p, const CallSizes *s) { // bias counts skip
    ops->moe_bias_update(ops, p[0], p[1], p[2], s->value, s->layers, s->moe.experts);
}

void call_moe_gather(Ops *ops, void **p, const CallSizes *s) { // routing out in
    MoeRouting routing = routing_of(p);
    ops->moe_gather(ops, p[ROUTING_BUFFERS], p[ROUTING_BUFFERS + 1], &routing, &s->moe, s->dim, s->dtype);
}

void call_moe_sum(Ops *ops, void **p, const CallSizes *s) { // routing out in add
    MoeRouting routing = routing_of(p);
    ops->moe_sum(ops, p[ROUTING_BUFFERS], p[ROUTING_BUFFERS + 1], p[ROUTING_BUFFERS + 2], &routing, &s->moe, s->dim,
                 s->dtype);
}

void call_grouped_linear_forward(Ops *ops, void **p, const CallSizes *s) { // routing out in weight
    MoeRouting r = routing_of(p);
    void **rest = p + ROUTING_BUFFERS;
    ops->grouped_linear_forward(ops, rest[0], rest[1], rest[2], r.offsets, s->moe.experts, s->moe.rows, s->in_dim,
                                s->out_dim, s->dtype);
}

void call_grouped_linear_backward_input(Ops *ops, void **p, const CallSizes *s) {
    MoeRouting r = routing_of(p);
    void **rest = p + ROUTING_BUFFERS;
    ops->grouped_linear_backward_input(ops, rest[0], rest[1], rest[2], r.offsets, s->moe.experts, s->moe.rows,
                                       s->in_dim, s->out_dim, s->dtype);
}

void call_grouped_linear_backward_weight(Ops *ops, void **p, const CallSizes *s) { // routing dweight dout in
    MoeRouting r = routing_of(p);
    void **rest = p + ROUTING_BUFFERS;
    ops->grouped_linear_backward_weight(ops, rest[0], rest[1], rest[2], r.offsets, s->moe.experts, s->moe.rows,
                                        s->in_dim, s->out_dim, s->flag, s->dtype);
}

void call_guard(Ops *ops, void **p, const CallSizes *s) {
    ops->guard(ops, p[0], p[1], p[2], s->value, 3.0f);
}

void call_adamw(Ops *ops, void **p, const CallSizes *s) { // weight master_low m v grad norm skip
    AdamwArgs args = s->adamw;
    args.count = s->count;
    args.dtype = s->dtype;
    args.weight = p[0];
    args.master_low = p[1];
    args.m = p[2];
    args.v = p[3];
    args.grad = p[4];
    args.norm = p[5];
    args.skip = p[6];
    ops->adamw(ops, &args);
}
