#include "model/safetensors.h"

#include "base/io.h"
#include "base/json.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_MAX = 100 * 1000 * 1000 }; // as the reference implementation

// ---- reading --------------------------------------------------------------------------------------------------------

static Status bad(const char *path, const char *tensor, const char *what) {
    return status_at(tensor ? status_usage("tensor \"%s\": %s", tensor, what) : status_usage("%s", what), path, 0, 0);
}

// One entry of the header. begin and end are offsets into the data part of `data_bytes` bytes.
static Status read_entry(SafeTensor *tensor, const char *name, const json_t *entry, const char *data, size_t data_bytes,
                         const char *path) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return bad(path, name, "needs \"dtype\", \"shape\" and two \"data_offsets\"");
    if (!dtype_from_name(&tensor->dtype, dtype)) {
        char what[128];
        snprintf(what, sizeof what, "element type \"%.32s\" is not supported", dtype);
        return bad(path, name, what);
    }
    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX) return bad(path, name, "has more than 8 dimensions");
    tensor->dims = (int)json_array_size(shape);
    tensor->count = 1;
    int64_t limit = (int64_t)(data_bytes / dtype_size(tensor->dtype));
    for (int i = 0; i < tensor->dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad(path, name, "a dimension is not a whole number >= 0");
        tensor->shape[i] = json_integer_value(size);
        if (tensor->shape[i] && tensor->count > limit / tensor->shape[i])
            return bad(path, name, "its shape has more elements than the file has bytes");
        tensor->count *= tensor->shape[i];
    }
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t begin = json_is_integer(first) ? json_integer_value(first) : -1;
    int64_t end = json_is_integer(last) ? json_integer_value(last) : -1;
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
        char what[160];
        snprintf(what, sizeof what, "data offsets [%lld, %lld) are outside the %zu data bytes of the file",
                 (long long)begin, (long long)end, data_bytes);
        return bad(path, name, what);
    }
    tensor->name = name;
    tensor->bytes = (size_t)(end - begin);
    tensor->data = data + begin;
    if (tensor->bytes != (size_t)tensor->count * dtype_size(tensor->dtype)) {
        char what[160];
        snprintf(what, sizeof what, "its shape needs %zu bytes but its data offsets span %zu",
                 (size_t)tensor->count * dtype_size(tensor->dtype), tensor->bytes);
        return bad(path, name, what);
    }
    return NULL;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static int compare_places(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; // empty tensors before the one that starts there
}

// The data must be covered exactly: no byte twice, none left over.
static Status check_cover(Safetensors *file, const char *data, size_t data_bytes) {
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    const char *at = data;
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *tensor = &file->tensors[i];
        char what[128];
        if ((const char *)tensor->data != at) {
            snprintf(what, sizeof what, "starts at data offset %td, %s the tensor before it ends (%td)",
                     (const char *)tensor->data - data, (const char *)tensor->data < at ? "before" : "a hole after",
                     at - data);
            return bad(file->path, tensor->name, what);
        }
        at += tensor->bytes;
    }
    if (at == data + data_bytes) return NULL;
    char what[128];
    snprintf(what, sizeof what, "the tensors end at byte offset %td of the data, but the file has %zu", at - data,
             data_bytes);
    return bad(file->path, NULL, what);
}

static Status read_header(Safetensors *file) {
    const char *bytes = file->map.data;
    size_t size = file->map.size;
    uint64_t length;
    if (size < 8) return bad(file->path, NULL, "too short for a safetensors file (under 8 bytes)");
    memcpy(&length, bytes, 8);
    if (length > HEADER_MAX || length > size - 8) {
        char what[128];
        snprintf(what, sizeof what, "the header claims %llu bytes, but %zu follow it", (unsigned long long)length,
                 size - 8);
        return bad(file->path, NULL, what);
    }
    json_t *root = NULL;
    Status status = json_read_text(&root, bytes + 8, (size_t)length, file->path);
    if (status) return status_context(status, "safetensors header (byte offset 8)");
    if (!json_is_object(root)) {
        json_decref(root);
        return bad(file->path, NULL, "the header is not a JSON object");
    }
    const char *data = bytes + 8 + length, *name;
    size_t data_bytes = size - 8 - (size_t)length;
    json_t *entry;
    file->tensors = arena_alloc(&file->arena, (json_object_size(root) + 1) * sizeof *file->tensors);
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        const char *kept = arena_copy(&file->arena, name, strlen(name));
        status = read_entry(&file->tensors[file->count], kept, entry, data, data_bytes, file->path);
        if (status) break;
        file->count++;
    }
    json_decref(root);
    if (!status) status = check_cover(file, data, data_bytes);
    if (!status) qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_names);
    return status;
}

Status safetensors_open(Safetensors *file, const char *path) {
    *file = (Safetensors){0};
    TRY(file_map(&file->map, path));
    file->path = text_copy(path);
    Status status = read_header(file);
    if (status) safetensors_close(file);
    return status;
}

void safetensors_close(Safetensors *file) {
    file_unmap(&file->map);
    arena_free(&file->arena);
    free(file->path);
    *file = (Safetensors){0};
}

const SafeTensor *safetensors_find(const Safetensors *file, const char *name) {
    SafeTensor key = {.name = name};
    if (!file->count) return NULL;
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof *file->tensors, compare_names);
}

