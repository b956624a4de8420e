// Token shards: a checked header, then tokens as little-endian uint16 (vocabulary up to 65,536) or uint32, then the
// index of documents. The file is what the loader maps; nothing in it needs parsing beyond the header.
//
//   bytes 0..127   ShardHeader
//   tokens         token_count * token_bytes, padded to 8 bytes
//   documents      (document_count + 1) * uint64: token offset where each document starts; the last is token_count
#pragma once

#include "base/file.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SHARD_MAGIC   "HEARTHSH"
#define SHARD_VERSION 1

typedef struct ShardHeader {
    char magic[8];
    uint32_t version;
    uint32_t token_bytes; // 2 or 4
    uint64_t token_count;
    uint64_t document_count;
    uint64_t vocab_size;         // every token is below it
    uint64_t tokenizer_hash;     // tokenizer_hash() of the tokenizer that made the tokens
    uint64_t tokens_checksum;    // XXH64 of the token bytes (without padding)
    uint64_t documents_checksum; // XXH64 of the document index
    uint64_t text_bytes;         // bytes of text the tokens stand for, for bits per byte; 0 when unknown
    uint8_t reserved[48];
    uint64_t header_checksum; // XXH64 of the bytes before it
} ShardHeader;                // little-endian, 128 bytes

typedef struct Shard {
    char *path;
    FileMap map;
    const ShardHeader *header;
    const void *tokens;
    const uint64_t *documents; // [document_count + 1]
} Shard;

uint32_t shard_token_bytes(uint64_t vocab_size); // of one token: 2 or 4

// Maps a shard and checks header, sizes and index; with `deep`, also the checksums of the content and the token range.
Status shard_open(Shard *shard, const char *path, bool deep);
Status shard_token_damaged(const Shard *shard,
                           uint64_t index);     // of an id outside of the vocabulary: names file and place
Status shard_check_content(const Shard *shard); // what `deep` adds; STATUS_RUNTIME: the file is damaged
void shard_close(Shard *shard);

static inline uint32_t shard_token(const Shard *shard, uint64_t index) {
    return shard->header->token_bytes == 2 ? ((const uint16_t *)shard->tokens)[index]
                                           : ((const uint32_t *)shard->tokens)[index];
}

// Writes one shard, document by document; the file appears under its name only when finished and synced.
typedef struct ShardWriter ShardWriter;
Status shard_writer_open(ShardWriter **writer, const char *path, uint64_t vocab_size, uint64_t tokenizer_hash);
// ids of one whole document, its end-of-text token included where the corpus uses one.
Status shard_writer_add(ShardWriter *writer, const uint32_t *ids, size_t count, uint64_t text_bytes);
Status shard_writer_close(ShardWriter *writer, ShardHeader *header); // finishes, syncs, renames in; header may be NULL
void shard_writer_abort(ShardWriter *writer);                        // removes what was written
