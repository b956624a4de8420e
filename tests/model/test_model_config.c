// Model configs: HF spellings, presets with exact parameter counts, and refusals.
#include "testing.h"

#include "model/config.h"

static Status parse(ModelConfig *config, const char *json) {
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
#define MOE                                                                                                           \
    "\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": " \
    "4, "                                                                                                             \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32"

static void test_both_rope_spellings_read_the_same(void **state) {
    (void)state;
    ModelConfig old, new;
    assert_ok(parse(
        &old, "{" BASE ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, "
              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}"));
    assert_ok(parse(&new, "{" BASE ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
                          "\"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                          "\"original_max_position_embeddings\": 8192}}"));
    assert_memory_equal(&old, &new, sizeof old);
    assert_int_equal(old.rope_type, ROPE_LLAMA3);
}

static void test_head_dim_is_derived_when_absent(void **state) {
    (void)state;
    ModelConfig config;
    assert_ok(parse(&config, "{" BASE "}"));
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.kv_heads, 4);
    assert_ok(parse(&config, "{" BASE ", \"head_dim\": 56}"));
    assert_int_equal(config.head_dim, 56);
}

static void test_sparse_layers_follow_step_and_list(void **state) {
    (void)state;
    ModelConfig config;
    assert_ok(parse(&config, "{" MOE ", \"num_experts\": 8, \"decoder_sparse_step\": 2}"));
    assert_false(config.sparse[0]);
    assert_true(config.sparse[1]);
    assert_ok(parse(&config, "{" MOE ", \"num_local_experts\": 8, \"mlp_only_layers\": [1, 3]}"));
    assert_true(config.sparse[0] && config.sparse[2]);
    assert_false(config.sparse[1] || config.sparse[3]);
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
        {"{" BASE ", \"quantization_config\": {}}", "quantis"},
        {"{" BASE ", \"rms_norm_eps\": \"tiny\"}", "rms_norm_eps"},
        {"{" BASE ", \"vocab_size\": 3.5}", "Duplicate"},
        {"{" MOE ", \"num_experts\": 1}", "2 of only 1"},
        {"{" MOE ", \"num_experts\": 8, \"mlp_only_layers\": [7]}", "layer 7 of 4"},
        {"{" MOE "}", "num_experts"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ModelConfig config;
        Status status = parse(&config, table[i].json);
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
        cmocka_unit_test(test_head_dim_is_derived_when_absent),
        cmocka_unit_test(test_sparse_layers_follow_step_and_list),
        cmocka_unit_test(test_what_hearth_does_not_compute_is_refused),
        cmocka_unit_test(test_written_config_reads_back_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
