// The operations a transformer needs, as one table of functions on plain pointers and sizes. model/transformer.c is
// written against this table only; ops/cpu and ops/cuda each fill one. A call enqueues work in order and returns; on
// the CPU it is done when the call returns.
//
// Conventions
//  - All pointers are memory of the table (from alloc), except where a name says host.
//  - `dtype` is the storage type of activations and weights: DTYPE_F32 or DTYPE_BF16. Sums are taken in float (or
//  better).
//    Weight gradients, optimizer state, log-sum-exp, reciprocal deviations and everything of the MoE router are float.
//  - Weights are [out_dim, in_dim], row-major, as PyTorch and HF store them. Rows are tokens: row = batch * seq +
//  position.
//  - Weight gradients are accumulated (+=), or overwritten where the op is told so (accumulate false): a step's first
//    micro-batch. All other outputs are overwritten unless the comment says +=.
//  - Outputs do not overlap inputs unless the comment allows it ("may be").
//  - Every op is deterministic: the same inputs give the same bits, run after run.
//  - An op may use the bound workspace as scratch; its content does not survive the call.
//  - The backward passes of RMSNorm and of a dense layer's SwiGLU read what the forward pass handed on, and divide by
//    the norm's weight or by silu(gate) to get back what went in. So that this is always possible, in both passes a
//    norm weight or a gate nearer to zero than OPS_NONZERO counts as OPS_NONZERO: too little to matter in any sum.
#pragma once

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Ops Ops;

#define OPS_NONZERO 0x1p-60f

// ---- shapes ---------------------------------------------------------------------------------------------------------

typedef struct AttentionShape {
    int batch, seq, heads, kv_heads,
        head_dim; // kv_heads divides heads; query head h reads KV head h / (heads / kv_heads)
    int64_t q_stride, k_stride, v_stride,
        o_stride;             // elements from one token to the next (the heads of a token are adjacent)
    float scale;              // of the scores, usually 1 / sqrt(head_dim)
    const int32_t *doc_start; // [batch, seq] first position of the token's document, or NULL: position i attends to
                              // doc_start[i] <= j <= i
} AttentionShape;

typedef struct QkRopeShape {
    int64_t tokens; // position of token t is first_position + t % seq
    int seq, first_position;
    int heads, kv_heads, head_dim;
    const float *cos,
        *sin; // [positions, head_dim / 2]; halves are rotated as HF does: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s)
    const void *q_weight, *k_weight; // [head_dim] RMSNorm over each head before the rotation, or NULL for none
    float eps;
} QkRopeShape;

typedef enum MoeForce { MOE_NATURAL, MOE_BALANCED, MOE_WORST } MoeForce; // the last two only for benchmarks

// Whose rows the load-balancing loss counts. Together: those of all layers at once, as HF defines it; layers that each
// send everything to a few experts, but to different ones, are balanced for it. Layers: each layer's own, with the full
// weight each; the loss that is reported is their mean.
typedef enum MoeBalance { BALANCE_TOGETHER, BALANCE_LAYERS } MoeBalance;

typedef struct MoeShape {
    int64_t tokens;
    int experts, top_k;
    bool norm_topk; // weights of the chosen experts are rescaled to sum to 1
    int64_t rows;   // capacity of the permuted buffers: moe_rows_capacity(tokens, top_k, experts, row_align)
    MoeForce force;
} MoeShape;

