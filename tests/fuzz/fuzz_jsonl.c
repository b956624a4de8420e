// Any bytes as a line of JSON: hearth's scanner must agree with jansson on what is valid, and on the text.
#include "data/reader_jsonl.h"
#include "fuzz_files.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static JsonlRecord record; // reused, as the reader does
    const JsonlFields fields = {"text", "score"};
    const char *line = (const char *)data;
    if (memchr(line, '\n', size)) return 0;
    JsonlResult result = jsonl_scan(line, size, &fields, &record);
    if (result == JSONL_BAD) {
        if (!record.reason || record.offset > size) abort();
        return 0;
    }
    // NaN and Infinity are no JSON; the scanner takes them, because Python writes them.
    if (memmem(line, size, "NaN", 3) || memmem(line, size, "Infinity", 8)) return 0;
    // What the scanner takes, jansson must take. It refuses what JSON allows: huge numbers, deep nesting, NUL in a key.
    json_error_t error;
    json_t *root = json_loadb(line, size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!root) {
        enum json_error_code code = json_error_code(&error);
        if (code != json_error_numeric_overflow && code != json_error_stack_overflow &&
            code != json_error_null_byte_in_key)
            abort();
        return 0;
    }
    const json_t *text = json_object_get(root, "text");
    if (result == JSONL_TEXT && (!json_is_string(text) || json_string_length(text) != record.length ||
                                 memcmp(json_string_value(text), record.text, record.length) != 0))
        abort();
    if (result == JSONL_NULL && !json_is_null(text)) abort();
    if (result == JSONL_MISSING && text) abort();
    json_decref(root);
    return 0;
}
