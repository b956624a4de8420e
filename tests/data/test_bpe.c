// Merging and training against the definitions written out plainly, and training for any sharing out of the texts.
#include "testing.h"

#include "base/rng.h"
#include "data/bpe.h"
#include "data/bpe_train.h"

#include <unistd.h>

// --- merging --------------------------------------------------------------------------------------------------------

#define MERGES 60

// A random model over the letters a..d: ids 0..3, then one token per merge. Later merges join earlier tokens.
static void random_model(Bpe *bpe, BpeMerge *merges, uint64_t seed) {
    *bpe = (Bpe){.unknown = BPE_NONE};
    vocab_init(&bpe->vocab, 4 + MERGES);
    memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t letter = (uint8_t)('a' + i);
        vocab_set(&bpe->vocab, i, &letter, 1);
        vocab_index(&bpe->vocab, i);
        bpe->byte_ids[letter] = i;
    }
    for (uint32_t i = 0; i < MERGES; i++) {
        uint32_t left = (uint32_t)rng_below(seed, RNG_STREAM_TEST, 2 * i, 4 + i);
        uint32_t right = (uint32_t)rng_below(seed, RNG_STREAM_TEST, 2 * i + 1, i < 8 ? 4 : 4 + i / 2);
        if (bpe->vocab.lengths[left] + bpe->vocab.lengths[right] > 200) left = right = 0;
        merges[i] = (BpeMerge){left, right, 4 + i};
        size_t left_length = 0, right_length = 0;
        char bytes[200];
        const uint8_t *text = vocab_get(&bpe->vocab, left, &left_length);
        memcpy(bytes, text, left_length);
        text = vocab_get(&bpe->vocab, right, &right_length);
        memcpy(bytes + left_length, text, right_length);
        vocab_set(&bpe->vocab, 4 + i, bytes, left_length + right_length);
        vocab_index(&bpe->vocab, 4 + i);
    }
    bpe_build(bpe, merges, MERGES);
}

// The definition: the pair of lowest rank, the leftmost of them, until none is left. A pair listed twice has the later
// rank.
static size_t merge_plainly(uint32_t *ids, size_t count, const BpeMerge *merges) {
    for (;;) {
        size_t best = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t rank = MERGES; rank-- > 0;) {
                if (merges[rank].left != ids[i] || merges[rank].right != ids[i + 1]) continue;
                if (rank < best) {
                    best = rank;
                    at = i;
                }
                break;
            }
        }
        if (best == SIZE_MAX) return count;
        ids[at] = merges[best].merged;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

static void merging_follows_its_definition_for_words_of_any_length(void **unused) {
    (void)unused;
    for (uint64_t seed = 0; seed < 60; seed++) {
        Bpe *bpe = xmalloc(sizeof *bpe);
        BpeMerge merges[MERGES];
        random_model(bpe, merges, seed);
        BpeState state;
        bpe_state_init(&state, bpe);
        for (uint64_t word = 0; word < 60; word++) {
            uint8_t text[300];
            uint32_t expected[300];
            // Short words, words that are scanned, and words that need the heap; twice, the second time from the cache.
            size_t length = 1 + rng_below(seed, RNG_STREAM_TEST + 1, word,
                                          word % 3 == 0   ? 15
                                          : word % 3 == 1 ? 48
                                                          : 299);
            for (size_t i = 0; i < length; i++) {
                expected[i] = (uint32_t)rng_below(seed, RNG_STREAM_TEST + 2 + word, i, 4);
                text[i] = (uint8_t)('a' + expected[i]);
            }
            size_t count = merge_plainly(expected, length, merges);
            for (int again = 0; again < 2; again++) {
                TokenIds out = {0};
                bpe_encode(&state, text, length, text + length, &out);
                assert_int_equal(out.count, count);
                assert_memory_equal(out.ids, expected, count * sizeof *expected);
                free(out.ids);
            }
        }
        bpe_state_free(&state);
        bpe_free(bpe);
        free(bpe);
    }
}

