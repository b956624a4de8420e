// The operations a transformer needs, as one table of functions on tensors. model/transformer.c is written against this
// table only; ops/cpu and ops/cuda each fill one. A call enqueues work in order and returns; on the CPU it is done when
// the call returns.
//
// Conventions
//  - Tensors (ops/tensor.h) are views of the table's memory (from alloc). Arguments: outputs, inputs, numbers.
//  - Activations and weights are DTYPE_F32, DTYPE_BF16 or DTYPE_F16, the same in one call. Sums are taken in float (or
//  better).
//    Weight gradients, optimizer state, log-sum-exp, reciprocal deviations and everything of the MoE router are float.
//  - Weights are [out, in], row-major, as PyTorch and HF store them. Rows of activations are tokens: row =
//    batch * seq + position.
//  - Rows stand next to each other (stride = columns) unless the comment says "any stride".
//  - Weight gradients are accumulated (+=), or overwritten where the op is told so (accumulate false): a step's first
//    micro-batch. All other outputs are overwritten unless the comment says +=.
//  - Outputs do not overlap inputs unless the comment allows it ("may be").
//  - Which shapes belong together is written down once, in ops/check.c; debug builds check every call, and every build
//    checks a model's calls when it records them (ops/record.h).
//  - Every op is deterministic: the same inputs give the same bits, run after run.
//  - An op may use the bound workspace as scratch; its content does not survive the call.
//  - The backward passes of RMSNorm and of a dense layer's SwiGLU read what the forward pass handed on, and divide by
//    the norm's weight or by silu(gate) to get back what went in. So that this is always possible, in both passes a
//    norm weight or a gate nearer to zero than OPS_NONZERO counts as OPS_NONZERO: too little to matter in any sum. In
//    f16 it is the smallest normal number, an eighth of the rounding of 1, since what is below it is kept too coarsely.
#pragma once

#include "base/status.h"
#include "ops/tensor.h"

typedef struct Ops Ops;

#define OPS_NONZERO     0x1p-60f
#define OPS_NONZERO_F16 0x1p-14f

// Addends of a product in FP8 whose sum may have fewer bits than a float: each may cost 2^-14 of it, in one direction.
#define OPS_FP8_SHORT_SUM (1 << 15)

// No scale is finer, however small a tensor's numbers are: its inverse is finite, and every bf16 number, subnormal or
// not, has the digits of e4m3 and e5m2 under it.
#define OPS_FP8_LEAST_SCALE 0x1p-126f

typedef enum DeviceKind { DEVICE_CPU, DEVICE_CUDA } DeviceKind;
const char *device_kind_name(DeviceKind kind); // "cpu", "cuda"

// ---- what an op is told beside its tensors --------------------------------------------------------------------------

// Causal attention. Tokens are sequences of `seq`; heads of a token are adjacent; query head h reads KV head
// h / (heads / kv_heads), where heads and kv_heads follow from the widths of q and k.
//
// Of a longer sequence that is cut into chunks of `seq`, it is the attention of one chunk's queries to the keys of the
// same chunk, or (full) to those of an earlier one. What queries find in several chunks is put together by
// attention_merge. In the backward pass lse and out are those of all chunks together; the gradients are this one's
// part, and add up.
typedef struct Attention {
    int seq, head_dim;
    float scale;      // of the scores, usually 1 / sqrt(head_dim)
    Tensor doc_start; // [tokens, 1] int32: first position of the token's document, or absent: position i attends to
                      // doc_start[i] <= j <= i
    bool full;        // every query comes after every key: no j <= i. A query whose document begins behind the keys
                      // sees none: its out is 0 and its lse -infinity
    int first_key;    // position of key 0, as doc_start counts
} Attention;

// Rotary position embedding of query and key heads, after an RMSNorm of each head where there are weights for it.
typedef struct Rope {
    int seq, first_position; // position of token t is first_position + t % seq
    int heads, kv_heads, head_dim;
    Tensor cos, sin; // [positions, head_dim / 2]; halves are rotated as HF does: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s)
    Tensor q_weight, k_weight; // [1, head_dim], or absent
    float eps;
} Rope;

typedef enum MoeForce { MOE_NATURAL, MOE_BALANCED, MOE_WORST } MoeForce; // the last two only for benchmarks

// Whose rows the load-balancing loss counts. Together: those of all layers at once, as HF defines it; layers that each
// send everything to a few experts, but to different ones, are balanced for it. Layers: each layer's own, with the full
// weight each; the loss that is reported is their mean.
typedef enum MoeBalance { BALANCE_TOGETHER, BALANCE_LAYERS } MoeBalance;

