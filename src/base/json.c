// Reading and typed access on top of jansson, whose own errors lack the file and the key.
#include "base/json.h"

#include "base/file.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

Status json_read_text(json_t **root, const char *text, size_t length, const char *name) {
    json_error_t error;
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (*root) return NULL;
    return status_at(status_usage("not valid JSON: %s", error.text), name, error.line, error.column);
}

Status json_read_file(json_t **root, const char *path) {
    FileMap map;
    TRY(file_map(&map, path));
    Status status = json_read_text(root, map.data ? map.data : "", map.size, path);
    file_unmap(&map);
    return status;
}

Status json_write_file(const json_t *root, const char *path) {
    char *text = json_dumps(root, JSON_INDENT(2));
    if (!text) return status_runtime("cannot write %s: the value is not representable as JSON", path);
    Status status = file_write_atomic(path, text, strlen(text));
    free(text);
    return status;
}

bool json_has(const json_t *object, const char *key) {
    json_t *member = json_object_get(object, key);
    return member && !json_is_null(member);
}

static Status wrong_type(const char *where, const char *key, const char *expected) {
    return status_at(status_usage("\"%s\" must be %s", key, expected), where, 0, 0);
}

Status json_get_int(const json_t *object, const char *key, int64_t *value, const char *where) {
    if (!json_has(object, key)) return NULL;
    json_t *member = json_object_get(object, key);
    if (!json_is_integer(member)) return wrong_type(where, key, "an integer");
    *value = json_integer_value(member);
    return NULL;
}

Status json_get_double(const json_t *object, const char *key, double *value, const char *where) {
    if (!json_has(object, key)) return NULL;
    json_t *member = json_object_get(object, key);
    if (!json_is_number(member)) return wrong_type(where, key, "a number");
    *value = json_number_value(member);
    return NULL;
}

Status json_get_bool(const json_t *object, const char *key, bool *value, const char *where) {
    if (!json_has(object, key)) return NULL;
    json_t *member = json_object_get(object, key);
    if (!json_is_boolean(member)) return wrong_type(where, key, "true or false");
    *value = json_is_true(member);
    return NULL;
}

Status json_get_text(const json_t *object, const char *key, const char **value, const char *where) {
    if (!json_has(object, key)) return NULL;
    json_t *member = json_object_get(object, key);
    if (!json_is_string(member)) return wrong_type(where, key, "a string");
    *value = json_string_value(member);
    return NULL;
}

json_t *json_text(const char *bytes) {
    TextBuffer text = {0};
    utf8_repair(&text, bytes, strlen(bytes));
    json_t *string = json_stringn(text.data ? text.data : "", text.length);
    text_buffer_free(&text);
    return string;
}
