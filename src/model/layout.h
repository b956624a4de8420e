// The layout table: every tensor that a training run keeps in device memory, computed from the model, the mesh, the
// precision, the recompute policy and the batch shape, before anything is allocated.
//
// The planner sums it, the trainer allocates from it, checkpoints and the HF converter name by it. So the predicted
// memory of a run is not an estimate: it is what will be allocated, to the byte.
//
// Memory is a few blocks, one per LayoutKind. Parameters stand in one order shared by weights, master weights,
// gradients and moments: first the matrices (decayed), then the vectors (not decayed), so that the optimizer runs over
// two ranges. Activations that the backward pass reads are kept per layer; everything else lives for some phases of a
// layer and shares the temporaries block with what lives in other phases.
#pragma once

#include "base/dtype.h"
#include "base/mesh.h"
#include "base/pipeline_schedule.h"
#include "base/status.h"
#include "model/config.h"
#include "ops/ops.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum Precision {
    PRECISION_FP32, // everything float
    PRECISION_BF16, // bf16 weights and activations, float master weights (bf16 + 16 more bits), gradients and moments
    PRECISION_BF16_PURE, // bf16 weights without master: stochastic rounding
    PRECISION_FP8,       // as bf16, and the linear layers of the blocks and the LM head multiply in FP8
    PRECISION_FP16,      // f16 weights and activations, float master weights beside them; the loss is scaled
    PRECISION_COUNT,
} Precision;

// Which products run in FP8: bits of LayoutRequest.fp8_off and Layout.fp8. A dense MLP's are one choice, and so are the
// experts', since what is kept of SwiGLU depends on it; the LM head's two gradients are one, since the loss rounds for
// both.
typedef enum Fp8Use {
    FP8_QKV_FORWARD = 1 << 0,
    FP8_QKV_INPUT = 1 << 1, // gradients of the layer's input and weight
    FP8_QKV_WEIGHT = 1 << 2,
    FP8_O_FORWARD = 1 << 3,
    FP8_O_INPUT = 1 << 4,
    FP8_O_WEIGHT = 1 << 5,
    FP8_MLP = 1 << 6,
    FP8_EXPERTS = 1 << 7, // likewise
    FP8_HEAD_FORWARD = 1 << 8,
    FP8_HEAD_GRADIENTS = 1 << 9, // of its input and weight
    FP8_USES = 10,
    FP8_ALL = (1 << FP8_USES) - 1,
    FP8_HEAD = FP8_HEAD_FORWARD | FP8_HEAD_GRADIENTS,
} Fp8Use;

// What has a scale of its own in each layer: rows of CONST_FP8_SCALE and CONST_FP8_AMAX. All experts of a layer share
// those of its MLP. The LM head's stand with the first layer's; that of the logits' gradient is known before
// (SCALAR_DLOGITS_SCALE).
typedef enum Fp8Slot {
    FP8_ATTN_IN, // activations, e4m3
    FP8_ATTN_OUT,
    FP8_MLP_IN,
    FP8_GATE_UP,
    FP8_HIDDEN,
    FP8_HEAD_IN,
    FP8_DATTN, // gradients, e5m2: of what attention, the QKV product, the MLP and the gate-up product hand on
    FP8_DQKV,
    FP8_DMLP,
    FP8_DGATE_UP,
    FP8_W_QKV, // weights, e4m3
    FP8_W_O,
    FP8_W_GATE_UP,
    FP8_W_DOWN,
    FP8_W_HEAD,
    FP8_SLOTS,
    FP8_FIRST_GRADIENT = FP8_DATTN,
    FP8_FIRST_WEIGHT = FP8_W_QKV,
} Fp8Slot;

enum { FP8_SCALE_STEP = 4 }; // floats from a layer's scale to the next one's: libraries read them at 16 bytes

typedef enum Recompute {
    RECOMPUTE_NONE,      // keeps what backward kernels cannot give again as a by-product
    RECOMPUTE_SELECTIVE, // drops what a memory-bound op gives again: rotated q and k under QK-norm, gathered expert
                         // rows
    RECOMPUTE_FULL,      // keeps each layer's input only and runs the layer's forward again
} Recompute;

