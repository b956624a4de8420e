// hearth data mix: several datasets by weight.
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/mix.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void mix_print(const Mix *mix, int64_t tokens) {
    char count[32];
    uint64_t all = 0;
    for (size_t i = 0; i < mix->count; i++)
        all += mix->datasets[i].token_count;
    for (size_t i = 0; i < mix->count; i++) {
        const Dataset *dataset = &mix->datasets[i];
        printf("  %6.2f %%  %12s tokens  %s", 100 * mix->weights[i], text_count(count, (double)dataset->token_count),
               dataset->path);
        double drawn = mix->weights[i] * (double)(tokens > 0 ? (uint64_t)tokens : all);
        if (dataset->token_count) printf("  (%.2f epochs)", drawn / (double)dataset->token_count);
        printf("\n");
    }
    printf("  epochs are for %s tokens%s\n", text_count(count, tokens > 0 ? (double)tokens : (double)all),
           tokens > 0 ? "" : ", all there are; --tokens says another number");
}

// "PATH:WEIGHT"; the last colon counts. The path is made absolute, so that the mix file can lie anywhere.
static Status word_read(const char *word, char **path, double *weight) {
    const char *colon = strrchr(word, ':');
    if (!colon || colon == word || !text_to_double(colon + 1, weight) || !(*weight > 0) || !isfinite(*weight)) {
        return status_usage("\"%s\" is not DATASET:WEIGHT with a finite weight above zero", word);
    }
    char *given = text_copy_n(word, (size_t)(colon - word));
    *path = realpath(given, NULL);
    Status status = *path ? NULL : status_usage("no such file or directory: %s", given);
    free(given);
    return status;
}

// Writes the file only when all of its datasets can be opened together.
static Status mix_make(Mix *mix, const ArgList *words, const char *split, const char *output) {
    char **paths = xcalloc((size_t)words->count, sizeof *paths);
    double *weights = xcalloc((size_t)words->count, sizeof *weights);
    Status status = NULL;
    for (int i = 0; i < words->count && !status; i++)
        status = word_read(words->items[i], &paths[i], &weights[i]);
    size_t count = (size_t)words->count;
    if (!status) status = mix_join(mix, (const char *const *)paths, weights, count, split);
    if (!status) {
        status = mix_write(output, (const char *const *)paths, weights, count);
        if (status) mix_close(mix);
    }
    for (int i = 0; i < words->count; i++)
        free(paths[i]);
    free(paths);
    free(weights);
    return status;
}

Status data_mix(int argc, char **argv) {
    const char *output = NULL, *split = "train", *tokens = NULL;
    int64_t target = 0;
    const Arg args[] = {
        {"--output", ARG_TEXT, &output, "FILE.json", "the mix file to write"},
        {"--split", ARG_TEXT, &split, "NAME", "split that the figures are about (default: train)"},
        {"--tokens", ARG_TEXT, &tokens, "N", "tokens to be drawn, for the epochs of each dataset"},
    };
    const ArgCommand command = {
        "hearth data mix --output MIX.json DATASET:WEIGHT...   or   hearth data mix MIX.json",
        "Writes a mix of datasets by weight, or shows one. Training takes the file as its dataset:\n"
        "which dataset a sample comes from is a function of the sample's index alone.",
        args,
        ARG_COUNT(args),
        1,
        -1};
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        const char *shown = output ? output : words.items[0];
        if (tokens) status = data_parse_count("--tokens", tokens, &target);
        if (!status && output && !text_ends_with(output, ".json")) status = status_usage("--output must end in .json");
        Mix mix;
        if (!status)
            status = output ? mix_make(&mix, &words, split, output) : mix_open(&mix, shown, split, VERIFY_NEVER);
        if (!status) {
            printf("%s\n", shown);
            mix_print(&mix, target);
            mix_close(&mix);
        }
    }
    free(words.items);
    return status;
}