static void a_full_cache_starts_anew_and_stays_right(void **unused) {
    (void)unused;
    BpeWords words;
    bpe_words_init(&words, 4);
    size_t most = (size_t)1 << BPE_WORDS_MOST_BITS;
    for (uint32_t i = 0; i < most; i++) {
        char text[32];
        int length = snprintf(text, sizeof text, i % 2 ? "w%u" : "a-rather-long-word-%u", i);
        uint32_t ids[5] = {i, 1, 2, 3, 4};
        const uint8_t *bytes = (const uint8_t *)text;
        BpeKey key = length <= BPE_SHORT_WORD ? bpe_short_key(bytes, (size_t)length, bytes + length)
                                              : bpe_long_key(bytes, (size_t)length);
        bpe_words_add(&words, key, bytes, (size_t)length, ids, i % 3 ? 1 : 5);
        const BpeWord *found = length <= BPE_SHORT_WORD ? bpe_words_find_short(&words, key)
                                                        : bpe_words_find_long(&words, key, bytes, (size_t)length);
        assert_non_null(found);
        assert_int_equal(bpe_word_ids(&words, found)[0], i);
        assert_int_equal(found->count, i % 3 ? 1 : 5);
    }
    assert_true(words.bits <= BPE_WORDS_MOST_BITS);
    bpe_words_free(&words);
}

// --- training -------------------------------------------------------------------------------------------------------

static char *random_text(uint64_t seed, size_t words) {
    TextBuffer text = {0};
    for (uint64_t i = 0; i < words; i++) {
        uint64_t letters = 1 + rng_below(seed, RNG_STREAM_TEST, 100 * i, 7);
        text_buffer_add(&text, " ", 1);
        for (uint64_t j = 0; j < letters; j++) {
            char letter = (char)('a' + rng_below(seed, RNG_STREAM_TEST, 100 * i + j + 1, 3));
            text_buffer_add(&text, &letter, 1);
        }
    }
    return text.data;
}

static BpeTraining train_on(const char *text, int64_t vocab_size, int parts) {
    size_t length = strlen(text);
    BpeTrainOptions options = {.vocab_size = vocab_size, .pattern = SPLIT_GPT2};
    BpeCounts counts[4];
    for (int i = 0; i < parts; i++) {
        bpe_counts_init(&counts[i]);
        size_t from = length * (size_t)i / (size_t)parts, to = length * (size_t)(i + 1) / (size_t)parts;
        while (from > 0 && from < length && text[from] != ' ')
            from++;
        while (to < length && text[to] != ' ')
            to++;
        assert_ok(bpe_counts_add_text(&counts[i], options.pattern, false, text + from, to - from));
    }
    for (int i = 1; i < parts; i++) {
        bpe_counts_add_all(&counts[0], &counts[i]);
        bpe_counts_free(&counts[i]);
    }
    BpeTraining training;
    bpe_train(&training, &counts[0], &options);
    bpe_counts_free(&counts[0]);
    return training;
}

// The definition, recounting all pairs for each merge: highest count, then lowest ids.
static void train_plainly(const char *text, size_t merges, uint32_t (*out)[2]) {
    uint32_t *symbols = xmalloc((2 * strlen(text) + 1) * sizeof *symbols); // UINT32_MAX between words
    size_t count = 0;
    uint32_t space = 0;
    for (uint32_t character = 0; vocab_char_byte(character) != ' '; character++)
        space += vocab_char_byte(character) >= 0;
    for (const char *at = text; *at; at++) {
        if (*at == ' ') symbols[count++] = UINT32_MAX;
        symbols[count++] = *at == ' ' ? space : (uint32_t)(*at - '!'); // ids follow the characters from '!' on
    }
    for (size_t merge = 0; merge < merges; merge++) {
        uint32_t best[2] = {0, 0};
        int64_t best_count = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            uint32_t left = symbols[i], right = symbols[i + 1];
            if (left == UINT32_MAX || right == UINT32_MAX) continue;
            int64_t times = 0;
            for (size_t j = 0; j + 1 < count; j++)
                times += symbols[j] == left && symbols[j + 1] == right;
            bool lower = left < best[0] || (left == best[0] && right < best[1]);
            if (times > best_count || (times == best_count && lower)) {
                best_count = times;
                best[0] = left;
                best[1] = right;
            }
        }
        memcpy(out[merge], best, sizeof best);
        size_t kept = 0;
        for (size_t i = 0; i < count; i++) {
            bool joins = i + 1 < count && symbols[i] == best[0] && symbols[i + 1] == best[1];
            symbols[kept++] = joins ? (uint32_t)(256 + merge) : symbols[i];
            i += joins;
        }
        count = kept;
    }
    free(symbols);
}

static void training_follows_its_definition(void **unused) {
    (void)unused;
    for (uint64_t seed = 0; seed < 8; seed++) {
        char *text = random_text(seed, 60);
        uint32_t expected[30][2];
        train_plainly(text, 30, expected);
        BpeTraining training = train_on(text, 256 + 30, 1);
        assert_int_equal(training.merge_count, 30);
        assert_memory_equal(training.merges, expected, sizeof expected);
        bpe_training_free(&training);
        free(text);
    }
}

