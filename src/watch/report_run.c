// One run on the page: its figures, curves, time, experts, samples, settings and surroundings.
#include "plan/cost.h"
#include "watch/chart.h"
#include "watch/html.h"
#include "watch/report.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS_MOST = 4000, SAMPLES_MOST = 12, ALARMS_MOST = 50 };

// ---- tiles ----------------------------------------------------------------------------------------------------------

static void tile(TextBuffer *out, const char *name, const char *value, const char *more, ...)
    __attribute__((format(printf, 4, 5)));
static void tile(TextBuffer *out, const char *name, const char *value, const char *more, ...) {
    va_list args;
    va_start(args, more);
    char *below = text_vformat(more, args);
    va_end(args);
    text_buffer_format(out, "<div><span>%s</span><b>%s</b><small>%s</small></div>\n", name, value, below);
    free(below);
}

static const char *money(char text[32], double dollars) {
    if (dollars < 0.01) return "&lt; $0.01";
    char whole[32];
    if (dollars >= 1000)
        snprintf(text, 32, "$%s", text_grouped(whole, llround(fmin(dollars, 1e18))));
    else
        snprintf(text, 32, "$%.2f", dollars);
    return text;
}

static void loss_tiles(const RunRecord *run, const RunFigures *f, TextBuffer *out) {
    char text[32];
    if (isfinite(f->loss)) {
        snprintf(text, sizeof text, "%.4f", f->loss);
        tile(out, "training loss", text, "smoothed, at the end");
    }
    if (f->eval) {
        snprintf(text, sizeof text, "%.4f", f->eval->loss);
        tile(out, "validation loss", text, "step %lld, %s", (long long)f->eval->step,
             f->eval->full ? "all of the data" : "a fixed subset");
    }
    if (isfinite(f->perplexity)) {
        snprintf(text, sizeof text, "%.4g", f->perplexity);
        tile(out, "perplexity", text, "of the %s loss", f->eval ? "validation" : "training");
    }
    if (f->eval && f->eval->bits_per_byte > 0) {
        snprintf(text, sizeof text, "%.4f", f->eval->bits_per_byte);
        tile(out, "bits per byte", text, "of the validation text");
    }
    char steps[32];
    int64_t last = run->step_count ? run->steps[run->step_count - 1].step : 0;
    tile(out, "tokens", text_count(text, f->tokens), "%s steps%s", text_grouped(steps, last),
         f->skipped ? ", some skipped" : "");
}

static void speed_tiles(const ReportRun *report, const RunFigures *f, TextBuffer *out) {
    char text[32], more[48];
    if (f->rate > 0)
        tile(out, "tokens a second", text_grouped(text, llround(fmin(f->rate, 1e18))), "after the first steps");
    if (f->mfu > 0) {
        snprintf(text, sizeof text, "%.1f %%", 100 * f->mfu);
        tile(out, "average MFU", text, "%.4g TFLOP/s", f->tflops);
    } else if (f->tflops > 0) {
        snprintf(text, sizeof text, "%.3g", f->tflops >= 1 ? f->tflops : 1e3 * f->tflops);
        tile(out, f->tflops >= 1 ? "TFLOP/s" : "GFLOP/s", text, "no peak to set them against");
    }
    if (f->memory > 0)
        tile(out, "peak memory", text_gib(text, f->memory), "%s of the device",
             f->memory_fraction > 0 ? chart_value(more, f->memory_fraction, 1, CHART_PERCENT) : "in use");
    tile(out, "time", text_duration(text, f->seconds), "on %.0f device%s", f->devices, f->devices > 1 ? "s" : "");
    if (isfinite(f->cost)) tile(out, "cost", money(text, f->cost), "at $%.3g for a device-hour", report->usd_per_hour);
    if (isfinite(f->energy)) {
        if (f->energy < 1e-4)
            snprintf(text, sizeof text, "&lt; 0.1 Wh");
        else
            snprintf(text, sizeof text, "%.3g %s", f->energy >= 1 ? f->energy : 1e3 * f->energy,
                     f->energy >= 1 ? "kWh" : "Wh");
        tile(out, f->watts_measured ? "energy" : "energy, at most", text, "%.0f W; building × %.3g", f->watts,
             report->pue > 0 ? report->pue : 1);
    }
    if (f->clock > 0) {
        snprintf(text, sizeof text, "%.0f MHz", f->clock);
        if (f->capped >= 0)
            tile(out, "GPU clock", text, "at its power limit: %.0f %%", 100 * f->capped);
        else
            tile(out, "GPU clock", text, "mean");
    }
}

