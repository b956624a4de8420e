#include "data/estimate.h"

#include "base/clock.h"
#include "base/stats.h"
#include "base/text.h"
#include "data/tokenizer.h"

#include <math.h>
#include <stdlib.h>

#define FILES_SAMPLED   8
#define BYTES_PER_TOKEN 4.4 // English web text with vocabularies of 32k to 150k; used without a tokenizer
#define EXTRA_SHARE     0.02

typedef struct Timed {
    double bytes, seconds; // of text; of tokenizing it
} Timed;

typedef struct Sample {
    TokenizerState *state; // NULL: guess
    TokenIds ids;
    double *lengths; // tokens of each document
    Timed *timed;    // up to the end of each document
    size_t count, capacity;
    double squares;
    double consumed; // bytes of the sampled files that the sample stands for
    bool whole;
    Estimate *estimate;
} Sample;

static Status document_count(Sample *sample, const Document *document) {
    double tokens = (double)document->length / BYTES_PER_TOKEN + 1;
    Timed timed = sample->count ? sample->timed[sample->count - 1] : (Timed){0};
    if (sample->state) {
        double start = clock_seconds();
        sample->ids.count = 0;
        TRY(tokenizer_encode(sample->state, document->text, document->length, 0, &sample->ids));
        timed.seconds += clock_seconds() - start;
        timed.bytes += (double)document->length;
        tokens = (double)sample->ids.count + 1; // end of text
    }
    if (sample->count == sample->capacity) {
        sample->capacity = sample->capacity ? sample->capacity * 2 : 1024;
        sample->lengths = xrealloc(sample->lengths, sample->capacity * sizeof *sample->lengths);
        sample->timed = xrealloc(sample->timed, sample->capacity * sizeof *sample->timed);
    }
    sample->timed[sample->count] = timed;
    sample->lengths[sample->count++] = tokens;
    sample->squares += tokens * tokens;
    sample->estimate->sample_tokens += (uint64_t)tokens;
    sample->estimate->sample_bytes += document->length;
    return NULL;
}

static Status file_sample(Sample *sample, const ReaderOptions *options, const char *path, size_t documents) {
    Reader *reader;
    TRY(reader_open(&reader, options, &path, 1));
    Status status = NULL;
    bool more = true;
    for (size_t i = 0; i < documents && !status; i++) {
        Document document;
        status = reader_next(reader, &document, &more);
        if (status || !more) break;
        status = document_count(sample, &document);
    }
    if (!status) {
        sample->consumed += more ? (double)reader_consumed_bytes(reader) : (double)reader_total_bytes(reader);
        sample->whole &= !more;
    }
    reader_close(reader);
    return status;
}

// Of the second half of what was found, when caches are warm; 0 when nothing was tokenized.
static double sample_speed(const Sample *sample) {
    size_t half = sample->count / 2;
    Timed all = sample->timed[sample->count - 1], before = half ? sample->timed[half - 1] : (Timed){0};
    double seconds = all.seconds - before.seconds;
    return seconds > 0 ? (all.bytes - before.bytes) / seconds : 0;
}

static void sample_conclude(Sample *sample, Estimate *estimate) {
    double count = (double)sample->count;
    estimate->sample_documents = sample->count;
    qsort(sample->lengths, sample->count, sizeof *sample->lengths, double_order);
    estimate->median_tokens = sample->lengths[(sample->count - 1) / 2];
    estimate->mean_tokens = (double)estimate->sample_tokens / count;
    double variance = sample->squares / count - estimate->mean_tokens * estimate->mean_tokens;
    estimate->deviation_tokens = variance > 0 ? sqrt(variance) : 0;
    double scale = sample->consumed > 0 ? (double)estimate->input_bytes / sample->consumed : 1;
    if (scale < 1) scale = 1;
    estimate->whole = sample->whole;
    estimate->bytes_per_second = sample_speed(sample);
    estimate->documents = count * scale;
    estimate->tokens = (double)estimate->sample_tokens * scale;
    estimate->text_bytes = (double)estimate->sample_bytes * scale;
}

static Status files_sample(Sample *sample, const ReaderOptions *options, const Reader *files, size_t documents) {
    Estimate *estimate = sample->estimate;
    size_t count = reader_file_count(files);
    estimate->files = count;
    estimate->input_bytes = reader_total_bytes(files);
    estimate->sampled_files = count < FILES_SAMPLED ? count : FILES_SAMPLED;
    sample->whole = count == estimate->sampled_files;
    for (size_t i = 0; i < estimate->sampled_files; i++) {
        size_t index = i * count / estimate->sampled_files; // spread evenly
        size_t share = (documents + estimate->sampled_files - 1) / estimate->sampled_files;
        TRY(file_sample(sample, options, reader_file(files, index), share));
    }
    if (sample->count == 0) return status_usage("the input holds no documents");
    sample_conclude(sample, estimate);
    return NULL;
}

Status estimate_run(Estimate *estimate, const ReaderOptions *options, const char *const *inputs, size_t count,
                    const char *tokenizer_path, size_t sample_documents) {
    *estimate = (Estimate){0};
    ReaderOptions sampled = *options;
    sampled.sampled = true;
    Sample sample = {.estimate = estimate};
    Tokenizer *tokenizer = NULL;
    Reader *files = NULL;
    Status status = tokenizer_path ? tokenizer_load(&tokenizer, tokenizer_path) : NULL;
    if (!status && tokenizer) {
        estimate->vocab_size = tokenizer_vocab_size(tokenizer);
        sample.state = tokenizer_state_new(tokenizer);
    }
    if (!status) status = reader_open(&files, options, inputs, count);
    if (!status) status = files_sample(&sample, &sampled, files, sample_documents);
    reader_close(files);
    if (sample.state) tokenizer_state_free(sample.state);
    tokenizer_free(tokenizer);
    free(sample.ids.ids);
    free(sample.lengths);
    free(sample.timed);
    return status;
}

double estimate_documents_for(const Estimate *estimate, double tokens) {
    double error = estimate->deviation_tokens / sqrt((double)estimate->sample_documents);
    double careful = estimate->mean_tokens - 2 * error;
    if (careful < estimate->mean_tokens / 2) careful = estimate->mean_tokens / 2;
    return ceil(tokens / careful * (1 + EXTRA_SHARE));
}