// Routing of one layer. A slot is t * top_k + j: the j-th choice of token t. A row is a place in the buffer in which
// the slots of one expert stand together in slot order (stable); each expert's rows start at a multiple of row_align,
// and the rows between its last slot and the next expert are padding.
typedef struct MoeRouting {
    float *logits;        // [tokens, experts] in
    const float *bias;    // [experts] added to the probabilities for the choice only (aux-free balancing), or NULL
    float *probs;         // [tokens, experts] softmax of the logits
    float *lse;           // [tokens] log-sum-exp of the logits (for the z-loss)
    int32_t *expert;      // [tokens, top_k] chosen experts, best first; equal scores: the lower expert first
    float *weight;        // [tokens, top_k] combine weights
    int32_t *counts;      // [experts] slots of each expert
    int32_t *offsets;     // [experts + 1] first row of each expert; the last is the number of rows in use
    int32_t *row_of_slot; // [tokens * top_k]
    int32_t *slot_of_row; // [rows] -1 for padding and for unused rows
    float *row_weight;    // [rows] combine weight of the row, 0 for padding and for unused rows
    float *prob_sum;      // [experts] sum over tokens of probs
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

// One contiguous range of parameters that share their decay.
typedef struct AdamwArgs {
    int64_t count;
    void *weight;        // [count] dtype
    int16_t *master_low; // [count] with bf16 weights: what the float master weight has beyond the rounded bf16 weight,
                         // as bf16_split (base/dtype.h) defines it. NULL: the weight itself is the master
    float *m, *v;        // [count] moments
    const float *grad;   // [count]
    DType dtype;
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2;   // 1 - beta1^step, 1 - beta2^step
    float max_norm;       // gradients are scaled by min(1, max_norm / (norm + 1e-6)); 0: no clipping
    const float *norm;    // [1] global gradient norm
    const int32_t *skip;  // [1] nonzero: leave weights and moments alone
    uint64_t seed, first; // bf16 without master_low: stochastic rounding keyed by (seed, element first + i)
} AdamwArgs;

// What the time of a step is split into (ops table, bench and report use the same names).
typedef enum OpCategory {
    OP_GEMM,
    OP_ATTENTION,
    OP_MOE,         // routing, permutation and grouped products
    OP_ELEMENTWISE, // norms, rotary, SwiGLU, embedding, cross entropy
    OP_OPTIMIZER,
    OP_COPY,
    OP_CATEGORY_COUNT,
} OpCategory;

const char *op_category_name(OpCategory category); // "gemm", as bench and metrics write it

// ---- the table ------------------------------------------------------------------------------------------------------

struct Ops {
    const char *name;   // "cpu", "cuda"
    const char *device; // what the hardware calls itself: "NVIDIA H200"; "cpu"
    void *state;        // the implementation's own
    int row_align;      // expert rows start at multiples of this (see MoeRouting)

    // -- memory and order. alloc is aligned to 256 bytes and not cleared. --
    Status (*alloc)(Ops *ops, void **memory, size_t bytes, const char *what);
    void (*free)(Ops *ops, void *memory, size_t bytes);
    int64_t (*memory_total)(Ops *ops); // of the device
    int64_t (*memory_free)(Ops *ops);
    void (*bind_workspace)(Ops *ops, void *memory, size_t bytes);
    void (*upload)(Ops *ops, void *out, const void *host, size_t bytes);  // host may be reused at once
    void (*download)(Ops *ops, void *host, const void *in, size_t bytes); // waits
    void (*fetch_start)(Ops *ops, int slot, const void *in,
                        size_t bytes);                                // slot 0..7, at most 4096 bytes: asynchronous
    void (*fetch_wait)(Ops *ops, int slot, void *host, size_t bytes); // waits for that fetch only
    void (*copy)(Ops *ops, void *out, const void *in, size_t bytes);
    void (*zero)(Ops *ops, void *out, size_t bytes);
    Status (*sync)(Ops *ops); // waits for everything; reports the first failure since the last sync

    // -- graphs: between begin and end, work is recorded instead of run. *graph stays NULL where recording is not
    //    supported: then the work was run, and the caller runs it again by calling the functions. --
    void (*graph_begin)(Ops *ops);
    Status (*graph_end)(Ops *ops, void **graph);
    void (*graph_launch)(Ops *ops, void *graph);
    void (*graph_free)(Ops *ops, void *graph);

    // -- time: marks are points in the order of work; slot 0..63. --
    void (*mark)(Ops *ops, int slot);
    double (*mark_elapsed)(Ops *ops, int from, int to);                     // milliseconds; waits
    void (*profile_start)(Ops *ops);                                        // from now on, split the time by category
    void (*profile_stop)(Ops *ops, double milliseconds[OP_CATEGORY_COUNT]); // waits

    // -- elements --
    void (*fill_f32)(Ops *ops, float *out, float value, int64_t count);
    void (*cast)(Ops *ops, void *out, DType out_dtype, const void *in, DType in_dtype, int64_t count); // f32 <-> bf16
    void (*sum_f32)(Ops *ops, float *out, const float *in, int64_t count, bool accumulate);            // *out (+)= sum

    // -- linear: out = in . weight^T + add. in_stride: elements from one row of in to the next. add (may be NULL: none)
    //    is the residual that the product joins: [rows, out_dim], summed in float. --
    void (*linear_forward)(Ops *ops, void *out, const void *in, int64_t in_stride, const void *weight, const void *add,
                           int64_t rows, int in_dim, int out_dim, DType dtype);
    void (*linear_backward_input)(Ops *ops, void *din, const void *dout, const void *weight, int64_t rows, int in_dim,
                                  int out_dim, DType dtype);
    void (*linear_backward_weight)(Ops *ops, float *dweight, const void *dout, const void *in, int64_t in_stride,
                                   int64_t rows, int in_dim, int out_dim, bool accumulate, DType dtype);

    // -- embedding. ids outside [0, vocab) are a bug of the caller. --
    void (*embedding_forward)(Ops *ops, void *out, const int32_t *ids, const void *weight, int64_t rows, int dim,
                              DType dtype);
    void (*embedding_backward)(Ops *ops, float *dweight, const void *dout, const int32_t *ids, int64_t rows, int dim,
                               int vocab, DType dtype);

    // -- residual add + RMSNorm (the add for branches that no product of this rank ends): sum = residual + branch; out
    // = sum * rstd * weight. branch NULL: sum is residual itself and
    //    is not written. sum may be residual. --
    void (*add_rmsnorm_forward)(Ops *ops, void *out, void *sum, float *rstd, const void *residual, const void *branch,
                                const void *weight, int64_t rows, int dim, float eps, DType dtype);
    // dsum += gradient through the norm; dweight +=. out: of the forward pass, which the following linear layer needs
    // anyway; sum * rstd is out / weight. dsum_is_zero: dsum holds nothing yet and is overwritten.
    void (*add_rmsnorm_backward)(Ops *ops, void *dsum, float *dweight, const void *dout, const void *out,
                                 const float *rstd, const void *weight, int64_t rows, int dim, bool dsum_is_zero,
                                 DType dtype);

    // -- QK-norm + RoPE on the query and key heads (adjacent: heads, then kv_heads, of head_dim each). Without norm
    //    weights out may be in. rstd: [tokens, heads + kv_heads], used only with norm weights. --
    void (*qk_rope_forward)(Ops *ops, void *out, int64_t out_stride, const void *in, int64_t in_stride, float *rstd,
                            const QkRopeShape *shape, DType dtype);
    // grad holds d(out) in its query and key heads and gets d(in) in place. in and rstd: as of the forward pass (in is
    // read only with norm weights). dq_weight, dk_weight +=.
    void (*qk_rope_backward)(Ops *ops, void *grad, int64_t grad_stride, const void *in, int64_t in_stride,
                             const float *rstd, float *dq_weight, float *dk_weight, const QkRopeShape *shape,
                             DType dtype);

    // -- the product of queries, keys and values with RoPE behind it: out = in . weight^T, with weight [(heads + 2 *
    //    kv_heads) * head_dim, in_dim] and rope->tokens rows; its query and key heads are rotated. Without norm
    //    weights.
    void (*linear_rope_forward)(Ops *ops, void *out, const void *in, const void *weight, int in_dim,
                                const QkRopeShape *rope, DType dtype);

    // -- causal attention; lse: [batch, heads, seq] log-sum-exp of the scaled scores --
    void (*attention_forward)(Ops *ops, void *out, float *lse, const void *q, const void *k, const void *v,
                              const AttentionShape *shape, DType dtype);
    // dq, dk, dv have the strides of dqkv_stride; dout and out have o_stride. dq, dk, dv are overwritten. rope (may be
    // NULL; without norm weights; dk stands behind the heads of dq): dq and dk also go back through its rotation, as
    // qk_rope_backward would take them.
    void (*attention_backward)(Ops *ops, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                               const void *out, const float *lse, const void *q, const void *k, const void *v,
                               const AttentionShape *shape, const QkRopeShape *rope, DType dtype);
    // Inference: n new tokens of one sequence at positions first..first+n-1 against caches [positions, kv_heads *
    // head_dim] that already hold the new keys and values. q and out: [n, heads * head_dim].
    void (*attention_cached)(Ops *ops, void *out, const void *q, const void *k_cache, const void *v_cache, int n,
                             int first, int heads, int kv_heads, int head_dim, float scale, DType dtype);

    // -- SwiGLU of expert rows: out = row_weight * silu(gate) * up; gate_up: [rows, 2 * dim], gate first. row_weight
    //    (may be NULL: 1): [rows]. row_count (may be NULL): only the first *row_count rows exist; the others are left
    //    alone. --
    void (*swiglu_forward)(Ops *ops, void *out, const void *gate_up, const float *row_weight, const int32_t *row_count,
                           int64_t rows, int dim, DType dtype);
    // dgate_up may be gate_up; out (may be dout) gets the forward result again, for the weight gradient of the next
    // linear layer. drow_weight: [rows] sum over dim of dout * silu(gate) * up. row_weight is not NULL here.
    void (*swiglu_backward)(Ops *ops, void *dgate_up, void *out, float *drow_weight, const void *gate_up,
                            const void *dout, const float *row_weight, const int32_t *row_count, int64_t rows, int dim,
                            DType dtype);

    // -- SwiGLU of a dense layer, packed: gate_hidden: [rows, 2 * dim] holds gate and hidden = silu(gate) * up side by
    //    side. hidden is what the next linear layer reads, and up is hidden / silu(gate): nothing else need be kept.
    //    Forward in place, from gate and up: [rows, 2 * dim]. Backward: dgate_up may be gate_hidden. --
    void (*swiglu_packed_forward)(Ops *ops, void *gate_up, int64_t rows, int dim, DType dtype);
    void (*swiglu_packed_backward)(Ops *ops, void *dgate_up, const void *gate_hidden, const void *dhidden, int64_t rows,
                                   int dim, DType dtype);

    // -- The same with the product beside it. Forward: gate and up are in . weight^T, with weight [2 * dim, in_dim].
    //    Backward: the gradient of hidden is dnext . weight, with weight [next_dim, dim] of the linear layer that reads
    //    it; scratch: [rows, dim] for implementations that need a place for it. --
    void (*linear_swiglu_forward)(Ops *ops, void *gate_hidden, const void *in, const void *weight, int64_t rows,
                                  int in_dim, int dim, DType dtype);
    void (*linear_swiglu_backward)(Ops *ops, void *dgate_up, void *scratch, const void *gate_hidden, const void *dnext,
                                   const void *weight, int64_t rows, int dim, int next_dim, DType dtype);

    // -- cross entropy over rows of logits, in place: logits become scale[0] * d(loss)/d(logits). losses[row] = -log p
    // of the
    //    target; a target < 0 is ignored: loss 0, gradient 0. scale NULL: logits stay as they are (evaluation). --
    void (*cross_entropy)(Ops *ops, float *losses, void *logits, const int32_t *targets, const float *scale,
                          int64_t rows, int vocab, DType dtype);

    // -- MoE --
    void (*moe_router_forward)(Ops *ops, float *logits, const void *in, const void *weight, int64_t rows, int dim,
                               int experts, DType dtype);
    void (*moe_router_backward)(Ops *ops, void *din, float *dweight, const float *dlogits, const void *in,
                                const void *weight, int64_t rows, int dim, int experts, bool accumulate,
                                DType dtype); // din +=, dweight (+)=
    // Softmax, choice, weights, counts, offsets and the permutation: everything of MoeRouting from its logits.
    void (*moe_route_forward)(Ops *ops, const MoeRouting *routing, const MoeShape *shape);
    // dlogits from drow_weight (gradient of row_weight), from the balancing loss (dprob: [experts] gradient of each
    // token's probability, from moe_balance; NULL: none) and from the z-loss z_coef[0] * sum over tokens of lse^2
    // (NULL: none).
    void (*moe_route_backward)(Ops *ops, float *dlogits, const float *drow_weight, const float *dprob,
                               const float *z_coef, const MoeRouting *routing, const MoeShape *shape);
    // Load-balancing loss: experts * sum_e (share of the rows that chose e) * (mean probability of e). *loss += loss;
    // dprob[l, e] = scale[0] * d(objective)/d(prob of one token in layer l), the objective being that loss, or by
    // layers the sum of theirs (*loss gets their mean). counts, prob_sum: [layers, experts].
    void (*moe_balance)(Ops *ops, float *loss, float *dprob, const float *scale, const int32_t *counts,
                        const float *prob_sum, MoeBalance balance, int layers, int64_t tokens, int experts);
    // stats: [layers, MOE_LOAD_STATS] from counts: [layers, experts]; a layer without tokens has MAX and ENTROPY 0.
    void (*moe_load_stats)(Ops *ops, float *stats, const int32_t *counts, int layers, int experts);
    // Aux-free balancing: bias[l, e] += rate where the expert has less than its layer's mean, -= rate where it has
    // more. *skip nonzero: nothing.
    void (*moe_bias_update)(Ops *ops, float *bias, const int32_t *counts, const int32_t *skip, float rate, int layers,
                            int experts);
    void (*moe_gather)(Ops *ops, void *rows_out, const void *in, const MoeRouting *routing, const MoeShape *shape,
                       int dim,
                       DType dtype); // row = in[token of its slot]; padding rows (not unused ones) become 0
    void (*moe_sum)(Ops *ops, void *out, const void *rows_in, const void *add, const MoeRouting *routing,
                    const MoeShape *shape, int dim, DType dtype); // out[t] = add[t] (NULL: 0; may be out) + sum over
                                                                  // its slots of their rows
    // Grouped linear: rows of expert e meet weight[e]: [experts, out_dim, in_dim]. offsets as in MoeRouting (on the
    // device: nothing here waits for the host). Rows from offsets[experts] on are left alone. A weight gradient that is
    // not accumulated becomes zero for an expert without rows.
    void (*grouped_linear_forward)(Ops *ops, void *out, const void *in, const void *weight, const int32_t *offsets,
                                   int experts, int64_t rows, int in_dim, int out_dim, DType dtype);
    void (*grouped_linear_backward_input)(Ops *ops, void *din, const void *dout, const void *weight,
                                          const int32_t *offsets, int experts, int64_t rows, int in_dim, int out_dim,
                                          DType dtype);
    void (*grouped_linear_backward_weight)(Ops *ops, float *dweight, const void *dout, const void *in,
                                           const int32_t *offsets, int experts, int64_t rows, int in_dim, int out_dim,
                                           bool accumulate, DType dtype);

    // -- optimizer --
    void (*norm_f32)(Ops *ops, float *out, const float *in, int64_t count); // *out = sqrt(sum of squares), fixed order
    // *skip = 1 when *loss or *norm is not finite, or *loss > loss_limit, or *norm > norm_limit; else 0.
    void (*guard)(Ops *ops, int32_t *skip, const float *loss, const float *norm, float loss_limit, float norm_limit);
    void (*adamw)(Ops *ops, const AdamwArgs *args);
};

// Workspace each implementation needs for a model's largest shapes: a pure function of them, so that the planner can
// ask without a device.
typedef struct OpsWorkspaceRequest {
    int64_t tokens; // of a micro-batch
    int batch, seq;
    int hidden, heads, kv_heads, head_dim;
    int vocab;
    int experts, top_k;  // 0 for dense
    int64_t logits_rows; // rows of one LM-head chunk
    int64_t parameters;  // of the largest optimizer range
    DType dtype;
    int threads; // of the CPU implementation
} OpsWorkspaceRequest;

size_t ops_cpu_workspace(const OpsWorkspaceRequest *request);
size_t ops_cuda_workspace(const OpsWorkspaceRequest *request);

// linear_rope_forward and linear_swiglu_* as two calls of their parts, for implementations and shapes without one
// kernel for both.
void ops_linear_then_rope_forward(Ops *ops, void *out, const void *in, const void *weight, int in_dim,
                                  const QkRopeShape *rope, DType dtype);
void ops_linear_then_swiglu_forward(Ops *ops, void *gate_hidden, const void *in, const void *weight, int64_t rows,
                                    int in_dim, int dim, DType dtype);
void ops_linear_then_swiglu_backward(Ops *ops, void *dgate_up, void *scratch, const void *gate_hidden,
                                     const void *dnext, const void *weight, int64_t rows, int dim, int next_dim,
                                     DType dtype);

Status ops_cpu_create(Ops **ops);
void ops_cpu_destroy(Ops *ops);
void ops_cpu_allocated(Ops *ops, int64_t *current, int64_t *peak); // bytes asked of alloc: now, and at most so far

// device: index of the GPU. tune_cache: file that keeps the GEMM algorithm choices, or NULL.
Status ops_cuda_create(Ops **ops, int device, const char *tune_cache);
void ops_cuda_destroy(Ops *ops);
bool ops_cuda_available(void); // built with CUDA and a GPU is there

// "cpu", "cuda", "cuda:1" or "auto" (cuda when available).
Status ops_create(Ops **ops, const char *device);
void ops_destroy(Ops *ops);
