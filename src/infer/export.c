// Export: the weights through model/hf, the tokenizer as it is.
#include "infer/export.h"

#include "base/file.h"
#include "base/io.h"
#include "base/json.h"
#include "base/leftovers.h"
#include "base/log.h"
#include "base/text.h"
#include "infer/loaded.h"
#include "model/hf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT_MARK ".exporting-" // between the name of a directory and the number of the process that makes it

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

static Status write_model(Loaded *loaded, const char *directory, DType dtype) {
    ModelSnapshot snapshot = {0};
    Status status = dir_make(directory);
    if (!status) status = model_snapshot(loaded->model, &snapshot, false);
    if (!status) status = hf_save(&loaded->model->layout, &snapshot, directory, dtype, 0);
    if (!status) status = write_tokenizer(loaded, directory);
    model_snapshot_free(&snapshot);
    return status;
}

// Folders from `folder` up to `first`, those that are empty: another export may have begun in them.
static void remove_empty(const char *folder, const char *first) {
    char *path = text_copy(folder);
    while (first && io_rmdir(path) == 0 && strcmp(path, first) != 0) {
        char *above = path_directory(path);
        free(path);
        path = above;
    }
    free(path);
}

// Made beside its place, which it takes when it is whole: an export that is killed leaves no half of a model, and the
// same command can be given again.
static Status write_beside(Loaded *loaded, const char *directory, DType dtype) {
    char *place = realpath(directory, NULL); // without "." and slashes at the end
    if (!place) place = text_copy(directory);
    for (size_t end = strlen(place); end > 1 && place[end - 1] == '/'; end--)
        place[end - 1] = 0;
    char *folder = path_directory(place), *first = path_first_missing(folder);
    char *beside = text_format("%s" EXPORT_MARK "%ld", place, (long)getpid());
    leftovers_remove(folder, EXPORT_MARK);
    Status status = dir_remove(beside);
    if (!status) status = write_model(loaded, beside, dtype);
    if (!status && io_rename(beside, place) != 0)
        status = errno == EEXIST || errno == ENOTEMPTY ? check_empty(directory)
                                                       : status_errno("cannot rename %s to %s", beside, place);
    if (!status) status = file_sync(folder);
    if (status) {
        status_free(dir_remove(beside));
        remove_empty(folder, first);
    }
    free(beside);
    free(first);
    free(folder);
    free(place);
    return status;
}

Status export_hf(const char *path, const char *checkpoint, const char *directory, DType dtype, char **source) {
    TRY(check_empty(directory));
    Loaded loaded;
    LoadedRequest request = {.path = path, .checkpoint = checkpoint, .device = "cpu", .precision = "fp32", .seq = 16};
    TRY(loaded_open(&loaded, &request));
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
    Status status = write_beside(&loaded, directory, dtype);
    if (!status && source) *source = text_copy(loaded.source);
    loaded_close(&loaded);
    return status;
}
