// The architecture of a model, as a Hugging Face config.json or a built-in preset gives it.
//
// Three architectures share one description: LlamaForCausalLM, Qwen3ForCausalLM (adds QK-norm) and Qwen3MoeForCausalLM
// (adds experts). Anything else, or an option that hearth does not compute, is refused; nothing is silently ignored.
#pragma once

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { MODEL_LAYERS_MAX = 256 };

// Id, model_type and name of each architecture; config.c has a row for each of what transformers assumes of it.
#define MODEL_ARCH_LIST(X)                \
    X(LLAMA, "llama", "LlamaForCausalLM") \
    X(QWEN3, "qwen3", "Qwen3ForCausalLM") \
    X(QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM")

#define MODEL_ARCH_ID(id, type, name) MODEL_##id,
typedef enum ModelArch { MODEL_ARCH_LIST(MODEL_ARCH_ID) MODEL_ARCH_COUNT } ModelArch;
#undef MODEL_ARCH_ID

#define MODEL_ARCH_CHOICE(id, type, name) "|" type // MODEL_ARCH_LIST(MODEL_ARCH_CHOICE): "|llama|qwen3|..."
typedef enum RopeType { ROPE_DEFAULT, ROPE_LLAMA3 } RopeType;

typedef struct ModelConfig {
    ModelArch arch;
    int vocab, hidden, layers;
    int heads, kv_heads, head_dim;
    int ffn; // width of a dense MLP
    int max_positions;
    float norm_eps;
    float init_std;
    bool tied; // the LM head is the input embedding

    double rope_theta;
    RopeType rope_type;
    double rope_factor, rope_low_freq, rope_high_freq; // llama3 scaling
    int rope_original_positions;

    int experts, top_k, moe_ffn; // moe_ffn is the width of one expert; used by the layers that are sparse
    bool norm_topk;
    float aux_coef;                // weight of the load-balancing loss
    bool sparse[MODEL_LAYERS_MAX]; // which layers are MoE
    int sparse_step;               // as written in config.json, for writing it back
    int64_t bos, eos;              // -1: none
} ModelConfig;

// What transformers 5 assumes for a model of this architecture where its config.json says nothing. The sizes of tensors
// stay 0 and must be given; kv_heads and head_dim are 0 where they follow from the others (model_config_derive).
void model_config_defaults(ModelConfig *config, ModelArch arch);
void model_config_derive(ModelConfig *config); // as many KV heads as heads; head_dim = hidden / heads

Status model_config_read(ModelConfig *config, const char *path); // config.json, or a directory that holds one
Status model_config_parse(ModelConfig *config, const json_t *root, const char *name);
json_t *model_config_json(const ModelConfig *config); // as HF writes it; the caller owns it

// Checks what must hold between the values (heads divide by kv_heads, ...). `where` names the source in errors.
Status model_config_check(const ModelConfig *config, const char *where);

Status model_preset(ModelConfig *config, const char *name); // unknown: an error that lists the names
int model_preset_count(void);
const char *model_preset_name(int index);

// Derived sizes.
bool model_qk_norm(const ModelConfig *config);     // queries and keys are normed before they are rotated
bool model_has_experts(const ModelConfig *config); // its layers may be sparse
static inline int model_qkv_dim(const ModelConfig *config) {
    return (config->heads + 2 * config->kv_heads) * config->head_dim;
}
static inline int model_attention_dim(const ModelConfig *config) {
    return config->heads * config->head_dim;
}
int model_sparse_layers(const ModelConfig *config);

typedef struct ModelParameters {
    int64_t total;
    int64_t active;        // that one token meets: top_k of the experts
    int64_t embedding;     // the input embedding (also the head, when tied)
    int64_t matmul_active; // active without the input embedding, but with the LM head: what 6N FLOPs counts
} ModelParameters;
ModelParameters model_parameters(const ModelConfig *config);

const char *model_arch_name(ModelArch arch); // as HF spells it: "LlamaForCausalLM"
const char *model_arch_type(ModelArch arch); // its model_type: "llama"
bool model_arch_parse(ModelArch *arch, const char *type);

// cos and sin of the rotary embedding: [positions, head_dim / 2], computed in double.
void model_rope_table(const ModelConfig *config, int positions, float *cos_table, float *sin_table);
