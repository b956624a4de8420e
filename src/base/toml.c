// TOML 1.0: keys, tables and arrays. Which table may still be extended, and by what, is decided by how it came to be
// (its Origin); toml_scalar.c reads the leaves.
#include "base/toml.h"

#include "base/file.h"
#include "base/text.h"
#include "base/toml_reader.h"

#include <stdlib.h>
#include <string.h>

enum { TOML_DEPTH_MAX = 100 }; // of the tree, so that code that walks it may recurse

typedef enum Origin {
    ORIGIN_VALUE,    // a scalar, or an array written as [1, 2]: complete
    ORIGIN_INLINE,   // a table written as {a = 1}: complete
    ORIGIN_IMPLICIT, // a table that only stands in the path of a [header]: may still get its own header or dotted keys
    ORIGIN_HEADER,   // a table with its own [header] or [[header]]; the root
    ORIGIN_DOTTED,   // a table made by a dotted key: more dotted keys may add to it, a header may not reopen it
    ORIGIN_ARRAY,    // an array made of [[headers]]: the next one adds an element
} Origin;

typedef struct Node { // every TomlValue of a document is the first member of one of these
    TomlValue value;
    Origin origin;
    int depth;
    size_t capacity; // of keys and values
} Node;

typedef struct KeyPart {
    const char *text;
    size_t length;
    TomlMark mark;
} KeyPart;

typedef struct Key { // one to TOML_DEPTH_MAX parts: a.b."c d"
    KeyPart part[TOML_DEPTH_MAX];
    int count;
} Key;

// --- tree ----------------------------------------------------------------------------------------------------------

static Node *node_new(TomlReader *reader, TomlType type, Origin origin, TomlMark mark, int depth) {
    Node *node = arena_alloc(reader->arena, sizeof *node);
    node->value.type = type;
    node->value.line = mark.line;
    node->value.column = mark.column;
    node->origin = origin;
    node->depth = depth;
    return node;
}

static void *array_grown(TomlReader *reader, const void *old, size_t count, size_t capacity, size_t size) {
    void *memory = arena_alloc(reader->arena, capacity * size);
    if (count) memcpy(memory, old, count * size);
    return memory;
}

static void node_add(TomlReader *reader, Node *parent, const KeyPart *key, Node *child) {
    TomlValue *value = &parent->value;
    if (value->length == parent->capacity) {
        parent->capacity = parent->capacity ? parent->capacity * 2 : 4;
        value->values = array_grown(reader, value->values, value->length, parent->capacity, sizeof *value->values);
        if (key) {
            value->keys = array_grown(reader, value->keys, value->length, parent->capacity, sizeof *value->keys);
            value->key_lengths =
                array_grown(reader, value->key_lengths, value->length, parent->capacity, sizeof *value->key_lengths);
        }
    }
    if (key) {
        value->keys[value->length] = key->text;
        value->key_lengths[value->length] = key->length;
    }
    value->values[value->length++] = &child->value;
}

static TomlValue *table_find(const TomlValue *table, const char *key, size_t length) {
    for (size_t i = 0; i < table->length; i++)
        if (table->key_lengths[i] == length && memcmp(table->keys[i], key, length) == 0) return table->values[i];
    return NULL;
}

TomlValue *toml_get(const TomlValue *table, const char *key) {
    if (!table || table->type != TOML_TABLE) return NULL;
    return table_find(table, key, strlen(key));
}

const char *toml_type_name(TomlType type) {
    static const char *const names[] = {
        [TOML_STRING] = "a string",   [TOML_INTEGER] = "an integer",      [TOML_FLOAT] = "a float",
        [TOML_BOOLEAN] = "a boolean", [TOML_DATETIME] = "a date or time", [TOML_ARRAY] = "an array",
        [TOML_TABLE] = "a table",
    };
    return names[type];
}

// --- white space and keys ------------------------------------------------------------------------------------------

static void skip_blanks(TomlReader *reader) {
    while (toml_peek(reader, 0) == ' ' || toml_peek(reader, 0) == '\t')
        reader->at++;
}

static void skip_comment(TomlReader *reader) {
    if (toml_peek(reader, 0) != '#') return;
    while (reader->at < reader->end && *reader->at != '\n' && *reader->at != '\r')
        reader->at++;
}