// Routing of one layer. A slot is t * top_k + j: the j-th choice of token t. A row is a place in the buffer in which
// the slots of one expert stand together in slot order (stable); each expert's rows start at a multiple of row_align,
// and the rows between its last slot and the next expert are padding. The number of rows is a capacity
// (moe_rows_capacity); how many are in use is the last offset.
//
// Where experts are spread over ranks the two halves come apart: a rank chooses experts for its own tokens (a routing
// without rows: offsets, row_of_slot, token_of_row and row_weight are absent), and makes rows for its own experts out
// of the choices of all ranks (one with expert, weight, counts and rows only). Slots of other experts have row -1
// there.
typedef struct MoeRouting {
    Tensor logits; // [tokens, experts] float, in
    Tensor bias;   // [1, experts] float, added to the probabilities for the choice only (aux-free balancing), or absent
    Tensor probs;  // [tokens, experts] float: softmax of the logits
    Tensor lse;    // [tokens, 1] float: log-sum-exp of the logits (for the z-loss)
    Tensor expert; // [tokens, top_k] int32: chosen experts, best first; equal scores: the lower expert first
    Tensor weight; // [tokens, top_k] float: combine weights
    Tensor counts; // [1, experts] int32: slots of each expert
    Tensor offsets;      // [1, experts + 1] int32: first row of each expert; the last is the number of rows in use
    Tensor row_of_slot;  // [tokens, top_k] int32, -1 where the slot has no row here
    Tensor token_of_row; // [rows, 1] int32: of the row's slot; -1 for padding and for unused rows
    Tensor row_weight;   // [rows, 1] float: combine weight of the row, 0 for padding and for unused rows
    Tensor prob_sum;     // [1, experts] float: sum over tokens of probs
    bool norm_topk;      // weights of the chosen experts are rescaled to sum to 1
    MoeForce force;
    int first_expert; // of counts and offsets: 0, or the first of a rank's own
} MoeRouting;

// Rows of an expert start at multiples of this: tiles of the grouped product on the GPU.
enum { OPS_CPU_ROW_ALIGN = 1, OPS_CUDA_ROW_ALIGN = 128 };

// What the kernels on the GPU have room for; a layout refuses models beyond it. bf16 heads are copied in pieces.
enum {
    OPS_CUDA_HEAD_DIM_MAX = 128,
    OPS_CUDA_HEAD_DIM_PIECE = 8,
    OPS_CUDA_EXPERTS_MAX = 256,
    OPS_CUDA_TOP_K_MAX = 32,
};

static inline int64_t moe_rows_capacity(int64_t tokens, int top_k, int experts, int row_align) {
    int64_t rows = tokens * top_k + (int64_t)experts * (row_align - 1); // every expert may need padding
    return (rows + row_align - 1) / row_align * row_align;
}

// How evenly a layer's tokens fall on its experts: the figures of moe_load_stats, in their order.
typedef enum MoeLoad {
    MOE_LOAD_MAX,     // busiest expert over the mean; 1 is balanced, experts / top_k the worst
    MOE_LOAD_ENTROPY, // of the shares, over its maximum: 1 is balanced, 0 is one expert for all
    MOE_LOAD_DEAD,    // experts that no token chose
    MOE_LOAD_STATS,
} MoeLoad;

// What a rank knows of a row of logits whose columns are split over ranks: the columns of cross_entropy_stats.
typedef enum SplitStat {
    SPLIT_MAX,    // largest logit of its columns; -infinity without any
    SPLIT_SUM,    // of e^(logit - SPLIT_MAX) over them
    SPLIT_TARGET, // logit of the target if it is one of them, else 0
    SPLIT_HERE,   // 1 if it is, else 0
    SPLIT_STATS,
} SplitStat;

// One contiguous range of parameters that share their decay: [1, count] each.
typedef struct AdamwArgs {
    Tensor weight; // float, bf16 or f16
    Tensor master; // int16 (as DTYPE_U16) with bf16 weights: what the float master weight has beyond the rounded
                   // bf16 weight, as bf16_split (base/dtype.h) defines it. With f16 weights the float master weight
                   // itself. Absent: the weight itself is the master
    Tensor m, v;   // float: moments
    Tensor grad;   // float
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2;   // 1 - beta1^step, 1 - beta2^step
    float max_norm;       // gradients are scaled by min(1, max_norm / (norm + 1e-6)); 0: no clipping
    Tensor norm;          // [1, 1] float: global gradient norm
    float unscale;        // gradients and norm are multiplied by this first: 1 / loss scale; 0: they have none
    Tensor skip;          // [1, 1] int32, nonzero: leave weights and moments alone
    uint64_t seed, first; // bf16 without master: stochastic rounding keyed by (seed, element first + i)
} AdamwArgs;

// ---- the list of ops ------------------------------------------------------------------------------------------------

// What the time of a step is split into. Planner, profile, bench and report use this one list.
typedef enum OpCategory {
    CATEGORY_GEMM,    // products with a weight
    CATEGORY_GROUPED, // the experts' products
    CATEGORY_ATTENTION,
    CATEGORY_ROUTING,     // router, choice and permutation of expert rows
    CATEGORY_ELEMENTWISE, // norms, rotary, SwiGLU, embedding, cross entropy
    CATEGORY_OPTIMIZER,
    CATEGORY_COPY,
    CATEGORY_COUNT,
} OpCategory;

const char *op_category_name(OpCategory category); // "gemm", as bench and metrics write it

