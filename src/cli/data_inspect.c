// hearth data inspect: what a dataset holds.
#include "base/range.h"
#include "base/rng.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/inspect.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLE_TOKENS 200
#define BAR_WIDTH     40

typedef struct Options {
    const char *split, *tokenizer;
    int64_t samples, sequence, seed;
    bool deep;
} Options;

static void lengths_print(const Dataset *dataset) {
    DatasetLengths lengths;
    dataset_lengths(dataset, &lengths);
    char tokens[32], documents[32], text[32];
    printf("  %s tokens in %s documents, %zu shards", text_grouped(tokens, (int64_t)lengths.tokens),
           text_grouped(documents, (int64_t)lengths.documents), dataset->shard_count);
    if (dataset->text_bytes && lengths.tokens) {
        printf(", %s of text, %.2f bytes a token", text_gib(text, (double)dataset->text_bytes),
               (double)dataset->text_bytes / (double)lengths.tokens);
    }
    printf("\n  tokens a document: mean %.1f, median %llu, %llu to %llu\n", lengths.mean,
           (unsigned long long)lengths.median, (unsigned long long)lengths.shortest,
           (unsigned long long)lengths.longest);
    uint64_t most = 1;
    int first = INSPECT_BINS, last = 0;
    for (int i = 0; i < INSPECT_BINS; i++) {
        if (lengths.bins[i] == 0) continue;
        if (lengths.bins[i] > most) most = lengths.bins[i];
        if (i < first) first = i;
        last = i;
    }
    for (int i = first; i <= last; i++) {
        int width = (int)((double)lengths.bins[i] / (double)most * BAR_WIDTH + 0.5);
        printf("  %10llu ..%11llu %10llu  %.*s\n", i ? 1ULL << (i - 1) : 0, i ? (1ULL << i) - 1 : 0,
               (unsigned long long)lengths.bins[i], width, "########################################");
    }
}

static void packing_print(const Dataset *dataset, uint64_t sequence) {
    DatasetPacking packing;
    char count[32];
    dataset_packing(dataset, sequence, &packing);
    printf("  sequences of %llu tokens:\n", (unsigned long long)sequence);
    printf(
        "    packed end to end: %s sequences, %.2f %% of the tokens used, %.1f documents in each, %.1f %% of documents "
        "whole\n",
        text_grouped(count, (int64_t)packing.packed_sequences), 100 * packing.packed_share, packing.documents_each,
        100 * packing.whole_share);
    printf("    one document each, padded: %.1f %% of positions used, %.1f %% of the tokens cut off\n",
           100 * packing.padded_share, 100 * packing.cut_share);
}

static Status sample_print(const Dataset *dataset, const Tokenizer *tokenizer, uint64_t index) {
    uint64_t first, count;
    dataset_document(dataset, index, &first, &count);
    uint64_t shown = count < SAMPLE_TOKENS ? count : SAMPLE_TOKENS;
    uint32_t ids[SAMPLE_TOKENS];
    dataset_read(dataset, first, shown, ids);
    printf("\n--- document %llu, %llu tokens%s\n", (unsigned long long)index, (unsigned long long)count,
           shown < count ? ", its beginning:" : ":");
    if (!tokenizer) {
        for (uint64_t i = 0; i < shown; i++)
            printf("%u ", ids[i]);
        printf("\n");
        return NULL;
    }
    char *text;
    size_t length;
    TRY(tokenizer_decode(tokenizer, ids, shown, false, &text, &length));
    fwrite(text, 1, length, stdout);
    printf("\n");
    free(text);
    return NULL;
}

