// The tokenizer against recorded results of HF tokenizers, and its promises about special tokens, malformed text, bytes
// that a vocabulary lacks, very long pre-tokens, and files it must refuse.
#include "testing.h"

#include "base/clock.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "data/tokenizer_cases.h"
#include "data/unicode.h"
#include "data/vocab.h"
#include "sha256.h"

// --- helpers --------------------------------------------------------------------------------------------------------

// A tokenizer.json with the 256 bytes as ids 0..255 and "ab" = 256, "abc" = 257, "Ġab" = 258.
static json_t *small_json(void) {
    json_t *vocab = json_object();
    for (int byte = 0; byte < 256; byte++) {
        uint8_t text[5] = {0};
        utf8_put(vocab_byte_char((uint8_t)byte), text);
        json_object_set_new(vocab, (char *)text, json_integer(byte));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    json_object_set_new(vocab, "\u0120ab", json_integer(258));
    json_t *model = json_pack("{s:s, s:o, s:[[s,s], s, s]}", "type", "BPE", "vocab", vocab, "merges", "a", "b", "ab c",
                              "\u0120 ab");
    json_t *pre = json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 1);
    return json_pack("{s:[], s:n, s:o, s:n, s:n, s:o}", "added_tokens", "normalizer", "pre_tokenizer", pre,
                     "post_processor", "decoder", "model", model);
}

static void json_set_text(json_t *root, const char *key, const char *json) {
    json_error_t error;
    json_t *value = json_loads(json, JSON_DECODE_ANY, &error);
    if (!value) fail_msg("%s: %s", error.text, json);
    json_object_set_new(root, key, value);
}

static Status load_json(Tokenizer **tokenizer, json_t *root) { // takes root
    char *text = json_dumps(root, JSON_COMPACT);
    Status status = tokenizer_load_text(tokenizer, text, strlen(text), "small.json");
    free(text);
    json_decref(root);
    return status;
}

static TokenIds encode_length(const Tokenizer *tokenizer, const char *text, size_t length, unsigned flags) {
    TokenizerState *state = tokenizer_state_new(tokenizer);
    TokenIds ids = {0};
    assert_ok(tokenizer_encode(state, text, length, flags, &ids));
    tokenizer_state_free(state);
    return ids;
}

static void assert_ids_length(const Tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                              const char *expected) {
    TokenIds ids = encode_length(tokenizer, text, length, flags);
    TextBuffer got = {0};
    text_buffer_add(&got, "", 0);
    for (size_t i = 0; i < ids.count; i++)
        text_buffer_format(&got, "%s%u", i ? " " : "", ids.ids[i]);
    assert_string_equal(got.data, expected);
    text_buffer_free(&got);
    free(ids.ids);
}

static void assert_ids(const Tokenizer *tokenizer, const char *text, unsigned flags, const char *expected) {
    assert_ids_length(tokenizer, text, strlen(text), flags, expected);
}

// Encodes with a small tokenizer changed by key = json (NULL: not changed), with special tokens matched.
static void assert_small(const char *key, const char *json, const char *text, const char *expected) {
    json_t *root = small_json();
    if (key) json_set_text(root, key, json);
    Tokenizer *tokenizer;
    assert_ok(load_json(&tokenizer, root));
    assert_ids(tokenizer, text, TOKENIZER_MATCH_SPECIAL, expected);
    tokenizer_free(tokenizer);
}

// NULL, after saying so, where it asks for a library that this build lacks.
static Tokenizer *load_from(const char *root, const char *name) {
    char *path = text_format("%s/tokenizers/%s.json", root, name);
    Tokenizer *tokenizer;
    Status status = tokenizer_load(&tokenizer, path);
    free(path);
    if (!status) return tokenizer;
    if (!strstr(status_text(status), "build again")) fail_msg("%s", status_text(status));
    printf("SKIPPED: %s\n", status_text(status));
    status_free(status);
    return NULL;
}

// --- against HF tokenizers ------------------------------------------------------------------------------------------

