// How often each pre-token occurs: what BPE training starts from. One table per thread; tables are added up afterwards,
// and nothing of the result depends on how the texts were shared out.
#pragma once

#include "base/status.h"
#include "base/text.h"
#include "data/split.h"
#include "data/unicode.h"

#include <stdint.h>

typedef struct BpeCount { // 32 bytes; short words as in BpeWord
    uint64_t low, high;   // long words: a hash, and 0xff << 56 | length; high == 0: empty
    uint64_t count;
    uint64_t offset; // of a long word's bytes in the table's store
} BpeCount;

typedef struct BpeCounts {
    BpeCount *entries; // open addressing
    unsigned bits;
    size_t used;
    TextBuffer bytes;              // of long words
    TextBuffer repaired, composed; // scratch
    UnicodeScratch scratch;
} BpeCounts;

void bpe_counts_init(BpeCounts *counts);
void bpe_counts_free(BpeCounts *counts);
// Counts the pre-tokens of a text, normalised to form C first when `nfc`.
Status bpe_counts_add_text(BpeCounts *counts, SplitKind pattern, bool nfc, const char *text, size_t length);
void bpe_counts_add_all(BpeCounts *counts, const BpeCounts *more);

// The bytes of an entry: `space` is 16 bytes of the caller's, used for short words.
const uint8_t *bpe_count_word(const BpeCounts *counts, const BpeCount *entry, uint8_t *space, size_t *length);
