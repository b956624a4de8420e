// Words (pre-tokens) and their ids: an open-addressing table whose short words are compared as two integers.
#pragma once

#include "data/token_ids.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BPE_SHORT_WORD      15  // bytes of a word that is its own key
#define BPE_LONG_WORD       255 // longer ones are not kept
#define BPE_WORDS_MOST_BITS 19  // 16 MiB of slots; a table that is full at that size starts anew

// 32 bytes, two to a cache line. Short words: low and high hold the bytes, the top byte of high the length. Long words:
// low is a hash, high = 0xff << 56 | length << 32 | offset of the bytes in the table's store.
typedef struct BpeWord {
    uint64_t low, high; // high == 0: empty
    uint32_t count;     // ids
    uint32_t ids[3];    // count <= 3: the ids; else ids[0] is their offset in the table's list
} BpeWord;

typedef struct BpeWords {
    BpeWord *words; // open addressing, linear probing
    unsigned bits;  // log2 of the slots
    size_t used;
    TokenIds long_lists; // ids of words that have more than 3
    uint8_t *bytes;      // of long words
    size_t byte_count, byte_capacity;
} BpeWords;

typedef struct BpeKey {
    uint64_t low, high;
} BpeKey;

void bpe_words_init(BpeWords *words, unsigned bits);
void bpe_words_free(BpeWords *words);
void bpe_words_add(BpeWords *words, BpeKey key, const uint8_t *text, size_t length, const uint32_t *ids, size_t count);

static inline uint64_t bpe_hash(uint64_t low, uint64_t high) {
    unsigned __int128 product = (unsigned __int128)(low ^ 0x9e3779b97f4a7c15u) * (high ^ 0xd6e8feb86659fd93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// Key of a word of 1 to 15 bytes. `limit` ends the memory that may be read: words are mostly not at the end of it.
static inline BpeKey bpe_short_key(const uint8_t *word, size_t length, const uint8_t *limit) {
    uint64_t parts[2] = {0, 0};
    if (limit - word >= 16) {
        memcpy(parts, word, 16);
        uint64_t mask = length >= 8 ? UINT64_MAX : ((uint64_t)1 << (8 * length)) - 1;
        uint64_t high = length <= 8 ? 0 : ((uint64_t)1 << (8 * (length - 8))) - 1;
        parts[0] &= mask;
        parts[1] &= high;
    } else {
        memcpy(parts, word, length);
    }
    return (BpeKey){parts[0], parts[1] | (uint64_t)length << 56};
}

static inline const BpeWord *bpe_words_find_short(const BpeWords *words, BpeKey key) {
    size_t mask = ((size_t)1 << words->bits) - 1;
    size_t slot = bpe_hash(key.low, key.high) >> (64 - words->bits);
    for (;; slot = (slot + 1) & mask) {
        const BpeWord *word = &words->words[slot];
        if (word->low == key.low && word->high == key.high) return word;
        if (!word->high) return NULL;
    }
}

static inline const uint32_t *bpe_word_ids(const BpeWords *words, const BpeWord *word) {
    return word->count <= 3 ? word->ids : words->long_lists.ids + word->ids[0];
}

// The same for words of more than 15 bytes.
BpeKey bpe_long_key(const uint8_t *word, size_t length);
const BpeWord *bpe_words_find_long(const BpeWords *words, BpeKey key, const uint8_t *text, size_t length);
