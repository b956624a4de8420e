// A trained vocabulary as tokenizer.json.
#include "data/bpe_train.h"

#include "base/json.h"
#include "base/text.h"
#include "data/vocab.h"

#include <stdlib.h>

#define NO_PART UINT32_MAX

// The spelling of a token in the byte alphabet; special tokens stand as they are.
static void token_spell(const BpeTraining *training, const BpeTrainOptions *options, uint32_t id, TextBuffer *out) {
    const BpeToken *token = &training->tokens[id];
    if (id < training->first_byte) {
        text_buffer_format(out, "%s", options->special[id]);
    } else if (token->left != NO_PART) {
        token_spell(training, options, token->left, out);
        token_spell(training, options, token->right, out);
    } else { // bytes come in the order of their characters
        uint32_t character = 0;
        for (uint32_t left = id - training->first_byte;; character++) {
            if (vocab_char_byte(character) >= 0 && left-- == 0) break;
        }
        uint8_t bytes[4];
        text_buffer_add(out, (const char *)bytes, utf8_put(character, bytes));
    }
}

static json_t *model_json(const BpeTraining *training, const BpeTrainOptions *options) {
    json_t *vocab = json_object(), *merges = json_array();
    json_t **spelled = xmalloc(training->token_count * sizeof *spelled);
    for (uint32_t id = 0; id < training->token_count; id++) {
        TextBuffer text = {0};
        token_spell(training, options, id, &text);
        json_object_set_new(vocab, text.data, json_integer(id));
        spelled[id] = json_string(text.data);
        text_buffer_free(&text);
    }
    for (size_t i = 0; i < training->merge_count; i++) {
        json_t *pair = json_array();
        json_array_append(pair, spelled[training->merges[i][0]]);
        json_array_append(pair, spelled[training->merges[i][1]]);
        json_array_append_new(merges, pair);
    }
    for (uint32_t id = 0; id < training->token_count; id++)
        json_decref(spelled[id]);
    free(spelled);
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                     "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

static json_t *byte_level_json(bool use_regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                     use_regex);
}

static json_t *pre_tokenizer_json(SplitKind pattern) {
    if (pattern == SPLIT_GPT2) return byte_level_json(true);
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", split_pattern(pattern),
                              "behavior", "Isolated", "invert", 0);
    return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", split, byte_level_json(false));
}

Status bpe_training_write(const BpeTraining *training, const BpeTrainOptions *options, const char *path) {
    json_t *added = json_array();
    for (size_t i = 0; i < options->special_count; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)i, "content",
                                               options->special[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                               "normalized", 0, "special", 1));
    json_t *normalizer = options->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                             "added_tokens", added, "normalizer", normalizer, "pre_tokenizer",
                             pre_tokenizer_json(options->pattern), "post_processor", byte_level_json(true), "decoder",
                             byte_level_json(true), "model", model_json(training, options));
    if (!root) return status_usage("a special token is not UTF-8 text");
    Status status = json_write_file(root, path);
    json_decref(root);
    return status;
}
