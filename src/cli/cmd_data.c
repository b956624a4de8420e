// hearth data: from text to token shards.
#include "base/text.h"
#include "cli/commands.h"
#include "cli/data_commands.h"

static const Command commands[] = {
    {"prepare", "text to token shards: filter, tokenize, split, shuffle", data_prepare},
    {"estimate", "tokens, documents, time and disk to expect, from a sample", data_estimate},
    {"inspect", "counts, lengths, packing and decoded samples of a dataset", data_inspect},
    {"mix", "several datasets by weight", data_mix},
    {"pull", "fetch a dataset, or a model's tokenizer, from the Hugging Face hub", data_pull},
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
    double value;
    if (!text_to_count(text, &value) || !(value >= 0 && value < 9e18))
        return status_usage("%s takes a count such as 20B, 100M or 250000, not \"%s\"", option, text);
    *count = (int64_t)(value + 0.5);
    return NULL;
}
