// Out to a Hugging Face directory and back in.
#include "train/tiny_run.h"

#include "infer/export.h"
#include "infer/loaded.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/run.h"
#include "train/trainer.h"

static char *directory;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    char *config = tiny_config(directory, "run.toml", 8, ""), *run = path_join(directory, "run");
    RunOptions options = {.config = config, .directory = run};
    int stopped_by;
    assert_ok(run_train(&options, &stopped_by));
    free(run);
    free(config);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    return 0;
}

static double loss_of(const char *path) {
    LoadedRequest request = {.path = path, .tokenizer = "bytes", .device = "cpu", .micro_batch = 2, .seq = 32};
    char *data = path_join(directory, "data");
    const char *paths[] = {data};
    SamplesRequest wanted = {.paths = paths, .path_count = 1, .split = "val", .seq = 32};
    Loaded loaded;
    Samples samples;
    Evaluation eval;
    assert_ok(samples_open(&samples, &wanted));
    assert_ok(loaded_open(&loaded, &request));
    assert_ok(evaluate_samples(loaded.model, &samples, 16, &eval));
    loaded_close(&loaded);
    samples_close(&samples);
    free(data);
    return eval.loss;
}

static void an_exported_model_has_the_same_loss(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *out = path_join(directory, "hf");
    assert_ok(export_hf(run, NULL, out, DTYPE_F32, NULL));
    assert_true(loss_of(run) == loss_of(out)); // fp32 out and in: not one bit differs
    assert_error(export_hf(run, NULL, out, DTYPE_F32, NULL), "already");
    free(run);
    free(out);
}

// Readers stop at the token that ended documents in training.
static void an_exported_run_names_its_end_of_text(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *out = path_join(directory, "hf-eos"), *source = NULL;
    assert_ok(export_hf(run, NULL, out, DTYPE_F32, &source));
    char *expected = path_join(run, "checkpoints/step-8");
    assert_string_equal(source, expected);
    ModelConfig config;
    Tokenizer *bytes;
    assert_ok(model_config_read(&config, out));
    assert_ok(tokenizer_load(&bytes, "bytes"));
    assert_true(config.eos >= 0);
    assert_int_equal(config.eos, tokenizer_end_of_text(bytes));
    tokenizer_free(bytes);
    free(expected), free(source), free(out), free(run);
}

static void what_fp16_cannot_hold_is_refused(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *wide = path_join(directory, "hf-wide"),
         *out = path_join(directory, "hf-f16");
    char *weights = path_join(wide, "model.safetensors");
    assert_ok(export_hf(run, NULL, wide, DTYPE_F32, NULL));
    const float large = 1e6f;
    FILE *file = fopen(weights, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -4, SEEK_END), 0);
    assert_int_equal(fwrite(&large, 4, 1, file), 1);
    fclose(file);
    assert_error(export_hf(wide, NULL, out, DTYPE_F16, NULL), "beyond fp16");
    free(weights), free(out), free(wide), free(run);
}

static void a_bf16_export_is_close(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *out = path_join(directory, "hf16");
    assert_ok(export_hf(run, NULL, out, DTYPE_BF16, NULL));
    // Each weight moves by at most 2^-9 of itself; over this two-layer model the loss moves by about as much.
    assert_true(fabs(loss_of(run) - loss_of(out)) < 0x1p-9 * loss_of(run));
    free(run);
    free(out);
}

static void training_goes_on_from_an_imported_model(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *out = path_join(directory, "hf-init");
    assert_ok(export_hf(run, NULL, out, DTYPE_F32, NULL));
    char *text =
        text_format("[model]\ninit = \"%s\"\n[data]\ntrain = [\"%s/data\"]\n[train]\nseq = 32\nmicro_batch = 2\n"
                    "steps = 4\nprecision = \"fp32\"\ndevice = \"cpu\"\n[optimizer]\nlr = 1e-3\n",
                    out, directory);
    char *path = path_join(directory, "init.toml");
    assert_ok(file_write_atomic(path, text, strlen(text)));
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    assert_ok(config_read(&config, path, NULL, 0));
    assert_ok(trainer_open(&trainer, &config));
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(step.loss < 4.6); // fresh weights would give log(257) = 5.55
    trainer_close(&trainer);
    config_free(&config);
    free(path);
    free(text);
    free(out);
    free(run);
}