static void skip_lines(TomlReader *reader) { // blanks, comments and line ends
    do {
        skip_blanks(reader);
        skip_comment(reader);
    } while (toml_skip_newline(reader));
}

static Status expect_line_end(TomlReader *reader, const char *after) {
    skip_blanks(reader);
    skip_comment(reader);
    if (toml_skip_newline(reader) || reader->at == reader->end) return NULL;
    char seen[32];
    return toml_error(reader, toml_mark(reader), "expected the end of the line after %s, found %s", after,
                      toml_describe(reader, seen));
}

static bool is_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static Status read_key_part(TomlReader *reader, KeyPart *part) {
    part->mark = toml_mark(reader);
    char c = toml_peek(reader, 0), seen[32];
    if (c == '"' || c == '\'') return toml_read_string(reader, &part->text, &part->length, true);
    const char *begin = reader->at;
    while (is_bare(toml_peek(reader, 0)))
        reader->at++;
    part->length = (size_t)(reader->at - begin);
    if (!part->length) return toml_error(reader, part->mark, "expected a key, found %s", toml_describe(reader, seen));
    part->text = arena_copy(reader->arena, begin, part->length);
    return NULL;
}

static Status too_deep(const TomlReader *reader, TomlMark mark) {
    return toml_error(reader, mark, "values are nested more than %d deep", TOML_DEPTH_MAX);
}

// Reads a key with the blanks around its dots and after it.
static Status read_key(TomlReader *reader, Key *key) {
    for (key->count = 0;;) {
        if (key->count == TOML_DEPTH_MAX) return too_deep(reader, toml_mark(reader));
        TRY(read_key_part(reader, &key->part[key->count++]));
        skip_blanks(reader);
        if (toml_peek(reader, 0) != '.') return NULL;
        reader->at++;
        skip_blanks(reader);
    }
}

static char *key_text(const Key *key, int count) { // malloc'd, for messages
    TextBuffer out = {0};
    for (int i = 0; i < count; i++)
        text_buffer_format(&out, "%s%s", i ? "." : "", key->part[i].text);
    return out.data;
}

static Status key_error(const TomlReader *reader, const Key *key, int count, const char *what, int line) {
    char *text = key_text(key, count);
    Status status = toml_error(reader, key->part[count - 1].mark, "%s %s (line %d)", text, what, line);
    free(text);
    return status;
}

// --- key = value ---------------------------------------------------------------------------------------------------

static Status read_value(TomlReader *reader, Node **node, int depth);

// The table that all but the last part of a dotted key lead to, made where it is missing.
static Status enter_dotted(TomlReader *reader, Node *table, const Key *key, Node **inner) {
    for (int i = 0; i + 1 < key->count; i++) {
        const KeyPart *part = &key->part[i];
        Node *next = (Node *)table_find(&table->value, part->text, part->length);
        if (!next) {
            if (table->depth + 1 >= TOML_DEPTH_MAX) return too_deep(reader, part->mark);
            next = node_new(reader, TOML_TABLE, ORIGIN_DOTTED, part->mark, table->depth + 1);
            node_add(reader, table, part, next);
        }
        int line = next->value.line;
        switch (next->origin) {
        case ORIGIN_DOTTED: break;
        case ORIGIN_IMPLICIT: next->origin = ORIGIN_DOTTED; break;
        case ORIGIN_HEADER:
            return key_error(reader, key, i + 1, "already has a [header]; dotted keys cannot add to it", line);
        case ORIGIN_INLINE: return key_error(reader, key, i + 1, "is an inline table, which is complete", line);
        case ORIGIN_ARRAY:
            return key_error(reader, key, i + 1, "is an array of tables; dotted keys cannot add to it", line);
        case ORIGIN_VALUE: return key_error(reader, key, i + 1, "already has a value and is not a table", line);
        }
        table = next;
    }
    *inner = table;
    return NULL;
}