typedef struct LayoutRequest {
    ModelConfig config;
    Mesh mesh;
    DType reduce;              // of gradients on the wire between data-parallel ranks: DTYPE_F32 or DTYPE_BF16
    int rank;                  // of the mesh
    PipelineSchedule schedule; // of a pipeline; several chunks are interleaved whatever it says
    int virtual_stages;        // chunks of layers on a rank, of the interleaved schedule; 0: 1
    int micro_batches;         // of a step, which bound what a pipeline has in flight; 0: as many as it can
    int islands;               // that an outer optimizer brings together, each with a mesh of its own; 0: there is none
    int island;                // of this rank
    Precision precision;
    bool tf32; // of PRECISION_FP32 on a GPU: linear layers round their inputs to TF32
    Recompute recompute;
    int micro_batch, seq;
    int64_t logits_rows; // rows of one LM-head chunk; 0: a good default
    DeviceKind device;
    int threads;            // of the CPU (its workspace has a part per thread)
    int row_align;          // of experts' rows (Ops.row_align); 0: the device's
    double expert_headroom; // rows of experts that there is room for at first; 0: LAYOUT_EXPERT_HEADROOM
    bool documents;         // attention and loss are masked across documents
    bool inference;         // weights and activations only: no gradients, moments or master weights
    unsigned fp8_off;       // of PRECISION_FP8: products that stay bf16, bits of Fp8Use
    int64_t scratch; // bytes that attention's backward pass is lent; 0: what the other temporaries leave. GPU only
} LayoutRequest;

// Expert parallelism: rows that one rank has room for, as a multiple of what it gets when all experts are equally busy.
// No routing needs more than the degree (all tokens of all ranks want this rank's experts); the capacity is the smaller
// of the two. A step that needs more is refused, and run again with more room (model_grow_experts).
#define LAYOUT_EXPERT_HEADROOM 2

// What attention's backward pass is lent at most: more helps no kernel.
#define LAYOUT_SCRATCH_MAX (INT64_C(9) << 28)

typedef enum LayoutKind {
    LAYOUT_WEIGHTS,
    LAYOUT_MASTER,
    LAYOUT_GRADIENTS,
    LAYOUT_MOMENTS, // first all m, then all v
    LAYOUT_FP8, // weights in FP8, as they are and transposed, made anew from the others after every step; ZeRO 3, and
                // experts (fp8_passing): the one that the next product reads; and this rank's pieces of units that
                // travel in FP8
    LAYOUT_ACTIVATIONS,
    LAYOUT_TEMPORARIES,
    LAYOUT_GATHERED,  // ZeRO 2 and 3: what is whole only for a while, gradients first; behind it, gradients as bf16
                      // while they are reduced
    LAYOUT_CONSTANTS, // inputs, rotary tables, scalars
    LAYOUT_WORKSPACE, // scratch of ops and libraries
    LAYOUT_OUTER,     // of an outer optimizer, in host memory: anchor, momentum (of this rank's pieces), and two slots
    LAYOUT_KIND_COUNT,
} LayoutKind;
const char *layout_kind_name(LayoutKind kind);

// ---- parameters -----------------------------------------------------------------------------------------------------

typedef enum ParamId {
    PARAM_EMBEDDING,      // [vocab, hidden]
    PARAM_HEAD,           // [vocab, hidden], absent when tied
    PARAM_QKV,            // [(heads + 2 kv_heads) * head_dim, hidden]
    PARAM_O,              // [hidden, heads * head_dim]
    PARAM_GATE_UP,        // [2 ffn, hidden], gate rows first
    PARAM_DOWN,           // [hidden, ffn]
    PARAM_ROUTER,         // [experts, hidden]
    PARAM_EXPERT_GATE_UP, // [experts, 2 moe_ffn, hidden]
    PARAM_EXPERT_DOWN,    // [experts, hidden, moe_ffn]
    PARAM_FINAL_NORM,     // [hidden]
    PARAM_ATTN_NORM,      // [hidden]
    PARAM_MLP_NORM,       // [hidden]
    PARAM_Q_NORM,         // [head_dim]
    PARAM_K_NORM,         // [head_dim]
    PARAM_ID_COUNT,
} ParamId;

