// Reading a checkpoint back, on any number of ranks, only when every checksum holds.
#include "train/checkpoint.h"

#include "base/file.h"
#include "base/io.h"
#include "base/text.h"
#include "model/hf.h"
#include "model/safetensors.h"
#include "train/checkpoint_box.h"
#include "train/checkpoint_write.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20 };

// ---- checksums ------------------------------------------------------------------------------------------------------

// Read, not mapped: what the disk cannot deliver is an error then, and not the end of the process.
static Status read_json(const char *directory, const char *name, json_t **root) {
    char *path = path_join(directory, name), *text;
    size_t size;
    Status status = file_read(&text, &size, path);
    if (!status) status = json_read_text(root, text, size, path);
    free(text);
    free(path);
    return status;
}

static Status hash_range(XXH64_state_t *digest, int fd, size_t offset, size_t bytes, char *chunk, const char *path) {
    while (bytes) {
        ssize_t n = io_read_at(fd, chunk, bytes < CHUNK ? bytes : CHUNK, (int64_t)offset);
        if (n < 0) return status_errno("cannot read %s", path);
        if (n == 0) return status_runtime("%s became shorter while it was read", path);
        XXH64_update(digest, chunk, (size_t)n);
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return NULL;
}

// A tensor of rows x cols elements of `size` bytes, from `offset` of the file on.
static Status hash_box(const CheckpointBox *box, int fd, size_t offset, int64_t cols, size_t size, char *chunk,
                       const char *path, uint64_t *hash) {
    XXH64_state_t *digest = memory_or_exit(XXH64_createState(), 88);
    XXH64_reset(digest, 0);
    bool joined = box->cols == cols;
    int64_t runs = joined ? 1 : box->rows, length = joined ? box->rows * box->cols : box->cols;
    Status status = NULL;
    for (int64_t run = 0; run < runs && !status; run++)
        status = hash_range(digest, fd, offset + (size_t)((box->row + run) * cols + box->col) * size,
                            (size_t)length * size, chunk, path);
    *hash = XXH64_digest(digest);
    XXH64_freeState(digest);
    return status;
}

// Up to version 2 a tensor has one checksum; from then on one for each box that a rank wrote.
static Status stated_boxes(CheckpointBox **boxes, int *count, const json_t *stated, int64_t rows, int64_t cols) {
    if (!json_is_string(stated)) return checkpoint_boxes_read(boxes, count, stated, rows, cols);
    *boxes = xcalloc(1, sizeof **boxes);
    *count = 1;
    **boxes =
        (CheckpointBox){.rows = rows, .cols = cols, .hash = (uint64_t)strtoull(json_string_value(stated), NULL, 16)};
    return NULL;
}

static Status verify_tensor(const Safetensors *file, const SafeTensor *tensor, const json_t *stated, int fd,
                            char *chunk) {
    int64_t rows = tensor->dims > 1 ? tensor->shape[0] : 1, cols = rows ? tensor->count / rows : 0;
    size_t offset = (size_t)((const char *)tensor->data - (const char *)file->map.data);
    CheckpointBox *boxes;
    int count;
    Status status = stated_boxes(&boxes, &count, stated, rows, cols);
    if (status)
        return status_at(status_context(status, "manifest.json, tensor \"%s\"", tensor->name), file->path, 0, 0);
    for (int i = 0; i < count && !status; i++) {
        uint64_t hash;
        status = hash_box(&boxes[i], fd, offset, cols, dtype_size(tensor->dtype), chunk, file->path, &hash);
        if (!status && hash != boxes[i].hash)
            status = status_at(status_usage("tensor \"%s\" is damaged: its checksum does not match", tensor->name),
                               file->path, 0, 0);
    }
    free(boxes);
    return status;
}

static Status verify_tensors(const Safetensors *file, const json_t *hashes, const char *path) {
    if ((size_t)file->count != json_object_size(hashes))
        return status_at(status_usage("the file holds other tensors than the manifest"), path, 0, 0);
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return status_errno("cannot open %s", path);
    char *chunk = xmalloc(CHUNK);
    Status status = NULL;
    for (int i = 0; i < file->count && !status; i++)
        status = verify_tensor(file, &file->tensors[i], json_object_get(hashes, file->tensors[i].name), fd, chunk);
    free(chunk);
    io_close(fd);
    return status;
}

static Status verify_part(const char *directory, const char *name, const json_t *hashes) {
    char *path = path_join(directory, name);
    Safetensors file;
    Status status = safetensors_open(&file, path);
    if (!status) {
        status = verify_tensors(&file, hashes, path);
        safetensors_close(&file);
    }
    free(path);
    return status;
}

static Status verify_json(const char *path, const json_t *manifest, const char *key, const json_t *root) {
    const char *stated = json_string_value(json_object_get(manifest, key));
    char actual[24];
    checkpoint_hash_text(actual, checkpoint_json_hash(root));
    if (stated && strcmp(stated, actual) == 0) return NULL;
    return status_at(status_usage("%s.json is damaged: its checksum does not match", key), path, 0, 0);
}

static Status verify_manifest(const char *path, const json_t *manifest, const json_t *state, const json_t *config) {
    const char *format = json_string_value(json_object_get(manifest, "format"));
    if (!format || strcmp(format, "hearth-checkpoint") != 0)
        return status_at(status_usage("manifest.json is not one of a checkpoint"), path, 0, 0);
    TRY(verify_json(path, manifest, "state", state));
    int64_t version = 0;
    TRY(json_get_int(manifest, "version", &version, path));
    if (version > 1) TRY(verify_json(path, manifest, "config", config)); // version 1 did not state it
    json_t *files = json_object_get(manifest, "xxh64"), *hashes;
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        CheckpointFile file = checkpoint_file(0, i);
        if (!json_is_object(json_object_get(files, file.name)))
            return status_at(status_usage("manifest.json does not list %s", file.name), path, 0, 0);
    }
    const char *name;
    json_object_foreach(files, name, hashes) {
        if (!json_is_object(hashes) || strchr(name, '/'))
            return status_at(status_usage("manifest.json has no checksums for %s", name), path, 0, 0);
        TRY(verify_part(path, name, hashes));
    }
    return NULL;
}

