// Windows over datasets: the keyed permutation that orders them, and the walk along document starts that masks them.
#include "data/loader_samples.h"

#include "base/rng.h"
#include "base/text.h"

#include <assert.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- order ---------------------------------------------------------------------------------------------------------

// A Feistel network permutes the smallest even number of bits that holds `count`; results outside walk on along their
// cycle, which must come back inside. Nothing is stored, whatever the size of the data.
uint64_t samples_permute(uint64_t index, uint64_t count, uint64_t seed, uint64_t stream, uint64_t epoch) {
    enum { ROUNDS = 6 };
    assert(index < count);
    int half = 1;
    while (half < 32 && (uint64_t)1 << (2 * half) < count)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t key = RNG_STREAM_DATA_ORDER | (stream << 24) | (round << 56);
            uint64_t mixed = left ^ (rng_bits(seed, key, (epoch << 32) | right) & mask);
            left = right;
            right = mixed;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

// ---- opening -------------------------------------------------------------------------------------------------------

// Moves the datasets over; an empty split adds nothing and is closed.
static void mix_take_all(Mix *mix, Mix *from, double weight) {
    size_t count = mix->count + from->count;
    mix->datasets = xrealloc(mix->datasets, count * sizeof *mix->datasets);
    mix->weights = xrealloc(mix->weights, count * sizeof *mix->weights);
    for (size_t i = 0; i < from->count; i++) {
        if (!from->datasets[i].token_count) {
            dataset_close(&from->datasets[i]);
            continue;
        }
        mix->datasets[mix->count] = from->datasets[i];
        mix->weights[mix->count++] = weight * from->weights[i];
    }
    from->count = 0; // what is left of it is closed as usual
}

static Status samples_open_one(Samples *samples, const SamplesRequest *request, const char *path, double weight) {
    Mix mix;
    TRY(mix_open(&mix, path, request->split, request->verify));
    if (mix_is_file(path)) samples->weighted = true;
    Status status = NULL;
    for (size_t i = 0; i < mix.count && samples->weighted && !status; i++)
        if (!mix.datasets[i].token_count)
            status = status_usage("%s has no tokens in its split \"%s\" and cannot have a share", mix.datasets[i].path,
                                  request->split);
    if (!status) mix_take_all(&samples->mix, &mix, weight);
    mix_close(&mix);
    return status;
}

static Status samples_open_path(Samples *samples, const SamplesRequest *request, const char *path, double weight) {
    if (!strpbrk(path, "*?[") || file_exists(path)) return samples_open_one(samples, request, path, weight);
    glob_t found;
    if (glob(path, 0, NULL, &found) != 0) {
        globfree(&found);
        return status_usage("no file matches %s", path);
    }
    Status status = NULL;
    for (size_t i = 0; i < found.gl_pathc && !status; i++)
        status = samples_open_one(samples, request, found.gl_pathv[i], weight / (double)found.gl_pathc);
    globfree(&found);
    return status;
}

static Status samples_count_windows(Samples *samples) {
    Mix *mix = &samples->mix;
    samples->first_window = xcalloc(mix->count + 1, sizeof *samples->first_window);
    for (size_t i = 0; i < mix->count; i++) {
        const Dataset *dataset = &mix->datasets[i], *first = &mix->datasets[0];
        uint64_t windows = dataset->token_count ? (dataset->token_count - 1) / (uint64_t)samples->seq : 0;
        if (dataset->tokenizer_hash != first->tokenizer_hash || dataset->vocab_size != first->vocab_size)
            return status_hint(
                status_usage("%s and %s were made with different tokenizers", first->path, dataset->path),
                "prepare both with the same tokenizer");
        if (samples->weighted && !windows)
            return status_usage("%s holds %llu tokens, less than one window of seq + 1 = %d", dataset->path,
                                (unsigned long long)dataset->token_count, samples->seq + 1);
        samples->windows += windows;
        samples->first_window[i + 1] = samples->windows;
    }
    if (samples->windows) return NULL;
    uint64_t tokens = 0;
    for (size_t i = 0; i < mix->count; i++)
        tokens += mix->datasets[i].token_count;
    return status_hint(status_usage("the data holds %llu tokens, less than one window of seq + 1 = %d tokens",
                                    (unsigned long long)tokens, samples->seq + 1),
                       "shorter windows (train.seq, --seq) or more data");
}

Status samples_open(Samples *samples, const SamplesRequest *request) {
    *samples = (Samples){.seq = request->seq,
                         .mask_documents = request->mask_documents,
                         .seed = request->seed,
                         .weighted = request->weights != NULL};
    Status status = request->path_count ? NULL : status_usage("no data is named");
    for (int i = 0; i < request->path_count && !status; i++)
        status = samples_open_path(samples, request, request->paths[i], request->weights ? request->weights[i] : 1);
    if (!status) status = samples_count_windows(samples);
    if (!status) mix_set_shares(&samples->mix);
    if (status) samples_close(samples);
    return status;
}

void samples_close(Samples *samples) {
    mix_close(&samples->mix);
    free(samples->first_window);
    *samples = (Samples){0};
}

// ---- reading -------------------------------------------------------------------------------------------------------

// The dataset and the first token of sample `index`.
static const Dataset *sample_locate(const Samples *samples, uint64_t index, uint64_t *token) {
    size_t which = 0;
    uint64_t window;
    if (samples->weighted) {
        which = mix_locate(&samples->mix, index, &index);
        uint64_t windows = samples->first_window[which + 1] - samples->first_window[which];
        window = samples_permute(index % windows, windows, samples->seed, which + 1, index / windows);
    } else {
        window =
            samples_permute(index % samples->windows, samples->windows, samples->seed, 0, index / samples->windows);
        size_t low = 0, high = samples->mix.count; // first_window[low] <= window < first_window[high]
        while (high - low > 1) {
            size_t middle = (low + high) / 2;
            if (samples->first_window[middle] <= window)
                low = middle;
            else
                high = middle;
        }
        which = low;
        window -= samples->first_window[which];
    }
    *token = window * (uint64_t)samples->seq;
    return &samples->mix.datasets[which];
}

// Walks the starts of documents in (first, last] of a dataset's tokens, across shards.
typedef struct DocumentWalk {
    const Dataset *dataset;
    size_t shard;
    uint64_t document;
} DocumentWalk;

static DocumentWalk document_walk_start(const Dataset *dataset, uint64_t first) {
    size_t low = 0, high = dataset->shard_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (dataset->first_token[middle] <= first)
            low = middle;
        else
            high = middle;
    }
    const Shard *shard = &dataset->shards[low];
    uint64_t inside = first - dataset->first_token[low], from = 0, to = shard->header->document_count;
    while (from < to) { // the first document that starts behind `inside`
        uint64_t middle = (from + to) / 2;
        if (shard->documents[middle] <= inside)
            from = middle + 1;
        else
            to = middle;
    }
    return (DocumentWalk){dataset, low, from};
}