// The tokenizer that dataset.json names, when it is still where it was and the same.
static Tokenizer *tokenizer_find(const Dataset *dataset, const char *path, const char *given) {
    Tokenizer *tokenizer = NULL;
    json_t *root = NULL;
    const char *name = given;
    Status status = NULL;
    if (!name) {
        status = dataset_read_json(&root, path);
        if (!status) name = json_string_value(json_object_get(json_object_get(root, "tokenizer"), "name"));
    }
    if (!status && name) status = tokenizer_load(&tokenizer, name);
    if (status || !tokenizer) {
        printf("  (no tokenizer at hand, samples as ids; --tokenizer names one)\n");
        status_free(status);
    } else if (tokenizer_hash(tokenizer) != dataset->tokenizer_hash) {
        printf("  (%s is not the tokenizer that made the shards; samples as ids)\n", name);
        tokenizer_free(tokenizer);
        tokenizer = NULL;
    }
    json_decref(root);
    return tokenizer;
}

static Status split_print(const char *path, const char *split, const Options *options) {
    Dataset dataset;
    TRY(dataset_open(&dataset, path, split, options->deep ? VERIFY_ALWAYS : VERIFY_NEVER));
    printf("%s%s%s\n", path, split ? ": " : "", split ? split : "");
    Status status = NULL;
    if (dataset.token_count > 0) {
        lengths_print(&dataset);
        packing_print(&dataset, (uint64_t)options->sequence);
        if (options->deep) printf("  all checksums are right, all tokens are in the vocabulary\n");
    } else {
        printf("  no tokens\n");
    }
    if (options->samples > 0 && dataset.document_count > 0) {
        Tokenizer *tokenizer = tokenizer_find(&dataset, path, options->tokenizer);
        for (int64_t i = 0; i < options->samples && !status; i++) {
            status = sample_print(
                &dataset, tokenizer,
                rng_below((uint64_t)options->seed, RNG_STREAM_SAMPLING, (uint64_t)i, dataset.document_count));
        }
        tokenizer_free(tokenizer);
    }
    dataset_close(&dataset);
    return status;
}

static Status dataset_print(const char *path, const Options *options) {
    char *index = path_join(path, DATASET_FILE);
    bool described = file_exists(index);
    free(index);
    if (!described || options->split) return split_print(path, described ? options->split : NULL, options);
    json_t *root, *splits;
    TRY(dataset_read_json(&root, path));
    Status status = NULL;
    const char *name;
    json_t *split;
    const json_t *counts = json_object_get(root, "counts"), *tokenizer = json_object_get(root, "tokenizer");
    printf("%s: tokenizer %s (vocabulary %lld), %zu source files, %lld documents read, %lld kept\n", path,
           json_string_value(json_object_get(tokenizer, "name")),
           (long long)json_integer_value(json_object_get(tokenizer, "vocab_size")),
           json_array_size(json_object_get(root, "sources")),
           (long long)json_integer_value(json_object_get(counts, "read")),
           (long long)json_integer_value(json_object_get(counts, "documents")));
    splits = json_object_get(root, "splits");
    json_object_foreach(splits, name, split) {
        printf("\n");
        status = split_print(path, name, options);
        if (status) break;
    }
    json_decref(root);
    return status;
}

Status data_inspect(int argc, char **argv) {
    Options options = {.samples = 2, .sequence = 2048};
    const Arg args[] = {
        {"--split", ARG_TEXT, &options.split, "NAME", "only this split"},
        {"--samples", ARG_INT, &options.samples, "N", "decoded documents to show of each split (default: 2)"},
        {"--seed", ARG_INT, &options.seed, "N", "other samples"},
        {"--seq", ARG_INT, &options.sequence, "S", "sequence length for the packing figures (default: 2048)"},
        {"--tokenizer", ARG_TEXT, &options.tokenizer, "PATH", "to decode with (default: the one dataset.json names)"},
        {"--deep", ARG_FLAG, &options.deep, "", "also check every checksum and every token"},
    };
    const ArgCommand command = {
        "hearth data inspect DATASET [options]",
        "Counts, document lengths, packing at a sequence length and decoded samples of a dataset\n"
        "folder, a folder of shards or one shard.",
        args,
        ARG_COUNT(args),
        1,
        1};
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        status = check_number("--samples", (double)options.samples, 0, 1e9);
        if (!status) status = check_number("--seq", (double)options.sequence, 1, 1 << 30);
        if (!status) status = dataset_print(words.items[0], &options);
    }
    free(words.items);
    return status;
}