// Every op of the table below that computes on tensors: id, function, category. Recording, the CUDA table and
// ops_compare are made from this list; where one of its ops is missing, they do not compile.
#define OPS_TENSOR_LIST(X)                                                              \
    X(ZERO, zero, CATEGORY_COPY)                                                        \
    X(ADD, add, CATEGORY_ELEMENTWISE)                                                   \
    X(CONVERT, convert, CATEGORY_ELEMENTWISE)                                           \
    X(SUM_F32, sum_f32, CATEGORY_ELEMENTWISE)                                           \
    X(LINEAR_FORWARD, linear_forward, CATEGORY_GEMM)                                    \
    X(LINEAR_BACKWARD_INPUT, linear_backward_input, CATEGORY_GEMM)                      \
    X(LINEAR_BACKWARD_WEIGHT, linear_backward_weight, CATEGORY_GEMM)                    \
    X(EMBEDDING_FORWARD, embedding_forward, CATEGORY_ELEMENTWISE)                       \
    X(EMBEDDING_BACKWARD, embedding_backward, CATEGORY_ELEMENTWISE)                     \
    X(ADD_RMSNORM_FORWARD, add_rmsnorm_forward, CATEGORY_ELEMENTWISE)                   \
    X(ADD_RMSNORM_BACKWARD, add_rmsnorm_backward, CATEGORY_ELEMENTWISE)                 \
    X(QK_ROPE_FORWARD, qk_rope_forward, CATEGORY_ELEMENTWISE)                           \
    X(QK_ROPE_BACKWARD, qk_rope_backward, CATEGORY_ELEMENTWISE)                         \
    X(LINEAR_ROPE_FORWARD, linear_rope_forward, CATEGORY_GEMM)                          \
    X(ATTENTION_FORWARD, attention_forward, CATEGORY_ATTENTION)                         \
    X(ATTENTION_BACKWARD, attention_backward, CATEGORY_ATTENTION)                       \
    X(ATTENTION_MERGE, attention_merge, CATEGORY_ELEMENTWISE)                           \
    X(ATTENTION_CACHED, attention_cached, CATEGORY_ATTENTION)                           \
    X(SWIGLU_FORWARD, swiglu_forward, CATEGORY_ELEMENTWISE)                             \
    X(SWIGLU_BACKWARD, swiglu_backward, CATEGORY_ELEMENTWISE)                           \
    X(SWIGLU_PACKED_FORWARD, swiglu_packed_forward, CATEGORY_ELEMENTWISE)               \
    X(SWIGLU_PACKED_BACKWARD, swiglu_packed_backward, CATEGORY_ELEMENTWISE)             \
    X(LINEAR_SWIGLU_FORWARD, linear_swiglu_forward, CATEGORY_GEMM)                      \
    X(LINEAR_SWIGLU_BACKWARD, linear_swiglu_backward, CATEGORY_GEMM)                    \
    X(QUANTIZE, quantize, CATEGORY_ELEMENTWISE)                                         \
    X(QUANTIZE_SCALES, quantize_scales, CATEGORY_OPTIMIZER)                             \
    X(LINEAR_FP8, linear_fp8, CATEGORY_GEMM)                                            \
    X(RMSNORM_FP8_FORWARD, rmsnorm_fp8_forward, CATEGORY_ELEMENTWISE)                   \
    X(SWIGLU_FP8_FORWARD, swiglu_fp8_forward, CATEGORY_ELEMENTWISE)                     \
    X(SWIGLU_FP8_BACKWARD, swiglu_fp8_backward, CATEGORY_ELEMENTWISE)                   \
    X(LINEAR_SWIGLU_FP8_FORWARD, linear_swiglu_fp8_forward, CATEGORY_GEMM)              \
    X(CROSS_ENTROPY, cross_entropy, CATEGORY_ELEMENTWISE)                               \
    X(CROSS_ENTROPY_FP8, cross_entropy_fp8, CATEGORY_ELEMENTWISE)                       \
    X(CROSS_ENTROPY_STATS, cross_entropy_stats, CATEGORY_ELEMENTWISE)                   \
    X(CROSS_ENTROPY_APPLY, cross_entropy_apply, CATEGORY_ELEMENTWISE)                   \
    X(MOE_ROUTER_FORWARD, moe_router_forward, CATEGORY_ROUTING)                         \
    X(MOE_ROUTER_BACKWARD, moe_router_backward, CATEGORY_ROUTING)                       \
    X(MOE_ROUTE_FORWARD, moe_route_forward, CATEGORY_ROUTING)                           \
    X(MOE_PLACE_ROWS, moe_place_rows, CATEGORY_ROUTING)                                 \
    X(MOE_SLOT_GRADIENT, moe_slot_gradient, CATEGORY_ROUTING)                           \
    X(MOE_ROUTE_BACKWARD, moe_route_backward, CATEGORY_ROUTING)                         \
    X(MOE_BALANCE, moe_balance, CATEGORY_ROUTING)                                       \
    X(MOE_ADD_COUNTS, moe_add_counts, CATEGORY_ROUTING)                                 \
    X(MOE_LOAD_STATS, moe_load_stats, CATEGORY_ROUTING)                                 \
    X(MOE_BIAS_UPDATE, moe_bias_update, CATEGORY_ROUTING)                               \
    X(MOE_GATHER, moe_gather, CATEGORY_ROUTING)                                         \
    X(MOE_GATHER_FP8, moe_gather_fp8, CATEGORY_ROUTING)                                 \
    X(MOE_SUM, moe_sum, CATEGORY_ROUTING)                                               \
    X(GROUPED_LINEAR_FORWARD, grouped_linear_forward, CATEGORY_GROUPED)                 \
    X(GROUPED_LINEAR_BACKWARD_INPUT, grouped_linear_backward_input, CATEGORY_GROUPED)   \
    X(GROUPED_LINEAR_BACKWARD_WEIGHT, grouped_linear_backward_weight, CATEGORY_GROUPED) \
    X(GROUPED_SWIGLU_FORWARD, grouped_swiglu_forward, CATEGORY_GROUPED)                 \
    X(GROUPED_SWIGLU_BACKWARD, grouped_swiglu_backward, CATEGORY_GROUPED)               \
    X(GROUPED_LINEAR_FP8, grouped_linear_fp8, CATEGORY_GROUPED)                         \
    X(GROUPED_SWIGLU_FP8_FORWARD, grouped_swiglu_fp8_forward, CATEGORY_GROUPED)         \
    X(NORM_F32, norm_f32, CATEGORY_OPTIMIZER)                                           \
    X(GUARD, guard, CATEGORY_OPTIMIZER)                                                 \
    X(ADAMW, adamw, CATEGORY_OPTIMIZER)