// ---- curves ---------------------------------------------------------------------------------------------------------

static double *step_column(const RunRecord *run, size_t offset) {
    double *values = xmalloc((run->step_count + 1) * sizeof *values);
    for (size_t i = 0; i < run->step_count; i++)
        memcpy(&values[i], (const char *)&run->steps[i] + offset, sizeof *values);
    return values;
}

static double *eval_column(const RunRecord *run, size_t offset) {
    double *values = xmalloc((run->eval_count + 1) * sizeof *values);
    for (size_t i = 0; i < run->eval_count; i++)
        memcpy(&values[i], (const char *)&run->evals[i] + offset, sizeof *values);
    return values;
}

// The first steps of a run are so much worse than all others that the curve would be a line at the bottom: they are cut
// off, and where that does not help the scale is logarithmic.
static void loss_scale(const RunRecord *run, Chart *chart) {
    double most = -INFINITY, least = INFINITY, *smooth = report_losses(run);
    for (size_t i = run->step_count / 40; i < run->step_count; i++)
        most = fmax(most, smooth[i]), least = fmin(least, smooth[i]);
    free(smooth);
    chart->logarithmic = least > 0 && most > 8 * least;
    if (isfinite(most)) chart->y_most = most * 1.05;
}

static void loss_chart(const RunRecord *run, bool by_time, TextBuffer *out) {
    size_t x = by_time ? offsetof(RunStep, time) : offsetof(RunStep, tokens);
    size_t x_eval = by_time ? offsetof(RunEval, time) : offsetof(RunEval, tokens);
    Chart chart = {.title = by_time ? "Loss over time" : "Loss over tokens",
                   .x_name = by_time ? "wall clock" : "tokens",
                   .x_unit = by_time ? CHART_TIME : CHART_COUNT};
    loss_scale(run, &chart);
    chart_add(&chart, "training", CHART_FAINT, 0, step_column(run, x), step_column(run, offsetof(RunStep, loss)),
              run->step_count);
    chart_add(&chart, "smoothed", CHART_LINE, 0, step_column(run, x), report_losses(run), run->step_count);
    if (run->eval_count)
        chart_add(&chart, "validation", CHART_DOTS, 1, eval_column(run, x_eval),
                  eval_column(run, offsetof(RunEval, loss)), run->eval_count);
    chart_write(&chart, out);
}

// Without the first `cut` steps.
static void step_chart(const RunRecord *run, Chart chart, const char *name, size_t offset, bool smooth, size_t cut,
                       TextBuffer *out) {
    size_t tokens = offsetof(RunStep, tokens), count = run->step_count;
    double *values = step_column(run, offset), *mean = NULL;
    for (size_t i = 0; i < cut && i < count; i++)
        values[i] = NAN;
    if (smooth) mean = report_smooth(values, count);
    for (size_t i = 0; i < cut && i < count && smooth; i++)
        mean[i] = NAN;
    chart.x_name = "tokens";
    chart.x_unit = CHART_COUNT;
    chart_add(&chart, name, smooth ? CHART_FAINT : CHART_LINE, 0, step_column(run, tokens), values, count);
    if (smooth) chart_add(&chart, "smoothed", CHART_LINE, 0, step_column(run, tokens), mean, count);
    chart_write(&chart, out);
}

static bool any_wait(const RunRecord *run) {
    for (size_t i = 0; i < run->step_count; i++)
        if (run->steps[i].data_wait > 0.001 || run->steps[i].comm_wait > 0.001) return true;
    return false;
}

typedef struct Share {
    const char *name;
    size_t offset; // in RunStep
} Share;

