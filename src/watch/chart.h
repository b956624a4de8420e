// Line charts and heat maps as inline SVG, drawn with the classes of the report's style sheet (report_style.c). A chart
// of any number of points has at most two for each of its columns: the least and the greatest that fall there.
#pragma once

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHART_COLOURS = 6 };

typedef enum ChartUnit {
    CHART_PLAIN,
    CHART_COUNT,   // 1.2M
    CHART_TIME,    // given in seconds, shown in what suits
    CHART_BYTES,   // likewise, in MiB or GiB
    CHART_PERCENT, // given as a fraction
} ChartUnit;

typedef enum ChartStyle { CHART_LINE, CHART_FAINT, CHART_DOTS } ChartStyle;

typedef struct ChartLine {
    const char *name; // not trusted
    double *x, *y;    // [count], owned; NaN is left out
    size_t count;
    ChartStyle style;
    int colour;
} ChartLine;

typedef struct Chart {
    const char *title, *x_name;
    ChartUnit x_unit, y_unit;
    bool from_zero, logarithmic;
    double y_most; // > 0: what lies above is cut off
    int columns;   // 0: as many as there are pixels
    ChartLine *lines;
    int count;
} Chart;

// Takes x and y over.
void chart_add(Chart *chart, const char *name, ChartStyle style, int colour, double *x, double *y, size_t count);
// A figure with its title and legend; nothing where no line has a point. Frees the lines.
void chart_write(Chart *chart, TextBuffer *out);

// Rows of cells, the shade of each by its value between `least` and `most`. NaN stays empty.
typedef struct HeatMap {
    const char *title, *row_name, *column_name, *value_name; // "layer", "step", "busiest expert over the mean"
    int rows, columns;
    const double *values;        // [rows][columns]
    const int64_t *column_steps; // [columns]
    double least, most;
} HeatMap;
void heat_map_write(const HeatMap *map, TextBuffer *out);

// A value with its unit, on a scale that reaches to `most`.
char *chart_value(char out[48], double value, double most, ChartUnit unit);