// Halves between two bf16 values, of both kinds: the lower neighbour even, and odd.
static void write_ties(Model *model) {
    for (int i = 0; i < model->layout.param_count; i++) {
        const LayoutParam *param = &model->layout.params[i];
        float *host = xmalloc((size_t)param->count * sizeof *host);
        model_read_param(model, param, MODEL_WEIGHTS, host);
        for (int64_t k = 0; k < param->count; k++) {
            uint32_t bits;
            memcpy(&bits, &host[k], sizeof bits);
            bits = (bits & 0xfffe0000u) | (k & 1 ? 0x18000u : 0x8000u);
            memcpy(&host[k], &bits, sizeof bits);
        }
        model_write_param(model, param, MODEL_WEIGHTS, host);
        free(host);
    }
}

static void assert_loads_what_training_computes_with(const char *precision) {
    char *path = tiny_config(directory, "ties.toml", 4, ""), *run = text_format("%s/ties-%s", directory, precision);
    char *folder = path_join(run, "checkpoints"), *set = text_format("train.precision=%s", precision);
    const char *const sets[] = {set};
    Config config;
    Trainer trainer;
    CheckpointWriter *writer;
    Loaded loaded;
    assert_ok(config_read(&config, path, sets, 1));
    assert_ok(trainer_open(&trainer, &config));
    write_ties(trainer.model);
    CheckpointPolicy policy = {.keep_last = 1};
    assert_ok(checkpoint_writer_open(&writer, folder, &trainer.model->layout, &policy, 0, 1));
    assert_ok(checkpoint_save(writer, trainer.model, 1, trainer_state(&trainer)));
    checkpoint_writer_close(writer);
    LoadedRequest request = {.path = run, .tokenizer = "bytes", .device = "cpu", .precision = "bf16", .seq = 32};
    assert_ok(loaded_open(&loaded, &request));
    ModelSnapshot trained = {0}, opened = {0};
    assert_ok(model_snapshot(trainer.model, &trained, false));
    assert_ok(model_snapshot(loaded.model, &opened, false));
    assert_memory_equal(trained.weights, opened.weights, (size_t)trainer.model->layout.element_count * 2);
    model_snapshot_free(&trained);
    model_snapshot_free(&opened);
    loaded_close(&loaded);
    trainer_close(&trainer);
    config_free(&config);
    free(set), free(folder), free(run), free(path);
}

// `hearth eval` in bf16 gives the validation loss of the run only with the very weights that it computed with.
static void bf16_weights_are_loaded_as_training_has_them(void **state) {
    (void)state;
    assert_loads_what_training_computes_with("bf16");
    assert_loads_what_training_computes_with("bf16-pure"); // exact in bf16: nothing to round
}

static void the_best_checkpoint_is_the_one_with_the_lowest_validation_loss(void **state) {
    (void)state;
    static const char *const losses[] = {"null", "2.5", "1.5", "1.75"};
    char *folder = path_join(directory, "scored/checkpoints");
    int64_t best = 0;
    for (int i = 0; i < 4; i++) {
        char *step = text_format("%s/step-%d", folder, 10 * i), *file = path_join(step, "state.json");
        char *text = text_format("{\"val_loss\": %s}", losses[i]);
        assert_ok(dir_make(step));
        assert_ok(file_write_atomic(file, text, strlen(text)));
        if (i == 0) {
            assert_ok(checkpoint_best(folder, &best));
            assert_int_equal(best, -1);
        }
        free(text), free(file), free(step);
    }
    assert_ok(checkpoint_best(folder, &best));
    assert_int_equal(best, 20);
    char *run = path_join(directory, "run"), *source;
    assert_error(loaded_source(run, "best", &source), "has a validation loss to be the best by");
    free(run), free(folder);
}