typedef struct LayoutParam {
    ParamId id;
    int layer;        // -1: of the whole model
    int dims;         // 1 to 3
    int64_t shape[3]; // on this rank (before ZeRO)
    int64_t global_shape[3];
    int64_t count; // elements on this rank
    int64_t global_count;
    int64_t offset; // in elements, in the shared order of parameters
    bool decay;     // matrices decay, vectors do not
    bool expert;
    int unit;                   // that it belongs to
    int64_t fp8_rows, fp8_cols; // in bytes, in LAYOUT_FP8: the weight and its transpose; -1: not there
    bool residual;              // writes into the residual stream (o, down): may be initialised smaller
} LayoutParam;

// What is here of a tensor as HF stores it: qkv is three of them, gate_up two, each expert its own.
typedef struct LayoutSlice {
    char name[128];
    int dims;
    int64_t shape[2];             // of the whole tensor
    int64_t row, rows, col, cols; // the box of it that this rank holds; rows 0: nothing (vector: one row)
    int64_t at, stride;           // elements: where the box starts in the LayoutParam, and from one row to the next
    int64_t count;                // rows * cols
    int64_t first;                // where the whole tensor starts in the parameter of a rank that holds all of it
} LayoutSlice;

// A stretch of the parameter order that data-parallel ranks reduce, gather and share as one: the matrices of a layer
// (those of its experts apart, which other ranks may share), the embedding, the LM head, and all vectors together. ZeRO
// cuts every unit into as many equal pieces as there are ranks; each rank owns one, in the order of the ranks.
typedef struct LayoutUnit {
    int layer; // -1: of the whole model
    bool expert, vectors;
    int64_t offset, count; // elements in the shared order of parameters
    int ranks, rank;       // how many share it, and which of them this one is
    int64_t piece;         // elements of one rank's piece; the last ones may be padding
    int64_t shard_offset;  // of this rank's piece in what is sharded
    int64_t fp8; // in bytes, in LAYOUT_FP8: this rank's piece, and what is gathered of the others'; -1: the weights are
} LayoutUnit;

// ---- activations ----------------------------------------------------------------------------------------------------

