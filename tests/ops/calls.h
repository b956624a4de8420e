// Every op as a call of one signature: its sizes in one struct, its buffers in an array in the order of the op's own
// arguments. So a program can run any op on any table without knowing it: tests/ops/ops_compare on the CPU and the CUDA
// table, train/bench_ops against the clock.
#pragma once

#include "ops/ops.h"

typedef struct CallSizes {
    DType dtype;
    int64_t rows, count;
    int dim, in_dim, out_dim, vocab;
    int64_t in_stride, in_first; // of a linear layer's input; 0: in_dim, and the element that it starts with
    int batch, seq, heads, kv_heads, head_dim, first;
    int layers;
    float value;
    bool flag; // accumulate, dsum_is_zero, NULL branch, ...: as the op's call says
    MoeShape moe;
    AdamwArgs adamw; // pointers filled in by the call
} CallSizes;

typedef void OpCall(Ops *ops, void **p, const CallSizes *s);

enum { ROUTING_BUFFERS = 12 }; // the fields of MoeRouting, in their order

MoeRouting routing_of(void **p);

OpCall call_fill_f32, call_cast, call_sum_f32;
OpCall call_linear_forward, call_linear_backward_input, call_linear_backward_weight;
OpCall call_embedding_forward, call_embedding_backward;
OpCall call_add_rmsnorm_forward, call_add_rmsnorm_backward, call_qk_rope_forward, call_qk_rope_backward;
OpCall call_linear_rope_forward;
OpCall call_attention_forward, call_attention_backward, call_attention_cached;
OpCall call_swiglu_forward, call_swiglu_backward, call_swiglu_packed_forward, call_swiglu_packed_backward;
OpCall call_linear_swiglu_forward, call_linear_swiglu_backward;
OpCall call_cross_entropy;
OpCall call_moe_router_forward, call_moe_router_backward, call_moe_route_forward, call_moe_route_backward;
OpCall call_moe_balance, call_moe_load_stats, call_moe_bias_update, call_moe_gather, call_moe_sum;
OpCall call_grouped_linear_forward, call_grouped_linear_backward_input, call_grouped_linear_backward_weight;
OpCall call_norm_f32, call_guard, call_adamw;
