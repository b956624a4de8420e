// Any JSON as a mix of datasets: what opens deals out every sample, each to a dataset that is there.
#include "fuzz_json.h"

#include "data/mix.h"

const char *const fuzz_words[] = {
    "format",  "hearth-mix",   "datasets", "path",     "weight",         "a.shard",      "b.shard", "set",
    "missing", "/mem/a.shard", "..",       "mix.json", "hearth-dataset", "dataset.json", "",        NULL};

static void shard_make(const char *path, uint64_t tokenizer) {
    const uint32_t ids[] = {1, 2, 3, 4, 5};
    ShardWriter *writer;
    if (shard_writer_open(&writer, path, 300, tokenizer) || shard_writer_add(writer, ids, 5, 9) ||
        shard_writer_close(writer, NULL))
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    shard_make("/mem/a.shard", 7);
    shard_make("/mem/b.shard", 8);
    shard_make("/mem/set/c.shard", 7);
    fuzz_files_fix();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint64_t samples[] = {0, 1, 2, 3, 1000, (uint64_t)1 << 32, UINT64_MAX - 1, UINT64_MAX};
    fuzz_file_put("/mem/mix.json", data, size);
    Mix mix;
    Status status = mix_open(&mix, "/mem/mix.json", "train", VERIFY_NEVER);
    if (!status) {
        double sum = 0;
        for (size_t i = 0; i < mix.count; i++)
            sum += mix.weights[i];
        if (!(sum > 0.999 && sum < 1.001)) abort();
        for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
            uint64_t index;
            if (mix_locate(&mix, samples[i], &index) >= mix.count || index > samples[i]) abort();
        }
        mix_close(&mix);
    }
    status_free(status);
    fuzz_files_clear();
    return 0;
}
