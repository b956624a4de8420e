// What a corpus holds, from a sample: tokens per document, documents and tokens in all, speed of tokenizing.
#pragma once

#include "data/reader.h"

typedef struct Estimate {
    uint64_t sample_documents, sample_tokens, sample_bytes;
    double bytes_per_second; // of tokenizing on one thread, from the second half of the sample, when caches are warm
    double mean_tokens, median_tokens, deviation_tokens;
    double documents, tokens, text_bytes; // of the whole input, by its size on disk
    int64_t input_bytes;
    size_t files, sampled_files;
    int64_t vocab_size; // 0 without a tokenizer
    bool whole;         // the sample is the whole input
} Estimate;

// Reads about sample_documents from files spread over the inputs. tokenizer NULL: tokens are guessed from bytes of
// text.
Status estimate_run(Estimate *estimate, const ReaderOptions *options, const char *const *inputs, size_t count,
                    const char *tokenizer, size_t sample_documents);

// Documents needed for so many tokens: the sample's mean, less two standard errors of it, and 2 % for what filters
// drop.
double estimate_documents_for(const Estimate *estimate, double tokens);
