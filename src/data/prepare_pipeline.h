// The scatter's threads: one reads, filters and drops duplicates, several tokenize, and the caller takes the batches in
// reading order. Batches end where the text says, not where threads meet, so everything is the same for any thread
// count.
#pragma once

#include "data/prepare.h"
#include "data/prepare_unit.h"

typedef struct BatchDocument {
    DocumentHash hash;
    size_t text_offset, text_bytes;
    size_t first_token, token_count;
} BatchDocument;

typedef struct Batch {
    BatchDocument *documents;
    size_t count, capacity;
    char *text;
    size_t text_bytes, text_capacity;
    TokenIds tokens;
    ReaderPosition after; // where reading stood behind it
    PrepareCounts counts; // then; without documents, tokens, text_bytes, longest, which the caller adds up
    bool last;            // the input ends behind it
    int state;
} Batch;

typedef struct Pipeline Pipeline;
// reader and dedup (NULL: keep duplicates) belong to the pipeline's reading thread until pipeline_close. counts: what
// was counted before reader's position.
Status pipeline_open(Pipeline **pipeline, const PrepareOptions *options, const Tokenizer *tokenizer, Reader *reader,
                     DedupSet *dedup, int threads, const PrepareCounts *counts);
// The next batch in reading order, tokenized; valid until the next call.
Status pipeline_next(Pipeline *pipeline, const Batch **batch);
double pipeline_progress(Pipeline *pipeline); // share of the input read
void pipeline_close(Pipeline *pipeline);
