#include "data/prepare_gather.h"

#include "base/file.h"
#include "base/text.h"
#include "data/prepare_progress.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define LENGTHS_MAX  ((size_t)1 << 20)  // documents up to this long are counted by length, longer ones listed
#define WINDOW_BYTES ((size_t)32 << 20) // see window_add

typedef struct Split {
    const char *name;
    int64_t target; // -1: all
    uint64_t tokens, documents, text_bytes;
    uint64_t *lengths; // [LENGTHS_MAX + 1]: documents of so many tokens
    uint64_t *longer;  // [longer_count]: tokens of each document that is longer
    size_t longer_count;
    bool cut;
    uint64_t cut_tokens; // of copies of its last document, and of the rest of that, that are in no split
    ShardWriter *writer;
    uint64_t shard_tokens; // in the open shard
    size_t shard_index;
    json_t *shards;
} Split;

typedef struct WindowEntry {
    uint64_t key;
    UnitRecord record;
    size_t offset; // in ids
} WindowEntry;

typedef struct Rest { // of a document that another split has the beginning of
    UnitRecord record;
    uint32_t *ids;
} Rest;

typedef struct Gather {
    const PrepareOptions *options;
    const char *work;
    const Tokenizer *tokenizer;
    uint32_t end_of_text;
    Split splits[3]; // val, test, train: in order of the merge
    size_t split_count, current;
    DocumentHash last; // of the previous document, and how many equal ones came before it
    uint64_t repeats;
    bool has_last;
    DocumentHash border; // last document of the previous split: its copies must not go into the next one
    bool has_border;
    Rest rests[2]; // of val and test: they wait for train
    size_t rest_count;
    WindowEntry *window;
    size_t window_count, window_capacity;
    uint32_t *window_ids;
    size_t window_tokens, window_ids_capacity;
    Progress progress;
    uint64_t merged_documents, merged_tokens, merged_bytes, all_tokens;
} Gather;

// --- shards ---------------------------------------------------------------------------------------------------------

static Status shard_start(Gather *gather, Split *split) {
    char *path = text_format("%s/%s/%05zu.shard", gather->work, split->name, split->shard_index);
    Status status = shard_writer_open(&split->writer, path, (uint64_t)tokenizer_vocab_size(gather->tokenizer),
                                      tokenizer_hash(gather->tokenizer));
    free(path);
    split->shard_tokens = 0;
    return status;
}

static Status shard_finish(Split *split) {
    if (!split->writer) return NULL;
    ShardHeader header;
    ShardWriter *writer = split->writer;
    split->writer = NULL;
    TRY(shard_writer_close(writer, &header));
    char *file = text_format("%s/%05zu.shard", split->name, split->shard_index++), checksum[24];
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)header.header_checksum);
    json_array_append_new(split->shards,
                          json_pack("{s:s, s:I, s:I, s:I, s:s}", "file", file, "tokens", (json_int_t)header.token_count,
                                    "documents", (json_int_t)header.document_count, "text_bytes",
                                    (json_int_t)header.text_bytes, "checksum", checksum));
    free(file);
    return NULL;
}

static void length_count(Split *split, size_t tokens) {
    if (tokens <= LENGTHS_MAX) {
        split->lengths[tokens]++;
        return;
    }
    split->longer = xrealloc(split->longer, (split->longer_count + 1) * sizeof *split->longer); // they are few
    split->longer[split->longer_count++] = tokens;
}

// A shard holds whole documents; it ends before the one that would take it over its size.
static Status document_write(Gather *gather, Split *split, const uint32_t *ids, size_t count, uint64_t text_bytes) {
    if (split->writer && split->shard_tokens + count > (uint64_t)gather->options->shard_tokens)
        TRY(shard_finish(split));
    if (!split->writer) TRY(shard_start(gather, split));
    split->shard_tokens += count;
    split->tokens += count;
    split->documents++;
    split->text_bytes += text_bytes;
    length_count(split, count);
    return shard_writer_add(split->writer, ids, count, text_bytes);
}

// --- the window: keeps copies of one text apart ---------------------------------------------------------------------

