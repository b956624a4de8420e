// The whole of `hearth data prepare`: what it may do, in which order, and what it leaves behind when it fails.
#include "data/prepare.h"

#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/memory_info.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/prepare_gather.h"
#include "data/prepare_internal.h"
#include "data/prepare_output.h"
#include "data/shard.h"

#include <stdlib.h>

#define UNIT_BYTES       ((int64_t)64 << 20)
#define BYTES_FIXED      ((int64_t)512 << 20) // dedup table, unit, buffers
#define BYTES_PER_THREAD ((int64_t)64 << 20)  // tokenizer cache, batches

PrepareOptions prepare_defaults(void) {
    return (PrepareOptions){
        .end_of_text = -1, .train_tokens = -1, .shard_tokens = 100 * 1000 * 1000, .unit_bytes = UNIT_BYTES};
}

int64_t prepare_end_of_text(const PrepareOptions *options, const Tokenizer *tokenizer) {
    return options->end_of_text >= 0 ? options->end_of_text : tokenizer_end_of_text(tokenizer);
}

int prepare_threads(int asked) {
    if (asked > 0) return asked;
    int64_t count = threads_cores(), available = memory_available_bytes();
    int64_t by_memory = (available - BYTES_FIXED) / BYTES_PER_THREAD;
    if (available > 0 && by_memory < count) count = by_memory;
    return count < 1 ? 1 : (int)count;
}

static Status options_check(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    if (options->val_tokens < 0 || options->test_tokens < 0 || options->train_tokens < -1) {
        return status_usage("token counts cannot be negative");
    }
    if (options->train_tokens == 0)
        return status_hint(status_usage("--train-tokens 0 leaves nothing to train on"),
                           "without --train-tokens all that there are go into it");
    if (options->shard_tokens < 1 || options->unit_bytes < 1)
        return status_usage("shard and unit sizes must be positive");
    int64_t end = prepare_end_of_text(options, prepare->tokenizer);
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
    double bytes = shard_token_bytes((uint64_t)tokenizer_vocab_size(prepare->tokenizer));
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

// Copies of the document at the border of two splits belong to neither, so what was read can turn out too little: then
// more is read and gathered again.
static Status splits_fill(Prepare *prepare, json_t **splits) {
    for (;;) {
        TRY(prepare_scatter(prepare));
        if (prepare->counts.documents == 0) return prepare_nothing_kept(&prepare->counts);
        TRY(gather_run(prepare->options, prepare->tokenizer, prepare->work, prepare->unit_count, &prepare->counts,
                       splits));
        uint64_t missing = prepare_tokens_missing(*splits);
        if (missing == 0 || prepare->complete == UNIT_END) {
            if (missing) log_warn("the input gave %llu tokens less than were asked for", (unsigned long long)missing);
            if (json_integer_value(json_object_get(json_object_get(*splits, "train"), "tokens")) > 0) return NULL;
            json_decref(*splits);
            prepare->hopeless = true;
            return status_hint(status_usage("nothing is left to train on: the input gives %llu tokens, and the other "
                                            "splits take %lld",
                                            (unsigned long long)prepare->counts.tokens,
                                            (long long)(prepare->options->val_tokens + prepare->options->test_tokens)),
                               "ask for fewer --val-tokens and --test-tokens, or give more input");
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
    if (!status) status = prepare_dataset_write(prepare, splits);
    json_decref(splits);
    return status;
}

static Status work_remove(const Prepare *prepare) {
    TRY(output_clear_work(prepare->options->output));
    return dir_remove(prepare->work); // the lock goes last
}

static Status prepare_work(Prepare *prepare) {
    TRY(prepare_plan_compare(prepare));
    TRY(prepare_find_units(prepare));
    Status status = dataset_make(prepare);
    if (status && (prepare->counts.documents == 0 || prepare->hopeless))
        status_free(work_remove(prepare)); // there is nothing to resume
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
    prepare_plan_make(prepare);
    TRY(dir_make(options->output));
    TRY(prepare_is_finished(prepare, &done));
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
    TRY(prepare_is_finished(prepare, &done)); // another process may have finished it in the meantime
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
