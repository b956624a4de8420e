// Several runs: what each changed against the one before and what that brought, and their curves in one picture.
#include "watch/chart.h"
#include "watch/html.h"
#include "watch/report.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// A key of where a run lies, or how it is shown, changes nothing about it.
static bool is_telling(const char *key) {
    static const char *const silent[] = {"train.name", "train.runs", "watch.", "checkpoint."};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++)
        if (text_starts_with(key, silent[i])) return false;
    return true;
}

static void write_change(const char *key, const char *before, const char *now, TextBuffer *out) {
    text_buffer_format(out, "<div><code>");
    html_text(out, key);
    text_buffer_format(out, "</code> ");
    html_text(out, before && before[0] ? before : "–");
    text_buffer_format(out, " → <b>");
    html_text(out, now && now[0] ? now : "–");
    text_buffer_format(out, "</b></div>");
}

static void write_changes(const RunRecord *before, const RunRecord *run, TextBuffer *out) {
    bool any = false;
    for (size_t i = 0; i < run->setting_count; i++) {
        const RunSetting *s = &run->settings[i];
        const char *was = run_setting(before, s->key);
        if (!is_telling(s->key) || (was && strcmp(was, s->value) == 0) || (!was && !s->value[0])) continue;
        write_change(s->key, was, s->value, out);
        any = true;
    }
    for (size_t i = 0; i < before->setting_count; i++) {
        const RunSetting *s = &before->settings[i];
        if (!is_telling(s->key) || run_setting(run, s->key) || !s->value[0]) continue;
        write_change(s->key, s->value, NULL, out);
        any = true;
    }
    if (!any) text_buffer_format(out, "<span class=\"soft\">nothing</span>");
}

enum { LADDER_LOSS, LADDER_VALIDATION, LADDER_RATE, LADDER_MFU, LADDER_COLUMNS };

typedef struct LadderRow {
    double value[LADDER_COLUMNS]; // NaN: not known
} LadderRow;

// The most tokens that every run has reached, by its steps and by its validations.
static void equal_tokens(const ReportRun *runs, const RunFigures *figures, int count, double *of_steps,
                         double *of_evals) {
    *of_steps = *of_evals = INFINITY;
    for (int i = 0; i < count; i++) {
        double last = -INFINITY;
        for (size_t k = 0; k < runs[i].record.eval_count; k++)
            last = fmax(last, runs[i].record.evals[k].tokens);
        *of_steps = fmin(*of_steps, figures[i].tokens);
        *of_evals = fmin(*of_evals, last);
    }
}

static LadderRow *ladder_rows(const ReportRun *runs, const RunFigures *figures, int count, double tokens,
                              double eval_tokens) {
    LadderRow *rows = xmalloc((size_t)count * sizeof *rows);
    for (int i = 0; i < count; i++) {
        double *smooth = report_losses(&runs[i].record);
        rows[i] = (LadderRow){{[LADDER_LOSS] = report_loss_at(&runs[i].record, smooth, tokens),
                               [LADDER_VALIDATION] = report_validation_at(&runs[i].record, eval_tokens),
                               [LADDER_RATE] = figures[i].rate,
                               [LADDER_MFU] = figures[i].mfu}};
        free(smooth);
    }
    return rows;
}

// The figure, its change against the row above, and a bar against the greatest of its column.
static void write_cell(int column, double value, double before, double most, int colour, TextBuffer *out) {
    char text[32];
    if (!(value > 0)) {
        text_buffer_format(out, "<td class=\"r soft\">–</td>");
        return;
    }
    if (column == LADDER_RATE)
        text_grouped(text, llround(fmin(value, 1e18)));
    else
        snprintf(text, sizeof text, column == LADDER_MFU ? "%.1f %%" : "%.4f",
                 column == LADDER_MFU ? 100 * value : value);
    text_buffer_format(out, "<td class=\"r\">%s", text);
    if (before > 0 && column <= LADDER_VALIDATION)
        text_buffer_format(out, "<small>%+.4f</small>", value - before);
    else if (before > 0)
        text_buffer_format(out, "<small>%+.1f %%</small>", 100 * (value / before - 1));
    text_buffer_format(out, "<i class=\"bar b%d\" style=\"width:%.1f%%\"></i></td>", colour,
                       report_width(value / most));
}

static void write_table(const ReportRun *runs, const RunFigures *figures, int count, TextBuffer *out) {
    static const char *const names[] = {"training loss", "validation loss", "tokens/s", "MFU"};
    double tokens, eval_tokens, most[LADDER_COLUMNS] = {0};
    char text[32];
    equal_tokens(runs, figures, count, &tokens, &eval_tokens);
    LadderRow *rows = ladder_rows(runs, figures, count, tokens, eval_tokens);
    for (int i = 0; i < count; i++)
        for (int c = 0; c < LADDER_COLUMNS; c++)
            most[c] = fmax(most[c], rows[i].value[c]); // passes NaN over
    text_buffer_format(out,
                       "<div class=\"scroll ladder\"><table><tr><th>run</th><th>changed against the one before</th>");
    for (int c = 0; c < LADDER_COLUMNS; c++)
        if (most[c] > 0) text_buffer_format(out, "<th class=\"r\">%s</th>", names[c]);
    text_buffer_format(out, "</tr>\n");
    for (int i = 0; i < count; i++) {
        text_buffer_format(out, "<tr><td><i class=\"mark b%d\"></i><b>", i % CHART_COLOURS);
        html_text(out, runs[i].record.name);
        text_buffer_format(out, "</b></td><td>");
        if (i) write_changes(&runs[i - 1].record, &runs[i].record, out);
        text_buffer_format(out, "</td>");
        for (int c = 0; c < LADDER_COLUMNS; c++)
            if (most[c] > 0)
                write_cell(c, rows[i].value[c], i ? rows[i - 1].value[c] : 0, most[c], i % CHART_COLOURS, out);
        text_buffer_format(out, "</tr>\n");
    }
    text_buffer_format(out, "</table></div>\n<p class=\"note\">Losses at equal tokens: training at %s",
                       text_count(text, tokens));
    if (eval_tokens > 0 && isfinite(eval_tokens))
        text_buffer_format(out, ", validation at %s", text_count(text, eval_tokens));
    text_buffer_format(out, ", the most that every run has reached. Beside each figure: against the run above.</p>\n");
    free(rows);
}