// And those that move plain bytes, which are timed but not recorded.
#define OPS_LIST(X)                  \
    X(UPLOAD, upload, CATEGORY_COPY) \
    X(COPY, copy, CATEGORY_COPY)     \
    OPS_TENSOR_LIST(X)

#define OPS_LIST_ID(id, function, category) OP_##id,
typedef enum OpId { OPS_LIST(OPS_LIST_ID) OP_COUNT } OpId;
#undef OPS_LIST_ID

const char *op_name(OpId op); // "linear_forward": the function's
OpCategory op_category(OpId op);
void op_sum_categories(const double of_ops[OP_COUNT], double of_categories[CATEGORY_COUNT]);

// ---- the table ------------------------------------------------------------------------------------------------------

typedef struct OpsObserver OpsObserver; // ops/record.h

struct Ops {
    DeviceKind kind;
    const char *device; // what the hardware calls itself: "NVIDIA H200"; of a CPU its name in the catalogue
    int gpu;            // ordinal of the CUDA device that was opened; -1: none
    bool fp8;           // it multiplies in FP8; a CPU emulates that
    bool tf32;          // linear layers of floats may round their inputs to TF32; a CPU never does
    void *state;        // the implementation's own
    int row_align;      // expert rows start at multiples of this (see MoeRouting)

    struct TuneFile *tune; // what it has measured to choose its kernels by (ops/tune.h); NULL: it has no choice
    void (*forget_choices)(Ops *ops); // the next call of an op asks `tune` again. NULL where tune is
    OpsObserver *observers;           // who is told of every call (ops/record.h); NULL: nobody
    const Ops *observed;              // then: the functions behind, NULL where there are none

    // -- memory and order. alloc is aligned to 256 bytes and not cleared. --
    Status (*alloc)(Ops *ops, void **memory, size_t bytes, const char *what);
    void (*free)(Ops *ops, void *memory, size_t bytes);
    int64_t (*memory_total)(Ops *ops); // of the device
    int64_t (*memory_free)(Ops *ops);
    int64_t (*memory_own)(Ops *ops); // that alloc has given and free not taken back
    void (*bind_workspace)(Ops *ops, void *memory, size_t bytes);
    void (*upload)(Ops *ops, void *out, const void *host, size_t bytes);  // host may be reused at once
    void (*download)(Ops *ops, void *host, const void *in, size_t bytes); // waits
    void (*fetch_start)(Ops *ops, int slot, const void *in,
                        size_t bytes);                                // slot 0..7, at most 4096 bytes: asynchronous
    void (*fetch_wait)(Ops *ops, int slot, void *host, size_t bytes); // waits for that fetch only
    void (*copy)(Ops *ops, void *out, const void *in, size_t bytes);
    void (*zero)(Ops *ops, Tensor out);
    Status (*sync)(Ops *ops); // waits for everything; reports the first failure since the last sync

    // -- graphs: between begin and end, work is recorded instead of run. *graph stays NULL where recording is not
    //    supported: then the work was run, and the caller runs it again by calling the functions. --
    void (*graph_begin)(Ops *ops);
    Status (*graph_end)(Ops *ops, void **graph);
    void (*graph_launch)(Ops *ops, void *graph);
    void (*graph_free)(Ops *ops, void *graph);

