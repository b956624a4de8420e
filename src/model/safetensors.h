// The safetensors file format: 8 bytes of header length, a JSON header, then the tensors' bytes without holes.
// Files come from anywhere, so every number in the header is checked before it is believed.
#pragma once

#include "base/arena.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"

enum { SAFETENSORS_DIMS_MAX = 8 };

typedef struct SafeTensor {
    const char *name;
    DType dtype;
    int dims;
    int64_t shape[SAFETENSORS_DIMS_MAX];
    int64_t count;    // elements
    const void *data; // in the map; not necessarily aligned to the element
    size_t bytes;
} SafeTensor;

typedef struct Safetensors {
    char *path;
    FileMap map;
    Arena arena;
    SafeTensor *tensors; // sorted by name
    int count;
} Safetensors;

Status safetensors_open(Safetensors *file, const char *path);
void safetensors_close(Safetensors *file);
const SafeTensor *safetensors_find(const Safetensors *file, const char *name); // NULL when absent
// Elements [first, first + count) as float, from F32, BF16 or F16; another type is an error that names the tensor.
Status safetensors_read_f32(const SafeTensor *tensor, int64_t first, int64_t count, float *out, const char *path);

// A file of known tensors before their values are there: its header, and where each tensor will be. Several processes
// can fill one in: one creates it at its full size, then each writes its values to their places.
typedef struct SafetensorsPlace {
    const char *name; // the caller's
    int64_t offset;   // in the file
    size_t bytes;
} SafetensorsPlace;

typedef struct SafetensorsForm {
    char *header; // with its length before it
    size_t header_bytes, data_bytes;
    SafetensorsPlace *places; // sorted by name
    int count;
} SafetensorsForm;

void safetensors_form_make(SafetensorsForm *form, const SafeTensor *tensors, int count); // data in the order given
void safetensors_form_free(SafetensorsForm *form);
const SafetensorsPlace *safetensors_form_find(const SafetensorsForm *form, const char *name); // NULL when absent
// Header and full size into a new file that is open for writing.
Status safetensors_form_start(const SafetensorsForm *form, int fd, const char *path);

// Writing: the list of tensors first, then their bytes in the same order, in any pieces. The file takes its name only
// when it is complete and on disk.
typedef struct SafetensorsWriter SafetensorsWriter;
Status safetensors_writer_open(SafetensorsWriter **writer, const char *path, const SafeTensor *tensors, int count);
Status safetensors_writer_add(SafetensorsWriter *writer, const void *data, size_t bytes);
Status safetensors_writer_close(SafetensorsWriter *writer); // checks that all bytes came, syncs, renames
void safetensors_writer_abort(SafetensorsWriter *writer);   // removes what was written; NULL is fine
