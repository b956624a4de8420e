// Merging: the symbols of a word are joined pair by pair, the pair of lowest rank first and the leftmost of equals,
// which is what defines BPE. Short words scan an array of ranks; long ones keep a heap, so that a megabyte of one
// letter is not quadratic.
#include "data/bpe.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>

#define SCAN_MOST 48 // symbols up to which scanning beats the heap

#define NO_MERGE UINT64_MAX

static inline uint64_t pair_key(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static inline uint64_t pair_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return (key ^ key >> 32) * 0xd6e8feb86659fd93u;
}

// One bit per pair that merges, by a finer part of the same hash: most pairs that are asked for do not merge, and the
// bits stay in a near cache where the pairs do not.
static inline size_t filter_bit(const Bpe *bpe, uint64_t hash) {
    return hash >> (64 - bpe->pair_bits - 2);
}

// rank << 32 | merged id, so that the lowest is merged first; NO_MERGE when the pair does not merge.
static inline uint64_t pair_merge(const Bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t key = pair_key(left, right), hash = pair_hash(key);
    size_t bit = filter_bit(bpe, hash);
    if (!(bpe->filter[bit >> 6] >> (bit & 63) & 1)) return NO_MERGE;
    size_t mask = ((size_t)1 << bpe->pair_bits) - 1;
    for (size_t slot = hash >> (64 - bpe->pair_bits);; slot = (slot + 1) & mask) {
        const BpePair *pair = &bpe->pairs[slot];
        if (pair->merge == NO_MERGE || pair->key == key) return pair->merge;
    }
}

