// What the attention kernels on mma.sync (attention_flash.cu) and on wgmma (attention_hopper.cu) share: what they are
// told, and which blocks of queries see a block of keys.
#pragma once

#include "ops/cuda/vector.cuh"

#include <math_constants.h>

struct FlashArgs {
    const Bf16 *q, *k, *v, *o, *dout;
    Bf16 *out, *dq, *dk, *dv;
    float *lse, *row_sum; // [batch, heads, seq]
    const int32_t *doc_start;
    int batch, seq, heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride, grad_stride;
    float scale;
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

// The end of the blocks of `rows` queries, from block m_begin on, that see keys up to `last`. Documents begin ever
// later: the queries whose documents begin behind these keys are left out.
static __device__ __forceinline__ int query_blocks_end(const int32_t *doc_start, int seq, int rows, int m_begin,
                                                       int last) {
    int m_end = (seq + rows - 1) / rows;
    if (doc_start)
        while (m_end - 1 > m_begin && doc_start[(m_end - 1) * rows] > last)
            m_end--;
    return m_end;
}