    // -- time: marks are points in the order of work; slot 0..63. --
    void (*mark)(Ops *ops, int slot);
    double (*mark_elapsed)(Ops *ops, int from, int to); // milliseconds; waits
    void (*profile_start)(Ops *ops);                    // from now on, split the time by op
    // Waits. An op that runs as its parts may count as these.
    void (*profile_stop)(Ops *ops, double milliseconds[OP_COUNT]);

    // -- choices by time that are kept, so that later runs take the same: a small number under a key --
    bool (*choice_recall)(Ops *ops, const char *key, int *value); // false: not known
    void (*choice_keep)(Ops *ops, const char *key, int value);

    // -- sums --
    void (*add)(Ops *ops, Tensor out, Tensor in); // out += in, elementwise; float or bf16, summed in float
    // out (+)= in, elementwise; each float or bf16, summed in float. Any stride.
    void (*convert)(Ops *ops, Tensor out, Tensor in, bool accumulate);
    void (*sum_f32)(Ops *ops, Tensor out, Tensor in, bool accumulate); // out [1, 1] (+)= sum of in

    // -- linear: out = in . weight^T + add. add (may be absent) is the residual that the product joins: [rows, out],
    //    summed in float. in: any stride. --
    void (*linear_forward)(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add);
    void (*linear_backward_input)(Ops *ops, Tensor din, Tensor dout, Tensor weight);
    void (*linear_backward_weight)(Ops *ops, Tensor dweight, Tensor dout, Tensor in, bool accumulate); // in: any stride

    // -- embedding. ids [tokens, 1] int32. weight holds the rows of ids [first, first + its rows): all of them, or a
    //    rank's share of the vocabulary. An id outside gives a row of zeros (the ranks' sum is the embedding) and is
    //    left out of dweight. --
    void (*embedding_forward)(Ops *ops, Tensor out, Tensor ids, Tensor weight, int64_t first);
    void (*embedding_backward)(Ops *ops, Tensor dweight, Tensor dout, Tensor ids, int64_t first);

    // -- residual add + RMSNorm (the add for branches that no product of this rank ends): sum = residual + branch;
    //    out = sum * rstd * weight. branch absent: sum is residual itself and is not written (absent). sum may be
    //    residual. rstd [rows, 1]. --
    void (*add_rmsnorm_forward)(Ops *ops, Tensor out, Tensor sum, Tensor rstd, Tensor residual, Tensor branch,
                                Tensor weight, float eps);
    // dsum += gradient through the norm; dweight +=. out: of the forward pass, which the following linear layer needs
    // anyway; sum * rstd is out / weight. dsum_is_zero: dsum holds nothing yet and is overwritten.
    void (*add_rmsnorm_backward)(Ops *ops, Tensor dsum, Tensor dweight, Tensor dout, Tensor out, Tensor rstd,
                                 Tensor weight, bool dsum_is_zero);

    // -- QK-norm + RoPE on the query and key heads (adjacent: heads, then kv_heads, of head_dim each); out and in: any
    //    stride. Without norm weights out may be in. rstd: [tokens, heads + kv_heads], only with norm weights. --
    void (*qk_rope_forward)(Ops *ops, Tensor out, Tensor rstd, Tensor in, const Rope *rope);
    // grad holds d(out) in its query and key heads and gets d(in) in place. in and rstd: as of the forward pass, only
    // with norm weights. dq_weight, dk_weight +=, likewise. grad and in: any stride.
    void (*qk_rope_backward)(Ops *ops, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                             const Rope *rope);

    // -- the product of queries, keys and values with RoPE behind it: out = in . weight^T, with weight [(heads + 2 *
    //    kv_heads) * head_dim, in]; its query and key heads are rotated. Without norm weights. --
    void (*linear_rope_forward)(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope);

    // -- causal attention; lse: [batch * heads, seq] log-sum-exp of the scaled scores. q, k, v: any stride. --
    void (*attention_forward)(Ops *ops, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, const Attention *how);
    // dq, dk, dv: one stride for the three, overwritten. rope (may be NULL; without norm weights; dk stands behind the
    // heads of dq): dq and dk also go back through its rotation, as qk_rope_backward would take them.
    void (*attention_backward)(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                               Tensor k, Tensor v, const Attention *how, const Rope *rope);
    // out and lse hold what queries found in some keys, part and part_lse what they found in others: out and lse become
    // what they found in both. out: float.
    void (*attention_merge)(Ops *ops, Tensor out, Tensor lse, Tensor part, Tensor part_lse);
    // Inference: new tokens of one sequence at positions first, first + 1, ... against caches [positions, kv_heads *
    // head_dim] that already hold their keys and values.
    void (*attention_cached)(Ops *ops, Tensor out, Tensor q, Tensor k_cache, Tensor v_cache, int first, int head_dim,
                             float scale);

    // -- SwiGLU of expert rows: out = row_weight * silu(gate) * up; gate_up: [rows, 2 * dim], gate first. row_weight
    //    [rows, 1] (may be absent: 1). row_count [1, 1] int32 (may be absent): only the first *row_count rows exist;
    //    the others are left alone. --
    void (*swiglu_forward)(Ops *ops, Tensor out, Tensor gate_up, Tensor row_weight, Tensor row_count);
    // dgate_up may be gate_up; out (may be dout) gets the forward result again, for the weight gradient of the next
    // linear layer. drow_weight: [rows, 1] sum over dim of dout * silu(gate) * up. row_weight is present here.
    void (*swiglu_backward)(Ops *ops, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up, Tensor dout,
                            Tensor row_weight, Tensor row_count);

