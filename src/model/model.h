// A model in device memory: the blocks of its layout, and the operations a training loop is made of. The computation
// itself is in transformer.c.
//
// One step is:
//   model_step_begin(model, valid, micro_batches);
//   for each micro-batch: model_micro_step(model, ids, targets, doc_start);   // forward and backward, gradients add up
//   model_optimizer_step(model, &optimizer);
//   model_step_result(model, &result);
// Stages of a pipeline run their passes when the last micro-batch of the step has come (model/pipeline.h).
#pragma once

#include "dist/comm.h"
#include "model/layout.h"
#include "model/scalars.h"
#include "ops/ops.h"

// The groups of ranks that a model is part of; not owned. On one rank there are none.
typedef struct ModelRanks {
    Comm *dp;          // ranks that have the same weights and train on other tokens: dp * cp; NULL: one
    Comm *cp;          // of those, the ones that share a sequence; NULL: one
    Comm *tp;          // ranks that share every layer; NULL: one
    Comm *micro_batch; // ranks that share the tokens of a micro-batch: cp * tp; NULL: one
    Comm *kv;          // of tp, the ones that hold the same KV heads; NULL: none does
    Comm *pp;          // the same place on the other pipeline stages; NULL: one stage
    Comm *lane[2][2];  // [PipelinePass]: from the stage that its input comes from, to the one its output goes to
    Comm *ends;        // first and last stage of a pipeline whose embedding is tied; NULL: none, or neither of them
    Comm *ep, *etp;    // ranks that have other experts, and other shares of the same; NULL: one
    Comm *dispatch;    // ep * etp: ranks that have all experts once between them; NULL: this one has them all
    Comm *expert_dp;   // ranks that hold the same experts, in the order of LayoutUnit.rank; NULL: one
    Comm *stage;       // ranks that hold the same layers of a model with experts; NULL: one
    Comm *all;         // every rank; NULL: one
} ModelRanks;

enum { SEAM_SLOTS = 4 }; // two for layers, one for embedding or head, one for the vectors

typedef struct Pipeline Pipeline; // model/pipeline.h
typedef struct Trace Trace;       // model/trace.h

typedef struct Model {
    Ops *ops; // not owned
    ModelRanks ranks;
    // What ZeRO has under way, per slot of the gathered block: the unit whose weights are there, and tickets.
    struct {
        int weights;             // layer or edge parameter; -1: none
        CommTicket gathering[2]; // its weights, those of its experts
        int gradients;           // units being reduced: the first of them, -1: none
        CommTicket reducing[2];
    } slot[SEAM_SLOTS];
    CommTicket copies;  // of the last sum over gradients that tensor-parallel ranks hold together
    bool last;          // micro-batch of the step
    Pipeline *pipeline; // NULL: there is one stage
    int chunk, flight;  // of the pass under way: its layers, and the slot of its activations
    int half[2];        // [PipelinePass] which of the two places its message has
    Layout layout;
    void *memory[LAYOUT_KIND_COUNT];
    float *outer;    // of an outer optimizer, in host memory, not owned: anchor, then momentum, of this rank's pieces
    bool accumulate; // the micro-step adds to the gradients; false for the first one of a step, which overwrites them
    struct {
        void *graph;    // where the ops record
        int runs;       // up to the recording
    } recorded[2][2];   // the micro-step that overwrites, the one that adds; without and with sums over ranks
    bool direct;        // run micro-steps op by op instead of replaying the graph (for a profile by category)
    int64_t step_valid; // valid targets of the step under way
    int step_micro_batches, micro_batches_run; // on this rank
    int aux_micro_batches;                     // whose balancing losses SCALAR_AUX_SUM adds up
    StepPass pass;                             // of the op that is called next
    int layer;                                 // likewise, from 1; 0: of none
    int64_t tokens;                            // of a micro-batch; generation uses fewer than the layout has room for
    int first_position;                        // of the first token, likewise
    float loss_scale;                          // of the gradients from model_step_begin to the optimizer; 0: 1
    float z_loss_coef;                         // router z-loss; 0: off
    MoeBalance balance;                        // of the load-balancing loss
    bool router_bias;                          // aux-free balancing: choose experts by probability + bias
    MoeForce force;                            // benchmarks only
    bool evaluating;                           // in bf16, whatever the precision of training
    unsigned fp8_masked;                       // products of the layout's that run in bf16 all the same: a race
    bool fp8_scaled, fp8_fresh;                // there are scales; weights and their FP8 copies are the same
    bool fp8_noting;                           // evaluation notes the largest of what a step would round
    Trace *trace;                              // likewise; NULL: nobody asks
} Model;

// Allocates everything; nothing is allocated later. Weights are uninitialised.
Status model_create(Model **model, Ops *ops, const LayoutRequest *request);
// As one of several ranks; ranks is copied.
Status model_create_ranks(Model **model, Ops *ops, const LayoutRequest *request, const ModelRanks *ranks);
void model_destroy(Model *model);

// ---- weights --------------------------------------------------------------------------------------------------------

// Fresh weights: normal(0, init_std), norms 1; keyed by the global element index, so they do not depend on any split.
// scale_residual: projections into the residual stream by a further 1 / sqrt(2 * layers).
void model_init_weights(Model *model, uint64_t seed, bool scale_residual);

typedef enum ModelState { MODEL_WEIGHTS, MODEL_GRADIENTS, MODEL_M, MODEL_V, MODEL_ANCHOR, MODEL_MOMENTUM } ModelState;