// Of two, smoothed.
static void shares_chart(const RunRecord *run, const char *title, const Share shares[2], TextBuffer *out) {
    Chart chart = {
        .title = title, .x_name = "tokens", .x_unit = CHART_COUNT, .y_unit = CHART_PERCENT, .from_zero = true};
    for (int i = 0; i < 2; i++) {
        double *values = step_column(run, shares[i].offset);
        chart_add(&chart, shares[i].name, CHART_LINE, i, step_column(run, offsetof(RunStep, tokens)),
                  report_smooth(values, run->step_count), run->step_count);
        free(values);
    }
    chart_write(&chart, out);
}

static bool any_held_back(const RunRecord *run) {
    for (size_t i = 0; i < run->step_count; i++)
        if (run->steps[i].throttled > 0 || run->steps[i].capped > 0) return true;
    return false;
}

// The steps of the warm-up choose kernels and record graphs: their speed says nothing about the others'.
static void write_curves(const RunRecord *run, size_t warm, TextBuffer *out) {
    text_buffer_format(out, "<h2>Loss</h2>\n<div class=\"charts two\">\n");
    loss_chart(run, false, out);
    loss_chart(run, true, out);
    text_buffer_format(out, "</div>\n<h2>Course</h2>\n<div class=\"charts\">\n");
    step_chart(run, (Chart){.title = "Learning rate", .from_zero = true}, "lr", offsetof(RunStep, lr), false, 0, out);
    step_chart(run, (Chart){.title = "Gradient norm", .logarithmic = true}, "norm", offsetof(RunStep, norm), true, 0,
               out);
    step_chart(run, (Chart){.title = "Tokens a second", .from_zero = true, .y_unit = CHART_COUNT}, "tok/s",
               offsetof(RunStep, rate), true, warm, out);
    step_chart(run, (Chart){.title = "MFU", .from_zero = true, .y_unit = CHART_PERCENT}, "MFU", offsetof(RunStep, mfu),
               true, warm, out);
    step_chart(run, (Chart){.title = "Memory in use", .from_zero = true, .y_unit = CHART_BYTES}, "memory",
               offsetof(RunStep, memory), false, 0, out);
    step_chart(run, (Chart){.title = "Power of the GPU, W", .from_zero = true}, "W", offsetof(RunStep, power), false, 0,
               out);
    step_chart(run, (Chart){.title = "Clock of the GPU, MHz"}, "MHz", offsetof(RunStep, clock), false, 0, out);
    step_chart(run, (Chart){.title = "Temperature of the GPU, °C"}, "°C", offsetof(RunStep, temperature), false, 0,
               out);
    if (any_held_back(run))
        shares_chart(run, "Time that the GPU is held back",
                     (Share[]){{"by its power limit", offsetof(RunStep, capped)},
                               {"by heat or a fault", offsetof(RunStep, throttled)}},
                     out);
    if (any_wait(run))
        shares_chart(
            run, "Share of a step that waits",
            (Share[]){{"for data", offsetof(RunStep, data_wait)}, {"for other ranks", offsetof(RunStep, comm_wait)}},
            out);
    text_buffer_format(out, "</div>\n");
}

// ---- experts --------------------------------------------------------------------------------------------------------

// Each column is the worst of the steps that fall into it: one that ran hot must not vanish between two.
static void write_experts(const RunRecord *run, int runs, TextBuffer *out) {
    int rows = 0;
    for (size_t i = 0; i < run->load_count; i++)
        rows = run->loads[i].layers > rows ? run->loads[i].layers : rows;
    if (!rows) return;
    int room = CELLS_MOST / (rows * runs), columns = room < 4 ? 4 : room > 120 ? 120 : room;
    if ((size_t)columns > run->load_count) columns = (int)run->load_count;
    double *values = xmalloc((size_t)rows * (size_t)columns * sizeof *values), most = 1, dead = 0;
    int64_t *steps = xcalloc((size_t)columns, sizeof *steps);
    for (int i = 0; i < rows * columns; i++)
        values[i] = NAN;
    for (size_t i = 0; i < run->load_count; i++) {
        const RunLoad *load = &run->loads[i];
        int column = (int)(i * (size_t)columns / run->load_count);
        steps[column] = load->step;
        for (int r = 0; r < load->layers; r++) {
            double *cell = &values[r * columns + column];
            *cell = fmax(*cell, load->most[r]);
            if (isfinite(load->most[r])) most = fmax(most, load->most[r]);
            if (load->dead[r] > dead) dead = load->dead[r];
        }
    }
    HeatMap map = {.title = "Load of the busiest expert",
                   .row_name = "layer",
                   .column_name = "step",
                   .value_name = "times the mean",
                   .rows = rows,
                   .columns = columns,
                   .values = values,
                   .column_steps = steps,
                   .least = 1,
                   .most = most};
    text_buffer_format(out, "<h2>Experts</h2>\n");
    heat_map_write(&map, out);
    text_buffer_format(out,
                       "<p class=\"note\">1 is a load that is the same for all. At most %.0f expert%s of a layer had "
                       "no token in a step.</p>\n",
                       dead, dead == 1 ? "" : "s");
    free(steps);
    free(values);
}