static void add_pair(Bpe *bpe, const BpeMerge *merge, uint32_t rank) {
    uint64_t key = pair_key(merge->left, merge->right), hash = pair_hash(key);
    size_t mask = ((size_t)1 << bpe->pair_bits) - 1, slot = hash >> (64 - bpe->pair_bits), bit = filter_bit(bpe, hash);
    while (bpe->pairs[slot].merge != NO_MERGE && bpe->pairs[slot].key != key)
        slot = (slot + 1) & mask;
    // A pair given twice has the later rank, as in HF tokenizers.
    bpe->pairs[slot] = (BpePair){key, (uint64_t)rank << 32 | merge->merged};
    bpe->filter[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

// --- one word -------------------------------------------------------------------------------------------------------

static void reserve_symbols(BpeState *state, size_t count) {
    if (count <= state->capacity) return;
    state->capacity = count + count / 2 + 64;
    state->ids = xrealloc(state->ids, state->capacity * sizeof *state->ids);
    state->merges = xrealloc(state->merges, state->capacity * sizeof *state->merges);
    state->next = xrealloc(state->next, state->capacity * sizeof *state->next);
    state->previous = xrealloc(state->previous, state->capacity * sizeof *state->previous);
    state->heap = xrealloc(state->heap, 3 * state->capacity * sizeof *state->heap);
}

// The first symbols of a word: its bytes, with those that the vocabulary lacks dropped or made unknown. *plain: none
// was.
static size_t split_bytes(BpeState *state, const uint8_t *word, size_t length, bool *plain) {
    const Bpe *bpe = state->bpe;
    size_t count = 0;
    bool after_unknown = false;
    *plain = true;
    for (size_t i = 0; i < length; i++) {
        uint32_t id = bpe->byte_ids[word[i]];
        if (__builtin_expect(id == BPE_NONE, 0)) {
            *plain = false;
            if (bpe->unknown == BPE_NONE || (after_unknown && bpe->fuse_unknown)) continue;
            after_unknown = true;
            state->ids[count++] = bpe->unknown;
            continue;
        }
        after_unknown = false;
        state->ids[count++] = id;
    }
    return count;
}

static size_t merge_by_scan(BpeState *state, size_t count) {
    const Bpe *bpe = state->bpe;
    uint32_t *ids = state->ids;
    uint64_t *merges = state->merges;
    while (count > 1) {
        uint64_t best = NO_MERGE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            if (merges[i] < best) {
                best = merges[i];
                at = i;
            }
        }
        if (best == NO_MERGE) break;
        ids[at] = (uint32_t)best;
        count--;
        for (size_t i = at + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            merges[i] = merges[i + 1];
        }
        if (at > 0) merges[at - 1] = pair_merge(bpe, ids[at - 1], ids[at]);
        if (at + 1 < count) merges[at] = pair_merge(bpe, ids[at], ids[at + 1]);
    }
    return count;
}

static void merge_heap_sink(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void merge_heap_push(uint64_t *heap, size_t *count, uint64_t value) {
    size_t at = (*count)++;
    for (; at > 0 && value < heap[(at - 1) / 2]; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

// Entries are rank << 32 | position, and good while the position still has that rank. Each merge takes one entry away
// and adds two at most, and there are fewer than `count` merges, so 3 * count entries are enough.
static void merge_heap_add(BpeState *state, size_t *heap_count, uint32_t at) {
    if (state->merges[at] == NO_MERGE) return;
    merge_heap_push(state->heap, heap_count, (state->merges[at] & ~(uint64_t)UINT32_MAX) | at);
}

static size_t merge_by_heap(BpeState *state, size_t count) {
    const Bpe *bpe = state->bpe;
    uint32_t *ids = state->ids, *next = state->next, *previous = state->previous;
    uint64_t *merges = state->merges, *heap = state->heap;
    size_t heap_count = 0;
    merges[count - 1] = NO_MERGE;
    for (size_t i = 0; i < count; i++) {
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1;
        if (merges[i] != NO_MERGE) heap[heap_count++] = (merges[i] & ~(uint64_t)UINT32_MAX) | i;
    }
    for (size_t i = heap_count / 2; i-- > 0;)
        merge_heap_sink(heap, heap_count, i);
    while (heap_count > 0) {
        uint64_t top = heap[0];
        heap[0] = heap[--heap_count];
        merge_heap_sink(heap, heap_count, 0);
        uint32_t at = (uint32_t)top;
        if (merges[at] == NO_MERGE || merges[at] >> 32 != top >> 32) continue;
        uint32_t gone = next[at], after = next[gone];
        ids[at] = (uint32_t)merges[at];
        merges[gone] = merges[at] = NO_MERGE;
        next[at] = after;
        if (after < count) {
            previous[after] = at;
            merges[at] = pair_merge(bpe, ids[at], ids[after]);
            merge_heap_add(state, &heap_count, at);
        }
        if (at > 0) {
            uint32_t before = previous[at];
            merges[before] = pair_merge(bpe, ids[before], ids[at]);
            merge_heap_add(state, &heap_count, before);
        }
    }
    size_t left = 0;
    for (size_t at = 0; at < count; at = next[at])
        ids[left++] = ids[at];
    return left;
}

// Leaves the ids of the word in state->ids and returns how many.
static size_t merge_word(BpeState *state, const uint8_t *word, size_t length) {
    const Bpe *bpe = state->bpe;
    reserve_symbols(state, length);
    bool plain;
    size_t count = split_bytes(state, word, length, &plain);
    if (count < 2) return count;
    if (plain) {
        for (size_t i = 0; i + 1 < count; i++)
            state->merges[i] = bpe->byte_pairs[word[i] << 8 | word[i + 1]];
    } else {
        for (size_t i = 0; i + 1 < count; i++)
            state->merges[i] = pair_merge(bpe, state->ids[i], state->ids[i + 1]);
    }
    return count <= SCAN_MOST ? merge_by_scan(state, count) : merge_by_heap(state, count);
}

static uint32_t known_word_find(const Bpe *bpe, BpeKey key, const uint8_t *word, size_t length) {
    uint64_t hash = bpe_hash(key.low, key.high);
    size_t mask = ((size_t)1 << bpe->known_bits) - 1;
    for (size_t slot = hash >> (64 - bpe->known_bits);; slot = (slot + 1) & mask) {
        uint64_t entry = bpe->known[slot];
        if (!entry) return BPE_NONE;
        if ((entry ^ hash << BPE_ID_BITS) >> BPE_ID_BITS) continue;
        uint32_t id = (uint32_t)(entry & ((1u << BPE_ID_BITS) - 1)) - 1;
        if (bpe->vocab.lengths[id] == length && memcmp(bpe->vocab.bytes + bpe->vocab.offsets[id], word, length) == 0)
            return id;
    }
}

void bpe_encode_new(BpeState *state, const uint8_t *word, size_t length, TokenIds *out) {
    assert(length > 0 && length <= BPE_SHORT_WORD);
    BpeKey key = bpe_short_key(word, length, word + length);
    uint32_t whole = known_word_find(state->bpe, key, word, length);
    size_t count = whole != BPE_NONE ? 1 : merge_word(state, word, length);
    const uint32_t *ids = whole != BPE_NONE ? &whole : state->ids;
    token_ids_add(out, ids, count);
    bpe_words_add(&state->cache, key, word, length, ids, count);
}

void bpe_encode_long(BpeState *state, const uint8_t *word, size_t length, TokenIds *out) {
    BpeKey key = {0, 0};
    if (length <= BPE_LONG_WORD) {
        key = bpe_long_key(word, length);
        const BpeWord *found = bpe_words_find_long(&state->cache, key, word, length);
        if (found) {
            token_ids_add(out, bpe_word_ids(&state->cache, found), found->count);
            return;
        }
    }
    uint32_t whole = state->bpe->ignore_merges ? vocab_find(&state->bpe->vocab, word, length) : VOCAB_NONE;
    size_t count = whole != VOCAB_NONE ? 1 : merge_word(state, word, length);
    const uint32_t *ids = whole != VOCAB_NONE ? &whole : state->ids;
    token_ids_add(out, ids, count);
    if (length <= BPE_LONG_WORD) bpe_words_add(&state->cache, key, word, length, ids, count);
}

// --- building -------------------------------------------------------------------------------------------------------

// Words that are one token: all of the vocabulary with ignore_merges, else the tokens that merging makes of their
// bytes.
static void known_words_add(Bpe *bpe) {
    bpe->known_bits = 10;
    while ((size_t)1 << bpe->known_bits < 2 * bpe->vocab.size)
        bpe->known_bits++;
    bpe->known = xcalloc((size_t)1 << bpe->known_bits, sizeof *bpe->known);
    size_t mask = ((size_t)1 << bpe->known_bits) - 1;
    BpeState state = {.bpe = bpe};
    for (uint32_t id = 0; id < bpe->vocab.size; id++) {
        size_t length;
        const uint8_t *text = vocab_get(&bpe->vocab, id, &length);
        if (!text || length == 0 || length > BPE_SHORT_WORD) continue;
        if (vocab_find(&bpe->vocab, text, length) != id) continue; // spelled outside the byte alphabet
        if (!bpe->ignore_merges && (merge_word(&state, text, length) != 1 || state.ids[0] != id)) continue;
        BpeKey key = bpe_short_key(text, length, text + length);
        uint64_t hash = bpe_hash(key.low, key.high);
        size_t slot = hash >> (64 - bpe->known_bits);
        while (bpe->known[slot])
            slot = (slot + 1) & mask;
        bpe->known[slot] = hash << BPE_ID_BITS | (id + 1);
    }
    bpe_state_free(&state);
}

void bpe_build(Bpe *bpe, const BpeMerge *merges, size_t count) {
    bpe->pair_bits = 10;
    while ((size_t)1 << bpe->pair_bits < count + count / 2)
        bpe->pair_bits++;
    bpe->pairs = xmalloc(sizeof *bpe->pairs << bpe->pair_bits);
    memset(bpe->pairs, 0xff, sizeof *bpe->pairs << bpe->pair_bits);
    bpe->filter = xcalloc((size_t)1 << (bpe->pair_bits + 2 - 6), sizeof *bpe->filter);
    for (size_t i = 0; i < count; i++)
        add_pair(bpe, &merges[i], (uint32_t)i);
    for (int left = 0; left < 256; left++) {
        for (int right = 0; right < 256; right++) {
            uint32_t left_id = bpe->byte_ids[left], right_id = bpe->byte_ids[right];
            bool both = left_id != BPE_NONE && right_id != BPE_NONE;
            bpe->byte_pairs[left << 8 | right] = both ? pair_merge(bpe, left_id, right_id) : NO_MERGE;
        }
    }
    known_words_add(bpe);
}

void bpe_free(Bpe *bpe) {
    vocab_free(&bpe->vocab);
    free(bpe->pairs);
    free(bpe->filter);
    free(bpe->known);
}

#ifndef CACHE_BITS // the fuzz target has a small one, which grows
#define CACHE_BITS 16
#endif

void bpe_state_init(BpeState *state, const Bpe *bpe) {
    *state = (BpeState){.bpe = bpe};
    bpe_words_init(&state->cache, CACHE_BITS);
}

void bpe_state_free(BpeState *state) {
    bpe_words_free(&state->cache);
    free(state->ids);
    free(state->merges);
    free(state->next);
    free(state->previous);
    free(state->heap);
}