static bool vocabulary_has_all_bytes(const Tokenizer *tokenizer) {
    bool has[256] = {0};
    for (uint32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
        size_t length;
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        if (bytes && length == 1) has[(uint8_t)bytes[0]] = true;
    }
    for (int i = 0; i < 256; i++) {
        if (!has[i]) return false;
    }
    return true;
}

typedef struct ReferenceRow {
    char tokenizer[64], file[128], ids[65], decoded[65]; // sha256 of the ids, and of the text that they give back
    size_t count;
} ReferenceRow;

static void sha256_of(char hex[65], const void *data, size_t size) {
    Sha256 sha;
    sha256_init(&sha);
    sha256_add(&sha, data, size);
    sha256_hex(&sha, hex);
}

static void check_reference_row(const Tokenizer *tokenizer, const char *root, const ReferenceRow *row, bool exact) {
    char *path = text_format("%s/corpora/%s", root, row->file), *text, hex[65];
    size_t length;
    FileMap map;
    assert_ok(file_map(&map, path));
    TokenIds ids = encode_length(tokenizer, map.data, map.size, TOKENIZER_MATCH_SPECIAL);
    sha256_of(hex, ids.ids, ids.count * sizeof *ids.ids);
    if (ids.count != row->count || strcmp(hex, row->ids) != 0)
        fail_msg("%s, %s: %zu tokens, sha256 %s; expected %zu, %s", row->tokenizer, row->file, ids.count, hex,
                 row->count, row->ids);
    assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &text, &length));
    sha256_of(hex, text, length);
    if (*row->decoded && strcmp(hex, row->decoded) != 0)
        fail_msg("%s, %s: decoded to other text than HF tokenizers gives", row->tokenizer, row->file);
    if (exact) {
        assert_int_equal(length, map.size);
        assert_memory_equal(text, map.data, length);
    }
    free(text);
    free(ids.ids);
    file_unmap(&map);
    free(path);
}

static void check_reference(const char *root) {
    char *path = path_join(root, "tokenizers/reference.csv"), *csv, loaded[64] = "";
    size_t size;
    int rows = 0;
    bool exact = false;
    Tokenizer *tokenizer = NULL;
    assert_ok(file_read(&csv, &size, path));
    for (char *line = strtok(csv, "\n"); line; line = strtok(NULL, "\n")) {
        ReferenceRow row = {0};
        if (sscanf(line, "%63[^,],%127[^,],%zu,%64[0-9a-f],%64[0-9a-f]", row.tokenizer, row.file, &row.count, row.ids,
                   row.decoded) < 4)
            continue;
        if (strcmp(row.tokenizer, loaded) != 0) {
            tokenizer_free(tokenizer);
            tokenizer = load_from(root, row.tokenizer);
            snprintf(loaded, sizeof loaded, "%s", row.tokenizer);
            // Form C rewrites text, so that only tokenizers without it give back every byte.
            exact = tokenizer && vocabulary_has_all_bytes(tokenizer) && strncmp(row.tokenizer, "qwen", 4) != 0;
        }
        if (tokenizer) check_reference_row(tokenizer, root, &row, exact && !*row.decoded);
        rows++;
    }
    tokenizer_free(tokenizer);
    free(csv);
    free(path);
    assert_true(rows > 0);
}

static void every_row_of_the_reference_has_the_same_ids(void **unused) {
    (void)unused;
    check_reference(FIXTURES);
    const char *shared = shared_root("tokenizers/reference.csv");
    if (shared) check_reference(shared);
}

// The shipped cases: every one that has the key is encoded with these flags. Returns how many there were.
static int check_cases(const char *key, unsigned flags) {
    json_t *root, *list, *item;
    const char *name;
    size_t index;
    int checked = 0;
    assert_ok(json_read_file(&root, fixture_path("tokenizers/cases.json")));
    json_object_foreach(root, name, list) {
        Tokenizer *tokenizer = load_from(FIXTURES, name);
        if (!tokenizer) continue;
        json_array_foreach(list, index, item) {
            const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, key);
            if (!ids) continue;
            assert_ids_length(tokenizer, json_string_value(text), json_string_length(text), flags,
                              json_string_value(ids));
            checked++;
        }
        tokenizer_free(tokenizer);
    }
    json_decref(root);
    return checked;
}

