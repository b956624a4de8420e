// Training of byte-level BPE: from counted pre-tokens to a vocabulary and its merges, and to a tokenizer.json.
#pragma once

#include "base/status.h"
#include "data/bpe_count.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct BpeTrainOptions {
    int64_t vocab_size; // special tokens and the 256 bytes included
    int64_t min_count;  // pairs that occur less often are not merged; 0 counts as 1
    SplitKind pattern;
    bool nfc; // the tokenizer normalises to form C
    const char *const *special;
    size_t special_count;
    void (*progress)(int64_t tokens, int64_t vocab_size, void *context); // now and then; may be NULL
    void *progress_context;
} BpeTrainOptions;

typedef struct BpeToken { // spelled by its parts
    uint32_t left, right; // ids; left == right == UINT32_MAX: a byte or a special token
} BpeToken;

// Ids are given as HF tokenizers gives them: special tokens, the bytes in the order of their characters, then merges by
// rank.
typedef struct BpeTraining {
    BpeToken *tokens; // [token_count]
    size_t token_count;
    uint32_t (*merges)[2]; // [merge_count] left and right id
    size_t merge_count;
    uint32_t first_byte; // id of the first byte: the number of special tokens
} BpeTraining;

Status bpe_train_check(const BpeTrainOptions *options); // whether it can be done at all
// Merges the pair with the highest count again and again; of equal counts the one with the lowest ids, so that the
// result is a function of the counts alone.
void bpe_train(BpeTraining *training, const BpeCounts *counts, const BpeTrainOptions *options);
void bpe_training_free(BpeTraining *training);

// Writes a tokenizer.json that HF tokenizers reads.
Status bpe_training_write(const BpeTraining *training, const BpeTrainOptions *options, const char *path);