static void training_does_not_depend_on_how_texts_are_shared_out(void **unused) {
    (void)unused;
    char *text = random_text(99, 20000);
    BpeTraining one = train_on(text, 1000, 1);
    for (int parts = 2; parts <= 4; parts++) {
        BpeTraining other = train_on(text, 1000, parts);
        assert_int_equal(other.merge_count, one.merge_count);
        assert_memory_equal(other.merges, one.merges, one.merge_count * sizeof one.merges[0]);
        bpe_training_free(&other);
    }
    bpe_training_free(&one);
    free(text);
}

static void a_written_tokenizer_gives_back_its_text(void **unused) {
    (void)unused;
    static const SplitKind kinds[] = {SPLIT_GPT2, SPLIT_LLAMA3, SPLIT_QWEN, SPLIT_O200K};
    char *text = random_text(7, 3000), path[] = "/tmp/hearth-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const char *special[] = {"<|endoftext|>", "<|pad|>"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        BpeTrainOptions options = {
            .vocab_size = 400, .pattern = kinds[i], .special = special, .special_count = 2, .nfc = i % 2};
        BpeCounts counts;
        BpeTraining training;
        bpe_counts_init(&counts);
        assert_ok(bpe_counts_add_text(&counts, kinds[i], false, text, strlen(text)));
        bpe_train(&training, &counts, &options);
        assert_ok(bpe_training_write(&training, &options, path));
        Tokenizer *tokenizer;
        assert_ok(tokenizer_load(&tokenizer, path));
        assert_int_equal(tokenizer_vocab_size(tokenizer), 400);
        assert_int_equal(tokenizer_end_of_text(tokenizer), 0);
        TokenizerState *state = tokenizer_state_new(tokenizer);
        TokenIds ids = {0};
        assert_ok(tokenizer_encode(state, text, strlen(text), 0, &ids));
        assert_true(ids.count < strlen(text) / 2); // the merges are used
        char *back;
        size_t length;
        assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &back, &length));
        assert_string_equal(back, text);
        free(back);
        free(ids.ids);
        tokenizer_state_free(state);
        tokenizer_free(tokenizer);
        bpe_training_free(&training);
        bpe_counts_free(&counts);
    }
    remove(path);
    free(text);
}

static void a_special_token_that_merges_could_make_stays_one_token(void **unused) {
    (void)unused;
    char *text = random_text(5, 500), path[] = "/tmp/hearth-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const char *special[] = {"ab"};
    BpeTrainOptions options = {.vocab_size = 300, .pattern = SPLIT_GPT2, .special = special, .special_count = 1};
    BpeCounts counts;
    BpeTraining training;
    Tokenizer *tokenizer;
    bpe_counts_init(&counts);
    assert_ok(bpe_counts_add_text(&counts, SPLIT_GPT2, false, text, strlen(text)));
    bpe_train(&training, &counts, &options);
    assert_ok(bpe_training_write(&training, &options, path));
    assert_ok(tokenizer_load(&tokenizer, path));
    int times = 0;
    for (uint32_t id = 0; id < 300; id++) {
        size_t length;
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        assert_non_null(bytes);
        times += length == 2 && memcmp(bytes, "ab", 2) == 0;
    }
    assert_int_equal(times, 1);
    tokenizer_free(tokenizer);
    bpe_training_free(&training);
    bpe_counts_free(&counts);
    remove(path);
    free(text);
}

static void training_that_cannot_be_done_is_refused(void **unused) {
    (void)unused;
    const char *twice[] = {"<s>", "<s>"}, *empty[] = {""}, *byte[] = {"a"};
    assert_error(bpe_train_check(&(BpeTrainOptions){.vocab_size = 255}), "255");
    assert_error(bpe_train_check(&(BpeTrainOptions){.vocab_size = 1 << 30}), "1073741824");
    assert_error(bpe_train_check(&(BpeTrainOptions){.vocab_size = 300, .special = twice, .special_count = 2}), "twice");
    assert_error(bpe_train_check(&(BpeTrainOptions){.vocab_size = 300, .special = empty, .special_count = 1}), "empty");
    assert_error(bpe_train_check(&(BpeTrainOptions){.vocab_size = 300, .special = byte, .special_count = 1}), "\"a\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_follows_its_definition_for_words_of_any_length),
        cmocka_unit_test(a_full_cache_starts_anew_and_stays_right),
        cmocka_unit_test(training_follows_its_definition),
        cmocka_unit_test(training_does_not_depend_on_how_texts_are_shared_out),
        cmocka_unit_test(a_written_tokenizer_gives_back_its_text),
        cmocka_unit_test(a_special_token_that_merges_could_make_stays_one_token),
        cmocka_unit_test(training_that_cannot_be_done_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
