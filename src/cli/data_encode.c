// hearth data encode: one text file to raw ids, for comparing tokenizers.
#include "base/file.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Options {
    const char *tokenizer, *input, *output;
    bool plain, special;
} Options;

static Status encode_file(const Options *options) {
    Tokenizer *tokenizer = NULL;
    TokenizerState *state = NULL;
    TokenIds ids = {0};
    FileMap map = {0};
    unsigned flags = (options->plain ? 0 : TOKENIZER_MATCH_SPECIAL) | (options->special ? TOKENIZER_ADD_SPECIAL : 0);
    Status status = tokenizer_load(&tokenizer, options->tokenizer);
    if (!status) status = file_map(&map, options->input);
    if (!status) {
        state = tokenizer_state_new(tokenizer);
        status = tokenizer_encode(state, map.data, map.size, flags, &ids);
    }
    if (!status) status = file_write_atomic(options->output, ids.ids, ids.count * sizeof *ids.ids);
    if (!status) printf("%zu tokens of %zu bytes\n", ids.count, map.size);
    free(ids.ids);
    file_unmap(&map);
    tokenizer_state_free(state);
    tokenizer_free(tokenizer);
    return status;
}

Status data_encode(int argc, char **argv) {
    Options options = {0};
    const Arg args[] = {
        {"--tokenizer", ARG_TEXT, &options.tokenizer, "PATH",
         "tokenizer.json, a directory that holds one, or \"bytes\""},
        {"--input", ARG_TEXT, &options.input, "FILE", "the text; the whole file is one text"},
        {"--output", ARG_TEXT, &options.output, "FILE", "where the ids go, as little-endian uint32"},
        {"--plain", ARG_FLAG, &options.plain, NULL, "special tokens written in the text are plain text, not their ids"},
        {"--special", ARG_FLAG, &options.special, NULL, "add the tokenizer's tokens around the text (BOS, EOS)"},
    };
    const ArgCommand command = {
        .usage = "hearth data encode --tokenizer PATH --input FILE --output IDS.bin [options]",
        .summary =
            "Encodes one text and writes its ids. Bytes that are not UTF-8 count as U+FFFD, one for each broken part.",
        .args = args,
        .arg_count = ARG_COUNT(args),
    };
    ArgList words = {0};
    bool helped = false;
    TRY(args_parse(&command, argc, argv, &words, &helped));
    free(words.items);
    if (helped) return NULL;
    if (!options.tokenizer || !options.input || !options.output)
        return status_hint(status_usage("data encode needs --tokenizer, --input and --output"), "%s", command.usage);
    return encode_file(&options);
}
