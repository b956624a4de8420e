// hearth data: from text to token shards.
#include "base/text.h"
#include "cli/commands.h"
#include "cli/data_commands.h"

#include <stdlib.h>
#include <string.h>

static const Command commands[] = {
    {"prepare", "text to token shards: filter, tokenize, split, shuffle", data_prepare},
    {"estimate", "tokens, documents, time and disk to expect, from a sample", data_estimate},
    {"inspect", "counts, lengths, packing and decoded samples of a dataset", data_inspect},
    {"mix", "several datasets by weight", data_mix},
    {"pull", "fetch a dataset from the Hugging Face hub", data_pull},
    {"synth", "a corpus of made-up stories, for trying things out", data_synth},
    {"train-tokenizer", "train a byte-level BPE tokenizer", data_train_tokenizer},
    {"encode", "one text file to raw token ids", data_encode},
    {"cat", "print the texts of Parquet, JSONL and text files", data_cat},
};

Status cmd_data(int argc, char **argv) {
    return commands_run("hearth data", "hearth data turns text into token shards.", commands,
                        (int)(sizeof commands / sizeof commands[0]), argc, argv);
}

Status data_parse_count(const char *option, const char *text, int64_t *count) {
    static const char suffixes[] = "KMBT";
    size_t length = strlen(text);
    double scale = 1, value;
    char last = length ? text[length - 1] : 0;
    const char *suffix = last ? strchr(suffixes, last >= 'a' && last <= 'z' ? last - 'a' + 'A' : last) : NULL;
    if (suffix) {
        for (const char *at = suffixes; at <= suffix; at++)
            scale *= 1000;
        length--;
    }
    char *number = text_copy_n(text, length);
    bool read = text_to_double(number, &value) && value >= 0 && value * scale < 9e18;
    free(number);
    if (!read) return status_usage("%s takes a count such as 20B, 100M or 250000, not \"%s\"", option, text);
    *count = (int64_t)(value * scale + 0.5);
    return NULL;
}
