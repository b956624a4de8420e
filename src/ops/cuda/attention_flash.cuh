// What the attention kernels on mma.sync (attention_flash.cu) and on wgmma (attention_hopper.cu) share: what they are
// told, and which blocks of queries see a block of keys.
#pragma once

#include "ops/cuda/vector.cuh"

#include <math_constants.h>

struct FlashArgs { // of f16 where the kernel is a template for it
    const Bf16 *q, *k, *v, *o, *dout;
    Bf16 *out, *dq, *dk, *dv;
    float *lse, *row_sum; // [batch, heads, seq]
    const int32_t *doc_start;
    int batch, seq, heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride, grad_stride;
    float scale;
    bool full;     // which the kernels are templates on: without it, they cost what they would cost alone
    int first_key; // position of key 0, as doc_start counts
};

static inline FlashArgs flash_args(const AttentionShape *shape, const void *q, const void *k, const void *v) {
    FlashArgs args = {};
    args.q = (const Bf16 *)q, args.k = (const Bf16 *)k, args.v = (const Bf16 *)v;
    args.doc_start = shape->doc_start;
    args.batch = shape->batch, args.seq = shape->seq;
    args.heads = shape->heads, args.kv_heads = shape->kv_heads, args.head_dim = shape->head_dim;
    args.q_stride = shape->q_stride, args.k_stride = shape->k_stride, args.v_stride = shape->v_stride;
    args.o_stride = shape->o_stride;
    args.scale = shape->scale;
    args.full = shape->full, args.first_key = shape->first_key;
    return args;
}

static inline FlashArgs flash_backward_args(const AttentionShape *shape, void *dq, void *dk, void *dv,
                                            int64_t dqkv_stride, const void *dout, const void *out, const float *lse,
                                            float *row_sum, const void *q, const void *k, const void *v) {
    FlashArgs args = flash_args(shape, q, k, v);
    args.o = (const Bf16 *)out, args.dout = (const Bf16 *)dout, args.lse = (float *)lse, args.row_sum = row_sum;
    args.dq = (Bf16 *)dq, args.dk = (Bf16 *)dk, args.dv = (Bf16 *)dv, args.grad_stride = dqkv_stride;
    return args;
}

// Query i sees keys up to i + ahead.
template <bool FULL> static __device__ __forceinline__ int keys_ahead(const FlashArgs &args) {
    return FULL ? args.seq : 0;
}

// The last key that a query sees. Without FULL there are queries for all keys: those beyond the end come after all.
template <bool FULL> static __device__ __forceinline__ int last_key(const FlashArgs &args, int query) {
    return FULL ? args.seq - 1 : query;
}

// Two keys, 8 apart: the first query that sees each, and where it stands as doc_start counts.
struct KeyPair {
    int first_query[2], position[2];
};

template <bool FULL> static __device__ __forceinline__ KeyPair key_pair(const FlashArgs &args, int key) {
    return {{key - keys_ahead<FULL>(args), key + 8 - keys_ahead<FULL>(args)},
            {key + args.first_key, key + 8 + args.first_key}};
}

// The end of the blocks of `columns` keys that queries [m0, m0 + rows) see, and the first of them. There is at least
// one: it is masked where the documents of all these queries begin behind the keys.
template <bool FULL>
static __device__ __forceinline__ int key_blocks_end(const FlashArgs &args, int m0, int rows, int columns) {
    return (min(m0 + rows + keys_ahead<FULL>(args), args.seq) + columns - 1) / columns;
}

static __device__ __forceinline__ int key_blocks_begin(const FlashArgs &args, const int32_t *doc_start, int m0,
                                                       int columns, int end) {
    return doc_start ? min(max(doc_start[m0] - args.first_key, 0) / columns, end - 1) : 0;
}

// The first of the blocks of `rows` queries that see keys from n0 on, and the end of those, from block m_begin on, that
// see keys up to `last`. Documents begin ever later: the queries whose documents begin behind these keys are left out.
template <bool FULL> static __device__ __forceinline__ int query_blocks_begin(const FlashArgs &args, int n0, int rows) {
    return FULL ? 0 : n0 / rows;
}

static __device__ __forceinline__ int query_blocks_end(const FlashArgs &args, const int32_t *doc_start, int rows,
                                                       int m_begin, int last) {
    int m_end = (args.seq + rows - 1) / rows;
    if (doc_start)
        while (m_end - 1 > m_begin && doc_start[(m_end - 1) * rows] - args.first_key > last)
            m_end--;
    return m_end;
}
