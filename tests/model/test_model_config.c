// Model configs: HF spellings, presets with exact parameter counts, and refusals.
#include "testing.h"

#include "model/config.h"

#include <unistd.h>

static Status config_from(ModelConfig *config, const char *json) {
    json_t *root = NULL;
    TRY(json_read_text(&root, json, strlen(json), "config.json"));
    Status status = model_config_parse(config, root, "config.json");
    json_decref(root);
    return status;
}

static void test_presets_have_their_published_parameter_counts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t total, active;
    } table[] = {
        {"smollm-360m", 361821120, 361821120},          {"llama-3.2-1b", 1235814400, 1235814400},
        {"qwen3-moe-500m", 575241408, 344030400},       {"qwen3-30b-a3b", 30532122624, 3353032704},
        {"llama-3.1-405b", 405853388800, 405853388800}, {"llama-2-7b", 6738415616, 6738415616},
        {"llama-3-8b", 8030261248, 8030261248},         {"llama-3-70b", 70553706496, 70553706496},
        {"qwen3-0.6b", 596049920, 596049920},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ModelConfig config;
        assert_ok(model_preset(&config, table[i].name));
        ModelParameters count = model_parameters(&config);
        assert_int_equal(count.total, table[i].total);
        assert_int_equal(count.active, table[i].active);
    }
    ModelConfig config;
    assert_ok(model_preset(&config, "qwen3-30b-a3b")); // what torchtitan counts FLOPs with
    assert_int_equal(model_parameters(&config).matmul_active, 3041867776);
    assert_error(model_preset(&config, "smolm-360m"), "did you mean smollm-360m");
}

#define BASE                                                                                                          \
    "\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96"
// Nothing but sizes: the rest is what transformers assumes.
#define QWEN3                                                                                                         \
    "\"architectures\": [\"Qwen3ForCausalLM\"], \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 32, \"intermediate_size\": 96"
#define MOE                                                                                                           \
    "\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": " \
    "4, "                                                                                                             \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32"

static void test_both_rope_spellings_read_the_same(void **state) {
    (void)state;
    ModelConfig old, new;
    assert_ok(config_from(
        &old, "{" BASE ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, "
              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}"));
    assert_ok(config_from(&new, "{" BASE ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
                                "\"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                                "\"original_max_position_embeddings\": 8192}}"));
    assert_memory_equal(&old, &new, sizeof old);
    assert_int_equal(old.rope_type, ROPE_LLAMA3);
}

// LlamaConfig, Qwen3Config and Qwen3MoeConfig of transformers 5.22, given nothing but sizes.
static void test_defaults_are_those_of_transformers(void **state) {
    static const struct {
        const char *json;
        int kv_heads, head_dim, max_positions, top_k;
        float aux_coef;
    } table[] = {
        {"{" BASE "}", 4, 16, 2048, 0, 0},
        {"{" QWEN3 "}", 32, 128, 32768, 0, 0},
        {"{\"model_type\": \"qwen3_moe\", \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": 4, "
         "\"num_attention_heads\": 8, \"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"num_experts\": 16}",
         4, 8, 32768, 8, 0.001f},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ModelConfig config;
        assert_ok(config_from(&config, table[i].json));
        assert_int_equal(config.arch, i);
        assert_int_equal(config.kv_heads, table[i].kv_heads);
        assert_int_equal(config.head_dim, table[i].head_dim);
        assert_int_equal(config.max_positions, table[i].max_positions);
        assert_int_equal(config.top_k, table[i].top_k);
        assert_true(config.aux_coef == table[i].aux_coef);
        assert_false(config.tied || config.norm_topk);
        assert_true(config.rope_theta == 10000.0 && config.rope_type == ROPE_DEFAULT);
        assert_true(config.norm_eps == 1e-6f && config.init_std == 0.02f);
        assert_int_equal(model_sparse_layers(&config), config.arch == MODEL_QWEN3_MOE ? 4 : 0);
        assert_true(config.bos == -1 && config.eos == -1);
    }
    ModelConfig config; // null is not the same as nothing
    assert_ok(config_from(&config, "{" QWEN3 ", \"num_key_value_heads\": null}"));
    assert_int_equal(config.kv_heads, 32);
    assert_error(config_from(&config,
                             "{\"model_type\": \"qwen3\", \"vocab_size\": 100, \"hidden_size\": 64, "
                             "\"num_hidden_layers\": 2, \"num_attention_heads\": 16, \"intermediate_size\": 96}"),
                 "32 is what Qwen3ForCausalLM assumes");
    assert_ok(config_from(&config, "{\"model_type\": \"qwen3\", \"vocab_size\": 100, \"hidden_size\": 64, "
                                   "\"num_hidden_layers\": 2, \"num_attention_heads\": 16, \"intermediate_size\": 96, "
                                   "\"num_key_value_heads\": null}"));
    assert_int_equal(config.kv_heads, 16);
}

static void test_llama3_rope_was_made_for_all_positions_unless_it_says_otherwise(void **state) {
    ModelConfig config;
    (void)state;
#define LLAMA3 "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0"
    assert_ok(config_from(&config, "{" BASE ", \"rope_parameters\": {" LLAMA3 "}}"));
    assert_int_equal(config.rope_original_positions, 2048);
    assert_ok(config_from(&config, "{" BASE ", \"original_max_position_embeddings\": 512, \"rope_parameters\": {" LLAMA3
                                   ", \"original_max_position_embeddings\": 1024}}"));
    assert_int_equal(config.rope_original_positions, 512);
    // Where both spellings are there, rope_scaling has the word; an empty one has none.
    assert_ok(config_from(&config, "{" BASE ", \"rope_scaling\": {" LLAMA3 ", \"rope_theta\": 5.0}, "
                                   "\"rope_parameters\": {\"rope_theta\": 7.0}}"));
    assert_true(config.rope_theta == 5.0 && config.rope_type == ROPE_LLAMA3);
    assert_ok(config_from(&config, "{" BASE ", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 7.0}}"));
    assert_true(config.rope_theta == 7.0 && config.rope_type == ROPE_DEFAULT);
}

static void test_head_dim_is_derived_when_absent(void **state) {
    (void)state;
    ModelConfig config;
    assert_ok(config_from(&config, "{" BASE "}"));
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.kv_heads, 4);
    assert_ok(config_from(&config, "{" BASE ", \"head_dim\": 56}"));
    assert_int_equal(config.head_dim, 56);
}

