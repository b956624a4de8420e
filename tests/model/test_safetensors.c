// The safetensors format: what is written reads back, and what is broken is refused with the tensor or offset named.
#include "testing.h"

#include "model/safetensors.h"

static char path[] = "/tmp/hearth-safetensors-XXXXXX";

static int make_path(void **state) {
    (void)state;
    return mkstemp(path) < 0;
}

static int remove_path(void **state) {
    (void)state;
    return remove(path);
}

static void write_raw(uint64_t length, const char *header, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, strlen(header), file);
    fwrite(data, 1, bytes, file);
    fclose(file);
}

static void test_written_tensors_read_back(void **state) {
    (void)state;
    float a[6] = {1, 2, 3, 4, 5, 6};
    bf16 b[3] = {bf16_from_f32(0.5f), bf16_from_f32(-2), bf16_from_f32(3)};
    SafeTensor tensors[3] = {{.name = "layer.weight", .dtype = DTYPE_F32, .dims = 2, .shape = {2, 3}},
                             {.name = "norm \"quoted\"", .dtype = DTYPE_BF16, .dims = 1, .shape = {3}},
                             {.name = "empty", .dtype = DTYPE_F32, .dims = 1, .shape = {0}}};
    SafetensorsWriter *writer;
    assert_ok(safetensors_writer_open(&writer, path, tensors, 3));
    assert_ok(safetensors_writer_add(writer, a, 4 * sizeof *a)); // in pieces
    assert_ok(safetensors_writer_add(writer, a + 4, 2 * sizeof *a));
    assert_ok(safetensors_writer_add(writer, b, sizeof b));
    assert_ok(safetensors_writer_close(writer));
    Safetensors file;
    assert_ok(safetensors_open(&file, path));
    assert_int_equal(file.count, 3);
    float out[6];
    assert_ok(safetensors_read_f32(safetensors_find(&file, "layer.weight"), 0, 6, out, path));
    assert_memory_equal(out, a, sizeof a);
    assert_ok(safetensors_read_f32(safetensors_find(&file, "norm \"quoted\""), 1, 2, out, path));
    assert_true(out[0] == -2 && out[1] == 3);
    assert_null(safetensors_find(&file, "absent"));
    safetensors_close(&file);
}

static void test_a_writer_that_stops_early_leaves_no_file(void **state) {
    (void)state;
    SafeTensor tensor = {.name = "x", .dtype = DTYPE_F32, .dims = 1, .shape = {4}};
    SafetensorsWriter *writer;
    char *target = text_format("%s-other", path);
    assert_ok(safetensors_writer_open(&writer, target, &tensor, 1));
    assert_error(safetensors_writer_close(writer), "0 data bytes were written, 16 announced");
    assert_false(file_exists(target));
    free(target);
}

#define ENTRY(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void test_broken_files_are_refused_by_name_or_offset(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;     // bytes that follow
        uint64_t length; // of the header as claimed; 0: the true one
        const char *error;
    } table[] = {
        {"{" ENTRY("w", "F32", "[2]", "0", "8") "}", 8, 1000, "claims 1000 bytes"},
        {"{" ENTRY("w", "F32", "[2]", "0", "8") "}", 8, UINT64_MAX, "claims"},
        {"{" ENTRY("w", "F32", "[2]", "0", "8") "}", 4, 0, "\"w\""},          // truncated data
        {"{" ENTRY("w", "F32", "[2]", "0", "8") "}", 12, 0, "byte offset 8"}, // data left over
        {"{" ENTRY("w", "F32", "[2]", "0", "4") "}", 4, 0, "\"w\""},          // span does not fit the shape
        {"{" ENTRY("w", "F99", "[2]", "0", "8") "}", 8, 0, "F99"},            // unknown type
        {"{" ENTRY("w", "F32", "[-2]", "0", "8") "}", 8, 0, "\"w\""},
        {"{" ENTRY("w", "F32", "[2.5]", "0", "8") "}", 8, 0, "\"w\""},
        {"{" ENTRY("w", "F32", "[2]", "8", "0") "}", 8, 0, "\"w\""},
        {"{" ENTRY("w", "F32", "[2]", "-8", "0") "}", 8, 0, "\"w\""},
        {"{" ENTRY("w", "F32", "[4294967296,4294967296,4294967296]", "0", "8") "}", 8, 0, "more elements"},
        {"{" ENTRY("a", "F32", "[2]", "0", "8") "," ENTRY("b", "F32", "[2]", "4", "12") "}", 12, 0, "\"b\""}, // overlap
        {"{" ENTRY("a", "F32", "[1]", "0", "4") "," ENTRY("b", "F32", "[1]", "8", "12") "}", 12, 0, "hole"},
        {"{" ENTRY("a", "F32", "[1]", "0", "4") "," ENTRY("a", "F32", "[1]", "4", "8") "}", 8, 0, "uplicate"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, 0, "data_offsets"},
        {"{\"w\":3}", 0, 0, "\"w\""},
        {"[1]", 0, 0, "not a JSON object"},
        {"{\"w\":", 0, 0, "byte offset 8"},
        {"{" ENTRY("w", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, 0, "8 dimensions"},
    };
    char zeros[64] = {0};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        write_raw(table[i].length ? table[i].length : strlen(table[i].header), table[i].header, zeros, table[i].data);
        Safetensors file;
        Status status = safetensors_open(&file, path);
        if (!status) fail_msg("case %zu was accepted: %s", i, table[i].header);
        if (!strstr(status_text(status), table[i].error))
            fail_msg("case %zu: expected \"%s\" in: %s", i, table[i].error, status_text(status));
        status_free(status);
    }
    FILE *tiny = fopen(path, "wb");
    fwrite("abc", 1, 3, tiny);
    fclose(tiny);
    Safetensors file;
    assert_error(safetensors_open(&file, path), "under 8 bytes");
    assert_error(safetensors_open(&file, "/nonexistent/x.safetensors"), "no such file");
}

// Any flipped bit in the header is either refused or leaves a file whose tensors lie inside it.
static void test_flipped_header_bits_never_escape_the_file(void **state) {
    (void)state;
    const char *header = "{" ENTRY("a", "F32", "[2,3]", "0", "24") "," ENTRY("b", "BF16", "[4]", "24", "32") "}";
    char zeros[32] = {0}, copy[512];
    for (size_t bit = 0; bit < 8 * strlen(header); bit++) {
        strcpy(copy, header);
        copy[bit / 8] ^= (char)(1 << bit % 8);
        uint64_t length = strlen(header);
        FILE *out = fopen(path, "wb");
        fwrite(&length, 8, 1, out);
        fwrite(copy, 1, length, out);
        fwrite(zeros, 1, 32, out);
        fclose(out);
        Safetensors file;
        Status status = safetensors_open(&file, path);
        if (status) {
            status_free(status);
            continue;
        }
        size_t sum = 0;
        for (int i = 0; i < file.count; i++)
            sum += file.tensors[i].bytes;
        assert_int_equal(sum, 32);
        safetensors_close(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_tensors_read_back),
        cmocka_unit_test(test_a_writer_that_stops_early_leaves_no_file),
        cmocka_unit_test(test_broken_files_are_refused_by_name_or_offset),
        cmocka_unit_test(test_flipped_header_bits_never_escape_the_file),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
