// hearth data prepare: documents to token shards.
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/dataset.h"
#include "data/prepare.h"

#include <stdlib.h>
#include <string.h>

typedef struct Words { // options that need a second look
    const char *train, *val, *test, *shard, *min_score, *dedup;
    int64_t threads, seed, unit_mb;
    char *score; // column of min_score
} Words;

static Status words_read(Words *words, PrepareOptions *options) {
    if (words->train) TRY(data_parse_count("--train-tokens", words->train, &options->train_tokens));
    if (words->val) TRY(data_parse_count("--val-tokens", words->val, &options->val_tokens));
    if (words->test) TRY(data_parse_count("--test-tokens", words->test, &options->test_tokens));
    if (words->shard) TRY(data_parse_count("--shard-tokens", words->shard, &options->shard_tokens));
    if (words->dedup) {
        options->dedup = strcmp(words->dedup, "exact") == 0;
        if (!options->dedup && strcmp(words->dedup, "none") != 0) {
            return status_usage("--dedup is \"exact\" or \"none\", not \"%s\"", words->dedup);
        }
    }
    if (words->min_score) {
        const char *colon = strrchr(words->min_score, ':');
        if (!colon || colon == words->min_score || !text_to_double(colon + 1, &options->min_score)) {
            return status_usage("--min-score takes COLUMN:VALUE, such as score:3.5, not \"%s\"", words->min_score);
        }
        words->score = text_copy_n(words->min_score, (size_t)(colon - words->min_score));
        options->reader.score = words->score;
        options->has_min_score = true;
    }
    if (words->threads < 0 || words->threads > 1024) return status_usage("--threads is between 0 and 1024");
    if (words->unit_mb < 1 || words->unit_mb > 256) return status_usage("--unit-mb is between 1 and 256");
    if (!options->tokenizer || !options->output) return status_usage("data prepare needs --tokenizer and --output");
    options->threads = (int)words->threads;
    options->seed = (uint64_t)words->seed;
    options->unit_bytes = words->unit_mb * 1000000;
    return NULL;
}

static Status result_print(const char *output) {
    json_t *root;
    TRY(dataset_read_json(&root, output));
    const char *name;
    json_t *split;
    printf("%s\n", output);
    json_object_foreach(json_object_get(root, "splits"), name, split) {
        char tokens[32], documents[32];
        printf("  %-6s %15s tokens %12s documents  mean %.0f, median %lld tokens, %zu shards\n", name,
               text_grouped(tokens, json_integer_value(json_object_get(split, "tokens"))),
               text_grouped(documents, json_integer_value(json_object_get(split, "documents"))),
               json_number_value(json_object_get(split, "mean_tokens")),
               (long long)json_integer_value(json_object_get(split, "median_tokens")),
               json_array_size(json_object_get(split, "shards")));
    }
    const json_t *counts = json_object_get(root, "counts");
    json_t *count;
    printf("  left out:");
    static const char *const left_out[] = {"null",           "bad",       "damaged_files", "empty", "below_min_score",
                                           "outside_length", "duplicates"};
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
        count = json_object_get(counts, left_out[i]);
        printf("%s %s %lld", i ? "," : "", left_out[i], (long long)json_integer_value(count));
    }
    printf("\n");
    json_object_foreach(json_object_get(root, "splits"), name, split) {
        char tokens[32];
        int64_t cut = json_integer_value(json_object_get(split, "cut_tokens"));
        if (cut > 0)
            printf(
                "  cut off: %s tokens of copies of the last document of %s, or beyond the exact count; they are in no "
                "split\n",
                text_grouped(tokens, cut), name);
    }
    json_decref(root);
    return NULL;
}

Status data_prepare(int argc, char **argv) {
    PrepareOptions options = prepare_defaults();
    Words words = {.unit_mb = 64};
    const Arg args[] = {
        {"--tokenizer", ARG_TEXT, &options.tokenizer, "PATH", "tokenizer.json, its folder, or \"bytes\""},
        {"--output", ARG_TEXT, &options.output, "FOLDER", "where the dataset goes"},
        {"--train-tokens", ARG_TEXT, &words.train, "N", "exactly so many tokens: 20B, 100M, ... (default: all)"},
        {"--val-tokens", ARG_TEXT, &words.val, "N", "tokens of the val split (default: none)"},
        {"--test-tokens", ARG_TEXT, &words.test, "N", "tokens of the test split (default: none)"},
        {"--column", ARG_TEXT, &options.reader.field, "NAME", "string column or field with the text (default: text)"},
        {"--field", ARG_TEXT, &options.reader.field, "NAME", "the same"},
        {"--lines", ARG_FLAG, &options.reader.lines, "", ".txt: a document a line (default: a document a file)"},
        {"--min-score", ARG_TEXT, &words.min_score, "COLUMN:VALUE", "keep documents whose COLUMN is at least VALUE"},
        {"--min-chars", ARG_INT, &options.min_chars, "N", "keep documents of at least N characters"},
        {"--max-chars", ARG_INT, &options.max_chars, "N", "keep documents of at most N characters"},
        {"--dedup", ARG_TEXT, &words.dedup, "exact|none", "drop documents whose text came before (default: none)"},
        {"--match-special", ARG_FLAG, &options.match_special, "", "special tokens written in a text become their ids"},
        {"--end-of-text", ARG_INT, &options.end_of_text, "ID", "token that ends a document (default: the tokenizer's)"},
        {"--shard-tokens", ARG_TEXT, &words.shard, "N", "tokens of a shard (default: 100M)"},
        {"--seed", ARG_INT, &words.seed, "N", "another shuffle and other splits"},
        {"--threads", ARG_INT, &words.threads, "N", "tokenizing threads (default: by cores and free memory)"},
        {"--unit-mb", ARG_INT, &words.unit_mb, "MB", "work that a kill can cost (default: 64)"},
        {"--skip-bad", ARG_FLAG, &options.reader.skip_bad, "",
         "count and skip bad records; checks .gz and .zst first and skips what is damaged"},
        {"--overwrite", ARG_FLAG, &options.overwrite, "",
         "replace the dataset that FOLDER holds, when the new one is whole"},
        {"--quiet", ARG_FLAG, &options.quiet, "", "no progress"},
    };
    const ArgCommand command = {"hearth data prepare --tokenizer PATH --output FOLDER [options] INPUT...",
                                "Reads documents from files, folders or globs (.txt, .jsonl, .parquet, also .gz and "
                                ".zst), filters, tokenizes,\n"
                                "splits and shuffles them by document, and writes shards and dataset.json. Splits get "
                                "exactly the tokens asked\n"
                                "for: their last document is cut, and the rest of it goes to train. The same command "
                                "resumes a run that was\n"
                                "stopped. The result does not depend on the number of threads.",
                                args,
                                ARG_COUNT(args),
                                1,
                                -1};
    ArgList inputs;
    bool helped;
    Status status = args_parse(&command, argc, argv, &inputs, &helped);
    if (!status && !helped) {
        options.inputs = inputs.items;
        options.input_count = (size_t)inputs.count;
        status = words_read(&words, &options);
        if (!status) status = prepare_run(&options);
        if (!status) status = result_print(options.output);
    }
    free(words.score);
    free(inputs.items);
    return status;
}
