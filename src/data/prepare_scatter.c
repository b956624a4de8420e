// The scatter: tokenized batches, in reading order, collected into units; and where a killed run goes on.
#include "base/file.h"
#include "base/log.h"
#include "data/prepare_internal.h"
#include "data/prepare_pipeline.h"
#include "data/prepare_progress.h"
#include "data/shard.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define UNIT_BYTES_MAX   ((int64_t)256 << 20)
#define UNITS_PER_GROWTH 128 // so that the number of units, all open in the merge, stays in the hundreds

Status prepare_find_units(Prepare *prepare) {
    for (;; prepare->unit_count++) {
        char *path = unit_path(prepare->work, prepare->unit_count);
        UnitHeader header;
        int fd = -1;
        bool exists = file_exists(path);
        Status status = exists ? unit_open(path, &header, &fd) : NULL;
        free(path);
        TRY(status);
        if (!exists) break;
        close(fd);
        prepare->position = header.after;
        prepare->counts = header.counts;
        prepare->complete = (UnitComplete)header.complete;
    }
    if (prepare->unit_count && !prepare->options->quiet) {
        log_info("resuming behind %llu documents", (unsigned long long)prepare->counts.documents);
    }
    return NULL;
}

// The hashes of documents in units that exist already.
static Status dedup_restore(const Prepare *prepare, DedupSet *dedup) {
    for (size_t i = 0; i < prepare->unit_count; i++) {
        char *path = unit_path(prepare->work, i);
        UnitHeader header;
        int fd;
        Status status = unit_open(path, &header, &fd);
        UnitRecord records[1024];
        for (uint64_t at = 0; !status && at < header.record_count;) {
            uint64_t left = header.record_count - at, now = left < 1024 ? left : 1024;
            status = bytes_read(fd, records, now * sizeof *records, sizeof header + at * sizeof *records, path);
            bool added;
            for (uint64_t k = 0; k < now && !status; k++)
                status = dedup_insert(dedup, records[k].hash, &added);
            at += now;
        }
        if (fd >= 0) close(fd);
        free(path);
        TRY(status);
    }
    return NULL;
}

// Enough is read when every split can be filled although the documents at the borders are cut.
static bool enough_read(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    if (options->train_tokens < 0) return false;
    int borders = (options->val_tokens > 0) + (options->test_tokens > 0) + (options->train_tokens > 0) - 1;
    uint64_t wanted = (uint64_t)(options->train_tokens + options->val_tokens + options->test_tokens);
    return prepare->counts.tokens >= wanted + (uint64_t)borders * prepare->counts.longest + prepare->counts.extra;
}

static void batch_take(Prepare *prepare, const Batch *batch, UnitBuffer *buffer) {
    PrepareCounts counts = batch->counts;
    counts.documents = prepare->counts.documents;
    counts.tokens = prepare->counts.tokens;
    counts.text_bytes = prepare->counts.text_bytes;
    counts.longest = prepare->counts.longest;
    counts.extra = prepare->counts.extra;
    for (size_t i = 0; i < batch->count; i++) {
        const BatchDocument *document = &batch->documents[i];
        unit_buffer_add(buffer, document->hash, (uint32_t)document->text_bytes,
                        batch->tokens.ids + document->first_token, document->token_count);
        counts.documents++;
        counts.tokens += document->token_count;
        counts.text_bytes += document->text_bytes;
        if (document->token_count > counts.longest) counts.longest = document->token_count;
    }
    prepare->counts = counts;
    prepare->position = batch->after;
}

static double scatter_share(const Prepare *prepare, Pipeline *pipeline) {
    double share = pipeline_progress(pipeline);
    const PrepareOptions *options = prepare->options;
    if (options->train_tokens >= 0) {
        double wanted = (double)(options->train_tokens + options->val_tokens + options->test_tokens + 1);
        double filled = (double)prepare->counts.tokens / wanted;
        if (filled > share) share = filled;
    }
    return share;
}

