// Any bytes as the list of shards that were found whole, beside a sound shard and a damaged one: it is no crash, and
// what is added to it is found.
#include "fuzz_files.h"

#include "data/verified.h"

static Shard sound;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const uint32_t ids[] = {1, 2, 3, 4, 5};
    ShardWriter *writer;
    if (shard_writer_open(&writer, "/mem/set/a.shard", 300, 7) || shard_writer_add(writer, ids, 5, 9) ||
        shard_writer_close(writer, NULL) || shard_open(&sound, "/mem/set/a.shard", false))
        abort();
    fuzz_files_fix();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_file_put("/mem/set/" VERIFIED_FILE, data, size);
    if (!verified_find(&sound)) verified_add(&sound);
    if (!memchr(data, 0, size) && !verified_find(&sound)) abort(); // text ends at a NUL
    fuzz_files_clear();
    return 0;
}
