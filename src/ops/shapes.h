// What kernels take: plain pointers and sizes, read off the tensors of a call. For the implementations of the table.
#pragma once

#include "ops/ops.h"

typedef struct AttentionShape {
    int batch, seq, heads, kv_heads, head_dim;      // kv_heads divides heads
    int64_t q_stride, k_stride, v_stride, o_stride; // elements from one token to the next
    float scale;
    const int32_t *doc_start; // [batch, seq] or NULL
    bool full;                // no causal mask
    int first_key;            // position of key 0, as doc_start counts
} AttentionShape;

static inline AttentionShape attention_shape(Tensor out, Tensor q, Tensor k, Tensor v, const Attention *how) {
    AttentionShape shape;
    shape.seq = how->seq;
    shape.batch = (int)(q.rows / how->seq);
    shape.head_dim = how->head_dim;
    shape.heads = (int)(q.cols / how->head_dim);
    shape.kv_heads = (int)(k.cols / how->head_dim);
    shape.q_stride = q.stride;
    shape.k_stride = k.stride;
    shape.v_stride = v.stride;
    shape.o_stride = out.stride;
    shape.scale = how->scale;
    shape.doc_start = (const int32_t *)how->doc_start.data;
    shape.full = how->full;
    shape.first_key = how->first_key;
    return shape;
}

// Of attention_merge: which rows of lse and which columns of out belong together.
typedef struct MergeShape {
    int64_t tokens, seq;
    int heads, head_dim;
} MergeShape;

static inline MergeShape merge_shape(Tensor out, Tensor lse) {
    MergeShape shape;
    shape.tokens = out.rows;
    shape.seq = lse.cols;
    shape.heads = (int)(lse.rows * lse.cols / out.rows);
    shape.head_dim = (int)(out.cols / shape.heads);
    return shape;
}

typedef struct QkRopeShape {
    int64_t tokens;
    int seq, first_position;
    int heads, kv_heads, head_dim;
    const float *cos, *sin;          // [positions, head_dim / 2]
    const void *q_weight, *k_weight; // [head_dim] or NULL
    float eps;
} QkRopeShape;

static inline QkRopeShape qk_rope_shape(const Rope *rope, int64_t tokens) {
    QkRopeShape shape;
    shape.tokens = tokens;
    shape.seq = rope->seq;
    shape.first_position = rope->first_position;
    shape.heads = rope->heads;
    shape.kv_heads = rope->kv_heads;
    shape.head_dim = rope->head_dim;
    shape.cos = (const float *)rope->cos.data;
    shape.sin = (const float *)rope->sin.data;
    shape.q_weight = rope->q_weight.data;
    shape.k_weight = rope->k_weight.data;
    shape.eps = rope->eps;
    return shape;
}

// MoeRouting, whose comments say what each is.
typedef struct MoePointers {
    const float *logits, *bias;
    float *probs, *lse;
    int32_t *expert;
    float *weight;
    int32_t *counts, *offsets, *row_of_slot, *token_of_row;
    float *row_weight, *prob_sum;
    int64_t tokens, rows;
    int experts, top_k, first_expert;
    bool norm_topk;
    MoeForce force;
} MoePointers;

static inline MoePointers moe_pointers(const MoeRouting *routing) {
    MoePointers p;
    p.logits = (const float *)routing->logits.data;
    p.bias = (const float *)routing->bias.data;
    p.probs = (float *)routing->probs.data;
    p.lse = (float *)routing->lse.data;
    p.expert = (int32_t *)routing->expert.data;
    p.weight = (float *)routing->weight.data;
    p.counts = (int32_t *)routing->counts.data;
    p.offsets = (int32_t *)routing->offsets.data;
    p.row_of_slot = (int32_t *)routing->row_of_slot.data;
    p.token_of_row = (int32_t *)routing->token_of_row.data;
    p.row_weight = (float *)routing->row_weight.data;
    p.prob_sum = (float *)routing->prob_sum.data;
    p.tokens = routing->expert.rows;
    p.rows = routing->token_of_row.rows;
    p.experts = (int)routing->counts.cols;
    p.top_k = (int)routing->expert.cols;
    p.norm_topk = routing->norm_topk;
    p.force = routing->force;
    p.first_expert = routing->first_expert;
    return p;
}
