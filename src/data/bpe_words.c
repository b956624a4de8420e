// The table of words and their ids: one thread's cache, and the read-only table of words that are one token.
#include "data/bpe_words.h"

#include "base/text.h"

#include <stdlib.h>

void bpe_words_init(BpeWords *words, unsigned bits) {
    *words = (BpeWords){.bits = bits};
    words->words = xcalloc((size_t)1 << bits, sizeof *words->words);
}

void bpe_words_free(BpeWords *words) {
    free(words->words);
    free(words->long_lists.ids);
    free(words->bytes);
    *words = (BpeWords){0};
}

BpeKey bpe_long_key(const uint8_t *word, size_t length) {
    uint64_t low = length, high = 0;
    const uint8_t *end = word + length;
    for (; end - word > 16; word += 16) {
        uint64_t parts[2];
        memcpy(parts, word, 16);
        low = bpe_hash(low ^ parts[0], parts[1] + length);
    }
    uint64_t parts[2];
    memcpy(parts, end - 16, 16); // overlaps what came before: a long word has more than 15 bytes
    low = bpe_hash(low ^ parts[0], parts[1] ^ low);
    high = (uint64_t)0xff << 56 | (uint64_t)length << 32;
    return (BpeKey){low, high};
}

// The slot of a key is that of its hash; long words differ by their offset, which is no part of it.
static size_t word_slot(const BpeWords *words, BpeKey key) {
    bool is_long = key.high >> 56 == 0xff;
    return bpe_hash(key.low, is_long ? key.high >> 32 : key.high) >> (64 - words->bits);
}

const BpeWord *bpe_words_find_long(const BpeWords *words, BpeKey key, const uint8_t *text, size_t length) {
    size_t mask = ((size_t)1 << words->bits) - 1;
    for (size_t slot = word_slot(words, key);; slot = (slot + 1) & mask) {
        const BpeWord *word = &words->words[slot];
        if (!word->high) return NULL;
        if (word->low == key.low && word->high >> 32 == key.high >> 32 &&
            memcmp(words->bytes + (uint32_t)word->high, text, length) == 0)
            return word;
    }
}

static void word_place(BpeWords *words, const BpeWord *word) {
    size_t mask = ((size_t)1 << words->bits) - 1;
    size_t slot = word_slot(words, (BpeKey){word->low, word->high});
    while (words->words[slot].high)
        slot = (slot + 1) & mask;
    words->words[slot] = *word;
    words->used++;
}

static void word_slots_double(BpeWords *words) {
    BpeWord *old = words->words;
    size_t count = (size_t)1 << words->bits;
    words->bits++;
    words->words = xcalloc((size_t)1 << words->bits, sizeof *words->words);
    words->used = 0;
    for (size_t i = 0; i < count; i++) {
        if (old[i].high) word_place(words, &old[i]);
    }
    free(old);
}

static void words_forget(BpeWords *words) {
    memset(words->words, 0, sizeof *words->words << words->bits);
    words->used = 0;
    words->long_lists.count = 0;
    words->byte_count = 0;
}

void bpe_words_add(BpeWords *words, BpeKey key, const uint8_t *text, size_t length, const uint32_t *ids, size_t count) {
    size_t slots = (size_t)1 << words->bits;
    if (words->used >= slots - slots / 3) {
        if (words->bits < BPE_WORDS_MOST_BITS)
            word_slots_double(words);
        else
            words_forget(words);
    }
    BpeWord word = {.low = key.low, .high = key.high, .count = (uint32_t)count};
    if (length > BPE_SHORT_WORD) {
        if (words->byte_count + length > words->byte_capacity) {
            words->byte_capacity = 2 * (words->byte_count + length) + 4096;
            words->bytes = xrealloc(words->bytes, words->byte_capacity);
        }
        memcpy(words->bytes + words->byte_count, text, length);
        word.high |= words->byte_count;
        words->byte_count += length;
    }
    if (count <= 3) {
        memcpy(word.ids, ids, count * sizeof *ids);
    } else {
        token_ids_reserve(&words->long_lists, count);
        word.ids[0] = (uint32_t)words->long_lists.count;
        memcpy(words->long_lists.ids + words->long_lists.count, ids, count * sizeof *ids);
        words->long_lists.count += count;
    }
    word_place(words, &word);
}
