// hearth data pull: files of a Hugging Face hub dataset.
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/pull.h"

#include <stdlib.h>

Status data_pull(int argc, char **argv) {
    PullOptions options = pull_defaults();
    const char *tokens = NULL;
    int64_t parallel = options.parallel, retries = options.retries, part_mb = options.part_bytes >> 20;
    const Arg args[] = {
        {"--output", ARG_TEXT, &options.output, "FOLDER", "where the files go"},
        {"--path", ARG_TEXT, &options.path, "FOLDER", "folder of the repository, such as sample/10BT (default: all)"},
        {"--model", ARG_FLAG, &options.model, "", "REPOSITORY is a model's: fetch its tokenizer.json"},
        {"--include", ARG_TEXT, &options.include, "GLOB",
         "files by their whole path (default: *.parquet; with --model tokenizer.json)"},
        {"--revision", ARG_TEXT, &options.revision, "NAME", "branch, tag or commit (default: main)"},
        {"--tokens", ARG_TEXT, &tokens, "N", "only as many files as hold so many tokens: 6B, 100M, ..."},
        {"--tokenizer", ARG_TEXT, &options.tokenizer, "PATH", "to count tokens with (default: guess from bytes)"},
        {"--column", ARG_TEXT, &options.column, "NAME", "column with the text, for --tokens (default: text)"},
        {"--endpoint", ARG_TEXT, &options.endpoint, "URL", "a mirror (default: HF_ENDPOINT or https://huggingface.co)"},
        {"--parallel", ARG_INT, &parallel, "N", "connections (default: 4)"},
        {"--part-mb", ARG_INT, &part_mb, "MIB", "size of a range (default: 32)"},
        {"--retries", ARG_INT, &retries, "N", "tries in a row that may bring nothing (default: 8)"},
        {"--retry-seconds", ARG_DOUBLE, &options.retry_seconds, "S", "first delay between tries; doubles (default: 1)"},
        {"--list", ARG_FLAG, &options.list_only, "", "only list the files"},
        {"--quiet", ARG_FLAG, &options.quiet, "", "say less"},
    };
    const ArgCommand command = {"hearth data pull REPOSITORY --output FOLDER [options]",
                                "Fetches the files of a dataset on the Hugging Face hub, or with --model the tokenizer "
                                "of a model, in parallel\n"
                                "ranges, checks their size and SHA-256, and goes on where an earlier try stopped. "
                                "HF_TOKEN is sent when it is set.",
                                args,
                                ARG_COUNT(args),
                                1,
                                1};
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        PullResult result;
        options.repo = words.items[0];
        options.parallel = (int)parallel;
        options.retries = (int)retries;
        options.part_bytes = part_mb << 20;
        if (parallel < 1 || parallel > 64) status = status_usage("--parallel is between 1 and 64");
        if (!status && (part_mb < 1 || part_mb > 4096)) status = status_usage("--part-mb is between 1 and 4096");
        if (!status && (retries < 0 || retries > 1000)) status = status_usage("--retries is between 0 and 1000");
        if (!status && !options.output && !options.list_only) status = status_usage("data pull needs --output");
        if (!status && tokens) status = data_parse_count("--tokens", tokens, &options.tokens);
        if (!status) status = pull_run(&options, &result);
        if (!status && !options.list_only) {
            char bytes[32], count[32];
            printf("%zu files fetched (%s), %zu were there, %zu of %zu in all", result.fetched,
                   text_gib(bytes, (double)result.bytes), result.present, result.wanted, result.listed);
            if (result.estimated_tokens > 0) printf("; about %s tokens", text_count(count, result.estimated_tokens));
            printf("\n");
        }
    }
    free(words.items);
    return status;
}