static void test_sparse_layers_follow_step_and_list(void **state) {
    (void)state;
    ModelConfig config;
    assert_ok(config_from(&config, "{" MOE ", \"num_experts\": 8, \"decoder_sparse_step\": 2}"));
    assert_false(config.sparse[0]);
    assert_true(config.sparse[1]);
    assert_ok(config_from(&config, "{" MOE ", \"num_local_experts\": 8, \"mlp_only_layers\": [1, 3]}"));
    assert_true(config.sparse[0] && config.sparse[2]);
    assert_false(config.sparse[1] || config.sparse[3]);
}

static void test_a_mixture_of_experts_may_have_no_sparse_layer(void **state) {
    static const char *const configs[] = {"{" MOE ", \"num_experts\": 8, \"mlp_only_layers\": [0, 1, 2, 3]}",
                                          "{" MOE ", \"num_experts\": 8, \"decoder_sparse_step\": 5}"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ModelConfig config, again;
        assert_ok(config_from(&config, configs[i]));
        assert_int_equal(model_sparse_layers(&config), 0);
        json_t *json = model_config_json(&config);
        assert_ok(model_config_parse(&again, json, "written"));
        json_decref(json);
        assert_memory_equal(&config, &again, sizeof config);
    }
}

static void test_what_changes_nothing_is_accepted(void **state) {
    static const char *const more[] = {
        "\"attention_bias\": false, \"mlp_bias\": false, \"attention_dropout\": 0.0, \"use_sliding_window\": false",
        "\"sliding_window\": 4096, \"max_window_layers\": 28, \"pretraining_tp\": 2, \"use_cache\": true",
        "\"dtype\": \"bfloat16\", \"torch_dtype\": \"float16\", \"transformers_version\": \"4.40.0\"",
        "\"pad_token_id\": 0, \"bos_token_id\": 1, \"eos_token_id\": [2, 3], \"rope_scaling\": null",
        "\"hidden_act\": \"silu\", \"partial_rotary_factor\": 1.0, \"layer_types\": [\"full_attention\"]",
        "\"quantization_config\": null, \"logits_scaling\": 1.0, \"rope_interleaved\": false, \"top_k\": 50",
    };
    ModelConfig plain, config;
    (void)state;
    assert_ok(config_from(&plain, "{" BASE "}"));
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        char *json = text_format("{" BASE ", %s}", more[i]);
        assert_ok(config_from(&config, json));
        config.bos = -1;
        assert_memory_equal(&plain, &config, sizeof config);
        free(json);
    }
}

static void test_an_unknown_key_is_warned_of_by_name(void **state) {
    char path[] = "/tmp/hearth-keys-XXXXXX", *text;
    int file = mkstemp(path), saved = dup(STDERR_FILENO);
    ModelConfig config;
    size_t size;
    (void)state;
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    Status status = config_from(&config, "{" BASE ", \"a_key_of_the_future\": 1, \"use_cache\": true}");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    assert_ok(status);
    assert_ok(file_read(&text, &size, path));
    unlink(path);
    assert_non_null(strstr(text, "warn config.json: unknown keys are ignored (a_key_of_the_future);"));
    free(text);
}

