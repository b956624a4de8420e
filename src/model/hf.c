#include "model/hf.h"

#include "base/json.h"
#include "base/text.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ELEMENTS = 1 << 20 };
static const int64_t SHARD_BYTES_DEFAULT = 5000000000;

// ---- loading --------------------------------------------------------------------------------------------------------

typedef struct Source {
    Safetensors *files;
    int count;
    char *where; // the path that errors name
} Source;

static void source_close(Source *source) {
    for (int i = 0; i < source->count; i++)
        safetensors_close(&source->files[i]);
    free(source->files);
    free(source->where);
}

static Status source_add(Source *source, const char *path) {
    for (int i = 0; i < source->count; i++)
        if (strcmp(source->files[i].path, path) == 0) return NULL;
    source->files = xrealloc(source->files, (size_t)(source->count + 1) * sizeof *source->files);
    TRY(safetensors_open(&source->files[source->count], path));
    source->count++;
    return NULL;
}

static Status source_add_index(Source *source, const char *directory, const char *index) {
    json_t *root = NULL;
    TRY(json_read_file(&root, index));
    json_t *map = json_object_get(root, "weight_map"), *file;
    const char *name;
    Status status = json_is_object(map) ? NULL : status_at(status_usage("no \"weight_map\""), index, 0, 0);
    if (!status) json_object_foreach(map, name, file) {
            const char *part = json_string_value(file);
            if (!part || strchr(part, '/')) {
                status =
                    status_at(status_usage("the file of tensor \"%s\" is not a plain file name", name), index, 0, 0);
            } else {
                char *path = path_join(directory, part);
                status = source_add(source, path);
                free(path);
            }
            if (status) break;
        }
    json_decref(root);
    return status;
}

static Status source_open(Source *source, const char *path) {
    *source = (Source){.where = text_copy(path)};
    if (!file_is_directory(path)) return source_add(source, path);
    char *index = path_join(path, "model.safetensors.index.json"), *single = path_join(path, "model.safetensors");
    Status status;
    if (file_exists(index))
        status = source_add_index(source, path, index);
    else if (file_exists(single))
        status = source_add(source, single);
    else
        status =
            status_hint(status_usage("no model.safetensors and no model.safetensors.index.json in %s", path),
                        "hearth reads safetensors; convert .bin checkpoints with transformers' save_pretrained first");
    free(index);
    free(single);
    return status;
}

static const SafeTensor *source_find(const Source *source, const char *name, const char **path) {
    for (int i = 0; i < source->count; i++) {
        const SafeTensor *tensor = safetensors_find(&source->files[i], name);
        *path = source->files[i].path;
        if (tensor) return tensor;
    }
    *path = source->where;
    return NULL;
}

Status hf_read_slice(const SafeTensor *tensor, const LayoutSlice *slice, float *host, const char *path) {
    int64_t cols = slice->shape[slice->dims - 1];
    bool joined = slice->cols == cols && slice->stride == cols;
    int64_t runs = joined && slice->rows ? 1 : slice->rows, length = joined ? slice->count : slice->cols;
    for (int64_t run = 0; run < runs; run++)
        TRY(safetensors_read_f32(tensor, (slice->row + run) * cols + slice->col, length,
                                 host + slice->at + run * slice->stride, path));
    return NULL;
}

