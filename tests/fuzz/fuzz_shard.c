// Any bytes as a shard: as they are, and with a header checksum made right, so that what lies behind it is reached.
#include "data/shard.h"
#include "fuzz_files.h"

#include <string.h>

#include <xxhash.h>

static void shard_try(const uint8_t *data, size_t size) {
    for (int deep = 0; deep < 2; deep++) {
        Shard shard;
        Status status = shard_open(&shard, fuzz_file(data, size), deep);
        if (!status) {
            uint64_t sum = 0;
            for (uint64_t i = 0; i < shard.header->token_count; i++)
                sum += shard_token(&shard, i);
            for (uint64_t i = 0; i <= shard.header->document_count; i++)
                sum += shard.documents[i];
            if (sum == UINT64_MAX) abort(); // keeps the loops
            shard_close(&shard);
        }
        status_free(status);
    }
    fuzz_files_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shard_try(data, size);
    if (size < sizeof(ShardHeader)) return 0;
    uint8_t *copy = malloc(size);
    ShardHeader header;
    memcpy(copy, data, size);
    memcpy(&header, data, sizeof header);
    memcpy(header.magic, SHARD_MAGIC, 8);
    header.version = SHARD_VERSION;
    header.header_checksum = XXH64(&header, offsetof(ShardHeader, header_checksum), 0);
    memcpy(copy, &header, sizeof header);
    shard_try(copy, size);
    free(copy);
    return 0;
}
