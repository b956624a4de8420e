// Reads vectors.csv, the table of calculations with known results (CSV with quoted JSON inputs), for the tests of
// hearth calc. exact: 12 digits; printed: the figure as a document rounds it, with the tolerance that follows from
// that.
#pragma once

#include "testing.h"

#include "base/json.h"
#include "plan/calc.h"

enum { VECTOR_COLUMNS = 8, VECTOR_WORDS_MAX = 16 };
enum { VECTOR_ID, VECTOR_QUANTITY, VECTOR_INPUTS, VECTOR_EXACT, VECTOR_PRINTED, VECTOR_TOLERANCE, VECTOR_UNIT };

typedef struct VectorTable {
    char *data;    // the file, cut into fields in place
    char **fields; // [rows * VECTOR_COLUMNS]
    int rows;
} VectorTable;

// One field from *at on, unquoted in place; *at moves behind its comma or line end, *last says that the line ended.
static inline char *vector_field(char **at, bool *last) {
    char *read = *at, *write = read, *field = read;
    bool quoted = *read == '"';
    if (quoted) read++;
    while (*read && (quoted || (*read != ',' && *read != '\n' && *read != '\r'))) {
        if (quoted && *read == '"') {
            if (read[1] != '"') {
                quoted = false;
                read++;
                continue;
            }
            read++;
        }
        *write++ = *read++;
    }
    *last = *read != ',';
    if (*read == '\r') read++;
    if (*read) read++;
    *write = 0;
    *at = read;
    return field;
}

static inline VectorTable vector_table_read(void) {
    VectorTable table = {0};
    size_t size;
    assert_ok(file_read(&table.data, &size, "tests/plan/vectors.csv"));
    char *at = table.data;
    for (int line = 0; *at; line++) {
        char *row[VECTOR_COLUMNS];
        int columns = 0;
        for (bool last = false; !last; columns++) {
            char *field = vector_field(&at, &last);
            assert_true(columns < VECTOR_COLUMNS);
            row[columns] = field;
        }
        assert_int_equal(columns, VECTOR_COLUMNS);
        if (line == 0) {
            assert_string_equal(row[VECTOR_INPUTS], "inputs_json");
            assert_string_equal(row[VECTOR_UNIT], "unit");
            continue;
        }
        table.fields = xrealloc(table.fields, (size_t)(table.rows + 1) * sizeof row);
        memcpy(table.fields + (size_t)table.rows * VECTOR_COLUMNS, row, sizeof row);
        table.rows++;
    }
    return table;
}

static inline const char *vector_get(const VectorTable *table, int row, int column) {
    return table->fields[row * VECTOR_COLUMNS + column];
}

static inline void vector_table_free(VectorTable *table) {
    free(table->data);
    free(table->fields);
}

// {"M_GB": 2, "exact": true} as the words M_GB=2 exact=true; returns how many, each malloc'd.
static inline int vector_words(const char *inputs, char *words[VECTOR_WORDS_MAX]) {
    json_t *root, *value;
    assert_ok(json_read_text(&root, inputs, strlen(inputs), "inputs"));
    const char *key;
    int count = 0;
    json_object_foreach(root, key, value) {
        assert_true(count < VECTOR_WORDS_MAX);
        if (json_is_string(value))
            words[count++] = text_format("%s=%s", key, json_string_value(value));
        else if (json_is_boolean(value))
            words[count++] = text_format("%s=%s", key, json_is_true(value) ? "true" : "false");
        else
            words[count++] = text_format("%s=%.17g", key, json_number_value(value));
    }
    json_decref(root);
    return count;
}

static inline void vector_words_free(char **words, int count) {
    for (int i = 0; i < count; i++)
        free(words[i]);
}
