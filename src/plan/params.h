// Parameter counts of decoder-only transformers from their shape. Counts are doubles: whole numbers are exact up to
// 2^53.
#pragma once

#include <stdbool.h>

typedef struct PlanShape {
    double vocab, hidden, layers;
    double heads, kv_heads, head_dim;
    double ffn;            // intermediate size of one MLP or of one expert
    double experts, top_k; // 1 and 1 for a dense model
    bool router;           // a [hidden, experts] router in each layer
    bool qk_norm;          // an RMSNorm of head_dim on queries and one on keys (Qwen3)
    bool tied;             // the LM head is the input embedding
} PlanShape;

double plan_params_total(const PlanShape *shape);
double plan_params_active(const PlanShape *shape); // top_k of the experts
// What a token is multiplied with: active parameters with one [vocab, hidden] matrix, the LM head. The lookup of the
// input embedding is no product. Norms are counted, as torchtitan does.
double plan_params_matmul(const PlanShape *shape);

double plan_layer_params_mha(double hidden, double ffn);                                // 4 d^2 attention, SwiGLU
double plan_layer_params_gqa(double hidden, double ffn, double heads, double kv_heads); // head_dim = hidden / heads
double plan_params_from_layers(double per_layer, double layers, double vocab, double hidden); // untied, norms left out