static void test_what_hearth_does_not_compute_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *json, *error;
    } table[] = {
        {"{\"architectures\": [\"GPT2LMHeadModel\"]}", "GPT2LMHeadModel"},
        {"{\"hidden_size\": 4}", "model_type"},
        {"[]", "JSON object"},
        {"{" BASE ", \"attention_bias\": true}", "attention_bias"},
        {"{" BASE ", \"mlp_bias\": true}", "mlp_bias"},
        {"{" BASE ", \"use_sliding_window\": true}", "sliding"},
        {"{" BASE ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}", "sliding_attention"},
        {"{" BASE ", \"attention_dropout\": 0.1}", "attention_dropout"},
        {"{" BASE ", \"hidden_act\": \"gelu\"}", "gelu"},
        {"{" BASE ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}", "yarn"},
        {"{" BASE ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4.0}}", "low_freq_factor"},
        {"{" BASE ", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor"},
        {"{" BASE ", \"num_key_value_heads\": 3}", "do not divide"},
        {"{" BASE ", \"head_dim\": 7}", "odd"},
        {"{" BASE ", \"head_dim\": 1073741824}", "the width of attention (heads and KV heads times head_dim) is"},
        {"{" MOE ", \"num_experts\": 2147483647}", "the number of experts is 2147483647"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 16777216, \"hidden_size\": 16777216, \"num_hidden_layers\": 256, "
         "\"num_attention_heads\": 1, \"head_dim\": 2, \"intermediate_size\": 16777216}",
         "parameters is beyond"},
        {"{" BASE ", \"quantization_config\": {}}", "quantization_config"},
        {"{" BASE ", \"model_type\": \"mistral\"}", "\"model_type\" is \"mistral\", not \"llama\""},
        {"{\"architectures\": [], \"model_type\": \"llama\"}", "a list of one name"},
        {"{\"architectures\": \"LlamaForCausalLM\"}", "a list of one name"},
        {"{\"model_type\": \"mistral\"}", "architecture \"mistral\""},
        {"{" BASE ", \"rope_interleaved\": true}", "\"rope_interleaved\": true"},
        {"{" BASE ", \"final_logit_softcapping\": 30.0}", "final_logit_softcapping"},
        {"{" BASE ", \"logits_scaling\": 8.0}", "hearth takes 1 only"},
        {"{" BASE ", \"shared_expert_intermediate_size\": 64}", "shared_expert_intermediate_size"},
        {"{" BASE ", \"no_rope_layers\": [1, 0]}", "no_rope_layers"},
        {"{" BASE ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1.0}}}", "each kind of layer"},
        {"{" BASE ", \"rope_parameters\": [1]}", "must be an object"},
        {"{" MOE ", \"num_experts\": 8, \"decoder_sparse_step\": 0}", "decoder_sparse_step"},
        {"{" MOE ", \"num_experts\": 8, \"mlp_only_layers\": 3}", "list of layers"},
        {"{" BASE ", \"rms_norm_eps\": \"tiny\"}", "rms_norm_eps"},
        {"{" BASE ", \"vocab_size\": 3.5}", "Duplicate"},
        {"{" MOE ", \"num_experts\": 8, \"router_aux_loss_coef\": 1e308}", "router_aux_loss_coef inf is out of range"},
        {"{" BASE ", \"initializer_range\": 1e308}", "initializer_range inf is out of range"},
        {"{" MOE ", \"num_experts\": 1}", "2 of only 1"},
        {"{" MOE ", \"num_experts\": 8, \"mlp_only_layers\": [7]}", "layer 7 of 4"},
        {"{" MOE "}", "num_experts"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ModelConfig config;
        Status status = config_from(&config, table[i].json);
        if (!status) fail_msg("accepted: %s", table[i].json);
        if (!strcasestr(status_text(status), table[i].error))
            fail_msg("%s\n  gave: %s\n  expected: %s", table[i].json, status_text(status), table[i].error);
        status_free(status);
    }
}

static void test_written_config_reads_back_the_same(void **state) {
    (void)state;
    for (int i = 0; i < model_preset_count(); i++) {
        ModelConfig config, again;
        assert_ok(model_preset(&config, model_preset_name(i)));
        json_t *json = model_config_json(&config);
        assert_ok(model_config_parse(&again, json, "written"));
        json_decref(json);
        assert_memory_equal(&config, &again, sizeof config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_have_their_published_parameter_counts),
        cmocka_unit_test(test_both_rope_spellings_read_the_same),
        cmocka_unit_test(test_defaults_are_those_of_transformers),
        cmocka_unit_test(test_llama3_rope_was_made_for_all_positions_unless_it_says_otherwise),
        cmocka_unit_test(test_head_dim_is_derived_when_absent),
        cmocka_unit_test(test_sparse_layers_follow_step_and_list),
        cmocka_unit_test(test_a_mixture_of_experts_may_have_no_sparse_layer),
        cmocka_unit_test(test_what_changes_nothing_is_accepted),
        cmocka_unit_test(test_an_unknown_key_is_warned_of_by_name),
        cmocka_unit_test(test_what_hearth_does_not_compute_is_refused),
        cmocka_unit_test(test_written_config_reads_back_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
