#include "watch/report_figures.h"

#include "base/stats.h"
#include "base/text.h"
#include "plan/cost.h"
#include "watch/profile_summary.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// ---- sums and medians -----------------------------------------------------------------------------------------------

// A run of few steps is all warm-up; then all of them count.
static size_t first_warm(const RunRecord *run) {
    const char *setting = run_setting(run, "watch.warmup_steps");
    int64_t warmup = 3;
    if (setting) text_to_int64(setting, &warmup);
    return warmup >= 0 && (uint64_t)warmup < run->step_count ? (size_t)warmup : 0;
}

static double accum_most(const RunRecord *run) {
    double most = 0;
    for (size_t i = 0; i < run->step_count; i++)
        most = fmax(most, run->steps[i].accum);
    return most;
}

// Of steps with the full batch that were not taken apart; where all were, of those.
static void take_median(const RunRecord *run, RunFigures *figures) {
    double accum = accum_most(run), *seconds = xmalloc((run->step_count + 1) * sizeof *seconds);
    for (int pass = 0; pass < 2 && !figures->measured; pass++)
        for (size_t i = figures->first; i < run->step_count; i++) {
            const RunStep *s = &run->steps[i];
            if (s->seconds > 0 && (pass || (s->split < 0 && !(s->accum < accum))))
                seconds[figures->measured++] = s->seconds;
        }
    figures->step_seconds = figures->measured ? double_median(seconds, figures->measured) : NAN;
    free(seconds);
}

static void take_rates(const RunRecord *run, RunFigures *f) {
    double seconds = 0, tokens = 0, mfu = 0, mfu_seconds = 0, flops = 0, data = 0, comm = 0;
    for (size_t i = f->first; i < run->step_count; i++) {
        const RunStep *s = &run->steps[i];
        if (!(s->seconds > 0) || !(s->rate > 0)) continue;
        seconds += s->seconds;
        tokens += s->rate * s->seconds;
        if (s->tflops > 0) flops += s->tflops * s->seconds;
        if (s->mfu > 0) mfu += s->mfu * s->seconds, mfu_seconds += s->seconds;
        if (s->data_wait > 0) data += fmin(s->data_wait, 1) * s->seconds;
        if (s->comm_wait > 0) comm += fmin(s->comm_wait, 1) * s->seconds;
    }
    f->rate = seconds > 0 ? tokens / seconds : NAN;
    f->tflops = seconds > 0 ? flops / seconds : NAN;
    f->mfu = mfu_seconds > 0 ? mfu / mfu_seconds : NAN;
    f->data_wait = seconds > 0 ? data / seconds : 0;
    f->comm_wait = seconds > 0 ? comm / seconds : 0;
}

// W by the GPU's counter, validations and checkpoints included; NaN without one. Joules are of the time since the line
// that had some before: steps may be shorter than the counter's.
static double counted_watts(const RunRecord *run, size_t first) {
    double joules = 0, seconds = 0, since = NAN;
    for (size_t i = first; i < run->step_count; i++) {
        const RunStep *s = &run->steps[i];
        if (!(s->energy > 0)) continue;
        if (s->time > since) joules += s->energy, seconds += s->time - since;
        since = s->time;
    }
    return seconds > 0 ? joules / seconds : NAN;
}

// Over the steps after the warm-up that have it; NaN: none.
static double mean_of(const RunRecord *run, size_t first, size_t offset) {
    double sum = 0, seconds = 0;
    for (size_t i = first; i < run->step_count; i++) {
        double value;
        memcpy(&value, (const char *)&run->steps[i] + offset, sizeof value);
        if (value >= 0 && run->steps[i].seconds > 0)
            sum += value * run->steps[i].seconds, seconds += run->steps[i].seconds;
    }
    return seconds > 0 ? sum / seconds : NAN;
}

static void take_power(const ReportRun *report, RunFigures *f) {
    f->watts = counted_watts(&report->record, f->first);
    if (!isfinite(f->watts)) f->watts = mean_of(&report->record, f->first, offsetof(RunStep, power));
    f->watts_measured = isfinite(f->watts);
    if (!f->watts_measured) f->watts = report->watts > 0 ? report->watts : NAN;
    f->energy = plan_energy_kwh(f->devices, f->watts, f->seconds, report->pue > 0 ? report->pue : 1);
}

