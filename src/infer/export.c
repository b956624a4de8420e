// Export: the weights through model/hf, the tokenizer as it is.
#include "infer/export.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "infer/loaded.h"
#include "model/hf.h"

#include <stdlib.h>
#include <string.h>

// The file as it is, and the small one that tells transformers which class reads it.
static Status write_tokenizer(const Loaded *loaded, const char *directory) {
    if (!loaded->tokenizer || strcmp(loaded->tokenizer_path, "bytes") == 0) return NULL;
    TRY(tokenizer_copy_file(loaded->tokenizer_path, directory));
    char *about = path_join(directory, "tokenizer_config.json");
    json_t *root = json_pack("{s:s,s:I}", "tokenizer_class", "PreTrainedTokenizerFast", "model_max_length",
                             (json_int_t)loaded->config.max_positions);
    int64_t end = tokenizer_end_of_text(loaded->tokenizer);
    size_t length;
    const char *bytes = end >= 0 ? tokenizer_token_bytes(loaded->tokenizer, (uint32_t)end, &length) : NULL;
    if (bytes) json_object_set_new(root, "eos_token", json_stringn(bytes, length));
    Status status = json_write_file(root, about);
    json_decref(root);
    free(about);
    return status;
}

static Status check_empty(const char *directory) {
    char **names, *existing = path_join(directory, "config.json");
    size_t count;
    bool model = file_exists(existing);
    free(existing);
    if (!file_exists(directory)) return NULL;
    TRY(dir_list(&names, &count, directory));
    names_free(names, count);
    if (!count) return NULL;
    return status_hint(model ? status_usage("%s holds a model already", directory)
                             : status_usage("%s is not empty, and a model needs a directory of its own", directory),
                       "name one that is not there yet");
}

Status export_hf(const char *path, const char *checkpoint, const char *directory, DType dtype, char **source) {
    TRY(check_empty(directory));
    Loaded loaded;
    LoadedRequest request = {.path = path, .checkpoint = checkpoint, .device = "cpu", .precision = "fp32", .seq = 16};
    TRY(loaded_open(&loaded, &request));
    ModelSnapshot snapshot = {0};
    if (loaded.model->router_bias)
        log_warn("the router's bias (model.router_bias_rate) has no place in the Hugging Face format and is left out: "
                 "some tokens will choose other experts");
    // What a run was trained on ends documents with its own tokenizer's token, whatever the model it started from had.
    int64_t end = loaded.tokenizer ? tokenizer_end_of_text(loaded.tokenizer) : -1;
    if (end >= 0 && (loaded.checkpoint || loaded.model->layout.request.config.eos < 0))
        loaded.model->layout.request.config.eos = (int)end;
    if (!loaded.tokenizer || strcmp(loaded.tokenizer_path, "bytes") == 0)
        log_warn("no tokenizer is written beside the model: %s",
                 loaded.tokenizer ? "bytes have no tokenizer.json" : "none was found");
    char *made = path_first_missing(directory);
    Status status = dir_make(directory);
    if (!status) status = model_snapshot(loaded.model, &snapshot, false);
    if (!status) status = hf_save(&loaded.model->layout, &snapshot, directory, dtype, 0);
    if (!status) status = write_tokenizer(&loaded, directory);
    if (!status && source) *source = text_copy(loaded.source);
    if (status && made) status_free(dir_remove(made));
    free(made);
    model_snapshot_free(&snapshot);
    loaded_close(&loaded);
    return status;
}