typedef enum ActId {
    // per layer, read by the backward pass (T tokens, R expert rows)
    ACT_RESIDUAL_IN, // [T, hidden] input of the layer; kept only for a forward pass that runs again
    ACT_ATTN_NORMED, // [T, hidden] input of the QKV product
    ACT_ATTN_RSTD,   // [T] float
    ACT_QKV,         // [T, qkv]; rotated in place where there is no QK-norm
    ACT_QK,          // [T, (heads + kv_heads) * head_dim] normed and rotated; only with QK-norm
    ACT_QK_RSTD,     // [T, heads + kv_heads] float; only with QK-norm
    ACT_ATTN_OUT,    // [T, heads * head_dim]
    ACT_LSE,         // [batch * heads, seq] float
    ACT_MLP_NORMED,  // [T, hidden] input of the gate-up product or of the router
    ACT_MLP_RSTD,    // [T] float
    ACT_GATE_UP,     // [T, 2 ffn] SwiGLU's gate and its result, or [R, 2 moe_ffn] gate and up of experts; the backward
                     // pass turns it into their gradient in place
    ACT_PROBS,       // [T, experts] float
    ACT_ROUTER_LSE,  // [T] float
    ACT_EXPERT,      // [T, top_k] int32
    ACT_EXPERT_WEIGHT,   // [T, top_k] float
    ACT_OFFSETS,         // [1, experts + 1] int32
    ACT_ROW_COUNTS,      // [1, experts] int32, where experts are spread over ranks: slots of those that are here
    ACT_ROW_OF_SLOT,     // [T, top_k] int32; of all ranks that share the experts
    ACT_TOKEN_OF_ROW,    // [R] int32
    ACT_ROW_WEIGHT,      // [R] float
    ACT_GATHERED,        // [R, hidden], where experts are spread over ranks; else the products read ACT_MLP_NORMED.
                         // e4m3 where they run in FP8
    ACT_GATE_UP8,        // [T, 2 ffn] e4m3: gate and up, where the MLP runs in FP8 (in place of ACT_GATE_UP)
    ACT_EXPERT_GATE_UP8, // [R, 2 moe_ffn] e4m3, likewise of experts
    // of the whole model, kept
    ACT_FINAL_RSTD, // [T] float
    ACT_LOSSES,     // [T] float
    ACT_COUNTS,     // [sparse layers, experts] int32: of the tokens that this rank routed
    ACT_ALL_COUNTS, // the same of the whole micro-batch, where ranks share its tokens out
    ACT_PROB_SUM,   // [sparse layers, experts] float
    ACT_DPROB,      // [sparse layers, experts] float
    // what stages of a pipeline send each other, two of each: one may be on its way while the next is made
    ACT_STAGE_OUT,    // [2 T, hidden] output of a chunk
    ACT_STAGE_COUNTS, // [2, experts] int32: ACT_COUNTS of all layers so far
    ACT_STAGE_PROBS,  // [2, experts] float: ACT_PROB_SUM of all layers so far
    ACT_STAGE_DPROB,  // [2, experts] float: ACT_DPROB where all layers have the same
    // temporary
    ACT_RESIDUAL_MID,   // [T, hidden] after attention
    ACT_RESIDUAL_FINAL, // [T, hidden] after the last layer; kept by the last stage of a pipeline
    ACT_FINAL_NORMED,   // [T, hidden] input of the LM head
    ACT_HIDDEN,         // [R, moe_ffn] after SwiGLU
    ACT_ROUTER_LOGITS,  // [T, experts] float
    ACT_EXPERT_OUT,     // [R, hidden]; before, scratch of the gate-up product
    ACT_LOGITS,         // [logits_rows, vocab]
    ACT_DRESIDUAL,      // [T, hidden]; in a pipeline kept, two of them as above
    ACT_DNORMED,        // [T, hidden]
    ACT_DATTN,          // [T, heads * head_dim]
    ACT_DQKV,           // [T, qkv]
    ACT_DHIDDEN,        // [T, ffn] or [R, moe_ffn]
    ACT_DROWS,          // [R, hidden]; before and after, scratch of the products that read tokens
    ACT_DROW_WEIGHT,    // [R] float
    ACT_DLOGITS,        // [T, experts] float: gradient of the router logits
    ACT_DISPATCHED,     // [T, hidden] of all ranks that share the experts: tokens, or parts of the sums over experts
    ACT_ALL_EXPERT,     // [T, top_k] int32, likewise
    ACT_ALL_WEIGHT,     // [T, top_k] float; in the backward pass the gradients
    ACT_DWEIGHT,        // [T, top_k] float: of the combine weights of this rank's tokens
    ACT_WIDE,           // [T, hidden] tensor parallelism: a norm's result of all tokens, or a product's part of the sum
    ACT_DWIDE,          // [T, hidden] the same of gradients
    ACT_RING_KV,        // [2 T, 2 kv_heads * head_dim] context parallelism: keys and values here, and on their way here
    ACT_RING_SUM,       // [T, heads * head_dim] float: attention so far; backward: the gradient of queries so far
    ACT_RING_LSE,       // [batch * heads, chunk] float: of one part
    ACT_RING_DKV,       // [2 T, 2 kv_heads * head_dim] float: gradients of keys and values so far, as ACT_RING_KV
    ACT_SPLIT_STATS,    // [tp * logits_rows, SPLIT_STATS] float: of a loss over a split vocabulary
    ACT_FP8_IN,         // rows in FP8: input of the product that is next
    ACT_FP8_DOUT,       // [T, hidden] gradient of what a sub-layer adds to the residual stream, and its transpose
    ACT_FP8_DOUT_COLS,
    ACT_FP8_DGATE_UP, // [T, 2 ffn]
    ACT_FP8_DGATE_UP_COLS,
    ACT_FP8_MLP_COLS, // inputs of the MLP's products, transposed
    ACT_FP8_DQKV,     // [T, qkv]
    ACT_FP8_DQKV_COLS,
    ACT_FP8_ATTN_COLS,      // [heads * head_dim, T] input of the O product, transposed
    ACT_FP8_QKV_COLS,       // [hidden, T] and of QKV's
    ACT_FP8_GATE_UP,        // [T, 2 ffn] bf16: results of the gate-up product on their way to SwiGLU
    ACT_FP8_HIDDEN,         // [T, ffn] e4m3: what SwiGLU makes of them, which may be while the product reads ACT_FP8_IN
    ACT_FP8_TOKENS,         // [T, hidden] of experts: what their rows are made of; of all ranks that share them
    ACT_FP8_EXPERT_GATE_UP, // [R, 2 moe_ffn] bf16: as ACT_FP8_GATE_UP
    ACT_FP8_EXPERT_DGATE_UP, // [R, 2 moe_ffn] e5m2, and its transpose
    ACT_FP8_EXPERT_DGATE_UP_COLS,
    ACT_FP8_HIDDEN_COLS, // [moe_ffn, R] e4m3
    ACT_FP8_HEAD_IN,     // [logits_rows, hidden] input of the LM head, and its transpose
    ACT_FP8_HEAD_COLS,
    ACT_FP8_DLOGITS, // [logits_rows, vocab]; its transpose takes the place of the logits
    ACT_SCRATCH,     // bytes that are free while attention runs backward: a larger workspace at no cost; GPU only
    ACT_ID_COUNT,
} ActId;

