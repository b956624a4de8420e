#include "data/prepare.h"

#include "base/file.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/dataset.h"
#include "data/prepare_gather.h"
#include "data/prepare_output.h"
#include "data/prepare_pipeline.h"
#include "data/prepare_progress.h"
#include "data/prepare_unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#define UNIT_BYTES       ((int64_t)64 << 20)
#define UNIT_BYTES_MAX   ((int64_t)256 << 20)
#define UNITS_PER_GROWTH 128 // so that the number of units, all open in the merge, stays in the hundreds
#define BYTES_FIXED      ((int64_t)512 << 20) // dedup table, unit, buffers
#define BYTES_PER_THREAD ((int64_t)64 << 20)  // tokenizer cache, batches

PrepareOptions prepare_defaults(void) {
    return (PrepareOptions){
        .end_of_text = -1, .train_tokens = -1, .shard_tokens = 100 * 1000 * 1000, .unit_bytes = UNIT_BYTES};
}

static int64_t memory_available(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return INT64_MAX;
    char line[256];
    long long kib = -1;
    while (kib < 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1) kib = -1;
    }
    fclose(file);
    return kib < 0 ? INT64_MAX : kib * 1024;
}

int prepare_threads(int asked) {
    if (asked > 0) return asked;
    int64_t by_memory = (memory_available() - BYTES_FIXED) / BYTES_PER_THREAD;
    int64_t count = threads_cores() < by_memory ? threads_cores() : by_memory;
    return count < 1 ? 1 : (int)count;
}

// --- the plan: what decides the result ------------------------------------------------------------------------------

typedef struct Prepare {
    const PrepareOptions *options;
    Tokenizer *tokenizer;
    Reader *reader;
    char *work;        // output/work
    json_t *plan;      // sources, options, tokenizer
    json_t *work_plan; // the plan and when the sources were changed last
    int lock;
    size_t unit_count; // done
    ReaderPosition position;
    PrepareCounts counts;
    UnitComplete complete;
} Prepare;

static json_t *number_or_null(int64_t value, bool present) {
    return present ? json_integer(value) : json_null();
}

static json_t *options_json(const PrepareOptions *options) {
    json_t *json = json_object();
    json_object_set_new(json, "field", json_string(options->reader.field ? options->reader.field : "text"));
    json_object_set_new(json, "lines", json_boolean(options->reader.lines));
    json_object_set_new(json, "score", options->has_min_score ? json_string(options->reader.score) : json_null());
    json_object_set_new(json, "min_score", options->has_min_score ? json_real(options->min_score) : json_null());
    json_object_set_new(json, "min_chars", number_or_null(options->min_chars, options->min_chars > 0));
    json_object_set_new(json, "max_chars", number_or_null(options->max_chars, options->max_chars > 0));
    json_object_set_new(json, "dedup", json_boolean(options->dedup));
    json_object_set_new(json, "match_special", json_boolean(options->match_special));
    json_object_set_new(json, "train_tokens", number_or_null(options->train_tokens, options->train_tokens >= 0));
    json_object_set_new(json, "val_tokens", json_integer(options->val_tokens));
    json_object_set_new(json, "test_tokens", json_integer(options->test_tokens));
    json_object_set_new(json, "shard_tokens", json_integer(options->shard_tokens));
    json_object_set_new(json, "seed", json_integer((json_int_t)options->seed));
    return json;
}

static json_t *tokenizer_json(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    const Tokenizer *tokenizer = prepare->tokenizer;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(tokenizer));
    int64_t end = options->end_of_text >= 0 ? options->end_of_text : tokenizer_end_of_text(tokenizer);
    return json_pack("{s:s, s:s, s:I, s:I}", "name", tokenizer_name(tokenizer), "hash", hash, "vocab_size",
                     (json_int_t)tokenizer_vocab_size(tokenizer), "end_of_text", (json_int_t)end);
}

