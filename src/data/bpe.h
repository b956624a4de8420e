// Byte-level BPE: the vocabulary, the merges, and the encoding of one pre-token through a cache of pre-tokens.
#pragma once

#include "data/bpe_words.h"
#include "data/tokenizer.h"
#include "data/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BPE_ID_BITS 21 // ids are below 2^21 - 1: a hash and an id share 64 bits. No known vocabulary comes near
#define BPE_NONE    UINT32_MAX

typedef struct BpePair {
    uint64_t key;   // left id << 32 | right id
    uint64_t merge; // rank << 32 | id that the merge makes
} BpePair;

typedef struct Bpe {
    Vocab vocab;                    // bytes of each id
    uint32_t byte_ids[256];         // BPE_NONE where the vocabulary lacks the byte
    uint64_t byte_pairs[256 * 256]; // merge of two bytes: most lookups of a new word
    BpePair *pairs;                 // open addressing; merge == UINT64_MAX: empty
    unsigned pair_bits;
    uint64_t *filter;   // 2^(pair_bits + 2) bits: whether any pair has this hash
    uint32_t unknown;   // id for bytes the vocabulary lacks, or BPE_NONE: they are dropped
    bool fuse_unknown;  // a run of such bytes is one unknown token
    bool ignore_merges; // a pre-token that is in the vocabulary is that token
    uint64_t *known;    // short words that are one token: hash << BPE_ID_BITS | id + 1, 0 = empty
    unsigned known_bits;
} Bpe;

typedef struct BpeMerge { // one line of the merges, by rank
    uint32_t left, right, merged;
} BpeMerge;

typedef struct BpeState { // one thread's
    const Bpe *bpe;
    BpeWords cache;
    uint32_t *ids;             // [capacity] symbols of the word at hand
    uint64_t *merges;          // [capacity] merge of each with its right neighbour
    uint32_t *next, *previous; // [capacity] links, for long words
    uint64_t *heap;            // [3 * capacity] rank << 32 | position
    size_t capacity;
} BpeState;

// vocab, byte_ids, unknown, fuse_unknown and ignore_merges are set; the rest is made here.
void bpe_build(Bpe *bpe, const BpeMerge *merges, size_t count);
void bpe_free(Bpe *bpe);

void bpe_state_init(BpeState *state, const Bpe *bpe);
void bpe_state_free(BpeState *state);

// Appends the ids of one pre-token that the cache does not hold, and keeps them in the cache.
void bpe_encode_new(BpeState *state, const uint8_t *word, size_t length, TokenIds *out);
// Appends the ids of a pre-token of more than BPE_SHORT_WORD bytes.
void bpe_encode_long(BpeState *state, const uint8_t *word, size_t length, TokenIds *out);

// Appends the ids of one pre-token; `limit` ends the memory that may be read.
static inline __attribute__((always_inline)) void bpe_encode(BpeState *state, const uint8_t *word, size_t length,
                                                             const uint8_t *limit, TokenIds *out) {
    if (__builtin_expect(length > BPE_SHORT_WORD, 0)) {
        bpe_encode_long(state, word, length, out);
        return;
    }
    const BpeWord *found = bpe_words_find_short(&state->cache, bpe_short_key(word, length, limit));
    if (__builtin_expect(!found, 0)) {
        bpe_encode_new(state, word, length, out);
        return;
    }
    if (__builtin_expect(out->capacity - out->count < 16, 0)) token_ids_reserve(out, 16); // a short word has 15 at most
    if (__builtin_expect(found->count <= 3, 1)) {
        memcpy(out->ids + out->count, found->ids, sizeof found->ids);
    } else {
        memcpy(out->ids + out->count, bpe_word_ids(&state->cache, found), found->count * sizeof(uint32_t));
    }
    out->count += found->count;
}
