// hearth data train-tokenizer: byte-level BPE from text files.
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/bpe_train.h"
#include "data/reader.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_BYTES ((size_t)8 << 20)

typedef struct Options {
    const char *pattern, *output;
    ArgList inputs, special;
    bool no_special;
    int64_t threads;
    ReaderOptions reader;
    BpeTrainOptions train;
} Options;

typedef struct Batch { // texts that the threads count together
    TextBuffer bytes;
    size_t *ends; // [count] end of each text
    size_t count, capacity;
} Batch;

typedef struct Counting {
    const BpeTrainOptions *train;
    Batch batch;
    BpeCounts *counts; // [threads]
    Status *failures;  // [threads]
} Counting;

static void text_batch_add(Batch *batch, const Document *document) {
    if (batch->count == batch->capacity) {
        batch->capacity = 2 * batch->capacity + 256;
        batch->ends = xrealloc(batch->ends, batch->capacity * sizeof *batch->ends);
    }
    text_buffer_add(&batch->bytes, document->text, document->length);
    batch->ends[batch->count++] = batch->bytes.length;
}

static void count_texts(void *context, int64_t begin, int64_t end, int worker) {
    Counting *counting = context;
    const Batch *batch = &counting->batch;
    for (int64_t i = begin; i < end && !counting->failures[worker]; i++) {
        size_t from = i ? batch->ends[i - 1] : 0;
        counting->failures[worker] =
            bpe_counts_add_text(&counting->counts[worker], counting->train->pattern, counting->train->nfc,
                                batch->bytes.data + from, batch->ends[i] - from);
    }
}

static Status count_batch(Counting *counting) {
    threads_for((int64_t)counting->batch.count, 4, count_texts, counting);
    counting->batch.count = counting->batch.bytes.length = 0;
    Status first = NULL;
    for (int i = 0; i < threads_count(); i++) {
        if (first)
            status_free(counting->failures[i]);
        else
            first = counting->failures[i];
        counting->failures[i] = NULL;
    }
    return first;
}

static Status count_documents(Counting *counting, Reader *reader, uint64_t *text_bytes) {
    Document document;
    bool more = true;
    while (more) {
        TRY(reader_next(reader, &document, &more));
        if (more) {
            text_batch_add(&counting->batch, &document);
            *text_bytes += document.length;
        }
        if (counting->batch.bytes.length >= BATCH_BYTES || !more) TRY(count_batch(counting));
    }
    return NULL;
}

static void show_progress(int64_t tokens, int64_t vocab_size, void *context) {
    (void)context;
    fprintf(stderr, "\r%lld of %lld tokens", (long long)tokens, (long long)vocab_size);
}

static Status write_result(const BpeTraining *training, const Options *options) {
    char *path = text_ends_with(options->output, ".json") ? text_copy(options->output)
                                                          : path_join(options->output, "tokenizer.json");
    char *directory = path_directory(path);
    char *made = path_first_missing(directory);
    Status status = dir_make(directory);
    if (!status) status = bpe_training_write(training, &options->train, path);
    if (!status) printf("%s: %zu tokens, %zu merges\n", path, training->token_count, training->merge_count);
    if (status && made) status_free(dir_remove(made));
    free(made);
    free(directory);
    free(path);
    return status;
}

static Status train_from_reader(Options *options, Reader *reader) {
    int threads = threads_count();
    Counting counting = {.train = &options->train};
    counting.counts = xcalloc((size_t)threads, sizeof *counting.counts);
    counting.failures = xcalloc((size_t)threads, sizeof *counting.failures);
    for (int i = 0; i < threads; i++)
        bpe_counts_init(&counting.counts[i]);
    uint64_t text_bytes = 0;
    double start = clock_seconds();
    Status status = count_documents(&counting, reader, &text_bytes);
    for (int i = 1; i < threads && !status; i++)
        bpe_counts_add_all(&counting.counts[0], &counting.counts[i]);
    if (!status && reader_counts(reader).documents == 0) status = status_usage("the input holds no documents");
    double counted = clock_seconds();
    if (!status) {
        BpeTraining training;
        if (isatty(STDERR_FILENO)) options->train.progress = show_progress;
        bpe_train(&training, &counting.counts[0], &options->train);
        if (options->train.progress) fprintf(stderr, "\r\033[K");
        printf("%.1f MB of text, %zu different words counted in %.2f s, merged in %.2f s\n", (double)text_bytes / 1e6,
               counting.counts[0].used, counted - start, clock_seconds() - counted);
        if ((int64_t)training.token_count < options->train.vocab_size)
            printf("the text has pairs for %zu tokens only\n", training.token_count);
        status = write_result(&training, options);
        bpe_training_free(&training);
    }
    for (int i = 0; i < threads; i++)
        bpe_counts_free(&counting.counts[i]);
    free(counting.counts);
    free(counting.failures);
    free(counting.batch.ends);
    text_buffer_free(&counting.batch.bytes);
    return status;
}