static const RunEval *final_eval(const RunRecord *run) {
    const RunEval *last = NULL;
    for (size_t i = 0; i < run->eval_count; i++)
        if (isfinite(run->evals[i].loss) && (!last || run->evals[i].full || !last->full)) last = &run->evals[i];
    return last;
}

RunFigures report_figures(const ReportRun *report) {
    const RunRecord *run = &report->record;
    RunFigures f = {.first = first_warm(run),
                    .loss = NAN,
                    .memory = NAN,
                    .memory_own = NAN,
                    .memory_fraction = NAN,
                    .eval = final_eval(run)};
    take_median(run, &f);
    take_rates(run, &f);
    f.clock = mean_of(run, f.first, offsetof(RunStep, clock));
    f.capped = mean_of(run, f.first, offsetof(RunStep, capped));
    for (size_t i = 0; i < run->step_count; i++) {
        f.memory = fmax(f.memory, run->steps[i].memory); // fmax passes NaN over
        f.memory_own = fmax(f.memory_own, run->steps[i].memory_own);
        f.memory_fraction = fmax(f.memory_fraction, run->steps[i].memory_fraction);
        f.tokens = fmax(f.tokens, run->steps[i].tokens);
        f.seconds = fmax(f.seconds, run->steps[i].time);
        f.skipped += run->steps[i].skipped;
    }
    if (run->step_count) {
        double *smooth = report_losses(run);
        f.loss = smooth[run->step_count - 1];
        free(smooth);
    }
    f.perplexity = f.eval && isfinite(f.eval->perplexity) ? f.eval->perplexity : exp(f.eval ? f.eval->loss : f.loss);
    f.devices = run_plan_number(run, "devices");
    if (!(f.devices >= 1)) f.devices = 1;
    f.cost = report->usd_per_hour > 0 ? plan_gpu_cost(f.devices, f.seconds, report->usd_per_hour) : NAN;
    take_power(report, &f);
    return f;
}

// ---- losses ---------------------------------------------------------------------------------------------------------

size_t report_window(size_t count) {
    return 2 * (count / 120 > 4 ? count / 120 : 4) + 1;
}

// At the start, where losses fall fast, the window is as narrow as what lies before.
double *report_smooth(const double *values, size_t count) {
    double *smooth = xmalloc((count + 1) * 3 * sizeof *smooth), *sums = smooth + count, *counts = sums + count + 1;
    size_t half = report_window(count) / 2;
    sums[0] = counts[0] = 0;
    for (size_t i = 0; i < count; i++) {
        bool finite = isfinite(values[i]);
        sums[i + 1] = sums[i] + (finite ? values[i] : 0);
        counts[i + 1] = counts[i] + finite;
    }
    for (size_t i = 0; i < count; i++) {
        size_t before = i < half ? i : half, end = i + before < count ? i + before + 1 : count;
        double of = counts[end] - counts[i - before];
        smooth[i] = of > 0 ? (sums[end] - sums[i - before]) / of : NAN;
    }
    return smooth;
}

double *report_losses(const RunRecord *run) {
    double *losses = xmalloc((run->step_count + 1) * sizeof *losses);
    for (size_t i = 0; i < run->step_count; i++)
        losses[i] = run->steps[i].skipped ? NAN : run->steps[i].loss;
    double *smooth = report_smooth(losses, run->step_count);
    free(losses);
    return smooth;
}

static double between(double x0, double y0, double x1, double y1, double x) {
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y1;
}

double report_loss_at(const RunRecord *run, const double *smooth, double tokens) {
    for (size_t i = 0; i < run->step_count; i++) {
        if (!(run->steps[i].tokens >= tokens)) continue;
        return i ? between(run->steps[i - 1].tokens, smooth[i - 1], run->steps[i].tokens, smooth[i], tokens)
                 : smooth[0];
    }
    return NAN;
}