Status checkpoint_verify(const char *path) {
    json_t *manifest = NULL, *state = NULL, *config = NULL;
    Status status = read_json(path, "manifest.json", &manifest);
    if (!status) status = read_json(path, "state.json", &state);
    if (!status) status = read_json(path, "config.json", &config);
    if (!status) status = verify_manifest(path, manifest, state, config);
    json_decref(manifest);
    json_decref(state);
    json_decref(config);
    return status;
}

// ---- finding --------------------------------------------------------------------------------------------------------

static Status none_usable(const char *directory, const int64_t *steps, int count) {
    TextBuffer names = {0};
    for (int i = 0; i < count; i++)
        text_buffer_format(&names, "%sstep-%lld", i ? ", " : "", (long long)steps[i]);
    Status status = status_hint(status_runtime("no checkpoint in %s can be used", directory),
                                "damaged: %s; put back a good copy, or move them away", names.data);
    text_buffer_free(&names);
    return status;
}

// A disk or a file server that fails once may well deliver at the second try.
static Status verify_twice(const char *path) {
    Status status = checkpoint_verify(path);
    if (!status || status_code(status) == STATUS_USAGE) return status;
    status_free(status);
    return checkpoint_verify(path);
}

static Status unreadable(Status status, const char *path) {
    return status_hint(
        status_context(status, "the checkpoint %s cannot be read, which says nothing of its content", path),
        "nothing was changed; try again, or rename its folder to go on from an earlier one");
}

Status checkpoint_find(const char *directory, char **path, int64_t *step,
                       void (*say)(void *context, const char *message), void *context) {
    int64_t *steps = NULL;
    int count = 0;
    *path = NULL;
    if (!file_is_directory(directory)) return NULL;
    TRY(checkpoint_steps(directory, &steps, &count));
    Status status = NULL;
    for (int i = count - 1; i >= 0 && !status && !*path; i--) {
        char *candidate = text_format("%s/step-%lld", directory, (long long)steps[i]);
        Status damage = verify_twice(candidate);
        if (!damage) {
            *path = candidate;
            *step = steps[i];
            break;
        }
        if (status_code(damage) != STATUS_USAGE) {
            status = unreadable(damage, candidate);
        } else {
            char *message =
                text_format("checkpoint step-%lld cannot be used: %s", (long long)steps[i], status_text(damage));
            if (say) say(context, message);
            free(message);
            status_free(damage);
        }
        free(candidate);
    }
    if (!status && !*path && count) status = none_usable(directory, steps, count);
    free(steps);
    return status;
}

// ---- loading --------------------------------------------------------------------------------------------------------

// The box of a tensor that this rank has, into its place in the parameter.
static Status load_slice(const Safetensors *file, const LayoutSlice *slice, float *host) {
    const SafeTensor *tensor = safetensors_find(file, slice->name);
    if (!tensor || tensor->dims != slice->dims || tensor->shape[0] != slice->shape[0] ||
        (slice->dims > 1 && tensor->shape[1] != slice->shape[1]))
        return status_at(status_usage("tensor \"%s\" is missing or has another size than the config says", slice->name),
                         file->path, 0, 0);
    return hf_read_slice(tensor, slice, host, file->path);
}

static Status load_file(Model *model, const char *directory, const char *name, ModelState state) {
    const Layout *layout = &model->layout;
    char *path = path_join(directory, name);
    Safetensors file;
    Status status = safetensors_open(&file, path);
    bool opened = !status;
    for (int i = 0; i < layout->param_count && !status; i++) {
        const LayoutParam *param = &layout->params[i];
        float *host = xcalloc((size_t)param->count, sizeof *host); // no slice may have what an uneven cut pads with
        for (int k = 0; k < layout_slice_count(layout, param) && !status; k++) {
            LayoutSlice slice = layout_slice(layout, param, k);
            status = load_slice(&file, &slice, host);
        }
        if (!status) model_write_param(model, param, state, host);
        free(host);
    }
    if (opened) safetensors_close(&file);
    free(path);
    return status;
}

static bool has_file(const char *directory, const char *name) {
    char *path = path_join(directory, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

Status checkpoint_load(Model *model, const char *path, bool with_moments, json_t **state) {
    int count = with_moments ? CHECKPOINT_FILES : 1, island = model->layout.request.island;
    if (!has_file(path, checkpoint_file(island, 0).name)) island = 0;
    for (int i = 0; i < count; i++) {
        CheckpointFile file = checkpoint_file(island, i);
        TRY(load_file(model, path, file.name, file.state));
    }
    model_share_weights(model);
    return state ? read_json(path, "state.json", state) : NULL;
}

Status checkpoint_load_outer(Model *model, const char *path, bool *loaded) {
    CheckpointFile *files;
    int count = checkpoint_file_list(&files, model->layout.request.islands);
    Status status = NULL;
    *loaded = false;
    for (int i = 0; i < count && !status; i++) {
        if (files[i].state != MODEL_ANCHOR && files[i].state != MODEL_MOMENTUM) continue;
        if (!has_file(path, files[i].name)) break;
        status = load_file(model, path, files[i].name, files[i].state);
        *loaded = true;
    }
    free(files);
    return status;
}