static int window_order(const void *a, const void *b) {
    const WindowEntry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static Status window_flush(Gather *gather, Split *split) {
    qsort(gather->window, gather->window_count, sizeof *gather->window, window_order);
    for (size_t i = 0; i < gather->window_count; i++) {
        const WindowEntry *entry = &gather->window[i];
        TRY(document_write(gather, split, gather->window_ids + entry->offset, entry->record.token_count,
                           entry->record.text_bytes));
    }
    gather->window_count = gather->window_tokens = 0;
    return NULL;
}

// Without --dedup the merge brings copies of a text one behind the other. Documents are therefore collected for a while
// and ordered anew by hash and number of the copy. The order is still a function of the texts alone.
static Status window_add(Gather *gather, Split *split, const UnitRecord *record, const uint32_t *ids) {
    if (gather->window_count > 0 && (gather->window_tokens + record->token_count) * sizeof *ids > WINDOW_BYTES) {
        TRY(window_flush(gather, split));
    }
    if (gather->window_count == gather->window_capacity) {
        gather->window_capacity = gather->window_capacity ? gather->window_capacity * 2 : 1024;
        gather->window = xrealloc(gather->window, gather->window_capacity * sizeof *gather->window);
    }
    if (gather->window_ids_capacity < gather->window_tokens + record->token_count) {
        gather->window_ids_capacity = (gather->window_tokens + record->token_count) * 3 / 2;
        gather->window_ids = xrealloc(gather->window_ids, gather->window_ids_capacity * sizeof *ids);
    }
    const uint64_t key[2] = {record->hash.low, gather->repeats};
    gather->window[gather->window_count++] =
        (WindowEntry){XXH64(key, sizeof key, gather->options->seed), *record, gather->window_tokens};
    memcpy(gather->window_ids + gather->window_tokens, ids, record->token_count * sizeof *ids);
    gather->window_tokens += record->token_count;
    return NULL;
}

// --- documents ------------------------------------------------------------------------------------------------------

static uint64_t kept_text_bytes(const Gather *gather, const uint32_t *ids, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = 0;
        tokenizer_token_bytes(gather->tokenizer, ids[i], &length);
        bytes += length;
    }
    return bytes;
}

static uint64_t split_pending(const Gather *gather, const Split *split) {
    return split->tokens + (split == &gather->splits[gather->current] ? gather->window_tokens : 0);
}

static Status split_leave(Gather *gather) {
    Split *split = &gather->splits[gather->current];
    TRY(window_flush(gather, split));
    TRY(shard_finish(split));
    gather->current++;
    return NULL;
}

static void rest_keep(Gather *gather, const UnitRecord *record, const uint32_t *ids, size_t from) {
    Rest *rest = &gather->rests[gather->rest_count++];
    *rest = (Rest){.record = *record, .ids = xmalloc((record->token_count - from) * sizeof *ids)};
    rest->record.token_count = (uint32_t)(record->token_count - from);
    rest->record.text_bytes = (uint32_t)kept_text_bytes(gather, ids + from, rest->record.token_count - 1);
    memcpy(rest->ids, ids + from, rest->record.token_count * sizeof *ids);
}

// Into the current split, as much as there is room for.
static Status document_take(Gather *gather, UnitRecord *record, const uint32_t *ids) {
    Split *split = &gather->splits[gather->current];
    uint32_t *shortened = NULL;
    if (split->target >= 0) {
        uint64_t left = (uint64_t)split->target - split_pending(gather, split);
        if (record->token_count > left) { // the exact count: the rest of this document goes to train
            shortened = xmalloc(left * sizeof *ids);
            memcpy(shortened, ids, left * sizeof *ids);
            shortened[left - 1] = gather->end_of_text;
            if (gather->current + 1 < gather->split_count)
                rest_keep(gather, record, ids, left - 1); // with the token in whose place end-of-text stands here
            else
                split->cut_tokens = record->token_count - left;
            record->token_count = (uint32_t)left;
            record->text_bytes = (uint32_t)kept_text_bytes(gather, ids, left - 1);
            split->cut = true;
            ids = shortened;
        }
    }
    Status status = window_add(gather, split, record, ids);
    free(shortened);
    if (!status && split->target >= 0 && split_pending(gather, split) == (uint64_t)split->target) {
        gather->border = record->hash;
        gather->has_border = true;
        status = split_leave(gather);
    }
    return status;
}

static Status document_place(Gather *gather, UnitRecord *record, const uint32_t *ids) {
    gather->repeats =
        gather->has_last && document_hash_compare(gather->last, record->hash) == 0 ? gather->repeats + 1 : 0;
    gather->last = record->hash;
    gather->has_last = true;
    if (gather->has_border && document_hash_compare(gather->border, record->hash) == 0) {
        gather->splits[gather->current - 1].cut_tokens += record->token_count;
        return NULL;
    }
    return document_take(gather, record, ids);
}

static Status rests_place(Gather *gather) {
    while (gather->rest_count && gather->current + 1 == gather->split_count) {
        Rest rest = gather->rests[--gather->rest_count];
        Status status = document_take(gather, &rest.record, rest.ids);
        free(rest.ids);
        TRY(status);
    }
    return NULL;
}

