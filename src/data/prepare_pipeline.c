#include "data/prepare_pipeline.h"

#include "base/text.h"
#include "base/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES     ((size_t)1 << 20)
#define BATCH_DOCUMENTS 4096
#define FLIGHT_BYTES    ((size_t)96 << 20) // text of all batches under way
#define KEEP_BYTES      ((size_t)8 << 20)  // larger buffers go back to the system after use

enum { BATCH_FREE, BATCH_READ, BATCH_WORKING, BATCH_DONE };

struct Pipeline {
    const PrepareOptions *options;
    const Tokenizer *tokenizer;
    uint32_t end_of_text;
    Reader *reader;
    DedupSet *dedup;
    PrepareCounts base, counts; // counted before; counted by the reading thread
    Batch *ring;                // [ring_count]; batch number n lives in ring[n % ring_count]
    uint64_t ring_count;
    uint64_t read, taken, done; // batches published by the reader, taken by tokenizing threads, handed to the caller
    size_t flight_bytes;
    bool finished, stopping; // the reader published its last batch; everybody should end
    double progress;
    Status failure; // the first, of any thread
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t reading, *tokenizing;
    int tokenizing_count;
    bool reading_started;
};

// A failure to read comes after the batches before it, which are sound; a failure to tokenize ends everything.
static void pipeline_fail(Pipeline *pipeline, Status status, bool stop) {
    pthread_mutex_lock(&pipeline->lock);
    if (pipeline->failure) {
        status_free(status);
    } else {
        pipeline->failure = status;
    }
    pipeline->finished = true;
    pipeline->stopping |= stop;
    pthread_cond_broadcast(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
}

// --- reading --------------------------------------------------------------------------------------------------------

static void batch_add(Batch *batch, const Document *document, DocumentHash hash) {
    if (batch->count == batch->capacity) {
        batch->capacity = batch->capacity ? batch->capacity * 2 : 256;
        batch->documents = xrealloc(batch->documents, batch->capacity * sizeof *batch->documents);
    }
    if (batch->text_capacity < batch->text_bytes + document->length) {
        batch->text_capacity = batch->text_bytes + document->length + BATCH_BYTES / 4;
        batch->text = xrealloc(batch->text, batch->text_capacity);
    }
    memcpy(batch->text + batch->text_bytes, document->text, document->length);
    batch->documents[batch->count++] = (BatchDocument){hash, batch->text_bytes, document->length, 0, 0};
    batch->text_bytes += document->length;
}

static bool document_passes(Pipeline *pipeline, const Document *document) {
    const PrepareOptions *options = pipeline->options;
    PrepareCounts *counts = &pipeline->counts;
    counts->read++;
    counts->read_bytes += document->length;
    if (document->length == 0) {
        counts->empty++;
        return false;
    }
    if (options->has_min_score && (!document->has_score || !(document->score >= options->min_score))) {
        counts->low_score++;
        return false;
    }
    if (options->min_chars > 0 || options->max_chars > 0) {
        int64_t chars = (int64_t)utf8_count(document->text, document->length);
        if (chars < options->min_chars || (options->max_chars > 0 && chars > options->max_chars)) {
            counts->length++;
            return false;
        }
    }
    return true;
}

static Status batch_fill(Pipeline *pipeline, Batch *batch) {
    batch->count = batch->text_bytes = 0;
    batch->last = false;
    while (batch->text_bytes < BATCH_BYTES && batch->count < BATCH_DOCUMENTS) {
        Document document;
        bool more, added = true;
        TRY(reader_next(pipeline->reader, &document, &more));
        if (!more) {
            batch->last = true;
            break;
        }
        if (!document_passes(pipeline, &document)) continue;
        DocumentHash hash = document_hash(document.text, document.length, pipeline->options->seed);
        if (pipeline->dedup) TRY(dedup_insert(pipeline->dedup, hash, &added));
        if (added) {
            batch_add(batch, &document, hash);
        } else {
            pipeline->counts.duplicates++;
        }
    }
    ReaderCounts seen = reader_counts(pipeline->reader);
    batch->counts = pipeline->counts;
    batch->counts.nulls = pipeline->base.nulls + seen.nulls;
    batch->counts.bad = pipeline->base.bad + seen.bad;
    batch->counts.damaged = pipeline->base.damaged + seen.damaged;
    batch->after = reader_position(pipeline->reader);
    return NULL;
}

static void *reading_main(void *argument) {
    Pipeline *pipeline = argument;
    bool going = true;
    while (going) {
        pthread_mutex_lock(&pipeline->lock);
        Batch *batch = &pipeline->ring[pipeline->read % pipeline->ring_count];
        while (!pipeline->stopping && batch->state != BATCH_FREE)
            pthread_cond_wait(&pipeline->changed, &pipeline->lock);
        bool stopping = pipeline->stopping;
        pthread_mutex_unlock(&pipeline->lock);
        if (stopping) break;
        Status status = batch_fill(pipeline, batch);
        if (status) {
            pipeline_fail(pipeline, status, false);
            break;
        }
        int64_t total = reader_total_bytes(pipeline->reader);
        double progress = total ? (double)reader_consumed_bytes(pipeline->reader) / (double)total : 1;
        pthread_mutex_lock(&pipeline->lock);
        while (!pipeline->stopping && pipeline->flight_bytes > 0 &&
               pipeline->flight_bytes + batch->text_bytes > FLIGHT_BYTES)
            pthread_cond_wait(&pipeline->changed, &pipeline->lock);
        pipeline->flight_bytes += batch->text_bytes;
        pipeline->progress = progress;
        batch->state = BATCH_READ;
        pipeline->read++;
        pipeline->finished = batch->last;
        going = !batch->last;
        pthread_cond_broadcast(&pipeline->changed);
        pthread_mutex_unlock(&pipeline->lock);
    }
    return NULL;
}

// --- tokenizing -----------------------------------------------------------------------------------------------------

static Status batch_tokenize(Pipeline *pipeline, TokenizerState *state, Batch *batch) {
    unsigned flags = pipeline->options->match_special ? TOKENIZER_MATCH_SPECIAL : 0;
    batch->tokens.count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        BatchDocument *document = &batch->documents[i];
        document->first_token = batch->tokens.count;
        TRY(tokenizer_encode(state, batch->text + document->text_offset, document->text_bytes, flags, &batch->tokens));
        token_ids_add(&batch->tokens, &pipeline->end_of_text, 1);
        document->token_count = batch->tokens.count - document->first_token;
    }
    return NULL;
}