// Phases of a micro-step, in order. A temporary lives from its first to its last phase.
typedef enum Phase {
    PHASE_ATTENTION,
    PHASE_MLP,
    PHASE_HEAD,
    PHASE_RECOMPUTE, // a layer's forward pass again
    PHASE_MLP_BACKWARD,
    PHASE_O_BACKWARD,
    PHASE_ATTENTION_BACKWARD, // the op alone
    PHASE_QKV_BACKWARD,
    PHASE_EMBEDDING_BACKWARD,
} Phase;

// What an op of a step belongs to: a micro-batch's forward or backward pass, forward work that the backward pass does
// again, or what is done once per optimizer step.
typedef enum StepPass { STEP_FORWARD, STEP_BACKWARD, STEP_RECOMPUTE, STEP_ONCE } StepPass;

typedef struct LayoutActivation {
    ActId id;
    int layer;         // -1: one for all layers
    Phase first, last; // of a temporary
    bool kept;         // in LAYOUT_ACTIVATIONS, else in LAYOUT_TEMPORARIES
    bool in_flight;    // of those, once in every slot; the offset is the one in a slot
    bool per_token;    // a row for each token: fewer tokens use the first rows
    DType dtype;
    int64_t rows, cols;
    int64_t offset, bytes; // in bytes, in its block; aligned to 256
} LayoutActivation;

// ---- inputs and constants -------------------------------------------------------------------------------------------

typedef enum ConstId {
    CONST_IDS,       // [slots * T] int32, as are the next two; where there is no pipeline, one slot
    CONST_TARGETS,   // of a pipeline only its last stage has them, and only the first has ids
    CONST_DOC_START, // only with documents
    CONST_COS,       // [seq, head_dim / 2] float: of the positions that this rank has
    CONST_SIN,
    CONST_SCALARS,      // [MODEL_SCALARS] float
    CONST_ROUTER_BIAS,  // [sparse layers, experts] float
    CONST_EXPERT_TOTAL, // [sparse layers, experts] int32: tokens of each expert in the step so far
    CONST_EXPERT_LOAD,  // [sparse layers, MOE_LOAD_STATS] float; these three are of the whole model on every rank
    CONST_FP8_SCALE,    // [FP8_SLOTS, layers * FP8_SCALE_STEP] float: of this step
    CONST_FP8_AMAX,     // the same: largest magnitudes so far, for the next step's
    CONST_FP8_BEFORE,   // the same: scales of the step before, where there may be no room for its expert rows
    CONST_NORMS,        // [1, parts] float: norms of the gradients that this rank counts; only where ranks share them
    CONST_RANK_NORMS,   // [1, ranks] float: the norm of those, of every rank
    CONST_ID_COUNT,
} ConstId;