static void rare_text_has_the_ids_of_hf_tokenizers(void **unused) {
    (void)unused;
    const char *loaded = "", *shared = shared_root("tokenizers");
    Tokenizer *tokenizer = NULL;
    assert_true(check_cases("ids", TOKENIZER_MATCH_SPECIAL) > 100);
    for (size_t i = 0; shared && i < sizeof tokenizer_cases / sizeof tokenizer_cases[0]; i++) {
        if (strcmp(tokenizer_cases[i].tokenizer, loaded) != 0) {
            tokenizer_free(tokenizer);
            tokenizer = load_from(shared, loaded = tokenizer_cases[i].tokenizer);
        }
        if (!tokenizer) continue;
        assert_ids_length(tokenizer, tokenizer_cases[i].text, tokenizer_cases[i].length, TOKENIZER_MATCH_SPECIAL,
                          tokenizer_cases[i].ids);
    }
    tokenizer_free(tokenizer);
}

// --- special tokens -------------------------------------------------------------------------------------------------

// "plain" is what HF tokenizers makes of the text when no token is added to the vocabulary.
static void special_tokens_in_text_are_matched_only_when_asked(void **unused) {
    (void)unused;
    assert_true(check_cases("plain", 0) > 5);
}

static void the_template_is_added_only_when_asked(void **unused) {
    (void)unused;
    assert_true(check_cases("template", TOKENIZER_ADD_SPECIAL | TOKENIZER_MATCH_SPECIAL) > 50);
}

