// Counting pre-tokens.
#include "data/bpe_count.h"

#include "data/bpe_words.h"
#include "data/split_scan.h"

#include <stdlib.h>

#define LONG_MARK ((uint64_t)0xff << 56)

void bpe_counts_init(BpeCounts *counts) {
    *counts = (BpeCounts){.bits = 14};
    counts->entries = xcalloc((size_t)1 << counts->bits, sizeof *counts->entries);
}

void bpe_counts_free(BpeCounts *counts) {
    free(counts->entries);
    text_buffer_free(&counts->bytes);
    text_buffer_free(&counts->repaired);
    text_buffer_free(&counts->composed);
    unicode_scratch_free(&counts->scratch);
    *counts = (BpeCounts){0};
}

const uint8_t *bpe_count_word(const BpeCounts *counts, const BpeCount *entry, uint8_t *space, size_t *length) {
    *length = entry->high >> 56;
    if (*length == 0xff) {
        *length = entry->high & ~LONG_MARK;
        return (const uint8_t *)counts->bytes.data + entry->offset;
    }
    memcpy(space, &entry->low, 8);
    memcpy(space + 8, &entry->high, 8);
    return space;
}

static size_t word_slot_of(const BpeCounts *counts, uint64_t low, uint64_t high) {
    return bpe_hash(low, high) >> (64 - counts->bits);
}

static void word_entries_double(BpeCounts *counts) {
    BpeCount *old = counts->entries;
    size_t old_count = (size_t)1 << counts->bits;
    counts->bits++;
    counts->entries = xcalloc((size_t)1 << counts->bits, sizeof *counts->entries);
    size_t mask = ((size_t)1 << counts->bits) - 1;
    for (size_t i = 0; i < old_count; i++) {
        if (!old[i].high) continue;
        size_t slot = word_slot_of(counts, old[i].low, old[i].high);
        while (counts->entries[slot].high)
            slot = (slot + 1) & mask;
        counts->entries[slot] = old[i];
    }
    free(old);
}

static void word_add_new(BpeCounts *counts, size_t slot, BpeCount entry) {
    counts->entries[slot] = entry;
    if (++counts->used >= (size_t)1 << (counts->bits - 1)) word_entries_double(counts);
}

static inline __attribute__((always_inline)) void add_short(BpeCounts *counts, BpeKey key, uint64_t times) {
    size_t mask = ((size_t)1 << counts->bits) - 1;
    for (size_t slot = word_slot_of(counts, key.low, key.high);; slot = (slot + 1) & mask) {
        BpeCount *entry = &counts->entries[slot];
        if (entry->low == key.low && entry->high == key.high) {
            entry->count += times;
            return;
        }
        if (entry->high) continue;
        word_add_new(counts, slot, (BpeCount){key.low, key.high, times, 0});
        return;
    }
}

static void word_add_long(BpeCounts *counts, const uint8_t *word, size_t length, uint64_t times) {
    uint64_t low = bpe_long_key(word, length).low, high = LONG_MARK | length;
    size_t mask = ((size_t)1 << counts->bits) - 1;
    for (size_t slot = word_slot_of(counts, low, high);; slot = (slot + 1) & mask) {
        BpeCount *entry = &counts->entries[slot];
        if (entry->low == low && entry->high == high && !memcmp(counts->bytes.data + entry->offset, word, length)) {
            entry->count += times;
            return;
        }
        if (entry->high) continue;
        size_t offset = counts->bytes.length;
        text_buffer_add(&counts->bytes, (const char *)word, length);
        word_add_new(counts, slot, (BpeCount){low, high, times, offset});
        return;
    }
}

static inline __attribute__((always_inline)) void count_words(BpeCounts *counts, SplitKind pattern, const uint8_t *at,
                                                              const uint8_t *end) {
    const uint8_t *limit = end;
    while (at < end) {
        const uint8_t *stop = split_next_inline(pattern, at, end);
        size_t length = (size_t)(stop - at);
        if (length <= BPE_SHORT_WORD)
            add_short(counts, bpe_short_key(at, length, limit), 1);
        else
            word_add_long(counts, at, length, 1);
        at = stop;
    }
}

Status bpe_counts_add_text(BpeCounts *counts, SplitKind pattern, bool nfc, const char *text, size_t length) {
    const uint8_t *begin = (const uint8_t *)text;
    if (length && utf8_first_malformed(begin, length) < length) {
        counts->repaired.length = 0;
        utf8_repair(&counts->repaired, begin, length);
        begin = (const uint8_t *)counts->repaired.data;
        length = counts->repaired.length;
    }
    if (nfc) {
        bool changed;
        counts->composed.length = 0;
        TRY(unicode_normalize(&counts->scratch, UNICODE_NFC, begin, length, &counts->composed, &changed));
        if (changed) {
            begin = (const uint8_t *)counts->composed.data;
            length = counts->composed.length;
        }
    }
    switch (pattern) {
    case SPLIT_GPT2: count_words(counts, SPLIT_GPT2, begin, begin + length); break;
    case SPLIT_LLAMA3: count_words(counts, SPLIT_LLAMA3, begin, begin + length); break;
    case SPLIT_QWEN: count_words(counts, SPLIT_QWEN, begin, begin + length); break;
    case SPLIT_QWEN_MARKS: count_words(counts, SPLIT_QWEN_MARKS, begin, begin + length); break;
    case SPLIT_O200K: count_words(counts, SPLIT_O200K, begin, begin + length); break;
    case SPLIT_TEKKEN: count_words(counts, SPLIT_TEKKEN, begin, begin + length); break;
    case SPLIT_KINDS: __builtin_unreachable();
    }
    return NULL;
}

void bpe_counts_add_all(BpeCounts *counts, const BpeCounts *more) {
    for (size_t i = 0; i < (size_t)1 << more->bits; i++) {
        const BpeCount *entry = &more->entries[i];
        if (!entry->high) continue;
        uint8_t space[16];
        size_t length;
        const uint8_t *word = bpe_count_word(more, entry, space, &length);
        if (length <= BPE_SHORT_WORD)
            add_short(counts, (BpeKey){entry->low, entry->high}, entry->count);
        else
            word_add_long(counts, word, length, entry->count);
    }
}
