// Sound files for the model targets to start from. usage: seeds_model FOLDER
#include "testing.h"

#include "model/safetensors.h"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    static const uint8_t zeros[256];
    const SafeTensor tensors[] = {{.name = "model.embed_tokens.weight", .dtype = DTYPE_F32, .dims = 2, .shape = {4, 3}},
                                  {.name = "model.norm.weight", .dtype = DTYPE_BF16, .dims = 1, .shape = {5}},
                                  {.name = "input_ids", .dtype = DTYPE_I32, .dims = 3, .shape = {1, 2, 3}},
                                  {.name = "empty", .dtype = DTYPE_F32, .dims = 1, .shape = {0}}};
    char *directory = path_join(argv[1], "fuzz_safetensors"), *path = path_join(directory, "sound");
    SafetensorsWriter *writer;
    assert_ok(dir_make(directory));
    assert_ok(safetensors_writer_open(&writer, path, tensors, 4));
    assert_ok(safetensors_writer_add(writer, zeros, 4 * 3 * 4 + 5 * 2 + 6 * 4));
    assert_ok(safetensors_writer_close(writer));
    free(path);
    free(directory);
    return 0;
}
