// Figures of a split: lengths of its documents, and how well they fill sequences.
#pragma once

#include "data/dataset.h"

#define INSPECT_BINS 33 // bin b > 0 holds lengths in [2^(b-1), 2^b); bin 0 the empty ones

typedef struct DatasetLengths {
    uint64_t documents, tokens;
    uint64_t bins[INSPECT_BINS];
    uint64_t shortest, longest, median; // median by full count
    double mean;
} DatasetLengths;

typedef struct DatasetPacking {
    uint64_t sequence;
    // End to end, as the loader packs: only the tail of the split is lost; documents are cut at borders.
    uint64_t packed_sequences;
    double packed_share;   // of all tokens that are used
    double whole_share;    // of documents that lie inside one sequence
    double documents_each; // documents that a sequence touches, on average
    // One document a sequence, padded: for comparison.
    double padded_share; // of positions that hold a token
    double cut_share;    // of tokens beyond the sequence length, lost
} DatasetPacking;

void dataset_lengths(const Dataset *dataset, DatasetLengths *lengths);
void dataset_packing(const Dataset *dataset, uint64_t sequence, DatasetPacking *packing);
// Document `index` of the split: its shard and token range.
void dataset_document(const Dataset *dataset, uint64_t index, uint64_t *first, uint64_t *count);
