// Where the transformer meets other ranks. transformer.c is written for one rank; at these points it hands tensors to
// the groups that the model is part of. On one rank every seam is a no-op.
//
// Data parallelism (units of model/layout.h):
//   ZeRO 0  gradients are summed over the ranks behind the last micro-batch's backward pass, unit by unit
//   ZeRO 1  the same, but each rank gets only its pieces, updates them, and the new weights are gathered
//   ZeRO 2  a unit's gradients exist as a whole only until they are reduced, after every micro-batch
//   ZeRO 3  and so do its weights: they are gathered when a layer needs them, the next layer's behind its computation
//
// Tensor parallelism with sequence parallelism: each rank has its share of every layer's heads and widths (local shapes
// of the layout) and, between the products, its share of the tokens: the residual stream, norms and experts. Before a
// layer's first product the tokens are gathered; its last product leaves parts of a sum, which are reduced to each
// rank's tokens. Embedding, LM head and loss have shares of the vocabulary.
//
// Expert parallelism: ranks that share the experts gather their tokens before the experts and reduce their sums behind.
#pragma once

#include "model/model.h"

static inline Tensor flat_view(Tensor tensor) { // as collectives take it
    return tensor_reshape(tensor, 1, tensor_count(tensor));
}

// ---- tensor parallelism, inside a layer -----------------------------------------------------------------------------

Tensor seam_all_tokens(Model *model, Tensor local);    // what all ranks have of it, token by token
Tensor seam_all_gradients(Model *model, Tensor local); // the same for the gradient of a sub-layer's result
// out = residual + in . weight^T, summed over the ranks, of this rank's tokens.
void seam_project(Model *model, ParamId id, int layer, Tensor out, Tensor in, Tensor residual);
// A place for the gradient of all tokens, of which `local` are this rank's; seam_sum_tokens brings them there.
Tensor seam_gradient_of_all_tokens(Model *model, Tensor local);
void seam_sum_tokens(Model *model, Tensor local, Tensor all);
void seam_embed(Model *model, Tensor out, Tensor ids, Tensor weight);
void seam_embed_backward(Model *model, Tensor dweight, Tensor dout, Tensor ids);
// codes (may be absent): the place of the gradient in FP8; the logits are of no use then.
void seam_cross_entropy(Model *model, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale);
// Of the whole micro-batch: prob_sum in place; the counts are returned, since this rank's own stay in use (moe_gather).
Tensor seam_balance_sums(Model *model, Tensor counts, Tensor prob_sum);

// ---- context parallelism, inside a layer ----------------------------------------------------------------------------
// seam_context.c has the order of the tokens. On one rank each is the op that it is named after.

void seam_upload_tokens(Model *model, ConstId id, const int32_t *host); // this rank's of [micro_batch * seq]
void seam_rope_forward(Model *model, Tensor out, Tensor rstd, Tensor in, const Rope *rope);
void seam_rope_backward(Model *model, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                        const Rope *rope);
void seam_linear_rope(Model *model, Tensor out, Tensor in, Tensor weight, const Rope *rope);
void seam_attention(Model *model, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, const Attention *how);
void seam_attention_backward(Model *model, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v, const Attention *how, const Rope *rope);

// ---- experts that are spread over ranks (seam_experts.c)
// -------------------------------------------------------------

// The rows of this rank's experts. On one rank they are those of the routing; else of all ranks' tokens, and the
// routing, of this rank's tokens, is left without.
MoeRouting seam_expert_rows(const Model *model, int layer, MoeRouting *routing);
// All tokens whose rows may be here, of which `own` are this rank's: on their way, and there.
CommTicket seam_dispatch_start(Model *model, Tensor own);
Tensor seam_dispatched(Model *model, Tensor own, CommTicket ticket);
void seam_place_rows(Model *model, const MoeRouting *own, const MoeRouting *rows); // from everyone's choices
// out = residual + sum over each own token's experts of their rows of `in`. Without the residual in two parts, between
// which nobody touches `out`.
void seam_combine(Model *model, Tensor out, Tensor in, Tensor residual, const MoeRouting *rows);
CommTicket seam_combine_start(Model *model, Tensor out, Tensor in, const MoeRouting *rows);
void seam_combine_wait(Model *model, CommTicket ticket);
// The gradient of this rank's combine weights from that of the rows', as moe_route_backward takes it; in two parts.
typedef struct SlotGradient {
    Tensor dweight;
    CommTicket coming;
} SlotGradient;
SlotGradient seam_slot_gradient_start(Model *model, Tensor drow_weight, const MoeRouting *rows);
Tensor seam_slot_gradient(Model *model, SlotGradient gradient);
void seam_rows_needed(Model *model); // SCALAR_ROWS: the most of all ranks

// ---- around the parts of a micro-step -------------------------------------------------------------------------------

void seam_micro_step_begin(Model *model);
// The weights of a layer (or of the embedding, or of the LM head) are there; those of the layer after it in this pass
// are on their way.
void seam_layer_weights(Model *model, int layer);
void seam_edge_weights(Model *model, ParamId id);
// Before the backward pass of a layer writes its gradients, and after it has.
void seam_layer_gradients(Model *model, int layer);
void seam_layer_done(Model *model, int layer);
// The same for the embedding and the LM head. A tied one is done once, by the embedding's backward pass.
void seam_edge_gradients(Model *model, ParamId id);
void seam_edge_done(Model *model, ParamId id);
void seam_micro_step_end(Model *model); // vectors, and what is still on its way

// ---- pipeline parallelism (seam_pipeline.c) -------------------------------------------------------------------------

// Before and after a pass through the layers of a chunk: what it gets from one neighbour, and hands to the other.
// `losses`: those of balancing, which a forward pass that is not trained on does without.
void seam_stage_receive(Model *model, PipelinePass pass, bool losses);
void seam_stage_send(Model *model, PipelinePass pass, bool losses);
void seam_pass_end(Model *model); // gradients of the pass, but not vectors, which are reduced at the end of the step
// The balancing loss of a stage's layers, which are not all; false: there is one stage.
bool seam_stage_balance(Model *model, const LayoutChunk *chunk);
Tensor seam_dprob(const Model *model, Tensor own); // the gradient that a layer's probabilities have from it
void seam_stage_sums(Model *model, Tensor sums, Tensor counts); // of the step, over all stages
void seam_tied_embedding(Model *model);                         // the gradients of its two ends together

// ---- around the optimizer step --------------------------------------------------------------------------------------

void seam_step_sums(Model *model);           // loss, balancing loss and expert counts of all ranks
void seam_gradient_norm(Model *model);       // into SCALAR_NORM, over what each rank owns
void seam_new_weights(Model *model);         // after the optimizer
void seam_outer_weights(Model *model);       // after each rank has written its pieces of weights and master weights
bool seam_in_micro_step(const Model *model); // this micro-step communicates
bool seam_ends_gradients(
    const Model *model);                // after it gradients are complete: the last of a step, or each under ZeRO 2
bool seam_in_graph(const Model *model); // and what it does can be recorded