static Status read_key_value(TomlReader *reader, Node *table) {
    Key key;
    TRY(read_key(reader, &key));
    if (toml_peek(reader, 0) != '=') {
        char seen[32];
        return toml_error(reader, toml_mark(reader), "expected '=' after the key, found %s",
                          toml_describe(reader, seen));
    }
    reader->at++;
    skip_blanks(reader);
    TRY(enter_dotted(reader, table, &key, &table));
    const KeyPart *last = &key.part[key.count - 1];
    TomlValue *present = table_find(&table->value, last->text, last->length);
    if (present) return key_error(reader, &key, key.count, "is already defined", present->line);
    Node *value;
    TRY(read_value(reader, &value, table->depth + 1));
    node_add(reader, table, last, value);
    return NULL;
}

static Status read_array(TomlReader *reader, Node **node, int depth) {
    TomlMark mark = toml_mark(reader);
    *node = node_new(reader, TOML_ARRAY, ORIGIN_VALUE, mark, depth);
    reader->at++;
    for (;;) {
        skip_lines(reader);
        if (toml_peek(reader, 0) == ']') break;
        if (reader->at == reader->end) return toml_error(reader, mark, "the array that opens here is not closed");
        Node *element;
        TRY(read_value(reader, &element, depth + 1));
        node_add(reader, *node, NULL, element);
        skip_lines(reader);
        if (toml_peek(reader, 0) == ']') break;
        if (reader->at == reader->end) return toml_error(reader, mark, "the array that opens here is not closed");
        char seen[32];
        if (toml_peek(reader, 0) != ',')
            return toml_error(reader, toml_mark(reader), "expected ',' or ']' in an array, found %s",
                              toml_describe(reader, seen));
        reader->at++;
    }
    reader->at++;
    return NULL;
}

static Status read_inline_table(TomlReader *reader, Node **node, int depth) {
    *node = node_new(reader, TOML_TABLE, ORIGIN_INLINE, toml_mark(reader), depth);
    reader->at++;
    skip_blanks(reader);
    if (toml_peek(reader, 0) == '}') {
        reader->at++;
        return NULL;
    }
    for (;;) {
        TRY(read_key_value(reader, *node));
        skip_blanks(reader);
        char c = toml_peek(reader, 0), seen[32];
        if (c != ',' && c != '}')
            return toml_error(reader, toml_mark(reader), "expected ',' or '}' in an inline table, found %s",
                              toml_describe(reader, seen));
        reader->at++;
        if (c == '}') return NULL;
        skip_blanks(reader);
        if (toml_peek(reader, 0) == '}')
            return toml_error(reader, toml_mark(reader), "an inline table has no comma after its last value");
        if (toml_peek(reader, 0) == '\n' || toml_peek(reader, 0) == '\r')
            return toml_error(reader, toml_mark(reader), "an inline table stands on one line");
    }
}

static Status read_value(TomlReader *reader, Node **node, int depth) {
    TomlMark mark = toml_mark(reader);
    if (depth >= TOML_DEPTH_MAX) return too_deep(reader, mark);
    switch (toml_peek(reader, 0)) {
    case '[': return read_array(reader, node, depth);
    case '{': return read_inline_table(reader, node, depth);
    case '"':
    case '\'':
        *node = node_new(reader, TOML_STRING, ORIGIN_VALUE, mark, depth);
        return toml_read_string(reader, &(*node)->value.text, &(*node)->value.length, false);
    default:
        *node = node_new(reader, TOML_STRING, ORIGIN_VALUE, mark, depth);
        return toml_read_scalar(reader, &(*node)->value);
    }
}

// --- [table] and [[array of tables]] -------------------------------------------------------------------------------

// The table that all but the last part of a header lead to. Tables on the way are made implicitly; of an array of
// tables the newest element is meant.
static Status enter_header(TomlReader *reader, Node *table, const Key *key, TomlMark mark, Node **inner) {
    for (int i = 0; i + 1 < key->count; i++) {
        const KeyPart *part = &key->part[i];
        Node *next = (Node *)table_find(&table->value, part->text, part->length);
        if (!next) {
            next = node_new(reader, TOML_TABLE, ORIGIN_IMPLICIT, mark, table->depth + 1);
            node_add(reader, table, part, next);
        }
        if (next->origin == ORIGIN_ARRAY) next = (Node *)next->value.values[next->value.length - 1];
        if (next->origin == ORIGIN_INLINE)
            return key_error(reader, key, i + 1, "is an inline table, which is complete", next->value.line);
        if (next->origin == ORIGIN_VALUE)
            return key_error(reader, key, i + 1, "already has a value and is not a table", next->value.line);
        table = next;
    }
    *inner = table;
    return NULL;
}

