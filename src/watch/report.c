#include "watch/report.h"

#include "watch/html.h"

#include <stdlib.h>
#include <string.h>

// "1 × CPU, fp32, sequences of 256, 1,024 tokens a step"
void report_subtitle(const RunRecord *run, const RunFigures *figures, TextBuffer *out) {
    const json_t *prediction = json_object_get(run->plan, "prediction");
    const char *device = json_string_value(json_object_get(prediction, "device"));
    const char *started = json_string_value(json_object_get(json_array_get(run->environment, 0), "started"));
    const char *preset = run_setting(run, "model.preset"), *arch = run_setting(run, "model.arch");
    const char *precision = run_setting(run, "train.precision"), *seq = run_setting(run, "train.seq");
    double parameters = json_number_value(json_object_get(run->plan, "parameters"));
    double batch = json_number_value(json_object_get(run->plan, "batch_tokens"));
    char text[32];
    text_buffer_format(out, "<p class=\"soft\">");
    html_text(out, preset && preset[0] ? preset : arch && arch[0] ? arch : "a model");
    if (parameters > 0) text_buffer_format(out, " of %s parameters", text_count(text, parameters));
    if (device) {
        text_buffer_format(out, " · %.0f × ", figures->devices);
        html_text(out, device);
    }
    if (precision) text_buffer_format(out, " · "), html_text(out, precision);
    if (seq) text_buffer_format(out, " · sequences of "), html_text(out, seq);
    if (batch > 0) text_buffer_format(out, " · %s tokens a step", text_grouped(text, (int64_t)fmin(batch, 1e18)));
    if (started) {
        bool utc = strlen(started) == 20 && started[10] == 'T' && started[19] == 'Z'; // "2026-11-16T08:05:31Z"
        text_buffer_format(out, " · began ");
        html_add(out, started, utc ? 10 : strlen(started));
        if (utc) text_buffer_format(out, " "), html_add(out, started + 11, 5), text_buffer_format(out, " UTC");
    }
    text_buffer_format(out, "</p>\n");
}

static void write_head(const char *title, TextBuffer *out) {
    text_buffer_format(out,
                       "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
                       "content=\"width=device-width, initial-scale=1\"/>\n<title>");
    html_text(out, title);
    text_buffer_format(out, "</title>\n<style>\n%s</style></head>\n<body><main>\n<h1>", report_style);
    html_text(out, title);
    text_buffer_format(out, "</h1>\n");
}

static char *page_title(const ReportRun *runs, int count) {
    return count == 1 ? text_copy(runs[0].record.name)
                      : text_format("%d runs: %s to %s", count, runs[0].record.name, runs[count - 1].record.name);
}

void report_write(const ReportRun *runs, int count, TextBuffer *out) {
    RunFigures *figures = xmalloc((size_t)count * sizeof *figures);
    char *title = page_title(runs, count);
    for (int i = 0; i < count; i++)
        figures[i] = report_figures(&runs[i]);
    write_head(title, out);
    if (count > 1) report_ladder(runs, figures, count, out);
    for (int i = 0; i < count; i++) {
        if (count > 1) {
            text_buffer_format(out, "<details class=\"run\" open=\"open\"><summary>");
            html_text(out, runs[i].record.name);
            text_buffer_format(out, "</summary>\n");
        }
        report_subtitle(&runs[i].record, &figures[i], out);
        report_run(&runs[i], &figures[i], count, out);
        if (count > 1) text_buffer_format(out, "</details>\n");
    }
    text_buffer_format(out, "<footer>hearth %s</footer>\n</main></body></html>\n", HEARTH_VERSION);
    free(title);
    free(figures);
}