    // -- SwiGLU of a dense layer, packed: gate_hidden: [rows, 2 * dim] holds gate and hidden = silu(gate) * up side by
    //    side. hidden is what the next linear layer reads, and up is hidden / silu(gate): nothing else need be kept.
    //    Forward in place, from gate and up: [rows, 2 * dim]. Backward: dgate_up may be gate_hidden. --
    void (*swiglu_packed_forward)(Ops *ops, Tensor gate_up);
    void (*swiglu_packed_backward)(Ops *ops, Tensor dgate_up, Tensor gate_hidden, Tensor dhidden);

    // -- The same with the product beside it. Forward: gate and up are in . weight^T, with weight [2 * dim, in].
    //    Backward: the gradient of hidden is dnext . weight, with weight [next, dim] of the linear layer that reads it;
    //    scratch: [rows, dim] for implementations that need a place for it. --
    void (*linear_swiglu_forward)(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight);
    void (*linear_swiglu_backward)(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                   Tensor weight);

    // -- FP8: a tensor of e4m3 (activations, weights) or e5m2 (gradients) holds value / scale, rounded and saturated
    //    (base/dtype.h). scale [1, 1] float is a power of two. amax [1, 1] float (may be absent) becomes the largest of
    //    itself and the magnitudes that were rounded: the next scale comes from it. Products want both operands with
    //    the reduction along their rows, so there are transposed copies: "cols". --
    // rows: like in; cols: its transpose; each may be absent. in (bf16): any stride. Or in is in FP8, whose codes go to
    // cols as they are: on a GPU sizes are multiples of 16, rows and amax absent, the scale does not matter. cols may
    // be a pile of transposes, [n * in.cols, in.rows / n]: of n matrices that stand one below the other in `in` (then
    // without gaps), as the experts' weights do.
    void (*quantize)(Ops *ops, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale);
    // Of every pair: scale = 2^-floor(log2(most / amax)), at least OPS_FP8_LEAST_SCALE, or stays where amax is not a
    // positive number; amax = 0.
    void (*quantize_scales)(Ops *ops, Tensor scale, Tensor amax, float most);
    // out[m, n] = sum over k of a[m, k] b[n, k] a_scale b_scale, + add (like out, may be absent), or += where a weight
    // gradient (float out) accumulates. Results in bf16 may come from sums with fewer bits than a float has (13 beyond
    // the largest addend), up to OPS_FP8_SHORT_SUM of them; longer ones and weight gradients do not.
    void (*linear_fp8)(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor add,
                       bool accumulate);
    // add_rmsnorm_forward without a branch, and its result in FP8 as well.
    void (*rmsnorm_fp8_forward)(Ops *ops, Tensor out, Tensor rows, Tensor amax, Tensor rstd, Tensor residual,
                                Tensor weight, Tensor scale, float eps);
    // hidden = silu(gate) * up in FP8; gate_up8: gate and up, for the backward pass, which has nothing else of them.
    // Of expert rows (row_weight and row_count as in swiglu_forward; both absent: of tokens) hidden has the weight in
    // it; rows that do not exist are left alone, and transposed they are columns.
    void (*swiglu_fp8_forward)(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                               Tensor gate_up, Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight,
                               Tensor row_count);
    // The gradient of gate and up, both ways, and hidden again, transposed, for the next layer's weight gradient.
    // drow_weight as in swiglu_backward; absent where row_weight is.
    void (*swiglu_fp8_backward)(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                                Tensor drow_weight, Tensor gate_up8, Tensor dhidden, Tensor dscale, Tensor hidden_scale,
                                Tensor gate_up_scale, Tensor row_weight, Tensor row_count);
    // linear_fp8 and swiglu_fp8_forward of tokens: gate and up, rounded to bf16 in between, are in . weight^T, with
    // weight [2 * dim, in]. scratch: [rows, 2 * dim] bf16 for implementations that need a place for them; its content
    // is lost. hidden and gate_up8 stand apart from in: they may be written while it is read. So does scratch, and from
    // them.
    void (*linear_swiglu_fp8_forward)(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                      Tensor scratch, Tensor in, Tensor weight, Tensor in_scale, Tensor weight_scale,
                                      Tensor hidden_scale, Tensor gate_up_scale);

    // -- cross entropy over rows of logits, in place: logits become scale * d(loss)/d(logits). losses [rows, 1] =
    //    -log p of the target; a target (int32) < 0 is ignored: loss 0, gradient 0. scale [1, 1] absent: logits stay as
    //    they are (evaluation). --
    void (*cross_entropy)(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale);
    // The gradient goes to codes (e5m2, like logits) instead, rounded once, from float; logits (bf16) stay as they are.
    // No gradient is larger than scale, so that codes_scale can come from that. Columns are multiples of 16.
    void (*cross_entropy_fp8)(Ops *ops, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale,
                              Tensor codes_scale);

