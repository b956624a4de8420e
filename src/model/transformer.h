// The transformer, written once against the op table: one micro-batch forward and backward.
#pragma once

#include "model/model.h"

// ids, targets and doc_start of the micro-batch are in the model's constants. A micro-step is, in this order:
void transformer_zero_added_gradients(Model *model); // first of a step: gradients that no product overwrites
void transformer_forward(Model *model);              // through the last layer: ACT_RESIDUAL_FINAL is set
// Final norm, LM head and cross entropy in chunks. Adds to the loss sum; with `backward` also the gradients of the head
// and of the final norm's result.
void transformer_head(Model *model, bool backward);
void transformer_balance(Model *model);  // MoE: balancing loss, and the load of the step
void transformer_backward(Model *model); // from the head on

// Their parts, for pipelines and for the record of a step.
void transformer_embed(Model *model);
void transformer_layer_forward(Model *model, int layer);
void transformer_head_backward(Model *model);
void transformer_layer_backward(Model *model, int layer);
void transformer_embed_backward(Model *model);

// Runs the forward pass, and logits of all tokens to a host array [tokens, vocab] of the model's dtype.
void transformer_logits(Model *model, void *host);

// For model/generate.c: a layer forward with keys and values that are kept; those of the model's tokens go into rows
// `used` and on. Then the logits of the last token: [1, vocab].
void transformer_layer_cached(Model *model, int layer, Tensor keys, Tensor values, int used);
Tensor transformer_last_logits(Model *model);
