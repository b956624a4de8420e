// Every op as a call of one signature: its sizes in one struct, its buffers in an array in the order of the op's own
// arguments, from which the call makes the tensors. So ops_compare can run any op on any table without knowing it.
#pragma once

#include "ops/ops.h"

typedef struct MoeSizes {
    int64_t tokens;
    int experts, top_k;
    bool norm_topk;
    int64_t rows; // capacity of the permuted buffers: moe_rows_capacity(tokens, top_k, experts, row_align)
    MoeForce force;
} MoeSizes;

typedef struct CallSizes {
    DType dtype;
    int64_t rows, count;
    int dim, in_dim, out_dim, vocab;
    int64_t in_stride, in_first; // of a linear layer's input; 0: in_dim, and the element that it starts with
    int batch, seq, heads, kv_heads, head_dim, first;
    int layers;
    int ranks; // that share a vocabulary; dim: the columns of each
    float value;
    bool flag; // accumulate, dsum_is_zero, in place, ...: as the op's call says
    MoeSizes moe;
    AdamwArgs adamw; // tensors filled in by the call
} CallSizes;

typedef void OpCall(Ops *ops, void **p, const CallSizes *s); // a buffer that is NULL: an absent tensor

enum { ROUTING_BUFFERS = 12 }; // the tensors of MoeRouting, in their order

OpCall call_sum_f32;
OpCall call_linear_forward, call_linear_backward_input, call_linear_backward_weight;
OpCall call_embedding_forward, call_embedding_backward;
OpCall call_add_rmsnorm_forward, call_add_rmsnorm_backward, call_qk_rope_forward, call_qk_rope_backward;
OpCall call_linear_rope_forward;
OpCall call_attention_forward, call_attention_backward, call_attention_cached;
OpCall call_swiglu_forward, call_swiglu_backward, call_swiglu_packed_forward, call_swiglu_packed_backward;
OpCall call_linear_swiglu_forward, call_linear_swiglu_backward;
OpCall call_cross_entropy, call_cross_entropy_stats, call_cross_entropy_apply;
OpCall call_moe_router_forward, call_moe_router_backward, call_moe_route_forward, call_moe_route_backward;
OpCall call_moe_balance, call_moe_add_counts, call_moe_load_stats, call_moe_bias_update, call_moe_gather, call_moe_sum;
OpCall call_grouped_linear_forward, call_grouped_linear_backward_input, call_grouped_linear_backward_weight;
OpCall call_norm_f32, call_guard, call_adamw;