// A host copy of weights (with their master part) and moments, taken at once, so that a writer thread can work from it.
typedef struct ModelSnapshot {
    void *weights, *master; // as in the layout's blocks
    float *moments;         // NULL when not asked for
    float *outer;           // likewise, and without an outer optimizer
} ModelSnapshot;
Status model_snapshot(Model *model, ModelSnapshot *snapshot, bool with_moments); // reuses buffers already there
void model_snapshot_free(ModelSnapshot *snapshot);
// Elements [first, first + count) of a parameter, as float: weights at master precision, or any state but gradients.
void model_snapshot_read(const ModelSnapshot *snapshot, const Layout *layout, const LayoutParam *param,
                         ModelState state, int64_t first, int64_t count, float *out);

// One parameter straight from or to the device, as float (writing weights also sets the master part).
void model_read_param(Model *model, const LayoutParam *param, ModelState state, float *host);
void model_write_param(Model *model, const LayoutParam *param, ModelState state, const float *host);
void model_zero_optimizer(Model *model); // gradients and moments
void model_share_weights(Model *model);  // after weights were written: what ZeRO 3 keeps gathered. Collective

// ---- training -------------------------------------------------------------------------------------------------------

// valid: targets >= 0 in the whole step (all micro-batches, all ranks): the loss is their mean. The gradients of the
// step before stay until the next micro-step.
void model_step_begin(Model *model, int64_t valid, int micro_batches);
// Host arrays [micro_batch * seq], the same on ranks that share sequences; doc_start may be NULL unless the layout has
// documents.
void model_micro_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start);
// Forward only; adds to the loss sum like a micro-step (use model_step_begin before, model_step_result after).
void model_eval_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start);

typedef struct OptimizerStep {
    int64_t step; // from 1
    float lr, beta1, beta2, eps, weight_decay;
    float max_norm;               // 0: no clipping
    float loss_limit, norm_limit; // beyond these the step is skipped; INFINITY: only non-finite values skip
    uint64_t seed;                // stochastic rounding
} OptimizerStep;
void model_optimizer_step(Model *model, const OptimizerStep *step);

typedef struct StepResult {
    double loss;      // mean cross entropy over the valid targets
    double loss_aux;  // load-balancing loss, mean over micro-batches, without its coefficient
    double grad_norm; // before clipping
    bool skipped;     // the guard refused the step
    bool overflow;    // for its gradients alone: the loss is finite and they are not
    // Rows that a rank's experts needed where there was not room for them (the most of all ranks); the guard refused
    // the step, which must be run again after model_grow_experts. 0: there was room.
    int64_t rows_needed;
} StepResult;
void model_result_start(Model *model); // begins reading the result back
void model_result_wait(Model *model, StepResult *result);
void model_step_result(Model *model, StepResult *result); // both

// More room for the rows of this rank's experts: for a quarter more than rows_needed, at least twice what there was, at
// most what any routing needs. Activations and temporaries are allocated anew, recorded micro-steps forgotten. All
// ranks that share experts call it with the same number.
Status model_grow_experts(Model *model, int64_t rows_needed);
// The next micro-step of a kind that was recorded is recorded again: who looks at how graphs are made sees all of them.
void model_record_again(Model *model);
// Why micro-steps are not replayed from graphs (static storage); NULL: they are, from the third of a kind on.
const char *model_why_no_graph(const Model *model);

// Expert load of the step so far, all its micro-batches, after model_result_wait: [sparse layers,
// MOE_LOAD_STATS], host array.
void model_expert_load(Model *model, float *stats);
// Aux-free balancing: bias += rate * sign(mean load - load) from the counts of the whole step, unless the guard refused
// it. After model_optimizer_step.
void model_update_router_bias(Model *model, float rate);

// ---- for the rest of the room ---------------------------------------------------------------------------------------

// Views with their (local) shapes; TENSOR_NONE for what this model, rank or pass does not have.
Tensor model_weight(const Model *model, ParamId id, int layer);
Tensor model_grad(const Model *model, ParamId id, int layer);
Tensor model_act(const Model *model, ActId id, int layer); // in the model's current pass
Tensor model_const(const Model *model, ConstId id);
Tensor model_scalar(const Model *model, int index); // [1, 1]; SCALAR_SKIP is int32
Tensor model_gradients(const Model *model);         // all of them: [1, elements]
// Elements [first, first + count) of a block of weights, master parts, gradients or moments.
Tensor model_range(const Model *model, LayoutKind kind, int64_t first, int64_t count);
// A unit as a whole: gradients or weights where they are complete, or in their slot while they are there. LAYOUT_FP8:
// in the place of its weights.
Tensor model_unit(const Model *model, LayoutKind kind, const LayoutUnit *unit);
// This rank's piece of it: of LAYOUT_WEIGHTS, LAYOUT_FP8, LAYOUT_GRADIENTS, LAYOUT_MASTER, or of LAYOUT_MOMENTS m
// (second: v).
Tensor model_piece(const Model *model, LayoutKind kind, const LayoutUnit *unit, bool second);
// Where a unit's gradients stand as bf16 while they are reduced; TENSOR_NONE: they travel as they are.
Tensor model_wire(const Model *model, const LayoutUnit *unit);
int model_slot(const LayoutUnit *unit); // of the gathered block
// Lends attention the larger workspace that is free in its backward phase, where there is one, and takes it back.
void model_lend_scratch(Model *model, bool lend);
