// A dataset on disk: a directory with dataset.json and one folder of shards per split.
//
//   dataset.json          sources, options, counts, tokenizer, splits with their shards and checksums, hash of
//                         everything
//   tokenizer.json        the tokenizer, unless it is the built-in one
//   train/00000.shard     (also val/, test/)
//
// Beside the shards lies .verified: which of them, as they are now, were read through and found whole.
//
// An open Dataset is one split: its shards in order, seen as one long run of tokens.
#pragma once

#include "data/shard.h"

#include <jansson.h>

#define DATASET_FILE "dataset.json"

typedef enum DatasetVerify {
    VERIFY_NEVER,
    VERIFY_ALWAYS, // all checksums and all token ids
    VERIFY_ONCE,   // the same, of shards that were not found whole before, or have changed since
} DatasetVerify;

typedef struct Dataset {
    char *path;            // what was opened
    Shard *shards;         // [shard_count]
    uint64_t *first_token; // [shard_count + 1]: tokens before each shard; the last is token_count
    size_t shard_count;
    uint64_t token_count, document_count, text_bytes;
    uint64_t vocab_size, tokenizer_hash; // the same in all shards
} Dataset;

// path: a dataset directory (the shards of `split` by its dataset.json), a folder of *.shard files or a single shard
// (`split` is then ignored). A split without tokens opens with no shards.
Status dataset_open(Dataset *dataset, const char *path, const char *split, DatasetVerify verify);
void dataset_close(Dataset *dataset);

// Copies tokens [first, first + count) of the split, which must exist, across shard borders.
void dataset_read(const Dataset *dataset, uint64_t first, uint64_t count, uint32_t *ids);

// dataset.json of a directory, checked to be one whose recorded hash matches its content. The caller owns *root.
Status dataset_read_json(json_t **root, const char *directory);
// Adds "hash" over everything else in root and writes it as directory/dataset.json.
Status dataset_write_json(json_t *root, const char *directory);