static void plan_make(Prepare *prepare) {
    json_t *sources = json_array(), *changed = json_array();
    for (size_t i = 0; i < reader_file_count(prepare->reader); i++) {
        struct stat info = {0};
        stat(reader_file(prepare->reader, i), &info);
        json_array_append_new(sources, json_pack("{s:s, s:I}", "path", reader_file(prepare->reader, i), "bytes",
                                                 (json_int_t)reader_file_bytes(prepare->reader, i)));
        json_array_append_new(changed,
                              json_integer((json_int_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec));
    }
    prepare->plan = json_object();
    json_object_set_new(prepare->plan, "sources", sources);
    json_object_set_new(prepare->plan, "options", options_json(prepare->options));
    json_object_set_new(prepare->plan, "tokenizer", tokenizer_json(prepare));
    prepare->work_plan = json_copy(prepare->plan);
    json_object_set_new(prepare->work_plan, "changed", changed);
}

static void plan_hash(const Prepare *prepare, char out[24]) {
    char *text = json_dumps(prepare->plan, JSON_COMPACT);
    snprintf(out, 24, "%016llx", (unsigned long long)XXH64(text, strlen(text), 0));
    free(text);
}

// --- finding out what is done already -------------------------------------------------------------------------------

// *done: the output holds the finished dataset of this very plan, and it is not to be replaced.
static Status finished_check(const Prepare *prepare, bool *done) {
    *done = false;
    if (prepare->options->overwrite || output_is_replaced(prepare->options->output)) return NULL;
    char *path = path_join(prepare->options->output, DATASET_FILE), hash[24];
    bool exists = file_exists(path);
    free(path);
    if (!exists) return NULL;
    json_t *root;
    const char *made = "";
    TRY(dataset_read_json(&root, prepare->options->output));
    Status status = json_get_text(root, "plan_hash", &made, DATASET_FILE);
    plan_hash(prepare, hash);
    *done = !status && strcmp(made, hash) == 0;
    json_decref(root);
    if (!status && !*done) {
        status = status_hint(status_usage("%s already holds a dataset made otherwise", prepare->options->output),
                             "choose another --output, or pass --overwrite");
    }
    return status;
}

static Status plan_compare(Prepare *prepare) {
    const char *output = prepare->options->output;
    char *path = path_join(prepare->work, "plan.json");
    Status status = NULL;
    char *unit = unit_path(prepare->work, 0);
    bool begun =
        file_exists(path) && (file_exists(unit) || output_is_replaced(output)); // the mark is for its plan only
    free(unit);
    if (!begun) { // units without a plan: of a killed --overwrite; a plan without units: nothing that could go on
        status = output_clear_work(output);
        if (!status) status = json_write_file(prepare->work_plan, path);
        if (!status && prepare->options->overwrite) status = output_mark_replaced(output);
    } else {
        json_t *before = NULL;
        status = json_read_file(&before, path);
        if (!status && !json_equal(before, prepare->work_plan)) {
            status =
                status_hint(status_usage("%s holds unfinished work with other options or changed input files", output),
                            "give the same options to resume it, or --overwrite to start again");
        }
        json_decref(before);
    }
    free(path);
    return status;
}

static Status units_find(Prepare *prepare) {
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

// --- scatter --------------------------------------------------------------------------------------------------------

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

static Status scatter_run(Prepare *prepare) {
    if (prepare->complete) return NULL;
    const PrepareOptions *options = prepare->options;
    int threads = prepare_threads(options->threads);
    DedupSet *dedup = options->dedup ? dedup_new(prepare->work, 0) : NULL;
    uint32_t token_bytes = tokenizer_vocab_size(prepare->tokenizer) <= 65536 ? 2 : 4;
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

// --- all of it ------------------------------------------------------------------------------------------------------

static Status options_check(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    if (options->val_tokens < 0 || options->test_tokens < 0 || options->train_tokens < -1) {
        return status_usage("token counts cannot be negative");
    }
    if (options->shard_tokens < 1 || options->unit_bytes < 1)
        return status_usage("shard and unit sizes must be positive");
    int64_t end = options->end_of_text >= 0 ? options->end_of_text : tokenizer_end_of_text(prepare->tokenizer);
    if (end < 0) {
        return status_hint(status_usage("the tokenizer %s names no end-of-text token", options->tokenizer),
                           "give its id with --end-of-text; or train the tokenizer with --special "
                           "\"" TOKENIZER_END_OF_TEXT "\"");
    }
    if (end >= tokenizer_vocab_size(prepare->tokenizer)) {
        return status_usage("end-of-text id %lld is outside the vocabulary of %lld", (long long)end,
                            (long long)tokenizer_vocab_size(prepare->tokenizer));
    }
    return NULL;
}

// Units and shards both hold all tokens for a while.
static Status disk_check(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    int64_t free_bytes;
    if (options->train_tokens < 0) return NULL;
    TRY(disk_free_bytes(&free_bytes, options->output));
    double bytes = tokenizer_vocab_size(prepare->tokenizer) <= 65536 ? 2 : 4;
    double tokens = (double)(options->train_tokens + options->val_tokens + options->test_tokens);
    double done = prepare->complete ? tokens : (double)prepare->counts.tokens;
    double wanted = bytes * (2 * tokens - done) * 1.02;
    double held = (double)reader_total_bytes(prepare->reader) * 40; // a small input can never fill a large target
    if (wanted > held) wanted = held;
    char have[32], need[32];
    if (wanted <= (double)free_bytes) return NULL;
    return status_hint(status_runtime("the disk of %s has %s free, and %s will be needed", options->output,
                                      text_gib(have, (double)free_bytes), text_gib(need, wanted)),
                       "units and shards together take twice the tokens; free some space or ask for fewer tokens");
}

static Status dataset_write(const Prepare *prepare, json_t *splits) {
    const PrepareCounts *counts = &prepare->counts;
    char hash[24];
    plan_hash(prepare, hash);
    json_t *root = json_object();
    json_object_set_new(root, "format", json_string("")); // filled in by dataset_write_json; kept first
    json_object_set_new(root, "version", json_integer(1));
    json_object_set_new(root, "hearth", json_string(HEARTH_VERSION));
    json_object_set(root, "tokenizer", json_object_get(prepare->plan, "tokenizer"));
    json_object_set(root, "splits", splits);
    json_object_set_new(
        root, "counts",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "read", (json_int_t)counts->read,
                  "read_bytes", (json_int_t)counts->read_bytes, "null", (json_int_t)counts->nulls, "bad",
                  (json_int_t)counts->bad, "damaged_files", (json_int_t)counts->damaged, "empty",
                  (json_int_t)counts->empty, "below_min_score", (json_int_t)counts->low_score, "outside_length",
                  (json_int_t)counts->length, "duplicates", (json_int_t)counts->duplicates, "documents",
                  (json_int_t)counts->documents, "tokens", (json_int_t)counts->tokens, "text_bytes",
                  (json_int_t)counts->text_bytes, "longest_document_tokens", (json_int_t)counts->longest));
    json_object_set_new(root, "read_up_to",
                        json_pack("{s:I, s:I}", "file", (json_int_t)prepare->position.file, "record",
                                  (json_int_t)prepare->position.record));
    json_object_set(root, "options", json_object_get(prepare->plan, "options"));
    json_object_set(root, "sources", json_object_get(prepare->plan, "sources"));
    json_object_set_new(root, "plan_hash", json_string(hash));
    Status status = dataset_write_json(root, prepare->options->output);
    json_decref(root);
    return status;
}

static uint64_t tokens_missing(json_t *splits) {
    const char *name;
    json_t *split;
    uint64_t missing = 0;
    json_object_foreach(splits, name, split) {
        int64_t asked = json_integer_value(json_object_get(split, "asked_tokens"));
        int64_t got = json_integer_value(json_object_get(split, "tokens"));
        if (asked > got) missing += (uint64_t)(asked - got);
    }
    return missing;
}

static Status nothing_kept(const PrepareCounts *counts) {
    const struct {
        const char *what;
        uint64_t count;
    } left_out[] = {{"null", counts->nulls},
                    {"bad", counts->bad},
                    {"damaged files", counts->damaged},
                    {"empty", counts->empty},
                    {"below the minimum score", counts->low_score},
                    {"outside the length limits", counts->length}};
    TextBuffer why = {0};
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
        if (left_out[i].count)
            text_buffer_format(&why, "%s%s %llu", why.length ? ", " : "", left_out[i].what,
                               (unsigned long long)left_out[i].count);
    }
    Status status = status_usage("no document was kept: %s", why.length ? why.data : "the input holds none");
    text_buffer_free(&why);
    if (counts->bad || counts->damaged) return status_hint(status, "the warnings above name what was skipped, and why");
    return status_hint(status, "check the input files, --column and the filters");
}

// Copies of the document at the border of two splits belong to neither, so what was read can turn out too little: then
// more is read and gathered again.
static Status splits_fill(Prepare *prepare, json_t **splits) {
    for (;;) {
        TRY(scatter_run(prepare));
        if (prepare->counts.documents == 0) return nothing_kept(&prepare->counts);
        TRY(gather_run(prepare->options, prepare->tokenizer, prepare->work, prepare->unit_count, &prepare->counts,
                       splits));
        uint64_t missing = tokens_missing(*splits);
        if (missing == 0 || prepare->complete == UNIT_END) {
            if (missing) log_warn("the input gave %llu tokens less than were asked for", (unsigned long long)missing);
            if (json_integer_value(json_object_get(json_object_get(*splits, "train"), "tokens")) == 0)
                log_warn("the other splits have left no tokens to train on");
            return NULL;
        }
        json_decref(*splits);
        prepare->counts.extra += missing;
        prepare->complete = UNIT_MORE;
    }
}

static Status dataset_make(Prepare *prepare) {
    json_t *splits;
    TRY(disk_check(prepare));
    TRY(splits_fill(prepare, &splits));
    Status status = output_publish(prepare->options, prepare->tokenizer);
    if (!status) status = dataset_write(prepare, splits);
    json_decref(splits);
    return status;
}

static Status work_remove(const Prepare *prepare) {
    TRY(output_clear_work(prepare->options->output));
    return dir_remove(prepare->work); // the lock goes last
}

static Status prepare_work(Prepare *prepare) {
    TRY(plan_compare(prepare));
    TRY(units_find(prepare));
    Status status = dataset_make(prepare);
    if (status && prepare->counts.documents == 0) status_free(work_remove(prepare)); // there is nothing to resume
    return status;
}

static Status work_lock(Prepare *prepare) {
    TRY(dir_make(prepare->work));
    char *path = path_join(prepare->work, OUTPUT_LOCK);
    Status status = file_lock(&prepare->lock, path, prepare->options->output);
    free(path);
    return status;
}

static Status prepare_all(Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    bool done;
    TRY(tokenizer_load(&prepare->tokenizer, options->tokenizer));
    TRY(options_check(prepare));
    TRY(reader_open(&prepare->reader, &options->reader, options->inputs, options->input_count));
    plan_make(prepare);
    TRY(dir_make(options->output));
    TRY(finished_check(prepare, &done));
    if (done && !file_exists(prepare->work)) return NULL;
    TRY(output_check(options, prepare->reader, prepare->tokenizer));
    TRY(work_lock(prepare));
    static const char *const written[] = {"dataset.json", "tokenizer.json"};
    for (int i = 0; i < 2; i++) {
        char *path = path_join(options->output, written[i]);
        file_remove_leftovers(path);
        free(path);
    }
    if (options->overwrite) TRY(output_clear_work(options->output));
    TRY(finished_check(prepare, &done)); // another process may have finished it in the meantime
    if (!done) TRY(prepare_work(prepare));
    return work_remove(prepare); // also what a kill between the last two steps left
}

Status prepare_run(const PrepareOptions *options) {
    Prepare prepare = {.options = options, .lock = -1, .work = path_join(options->output, OUTPUT_WORK)};
    bool there = file_exists(options->output);
    Status status = prepare_all(&prepare);
    file_unlock(&prepare.lock);
    if (status && !there) io_rmdir(options->output); // unless it holds work to resume
    reader_close(prepare.reader);
    tokenizer_free(prepare.tokenizer);
    json_decref(prepare.plan);
    json_decref(prepare.work_plan);
    free(prepare.work);
    return status;
}
