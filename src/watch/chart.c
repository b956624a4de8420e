#include "watch/chart.h"

#include "watch/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 560, HEIGHT = 290, LEFT = 84, RIGHT = 16, TOP = 10, BOTTOM = 48, BANDS = 56, TICKS = 12, DOT = 4 };
enum { INNER_WIDTH = WIDTH - LEFT - RIGHT + 2 * DOT, INNER_HEIGHT = HEIGHT - TOP - BOTTOM + DOT };

typedef struct Axis {
    double least, most;
    bool logarithmic;
    double ticks[TICKS];
    int tick_count;
} Axis;

void chart_add(Chart *chart, const char *name, ChartStyle style, int colour, double *x, double *y, size_t count) {
    chart->lines = xrealloc(chart->lines, (size_t)(chart->count + 1) * sizeof *chart->lines);
    chart->lines[chart->count++] = (ChartLine){name, x, y, count, style, colour % CHART_COLOURS};
}

// ---- numbers --------------------------------------------------------------------------------------------------------

typedef struct Scale {
    double per;
    const char *name;
} Scale;

static Scale scale_for(double most, ChartUnit unit) {
    if (unit == CHART_TIME) {
        if (most >= 3 * 86400) return (Scale){86400, " d"};
        if (most >= 3 * 3600) return (Scale){3600, " h"};
        return most >= 180 ? (Scale){60, " min"} : (Scale){1, " s"};
    }
    if (unit == CHART_BYTES) return most >= 0x1p30 ? (Scale){0x1p30, " GiB"} : (Scale){0x1p20, " MiB"};
    if (unit == CHART_PERCENT) return (Scale){0.01, " %"};
    if (unit == CHART_COUNT)
        return most >= 1e12  ? (Scale){1e12, "T"}
               : most >= 1e9 ? (Scale){1e9, "B"}
               : most >= 1e6 ? (Scale){1e6, "M"}
               : most >= 1e3 ? (Scale){1e3, "K"}
                             : (Scale){1, ""};
    return (Scale){1, ""};
}

char *chart_value(char out[48], double value, double most, ChartUnit unit) {
    Scale scale = scale_for(most, unit);
    bool tiny = unit == CHART_PLAIN && most < 1e-3 && value != 0; // a learning rate
    snprintf(out, 48, tiny ? "%.1e%s" : "%.4g%s", value / scale.per, value == 0 ? "" : scale.name);
    return out;
}

// ---- axes -----------------------------------------------------------------------------------------------------------

