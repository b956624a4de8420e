// The transformer, written once against the op table: one micro-batch forward and backward.
#pragma once

#include "model/model.h"

// ids, targets and doc_start of the micro-batch are in the model's constants.
void transformer_forward(Model *model);  // through the last layer: ACT_RESIDUAL_FINAL is set
void transformer_backward(Model *model); // from ACT_DRESIDUAL, set by transformer_head
// Final norm, LM head and cross entropy in chunks. Adds to the loss sum; with `backward` also the gradients of the head
// and ACT_DRESIDUAL.
void transformer_head(Model *model, bool backward);
// Runs the forward pass, and logits of all tokens to a host array [tokens, vocab] of the model's dtype.
void transformer_logits(Model *model, void *host);

// For model/generate.c, which runs the layers with cached keys and values: the pieces that do not depend on the cache.
void *transformer_activation(const Model *model, ActId id, int layer); // in the current pass
void transformer_qkv(Model *model, int layer);      // ACT_RESIDUAL_IN through the norm and the QKV product
void transformer_mlp(Model *model, int layer);      // from ACT_RESIDUAL_MID to the next layer's ACT_RESIDUAL_IN
void transformer_final_norm(Model *model);          // into ACT_FINAL_NORMED
ParamId transformer_head_param(const Model *model); // the LM head, or the embedding it is tied to
