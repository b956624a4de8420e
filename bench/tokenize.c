// Speed of encoding: each tokenizer of the shared folder on web text and on many languages, one thread and two, beside
// HF tokenizers in the same run where python3 has it.
//
//   tokenize [SHARED_FOLDER]      default: $HEARTH_SHARED or ../shared
//
// "first" encodes with an empty cache, as at the start of a corpus; "1 thread" is the best of five passes with that
// cache filled, as in the middle of one.
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/reader.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define PASSES 5

typedef struct Texts {
    char *bytes;
    size_t *offsets; // [count + 1]
    size_t count;
} Texts;

static Status texts_read(Texts *texts, const char *path) {
    Reader *reader;
    Document document;
    bool more;
    TextBuffer buffer = {0};
    size_t capacity = 0;
    TRY(reader_open(&reader, &(ReaderOptions){0}, &path, 1));
    for (;;) {
        Status status = reader_next(reader, &document, &more);
        if (status) {
            reader_close(reader);
            text_buffer_free(&buffer);
            return status;
        }
        if (texts->count + 2 > capacity) {
            capacity = 2 * capacity + 64;
            texts->offsets = xrealloc(texts->offsets, capacity * sizeof *texts->offsets);
        }
        texts->offsets[texts->count] = buffer.length;
        if (!more) break;
        text_buffer_add(&buffer, document.text, document.length);
        texts->count++;
    }
    texts->bytes = buffer.data;
    reader_close(reader);
    return NULL;
}

static void texts_free(Texts *texts) {
    free(texts->bytes);
    free(texts->offsets);
}

typedef struct Worker { // of one thread; apart from its neighbour, or both would write the same cache line for every
                        // token
    _Alignas(128) TokenizerState *state;
    TokenIds ids;
    size_t tokens;
} Worker;

typedef struct Run {
    const Texts *texts;
    Worker workers[2];
} Run;

static void encode_texts(void *context, int64_t begin, int64_t end, int number) {
    Run *run = context;
    Worker *worker = &run->workers[number];
    for (int64_t i = begin; i < end; i++) {
        size_t from = run->texts->offsets[i], length = run->texts->offsets[i + 1] - from;
        worker->ids.count = 0;
        status_free(tokenizer_encode(worker->state, run->texts->bytes + from, length, 0, &worker->ids));
        worker->tokens += worker->ids.count;
    }
}

static double pass_seconds(Run *run, int threads) {
    run->workers[0].tokens = run->workers[1].tokens = 0;
    threads_set(threads);
    double start = clock_seconds();
    threads_for((int64_t)run->texts->count, threads == 1 ? (int64_t)run->texts->count : 16, encode_texts, run);
    return clock_seconds() - start;
}

static double best_seconds(Run *run, int threads) {
    double best = 1e30;
    for (int i = 0; i < PASSES; i++) {
        double seconds = pass_seconds(run, threads);
        if (seconds < best) best = seconds;
    }
    return best;
}

// MB/s of HF tokenizers on the first 4 MB, one thread; 0 when python3 does not have it.
static double hf_speed(const char *tokenizer, const Texts *texts) {
    static const char script[] =
        "import os, sys, time\n"
        "os.environ[\"TOKENIZERS_PARALLELISM\"] = \"false\"\n"
        "from tokenizers import Tokenizer\n"
        "tokenizer = Tokenizer.from_file(sys.argv[1])\n"
        "texts = open(sys.argv[2], \"rb\").read().decode(\"utf-8\", \"replace\").split(chr(0))\n"
        "start = time.time()\n"
        "tokenizer.encode_batch(texts, add_special_tokens=False)\n"
        "print(os.path.getsize(sys.argv[2]) / 1e6 / (time.time() - start))\n";
    char path[] = "/tmp/hearth-tokenize-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return 0;
    FILE *file = fdopen(fd, "wb");
    for (size_t i = 0; i < texts->count && texts->offsets[i] < 4000000; i++) {
        fwrite(texts->bytes + texts->offsets[i], 1, texts->offsets[i + 1] - texts->offsets[i], file);
        fputc(0, file);
    }
    fclose(file);
    char *command = text_format("python3 -c '%s' '%s' '%s' 2>/dev/null", script, tokenizer, path);
    FILE *pipe = popen(command, "r");
    double speed = 0;
    if (!pipe || fscanf(pipe, "%lf", &speed) != 1) speed = 0;
    if (pipe) pclose(pipe);
    free(command);
    remove(path);
    return speed;
}

static Status measure(const char *tokenizer_path, const char *name, const Texts *texts, const char *text_name) {
    Tokenizer *tokenizer;
    double start = clock_seconds();
    TRY(tokenizer_load(&tokenizer, tokenizer_path));
    double load = clock_seconds() - start;
    Run run = {.texts = texts};
    for (int i = 0; i < 2; i++)
        run.workers[i].state = tokenizer_state_new(tokenizer);
    double megabytes = (double)texts->offsets[texts->count] / 1e6;
    double first = megabytes / pass_seconds(&run, 1);
    double one = megabytes / best_seconds(&run, 1);
    size_t tokens = run.workers[0].tokens;
    double two = texts->count > 1 ? megabytes / best_seconds(&run, 2) : 0;
    double hf = hf_speed(tokenizer_path, texts);
    printf("%-12s %-14s %8.2f %10zu %9.1f %9.1f", name, text_name, load, tokens, first, one);
    if (two > 0)
        printf(" %9.1f %6.2f", two, two / one);
    else
        printf(" %9s %6s", "-", "-"); // one text cannot be shared out
    if (hf > 0) printf(" %8.2f %7.0f", hf, one / hf);
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        tokenizer_state_free(run.workers[i].state);
        free(run.workers[i].ids.ids);
    }
    tokenizer_free(tokenizer);
    return NULL;
}

static Status measure_all(const char *shared) {
    static const char *const corpora[][2] = {{"corpora/fineweb-legal.jsonl.zst", "fineweb-legal"},
                                             {"corpora/multilingual/udhr-a.txt", "udhr-a"},
                                             {"corpora/code/c-headers.txt", "c-headers"}};
    char **names, *directory = path_join(shared, "tokenizers");
    size_t count;
    Status status = dir_list(&names, &count, directory);
    if (status) {
        free(directory);
        return status_hint(status, "give the folder of shared test data as the argument");
    }
    printf("%-12s %-14s %8s %10s %9s %9s %9s %6s %8s %7s\n", "tokenizer", "text", "load s", "tokens", "first",
           "1 thread", "2 threads", "ratio", "HF", "times");
    for (size_t c = 0; c < sizeof corpora / sizeof corpora[0] && !status; c++) {
        char *path = path_join(shared, corpora[c][0]);
        Texts texts = {0};
        status = texts_read(&texts, path);
        for (size_t i = 0; i < count && !status; i++) {
            if (!text_ends_with(names[i], ".json")) continue;
            char *file = path_join(directory, names[i]);
            status = measure(file, names[i], &texts, corpora[c][1]);
            free(file);
        }
        texts_free(&texts);
        free(path);
    }
    printf("speeds in MB/s of text\n");
    names_free(names, count);
    free(directory);
    return status;
}

int main(int argc, char **argv) {
    const char *shared = argc > 1 ? argv[1] : getenv("HEARTH_SHARED");
    Status status = measure_all(shared ? shared : "../shared");
    if (!status) return 0;
    status_print(status, stderr);
    status_free(status);
    return 1;
}
