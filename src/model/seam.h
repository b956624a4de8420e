// Where the transformer meets other ranks. transformer.c is written for one rank; at these points it hands tensors to
// the groups that the model is part of. On one rank every seam is a no-op.
//
// Data parallelism (units of model/layout.h):
//   ZeRO 0  gradients are summed over the ranks behind the last micro-batch's backward pass, unit by unit
//   ZeRO 1  the same, but each rank gets only its pieces, updates them, and the new weights are gathered
//   ZeRO 2  a unit's gradients exist as a whole only until they are reduced, after every micro-batch
//   ZeRO 3  and so do its weights: they are gathered when a layer needs them, the next layer's behind its computation
#pragma once

#include "model/model.h"

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

// ---- around the optimizer step --------------------------------------------------------------------------------------

void seam_step_sums(Model *model);           // loss, balancing loss and expert counts of all ranks
void seam_gradient_norm(Model *model);       // into SCALAR_NORM, over what each rank owns
void seam_new_weights(Model *model);         // after the optimizer
bool seam_in_micro_step(const Model *model); // this micro-step communicates