static Status documents_merge(Gather *gather, UnitMerge *merge) {
    for (;;) {
        while (gather->current < gather->split_count && gather->splits[gather->current].target == 0)
            TRY(split_leave(gather));
        TRY(rests_place(gather));
        if (gather->current == gather->split_count) return NULL;
        UnitRecord record;
        const uint32_t *ids;
        bool more;
        TRY(unit_merge_next(merge, &record, &ids, &more));
        if (!more) break;
        gather->merged_documents++;
        gather->merged_tokens += record.token_count;
        gather->merged_bytes += record.text_bytes;
        TRY(document_place(gather, &record, ids));
        progress_update(&gather->progress, (double)gather->merged_tokens / (double)(gather->all_tokens + 1),
                        gather->merged_documents, gather->merged_bytes, gather->merged_tokens);
    }
    while (gather->current < gather->split_count) {
        TRY(rests_place(gather));
        if (gather->current < gather->split_count) TRY(split_leave(gather));
    }
    return NULL;
}

// --- the record of it -----------------------------------------------------------------------------------------------

static int length_order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

// The least length that at least half of the documents do not exceed, as dataset_lengths finds it.
static uint64_t split_median(const Split *split) {
    if (split->documents == 0) return 0;
    uint64_t half = (split->documents + 1) / 2, seen = 0;
    for (size_t length = 0; length <= LENGTHS_MAX; length++) {
        seen += split->lengths[length];
        if (seen >= half) return length;
    }
    qsort(split->longer, split->longer_count, sizeof *split->longer, length_order);
    return split->longer[half - seen - 1];
}

static json_t *split_result_json(const Split *split) {
    json_t *json = json_pack("{s:I, s:I, s:I, s:f, s:I, s:b, s:I, s:O}", "tokens", (json_int_t)split->tokens,
                             "documents", (json_int_t)split->documents, "text_bytes", (json_int_t)split->text_bytes,
                             "mean_tokens", split->documents ? (double)split->tokens / (double)split->documents : 0.0,
                             "median_tokens", (json_int_t)split_median(split), "last_document_cut", (int)split->cut,
                             "cut_tokens", (json_int_t)split->cut_tokens, "shards", split->shards);
    if (split->target >= 0) json_object_set_new(json, "asked_tokens", json_integer(split->target));
    return json;
}

static void gather_prepare(Gather *gather) {
    const struct {
        const char *name;
        int64_t target;
    } wanted[] = {{"val", gather->options->val_tokens},
                  {"test", gather->options->test_tokens},
                  {"train", gather->options->train_tokens}};
    for (size_t i = 0; i < 3; i++) {
        if (wanted[i].target == 0) continue;
        Split *split = &gather->splits[gather->split_count++];
        *split = (Split){.name = wanted[i].name, .target = wanted[i].target, .shards = json_array()};
        split->lengths = xcalloc(LENGTHS_MAX + 1, sizeof *split->lengths);
    }
}

static void gather_free(Gather *gather) {
    for (size_t i = 0; i < gather->split_count; i++) {
        shard_writer_abort(gather->splits[i].writer);
        json_decref(gather->splits[i].shards);
        free(gather->splits[i].lengths);
        free(gather->splits[i].longer);
    }
    for (size_t i = 0; i < gather->rest_count; i++)
        free(gather->rests[i].ids);
    free(gather->window);
    free(gather->window_ids);
}

// What an interrupted gather left behind goes; then the folders are made anew.
static Status folders_make(const Gather *gather) {
    for (size_t i = 0; i < gather->split_count; i++) {
        char *path = path_join(gather->work, gather->splits[i].name);
        Status status = dir_remove(path);
        if (!status) status = dir_make(path);
        free(path);
        TRY(status);
    }
    return NULL;
}

Status gather_run(const PrepareOptions *options, const Tokenizer *tokenizer, const char *work, size_t unit_count,
                  const PrepareCounts *counts, json_t **splits) {
    Gather gather = {.options = options, .work = work, .tokenizer = tokenizer, .all_tokens = counts->tokens};
    gather.end_of_text = (uint32_t)prepare_end_of_text(options, tokenizer);
    gather.progress = progress_start("write shards", options->quiet, 0, 0, 0);
    gather_prepare(&gather);
    UnitMerge *merge = NULL;
    Status status = folders_make(&gather);
    if (!status) status = unit_merge_open(&merge, work, unit_count);
    if (!status) status = documents_merge(&gather, merge);
    unit_merge_close(merge);
    if (!status) {
        *splits = json_object();
        for (size_t i = gather.split_count; i-- > 0;) { // train first
            const Split *split = &gather.splits[i];
            json_object_set_new(*splits, split->name, split_result_json(split));
        }
        progress_end(&gather.progress, gather.merged_documents, gather.merged_bytes, gather.merged_tokens);
    }
    gather_free(&gather);
    return status;
}
