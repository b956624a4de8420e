// hearth data estimate: what a corpus will give, from a sample of it.
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/estimate.h"
#include "data/prepare.h"
#include "data/shard.h"

#include <stdlib.h>

// Share of a perfect split over threads that prepare reaches; reading and writing take the rest.
#define THREAD_EFFICIENCY 0.75

static void estimate_print(const Estimate *estimate, int64_t target, int threads) {
    char a[32], b[32], c[32];
    printf("sample: %s documents from %zu of %zu files, %s of text\n",
           text_grouped(a, (int64_t)estimate->sample_documents), estimate->sampled_files, estimate->files,
           text_gib(b, (double)estimate->sample_bytes));
    printf("tokens a document: mean %.1f (+- %.0f at 95 %%), median %.0f; %.2f bytes a token%s\n",
           estimate->mean_tokens,
           estimate->sample_documents > 1
               ? 2 * estimate->deviation_tokens / __builtin_sqrt((double)estimate->sample_documents)
               : 0.0,
           estimate->median_tokens, (double)estimate->sample_bytes / (double)estimate->sample_tokens,
           estimate->vocab_size ? "" : " (guessed: no --tokenizer)");
    printf("the whole input: %s%s documents, %s tokens, %s of text\n", estimate->whole ? "" : "about ",
           text_count(a, estimate->documents), text_count(b, estimate->tokens), text_gib(c, estimate->text_bytes));
    double share = 1;
    if (target > 0) {
        double needed = estimate_documents_for(estimate, (double)target);
        share = (double)target / estimate->tokens;
        printf("for %s tokens: %s documents with a buffer, %.1f %% of the input%s\n", text_count(a, (double)target),
               text_grouped(b, (int64_t)needed), 100 * needed / estimate->documents,
               needed > estimate->documents ? " (more than there is)" : "");
        if (share > 1) share = 1;
    }
    if (!estimate->vocab_size) return; // two bytes a token or four
    printf("prepare: ");
    if (estimate->bytes_per_second > 0) { // the clock may be too coarse for a few words
        double seconds = estimate->text_bytes * share / estimate->bytes_per_second;
        printf("about %s on %d threads (%.1f MB/s of text on one), ",
               text_duration(a, seconds / (threads > 1 ? threads * THREAD_EFFICIENCY : 1)), threads,
               estimate->bytes_per_second / 1e6);
    }
    double bytes = shard_token_bytes((uint64_t)estimate->vocab_size);
    printf("shards of %s, twice that while it runs\n", text_gib(b, estimate->tokens * share * bytes));
}

Status data_estimate(int argc, char **argv) {
    ReaderOptions reader = {0};
    const char *tokenizer = NULL, *tokens = NULL;
    int64_t documents = 2000, threads = 0, target = 0;
    const Arg args[] = {
        {"--tokenizer", ARG_TEXT, &tokenizer, "PATH",
         "tokenizer.json, its folder, or \"bytes\" (default: guess from bytes)"},
        {"--tokens", ARG_TEXT, &tokens, "N", "how many documents so many tokens need: 20B, 100M, ..."},
        {"--documents", ARG_INT, &documents, "N", "size of the sample (default: 2000)"},
        {"--column", ARG_TEXT, &reader.field, "NAME", "string column or field with the text (default: text)"},
        {"--field", ARG_TEXT, &reader.field, "NAME", "the same"},
        {"--lines", ARG_FLAG, &reader.lines, "", ".txt: a document a line (default: a document a file)"},
        {"--threads", ARG_INT, &threads, "N", "threads that prepare will use (default: by cores and free memory)"},
        {"--skip-bad", ARG_FLAG, &reader.skip_bad, "", "skip bad records"},
    };
    const ArgCommand command = {
        "hearth data estimate [options] INPUT...",
        "Mean and median tokens a document, documents needed for a token target and, with --tokenizer, time\n"
        "and disk that prepare will take: from a sample spread over the files, without tokenizing everything.",
        args,
        ARG_COUNT(args),
        1,
        -1};
    ArgList inputs;
    bool helped;
    Status status = args_parse(&command, argc, argv, &inputs, &helped);
    if (!status && !helped) {
        Estimate estimate;
        if (documents < 1) status = status_usage("--documents must be positive");
        if (!status && tokens) status = data_parse_count("--tokens", tokens, &target);
        if (!status) {
            status = estimate_run(&estimate, &reader, inputs.items, (size_t)inputs.count, tokenizer, (size_t)documents);
        }
        if (!status) estimate_print(&estimate, target, prepare_threads((int)threads));
    }
    free(inputs.items);
    return status;
}