    // -- the same over a vocabulary that is split over ranks: column c of logits is id first + c, and padding where
    // that
    //    is vocab or more. First every rank's own part: stats [rows, SPLIT_STATS] float. --
    void (*cross_entropy_stats)(Ops *ops, Tensor stats, Tensor logits, Tensor targets, int64_t first, int64_t vocab);
    // Then, with the stats of all ranks one below the other ([ranks * rows, SPLIT_STATS], in the order of the ranks on
    // each of them), what cross_entropy does: the losses are the same bits on all ranks; gradients of padding are 0.
    void (*cross_entropy_apply)(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor stats, Tensor scale,
                                int64_t first, int64_t vocab);

    // -- MoE --
    void (*moe_router_forward)(Ops *ops, Tensor logits, Tensor in, Tensor weight);
    void (*moe_router_backward)(Ops *ops, Tensor din, Tensor dweight, Tensor dlogits, Tensor in, Tensor weight,
                                bool accumulate); // din +=, dweight (+)=
    // Softmax, choice, weights, counts, offsets and the permutation: everything of MoeRouting from its logits. A
    // routing without rows gets no offsets and no permutation.
    void (*moe_route_forward)(Ops *ops, const MoeRouting *routing);
    // The second half alone: counts and rows of the experts [first_expert, first_expert + columns of counts) from
    // expert and weight. Where there are more rows than room, the last ones get none: needed [1, 1] int32 becomes the
    // number of rows if that is more than it was and more than there is room for; else it stays as it is.
    void (*moe_place_rows)(Ops *ops, Tensor needed, const MoeRouting *routing);
    // dweight [tokens, top_k] float: gradient of each slot's combine weight, that of its row; 0 where it has no row.
    void (*moe_slot_gradient)(Ops *ops, Tensor dweight, Tensor drow_weight, const MoeRouting *routing);
    // dlogits from drow_weight (gradient of row_weight: [rows, 1]; of a routing without rows that of weight: [tokens,
    // top_k]), from the balancing loss (dprob: [1, experts] gradient of each
    // token's probability, from moe_balance; absent: none) and from the z-loss z_coef * sum over tokens of lse^2 ([1,
    // 1]; absent: none).
    void (*moe_route_backward)(Ops *ops, Tensor dlogits, Tensor drow_weight, Tensor dprob, Tensor z_coef,
                               const MoeRouting *routing);
    // Load-balancing loss: experts * sum_e (share of the rows that chose e) * (mean probability of e). loss += loss;
    // dprob[l, e] = scale * d(objective)/d(prob of one token in layer l), the objective being that loss, or by layers
    // the sum of theirs (loss gets their mean). counts, prob_sum, dprob: [layers, experts]; loss, scale: [1, 1].
    void (*moe_balance)(Ops *ops, Tensor loss, Tensor dprob, Tensor scale, Tensor counts, Tensor prob_sum,
                        MoeBalance balance, int64_t tokens);
    void (*moe_add_counts)(Ops *ops, Tensor total, Tensor counts, bool accumulate); // total (+)= counts, int32
    // stats: [layers, MOE_LOAD_STATS] from counts: [layers, experts]; a layer without tokens has MAX and ENTROPY 0.
    void (*moe_load_stats)(Ops *ops, Tensor stats, Tensor counts);
    // Aux-free balancing: bias[l, e] += rate where the expert has less than its layer's mean, -= rate where it has
    // more. skip nonzero: nothing.
    void (*moe_bias_update)(Ops *ops, Tensor bias, Tensor counts, Tensor skip, float rate);
    // out[row] = in[token of its slot]; padding rows (not unused ones) become 0. Both need expert (its shape), counts
    // and rows of the routing only.
    void (*moe_gather)(Ops *ops, Tensor out, Tensor in, const MoeRouting *routing);
    // The same of FP8 codes: rows [rows, dim] and their transpose cols [dim, rows]; each may be absent.
    void (*moe_gather_fp8)(Ops *ops, Tensor rows, Tensor cols, Tensor in, const MoeRouting *routing);
    // out[t] = add[t] (absent: 0; may be out) + sum over its slots, as far as they have rows, of their rows of in.
    void (*moe_sum)(Ops *ops, Tensor out, Tensor in, Tensor add, const MoeRouting *routing);
    // Grouped linear: rows of expert e meet rows [e * out, (e + 1) * out) of weight: [experts * out, in]. offsets as in
    // MoeRouting (on the device: nothing here waits for the host). Rows from the last offset on are left alone. A
    // weight gradient that is not accumulated becomes zero for an expert without rows.
    // Tokens may take the place of rows that moe_gather would make of them: with token_of_row (as in MoeRouting; may be
    // absent) row r of in is row token_of_row[r] of it, and zeros where that is negative. scratch: [rows, columns of
    // in], for implementations that need a place for the rows, with token_of_row only; its content is lost.
    void (*grouped_linear_forward)(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets, Tensor token_of_row,
                                   Tensor scratch);
    void (*grouped_linear_backward_input)(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets);
    void (*grouped_linear_backward_weight)(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                           Tensor token_of_row, Tensor scratch, bool accumulate);
    // SwiGLU of expert rows with the grouped product beside it. Forward: gate_up = in . weight^T, with weight [experts
    // * 2 * dim, in]; hidden: what swiglu_forward makes of it. Backward: the gradient of hidden is dnext . weight, with
    // weight [experts * next, dim] of the layer that reads it; dgate_up (may be gate_up), hidden and drow_weight: what
    // swiglu_backward makes of it. row_weight is present. in may be tokens, as above.
    void (*grouped_swiglu_forward)(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight, Tensor offsets,
                                   Tensor row_weight, Tensor token_of_row, Tensor scratch);
    void (*grouped_swiglu_backward)(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                    Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight);
    // In FP8, both operands with the reduction along their rows, scales and sums as in linear_fp8. bf16 out [rows, n]:
    // rows of a [rows, k] (e4m3 or e5m2) meet b [experts * n, k] (e4m3). Float out [experts * m, n]: a [m, rows] (e5m2)
    // and b [n, rows] (e4m3) over the rows of each expert, (+)=.
    void (*grouped_linear_fp8)(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor offsets,
                               bool accumulate);
    // As linear_swiglu_fp8_forward, of expert rows: grouped_linear_fp8, with weight [experts * 2 * dim, in], and
    // swiglu_fp8_forward with row_weight. Rows from the last offset on are left alone, in scratch too.
    void (*grouped_swiglu_fp8_forward)(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                       Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight, Tensor in_scale,
                                       Tensor weight_scale, Tensor hidden_scale, Tensor gate_up_scale,
                                       Tensor row_weight, Tensor offsets);

