// Inside of the TOML reader: the cursor that toml.c (keys, tables, arrays) and toml_scalar.c (strings, numbers, dates)
// move along the text. Nothing else includes this.
#pragma once

#include "base/toml.h"

typedef struct TomlReader {
    Arena *arena;
    const char *name; // of the document, for errors
    const char *at, *end;
    const char *line_start;
    int line;
    const char *mark_at; // the last place whose column was asked for: one long line stays linear in time
    int mark_column;
} TomlReader;

typedef struct TomlMark { // both from 1; columns count characters, not bytes
    int line, column;
} TomlMark;

TomlMark toml_mark(TomlReader *reader); // where the cursor is
Status toml_error(const TomlReader *reader, TomlMark mark, const char *what, ...)
    __attribute__((format(printf, 3, 4), returns_nonnull));

// The byte `offset` after the cursor, 0 beyond the end (the text itself holds no NUL: toml_check_characters saw to
// that).
static inline char toml_peek(const TomlReader *reader, size_t offset) {
    return offset < (size_t)(reader->end - reader->at) ? reader->at[offset] : 0;
}
bool toml_skip_newline(TomlReader *reader); // over one LF or CRLF, if the cursor is at one
// What stands at the cursor, for messages: "'='", "the end of the line", "the end of the document".
const char *toml_describe(const TomlReader *reader, char out[32]);

// Refuses what may stand nowhere in a document: bytes that are not UTF-8, control characters, a CR without LF.
Status toml_check_characters(TomlReader *reader);

// At a quote. `key`: only the single-line kinds.
Status toml_read_string(TomlReader *reader, const char **text, size_t *length, bool key);
Status toml_read_scalar(TomlReader *reader, TomlValue *value); // integer, float, boolean or datetime
