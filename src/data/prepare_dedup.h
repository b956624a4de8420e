// The set of document hashes seen so far, in bounded memory: a hash table that, when full, is written to disk as a
// sorted run with a Bloom filter in memory. Hashes have 128 bits, so equality of hashes is taken as equality of texts.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct DocumentHash {
    uint64_t high, low;
} DocumentHash;

DocumentHash document_hash(const char *text, size_t length, uint64_t seed);
int document_hash_compare(DocumentHash a, DocumentHash b);

typedef struct DedupSet DedupSet;
// directory: where runs go. entries: how many hashes stay in memory (24 bytes each at most); 0 for the usual 12
// million.
DedupSet *dedup_new(const char *directory, size_t entries);
Status dedup_insert(DedupSet *set, DocumentHash hash, bool *added); // *added is false when it was there already
void dedup_free(DedupSet *set);                                     // removes its runs

// Exactly `size` bytes at `offset`, or an error.
Status bytes_read(int fd, void *data, size_t size, uint64_t offset, const char *path);
