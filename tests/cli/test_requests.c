// What commands refuse before any work is done: numbers without sense, names that nothing has.
#include "caught.h"
#include "cli/commands.h"
#include "data/tokenizer.h"

static Status call(CommandCall *command, const char *const *words) {
    char *argv[20] = {"command"};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    return command(argc, argv);
}
#define CALL(command, ...) call(command, (const char *const[]){__VA_ARGS__, NULL})
#define BENCH_STEP(...)    CALL(cmd_bench, "step", "--model", "demo-llama", "--device", "cpu", __VA_ARGS__)

static void preflight_needs_tokens_and_seconds(void **state) {
    (void)state;
    assert_error(CALL(cmd_preflight, "x.toml", "--tokens", "0"), "--tokens must be at least 1");
    assert_error(CALL(cmd_preflight, "x.toml", "--tokens", "-5"), "--tokens takes a count");
    assert_error(CALL(cmd_preflight, "x.toml", "--tokens", "nan"), "--tokens takes a count");
    assert_error(CALL(cmd_preflight, "x.toml", "--seconds", "0"), "--seconds must be more than 0");
    assert_error(CALL(cmd_preflight, "x.toml", "--seconds", "nan"), "--seconds must be more than 0");
    assert_error(CALL(cmd_preflight, "x.toml", "--seconds", "inf"), "--seconds must be more than 0");
}

static void preflight_takes_tokens_with_a_suffix(void **state) {
    (void)state;
    assert_error(CALL(cmd_preflight, "/nowhere.toml", "--tokens", "10M"), "/nowhere.toml"); // past the numbers
}

static void preflight_is_for_one_rank(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-requests-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    fputs("[model]\npreset = \"demo-llama\"\n[data]\ntrain = [\"/nowhere\"]\n[train]\nsteps = 4\ndevice = \"cpu\"\n"
          "[parallelism]\ntensor = 2\n",
          file);
    fclose(file);
    assert_error(CALL(cmd_preflight, path), "parallelism.tensor = 2 needs 2 processes");
    remove(path);
}

static void bench_step_checks_its_numbers(void **state) {
    (void)state;
    assert_error(BENCH_STEP("--micro-batch", "4294967298"), "--micro-batch must be between");
    assert_error(BENCH_STEP("--seq", "0"), "--seq must be between");
    assert_error(BENCH_STEP("--seq", "1048576", "--micro-batch", "1048576"), "must be below 2^31");
    assert_error(BENCH_STEP("--layers", "-1"), "--layers must be between");
    assert_error(BENCH_STEP("--accum", "4294967297"), "--accum must be between");
    assert_error(BENCH_STEP("--steps", "61"), "--steps must be between");
    assert_error(BENCH_STEP("--logits-rows", "-1"), "--logits-rows must be between");
    assert_error(BENCH_STEP("--peak-tflops", "nan"), "--peak-tflops must be between");
}

static void config_help_knows_its_sections(void **state) {
    (void)state;
    assert_error(CALL(cmd_config, "--help", "nosuch"), "there is no section \"nosuch\"");
    assert_error(CALL(cmd_config, "--help", "optimzer"), "did you mean optimizer?");
    assert_ok(CALL(cmd_config, "--help", "optimizer"));
}