static double nice_step(double range, int parts) {
    double rough = range / parts, power = pow(10, floor(log10(rough))), share = rough / power;
    return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

static void axis_decades(Axis *axis) {
    static const double of_decade[] = {1, 2, 5};
    double decades = log10(axis->most / axis->least);
    int each = decades > 3.5 ? 1 : 3;
    for (int p = (int)floor(log10(axis->least)); axis->tick_count < TICKS && p <= (int)ceil(log10(axis->most)); p++)
        for (int i = 0; i < each && axis->tick_count < TICKS; i++) {
            double at = of_decade[i] * pow(10, p);
            if (at >= axis->least * 0.999 && at <= axis->most * 1.001) axis->ticks[axis->tick_count++] = at;
        }
}

// Ticks are round in the unit that is shown: of 90 minutes every 20, not every 1000 seconds.
static Axis axis_make(double least, double most, ChartUnit unit, bool logarithmic, bool tight) {
    Axis axis = {least, most, logarithmic && least > 0 && most > least, {0}, 0};
    if (axis.logarithmic) {
        axis.least = least / 1.1, axis.most = most * 1.1;
        axis_decades(&axis);
        return axis;
    }
    if (!(most > least)) {
        double about = least != 0 ? 0.1 * fabs(least) : 1;
        axis.least = least > 0 && least - about < 0 ? 0 : least - about * (least != 0);
        axis.most = most + about;
    } else if (!tight) {
        axis.most += 0.04 * (most - least);
        if (least != 0) axis.least -= 0.04 * (most - least);
    }
    double per = scale_for(axis.most, unit).per, step = per * nice_step((axis.most - axis.least) / per, 5);
    double first = ceil(axis.least / step - 1e-9);
    for (int i = 0; i < TICKS && (first + i) * step <= axis.most + 1e-9 * step; i++)
        axis.ticks[axis.tick_count++] = (first + i) * step;
    return axis;
}

static double axis_share(const Axis *axis, double value) {
    double share = axis->logarithmic ? log(value / axis->least) / log(axis->most / axis->least)
                                     : (value - axis->least) / (axis->most - axis->least);
    return fmin(fmax(share, -0.5), 1.5);
}

static double plot_x(const Axis *axis, double value) {
    return LEFT + axis_share(axis, value) * (WIDTH - LEFT - RIGHT);
}

static double plot_y(const Axis *axis, double value) {
    return HEIGHT - BOTTOM - axis_share(axis, value) * (HEIGHT - TOP - BOTTOM);
}

// The one of `cells` equal parts of the width that a value falls into. Values too far apart or too near each other for
// a difference have no share of the axis, but a part all the same.
static int plot_cell(const Axis *axis, double value, int cells) {
    int cell = (int)(fmax(axis_share(axis, value), 0) * cells);
    return cell < cells ? cell : cells - 1;
}

static bool point_shown(const Chart *chart, const ChartLine *line, size_t i) {
    return isfinite(line->x[i]) && isfinite(line->y[i]) && !(chart->logarithmic && line->y[i] <= 0);
}

static bool chart_axes(const Chart *chart, Axis *x, Axis *y) {
    double least_x = INFINITY, most_x = -INFINITY, least_y = INFINITY, most_y = -INFINITY;
    for (int l = 0; l < chart->count; l++)
        for (size_t i = 0; i < chart->lines[l].count; i++) {
            if (!point_shown(chart, &chart->lines[l], i)) continue;
            least_x = fmin(least_x, chart->lines[l].x[i]), most_x = fmax(most_x, chart->lines[l].x[i]);
            least_y = fmin(least_y, chart->lines[l].y[i]), most_y = fmax(most_y, chart->lines[l].y[i]);
        }
    if (!(least_x <= most_x)) return false;
    if (chart->from_zero && !chart->logarithmic) least_y = fmin(0, least_y);
    if (chart->y_most > least_y && chart->y_most < most_y) most_y = chart->y_most;
    *x = axis_make(least_x, most_x, chart->x_unit, false, true);
    *y = axis_make(least_y, most_y, chart->y_unit, chart->logarithmic, false);
    return true;
}

static void draw_axes(const Chart *chart, const Axis *x, const Axis *y, TextBuffer *out) {
    char text[48];
    double bottom = HEIGHT - BOTTOM;
    for (int i = 0; i < y->tick_count; i++) {
        double at = plot_y(y, y->ticks[i]);
        text_buffer_format(out,
                           "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" dy=\".32em\" "
                           "class=\"end\">%s</text>\n",
                           LEFT, at, WIDTH - RIGHT, LEFT - 7, at,
                           chart_value(text, y->ticks[i], y->most, chart->y_unit));
    }
    for (int i = 0; i < x->tick_count; i++) {
        double at = plot_x(x, x->ticks[i]);
        text_buffer_format(out,
                           "<path class=\"axis\" d=\"M%.1f %.0fv5\"/><text x=\"%.1f\" y=\"%.0f\" dy=\"1.25em\" "
                           "class=\"middle\">%s</text>\n",
                           at, bottom, at, bottom, chart_value(text, x->ticks[i], x->most, chart->x_unit));
    }
    text_buffer_format(out,
                       "<path class=\"axis\" d=\"M%d %.0fH%d\"/><text x=\"%d\" y=\"%d\" class=\"middle name\">%s"
                       "</text>\n",
                       LEFT, bottom, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart->x_name);
}

// ---- lines ----------------------------------------------------------------------------------------------------------

typedef struct Column {
    double low, high, low_x, high_x;
    bool used, low_first;
} Column;

static void column_take(Column *column, double x, double y) {
    if (!column->used) *column = (Column){y, y, x, x, true, true};
    if (y < column->low) column->low = y, column->low_x = x, column->low_first = false;
    if (y > column->high) column->high = y, column->high_x = x, column->low_first = true;
}

static void draw_points(const Chart *chart, const ChartLine *line, const Axis *x, const Axis *y, TextBuffer *out) {
    int count = chart->columns ? chart->columns : WIDTH - LEFT - RIGHT;
    Column *columns = xcalloc((size_t)count, sizeof *columns);
    bool every = line->count <= (size_t)count;
    for (size_t i = 0; i < line->count; i++) {
        if (!point_shown(chart, line, i)) continue;
        double at_x = plot_x(x, line->x[i]), at_y = plot_y(y, line->y[i]);
        if (every)
            text_buffer_format(out, "%.1f,%.1f ", at_x, at_y);
        else
            column_take(&columns[plot_cell(x, line->x[i], count)], at_x, at_y);
    }
    for (int i = 0; i < count; i++) {
        const Column *c = &columns[i];
        if (!c->used) continue;
        double first_x = c->low_first ? c->low_x : c->high_x, first = c->low_first ? c->low : c->high;
        double last_x = c->low_first ? c->high_x : c->low_x, last = c->low_first ? c->high : c->low;
        text_buffer_format(out, "%.1f,%.1f ", first_x, first);
        if (c->low != c->high) text_buffer_format(out, "%.1f,%.1f ", last_x, last);
    }
    free(columns);
}

static void draw_dots(const Chart *chart, const ChartLine *line, const Axis *x, const Axis *y, TextBuffer *out) {
    for (size_t i = 0; line->count <= 80 && i < line->count; i++)
        if (point_shown(chart, line, i))
            text_buffer_format(out, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", line->colour,
                               plot_x(x, line->x[i]), plot_y(y, line->y[i]));
}

static void draw_line(const Chart *chart, const ChartLine *line, const Axis *x, const Axis *y, TextBuffer *out) {
    text_buffer_format(out, "<polyline class=\"line s%d%s\" points=\"", line->colour,
                       line->style == CHART_FAINT ? " faint" : "");
    draw_points(chart, line, x, y, out);
    text_buffer_format(out, "\"/>\n");
    if (line->style == CHART_DOTS) draw_dots(chart, line, x, y, out);
}

// ---- what the mouse is over -----------------------------------------------------------------------------------------

// The last value of every line in each band of the width, as a title that a browser shows.
static void draw_bands(const Chart *chart, const Axis *x, const Axis *y, TextBuffer *out) {
    double *last = xmalloc((size_t)chart->count * BANDS * 2 * sizeof *last), *at = last + chart->count * BANDS;
    double wide = (double)(WIDTH - LEFT - RIGHT) / BANDS;
    char text[48];
    for (int i = 0; i < chart->count * BANDS; i++)
        last[i] = NAN;
    for (int l = 0; l < chart->count; l++)
        for (size_t i = 0; i < chart->lines[l].count; i++) {
            if (!point_shown(chart, &chart->lines[l], i)) continue;
            int place = l * BANDS + plot_cell(x, chart->lines[l].x[i], BANDS);
            last[place] = chart->lines[l].y[i], at[place] = chart->lines[l].x[i];
        }
    for (int band = 0; band < BANDS; band++) {
        bool any = false;
        for (int l = 0; l < chart->count; l++) {
            int place = l * BANDS + band;
            if (!isfinite(last[place])) continue;
            if (!any)
                text_buffer_format(out, "<rect class=\"band\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>",
                                   LEFT + band * wide, TOP, wide, HEIGHT - TOP - BOTTOM);
            if (!any)
                text_buffer_format(out, "%s %s", chart_value(text, at[place], x->most, chart->x_unit), chart->x_name);
            any = true;
            text_buffer_format(out, "\n");
            html_text(out, chart->lines[l].name);
            text_buffer_format(out, " %s", chart_value(text, last[place], y->most, chart->y_unit));
        }
        if (any) text_buffer_format(out, "</title></rect>\n");
    }
    free(last);
}

// ---- the figure -----------------------------------------------------------------------------------------------------

static void write_legend(const Chart *chart, TextBuffer *out) {
    if (chart->count < 2) return;
    text_buffer_format(out, "<span class=\"legend\">");
    for (int l = 0; l < chart->count; l++) {
        const ChartLine *line = &chart->lines[l];
        text_buffer_format(out, "<span><i class=\"b%d%s\"></i>", line->colour,
                           line->style == CHART_FAINT ? " faint" : "");
        html_text(out, line->name);
        text_buffer_format(out, "</span>");
    }
    text_buffer_format(out, "</span>");
}

// A line without a point has no place in the legend.
static void drop_empty(Chart *chart) {
    int kept = 0;
    for (int l = 0; l < chart->count; l++) {
        ChartLine line = chart->lines[l];
        size_t i = 0;
        while (i < line.count && !point_shown(chart, &line, i))
            i++;
        if (i < line.count) {
            chart->lines[kept++] = line;
            continue;
        }
        free(line.x);
        free(line.y);
    }
    chart->count = kept;
}

static void lines_free(Chart *chart) {
    for (int l = 0; l < chart->count; l++) {
        free(chart->lines[l].x);
        free(chart->lines[l].y);
    }
    free(chart->lines);
    chart->lines = NULL;
    chart->count = 0;
}

void chart_write(Chart *chart, TextBuffer *out) {
    Axis x, y;
    drop_empty(chart);
    if (chart_axes(chart, &x, &y)) {
        text_buffer_format(out, "<figure class=\"chart\"><figcaption><b>%s%s</b>", chart->title,
                           y.logarithmic ? ", log scale" : "");
        write_legend(chart, out);
        text_buffer_format(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH,
                           HEIGHT, chart->title);
        draw_axes(chart, &x, &y, out);
        text_buffer_format(out, "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\">\n",
                           LEFT - DOT, TOP, INNER_WIDTH, INNER_HEIGHT, LEFT - DOT, TOP, INNER_WIDTH, INNER_HEIGHT);
        for (int l = 0; l < chart->count; l++)
            draw_line(chart, &chart->lines[l], &x, &y, out);
        text_buffer_format(out, "</svg>\n"); // what lies outside of the inner picture is cut off
        draw_bands(chart, &x, &y, out);
        text_buffer_format(out, "</svg></figure>\n");
    }
    lines_free(chart);
}

// ---- heat maps ------------------------------------------------------------------------------------------------------

enum { MAP_WIDTH = 1000, MAP_LEFT = 56, MAP_TOP = 4, MAP_BOTTOM = 44 };

void heat_map_write(const HeatMap *map, TextBuffer *out) {
    double wide = (double)(MAP_WIDTH - MAP_LEFT - 8) / map->columns, range = map->most - map->least;
    int high = map->rows > 32 ? 8 : map->rows > 12 ? 14 : 22, bottom = MAP_TOP + map->rows * high;
    text_buffer_format(out,
                       "<figure class=\"wide\"><figcaption><b>%s</b><span class=\"legend\"><span>%.3g</span><span "
                       "class=\"ramp\"></span><span>%.3g</span><span>%s</span></span></figcaption>\n<svg class=\"map\" "
                       "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
                       map->title, map->least, map->most, map->value_name, MAP_WIDTH, bottom + MAP_BOTTOM, map->title);
    for (int r = 0; r < map->rows; r++) {
        int every = map->rows > 32 ? 8 : map->rows > 12 ? 2 : 1;
        if (r % every == 0)
            text_buffer_format(out, "<text x=\"%d\" y=\"%.0f\" dy=\".32em\" class=\"end\">%d</text>", MAP_LEFT - 7,
                               MAP_TOP + (r + 0.5) * high, r);
        for (int c = 0; c < map->columns; c++) {
            double value = map->values[r * map->columns + c];
            if (!isfinite(value)) continue;
            double shade = range > 0 ? fmin(fmax((value - map->least) / range, 0), 1) : 0;
            text_buffer_format(out,
                               "<rect class=\"cell\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" "
                               "fill-opacity=\"%.2f\"><title>%s %d, %s %lld: %.3g</title></rect>\n",
                               MAP_LEFT + c * wide, MAP_TOP + r * high, wide + 0.3, high - 1, 0.04 + 0.96 * shade,
                               map->row_name, r, map->column_name, (long long)map->column_steps[c], value);
        }
    }
    int labels = map->columns < 12 ? map->columns - 1 : 4; // spaces between them
    for (int i = 0; i <= labels; i++) {
        int c = labels ? i * (map->columns - 1) / labels : 0;
        text_buffer_format(out, "<text x=\"%.1f\" y=\"%d\" dy=\"1.25em\" class=\"%s\">%lld</text>\n",
                           MAP_LEFT + (c + 0.5) * wide, bottom, i == labels && map->columns >= 12 ? "end" : "middle",
                           (long long)map->column_steps[c]);
    }
    text_buffer_format(out, "<text x=\"%d\" y=\"%d\" class=\"middle name\">%s, each row a %s</text>\n</svg></figure>\n",
                       MAP_WIDTH / 2, bottom + MAP_BOTTOM - 6, map->column_name, map->row_name);
}
