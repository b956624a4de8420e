// What whole commands promise, seen from outside: the program is run, its files and its words are read.
#include "train/tiny_run.h"

#include "watch/metrics.h"

static char *directory, *output;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    output = path_join(directory, "log");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(output);
    return 0;
}

// Runs hearth with the arguments; what it printed (malloc'd). It must end with `code`.
static char *hearth_text(int code, const char *const *arguments) {
    int ended = hearth_run(arguments, output);
    char *text = read_text(output);
    if (ended != code) fail_msg("exit code %d: %s", ended, text);
    return text;
}
#define HEARTH(code, ...) hearth_text(code, (const char *const[]){__VA_ARGS__, NULL})

// A run in directory/name with settings added to the tiny config.
static char *make_run(const char *name, const char *setting, const char *other) {
    char *file = text_format("%s.toml", name), *config = tiny_config(directory, file, 6, "");
    char *run = path_join(directory, name);
    free(HEARTH(0, "train", config, "--run", run, "--set", setting, "--set", other));
    free(config);
    free(file);
    return run;
}

static double printed_number(const char *text, const char *name) {
    const char *at = strstr(text, name);
    if (!at) fail_msg("no \"%s\" in: %s", name, text);
    return strtod(at + strlen(name), NULL);
}

static double *losses_of(const char *run, int64_t *count) {
    char *path = path_join(run, "metrics.jsonl");
    double *losses;
    assert_ok(metrics_read_losses(path, &losses, count));
    free(path);
    return losses;
}

// Six windows are one and a half micro-batches of four, and documents end at other places in each: only the mean over
// targets is the same for any micro-batch. The figures are printed with six decimals.
static void the_loss_of_an_evaluation_does_not_depend_on_its_micro_batch(void **state) {
    (void)state;
    char *run = make_run("evaluated", "data.mask_documents=true", "train.steps=6");
    char *one = HEARTH(0, "eval", run, "--windows", "6", "--micro-batch", "1");
    char *four = HEARTH(0, "eval", run, "--windows", "6", "--micro-batch", "4");
    double loss = printed_number(one, "loss  ");
    assert_true(fabs(loss - printed_number(four, "loss  ")) <= 2e-6);
    assert_true(printed_number(one, "targets") == printed_number(four, "targets"));
    assert_true(fabs(printed_number(one, "perplexity") - exp(loss)) <= 1e-6 * exp(loss) + 1e-4);
    free(one);
    free(four);
    free(run);
}

static void a_clip_above_every_norm_changes_nothing(void **state) {
    (void)state;
    char *off = make_run("unclipped", "optimizer.clip=0", "train.steps=6");
    char *high = make_run("unreached", "optimizer.clip=1e6", "train.steps=6");
    int64_t count, other;
    double *without = losses_of(off, &count), *with = losses_of(high, &other);
    assert_int_equal(count, 6);
    assert_int_equal(other, 6);
    assert_memory_equal(without, with, 6 * sizeof *with);
    free(without);
    free(with);
    free(off);
    free(high);
}

// The last validation of the run against an evaluation of its checkpoint, by the figures of both: nine digits and six
// decimals. With a bias as large as this, most tokens have other experts without it.
static void a_loaded_model_chooses_experts_with_the_bias_of_its_run(void **state) {
    (void)state;
    char *config = tiny_config(directory, "biased.toml", 6, ""), *text = read_text(config);
    char *whole = text_format("[model]\narch = \"qwen3_moe\"\nexperts = 8\ntop_k = 2\nexpert_ffn = 32\n%s",
                              text + strlen("[model]\n"));
    assert_ok(file_write_atomic(config, whole, strlen(whole)));
    char *run = path_join(directory, "biased"), *path = path_join(run, "metrics.jsonl");
    free(HEARTH(0, "train", config, "--run", run, "--set", "model.router_bias_rate=0.2", "--set", "eval.at_end=true"));
    char *lines = read_text(path), *shown = HEARTH(0, "eval", run);
    assert_true(fabs(printed_number(lines, "\"val_loss\":") - printed_number(shown, "loss  ")) <= 1e-6);
    free(shown);
    free(lines);
    free(path);
    free(run);
    free(whole);
    free(text);
    free(config);
}

static void a_tokenizer_with_more_entries_than_the_model_has_rows_is_refused(void **state) {
    (void)state;
    char *run = make_run("small", "train.steps=2", "schedule.warmup_steps=1");
    char *input = path_join(directory, "words.txt"), *wide = path_join(directory, "wide.json");
    const char *words = "one word and another word, and then one more word and one more\n";
    assert_ok(file_write_atomic(input, words, strlen(words)));
    free(HEARTH(0, "data", "train-tokenizer", "--input", input, "--vocab-size", "260", "--output", wide));
    char *text = HEARTH(2, "sample", run, "--tokenizer", wide, "--prompt", "one");
    assert_non_null(strstr(text, "has 260 entries, the model only 257 rows"));
    free(text);
    free(input);
    free(wide);
    free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_of_an_evaluation_does_not_depend_on_its_micro_batch),
        cmocka_unit_test(a_clip_above_every_norm_changes_nothing),
        cmocka_unit_test(a_loaded_model_chooses_experts_with_the_bias_of_its_run),
        cmocka_unit_test(a_tokenizer_with_more_entries_than_the_model_has_rows_is_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