static void the_end_of_text_is_known_by_its_name(void **unused) {
    (void)unused;
    static const struct {
        const char *name;
        int64_t id;
    } cases[] = {{"gpt2", 512}, {"llama3", 513}, {"digits", 0}, {"tekken", 2}, {"lacking", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Tokenizer *tokenizer = load_from(FIXTURES, cases[i].name);
        assert_int_equal(tokenizer_end_of_text(tokenizer), cases[i].id);
        tokenizer_free(tokenizer);
    }
}

#define ADDED(content, flags) "{\"id\":259,\"content\":\"" content "\",\"special\":true," flags "\"normalized\":false}"

static void added_tokens_strip_and_stand_alone_as_their_flags_say(void **unused) {
    (void)unused;
    assert_small("added_tokens", "[" ADDED("<x>", "") "]", "a <x> b", "97 32 259 32 98");
    assert_small("added_tokens", "[" ADDED("<x>", "\"lstrip\":true,") "]", "a \t<x> b", "97 259 32 98");
    assert_small("added_tokens", "[" ADDED("<x>", "\"rstrip\":true,") "]", "a <x> \n b", "97 32 259 98");
    assert_small("added_tokens", "[" ADDED("<x>", "\"single_word\":true,") "]", "a<x> <x>_<x>.<x>",
                 "97 60 120 62 32 60 120 62 95 60 120 62 46 259");
    // The leftmost, and of those the longest; the search goes on behind a match.
    assert_small("added_tokens", "[" ADDED("bc", "") "," ADDED("bcd", "") "," ADDED("cde", "") "]", "abcde bc",
                 "97 260 101 32 259");
}

static void added_tokens_are_numbered_as_hf_tokenizers_numbers_them(void **unused) {
    (void)unused;
    assert_small("added_tokens",
                 "[{\"id\":1000,\"content\":\"<x>\",\"special\":true},"
                 "{\"id\":7,\"content\":\"<y>\",\"special\":true},"
                 "{\"id\":8,\"content\":\"ab\",\"special\":true}]",
                 "<x><y>ab", "259 260 256");
}

static void normalized_added_tokens_are_found_after_normalisation(void **unused) {
    (void)unused;
    if (!unicode_can_normalize()) skip();
    json_t *root = small_json();
    json_set_text(root, "normalizer", "{\"type\":\"NFC\"}");
    json_set_text(root, "added_tokens",
                  "[{\"id\":259,\"content\":\"xe\\u0301\",\"normalized\":true,\"special\":false}]");
    Tokenizer *tokenizer;
    assert_ok(load_json(&tokenizer, root));
    assert_ids(tokenizer, "xe\xcc\x81 x\xc3\xa9", TOKENIZER_MATCH_SPECIAL, "259 32 259");
    tokenizer_free(tokenizer);
}

static void decoding_can_leave_special_tokens_out(void **unused) {
    (void)unused;
    json_t *root = small_json();
    json_set_text(root, "added_tokens", "[" ADDED("<x>", "") "]");
    Tokenizer *tokenizer;
    assert_ok(load_json(&tokenizer, root));
    const uint32_t ids[] = {256, 259, 258};
    char *text;
    size_t length;
    assert_ok(tokenizer_decode(tokenizer, ids, 3, false, &text, &length));
    assert_string_equal(text, "ab<x> ab");
    free(text);
    assert_ok(tokenizer_decode(tokenizer, ids, 3, true, &text, &length));
    assert_string_equal(text, "ab ab");
    free(text);
    const uint32_t outside[] = {260};
    assert_error(tokenizer_decode(tokenizer, outside, 1, false, &text, &length), "260");
    tokenizer_free(tokenizer);
}

// --- text and vocabulary at their limits ----------------------------------------------------------------------------

static void malformed_utf8_becomes_replacement_characters(void **unused) {
    (void)unused;
    static const struct {
        const char *text;
        int replacements; // as Python's errors="replace" gives
    } cases[] = {{"\xff", 1},         {"\xc3", 1},     {"\xe2\x82", 1},     {"\xf0\x9f\x98", 1},
                 {"\xed\xa0\x80", 3}, {"\xc0\x80", 2}, {"\xe2\x28", 1},     {"\xf4\x90\x80\x80", 4},
                 {"\xf0\x80", 2},     {"\x80\x80", 2}, {"\xe2\x82\xe2", 2}, {"\xf8\x88\x80", 3}};
    Tokenizer *tokenizer;
    assert_ok(load_json(&tokenizer, small_json()));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = text_format("x%s", cases[i].text);
        TokenIds ids = encode_length(tokenizer, text, strlen(text), 0);
        int replaced = 0;
        for (size_t j = 0; j + 2 < ids.count; j++)
            replaced += ids.ids[j] == 0xef && ids.ids[j + 1] == 0xbf && ids.ids[j + 2] == 0xbd;
        if (replaced != cases[i].replacements) fail_msg("case %zu: %d replacements", i, replaced);
        free(ids.ids);
        free(text);
    }
    tokenizer_free(tokenizer);
}

static void bytes_that_the_vocabulary_lacks_are_dropped_or_unknown(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 3; variant++) {
        json_t *root = small_json(), *model = json_object_get(root, "model");
        json_object_del(json_object_get(model, "vocab"), "z");
        json_object_set_new(json_object_get(model, "vocab"), "<unk>", json_integer(122)); // the id of "z"
        if (variant > 0) json_object_set_new(model, "unk_token", json_string("<unk>"));
        json_object_set_new(model, "fuse_unk", json_boolean(variant == 2));
        Tokenizer *tokenizer;
        assert_ok(load_json(&tokenizer, root));
        // Without an unknown token the neighbours of a dropped byte merge.
        static const char *const expected[] = {"257", "97 122 122 98 122 99", "97 122 98 122 99"};
        assert_ids(tokenizer, "azzbzc", 0, expected[variant]);
        tokenizer_free(tokenizer);
    }
}

