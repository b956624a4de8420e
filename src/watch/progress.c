// The terminal: banner, live line, plain lines, and the loss curve.
#include "watch/progress.h"

#include "base/clock.h"
#include "base/text.h"
#include "watch/metrics_table.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

ProgressMode progress_mode(const char *name) {
    if (strcmp(name, "live") == 0) return PROGRESS_LIVE;
    if (strcmp(name, "plain") == 0) return PROGRESS_PLAIN;
    if (strcmp(name, "off") == 0) return PROGRESS_OFF;
    return isatty(STDOUT_FILENO) ? PROGRESS_LIVE : PROGRESS_PLAIN;
}

void progress_begin(Progress *progress) {
    progress->started = clock_seconds();
    progress->last_draw = progress->warm = 0;
    progress->drawn = false;
}

// A terminal or reader that is gone is not written to again; a full disk may have room later.
static void progress_flush(Progress *progress) {
    if (!fflush(stdout)) return;
    if (errno == EPIPE || errno == EIO) progress->mode = PROGRESS_OFF;
    clearerr(stdout);
}

void progress_clear(Progress *progress) {
    if (!progress->drawn) return;
    printf("\r\033[K");
    progress_flush(progress);
    progress->drawn = false;
}

static double seconds_left(const Progress *progress, const MetricsStep *step) {
    double now = clock_seconds(), left = -1;
    int64_t done = step->step - progress->first_step - 1;
    if (progress->total_steps && done > 0)
        left = (now - progress->warm) / (double)done * (double)(progress->total_steps - step->step);
    if (progress->hours > 0) {
        double limit = progress->hours * 3600 - (now - progress->started);
        if (left < 0 || limit < left) left = limit;
    }
    return left;
}

// Metrics of the line behind the step, in their order, as the table prints them.
static const char *const progress_keys[] = {"tokens",      "loss",     "loss_gap", "loss_aux",     "moe_load_max",
                                            "moe_entropy", "moe_dead", "lr",       "grad_norm",    "loss_scale",
                                            "tok_s",       "tflops",   "mfu",      "memory_bytes", "memory_fraction",
                                            "data_wait",   "comm_wait"};

static void format_step(TextBuffer *out, const Progress *progress, const MetricsStep *step) {
    char text[64];
    MetricsStep shown = *step;
    shown.moe_count = progress->has_load; // as last taken
    shown.moe_worst = progress->load;
    text_buffer_format(out, "step %lld", (long long)step->step);
    if (progress->total_steps) text_buffer_format(out, "/%lld", (long long)progress->total_steps);
    for (size_t i = 0; i < sizeof progress_keys / sizeof *progress_keys; i++) {
        const char *key = progress_keys[i];
        const MetricsField *field = metrics_field_find(METRICS_STEP, key);
        double value = metrics_field_value(field, &shown);
        if ((field->silent_zero && value == 0) || !metrics_field_present(field, &shown)) continue;
        bool joined = strcmp(key, "memory_fraction") == 0 || strcmp(key, "moe_entropy") == 0 ||
                      strcmp(key, "moe_dead") == 0 || strcmp(key, "loss_gap") == 0; // belongs to the figure before it
        text_buffer_format(out, "%s%s", joined ? " " : "  ", metrics_field_print(field, value, text));
    }
    double left = seconds_left(progress, step);
    if (left >= 0) text_buffer_format(out, "  ETA %s", text_duration(text, left));
    if (step->skipped) text_buffer_format(out, "  SKIPPED");
}

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 1000;
}

static void draw_live(Progress *progress, const MetricsStep *step) {
    double now = clock_seconds();
    if (now - progress->last_draw < 0.1 && step->step != progress->total_steps) return;
    progress->last_draw = now;
    enum { BAR = 20 };
    char bar[BAR + 1];
    double done = progress->total_steps ? (double)step->step / (double)progress->total_steps : 0;
    for (int i = 0; i < BAR; i++)
        bar[i] = i < (int)(done * BAR) ? '#' : '.';
    bar[BAR] = 0;
    TextBuffer line = {0};
    format_step(&line, progress, step);
    int room = terminal_columns() - BAR - 4; // a line that wraps could not be drawn over
    printf("\r\033[K[%s] %.*s", bar, room > 0 ? room : 0, line.data);
    progress_flush(progress);
    progress->drawn = true;
    text_buffer_free(&line);
}

void progress_step(Progress *progress, const MetricsStep *step) {
    if (progress->mode == PROGRESS_OFF) return;
    if (progress->warm == 0) progress->warm = clock_seconds();
    if (step->moe_count) {
        progress->has_load = true;
        progress->load = expert_load_worst(step->moe, step->moe_count);
    }
    if (progress->mode == PROGRESS_LIVE) {
        draw_live(progress, step);
        return;
    }
    bool ends = step->step == progress->first_step + 1 || step->step == progress->total_steps || step->skipped;
    if (step->step % progress->print_every && !ends) return;
    TextBuffer line = {0};
    format_step(&line, progress, step);
    printf("%s\n", line.data);
    progress_flush(progress);
    text_buffer_free(&line);
}