double report_validation_at(const RunRecord *run, double tokens) {
    const RunEval *before = NULL;
    for (size_t i = 0; i < run->eval_count; i++) {
        const RunEval *e = &run->evals[i];
        if (!isfinite(e->loss) || !isfinite(e->tokens)) continue;
        if (e->tokens == tokens) return e->loss;
        if (e->tokens > tokens) return before ? between(before->tokens, before->loss, e->tokens, e->loss, tokens) : NAN;
        before = e;
    }
    return NAN;
}

// ---- the waterfall --------------------------------------------------------------------------------------------------

static void add_row(Waterfall *w, WaterfallKind kind, const char *name, double seconds) {
    if (kind == WATERFALL_LOSS && !(seconds > 0.0005 * w->rows[0].seconds)) return; // of the step
    w->rows[w->count++] = (WaterfallRow){name, kind, seconds};
}

static void add_loss(Waterfall *w, Loss loss, double seconds) {
    w->losses.item[loss].seconds = seconds;
    add_row(w, WATERFALL_LOSS, loss_name(loss), seconds);
}

// The run's own profile, which took its steps as they run; else the mean over the steps that were taken apart, as far
// as they are warm; else what was predicted.
static void take_parts(const RunRecord *run, const RunFigures *figures, Waterfall *w) {
    size_t count = 0;
    double sum[STEP_LAUNCH] = {0}, calibration = run_plan_number(run, "calibration");
    ProfileSummary profile;
    if (run->profile && profile_read(&profile, run->profile)) {
        w->profiled = w->by_profile = true;
        w->losses = profile_losses(&profile);
        memcpy(w->part, profile.part, sizeof sum);
        memcpy(w->floors, profile.floor, sizeof profile.floor);
        w->part[STEP_LAUNCH] = profile.part[PROFILE_GAPS];
        return;
    }
    for (int pass = 0; pass < 2 && !count; pass++)
        for (size_t i = pass ? 0 : figures->first; i < run->step_count; i++) {
            if (run->steps[i].split < 0) continue;
            for (int k = 0; k < STEP_LAUNCH; k++)
                sum[k] += run->splits[run->steps[i].split].seconds[k];
            count++;
        }
    w->profiled = count > 0;
    w->part[STEP_LAUNCH] = 0;
    for (int k = 0; k < STEP_LAUNCH; k++) {
        w->part[k] = count ? sum[k] / (double)count : run_plan_part(run, (StepPart)k);
        w->floors[k] = run_plan_part(run, (StepPart)k) / (calibration > 0 ? calibration : 1);
    }
}

// Gaps are what the parts leave of the step. Where these are more than it has, all of them are shrunk.
static void fit_parts(Waterfall *w, double left) {
    double sum = 0;
    for (int k = 0; k <= STEP_LAUNCH; k++)
        sum += w->part[k];
    if (sum > left) w->shrunk = left / sum;
    for (int k = 0; k <= STEP_LAUNCH; k++)
        w->part[k] *= w->shrunk;
    if (sum < left) w->part[STEP_LAUNCH] += left - sum;
}

static void add_memory_bound(Waterfall *w) {
    static const struct {
        StepPart part;
        Loss loss;
    } rows[] = {{STEP_OPTIMIZER, LOSS_OPTIMIZER},
                {STEP_ELEMENTWISE, LOSS_ELEMENTWISE},
                {STEP_ROUTING, LOSS_ROUTING},
                {STEP_COPY, LOSS_COPY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        add_loss(w, rows[i].loss, w->part[rows[i].part]);
        w->losses.item[rows[i].loss].floor = w->floors[rows[i].part];
    }
}

// What products and attention take at the rates that their shapes reach here, and at the peak.
static void add_floors(const RunRecord *run, Waterfall *w, double products) {
    static const StepPart parts[] = {STEP_GEMM, STEP_GROUPED, STEP_ATTENTION};
    double peak = run_plan_number(run, "peak_flops"), devices = run_plan_number(run, "devices");
    double flops = run_plan_number(run, "flops_per_token"), tokens = run_plan_number(run, "batch_tokens");
    double causal = run_plan_number(run, "mfu_causal") / run_plan_number(run, "mfu"), floor = 0, over = 0;
    bool known = true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        floor += w->floors[parts[i]];
        over += loss_over_floor(w->part[parts[i]], w->floors[parts[i]]);
        known = known && (w->floors[parts[i]] > 0 || !(w->part[parts[i]] > 0));
    }
    if (!(floor > 0) || !(products > 0)) return;
    w->losses.products_floor = known ? floor : 0;
    w->floor = products - over;
    double limit = fmin(tokens * flops * (causal > 0 && causal <= 1 ? causal : 1) / (peak * devices), w->floor);
    add_loss(w, LOSS_RATES, over);
    add_row(w, WATERFALL_LEVEL, "products and attention at the rates of this device", w->floor);
    if (!(limit > 0)) return;
    add_row(w, WATERFALL_LOSS, "kept from the peak by shapes and clocks", w->floor - limit);
    add_row(w, WATERFALL_LEVEL, "products and attention at the peak", limit);
}

