// Stories to shards: generation and encoding run on all threads, a block of stories at a time; writing is in order.
#include "data/synth.h"

#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "data/bpe_train.h"
#include "data/dataset.h"
#include "data/prepare_output.h"
#include "data/tokenizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_STORIES = 64, ROUND_BLOCKS = 64, LEARN_STORIES = 4000 };

typedef struct Block { // the tokens of BLOCK_STORIES stories
    TokenIds ids;
    size_t ends[BLOCK_STORIES];
    uint64_t bytes[BLOCK_STORIES];
    int count;
    Status status;
} Block;

typedef struct Round {
    uint64_t seed, first, end; // stories
    const Tokenizer *tokenizer;
    TokenizerState **states; // one per worker
    Block *blocks;
} Round;

static Status block_fill(const Round *round, Block *block, uint64_t first, TokenizerState *state) {
    TextBuffer text = {0};
    Status status = NULL;
    block->ids.count = 0;
    block->count = 0;
    for (uint64_t story = first; story < round->end && block->count < BLOCK_STORIES && !status; story++) {
        text.length = 0;
        synth_story(&text, round->seed, story);
        status = tokenizer_encode(state, text.data, text.length, 0, &block->ids);
        uint32_t end = (uint32_t)tokenizer_end_of_text(round->tokenizer);
        if (block->ids.count == block->ids.capacity) {
            block->ids.capacity += 1024;
            block->ids.ids = xrealloc(block->ids.ids, block->ids.capacity * sizeof *block->ids.ids);
        }
        block->ids.ids[block->ids.count++] = end;
        block->bytes[block->count] = text.length;
        block->ends[block->count++] = block->ids.count;
    }
    text_buffer_free(&text);
    return status;
}

static void round_task(void *context, int64_t begin, int64_t end, int worker) {
    Round *round = context;
    for (int64_t i = begin; i < end; i++)
        round->blocks[i].status =
            block_fill(round, &round->blocks[i], round->first + (uint64_t)i * BLOCK_STORIES, round->states[worker]);
}

static Status block_write(Block *block, ShardWriter *writer, uint64_t *counts) {
    size_t from = 0;
    TRY(block->status);
    block->status = NULL;
    for (int i = 0; i < block->count; i++) {
        TRY(shard_writer_add(writer, block->ids.ids + from, block->ends[i] - from, block->bytes[i]));
        from = block->ends[i];
    }
    for (size_t i = 0; i < block->ids.count; i++)
        counts[block->ids.ids[i]]++;
    return NULL;
}

// Stories [first, end) of the seed as one shard.
static Status shard_make(const char *path, const Tokenizer *tokenizer, uint64_t seed, uint64_t first, uint64_t end,
                         uint64_t *counts, ShardHeader *header) {
    int workers = threads_count();
    Round round = {seed,
                   first,
                   end,
                   tokenizer,
                   xcalloc((size_t)workers, sizeof(TokenizerState *)),
                   xcalloc(ROUND_BLOCKS, sizeof(Block))};
    for (int i = 0; i < workers; i++)
        round.states[i] = tokenizer_state_new(tokenizer);
    ShardWriter *writer = NULL;
    Status status =
        shard_writer_open(&writer, path, (uint64_t)tokenizer_vocab_size(tokenizer), tokenizer_hash(tokenizer));
    for (; !status && round.first < end; round.first += ROUND_BLOCKS * BLOCK_STORIES) {
        threads_for(ROUND_BLOCKS, 1, round_task, &round);
        for (int i = 0; i < ROUND_BLOCKS && !status; i++)
            status = block_write(&round.blocks[i], writer, counts);
    }
    if (status)
        shard_writer_abort(writer);
    else
        status = shard_writer_close(writer, header);
    for (int i = 0; i < ROUND_BLOCKS; i++)
        free(round.blocks[i].ids.ids);
    for (int i = 0; i < workers; i++)
        tokenizer_state_free(round.states[i]);
    free(round.states);
    free(round.blocks);
    return status;
}

static double unigram_entropy(const uint64_t *counts, int64_t vocab) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        total += (double)counts[i];
    for (int64_t i = 0; i < vocab; i++)
        if (counts[i]) sum -= (double)counts[i] / total * log((double)counts[i] / total);
    return sum;
}

static json_t *synth_split_json(const char *file, const ShardHeader *header) {
    char checksum[24];
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)header->header_checksum);
    return json_pack("{s:I,s:I,s:I,s:[{s:s,s:s,s:I}]}", "tokens", (json_int_t)header->token_count, "documents",
                     (json_int_t)header->document_count, "text_bytes", (json_int_t)header->text_bytes, "shards", "file",
                     file, "checksum", checksum, "tokens", (json_int_t)header->token_count);
}

