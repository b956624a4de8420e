// Samples: windows of seq + 1 tokens over one or more datasets, in an order that is a pure function of (seed, epoch,
// sample index). Sample n is the same on every rank and after every restart, so the position in the data is one number.
#pragma once

#include "data/mix.h"

typedef struct SamplesRequest {
    const char *const *paths; // dataset directories, mix files, shards, or globs of shards
    int path_count;
    const double *weights; // share of each path, or NULL: every window of every path once per epoch
    const char *split;     // "train", "val"
    int seq;
    bool mask_documents; // see samples_read
    DatasetVerify verify;
    uint64_t seed;
} SamplesRequest;

typedef struct Samples {
    Mix mix;
    uint64_t *first_window; // [datasets + 1]
    uint64_t windows;       // of all datasets
    bool weighted;
    int seq;
    bool mask_documents;
    uint64_t seed;
} Samples;

Status samples_open(Samples *samples, const SamplesRequest *request);
void samples_close(Samples *samples);

// Sample `index`: ids [seq], targets [seq] (the next token), doc_start [seq] (first position of the token's document
// within the window; may be NULL). With mask_documents, a target that belongs to the next document is -1. *valid: the
// number of targets that count. An id outside of the vocabulary is an error that names shard and place: what comes
// from here, no device has to check.
Status samples_read(const Samples *samples, uint64_t index, int32_t *ids, int32_t *targets, int32_t *doc_start,
                    int *valid);
// The sum of what samples_read would return for samples [first, first + count), from the document index alone.
int64_t samples_targets(const Samples *samples, uint64_t first, uint64_t count);

// Place of `index` in a permutation of [0, count) that is keyed by (seed, stream, epoch).
uint64_t samples_permute(uint64_t index, uint64_t count, uint64_t seed, uint64_t stream, uint64_t epoch);

static inline uint64_t samples_vocab(const Samples *samples) { // the same in all datasets
    return samples->mix.datasets[0].vocab_size;
}