static void a_checkpoint_can_be_named(void **state) {
    (void)state;
    char *run = path_join(directory, "run"), *source;
    assert_ok(loaded_source(run, "8", &source));
    free(source);
    assert_error(loaded_source(run, "7", &source), "no checkpoint");
    assert_error(loaded_source(run, "later", &source), "newest, best or a step");
    assert_error(loaded_source("/nowhere", NULL, &source), "neither");
    free(run);
}

// The tokenizer found for a checkpoint of a run that has only this configuration; malloc'd or NULL.
static char *tokenizer_with(const char *config) {
    char *run = path_join(directory, "bare"), *source = path_join(run, "checkpoints/step-8");
    char *file = path_join(run, "config.toml"), *model = path_join(run, "model.json");
    assert_ok(dir_make(source));
    assert_ok(file_write_atomic(file, config, strlen(config)));
    assert_ok(file_write_atomic(model, "{}", 2));
    char *found = loaded_tokenizer_path(run, source);
    free(model);
    free(file);
    free(source);
    free(run);
    return found;
}

static void the_byte_tokenizer_is_taken_when_the_run_names_it(void **state) {
    (void)state;
    char *found = tokenizer_with("[data]\ntrain = [\"/nowhere\"]\ntokenizer = \"bytes\"\n");
    assert_non_null(found);
    assert_string_equal(found, "bytes");
    free(found);
}

static void the_byte_tokenizer_is_taken_when_the_shards_were_made_with_it(void **state) {
    (void)state;
    char *config = text_format("[data]\ntrain = [\"%s/data\"]\n", directory), *found = tokenizer_with(config);
    assert_non_null(found);
    assert_string_equal(found, "bytes");
    free(found);
    free(config);
}

static void only_a_run_or_its_checkpoint_has_a_run_config(void **state) {
    (void)state;
    char *beside = path_join(directory, "config.toml"), *hf = path_join(directory, "models/hf");
    char *step = path_join(directory, "run/checkpoints/step-8/"), *run = path_join(directory, "run");
    const struct {
        const char *path;
        bool found;
    } table[] = {{run, true}, {step, true}, {hf, false}, {directory, false}};
    assert_ok(dir_make(hf));
    assert_ok(file_write_atomic(beside, "[package]\n", 10)); // of something else
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        Config config;
        bool found;
        assert_ok(loaded_run_config(table[i].path, &config, &found));
        assert_true(found == table[i].found);
        if (found) config_free(&config);
    }
    free(beside), free(hf), free(step), free(run);
}

static void no_tokenizer_is_guessed_for_shards_of_another(void **state) {
    (void)state;
    char *data = path_join(directory, "learned"), *config = text_format("[data]\ntrain = [\"%s\"]\n", data);
    SynthRequest request = {data, NULL, 300, 7, 20, 2, false};
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    assert_null(tokenizer_with(config));
    free(config);
    free(data);
}

static void no_tokenizer_is_guessed_when_the_data_is_gone(void **state) {
    (void)state;
    assert_null(tokenizer_with("[data]\ntrain = [\"/nowhere\"]\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exported_model_has_the_same_loss),
        cmocka_unit_test(an_exported_run_names_its_end_of_text),
        cmocka_unit_test(what_fp16_cannot_hold_is_refused),
        cmocka_unit_test(a_bf16_export_is_close),
        cmocka_unit_test(training_goes_on_from_an_imported_model),
        cmocka_unit_test(bf16_weights_are_loaded_as_training_has_them),
        cmocka_unit_test(the_best_checkpoint_is_the_one_with_the_lowest_validation_loss),
        cmocka_unit_test(a_checkpoint_can_be_named),
        cmocka_unit_test(only_a_run_or_its_checkpoint_has_a_run_config),
        cmocka_unit_test(the_byte_tokenizer_is_taken_when_the_run_names_it),
        cmocka_unit_test(the_byte_tokenizer_is_taken_when_the_shards_were_made_with_it),
        cmocka_unit_test(no_tokenizer_is_guessed_for_shards_of_another),
        cmocka_unit_test(no_tokenizer_is_guessed_when_the_data_is_gone),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
