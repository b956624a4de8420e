// Any bytes as a safetensors file: as they are, and with the header length made right, so that what lies behind it is
// reached. Every tensor of a file that opens is found by its name and read to its last byte.
#include "fuzz_files.h"
#include "model/safetensors.h"

#include <string.h>

static void tensor_touch(const Safetensors *file, const SafeTensor *tensor) {
    const uint8_t *bytes = tensor->data;
    uint64_t sum = 0;
    for (size_t i = 0; i < tensor->bytes; i++)
        sum += bytes[i];
    if (sum == UINT64_MAX) abort(); // keeps the loop
    const SafeTensor *found = safetensors_find(file, tensor->name);
    if (!found || strcmp(found->name, tensor->name) != 0) abort();
    float values[64];
    for (int64_t first = 0; first < tensor->count; first += 64) {
        int64_t count = tensor->count - first < 64 ? tensor->count - first : 64;
        Status status = safetensors_read_f32(tensor, first, count, values, file->path);
        bool refused = status != NULL; // a type that is not a float
        status_free(status);
        if (refused) break;
    }
}

static void file_try(const uint8_t *data, size_t size) {
    Safetensors file;
    Status status = safetensors_open(&file, fuzz_file(data, size));
    if (!status) {
        for (int i = 0; i < file.count; i++)
            tensor_touch(&file, &file.tensors[i]);
        safetensors_close(&file);
    }
    status_free(status);
    fuzz_files_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    file_try(data, size);
    // The bytes up to the last '}' as the header, whatever length they name.
    const uint8_t *end = size > 8 ? memrchr(data + 8, '}', size - 8) : NULL;
    if (!end) return 0;
    uint8_t *copy = malloc(size);
    uint64_t length = (uint64_t)(end + 1 - (data + 8));
    memcpy(copy, data, size);
    memcpy(copy, &length, sizeof length); // little-endian, as the file wants it
    file_try(copy, size);
    free(copy);
    return 0;
}