static Status load_part(const Source *source, const LayoutSlice *part, float *host) {
    const char *path;
    const SafeTensor *tensor = source_find(source, part->name, &path);
    if (!tensor) return status_at(status_usage("tensor \"%s\" is missing", part->name), path, 0, 0);
    bool same = tensor->dims == part->dims;
    for (int i = 0; same && i < part->dims; i++)
        same = tensor->shape[i] == part->shape[i];
    if (!same) {
        TextBuffer shape = {0};
        for (int i = 0; i < tensor->dims; i++)
            text_buffer_format(&shape, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
        Status status =
            part->dims == 1
                ? status_usage("tensor \"%s\" has shape [%s], the config needs [%lld]", part->name,
                               shape.data ? shape.data : "", (long long)part->shape[0])
                : status_usage("tensor \"%s\" has shape [%s], the config needs [%lld, %lld]", part->name,
                               shape.data ? shape.data : "", (long long)part->shape[0], (long long)part->shape[1]);
        text_buffer_free(&shape);
        return status_at(status, path, 0, 0);
    }
    TRY(hf_read_slice(tensor, part, host, path));
    uint32_t largest = 0; // of the values' sizes: infinities and NaN are above all others
    for (int64_t row = 0; row < part->rows; row++)
        for (int64_t col = 0; col < part->cols; col++) {
            uint32_t bits;
            memcpy(&bits, host + part->at + row * part->stride + col, sizeof bits);
            largest = (bits & 0x7fffffff) > largest ? bits & 0x7fffffff : largest;
        }
    if (largest < 0x7f800000) return NULL;
    return status_hint(
        status_at(status_runtime("tensor \"%s\" holds values that are not finite (NaN or infinity)", part->name), path,
                  0, 0),
        "the training diverged or the file is damaged; take an earlier checkpoint");
}

// A file may repeat the tied head; anything else that no parameter asks for means that config and weights do not belong
// together.
static Status check_nothing_left(const Source *source, const Layout *layout) {
    int present = 0, used = 0;
    for (int i = 0; i < layout->param_count; i++)
        used += layout_slice_count(layout, &layout->params[i]);
    for (int i = 0; i < source->count; i++)
        present += source->files[i].count;
    const char *path;
    if (layout->request.config.tied && source_find(source, "lm_head.weight", &path)) present--;
    if (present == used) return NULL;
    for (int f = 0; f < source->count; f++) {
        for (int t = 0; t < source->files[f].count; t++) {
            const char *name = source->files[f].tensors[t].name;
            bool known = layout->request.config.tied && strcmp(name, "lm_head.weight") == 0;
            for (int i = 0; i < layout->param_count && !known; i++)
                for (int k = 0; k < layout_slice_count(layout, &layout->params[i]) && !known; k++)
                    known = strcmp(layout_slice(layout, &layout->params[i], k).name, name) == 0;
            if (!known)
                return status_at(
                    status_usage("tensor \"%s\" is not part of the model that config.json describes", name),
                    source->files[f].path, 0, 0);
        }
    }
    return NULL;
}

// Of the whole model: other ranks may hold what this one has no use for.
static Status check_whole_model(const Source *source, const LayoutRequest *request) {
    LayoutRequest one = *request;
    one.mesh = MESH_SINGLE;
    one.rank = 0;
    Layout layout;
    TRY(layout_build(&layout, &one));
    Status status = check_nothing_left(source, &layout);
    layout_free(&layout);
    return status;
}

Status hf_load_weights(Model *model, const char *path) {
    const Layout *layout = &model->layout;
    Source source;
    Status status = source_open(&source, path);
    for (int i = 0; i < layout->param_count && !status; i++) {
        const LayoutParam *param = &layout->params[i];
        float *host = xcalloc((size_t)param->count, sizeof(float)); // no slice may have what an uneven cut pads with
        for (int k = 0; k < layout_slice_count(layout, param) && !status; k++) {
            LayoutSlice part = layout_slice(layout, param, k);
            status = load_part(&source, &part, host);
        }
        if (!status) model_write_param(model, param, MODEL_WEIGHTS, host);
        free(host);
    }
    if (!status) model_share_weights(model);
    if (!status) status = check_whole_model(&source, &layout->request);
    source_close(&source);
    return status;
}

// ---- saving ---------------------------------------------------------------------------------------------------------

typedef struct Piece { // one HF tensor and where it comes from
    LayoutSlice part;
    const LayoutParam *param;
    int file;
} Piece;

static Status write_piece(SafetensorsWriter *writer, const Layout *layout, const ModelSnapshot *snapshot,
                          const Piece *piece, DType dtype, float *wide, uint16_t *narrow) {
    for (int64_t at = 0; at < piece->part.count; at += CHUNK_ELEMENTS) {
        int64_t count = piece->part.count - at < CHUNK_ELEMENTS ? piece->part.count - at : CHUNK_ELEMENTS;
        model_snapshot_read(snapshot, layout, piece->param, MODEL_WEIGHTS, piece->part.at + at, count, wide);
        if (dtype == DTYPE_F32) {
            TRY(safetensors_writer_add(writer, wide, (size_t)count * sizeof(float)));
            continue;
        }
        for (int64_t i = 0; i < count; i++) {
            narrow[i] = dtype == DTYPE_BF16 ? bf16_from_f32(wide[i]) : f16_from_f32(wide[i]);
            if (dtype == DTYPE_F16 && (narrow[i] & 0x7fff) == 0x7c00 && isfinite(wide[i]))
                return status_hint(status_usage("%s holds %g, which is beyond fp16", piece->part.name, wide[i]),
                                   "export as bf16 or fp32");
        }
        TRY(safetensors_writer_add(writer, narrow, (size_t)count * 2));
    }
    return NULL;
}

static void file_name(char *out, size_t size, int file, int files) {
    if (files == 1)
        snprintf(out, size, "model.safetensors");
    else
        snprintf(out, size, "model-%05d-of-%05d.safetensors", file + 1, files);
}

static Status write_file(const Layout *layout, const ModelSnapshot *snapshot, const char *directory,
                         const Piece *pieces, int piece_count, int file, int files, DType dtype) {
    SafeTensor *tensors = xcalloc((size_t)piece_count + 1, sizeof *tensors);
    int count = 0;
    for (int i = 0; i < piece_count; i++) {
        if (pieces[i].file != file) continue;
        tensors[count++] = (SafeTensor){.name = pieces[i].part.name,
                                        .dtype = dtype,
                                        .dims = pieces[i].part.dims,
                                        .shape = {pieces[i].part.shape[0], pieces[i].part.shape[1]}};
    }
    char name[64];
    file_name(name, sizeof name, file, files);
    char *path = path_join(directory, name);
    SafetensorsWriter *writer = NULL;
    Status status = safetensors_writer_open(&writer, path, tensors, count);
    float *wide = xmalloc(CHUNK_ELEMENTS * sizeof(float));
    uint16_t *narrow = xmalloc(CHUNK_ELEMENTS * sizeof(uint16_t));
    for (int i = 0; i < piece_count && !status; i++)
        if (pieces[i].file == file) status = write_piece(writer, layout, snapshot, &pieces[i], dtype, wide, narrow);
    if (!status)
        status = safetensors_writer_close(writer);
    else
        safetensors_writer_abort(writer);
    free(wide);
    free(narrow);
    free(tensors);
    free(path);
    return status;
}

static Status write_index(const char *directory, const Piece *pieces, int piece_count, int files, int64_t total) {
    json_t *map = json_object();
    for (int i = 0; i < piece_count; i++) {
        char name[64];
        file_name(name, sizeof name, pieces[i].file, files);
        json_object_set_new(map, pieces[i].part.name, json_string(name));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *path = path_join(directory, "model.safetensors.index.json");
    Status status = json_write_file(root, path);
    json_decref(root);
    free(path);
    return status;
}

static Status write_configs(const ModelConfig *config, const char *directory, DType dtype) {
    json_t *root = model_config_json(config);
    const char *spelled = dtype == DTYPE_F32 ? "float32" : dtype == DTYPE_BF16 ? "bfloat16" : "float16";
    json_object_set_new(root, "torch_dtype", json_string(spelled));
    char *path = path_join(directory, "config.json");
    Status status = json_write_file(root, path);
    json_decref(root);
    free(path);
    if (status) return status;
    root = json_object();
    if (config->bos >= 0) json_object_set_new(root, "bos_token_id", json_integer(config->bos));
    if (config->eos >= 0) json_object_set_new(root, "eos_token_id", json_integer(config->eos));
    path = path_join(directory, "generation_config.json");
    status = json_write_file(root, path);
    json_decref(root);
    free(path);
    return status;
}

Status hf_save(const Layout *layout, const ModelSnapshot *snapshot, const char *directory, DType dtype,
               int64_t shard_bytes) {
    if (shard_bytes <= 0) shard_bytes = SHARD_BYTES_DEFAULT;
    int count = 0, files = 1;
    int64_t total = 0, in_file = 0;
    for (int i = 0; i < layout->param_count; i++)
        count += layout_slice_count(layout, &layout->params[i]);
    Piece *pieces = xcalloc((size_t)count, sizeof *pieces);
    count = 0;
    for (int i = 0; i < layout->param_count; i++) {
        for (int k = 0; k < layout_slice_count(layout, &layout->params[i]); k++) {
            Piece *piece = &pieces[count++];
            piece->param = &layout->params[i];
            piece->part = layout_slice(layout, piece->param, k);
            int64_t bytes = piece->part.count * (int64_t)dtype_size(dtype);
            if (in_file && in_file + bytes > shard_bytes) files++, in_file = 0;
            in_file += bytes;
            total += bytes;
            piece->file = files - 1;
        }
    }
    Status status = dir_make(directory);
    for (int file = 0; file < files && !status; file++)
        status = write_file(layout, snapshot, directory, pieces, count, file, files, dtype);
    if (!status && files > 1) status = write_index(directory, pieces, count, files, total);
    if (!status) status = write_configs(&layout->request.config, directory, dtype);
    free(pieces);
    return status;
}
