// Any JSON as a tokenizer.json; one that loads encodes a text and its own bytes, and decodes what it gave.
#define CACHE_BITS 4
#include "data/bpe.c"
#include "fuzz_json.h"

#include "data/tokenizer.h"

const char *const fuzz_words[] = {"added_tokens",
                                  "id",
                                  "content",
                                  "special",
                                  "normalized",
                                  "single_word",
                                  "lstrip",
                                  "rstrip",
                                  "normalizer",
                                  "type",
                                  "NFC",
                                  "NFD",
                                  "NFKC",
                                  "NFKD",
                                  "Sequence",
                                  "normalizers",
                                  "pre_tokenizer",
                                  "pretokenizers",
                                  "ByteLevel",
                                  "Digits",
                                  "Split",
                                  "Metaspace",
                                  "Whitespace",
                                  "Punctuation",
                                  "individual_digits",
                                  "pattern",
                                  "Regex",
                                  "String",
                                  "behavior",
                                  "Removed",
                                  "Isolated",
                                  "MergedWithPrevious",
                                  "MergedWithNext",
                                  "Contiguous",
                                  "invert",
                                  "add_prefix_space",
                                  "use_regex",
                                  "trim_offsets",
                                  "model",
                                  "BPE",
                                  "vocab",
                                  "merges",
                                  "unk_token",
                                  "fuse_unk",
                                  "byte_fallback",
                                  "dropout",
                                  "ignore_merges",
                                  "continuing_subword_prefix",
                                  "end_of_word_suffix",
                                  "post_processor",
                                  "TemplateProcessing",
                                  "single",
                                  "pair",
                                  "SpecialToken",
                                  "special_tokens",
                                  "ids",
                                  "tokens",
                                  "RobertaProcessing",
                                  "BertProcessing",
                                  "cls",
                                  "sep",
                                  "processors",
                                  "decoder",
                                  "decoders",
                                  "Fuse",
                                  "truncation",
                                  "padding",
                                  "a",
                                  "b",
                                  "ab",
                                  "a b",
                                  "aa",
                                  "a a",
                                  "\xc4\xa0",
                                  "\xc4\xa0"
                                  "a",
                                  "\xc4\xa0 a",
                                  "<|endoftext|>",
                                  "</s>",
                                  "\\s+",
                                  "\\p{L}+|\\p{N}",
                                  "(?i:a)|b*",
                                  "[^\\s]+",
                                  "(",
                                  "x{1,3}+",
                                  "(?!\\S)",
                                  "\\p{N}{1,3}",
                                  NULL};

static void tokenizer_use(const Tokenizer *tokenizer, const char *text, size_t size, const char *own, size_t own_size) {
    TokenizerState *state = tokenizer_state_new(tokenizer);
    TokenIds ids = {0};
    status_free(tokenizer_encode(state, text, size, 0, &ids));
    status_free(tokenizer_encode(state, text, size, TOKENIZER_ADD_SPECIAL | TOKENIZER_MATCH_SPECIAL, &ids));
    status_free(tokenizer_encode(state, own, own_size, TOKENIZER_MATCH_SPECIAL, &ids));
    char *back = NULL;
    size_t length;
    if (tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &length))
        abort(); // every id the encoder gives is in the vocabulary
    free(back);
    free(ids.ids);
    tokenizer_state_free(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "ab aab  <|endoftext|> 1234 \xc3\xa9\xcc\x81\n\nb's ab ";
    Tokenizer *tokenizer;
    Status status = tokenizer_load_text(&tokenizer, (const char *)data, size, "fuzz.json");
    if (!status) {
        tokenizer_use(tokenizer, text, sizeof text - 1, (const char *)data, size < 256 ? size : 256);
        tokenizer_free(tokenizer);
    }
    status_free(status);
    return 0;
}
