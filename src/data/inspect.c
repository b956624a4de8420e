#include "data/inspect.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>

static unsigned length_bin(uint64_t length) {
    unsigned bin = length ? 64 - (unsigned)__builtin_clzll(length) : 0;
    return bin < INSPECT_BINS ? bin : INSPECT_BINS - 1;
}

// The median by bisection over the lengths: a few passes over the index instead of a sorted copy of it.
static uint64_t median_find(const Dataset *dataset, uint64_t low, uint64_t high) {
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, at_most = 0;
        for (size_t s = 0; s < dataset->shard_count; s++) {
            const Shard *shard = &dataset->shards[s];
            for (uint64_t i = 0; i < shard->header->document_count; i++) {
                at_most += shard->documents[i + 1] - shard->documents[i] <= middle;
            }
        }
        if (2 * at_most >= dataset->document_count) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

void dataset_lengths(const Dataset *dataset, DatasetLengths *lengths) {
    *lengths = (DatasetLengths){.documents = dataset->document_count, .tokens = dataset->token_count};
    lengths->shortest = dataset->document_count ? UINT64_MAX : 0;
    for (size_t s = 0; s < dataset->shard_count; s++) {
        const Shard *shard = &dataset->shards[s];
        for (uint64_t i = 0; i < shard->header->document_count; i++) {
            uint64_t length = shard->documents[i + 1] - shard->documents[i];
            lengths->bins[length_bin(length)]++;
            if (length < lengths->shortest) lengths->shortest = length;
            if (length > lengths->longest) lengths->longest = length;
        }
    }
    lengths->mean = dataset->document_count ? (double)dataset->token_count / (double)dataset->document_count : 0;
    lengths->median = median_find(dataset, lengths->shortest, lengths->longest);
}

void dataset_packing(const Dataset *dataset, uint64_t sequence, DatasetPacking *packing) {
    assert(sequence > 0);
    *packing = (DatasetPacking){.sequence = sequence, .packed_sequences = dataset->token_count / sequence};
    uint64_t touches = 0, whole = 0, padded_tokens = 0;
    uint64_t used = packing->packed_sequences * sequence;
    for (size_t s = 0; s < dataset->shard_count; s++) {
        const Shard *shard = &dataset->shards[s];
        for (uint64_t i = 0; i < shard->header->document_count; i++) {
            uint64_t length = shard->documents[i + 1] - shard->documents[i];
            uint64_t first = dataset->first_token[s] + shard->documents[i];
            padded_tokens += length < sequence ? length : sequence;
            if (length == 0 || first >= used) continue;
            uint64_t last = first + length - 1 < used ? first + length - 1 : used - 1;
            touches += last / sequence - first / sequence + 1;
            whole += first / sequence == last / sequence && first + length <= used;
        }
    }
    double documents = (double)dataset->document_count, tokens = (double)dataset->token_count;
    packing->packed_share = tokens > 0 ? (double)used / tokens : 0;
    packing->whole_share = documents > 0 ? (double)whole / documents : 0;
    packing->documents_each = packing->packed_sequences ? (double)touches / (double)packing->packed_sequences : 0;
    packing->padded_share = documents > 0 ? (double)padded_tokens / (documents * (double)sequence) : 0;
    packing->cut_share = tokens > 0 ? 1 - (double)padded_tokens / tokens : 0;
}

void dataset_document(const Dataset *dataset, uint64_t index, uint64_t *first, uint64_t *count) {
    assert(index < dataset->document_count);
    size_t s = 0;
    while (index >= dataset->shards[s].header->document_count)
        index -= dataset->shards[s++].header->document_count;
    const Shard *shard = &dataset->shards[s];
    *first = dataset->first_token[s] + shard->documents[index];
    *count = shard->documents[index + 1] - shard->documents[index];
}
