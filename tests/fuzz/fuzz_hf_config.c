// Any JSON as a Hugging Face config.json: what is accepted must be written and read back as the same model.
#include "fuzz_json.h"
#include "model/config.h"

const char *const fuzz_words[] = {"model_type",
                                  "llama",
                                  "qwen3",
                                  "qwen3_moe",
                                  "architectures",
                                  "LlamaForCausalLM",
                                  "Qwen3ForCausalLM",
                                  "Qwen3MoeForCausalLM",
                                  "vocab_size",
                                  "hidden_size",
                                  "num_hidden_layers",
                                  "num_attention_heads",
                                  "num_key_value_heads",
                                  "head_dim",
                                  "intermediate_size",
                                  "max_position_embeddings",
                                  "rms_norm_eps",
                                  "initializer_range",
                                  "tie_word_embeddings",
                                  "rope_theta",
                                  "rope_scaling",
                                  "rope_parameters",
                                  "rope_type",
                                  "type",
                                  "llama3",
                                  "default",
                                  "factor",
                                  "low_freq_factor",
                                  "high_freq_factor",
                                  "original_max_position_embeddings",
                                  "num_experts",
                                  "num_experts_per_tok",
                                  "moe_intermediate_size",
                                  "norm_topk_prob",
                                  "router_aux_loss_coef",
                                  "decoder_sparse_step",
                                  "mlp_only_layers",
                                  "bos_token_id",
                                  "eos_token_id",
                                  "attention_bias",
                                  "mlp_bias",
                                  "hidden_act",
                                  "silu",
                                  "sliding_window",
                                  "use_sliding_window",
                                  "layer_types",
                                  "full_attention",
                                  "attention_dropout",
                                  "pretraining_tp",
                                  "num_local_experts",
                                  "torch_dtype",
                                  "dtype",
                                  "bfloat16",
                                  "quantization_config",
                                  NULL};

static void config_use(const ModelConfig *config) {
    json_t *written = model_config_json(config);
    ModelConfig again;
    Status status = model_config_parse(&again, written, "written");
    if (status) abort();
    json_t *twice = model_config_json(&again);
    if (!json_equal(written, twice)) abort();
    ModelParameters parameters = model_parameters(config);
    if (parameters.total <= 0 || parameters.active > parameters.total) abort();
    if (config->head_dim <= 512) {
        static float table[2][2 * 256];
        model_rope_table(config, 2, table[0], table[1]);
    }
    json_decref(written);
    json_decref(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root;
    ModelConfig config;
    Status status = json_read_text(&root, (const char *)data, size, "config.json");
    if (!status) {
        status = model_config_parse(&config, root, "config.json");
        if (!status) config_use(&config);
        json_decref(root);
    }
    status_free(status);
    return 0;
}
