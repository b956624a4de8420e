// `hearth data prepare`: documents from any readable files to token shards.
//
// 1. Scatter: read, filter, drop duplicates, tokenize; kept documents go to units (prepare_unit.h), which are also the
//    journal. Documents are taken in reading order whatever the number of threads.
// 2. Gather: the units merged by document hash, which is a shuffle of all documents that depends on their texts and
//    the seed only. The first tokens of that order are val, the next test, the rest train; so a document's split
//    follows from its hash. A split with a target gets exactly that many tokens: its last document is cut, and ends
//    with end-of-text; the rest of it is a document of train. What is in no split is counted: copies of that document,
//    which would bring its beginning into train too, and what exceeds the target of train.
//
// Both work below output/work. Last, the shards move up into the place of a former dataset, and dataset.json is
// written: until then that one can be used. A killed run resumes with the last whole unit, or with the merge; the
// result is the same to the byte.
#pragma once

#include "base/status.h"
#include "data/reader.h"
#include "data/tokenizer.h"

typedef struct PrepareOptions {
    const char *const *inputs;
    size_t input_count;
    const char *output;    // directory of the dataset
    const char *tokenizer; // as tokenizer_load takes it
    ReaderOptions reader;
    bool has_min_score;
    double min_score;             // of reader.score; documents without one are left out
    int64_t min_chars, max_chars; // 0: no limit
    bool dedup;                   // drop exact duplicates
    bool match_special;           // special tokens written in the text become their ids
    int64_t end_of_text;          // -1: the tokenizer's
    int64_t train_tokens;         // -1: all that is left
    int64_t val_tokens, test_tokens;
    int64_t shard_tokens;
    int64_t unit_bytes; // how much work a kill can cost; memory for as much is needed
    int threads;        // 0: by cores and free memory
    uint64_t seed;
    bool overwrite; // replace the dataset that the output directory holds, when the new one is whole
    bool quiet;     // no progress
} PrepareOptions;

PrepareOptions prepare_defaults(void);
Status prepare_run(const PrepareOptions *options);
int64_t prepare_end_of_text(const PrepareOptions *options, const Tokenizer *tokenizer); // -1: neither names one
int prepare_threads(int asked); // what `threads` becomes on this machine
