// libFuzzer target: any bytes as a tokenizer.json, and any bytes as text for a tokenizer that loads.
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A tokenizer with merges, added tokens and form C, so that mutations of the text reach all of the encoder.
static const char small[] =
    "{\"added_tokens\":[{\"id\":9,\"content\":\"<x>\",\"special\":true,\"lstrip\":true,\"rstrip\":true},"
    "{\"id\":10,\"content\":\"ab \",\"special\":false,\"single_word\":true}],\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|[^\\\\s]+\"},\"behavior\":\"MergedWithNext\",\"invert\":false}"
    ","
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4,"
    "\"aa\":5,"
    "\"aaaa\":6,\"\\u00c3\":7,\"abaa\":8},\"merges\":[\"a b\",\"\\u0120 ab\",\"a a\",\"aa aa\",\"ab aa\"]}}";

static void encode_and_decode(const Tokenizer *tokenizer, const char *text, size_t size) {
    TokenizerState *state = tokenizer_state_new(tokenizer);
    TokenIds ids = {0};
    for (unsigned flags = 0; flags < 4; flags++)
        status_free(tokenizer_encode(state, text, size, flags, &ids));
    char *back = NULL;
    size_t length;
    Status status = tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &length);
    if (status) abort(); // every id the encoder gives is in the vocabulary
    free(back);
    free(ids.ids);
    tokenizer_state_free(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *fixed;
    if (!fixed && tokenizer_load_text(&fixed, small, strlen(small), "small.json")) abort();
    encode_and_decode(fixed, (const char *)data, size);
    Tokenizer *tokenizer;
    Status status = tokenizer_load_text(&tokenizer, (const char *)data, size, "fuzz.json");
    if (!status) {
        encode_and_decode(tokenizer, (const char *)data, size);
        tokenizer_free(tokenizer);
    }
    status_free(status);
    return 0;
}
