// Simple English stories made by a grammar: enough structure (names, pronouns that agree, an object that is carried
// through, a plot with an order) that a small model visibly learns it, in any amount, without a download. Story n of a
// seed is a pure function of (seed, n).
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

void synth_story(TextBuffer *out, uint64_t seed, uint64_t index); // appends one story, without an end mark

typedef struct SynthRequest {
    const char *directory; // gets tokenizer.json (unless bytes or given) and train.shard, val.shard
    const char *tokenizer; // path, "bytes", or NULL: learn one of `vocab` entries
    int64_t vocab;
    uint64_t seed;
    uint64_t stories, val_stories;
    bool overwrite; // replace the dataset that the directory holds; else it must be empty
} SynthRequest;

typedef struct SynthResult {
    uint64_t train_tokens, val_tokens, text_bytes; // text of both
    int64_t vocab;
    double unigram_entropy; // nats per token of the training tokens: what a model scores that knows only frequencies
} SynthResult;

// Writes the shards, in parallel chunks that are joined in order: the bytes do not depend on the number of threads.
Status synth_write(const SynthRequest *request, SynthResult *result);
