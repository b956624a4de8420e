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
    int first_expert;
} MoeSizes;

typedef struct CallSizes {
    DType dtype;
    int64_t rows, count;
    int dim, in_dim, out_dim, vocab;
    int64_t in_stride, in_first; // of a linear layer's input; 0: in_dim, and the element that it starts with
    int batch, seq, heads, kv_heads, head_dim, first;
    bool full; // of attention
    int first_key;
    DType second; // of the input, where it may be another
    int layers;
    int ranks; // that share a vocabulary; dim: the columns of each
    float value;
    bool flag; // accumulate, dsum_is_zero, in place, ...: as the op's call says
    MoeSizes moe;
    AdamwArgs adamw; // tensors filled in by the call
} CallSizes;

typedef void OpCall(Ops *ops, void **p, const CallSizes *s); // a buffer that is NULL: an absent tensor

#define CALL_ROPE_EPS 1e-6f    // of the norms of query and key heads
enum { ROUTING_BUFFERS = 12 }; // the tensors of MoeRouting, in their order

#define OPS_LIST_CALL(id, function, category) OpCall call_##function;
OPS_TENSOR_LIST(OPS_LIST_CALL)
#undef OPS_LIST_CALL
