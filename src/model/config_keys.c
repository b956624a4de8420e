#include "model/config_keys.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define KEY_COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))

// config.c reads them, and refuses the values that it does not compute.
static const char *const keys_read[] = {
    "architectures",
    "model_type",
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
    "hidden_act",
    "layer_types",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "router_aux_loss_coef",
    "decoder_sparse_step",
    "mlp_only_layers",
};

// They say how a program stores, runs, samples or labels, not what the model computes. pretraining_tp cuts products
// whose sum is the same; a sliding_window counts only with use_sliding_window.
static const char *const keys_ignored[] = {
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "pretraining_tp",
    "sliding_window",
    "max_window_layers",
    "output_router_logits",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "is_decoder",
    "is_llama_config",
    "name_or_path",
    "_name_or_path",
    "_commit_hash",
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
    "_experts_implementation_internal",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    // tokens and classes
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "tokenizer_class",
    "prefix",
    "model_max_length",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    // what a call returns, and of older versions
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "tie_last_hidden_states",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "pruned_heads",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "remove_invalid_values",
    // sampling
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "diversity_penalty",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
};

// Accepted when false, 0, null or empty.
static const char *const keys_off[] = {
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    "use_bias",
    "lm_head_bias",
    "use_sliding_window",
    "attention_dropout",
    "hidden_dropout",
    "residual_dropout",
    "embedding_dropout",
    "router_jitter_noise",
    "rope_interleaved",
    "clip_qkv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_parallel_residual",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "num_nextn_predict_layers",
    "no_rope_layers",
    "per_layer_config",
    "add_cross_attention",
    "is_encoder_decoder",
};

// Accepted when null.
static const char *const keys_absent[] = {"quantization_config", "attention_multiplier", "query_pre_attn_scalar",
                                          "text_config", "vision_config"};

// Accepted when 1 or null.
static const char *const keys_one[] = {"embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale",
                                       "routed_scaling_factor"};

static bool key_in(const char *const *keys, int count, const char *key) {
    for (int i = 0; i < count; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

static bool value_is_off(const json_t *value) {
    if (json_is_number(value)) return json_number_value(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    if (json_is_object(value)) return json_object_size(value) == 0;
    return json_is_null(value) || json_is_false(value);
}

static bool value_is_one(const json_t *value) {
    return json_is_null(value) || (json_is_number(value) && json_number_value(value) == 1);
}

static Status refuse_value(const char *key, const json_t *value, const char *accepted, const char *where) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    Status status = status_hint(status_usage("\"%s\": %.60s is not supported", key, text ? text : "?"),
                                "it changes what the model computes; hearth takes %s", accepted);
    free(text);
    return status_at(status, where, 0, 0);
}

Status model_config_check_keys(const json_t *root, const char *where) {
    TextBuffer unknown = {0};
    const char *key;
    json_t *value;
    Status status = NULL;
    json_object_foreach((json_t *)root, key, value) { // only read: jansson's iterator wants it writable
        if (key_in(keys_off, KEY_COUNT(keys_off), key)) {
            if (!value_is_off(value)) status = refuse_value(key, value, "it switched off only", where);
        } else if (key_in(keys_absent, KEY_COUNT(keys_absent), key)) {
            if (!json_is_null(value)) status = refuse_value(key, value, "models without it", where);
        } else if (key_in(keys_one, KEY_COUNT(keys_one), key)) {
            if (!value_is_one(value)) status = refuse_value(key, value, "1 only", where);
        } else if (!key_in(keys_read, KEY_COUNT(keys_read), key) &&
                   !key_in(keys_ignored, KEY_COUNT(keys_ignored), key)) {
            text_buffer_format(&unknown, "%s%s", unknown.length ? ", " : "", key);
        }
        if (status) break;
    }
    if (!status && unknown.length)
        log_warn(
            "%s: unknown keys are ignored (%s); a model that computes by them is not the one that hearth makes of it",
            where, unknown.data);
    text_buffer_free(&unknown);
    return status;
}