// ---- alarms ---------------------------------------------------------------------------------------------------------

static void write_alarms(const RunRecord *run, TextBuffer *out) {
    if (!run->alarm_count) return;
    text_buffer_format(out, "<h2>Alarms</h2>\n<div class=\"scroll\"><table><tr><th class=\"r\">step</th><th>what was "
                            "seen</th><th>what to do</th></tr>\n");
    for (size_t i = 0; i < run->alarm_count && i < ALARMS_MOST; i++) {
        text_buffer_format(out, "<tr><td class=\"r\">%lld</td><td>", (long long)run->alarms[i].step);
        html_text(out, run->alarms[i].message);
        text_buffer_format(out, "</td><td>");
        html_text(out, run->alarms[i].advice);
        text_buffer_format(out, "</td></tr>\n");
    }
    text_buffer_format(out, "</table></div>\n");
    if (run->alarm_count > ALARMS_MOST)
        text_buffer_format(out, "<p class=\"note\">%zu more are in alarms.jsonl.</p>\n",
                           run->alarm_count - ALARMS_MOST);
}

// ---- samples, settings, surroundings --------------------------------------------------------------------------------

// Spread over the run, the first and the last among them.
static void write_samples(const RunRecord *run, TextBuffer *out) {
    size_t shown = run->sample_count < SAMPLES_MOST ? run->sample_count : SAMPLES_MOST;
    if (!shown) return;
    text_buffer_format(out, "<h2>Samples</h2>\n<div class=\"samples\">\n");
    for (size_t i = 0; i < shown; i++) {
        const RunSample *s = &run->samples[shown > 1 ? i * (run->sample_count - 1) / (shown - 1) : 0];
        size_t length = strlen(s->text), most = 1500;
        text_buffer_format(out, "<figure><figcaption><b>step %lld</b></figcaption><pre><b>", (long long)s->step);
        html_text(out, s->prompt);
        text_buffer_format(out, "</b>");
        html_add(out, s->text, length < most ? length : most);
        text_buffer_format(out, "%s</pre></figure>\n", length < most ? "" : " …");
    }
    text_buffer_format(out, "</div>\n");
}

static void write_pair(const char *key, const char *value, TextBuffer *out) {
    text_buffer_format(out, "<div><span>");
    html_text(out, key);
    text_buffer_format(out, "</span><code>");
    html_text(out, value);
    text_buffer_format(out, "</code></div>\n");
}

static void write_settings(const RunRecord *run, TextBuffer *out) {
    if (!run->setting_count) return;
    text_buffer_format(out,
                       "<h2>Configuration</h2>\n<details><summary>All %zu keys of config.toml</summary>\n<div "
                       "class=\"keys\">\n",
                       run->setting_count);
    for (size_t i = 0; i < run->setting_count; i++)
        if (run->settings[i].value[0]) write_pair(run->settings[i].key, run->settings[i].value, out);
    text_buffer_format(out, "</div></details>\n");
}

static void write_json_pairs(const json_t *object, TextBuffer *out) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        char *name = text_copy(key), number[32];
        size_t length = strlen(name);
        bool bytes = length > 6 && strcmp(name + length - 6, "_bytes") == 0;
        if (bytes) name[length - 6] = '\0';
        for (char *c = name; *c; c++)
            if (*c == '_') *c = ' ';
        if (json_is_object(value))
            write_json_pairs(value, out);
        else if (json_is_string(value))
            write_pair(name, json_string_value(value), out);
        else if (json_is_number(value) && bytes)
            write_pair(name, text_gib(number, json_number_value(value)), out);
        else if (json_is_number(value))
            write_pair(name, text_number(number, json_number_value(value)), out);
        else
            write_pair(name, json_is_true(value) ? "yes" : "no", out);
        free(name);
    }
}