// Learns a byte-level BPE vocabulary from the first stories and writes it as tokenizer.json.
static Status tokenizer_learn(const SynthRequest *request, const char *path) {
    const char *const special[] = {TOKENIZER_END_OF_TEXT};
    BpeTrainOptions options = {
        .vocab_size = request->vocab, .min_count = 2, .pattern = SPLIT_GPT2, .special = special, .special_count = 1};
    TRY(bpe_train_check(&options));
    TRY(output_clear(request->directory, NULL));
    BpeCounts counts;
    BpeTraining training;
    TextBuffer text = {0};
    Status status = NULL;
    bpe_counts_init(&counts);
    for (uint64_t i = 0; i < LEARN_STORIES && !status; i++) {
        text.length = 0;
        synth_story(&text, request->seed, i);
        status = bpe_counts_add_text(&counts, options.pattern, options.nfc, text.data, text.length);
    }
    text_buffer_free(&text);
    if (!status) {
        bpe_train(&training, &counts, &options);
        status = bpe_training_write(&training, &options, path);
        bpe_training_free(&training);
    }
    bpe_counts_free(&counts);
    return status;
}

static Status tokenizer_given(Tokenizer **tokenizer, const SynthRequest *request) {
    TRY(tokenizer_load(tokenizer, request->tokenizer));
    if (tokenizer_end_of_text(*tokenizer) < 0)
        return status_usage("the tokenizer %s has no end-of-text token to part stories", tokenizer_name(*tokenizer));
    return output_clear(request->directory, *tokenizer);
}

// Also clears the directory, once the request is known to be sound.
static Status tokenizer_make(Tokenizer **tokenizer, const SynthRequest *request) {
    if (request->tokenizer) return tokenizer_given(tokenizer, request);
    char *path = path_join(request->directory, "tokenizer.json");
    Status status = tokenizer_learn(request, path);
    if (!status) status = tokenizer_load(tokenizer, path);
    free(path);
    return status;
}

static Status shards_make(const SynthRequest *request, const Tokenizer *tokenizer, SynthResult *result) {
    int64_t vocab = tokenizer_vocab_size(tokenizer);
    uint64_t *counts = xcalloc((size_t)vocab, sizeof *counts), *val_counts = xcalloc((size_t)vocab, sizeof *counts);
    ShardHeader train, val;
    char *folder[2] = {path_join(request->directory, "train"), path_join(request->directory, "val")};
    char *file[2] = {path_join(folder[0], "00000.shard"), path_join(folder[1], "00000.shard")};
    json_t *root = NULL;
    Status status = NULL;
    for (int i = 0; i < 2 && !status; i++)
        status = dir_make(folder[i]);
    TRY_GOTO(status, done);
    uint64_t total = request->stories + request->val_stories;
    TRY_GOTO(shard_make(file[0], tokenizer, request->seed, 0, request->stories, counts, &train), done);
    TRY_GOTO(shard_make(file[1], tokenizer, request->seed, request->stories, total, val_counts, &val), done);
    *result = (SynthResult){train.token_count, val.token_count, train.text_bytes + val.text_bytes, vocab,
                            unigram_entropy(counts, vocab)};
    const char *name = request->tokenizer ? request->tokenizer : "tokenizer.json";
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(tokenizer));
    root = json_pack("{s:s,s:{s:I,s:I,s:I},s:{s:s,s:s,s:I},s:f,s:{s:o,s:o}}", "source", "synth", "options", "seed",
                     (json_int_t)request->seed, "stories", (json_int_t)request->stories, "val_stories",
                     (json_int_t)request->val_stories, "tokenizer", "name", name, "hash", hash, "vocab_size",
                     (json_int_t)vocab, "unigram_entropy", result->unigram_entropy, "splits", "train",
                     synth_split_json("train/00000.shard", &train), "val", synth_split_json("val/00000.shard", &val));
    status = dataset_write_json(root, request->directory);
done:
    json_decref(root);
    for (int i = 0; i < 2; i++) {
        free(folder[i]);
        free(file[i]);
    }
    free(counts);
    free(val_counts);
    return status;
}

Status synth_write(const SynthRequest *request, SynthResult *result) {
    if (!request->stories || !request->val_stories)
        return status_usage("a corpus needs at least one story to train on and one to validate with");
    TRY(output_check_new(request->directory, request->overwrite));
    char *made = path_first_missing(request->directory);
    Tokenizer *tokenizer = NULL;
    Status status = dir_make(request->directory);
    if (!status) status = tokenizer_make(&tokenizer, request);
    if (!status) status = shards_make(request, tokenizer, result);
    tokenizer_free(tokenizer);
    if (status && made) status_free(dir_remove(made));
    free(made);
    return status;
}
