// From [model] to a shape: sizes written out are what transformers makes of them, and a config.json keeps its layers.
#include "tiny_folder.h"

#include "train/setup.h"
#include "train/trainer.h"

static char *written_file(const char *name, const char *text) {
    char *path = path_join(directory, name);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    return path;
}

static ModelConfig shape_of(const char *toml, const char *const *sets, int set_count) {
    char *path = written_file("shape.toml", toml);
    Config config;
    ModelConfig model;
    assert_ok(config_read(&config, path, sets, set_count));
    assert_ok(setup_model(&config, 0, &model));
    config_free(&config);
    free(path);
    return model;
}

static void sizes_written_out_are_the_model_that_transformers_makes_of_them(void **state) {
    (void)state;
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        const char *type = model_arch_type((ModelArch)i);
        bool moe = model_has_experts(&(ModelConfig){.arch = (ModelArch)i});
        char *json =
            text_format("{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": "
                        "3, \"num_attention_heads\": 32, \"intermediate_size\": 96%s}",
                        type, moe ? ", \"num_experts\": 16, \"moe_intermediate_size\": 24" : "");
        char *toml =
            text_format("[model]\narch = \"%s\"\nvocab = 100\nhidden = 64\nlayers = 3\nheads = 32\nffn = 96\n%s"
                        "[train]\nseq = 32\n",
                        type, moe ? "experts = 16\nexpert_ffn = 24\n" : "");
        char *path = written_file("config.json", json);
        ModelConfig read, written = shape_of(toml, NULL, 0);
        assert_ok(model_config_read(&read, path));
        if (moe) { // of each layer here, of all together there
            assert_true(written.aux_coef == 0.01f && read.aux_coef == 0.001f);
            written.aux_coef = read.aux_coef;
        }
        assert_memory_equal(&written, &read, sizeof read);
        free(path);
        free(toml);
        free(json);
    }
}

static void a_run_longer_than_the_default_raises_the_positions(void **state) {
#define SIZES "[model]\nvocab = 100\nhidden = 64\nlayers = 1\nheads = 4\nffn = 96\n"
    (void)state;
    assert_int_equal(shape_of(SIZES "[train]\nseq = 32\n", NULL, 0).max_positions, 2048);
    assert_int_equal(shape_of(SIZES "[train]\nseq = 4096\n", NULL, 0).max_positions, 4096);
    assert_int_equal(shape_of(SIZES "max_seq = 64\n[train]\nseq = 32\n", NULL, 0).max_positions, 64);
}

static void layers_added_to_a_preset_are_like_its_last(void **state) {
    static const char *const longer[] = {"model.layers=6", "model.arch=qwen3_moe"};
    (void)state;
    ModelConfig model = shape_of("[model]\npreset = \"demo-moe\"\n", longer, 2);
    assert_int_equal(model_sparse_layers(&model), 6);
}

// Qwen3-MoE files may say that every layer is dense: by list, or by a step beyond the last layer.
static void a_config_json_without_sparse_layers_trains_dense(void **state) {
    static const char *const all_dense[] = {"\"mlp_only_layers\": [0, 1]", "\"decoder_sparse_step\": 3"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *json =
            text_format("{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 260, \"hidden_size\": 32, "
                        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                        "\"intermediate_size\": 64, \"num_experts\": 4, \"num_experts_per_tok\": 2, "
                        "\"moe_intermediate_size\": 16, %s}",
                        all_dense[i]);
        char *model = written_file("config.json", json), *path = tiny_config(directory, "dense.toml", 10, "");
        char *set = text_format("model.config=%s", model);
        const char *sets[] = {set};
        Config config;
        Trainer trainer;
        MetricsStep step;
        bool stopped;
        assert_ok(config_read(&config, path, sets, 1));
        assert_ok(trainer_open(&trainer, &config));
        const ModelConfig *shape = &trainer.model->layout.request.config;
        assert_int_equal(model_sparse_layers(shape), 0);
        assert_non_null(layout_param(&trainer.model->layout, PARAM_GATE_UP, 1));
        assert_null(layout_param(&trainer.model->layout, PARAM_ROUTER, 1));
        double first = 0;
        for (int k = 0; k < 10; k++) {
            assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
            if (k == 0) first = step.loss;
        }
        assert_true(step.loss < first - 0.1);
        trainer_close(&trainer);
        config_free(&config);
        free(set);
        free(path);
        free(model);
        free(json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_written_out_are_the_model_that_transformers_makes_of_them),
        cmocka_unit_test(a_run_longer_than_the_default_raises_the_positions),
        cmocka_unit_test(layers_added_to_a_preset_are_like_its_last),
        cmocka_unit_test(a_config_json_without_sparse_layers_trains_dense),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
