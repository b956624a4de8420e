// Tables of settings and figures, a column for each run.
#include "watch/run_compare.h"

#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status run_compared_read(RunCompared *run, const char *directory) {
    TRY(run_summary_read(&run->summary, directory));
    Status status = run_read_settings(&run->settings, directory);
    if (status) run_compared_free(run);
    return status;
}

void run_compared_free(RunCompared *run) {
    run_summary_free(&run->summary);
    run_record_free(&run->settings);
}

// A name or value may hold what ends a cell or a row.
static void cell_add(TextBuffer *row, const char *text) {
    text_buffer_add(row, "\t", 1);
    for (; *text; text++)
        text_buffer_add(row, *text == '\t' || *text == '\n' ? " " : text, 1);
}

static void section_begin(Document *document, const char *title, const char *first, const RunCompared *runs,
                          int count) {
    TextBuffer align = {0}, header = {0};
    text_buffer_format(&align, "l");
    text_buffer_format(&header, "%s", first);
    for (int i = 0; i < count; i++) {
        text_buffer_format(&align, "r");
        cell_add(&header, runs[i].summary.name);
    }
    document_section(document, title, align.data, header.data);
    text_buffer_free(&align);
    text_buffer_free(&header);
}

static void row_end(Document *document, TextBuffer *row) { // takes it
    document_row(document, "%s", row->data);
    text_buffer_free(row);
}

static const char *setting_text(const RunCompared *run, const char *key) {
    const char *value = run_setting(&run->settings, key);
    return !value ? "-" : value[0] ? value : "\"\"";
}

static bool setting_differs(const RunCompared *runs, int count, const char *key) {
    for (int i = 1; i < count; i++)
        if (strcmp(setting_text(&runs[i], key), setting_text(&runs[0], key)) != 0) return true;
    return false;
}

// Keys in the order of the first run that has them.
static void add_settings(Document *document, const RunCompared *runs, int count) {
    section_begin(document, "Settings that differ", "key", runs, count);
    int differing = 0;
    for (int r = 0; r < count; r++)
        for (size_t k = 0; k < runs[r].settings.setting_count; k++) {
            const char *key = runs[r].settings.settings[k].key;
            bool seen = false;
            for (int before = 0; before < r; before++)
                seen = seen || run_setting(&runs[before].settings, key);
            if (seen || !setting_differs(runs, count, key)) continue;
            TextBuffer row = {0};
            text_buffer_format(&row, "%s", key);
            for (int i = 0; i < count; i++)
                cell_add(&row, setting_text(&runs[i], key));
            row_end(document, &row);
            differing++;
        }
    if (!differing) document_note(document, "none");
}

typedef enum Figure { // of a run, for a row
    FIGURE_STEPS,
    FIGURE_TOKENS,
    FIGURE_LOSS,
    FIGURE_LOSS_EQUAL,
    FIGURE_VAL_LOSS,
    FIGURE_SPEED,
    FIGURE_MFU,
    FIGURE_MEMORY,
    FIGURE_TIME,
    FIGURE_ENERGY,
    FIGURE_SKIPPED,
    FIGURE_SIZE,
    FIGURE_COUNT,
} Figure;

static double figure_of(const RunSummary *run, Figure figure, double equal_tokens) {
    switch (figure) {
    case FIGURE_STEPS: return (double)run->step;
    case FIGURE_TOKENS: return (double)run->tokens;
    case FIGURE_LOSS: return run->loss;
    case FIGURE_LOSS_EQUAL: return run_summary_loss_at(run, equal_tokens);
    case FIGURE_VAL_LOSS: return run->val_loss;
    case FIGURE_SPEED: return run->tok_s;
    case FIGURE_MFU: return 100 * run->mfu;
    case FIGURE_MEMORY: return run->memory_bytes;
    case FIGURE_TIME: return run->seconds;
    case FIGURE_ENERGY: return run->joules;
    case FIGURE_SKIPPED: return (double)run->skipped;
    case FIGURE_SIZE: return (double)run->size;
    default: return NAN;
    }
}

static char *figure_text(char *out, Figure figure, double value) {
    if (isnan(value)) return strcpy(out, "-");
    switch (figure) {
    case FIGURE_TOKENS: return text_count(out, value);
    case FIGURE_LOSS:
    case FIGURE_LOSS_EQUAL:
    case FIGURE_VAL_LOSS: snprintf(out, 32, "%.4f", value); return out;
    case FIGURE_MFU: snprintf(out, 32, "%.1f%%", value); return out;
    case FIGURE_MEMORY:
    case FIGURE_SIZE: return text_gib(out, value);
    case FIGURE_TIME: return text_duration(out, value);
    case FIGURE_ENERGY:
        snprintf(out, 32, value < 3.6e6 ? "%.3g Wh" : "%.4g kWh", value / (value < 3.6e6 ? 3600 : 3.6e6));
        return out;
    default: return text_grouped(out, (int64_t)llround(value));
    }
}

// Behind the figures of the second run and on: against the first.
static void add_change(TextBuffer *row, Figure figure, double value, double first) {
    bool difference = figure == FIGURE_LOSS_EQUAL || figure == FIGURE_VAL_LOSS || figure == FIGURE_LOSS;
    bool ratio = figure == FIGURE_SPEED || figure == FIGURE_MEMORY;
    if (difference && isfinite(value - first)) text_buffer_format(row, " (%+.4f)", value - first);
    if (ratio && isfinite(value / first)) text_buffer_format(row, " (%+.1f%%)", 100 * (value / first - 1));
}

static bool any_known(const RunCompared *runs, int count, Figure figure, double equal_tokens) {
    for (int i = 0; i < count; i++)
        if (isfinite(figure_of(&runs[i].summary, figure, equal_tokens))) return true;
    return false;
}

static void add_outcome(Document *document, const RunCompared *runs, int count) {
    double equal = INFINITY;
    for (int i = 0; i < count; i++)
        equal = fmin(equal, (double)runs[i].summary.tokens);
    char at[64], number[32];
    snprintf(at, sizeof at, "loss at %s tokens", text_count(number, equal));
    const char *const names[FIGURE_COUNT] = {"steps",
                                             "tokens",
                                             "final loss",
                                             at,
                                             "validation loss",
                                             "tok/s",
                                             "MFU",
                                             "peak memory",
                                             "time of the steps",
                                             "energy, GPU of rank 0",
                                             "skipped steps",
                                             "size"};
    section_begin(document, "What came of it", "", runs, count);
    TextBuffer states = {0};
    text_buffer_format(&states, "state");
    for (int i = 0; i < count; i++)
        text_buffer_format(&states, "\t%s", run_state_name(runs[i].summary.state));
    row_end(document, &states);
    for (Figure figure = 0; figure < FIGURE_COUNT; figure++) {
        if (figure == FIGURE_ENERGY && !any_known(runs, count, figure, equal)) continue; // no run was on a GPU
        TextBuffer row = {0};
        double first = figure_of(&runs[0].summary, figure, equal);
        text_buffer_format(&row, "%s", names[figure]);
        for (int i = 0; i < count; i++) {
            double value = figure_of(&runs[i].summary, figure, equal);
            text_buffer_format(&row, "\t%s", figure_text(number, figure, value));
            if (i) add_change(&row, figure, value, first);
        }
        row_end(document, &row);
    }
    document_note(document, "Losses are means of 20 steps, tok/s and MFU medians; in brackets: against the first run.");
}

Document *run_compare(const RunCompared *runs, int count) {
    Document *document = document_create("Runs compared");
    add_settings(document, runs, count);
    add_outcome(document, runs, count);
    return document;
}