static void a_text_of_one_letter_takes_time_in_proportion(void **unused) {
    (void)unused;
    static const char *const names[] = {"gpt2", "llama3"};
    for (int n = 0; n < 2; n++) {
        Tokenizer *tokenizer = load_from(FIXTURES, names[n]);
        static const char fillers[] = {'a', ' ', '\n', '=', '1'};
        for (size_t f = 0; f < sizeof fillers; f++) {
            size_t length = 1 << 20;
            char *text = xmalloc(length);
            memset(text, fillers[f], length);
            double start = clock_seconds();
            TokenIds ids = encode_length(tokenizer, text, length, 0);
            // A quadratic method would take minutes; under a sanitizer a linear one takes about a second.
            assert_true(clock_seconds() - start < 10);
            char *back;
            size_t back_length;
            assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &back, &back_length));
            assert_int_equal(back_length, length);
            assert_memory_equal(back, text, length);
            free(back);
            free(ids.ids);
            free(text);
        }
        tokenizer_free(tokenizer);
    }
}

static void the_byte_tokenizer_gives_back_any_bytes(void **unused) {
    (void)unused;
    Tokenizer *tokenizer;
    assert_ok(tokenizer_load(&tokenizer, "bytes"));
    assert_int_equal(tokenizer_vocab_size(tokenizer), 257);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 256);
    char all[256], *back;
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    TokenIds ids = encode_length(tokenizer, all, 256, 0);
    size_t length;
    assert_int_equal(ids.count, 256);
    assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &back, &length));
    assert_int_equal(length, 256);
    assert_memory_equal(back, all, 256);
    free(back);
    free(ids.ids);
    assert_ids(tokenizer, "a<|endoftext|>", TOKENIZER_MATCH_SPECIAL, "97 256");
    tokenizer_free(tokenizer);
}

// --- parts of a tokenizer.json --------------------------------------------------------------------------------------

static void split_behaviors_cut_as_hf_tokenizers_cuts(void **unused) {
    (void)unused;
    // "Ġab" merges only when the space and "ab" are in one piece.
    static const struct {
        const char *behavior, *invert, *expected;
    } cases[] = {
        {"Isolated", "false", "97 32 256"},
        {"Removed", "false", "97 256"},
        {"Removed", "true", "32"},
        {"MergedWithPrevious", "false", "97 32 256"},
        {"MergedWithNext", "false", "97 258"},
        {"Contiguous", "false", "97 32 256"},
        {"MergedWithPrevious", "true", "97 258"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *pre =
            text_format("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                        "\"behavior\":\"%s\",\"invert\":%s},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                        "\"use_regex\":false}]}",
                        cases[i].behavior, cases[i].invert);
        assert_small("pre_tokenizer", pre, "a ab", cases[i].expected);
        free(pre);
    }
}

static void stages_after_byte_level_see_the_characters_of_bytes(void **unused) {
    (void)unused;
    // As Falcon has it. The bytes of U+00B2 are spelled with two characters, the second of which is numeric.
    assert_small("pre_tokenizer",
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},"
                 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                 "{\"type\":\"Digits\",\"individual_digits\":true}]}",
                 "ab.ab!?\xc2\xb2\x31 ab", "256 46 256 33 63 194 178 49 258");
}