// From the first run to the last, and what holds the last one back.
static void write_sentence(const ReportRun *runs, const RunFigures *figures, int count, TextBuffer *out) {
    int last = count - 1;
    Waterfall waterfall = report_waterfall(&runs[last].record, &figures[last]);
    char *sentence = report_sentence(&runs[last], &figures[last], &waterfall);
    text_buffer_format(out, "<p class=\"said\">");
    if (figures[0].rate > 0 && figures[last].rate > 0) {
        html_text(out, runs[last].record.name);
        text_buffer_format(out, " trains at %.2f times the speed of ", figures[last].rate / figures[0].rate);
        html_text(out, runs[0].record.name);
        text_buffer_format(out, ". ");
    }
    html_text(out, sentence);
    text_buffer_format(out, "</p>\n");
    free(sentence);
}

typedef struct Overlay {
    const char *title;
    bool by_time, from_zero;
    ChartUnit unit;
    size_t offset; // of the figure in RunStep
} Overlay;

static void overlay_chart(const ReportRun *runs, int count, const Overlay *o, TextBuffer *out) {
    Chart chart = {.title = o->title,
                   .x_name = o->by_time ? "wall clock" : "tokens",
                   .x_unit = o->by_time ? CHART_TIME : CHART_COUNT,
                   .y_unit = o->unit,
                   .from_zero = o->from_zero,
                   .columns = count > 4 ? 160 : 320};
    bool loss = o->offset == offsetof(RunStep, loss);
    double least = INFINITY;
    for (int r = 0; r < count; r++) {
        const RunRecord *run = &runs[r].record;
        double *x = xmalloc((run->step_count + 1) * sizeof *x), *y = xmalloc((run->step_count + 1) * sizeof *y);
        for (size_t i = 0; i < run->step_count; i++) {
            x[i] = o->by_time ? run->steps[i].time : run->steps[i].tokens;
            memcpy(&y[i], (const char *)&run->steps[i] + o->offset, sizeof *y);
        }
        double *smooth = loss ? report_losses(run) : report_smooth(y, run->step_count);
        free(y);
        for (size_t i = run->step_count / 40; loss && i < run->step_count; i++)
            if (isfinite(smooth[i]))
                chart.y_most = fmax(chart.y_most, 1.05 * smooth[i]), least = fmin(least, smooth[i]);
        chart_add(&chart, run->name, CHART_LINE, r, x, smooth, run->step_count);
    }
    chart.logarithmic = loss && least > 0 && chart.y_most > 8 * least;
    chart_write(&chart, out);
}

static void validation_chart(const ReportRun *runs, int count, TextBuffer *out) {
    Chart chart = {.title = "Validation loss over tokens", .x_name = "tokens", .x_unit = CHART_COUNT, .columns = 160};
    for (int r = 0; r < count; r++) {
        const RunRecord *run = &runs[r].record;
        double *x = xmalloc((run->eval_count + 1) * sizeof *x), *y = xmalloc((run->eval_count + 1) * sizeof *y);
        for (size_t i = 0; i < run->eval_count; i++)
            x[i] = run->evals[i].tokens, y[i] = run->evals[i].loss;
        chart_add(&chart, run->name, CHART_DOTS, r, x, y, run->eval_count);
    }
    chart_write(&chart, out);
}

void report_ladder_table(const ReportRun *runs, const RunFigures *figures, int count, TextBuffer *out) {
    write_sentence(runs, figures, count, out);
    text_buffer_format(out, "<h2>What each change brought</h2>\n");
    write_table(runs, figures, count, out);
}

void report_ladder(const ReportRun *runs, const RunFigures *figures, int count, TextBuffer *out) {
    static const Overlay overlays[] = {
        {"Training loss over tokens, smoothed", false, false, CHART_PLAIN, offsetof(RunStep, loss)},
        {"Training loss over time, smoothed", true, false, CHART_PLAIN, offsetof(RunStep, loss)},
        {"Tokens a second, smoothed", false, true, CHART_COUNT, offsetof(RunStep, rate)},
        {"MFU, smoothed", false, true, CHART_PERCENT, offsetof(RunStep, mfu)},
    };
    report_ladder_table(runs, figures, count, out);
    text_buffer_format(out, "<h2>Side by side</h2>\n<div class=\"charts two\">\n");
    for (size_t i = 0; i < sizeof overlays / sizeof overlays[0]; i++) {
        if (i == 2) validation_chart(runs, count, out);
        overlay_chart(runs, count, &overlays[i], out);
    }
    text_buffer_format(out, "</div>\n");
}
