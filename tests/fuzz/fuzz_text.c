// Any bytes as text for three tokenizers: one with merges, added tokens and form C; one with a regular expression of
// its own; and the built-in one of bytes, which gives back what it was given.
#include "fuzz_files.h"

#include "data/tokenizer.h"

static const char rich[] =
    "{\"added_tokens\":[{\"id\":9,\"content\":\"<x>\",\"special\":true,\"lstrip\":true,\"rstrip\":true},"
    "{\"id\":10,\"content\":\"ab \",\"special\":false,\"single_word\":true}],\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|[^\\\\s]+\"},\"behavior\":\"MergedWithNext\",\"invert\":false}"
    ","
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4,"
    "\"aa\":5,\"aaaa\":6,\"\\u00c3\":7,\"abaa\":8},"
    "\"merges\":[\"a b\",\"\\u0120 ab\",\"a a\",\"aa aa\",\"ab aa\"]}}";
static const char plain[] =
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

static Tokenizer *fixed[3];
static TokenizerState *states[3];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    if (tokenizer_load_text(&fixed[0], rich, sizeof rich - 1, "rich") ||
        tokenizer_load_text(&fixed[1], plain, sizeof plain - 1, "plain") || tokenizer_load(&fixed[2], "bytes"))
        abort();
    for (int i = 0; i < 3; i++)
        states[i] = tokenizer_state_new(fixed[i]);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static TokenIds ids;
    for (int i = 0; i < 3; i++) {
        char *back = NULL;
        size_t length;
        ids.count = 0;
        Status status = tokenizer_encode(states[i], (const char *)data, size, size ? data[0] & 3 : 0, &ids);
        if (!status && tokenizer_decode(fixed[i], ids.ids, ids.count, false, &back, &length)) abort();
        bool same = back && length == size && (!size || memcmp(back, data, size) == 0);
        if (i == 2 && !same) abort();
        free(back);
        status_free(status);
    }
    return 0;
}