typedef struct LayoutConst {
    DType dtype;
    int64_t rows, cols; // 0: not in this model
    int64_t offset, bytes;
} LayoutConst;

// A pipeline stage has one run of layers, or several where the schedule interleaves.
typedef struct LayoutChunk {
    int first, count; // layers
    int sparse;       // of them
    bool embeds;      // the model begins here: with the embedding
    bool predicts;    // and ends: with the LM head
} LayoutChunk;

typedef struct Layout {
    LayoutRequest request;
    MeshPlace place; // of this rank
    // local sizes
    int64_t tokens, rows, logits_rows; // of a micro-batch; expert rows; rows of an LM-head chunk
    int64_t local_tokens; // this rank's share of the tokens where tensor-parallel ranks split them: norms, residual,
                          // experts
    int first_layer, layer_count; // of this pipeline stage: of its first chunk, and of all
    LayoutChunk *chunks;
    int chunk_count;
    int micro_batches;   // of a step, as many as there is room for in a pipeline
    int slots;           // passes that a pipeline has in flight on this rank at one time; 1 without one
    int64_t slot_offset; // of the first one in LAYOUT_ACTIVATIONS
    int64_t slot_bytes;
    DType dtype;
    unsigned fp8;     // products that run in FP8: bits of Fp8Use
    bool fp8_passing; // copies of experts' weights in FP8 are made for the product that reads them, in one place: there
                      // are more bytes of them than FP8 saves of the activations
    LayoutParam *params;
    int param_count;
    int64_t element_count, decay_count; // in the shared order, alignment included; the first decay_count decay
    LayoutUnit *units;                  // in the order of the parameters
    int unit_count;
    int zero;            // the request's stage, 0 where there is nobody to share with
    int64_t shard_count; // elements of all pieces of this rank
    int64_t wire_offset; // bytes: where LAYOUT_GATHERED has gradients that travel as bf16; -1: none do
    int64_t layer_elements, edge_elements,
        vector_elements;    // of the largest layer's units, of embedding or head, of vectors
    int64_t piece_elements; // of the largest piece
    LayoutActivation *activations;
    int activation_count;
    LayoutConst constants[CONST_ID_COUNT];
    int64_t bytes[LAYOUT_KIND_COUNT];
    int64_t total_bytes; // of the device: with LAYOUT_OUTER where that is the host
    // lookup: index + 1 into params / activations, 0 = absent; activations: [pass][layer + 1][id], pass 0 forward
    int *param_index;
    int *act_index;
} Layout;

Status layout_build(Layout *layout, const LayoutRequest *request);
ParamId layout_head(const Layout *layout); // the LM head's weight, or the embedding that it is tied to
// The products that a request runs in FP8: all that it does not exclude and whose sizes the tensor cores can take.
unsigned layout_fp8(const LayoutRequest *request);
// The index-th layer that is here.
int layout_layer(const Layout *layout, int index);
const LayoutChunk *layout_chunk(const Layout *layout, int layer); // that it is in
// The schedule that a request's pipeline has, and its chunks per rank.
static inline int layout_chunks(const LayoutRequest *request) {
    return request->mesh.pp > 1 && request->virtual_stages > 1 ? request->virtual_stages : 1;
}
static inline PipelineSchedule layout_schedule(const LayoutRequest *request) {
    return layout_chunks(request) > 1 ? PIPELINE_INTERLEAVED : request->schedule;
}
// Whether hearth's kernels for the device have room for the model.
Status layout_check_kernels(const LayoutRequest *request);
Status layout_check_experts(const LayoutRequest *request); // what ep and etp can cut
void layout_free(Layout *layout);