static void write_environment(const RunRecord *run, TextBuffer *out) {
    size_t count = json_array_size(run->environment);
    if (!count) return;
    text_buffer_format(out, "<h2>Environment</h2>\n");
    for (size_t i = 0; i < count; i++) {
        if (count > 1) text_buffer_format(out, "<h3>Process %zu of %zu</h3>\n", i + 1, count);
        text_buffer_format(out, "<div class=\"keys\">\n");
        write_json_pairs(json_array_get(run->environment, i), out);
        text_buffer_format(out, "</div>\n");
    }
}

static void write_billion(const ReportRun *run, const RunFigures *f, TextBuffer *out) {
    char time[32], dollars[32];
    double seconds = 1e9 / f->rate;
    if (!(f->rate > 0) || !isfinite(f->cost) || !isfinite(f->energy)) return;
    text_buffer_format(out, "A billion tokens take %s at this rate: %s and %.3g kWh. ", text_duration(time, seconds),
                       money(dollars, plan_gpu_cost(f->devices, seconds, run->usd_per_hour)),
                       plan_energy_kwh(f->devices, f->watts, seconds, run->pue > 0 ? run->pue : 1));
}

static void write_assumptions(const ReportRun *run, const RunFigures *f, TextBuffer *out) {
    text_buffer_format(out, "<p class=\"note\">");
    if (isfinite(f->cost))
        text_buffer_format(out,
                           "Cost: wall clock of the training times %.0f device%s at the catalogue's rental price of "
                           "$%.3g an hour. ",
                           f->devices, f->devices > 1 ? "s" : "", run->usd_per_hour);
    if (isfinite(f->energy) && f->watts_measured)
        text_buffer_format(
            out, "Energy: the same time at the %.0f W that the GPU of rank 0 drew, times %.3g for the building. ",
            f->watts, run->pue > 0 ? run->pue : 1);
    else if (isfinite(f->energy))
        text_buffer_format(out,
                           "Energy: the same time at the device's rated %.0f W, times %.3g for the building; a device "
                           "that is not busy draws less. ",
                           f->watts, run->pue > 0 ? run->pue : 1);
    write_billion(run, f, out);
    text_buffer_format(out, "Loss is in nats per token; smoothed is the mean of the %zu steps around each.",
                       report_window(run->record.step_count));
    if (run->record.lines_passed_over)
        text_buffer_format(out, " %zu line%s of the run's files made no sense and %s passed over.",
                           run->record.lines_passed_over, run->record.lines_passed_over > 1 ? "s" : "",
                           run->record.lines_passed_over > 1 ? "were" : "was");
    text_buffer_format(out, "</p>\n");
}

void report_run_before(const ReportRun *run, const RunFigures *figures, const Waterfall *waterfall, TextBuffer *out) {
    char *sentence = report_sentence(run, figures, waterfall);
    text_buffer_format(out, "<p class=\"said\">");
    html_text(out, sentence);
    text_buffer_format(out, "</p>\n<div class=\"tiles\">\n");
    loss_tiles(&run->record, figures, out);
    speed_tiles(run, figures, out);
    text_buffer_format(out, "</div>\n");
    write_assumptions(run, figures, out);
    write_alarms(&run->record, out);
    free(sentence);
}

void report_run_behind(const ReportRun *run, const RunFigures *figures, const Waterfall *waterfall, int count,
                       TextBuffer *out) {
    report_time(&run->record, figures, waterfall, out);
    report_profile(&run->record, out);
    write_experts(&run->record, count, out);
    write_samples(&run->record, out);
    write_settings(&run->record, out);
    write_environment(&run->record, out);
}

void report_run(const ReportRun *run, const RunFigures *figures, int count, TextBuffer *out) {
    Waterfall waterfall = report_waterfall(&run->record, figures);
    report_run_before(run, figures, &waterfall, out);
    if (run->record.step_count) write_curves(&run->record, figures->first, out);
    report_run_behind(run, figures, &waterfall, count, out);
}