// Floors say nothing of parts that were not measured, or were shrunk a good deal.
static void finish_losses(Waterfall *w) {
    bool measured = w->profiled && w->shrunk > 0.9;
    w->losses.step = w->rows[0].seconds;
    for (int i = 0; i < LOSS_COUNT && !measured; i++)
        w->losses.item[i].floor = 0;
    if (!measured) w->losses.products_floor = 0;
    w->worst = w->unexplained;
    Loss worst = loss_worst(&w->losses);
    if (w->worst >= 0 && w->rows[w->worst].seconds >= w->losses.item[worst].seconds) return;
    for (int i = 0; i < w->count; i++)
        if (strcmp(w->rows[i].name, loss_name(worst)) == 0) w->worst = i;
}

Waterfall report_waterfall(const RunRecord *run, const RunFigures *figures) {
    Waterfall w = {.worst = -1, .unexplained = -1, .shrunk = 1};
    double step = figures->step_seconds;
    for (int k = 0; k < STEP_PART_COUNT; k++)
        w.part[k] = NAN;
    if (!(step > 0)) return w;
    take_parts(run, figures, &w);
    w.part[STEP_HOST_DATA] = figures->data_wait * step;
    w.part[STEP_DATA_PARALLEL] = figures->comm_wait * step;
    fit_parts(&w, step - w.part[STEP_HOST_DATA] - w.part[STEP_DATA_PARALLEL]);
    double gaps = w.part[STEP_LAUNCH], products = w.part[STEP_GEMM] + w.part[STEP_GROUPED] + w.part[STEP_ATTENTION];
    add_row(&w, WATERFALL_LEVEL, "step, measured", step);
    add_loss(&w, LOSS_DATA, w.part[STEP_HOST_DATA]);
    add_loss(&w, LOSS_RANKS, w.part[STEP_DATA_PARALLEL]);
    if (w.profiled) {
        add_loss(&w, LOSS_GAPS, gaps);
    } else {
        int before = w.count;
        bool predicted = gaps < step - w.part[STEP_HOST_DATA] - w.part[STEP_DATA_PARALLEL];
        add_row(&w, WATERFALL_LOSS, predicted ? "time that no prediction explains" : "not taken apart", gaps);
        if (w.count > before) w.unexplained = before;
    }
    add_memory_bound(&w);
    w.losses.products = products;
    if (products > 0) add_row(&w, WATERFALL_LEVEL, "products and attention", products);
    add_floors(run, &w, products);
    finish_losses(&w);
    return w;
}

char *report_sentence(const ReportRun *run, const RunFigures *figures, const Waterfall *w) {
    if (!w->count) return text_copy("No step of this run was measured: there is nothing to say about its time.");
    if (w->worst < 0 || w->worst != w->unexplained) return loss_sentence(&w->losses, &run->facts);
    const WaterfallRow *row = &w->rows[w->worst];
    return text_format("The biggest loss of time is %s: %.0f %% of a step (%.4g of %.4g ms). Let the run measure its "
                       "parts: hearth train --profile.",
                       row->name, 100 * row->seconds / figures->step_seconds, 1e3 * row->seconds,
                       1e3 * figures->step_seconds);
}