Status safetensors_read_f32(const SafeTensor *tensor, int64_t first, int64_t count, float *out, const char *path) {
    const char *at = (const char *)tensor->data + (size_t)first * dtype_size(tensor->dtype);
    if (first < 0 || count < 0 || first + count > tensor->count)
        return bad(path, tensor->name, "is shorter than expected");
    if (tensor->dtype == DTYPE_F32) {
        memcpy(out, at, (size_t)count * sizeof(float));
        return NULL;
    }
    if (tensor->dtype != DTYPE_BF16 && tensor->dtype != DTYPE_F16) {
        char what[96];
        snprintf(what, sizeof what, "has element type %s where F32, BF16 or F16 is needed", dtype_name(tensor->dtype));
        return bad(path, tensor->name, what);
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t narrow;
        memcpy(&narrow, at + 2 * i, 2);
        out[i] = tensor->dtype == DTYPE_BF16 ? bf16_to_f32(narrow) : f16_to_f32(narrow);
    }
    return NULL;
}

// ---- writing --------------------------------------------------------------------------------------------------------

struct SafetensorsWriter {
    char *path, *beside;
    int fd;
    size_t expected, written; // data bytes
};

static int compare_place_names(const void *a, const void *b) {
    return strcmp(((const SafetensorsPlace *)a)->name, ((const SafetensorsPlace *)b)->name);
}

void safetensors_form_make(SafetensorsForm *form, const SafeTensor *tensors, int count) {
    *form = (SafetensorsForm){.places = xcalloc((size_t)count + 1, sizeof *form->places), .count = count};
    json_t *root = json_object();
    json_object_set_new(root, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (int i = 0; i < count; i++) {
        const SafeTensor *tensor = &tensors[i];
        size_t bytes = dtype_size(tensor->dtype), offset = form->data_bytes;
        json_t *shape = json_array();
        for (int k = 0; k < tensor->dims; k++) {
            bytes *= (size_t)tensor->shape[k];
            json_array_append_new(shape, json_integer(tensor->shape[k]));
        }
        json_object_set_new(root, tensor->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(tensor->dtype), "shape", shape,
                                      "data_offsets", (json_int_t)offset, (json_int_t)(offset + bytes)));
        form->places[i] = (SafetensorsPlace){tensor->name, (int64_t)offset, bytes};
        form->data_bytes += bytes;
    }
    // One tensor a line would be nicer to read, but readers expect compact JSON padded with spaces to 8 bytes.
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    uint64_t length = (strlen(text) + 7) / 8 * 8;
    TextBuffer header = {0};
    text_buffer_add(&header, (const char *)&length, sizeof length);
    text_buffer_format(&header, "%-*s", (int)length, text);
    free(text);
    form->header = header.data;
    form->header_bytes = header.length;
    for (int i = 0; i < count; i++)
        form->places[i].offset += (int64_t)header.length;
    qsort(form->places, (size_t)count, sizeof *form->places, compare_place_names);
}

void safetensors_form_free(SafetensorsForm *form) {
    free(form->header);
    free(form->places);
    *form = (SafetensorsForm){0};
}

const SafetensorsPlace *safetensors_form_find(const SafetensorsForm *form, const char *name) {
    SafetensorsPlace key = {.name = name};
    return bsearch(&key, form->places, (size_t)form->count, sizeof *form->places, compare_place_names);
}

Status safetensors_form_start(const SafetensorsForm *form, int fd, const char *path) {
    TRY(file_write_all(fd, form->header, form->header_bytes, path));
    if (io_truncate(fd, (int64_t)(form->header_bytes + form->data_bytes)) == 0) return NULL;
    return status_errno("cannot make %s as large as it will be", path);
}

Status safetensors_writer_open(SafetensorsWriter **out, const char *path, const SafeTensor *tensors, int count) {
    *out = NULL;
    SafetensorsWriter *writer = xcalloc(1, sizeof *writer);
    writer->path = text_copy(path);
    writer->beside = text_format("%s.tmp-%d", path, (int)getpid());
    writer->fd = io_open(writer->beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (writer->fd < 0) {
        Status status = status_errno("cannot create %s", writer->beside);
        free(writer->path);
        free(writer->beside);
        free(writer);
        return status;
    }
    SafetensorsForm form;
    safetensors_form_make(&form, tensors, count);
    writer->expected = form.data_bytes;
    Status status = file_write_all(writer->fd, form.header, form.header_bytes, writer->beside);
    safetensors_form_free(&form);
    if (status)
        safetensors_writer_abort(writer);
    else
        *out = writer;
    return status;
}

Status safetensors_writer_add(SafetensorsWriter *writer, const void *data, size_t bytes) {
    writer->written += bytes;
    return file_write_all(writer->fd, data, bytes, writer->beside);
}

static void writer_free(SafetensorsWriter *writer) {
    free(writer->path);
    free(writer->beside);
    free(writer);
}

Status safetensors_writer_close(SafetensorsWriter *writer) {
    Status status = NULL;
    if (writer->written != writer->expected)
        status = status_runtime("%s: %zu data bytes were written, %zu announced", writer->path, writer->written,
                                writer->expected);
    if (status)
        file_discard(writer->fd, writer->beside);
    else
        status = file_publish(writer->fd, writer->beside, writer->path);
    writer_free(writer);
    return status;
}

void safetensors_writer_abort(SafetensorsWriter *writer) {
    if (!writer) return;
    file_discard(writer->fd, writer->beside);
    writer_free(writer);
}