static bool document_walk_next(DocumentWalk *walk, uint64_t last, uint64_t *start) {
    for (; walk->shard < walk->dataset->shard_count; walk->shard++, walk->document = 0) {
        const Shard *shard = &walk->dataset->shards[walk->shard];
        if (walk->document >= shard->header->document_count) continue;
        *start = walk->dataset->first_token[walk->shard] + shard->documents[walk->document++];
        return *start <= last;
    }
    return false;
}

// Which token of [first, first + count) it is that lies outside of the vocabulary.
static Status window_damaged(const Dataset *dataset, uint64_t first, uint64_t count) {
    for (size_t i = 0; i < dataset->shard_count; i++) {
        uint64_t from = first > dataset->first_token[i] ? first : dataset->first_token[i];
        uint64_t to = first + count < dataset->first_token[i + 1] ? first + count : dataset->first_token[i + 1];
        for (uint64_t at = from - dataset->first_token[i]; from < to; from++, at++)
            if (shard_token(&dataset->shards[i], at) >= dataset->vocab_size)
                return shard_token_damaged(&dataset->shards[i], at);
    }
    return status_runtime("%s is being changed while it is in use", dataset->path);
}

Status samples_read(const Samples *samples, uint64_t index, int32_t *ids, int32_t *targets, int32_t *doc_start,
                    int *valid) {
    int seq = samples->seq;
    uint64_t first, start;
    const Dataset *dataset = sample_locate(samples, index, &first);
    uint32_t *tokens = (uint32_t *)targets; // read in place, then shifted: int32_t and uint32_t may alias
    dataset_read(dataset, first, (uint64_t)seq, tokens);
    uint32_t last, largest;
    dataset_read(dataset, first + (uint64_t)seq, 1, &last);
    largest = last;
    for (int i = 0; i < seq; i++)
        largest = tokens[i] > largest ? tokens[i] : largest;
    if (largest >= dataset->vocab_size) return window_damaged(dataset, first, (uint64_t)seq + 1);
    memcpy(ids, tokens, (size_t)seq * sizeof *ids);
    memmove(targets, targets + 1, (size_t)(seq - 1) * sizeof *targets);
    targets[seq - 1] = (int32_t)last;
    *valid = seq;
    if (doc_start) memset(doc_start, 0, (size_t)seq * sizeof *doc_start);
    if (!samples->mask_documents) return NULL;
    uint64_t previous = first;
    DocumentWalk walk = document_walk_start(dataset, first);
    while (document_walk_next(&walk, first + (uint64_t)seq, &start)) {
        if (start == previous) continue; // an empty document
        if (start < previous) return status_runtime("%s is being changed while it is in use", dataset->path);
        int position = (int)(start - first);
        targets[position - 1] = -1;
        --*valid;
        if (doc_start)
            for (int i = position; i < seq; i++)
                doc_start[i] = position;
        previous = start;
    }
    return NULL;
}

int64_t samples_targets(const Samples *samples, uint64_t first, uint64_t count) {
    int64_t valid = (int64_t)count * samples->seq;
    if (!samples->mask_documents) return valid;
    for (uint64_t i = first; i < first + count; i++) {
        uint64_t token, start, previous;
        const Dataset *dataset = sample_locate(samples, i, &token);
        previous = token;
        DocumentWalk walk = document_walk_start(dataset, token);
        while (document_walk_next(&walk, token + (uint64_t)samples->seq, &start)) {
            valid -= start != previous;
            previous = start;
        }
    }
    return valid;
}
