// JSON through jansson: reading with clear errors, and typed access. Writing uses jansson's own json_pack and
// json_dumps.
#pragma once

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

// The caller owns *root (json_decref). `name` is what errors call the text.
Status json_read_file(json_t **root, const char *path);
Status json_read_text(json_t **root, const char *text, size_t length, const char *name);
Status json_write_file(const json_t *root, const char *path); // atomic, indented, key order kept

// Members of an object. `where` is the file that errors name. A missing or null member leaves *value as it is and is no
// error, so callers set the default first; the wrong type is an error that names the key.
Status json_get_int(const json_t *object, const char *key, int64_t *value, const char *where);
Status json_get_double(const json_t *object, const char *key, double *value, const char *where);
Status json_get_bool(const json_t *object, const char *key, bool *value, const char *where);
Status json_get_text(const json_t *object, const char *key, const char **value, const char *where); // borrowed
bool json_has(const json_t *object, const char *key); // present and not null

// A string of any bytes, such as a path; what is no UTF-8 becomes U+FFFD. jansson would make no value of it at all, and
// json_pack nothing of all the others either.
json_t *json_text(const char *bytes);
