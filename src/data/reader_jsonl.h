// One field of one line of JSON, taken out by a hand-written scanner: the line is checked whole (grammar and UTF-8),
// only the wanted string is decoded. A tree of all values would cost several times the tokenizing.
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum JsonlResult {
    JSONL_TEXT,
    JSONL_NULL,    // the field is null
    JSONL_MISSING, // a valid object without the field
    JSONL_BAD,     // see reason and offset
} JsonlResult;

typedef struct JsonlFields {
    const char *text;  // name of the wanted string
    const char *score; // name of a number, or NULL
} JsonlFields;

typedef struct JsonlRecord {
    char *text; // decoded; grown as needed and kept for the next line
    size_t length, capacity;
    double score;
    bool has_score;
    const char *reason; // of JSONL_BAD
    size_t offset;      // in the line
} JsonlRecord;          // {0} to start; free(text) in the end

// The names in an object that jsonl_scan found sound, "a, b, c", malloc'd: the first few dozen.
char *jsonl_field_names(const char *line, size_t length);
JsonlResult jsonl_scan(const char *line, size_t length, const JsonlFields *fields, JsonlRecord *record);
