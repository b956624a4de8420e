// Any JSON as the index of a model in several files, beside two sound files of a tiny model and a damaged one.
#include "base/text.h"
#include "fuzz_json.h"
#include "model/hf.h"
#include "tiny_model.h"
#include "train/checkpoint.h"

const char *const fuzz_words[] = {"metadata",
                                  "total_size",
                                  "weight_map",
                                  "model-00001-of-00002.safetensors",
                                  "model-00002-of-00002.safetensors",
                                  "broken.safetensors",
                                  "missing.safetensors",
                                  "..",
                                  ".",
                                  "../hf/model-00001-of-00002.safetensors",
                                  "model.safetensors.index.json",
                                  "lm_head.weight",
                                  "model.embed_tokens.weight",
                                  "",
                                  NULL};

static Model *tiny_model; // read into again and again

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    tiny_model = fuzz_tiny_model();
    ModelSnapshot snapshot = {0};
    if (model_snapshot(tiny_model, &snapshot, false) ||
        hf_save(&tiny_model->layout, &snapshot, "/mem/hf", DTYPE_F32, 1024))
        abort();
    model_snapshot_free(&snapshot);
    fuzz_file_put("/mem/hf/broken.safetensors", "broken", 6);
    fuzz_files_fix();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_file_put("/mem/hf/model.safetensors.index.json", data, size);
    status_free(hf_load_weights(tiny_model, "/mem/hf"));
    fuzz_files_clear();
    return 0;
}