const LayoutParam *layout_param(const Layout *layout, ParamId id, int layer); // NULL: not in this model
const LayoutActivation *layout_activation(const Layout *layout, ActId id, int layer, StepPass pass); // NULL likewise

int layout_slice_count(const Layout *layout, const LayoutParam *param);
LayoutSlice layout_slice(const Layout *layout, const LayoutParam *param, int index);
// Of the ranks outside a parameter's unit that hold the same slice (norms, the router, KV heads that several
// tensor-parallel ranks share, the tied embedding at both ends of a pipeline), one writes it: is it this one? So what a
// rank writes are the owned elements of the slices for which this is true, and over all ranks that is every element of
// every HF tensor once.
bool layout_slice_owner(const Layout *layout, const LayoutParam *param, int index);

// The elements [*first, *first + *count) of a parameter that this rank writes into checkpoints: its piece of the
// parameter's unit, whatever the ZeRO stage. Over the ranks that share the unit they cover the parameter once.
void layout_owned(const Layout *layout, const LayoutParam *param, int64_t *first, int64_t *count);

// From which ZeRO stage on each is sharded.
enum { ZERO_MOMENTS = 1, ZERO_GRADIENTS = 2, ZERO_WEIGHTS = 3 };

// The part of a parameter that a block has here which is sharded from `stage` on: elements [first, first + count) of
// it, from element `at` of the block on. Of one that is not sharded: all of it. (Stage 0: of what is sharded always.)
typedef struct LayoutPart {
    int64_t first, count, at;
} LayoutPart;
LayoutPart layout_part(const Layout *layout, const LayoutParam *param, int stage);

// The gradient norm of several ranks is put together from norms of parts, each of which one rank counts: so many ranks
// (0: there is nothing to put together, each has all gradients), and so many parts on this one. Where ZeRO alone cuts
// the model a part is a unit, else there are two to a parameter, because of KV heads that several ranks hold.
int layout_norm_ranks(const Layout *layout);
int layout_norm_parts(const Layout *layout);

// Sizes on a rank: rows of the fused qkv, rows of the embedding and of the LM head, and the capacity of the experts'
// rows.
int64_t layout_qkv_dim(const LayoutRequest *request);
int64_t layout_vocab_rows(const LayoutRequest *request);
int64_t layout_logits_rows(const LayoutRequest *request); // of one LM-head chunk
int64_t layout_expert_rows(const LayoutRequest *request);
// Of these rows: how many there are slots for when all experts are equally busy, and at most.
int64_t layout_expert_slots(const LayoutRequest *request);
int64_t layout_expert_slots_most(const LayoutRequest *request);
Status layout_check_tf32(const LayoutRequest *request);
bool layout_rows_bounded(const LayoutRequest *request); // there are routings that need more rows than there is room for
int64_t layout_dispatched_tokens(const LayoutRequest *request); // of all ranks that share the experts

const char *layout_param_name(ParamId id); // "qkv"
const char *layout_act_name(ActId id);
const char *layout_const_name(ConstId id);

// Workspace that the ops of the request's device need.
size_t layout_workspace_bytes(const LayoutRequest *request);
// Memory traffic of one parameter in bytes. AdamW reads its gradient, and reads and writes both moments and the weight
// with its master part. A weight gradient is written in float; `added` is the share of the times that it is read first,
// to be added to: 0 for the first micro-batch of a step, 1 for the others.
double layout_adamw_traffic(Precision precision);
DType precision_storage(Precision precision);        // of weights and activations
int64_t precision_master_bytes(Precision precision); // of one weight; 0: the weight itself is the master
double layout_gradient_traffic(double added);

Status precision_parse(Precision *precision, const char *name); // "fp32", "bf16", "bf16-pure", "fp8", "fp16"
const char *precision_name(Precision precision);
Status recompute_parse(Recompute *recompute, const char *name); // "none", "selective", "full"
const char *recompute_name(Recompute recompute);
