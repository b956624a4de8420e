// TOML 1.0 reader. A document is a tree of values that remember where they were written, so that a later check of a
// value ("heads must divide by kv_heads") can still point at its line and column.
#pragma once

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum TomlType {
    TOML_STRING,
    TOML_INTEGER,
    TOML_FLOAT,
    TOML_BOOLEAN,
    TOML_DATETIME, // all four kinds of date and time, kept as written
    TOML_ARRAY,
    TOML_TABLE,
} TomlType;

typedef struct TomlValue TomlValue;
struct TomlValue {
    TomlType type;
    int line, column; // where the value was written (for a table: its header or key), from 1
    const char *text; // string (NUL-terminated, may hold NUL bytes: see length) or datetime
    size_t length;    // bytes of text; elements of an array; keys of a table
    int64_t integer;
    double number;
    bool boolean;
    const char **keys;   // [length], of a table, in order of appearance
    size_t *key_lengths; // [length], of a table: a quoted key may hold NUL bytes
    TomlValue **values;  // [length], of an array or a table
};

typedef struct Toml {
    Arena arena;
    TomlValue *root; // a table
} Toml;

// `name` is what errors call the document: "name:line:column: ...". Columns count characters. Values nest at most 100
// deep. After an error there is nothing to free.
Status toml_parse(Toml *toml, const char *text, size_t length, const char *name);
Status toml_read_file(Toml *toml, const char *path);
void toml_free(Toml *toml);

TomlValue *toml_get(const TomlValue *table, const char *key); // NULL when absent or not a table
const char *toml_type_name(TomlType type);                    // "a string", "an integer", ... for messages
