// What a run measures, in one table: metrics.jsonl, the progress line, TensorBoard, CSV, pages and docs/metrics.md are
// all made from it. A new metric is a member of MetricsStep, the line of trainer.c that fills it, and a row here.
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "watch/metrics.h"

#include <stddef.h>

typedef enum MetricsLine { METRICS_STEP, METRICS_EVALUATION, METRICS_NO_LINE } MetricsLine;

// Values of a line of METRICS_EVALUATION; those of METRICS_STEP are in a MetricsStep.
typedef struct MetricsEvaluation {
    int64_t step, tokens;
    Evaluation evaluation;
    double time;
} MetricsEvaluation;

typedef enum MetricsType {
    METRICS_INT64,
    METRICS_INT,
    METRICS_DOUBLE,
    METRICS_BOOL,
    METRICS_FULL,   // "full" or "subset"
    METRICS_SPLIT,  // an object with the parts of a step
    METRICS_LAYERS, // an object with the experts' load of every layer
} MetricsType;

typedef enum MetricsPresence {
    METRICS_ALWAYS,
    METRICS_POSITIVE, // where it is above zero
    METRICS_PROFILED, // on profiled steps
    METRICS_LOADED,   // on steps whose experts' load was taken
    METRICS_GPU,      // where a GPU's sensors can be read
    METRICS_CHECKED,  // on steps whose loss was taken in bf16 too
} MetricsPresence;

typedef enum MetricsScale { // what `print` gets
    METRICS_PLAIN,          // the value
    METRICS_PERCENT,        // 100 times the value
    METRICS_COUNT,          // text: "1.24B"
    METRICS_GROUPED,        // text: "1,235,814"
    METRICS_BYTES,          // text: "36.3 GiB"
    METRICS_DURATION,       // text: "4m 05s"
    METRICS_CLOCK,          // text: "2025-01-31 12:00:00"
    METRICS_UNPRINTED,
} MetricsScale;

typedef struct MetricsField {
    MetricsLine line;
    const char *key; // in metrics.jsonl; column of the CSV
    MetricsType type;
    size_t offset; // in MetricsStep or MetricsEvaluation
    MetricsPresence presence;
    const char *digits; // printf format of a double in metrics.jsonl; NULL: nine digits
    const char *unit;   // "" without one
    const char *tag;    // of its curve in TensorBoard; NULL: none. Of METRICS_SPLIT: the folder of its curves
    MetricsScale scale;
    const char
        *print; // for people: printf format of the scaled value, with its name where the number alone would not do
    const char *meaning;
    bool silent_zero; // where it is 0 there is nothing to print or to draw
} MetricsField;

int metrics_field_count(void);
const MetricsField *metrics_field(int index);
const MetricsField *metrics_field_find(MetricsLine line, const char *key); // NULL: no such key

MetricsStep metrics_step_whole(const MetricsStep *step); // with what follows from the rest filled in

// Of a MetricsStep or MetricsEvaluation, as the field's line has it.
bool metrics_field_present(const MetricsField *field, const void *values);
double metrics_field_value(const MetricsField *field, const void *values);     // NaN of what is no number
char *metrics_field_print(const MetricsField *field, double value, char *out); // out: at least 64 bytes, returned

// Of a line that was read from metrics.jsonl.
MetricsLine metrics_line_kind(const json_t *line);
double metrics_line_value(const json_t *line, const char *key); // true is 1; NaN where it is absent, null or no number

void metrics_line_write(MetricsLine line, const void *values, TextBuffer *out); // one line of metrics.jsonl
void metrics_table_markdown(TextBuffer *out);                                   // the table of docs/metrics.md