static Status choose_pattern(SplitKind *kind, const char *name) {
    static const char *const names[] = {"gpt2", "llama3", "qwen", "gpt4o"};
    static const SplitKind kinds[] = {SPLIT_GPT2, SPLIT_LLAMA3, SPLIT_QWEN, SPLIT_O200K};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind = kinds[i];
            return NULL;
        }
    }
    return status_hint(status_usage("there is no pattern \"%s\"", name), "choose gpt2, llama3, qwen or gpt4o");
}

static Status tokenizer_train(Options *options) {
    if (!options->inputs.count || !options->output)
        return status_hint(status_usage("data train-tokenizer needs --input and --output"),
                           "hearth data train-tokenizer --help");
    TRY(choose_pattern(&options->train.pattern, options->pattern));
    static const char *const special[] = {TOKENIZER_END_OF_TEXT}; // data prepare needs it to end documents
    if (options->no_special && options->special.count)
        return status_usage("--no-special does not go with --special \"%s\"", options->special.items[0]);
    options->train.special = options->special.count ? options->special.items : special;
    options->train.special_count = options->no_special      ? 0
                                   : options->special.count ? (size_t)options->special.count
                                                            : 1;
    TRY(bpe_train_check(&options->train));
    threads_set((int)options->threads);
    Reader *reader;
    TRY(reader_open(&reader, &options->reader, options->inputs.items, (size_t)options->inputs.count));
    Status status = train_from_reader(options, reader);
    reader_close(reader);
    return status;
}

Status data_train_tokenizer(int argc, char **argv) {
    Options options = {.pattern = "llama3", .train = {.vocab_size = 32000, .min_count = 1}};
    const Arg args[] = {
        {"--input", ARG_LIST, &options.inputs, "PATH",
         "text files, directories or globs (.txt, .jsonl, .parquet, .gz, .zst)"},
        {"--field", ARG_TEXT, &options.reader.field, "NAME", "field or column that holds the text (default: text)"},
        {"--skip-bad", ARG_FLAG, &options.reader.skip_bad, "", "count and skip bad records"},
        {"--vocab-size", ARG_INT, &options.train.vocab_size, "N",
         "tokens, special ones and bytes included (default: 32000)"},
        {"--pattern", ARG_TEXT, &options.pattern, "NAME",
         "how text is split: gpt2, llama3, qwen or gpt4o (default: llama3)"},
        {"--nfc", ARG_FLAG, &options.train.nfc, "", "normalise text to Unicode form C"},
        {"--special", ARG_LIST, &options.special, "TEXT",
         "a special token; repeat for more (default: " TOKENIZER_END_OF_TEXT ", which ends documents)"},
        {"--no-special", ARG_FLAG, &options.no_special, "", "no special tokens at all"},
        {"--min-count", ARG_INT, &options.train.min_count, "N",
         "do not merge pairs that occur less often (default: 1)"},
        {"--threads", ARG_INT, &options.threads, "N", "threads; the result does not depend on it (default: all cores)"},
        {"--output", ARG_TEXT, &options.output, "PATH", "a directory for tokenizer.json, or a .json file"},
    };
    const ArgCommand command = {
        .usage = "hearth data train-tokenizer --input PATH... --output PATH [options]",
        .summary = "Trains byte-level BPE and writes a tokenizer.json that HF tokenizers reads.",
        .args = args,
        .arg_count = ARG_COUNT(args),
        .words_max = -1,
    };
    ArgList words = {0};
    bool helped = false;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    for (int i = 0; i < words.count && !status; i++) { // --input a b c
        options.inputs.items =
            xrealloc(options.inputs.items, (size_t)(options.inputs.count + 1) * sizeof *options.inputs.items);
        options.inputs.items[options.inputs.count++] = words.items[i];
    }
    if (!status && !helped) status = tokenizer_train(&options);
    free(words.items);
    free(options.inputs.items);
    free(options.special.items);
    return status;
}