static void a_space_is_put_before_pieces_when_asked(void **unused) {
    (void)unused;
    assert_small("pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "ab ab", "258 258");
}

static void the_template_stands_around_the_text(void **unused) {
    (void)unused;
    json_t *root = small_json();
    json_set_text(root, "post_processor",
                  "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
                  "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],"
                  "\"special_tokens\":{\"<s>\":{\"ids\":[1,2]},\"</s>\":{\"ids\":[3]}}}");
    Tokenizer *tokenizer;
    assert_ok(load_json(&tokenizer, root));
    assert_ids(tokenizer, "ab", TOKENIZER_ADD_SPECIAL, "1 2 256 3");
    assert_ids(tokenizer, "", TOKENIZER_ADD_SPECIAL, "1 2 3");
    assert_ids(tokenizer, "ab", 0, "256");
    tokenizer_free(tokenizer);
}

static void ignore_merges_takes_whole_words_of_the_vocabulary(void **unused) {
    (void)unused;
    for (int ignore = 0; ignore < 2; ignore++) {
        json_t *root = small_json(), *model = json_object_get(root, "model");
        json_object_set_new(json_object_get(model, "vocab"), "xyz", json_integer(259)); // no merge makes it
        json_object_set_new(model, "ignore_merges", json_boolean(ignore));
        Tokenizer *tokenizer;
        assert_ok(load_json(&tokenizer, root));
        assert_ids(tokenizer, "xyz", 0, ignore ? "259" : "120 121 122");
        tokenizer_free(tokenizer);
    }
}

static void what_is_not_supported_is_refused_by_name(void **unused) {
    (void)unused;
    static const struct {
        const char *key, *json, *part;
    } cases[] = {
        {"pre_tokenizer", "{\"type\":\"Metaspace\"}", "Metaspace"},
        {"pre_tokenizer", "null", "byte-level"},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}]}", "Whitespace"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z&&[^b]]\"},\"behavior\":\"Isolated\",\"invert\":false}",
         "&&"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\",\"invert\":false}",
         "cannot be compiled"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Odd\",\"invert\":false}",
         "Odd"},
        {"normalizer", "{\"type\":\"Lowercase\"}", "Lowercase"},
        {"post_processor", "{\"type\":\"Odd\"}", "Odd"},
        {"decoder", "{\"type\":\"Metaspace\"}", "Metaspace"},
        {"model", "{\"type\":\"WordPiece\",\"vocab\":{}}", "WordPiece"},
        {"model", "{\"type\":\"BPE\",\"merges\":[]}", "vocab"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", "\"a\""},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}", "\"a\""},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}", "id 0"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}", "not in the vocabulary"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}", "merge 0"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}", "merge 0"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}", "dropout"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}", "suffix"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":true}", "byte_fallback"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\"}", "unk_token"},
        {"model", "[]", "model"},
        {"added_tokens", "[{}]", "content"},
        {"added_tokens", "{}", "added_tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = small_json();
        json_set_text(root, cases[i].key, cases[i].json);
        Tokenizer *tokenizer;
        assert_error(load_json(&tokenizer, root), cases[i].part);
    }
}

static void a_torn_file_is_refused(void **unused) {
    (void)unused;
    json_t *root = small_json();
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    size_t length = strlen(text);
    for (size_t cut = 0; cut < length; cut += 97) {
        Tokenizer *tokenizer;
        Status status = tokenizer_load_text(&tokenizer, text, cut, "torn.json");
        assert_non_null(status);
        assert_non_null(strstr(status_text(status), "torn.json"));
        status_free(status);
    }
    free(text);
    Tokenizer *tokenizer;
    assert_error(tokenizer_load(&tokenizer, "/nonexistent/tokenizer.json"), "/nonexistent/tokenizer.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_reference_has_the_same_ids),
        cmocka_unit_test(rare_text_has_the_ids_of_hf_tokenizers),
        cmocka_unit_test(special_tokens_in_text_are_matched_only_when_asked),
        cmocka_unit_test(the_template_is_added_only_when_asked),
        cmocka_unit_test(the_end_of_text_is_known_by_its_name),
        cmocka_unit_test(added_tokens_strip_and_stand_alone_as_their_flags_say),
        cmocka_unit_test(added_tokens_are_numbered_as_hf_tokenizers_numbers_them),
        cmocka_unit_test(normalized_added_tokens_are_found_after_normalisation),
        cmocka_unit_test(decoding_can_leave_special_tokens_out),
        cmocka_unit_test(malformed_utf8_becomes_replacement_characters),
        cmocka_unit_test(bytes_that_the_vocabulary_lacks_are_dropped_or_unknown),
        cmocka_unit_test(a_text_of_one_letter_takes_time_in_proportion),
        cmocka_unit_test(the_byte_tokenizer_gives_back_any_bytes),
        cmocka_unit_test(split_behaviors_cut_as_hf_tokenizers_cuts),
        cmocka_unit_test(stages_after_byte_level_see_the_characters_of_bytes),
        cmocka_unit_test(a_space_is_put_before_pieces_when_asked),
        cmocka_unit_test(the_template_stands_around_the_text),
        cmocka_unit_test(ignore_merges_takes_whole_words_of_the_vocabulary),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(a_torn_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