// Units are written behind the back of the tokenizing threads: one is on its way to the disk while the next fills.
typedef struct UnitWriter {
    UnitBuffer *filling, *writing;
    const char *directory;
    size_t index;
    ReaderPosition after;
    PrepareCounts counts;
    UnitComplete complete;
    pthread_t thread;
    bool busy;
    Status status;
} UnitWriter;

static void *unit_write_main(void *argument) {
    UnitWriter *writer = argument;
    writer->status = unit_buffer_write(writer->writing, writer->directory, writer->index, writer->after,
                                       &writer->counts, writer->complete);
    return NULL;
}

static Status unit_write_wait(UnitWriter *writer) {
    if (writer->busy) pthread_join(writer->thread, NULL);
    writer->busy = false;
    Status status = writer->status;
    writer->status = NULL;
    return status;
}

static Status unit_write_start(Prepare *prepare, UnitWriter *writer) {
    TRY(unit_write_wait(writer)); // units follow each other without gaps
    UnitBuffer *filled = writer->filling;
    writer->filling = writer->writing;
    writer->writing = filled;
    writer->directory = prepare->work;
    writer->index = prepare->unit_count++;
    writer->after = prepare->position;
    writer->counts = prepare->counts;
    writer->complete = prepare->complete;
    writer->busy = pthread_create(&writer->thread, NULL, unit_write_main, writer) == 0;
    if (!writer->busy) unit_write_main(writer);
    return NULL;
}

static Status batches_take(Prepare *prepare, Pipeline *pipeline, UnitWriter *writer) {
    Progress progress =
        progress_start("tokenize", prepare->options->quiet, 0, prepare->counts.read, prepare->counts.read_bytes);
    Status failure = NULL;
    while (!prepare->complete && !failure) {
        const Batch *batch;
        failure = pipeline_next(pipeline, &batch); // a bad record, say: what was done up to it is kept for the next try
        if (!failure) {
            batch_take(prepare, batch, writer->filling);
            prepare->complete = batch->last ? UNIT_END : enough_read(prepare) ? UNIT_ENOUGH : UNIT_MORE;
        }
        int64_t limit = prepare->options->unit_bytes * (int64_t)(1 + prepare->unit_count / UNITS_PER_GROWTH);
        if (limit > UNIT_BYTES_MAX) limit = UNIT_BYTES_MAX;
        size_t bytes = unit_buffer_bytes(writer->filling);
        if (prepare->complete || (int64_t)bytes >= limit || (failure && bytes > 0)) {
            Status status = unit_write_start(prepare, writer);
            if (failure)
                status_free(status);
            else
                failure = status;
        }
        progress_update(&progress, scatter_share(prepare, pipeline), prepare->counts.read, prepare->counts.read_bytes,
                        prepare->counts.tokens);
    }
    Status status = unit_write_wait(writer);
    if (failure) {
        status_free(status);
        return failure;
    }
    TRY(status);
    progress_end(&progress, prepare->counts.read, prepare->counts.read_bytes, prepare->counts.tokens);
    return NULL;
}

Status prepare_scatter(Prepare *prepare) {
    if (prepare->complete) return NULL;
    const PrepareOptions *options = prepare->options;
    int threads = prepare_threads(options->threads);
    DedupSet *dedup = options->dedup ? dedup_new(prepare->work, 0) : NULL;
    uint32_t token_bytes = shard_token_bytes((uint64_t)tokenizer_vocab_size(prepare->tokenizer));
    UnitWriter writer = {.filling = unit_buffer_new(token_bytes), .writing = unit_buffer_new(token_bytes)};
    Pipeline *pipeline = NULL;
    Status status = NULL;
    if (dedup) TRY_GOTO(dedup_restore(prepare, dedup), done);
    TRY_GOTO(reader_seek(prepare->reader, prepare->position), done);
    TRY_GOTO(pipeline_open(&pipeline, options, prepare->tokenizer, prepare->reader, dedup, threads, &prepare->counts),
             done);
    status = batches_take(prepare, pipeline, &writer);
done:
    pipeline_close(pipeline);
    unit_buffer_free(writer.filling);
    unit_buffer_free(writer.writing);
    dedup_free(dedup);
    return status;
}