static void config_states_the_shape_of_the_model(void **state) {
    char *text;
    (void)state;
    assert_ok(CAUGHT(&text, cmd_config, "configs/smollm-360m.toml", "--set", "model.layers=30"));
    static const char *const lines[] = {"\nlayers = 30\n", "\nhidden = 960\n", "\nrope_theta = 10000.0\n",
                                        "\naux_coef = 0.0\n", "\nvocab = 49152\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(text, lines[i])) fail_msg("the resolved config has no line%s", lines[i]);
    free(text);
    // The vocabulary is the data's, which is not there yet.
    assert_ok(CAUGHT(&text, cmd_config, "configs/demo.toml", "--set", "data.train=/nowhere"));
    assert_non_null(strstr(text, "\nhead_dim = 32\n"));
    assert_non_null(strstr(text, "\nvocab = 0\n"));
    free(text);
    assert_error(CALL(cmd_config, "--set", "train.seq=64"), "does not say which model");
    assert_error(CALL(cmd_config, "configs/demo.toml", "--set", "model.ffn=0"), "leaves out model.ffn");
}

// A tokenizer of 270 tokens, trained with one more option; whether it has an end-of-text token.
static bool trained_ends_text(const char *option) {
    char directory[] = "/tmp/hearth-requests-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char *input = path_join(directory, "text.txt"), *output = path_join(directory, "tokenizer.json");
    assert_ok(file_write_atomic(input, "a text of some words, and some words more", 41));
    assert_ok(CALL(cmd_data, "train-tokenizer", "--input", input, "--output", output, "--vocab-size", "270", option));
    Tokenizer *tokenizer;
    assert_ok(tokenizer_load(&tokenizer, output));
    bool ends = tokenizer_end_of_text(tokenizer) >= 0;
    tokenizer_free(tokenizer);
    assert_ok(dir_remove(directory));
    free(input);
    free(output);
    return ends;
}

static void trained_tokenizers_end_text_unless_asked_not_to(void **state) {
    (void)state;
    assert_true(trained_ends_text(NULL));
    assert_false(trained_ends_text("--no-special"));
    assert_false(trained_ends_text("--special=<pad>"));
    assert_error(
        CALL(cmd_data, "train-tokenizer", "--input", "x.txt", "--output", "x", "--no-special", "--special", "<pad>"),
        "--no-special does not go with --special");
}

static void mix_writes_only_what_can_be_opened(void **state) {
    (void)state;
    char directory[] = "/tmp/hearth-requests-XXXXXX", *text;
    assert_non_null(mkdtemp(directory));
    char *mix = path_join(directory, "mix.json"), *words[2];
    for (int i = 0; i < 2; i++) { // of two tokenizers
        char *dataset = text_format("%s/set-%d", directory, i), *seed = text_format("%d", i);
        assert_ok(CAUGHT(&text, cmd_data, "synth", dataset, "--seed", seed, "--stories", "40", "--vocab", "300"));
        free(text);
        words[i] = text_format("%s:1", dataset);
        free(dataset);
        free(seed);
    }
    char *nested = text_format("%s:1", mix), *kept, *after;
    size_t kept_size, after_size;
    assert_error(CALL(cmd_data, "mix", "--output", mix, words[0], words[1]), "different tokenizers");
    assert_error(CALL(cmd_data, "mix", "--output", mix, words[0], "--split", "test"), "test");
    assert_false(file_exists(mix));
    assert_ok(CAUGHT(&text, cmd_data, "mix", "--output", mix, words[0]));
    free(text);
    assert_ok(file_read(&kept, &kept_size, mix));
    assert_error(CALL(cmd_data, "mix", "--output", mix, words[0], words[1]), "different tokenizers");
    assert_error(CALL(cmd_data, "mix", "--output", mix, nested), "mix.json");
    assert_ok(file_read(&after, &after_size, mix));
    assert_string_equal(kept, after);
    assert_ok(dir_remove(directory));
    free(kept);
    free(after);
    free(nested);
    free(words[0]);
    free(words[1]);
    free(mix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preflight_needs_tokens_and_seconds),
        cmocka_unit_test(preflight_takes_tokens_with_a_suffix),
        cmocka_unit_test(preflight_is_for_one_rank),
        cmocka_unit_test(bench_step_checks_its_numbers),
        cmocka_unit_test(config_help_knows_its_sections),
        cmocka_unit_test(config_states_the_shape_of_the_model),
        cmocka_unit_test(trained_tokenizers_end_text_unless_asked_not_to),
        cmocka_unit_test(mix_writes_only_what_can_be_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