    // -- optimizer --
    void (*norm_f32)(Ops *ops, Tensor out, Tensor in); // out [1, 1] = sqrt(sum of squares), fixed order
    // skip = 1 when loss or norm is not finite, or loss > loss_limit, or norm > norm_limit, or refuse (int32; absent:
    // 0) is not 0; else 0. [1, 1] each.
    void (*guard)(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit, float norm_limit);
    void (*adamw)(Ops *ops, const AdamwArgs *args);
};

// Workspace each implementation needs for a model's largest shapes: a pure function of them, so that the planner can
// ask without a device.
typedef struct OpsWorkspaceRequest {
    int64_t tokens; // of a micro-batch
    int batch, seq;
    int hidden, heads, kv_heads, head_dim;
    int vocab;
    int experts, top_k;    // 0 for dense
    int64_t placed_tokens; // whose slots moe_place_rows gets; 0: it is not called
    int placed_experts;    // and the experts that it makes rows for
    int64_t logits_rows;   // rows of one LM-head chunk
    int64_t parameters;    // of the largest optimizer range
    DType dtype;
    int threads; // of the CPU implementation
} OpsWorkspaceRequest;

size_t ops_cpu_workspace(const OpsWorkspaceRequest *request);
size_t ops_cuda_workspace(const OpsWorkspaceRequest *request);
size_t ops_cuda_attention_scratch(const OpsWorkspaceRequest *request); // that its fastest backward kernel takes

// linear_rope_forward, linear_swiglu_* and grouped_swiglu_* as two calls of their parts, for implementations and shapes
// without one kernel for both.
void ops_linear_then_rope_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope);
void ops_linear_then_swiglu_forward(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight);
void ops_linear_then_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                     Tensor weight);
void ops_linear_then_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                        Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight, Tensor in_scale,
                                        Tensor weight_scale, Tensor hidden_scale, Tensor gate_up_scale);
void ops_grouped_then_swiglu_forward(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight, Tensor offsets,
                                     Tensor row_weight, Tensor token_of_row, Tensor scratch);
void ops_grouped_then_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                      Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight);
void ops_grouped_then_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                         Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight, Tensor in_scale,
                                         Tensor weight_scale, Tensor hidden_scale, Tensor gate_up_scale,
                                         Tensor row_weight, Tensor offsets);

Status ops_cpu_create(Ops **ops);
void ops_cpu_destroy(Ops *ops);
void ops_cpu_allocated(Ops *ops, int64_t *current, int64_t *peak); // bytes asked of alloc: now, and at most so far
const char *ops_cpu_bf16(Ops *ops); // instructions of the CPU that multiply bf16; NULL: it becomes floats

// device: index of the GPU. tune_cache: file that keeps the GEMM algorithm choices, or NULL.
Status ops_cuda_create(Ops **ops, int device, const char *tune_cache);
void ops_cuda_destroy(Ops *ops);
bool ops_cuda_available(void); // built with CUDA and a GPU is there
int ops_cuda_count(void);      // GPUs that are there

// The N of "cuda:N"; -1: the name is another, or N is no number of a GPU.
int device_ordinal(const char *device);
// "cpu", "cuda", "cuda:1" or "auto" (cuda when available).
Status ops_create(Ops **ops, const char *device);
void ops_destroy(Ops *ops);