void progress_evaluation(Progress *progress, int64_t step, const Evaluation *evaluation) {
    char perplexity[32]; // of a run that has diverged it may have hundreds of digits
    snprintf(perplexity, sizeof perplexity, evaluation->perplexity < 1e9 ? "%.2f" : "%.3g", evaluation->perplexity);
    progress_say(progress, "step %lld  validation loss %.4f  perplexity %s  (%s, %lld targets, %.1fs)", (long long)step,
                 evaluation->loss, perplexity, evaluation->full ? "all data" : "fixed subset",
                 (long long)evaluation->targets, evaluation->seconds);
}

void progress_say(Progress *progress, const char *format, ...) {
    if (progress->mode == PROGRESS_OFF) return;
    progress_clear(progress);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    progress_flush(progress);
}

void progress_banner(const ProgressBanner *banner, FILE *file) {
    char a[64], b[64], c[64];
    fprintf(file, "run        %s%s\n", banner->run, banner->resumed_step ? " (resumed)" : "");
    fprintf(file, "model      %s: %s parameters, %s active; %s on %s\n", banner->model,
            text_count(a, (double)banner->parameters), text_count(b, (double)banner->active_parameters),
            banner->precision, banner->device);
    fprintf(file, "batch      local %lld x %lld tokens, accumulation %lld, ranks %lld: global %s tokens\n",
            (long long)banner->micro_batch, (long long)banner->seq, (long long)banner->grad_accum,
            (long long)banner->ranks, text_grouped(a, banner->batch_tokens));
    if (banner->mesh) fprintf(file, "ranks      %s\n", banner->mesh);
    if (banner->asked_batch_tokens && banner->asked_batch_tokens != banner->batch_tokens)
        fprintf(file, "           batch_tokens = %s rounded to %s: whole micro-batches of %s tokens\n",
                text_grouped(a, banner->asked_batch_tokens), text_grouped(b, banner->batch_tokens),
                text_grouped(c, banner->batch_tokens / banner->grad_accum));
    if (banner->batch_warmup_tokens)
        fprintf(file, "           accumulation rises from 1 to %lld over the first %s tokens\n",
                (long long)banner->grad_accum, text_count(a, (double)banner->batch_warmup_tokens));
    fprintf(file, "data       %s tokens", text_count(a, (double)banner->data_tokens));
    if (banner->total_tokens && banner->data_tokens)
        fprintf(file, ": %.2f epochs", (double)banner->total_tokens / (double)banner->data_tokens);
    fprintf(file, "\nlength     ");
    if (banner->total_steps)
        fprintf(file, "%s steps, %s tokens", text_grouped(a, banner->total_steps),
                text_count(b, (double)banner->total_tokens));
    if (banner->hours > 0) fprintf(file, "%sat most %.3g hours", banner->total_steps ? ", " : "", banner->hours);
    if (banner->resumed_step) fprintf(file, ", continuing after step %s", text_grouped(a, banner->resumed_step));
    if (banner->predicted_seconds > 0) fprintf(file, "; predicted %s", text_duration(a, banner->predicted_seconds));
    fprintf(file, "\nmemory     %s predicted", text_gib(a, banner->memory_bytes));
    if (banner->memory_total > 0)
        fprintf(file, ", %.1f%% of %s", 100 * banner->memory_bytes / banner->memory_total,
                text_gib(b, banner->memory_total));
    fprintf(file, "\n");
}

// ---- the curve -----------------------------------------------------------------------------------------------------

// Losses fall fast and then slowly: rows are spaced by the logarithm.
static int curve_row(double loss, double low, double high, int height) {
    return (int)lround(log(high / loss) / log(high / low) * (height - 1));
}

void progress_curve(FILE *file, const double *losses, int64_t count, int width, int height) {
    if (count < 2) return;
    if (count < width) width = (int)count;
    double *columns = xmalloc((size_t)width * sizeof *columns), low = INFINITY, high = 0;
    for (int x = 0; x < width; x++) { // each column is the mean of its steps
        int64_t from = count * x / width, to = count * (x + 1) / width;
        double sum = 0;
        for (int64_t i = from; i < to; i++)
            sum += losses[i];
        columns[x] = fmax(sum / (double)(to - from), 1e-6);
        low = fmin(low, columns[x]);
        high = fmax(high, columns[x]);
    }
    if (!(high > low)) high = low * 1.01;
    for (int y = 0; y < height; y++) {
        fprintf(file, "%8.3f |", high * pow(low / high, (double)y / (height - 1)));
        for (int x = 0; x < width; x++)
            fputc(curve_row(columns[x], low, high, height) == y ? '*' : ' ', file);
        fprintf(file, "\n");
    }
    fprintf(file, "%8s +", "");
    for (int x = 0; x < width; x++)
        fputc('-', file);
    fprintf(file, "\n%10s1%*lld steps\n", "", width - 1, (long long)count);
    free(columns);
}