static Status open_table(TomlReader *reader, Node *parent, const Key *key, TomlMark mark, Node **table) {
    const KeyPart *last = &key->part[key->count - 1];
    Node *present = (Node *)table_find(&parent->value, last->text, last->length);
    if (!present) {
        *table = node_new(reader, TOML_TABLE, ORIGIN_HEADER, mark, parent->depth + 1);
        node_add(reader, parent, last, *table);
        return NULL;
    }
    if (present->origin == ORIGIN_ARRAY)
        return key_error(reader, key, key->count, "is an array of tables: write [[...]] for its next element",
                         present->value.line);
    if (present->origin != ORIGIN_IMPLICIT)
        return key_error(reader, key, key->count, "is already defined", present->value.line);
    present->origin = ORIGIN_HEADER;
    present->value.line = mark.line;
    present->value.column = mark.column;
    *table = present;
    return NULL;
}

static Status open_array_element(TomlReader *reader, Node *parent, const Key *key, TomlMark mark, Node **table) {
    const KeyPart *last = &key->part[key->count - 1];
    Node *array = (Node *)table_find(&parent->value, last->text, last->length);
    if (!array) {
        array = node_new(reader, TOML_ARRAY, ORIGIN_ARRAY, mark, parent->depth + 1);
        node_add(reader, parent, last, array);
    } else if (array->origin != ORIGIN_ARRAY) {
        return key_error(reader, key, key->count, "is already defined, not as an array of tables", array->value.line);
    }
    *table = node_new(reader, TOML_TABLE, ORIGIN_HEADER, mark, array->depth + 1);
    node_add(reader, array, NULL, *table);
    return NULL;
}

static Status read_header(TomlReader *reader, Node *root, Node **table) {
    TomlMark mark = toml_mark(reader);
    bool array = toml_peek(reader, 1) == '[';
    reader->at += array ? 2 : 1;
    skip_blanks(reader);
    Key key;
    TRY(read_key(reader, &key));
    if (toml_peek(reader, 0) != ']' || (array && toml_peek(reader, 1) != ']')) {
        char seen[32];
        return toml_error(reader, toml_mark(reader), "expected '%s' after the name of a table, found %s",
                          array ? "]]" : "]", toml_describe(reader, seen));
    }
    reader->at += array ? 2 : 1;
    Node *parent;
    TRY(enter_header(reader, root, &key, mark, &parent));
    if (parent->depth + 2 >= TOML_DEPTH_MAX) return too_deep(reader, mark);
    TRY(array ? open_array_element(reader, parent, &key, mark, table) : open_table(reader, parent, &key, mark, table));
    return expect_line_end(reader, "the name of a table");
}

// --- document ------------------------------------------------------------------------------------------------------

static Status read_document(TomlReader *reader, Node *root) {
    TRY(toml_check_characters(reader));
    Node *table = root;
    for (;;) {
        skip_lines(reader);
        if (reader->at == reader->end) return NULL;
        if (*reader->at == '[') {
            TRY(read_header(reader, root, &table));
        } else {
            TRY(read_key_value(reader, table));
            TRY(expect_line_end(reader, "a value"));
        }
    }
}

Status toml_parse(Toml *toml, const char *text, size_t length, const char *name) {
    *toml = (Toml){0};
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, length -= 3; // a byte order mark says nothing
    TomlReader reader = {
        .arena = &toml->arena, .name = name, .at = text, .end = text + length, .line_start = text, .line = 1};
    Node *root = node_new(&reader, TOML_TABLE, ORIGIN_HEADER, (TomlMark){1, 1}, 0);
    Status status = read_document(&reader, root);
    if (status)
        toml_free(toml);
    else
        toml->root = &root->value;
    return status;
}

#define TOML_FILE_MOST ((size_t)16 << 20) // people write them

Status toml_read_file(Toml *toml, const char *path) {
    *toml = (Toml){0};
    char *text;
    size_t length;
    TRY(file_read_most(&text, &length, path, TOML_FILE_MOST));
    Status status = toml_parse(toml, text, length, path);
    free(text);
    return status;
}

void toml_free(Toml *toml) {
    arena_free(&toml->arena);
    *toml = (Toml){0};
}