static void *tokenizing_main(void *argument) {
    Pipeline *pipeline = argument;
    TokenizerState *state = tokenizer_state_new(pipeline->tokenizer);
    for (;;) {
        pthread_mutex_lock(&pipeline->lock);
        while (!pipeline->stopping && pipeline->taken == pipeline->read && !pipeline->finished)
            pthread_cond_wait(&pipeline->changed, &pipeline->lock);
        bool ended = pipeline->stopping || pipeline->taken == pipeline->read;
        Batch *batch = &pipeline->ring[pipeline->taken % pipeline->ring_count];
        if (!ended) {
            pipeline->taken++;
            batch->state = BATCH_WORKING;
        }
        pthread_mutex_unlock(&pipeline->lock);
        if (ended) break;
        Status status = batch_tokenize(pipeline, state, batch);
        if (status) {
            pipeline_fail(pipeline, status, true);
            break;
        }
        pthread_mutex_lock(&pipeline->lock);
        batch->state = BATCH_DONE;
        pthread_cond_broadcast(&pipeline->changed);
        pthread_mutex_unlock(&pipeline->lock);
    }
    tokenizer_state_free(state);
    return NULL;
}

// --- the caller's side ----------------------------------------------------------------------------------------------

static Status threads_start(Pipeline *pipeline, int threads) {
    if (pthread_create(&pipeline->reading, NULL, reading_main, pipeline) != 0) {
        return status_runtime("cannot start the reading thread");
    }
    pipeline->reading_started = true;
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&pipeline->tokenizing[i], NULL, tokenizing_main, pipeline) != 0) {
            return status_runtime("cannot start tokenizing thread %d", i);
        }
        pipeline->tokenizing_count++;
    }
    return NULL;
}

