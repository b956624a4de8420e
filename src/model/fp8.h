// Linear layers in FP8 (train.precision = "fp8"): which products run so, their copies and scales. The op table rounds
// and multiplies (ops/ops.h); where this model, layer or pass does not use FP8, these functions call the plain ops.
//
// A scale belongs to a tensor of a layer or of the LM head. Those of activations and gradients come from the largest
// magnitude of the step before, over all micro-batches and ranks, so that they are the same however the work is cut;
// those of weights from the weights themselves. The bf16 weights and their master parts stay the truth.
#pragma once

#include "model/model.h"

// ---- products of a layer, for transformer.c and seam.c --------------------------------------------------------------

bool fp8_uses(const Model *model, Fp8Use use);                // in this pass; evaluation is in bf16
bool fp8_travels(const Model *model, const LayoutUnit *unit); // it is gathered in FP8, likewise
// RMSNorm, and in FP8 too where the product that reads it runs so and wants this rank's tokens only.
void fp8_norm_forward(Model *model, ParamId product, int layer, Tensor normed, Tensor rstd, Tensor residual,
                      Tensor weight);
// out = in . weight^T + add. in is rounded first, unless the kernel that made it has done so.
void fp8_linear_forward(Model *model, ParamId id, int layer, Tensor out, Tensor in, Tensor add);
// QKV or O: the gradient of its input, and that of its weight (+= with accumulate).
void fp8_linear_backward(Model *model, ParamId id, int layer, Tensor din, Tensor dweight, Tensor dout, Tensor in,
                         bool accumulate);
// A dense MLP (FP8_MLP): gate-up and SwiGLU, whose result is then what fp8_linear_forward of PARAM_DOWN reads, and
// back: din is the gradient of `in`, the gate-up product's input; dhidden is a place for that of hidden.
void fp8_mlp_forward(Model *model, int layer, Tensor in);
void fp8_mlp_backward(Model *model, int layer, Tensor din, Tensor dgate_up, Tensor ddown, Tensor dout, Tensor in,
                      Tensor dhidden, bool accumulate);

// The LM head's products of one chunk of tokens. What runs in bf16 has no copies.
typedef struct Fp8HeadChunk {
    ParamId weight;
    Tensor in, logits;       // [rows, hidden], [rows, vocab]
    Tensor in_rows, in_cols; // in FP8
    Tensor dlogits;          // where the loss leaves the logits' gradient in FP8; absent: in bf16 in logits
} Fp8HeadChunk;
Fp8HeadChunk fp8_head_chunk(const Model *model, Tensor in, Tensor logits);
void fp8_head_forward(Model *model, const Fp8HeadChunk *chunk);
// After the loss. Takes the place of logits.
void fp8_head_backward(Model *model, const Fp8HeadChunk *chunk, Tensor din, Tensor dweight, bool accumulate);
// No gradient of a logit is larger than its factor, 1 / targets: the finest scale that has room for it.
float fp8_dlogits_scale(float most);

// Experts (FP8_EXPERTS), fp8_experts.c.
typedef struct Fp8Experts {
    int layer;
    const MoeRouting *rows;
    Tensor row_count;    // [1, 1] rows in use
    Tensor gathered;     // [R, hidden] e4m3, where experts are spread over ranks
    Tensor wide, narrow; // [R, hidden] and [R, moe_ffn] in bf16: forward results, backward gradients; before, they are
                         // places for rows in FP8
} Fp8Experts;
// From normed tokens (of all ranks that share the experts) to wide, what the experts hand on.
void fp8_experts_forward(Model *model, const Fp8Experts *e, Tensor tokens);
// Where evaluation notes: gate and up of the rows. Takes the place of narrow.
void fp8_experts_note(Model *model, const Fp8Experts *e);
// Back, in parts: from the gradients of tokens to those of gate and up and of combine weights; the weight gradient of
// down, and the gradient of the experts' inputs into wide; when that has been summed, the weight gradient of gate-up.
// Before the last, experts that are spread over ranks may have to get their rows again.
void fp8_experts_backward_hidden(Model *model, const Fp8Experts *e, Tensor dtokens, Tensor drow_weight);
void fp8_experts_backward_rows(Model *model, const Fp8Experts *e, Tensor ddown, bool accumulate);
void fp8_experts_gather_again(Model *model, const Fp8Experts *e, Tensor tokens);
void fp8_experts_backward_weight(Model *model, const Fp8Experts *e, Tensor dgate_up, Tensor normed, bool accumulate);

// Of fp8_experts.c: the copy of a weight that the next product reads, as it is or transposed, and scale and largest
// magnitude of a tensor of a layer.
Tensor fp8_weight(Model *model, ParamId id, int layer, bool cols);
Tensor fp8_scale(const Model *model, Fp8Slot slot, int layer);
Tensor fp8_amax(const Model *model, Fp8Slot slot, int layer);

// ---- before there is a model ----------------------------------------------------------------------------------------

// Sets request->fp8_off so that the products run in FP8 which are faster so on this device, and says which. Races at
// the first use of a shape. all: every rank (they take the first one's choice), or NULL.
Status fp8_choose(Ops *ops, LayoutRequest *request, Comm *all);
enum { FP8_TEXT = 256 };
void fp8_describe(unsigned fp8, char text[FP8_TEXT]); // "qkv, o, MLP with its gradients, head"

#define FP8_FIRST_SCALE 0x1p-4f // of activations that nobody has looked at; in a fresh model they are small numbers

// ---- around a step, for model.c -------------------------------------------------------------------------------------

void fp8_step(Model *model);   // before a micro-step: scales to begin with, and copies of weights that have changed
void fp8_scales(Model *model); // after the last: the next step's scales
void fp8_scales_undo(Model *model); // the step was refused and runs again: those that it began with

// A run's first step has none before it. Evaluation of its batch with fp8_noting, and then this: its activations have
// the scales that they would have after such a step.
void fp8_scales_noted(Model *model);

// Micro-steps that are no run's have noted their maxima, and may have begun with scales: as if they had not been.
// scaled: whether there were scales before.
void fp8_forget(Model *model, bool scaled);
