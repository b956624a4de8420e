// Any JSON as dataset.json, its own hash made right, beside two sound shards: every token and document of what opens is
// read.
#include "fuzz_json.h"

#include "base/text.h"
#include "data/dataset.h"
#include "data/inspect.h"

#include <xxhash.h>

const char *const fuzz_words[] = {"format",    "hearth-dataset", "hash",      "splits",  "train",
                                  "val",       "test",           "shards",    "file",    "checksum",
                                  "tokens",    "a.shard",        "b.shard",   "c.shard", "train/00000.shard",
                                  "tokenizer", "plan_hash",      "documents", "..",      "",
                                  "sources",   "options",        NULL};

static void shard_make(const char *path, uint64_t vocabulary) {
    const uint32_t ids[] = {1, 2, 3, 4, 5};
    ShardWriter *writer;
    if (shard_writer_open(&writer, path, vocabulary, 7) || shard_writer_add(writer, ids, 5, 9) ||
        shard_writer_add(writer, ids, 2, 3) || shard_writer_close(writer, NULL))
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    shard_make("/mem/set/a.shard", 300);
    shard_make("/mem/set/b.shard", 300);
    shard_make("/mem/set/c.shard", 70000);
    fuzz_files_fix();
    return 0;
}

// As dataset_write_json has it.
static void hash_correct(json_t *root) {
    static char text[1 << 16];
    char hash[24];
    json_object_del(root, "hash");
    size_t length = json_dumpb(root, text, sizeof text, JSON_COMPACT);
    if (length > sizeof text) return;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH64(text, length, 0));
    json_object_set_new(root, "hash", json_string(hash));
}

static void split_use(const char *split, DatasetVerify verify) {
    Dataset dataset;
    Status status = dataset_open(&dataset, "/mem/set", split, verify);
    if (!status) {
        uint32_t ids[16];
        for (uint64_t at = 0; at < dataset.token_count; at += 16)
            dataset_read(&dataset, at, dataset.token_count - at < 16 ? dataset.token_count - at : 16, ids);
        DatasetLengths lengths;
        DatasetPacking packing;
        dataset_lengths(&dataset, &lengths);
        dataset_packing(&dataset, 4, &packing);
        for (uint64_t i = 0; i < dataset.document_count; i++) {
            uint64_t first, count;
            dataset_document(&dataset, i, &first, &count);
            if (first > dataset.token_count || count > dataset.token_count - first) abort();
        }
        dataset_close(&dataset);
    }
    status_free(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (json_is_object(root)) {
        hash_correct(root);
        fuzz_file_put_json("/mem/set/dataset.json", root);
    } else {
        fuzz_file_put("/mem/set/dataset.json", data, size);
    }
    json_decref(root);
    split_use("train", VERIFY_ONCE);
    split_use("val", VERIFY_ALWAYS);
    fuzz_files_clear();
    return 0;
}