Status pipeline_open(Pipeline **out, const PrepareOptions *options, const Tokenizer *tokenizer, Reader *reader,
                     DedupSet *dedup, int threads, const PrepareCounts *counts) {
    Pipeline *pipeline = xcalloc(1, sizeof *pipeline);
    pipeline->options = options;
    pipeline->tokenizer = tokenizer;
    pipeline->end_of_text = (uint32_t)prepare_end_of_text(options, tokenizer);
    pipeline->reader = reader;
    pipeline->dedup = dedup;
    pipeline->base = pipeline->counts = *counts;
    pipeline->ring_count = (uint64_t)threads * 2 + 4;
    pipeline->ring = xcalloc(pipeline->ring_count, sizeof *pipeline->ring);
    pipeline->tokenizing = xcalloc((size_t)threads, sizeof *pipeline->tokenizing);
    pthread_mutex_init(&pipeline->lock, NULL);
    pthread_cond_init(&pipeline->changed, NULL);
    *out = pipeline;
    Status status = threads_start(pipeline, threads);
    if (status) {
        pipeline_close(pipeline);
        *out = NULL;
    }
    return status;
}

// Gives the batch of the last call back.
static void batch_release(Pipeline *pipeline, Batch *batch) {
    if (batch->text_capacity > KEEP_BYTES) {
        free(batch->text);
        batch->text = NULL;
        batch->text_capacity = 0;
    }
    if (batch->tokens.capacity * sizeof *batch->tokens.ids > KEEP_BYTES) {
        free(batch->tokens.ids);
        batch->tokens = (TokenIds){0};
    }
    pipeline->flight_bytes -= batch->text_bytes;
    batch->state = BATCH_FREE;
    pthread_cond_broadcast(&pipeline->changed);
}

Status pipeline_next(Pipeline *pipeline, const Batch **out) {
    Status status = NULL;
    pthread_mutex_lock(&pipeline->lock);
    if (pipeline->done > 0) batch_release(pipeline, &pipeline->ring[(pipeline->done - 1) % pipeline->ring_count]);
    Batch *batch = &pipeline->ring[pipeline->done % pipeline->ring_count];
    while (batch->state != BATCH_DONE && !pipeline->stopping &&
           !(pipeline->failure && pipeline->done == pipeline->read))
        pthread_cond_wait(&pipeline->changed, &pipeline->lock);
    if (batch->state == BATCH_DONE) {
        pipeline->done++;
        *out = batch;
    } else {
        status = pipeline->failure;
        pipeline->failure = NULL;
    }
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

double pipeline_progress(Pipeline *pipeline) {
    pthread_mutex_lock(&pipeline->lock);
    double progress = pipeline->progress;
    pthread_mutex_unlock(&pipeline->lock);
    return progress;
}

void pipeline_close(Pipeline *pipeline) {
    if (!pipeline) return;
    pthread_mutex_lock(&pipeline->lock);
    pipeline->stopping = true;
    pthread_cond_broadcast(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
    if (pipeline->reading_started) pthread_join(pipeline->reading, NULL);
    for (int i = 0; i < pipeline->tokenizing_count; i++)
        pthread_join(pipeline->tokenizing[i], NULL);
    for (uint64_t i = 0; i < pipeline->ring_count; i++) {
        free(pipeline->ring[i].documents);
        free(pipeline->ring[i].text);
        free(pipeline->ring[i].tokens.ids);
    }
    status_free(pipeline->failure);
    pthread_mutex_destroy(&pipeline->lock);
    pthread_cond_destroy(&pipeline->changed);
    free(pipeline->ring);
    free(pipeline->tokenizing);
    free(pipeline);
}
