#include "train/preflight.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stats.h"
#include "base/text.h"
#include "base/threads.h"
#include "bench/bench_step.h"
#include "train/fit.h"
#include "train/outcome.h"
#include "train/prediction.h"
#include "train/setup.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES_MAX = 8, WARM_STEPS = 3, PATIENCE_LEAST = 120 /* seconds of one try */ };

// ---- the search -----------------------------------------------------------------------------------------------------

int preflight_candidates(int64_t micro_batch, int64_t grad_accum, PreflightTry *tries, int most) {
    int64_t sequences = micro_batch * grad_accum, wanted = micro_batch;
    int count = 0;
    while (wanted > 1 && wanted * 8 > micro_batch)
        wanted = (wanted + 1) / 2;
    for (; wanted <= sequences && count < most; wanted *= 2) {
        int64_t divisor = wanted;
        while (sequences % divisor)
            divisor--;
        if (count && tries[count - 1].micro_batch >= divisor) continue;
        if (count && tries[count - 1].micro_batch < micro_batch && divisor > micro_batch && count + 1 < most)
            tries[count++] = (PreflightTry){.micro_batch = micro_batch, .grad_accum = grad_accum};
        tries[count++] = (PreflightTry){.micro_batch = divisor, .grad_accum = sequences / divisor};
    }
    if (count < most && tries[count - 1].micro_batch < micro_batch)
        tries[count++] = (PreflightTry){.micro_batch = micro_batch, .grad_accum = grad_accum};
    return count;
}

static int fastest_try(const PreflightTry *tries, int count) { // -1: none ran within the memory
    int fastest = -1;
    for (int i = 0; i < count; i++)
        if (tries[i].memory_fraction <= PREFLIGHT_MEMORY_MAX &&
            tries[i].tokens_per_second > (fastest < 0 ? 0 : tries[fastest].tokens_per_second))
            fastest = i;
    return fastest;
}

int preflight_choose(const PreflightTry *tries, int count) {
    int fastest = fastest_try(tries, count), best = -1;
    for (int i = 0; i < count && fastest >= 0; i++) {
        if (tries[i].tokens_per_second < 0.99 * tries[fastest].tokens_per_second ||
            tries[i].memory_fraction > PREFLIGHT_MEMORY_MAX)
            continue;
        // Above the wanted share, less is better; below it, more.
        double distance = fabs(tries[i].memory_fraction - PREFLIGHT_MEMORY_WANTED) +
                          (tries[i].memory_fraction > PREFLIGHT_MEMORY_WANTED ? 1 : 0);
        double best_distance = best < 0 ? INFINITY
                                        : fabs(tries[best].memory_fraction - PREFLIGHT_MEMORY_WANTED) +
                                              (tries[best].memory_fraction > PREFLIGHT_MEMORY_WANTED ? 1 : 0);
        if (distance < best_distance) best = i;
    }
    return best;
}

// Tokens per second at the full accumulation, from steps of at most two micro-batches: the optimizer's part is measured
// by the profile and paid once per step.
static Status time_try(Ops *ops, const LayoutRequest *request, PreflightTry *attempt) {
    BenchStep bench = {.request = *request, .accum = attempt->grad_accum < 2 ? 1 : 2, .steps = 3};
    BenchResult result;
    TRY(bench_step(ops, &bench, &result));
    double once = result.split_ms[CATEGORY_OPTIMIZER] / 1e3, micro = (result.step_seconds - once) / bench.accum;
    double tokens = (double)request->micro_batch * request->seq * (double)attempt->grad_accum;
    attempt->tokens_per_second = tokens / (once + micro * (double)attempt->grad_accum);
    return NULL;
}

// Seconds that time_try will take, as predicted; 0: nobody knows.
static double try_seconds(Ops *ops, const LayoutRequest *request) {
    enum { MICRO_STEPS = 10 }; // warm-up and timed ones
    Prediction prediction;
    Status status = prediction_make(&prediction, request, 1, ops->device, (double)ops->memory_total(ops), 1);
    double seconds = status ? 0 : MICRO_STEPS * prediction.plan.step.seconds;
    status_free(status);
    return seconds;
}

// *failure: the first error of a try, for when none of them runs.
static Status search(Ops *ops, const LayoutRequest *base, double patience, PreflightTry *tries, int count,
                     Status *failure) {
    double total = (double)ops->memory_total(ops);
    printf("\n  micro_batch  grad_accum  memory (predicted)          tok/s\n");
    for (int i = 0; i < count; i++) {
        PreflightTry *attempt = &tries[i];
        LayoutRequest request = *base;
        request.micro_batch = (int)attempt->micro_batch;
        Layout layout;
        TRY(layout_build(&layout, &request));
        double bytes = (double)layout.total_bytes;
        bool fits = layout.total_bytes + fit_reserve(request.device) <= ops->memory_free(ops);
        layout_free(&layout);
        char memory[32];
        attempt->memory_fraction = bytes / total;
        printf("  %11lld  %10lld  %10s  %5.1f %%  ", (long long)attempt->micro_batch, (long long)attempt->grad_accum,
               text_gib(memory, bytes), 100 * attempt->memory_fraction);
        fflush(stdout);
        if (attempt->memory_fraction > PREFLIGHT_MEMORY_MAX) {
            printf("  over %.0f %% of the device: not tried\n", 100 * PREFLIGHT_MEMORY_MAX);
            continue;
        }
        if (!fits) {
            printf("  more than is free: not tried\n");
            continue;
        }
        double expected = try_seconds(ops, &request);
        if (expected > patience) {
            char duration[32];
            printf("  about %s to measure: not tried\n", text_duration(duration, expected));
            if (!*failure)
                *failure = status_hint(status_runtime("this device is too slow to try the model on"),
                                       "preflight on the GPU that will train it, or be patient: --seconds %.0f",
                                       ceil(expected));
            continue;
        }
        Status status = time_try(ops, &request, attempt);
        if (status) { // an allocation that other programs' memory leaves no room for is an answer, not an end
            printf("  %s\n", status_message(status));
            if (*failure)
                status_free(status);
            else
                *failure = status;
            continue;
        }
        printf("%15.0f\n", attempt->tokens_per_second);
    }
    return NULL;
}

// ---- the short run --------------------------------------------------------------------------------------------------

typedef struct ShortRun {
    double seconds_per_step; // median, warm-up left out
    double first_loss, last_loss, data_wait, memory_bytes;
    int64_t steps, tokens;
} ShortRun;

static Status short_run(const Config *config, const PreflightOptions *options, ShortRun *run, Prediction *prediction,
                        bool *predicted) {
    Trainer trainer;
    TRY(trainer_open(&trainer, config));
    Status status = prediction_make(prediction, &trainer.model->layout.request, (int)trainer.batch.grad_accum,
                                    trainer.ops->device, (double)trainer.ops->memory_total(trainer.ops), 1);
    *predicted = !status;
    if (status) log_warn("no prediction: %s", status_message(status));
    status_free(status);
    status = NULL;
    *run = (ShortRun){0};
    double *seconds = NULL, start = clock_seconds(), waited = 0;
    do { // at least one step, however little is asked for
        MetricsStep metrics;
        bool stopped;
        status = trainer_step(&trainer, &metrics, NULL, &stopped);
        if (status) break;
        if (run->steps == 0) run->first_loss = metrics.loss;
        run->last_loss = metrics.loss;
        run->memory_bytes = metrics.memory_bytes;
        waited += metrics.data_wait;
        seconds = xrealloc(seconds, (size_t)(run->steps + 1) * sizeof *seconds);
        seconds[run->steps++] = metrics.seconds;
        run->tokens = metrics.tokens;
    } while (run->tokens < options->tokens && clock_seconds() - start < options->seconds);
    if (!status) {
        int64_t skipped = run->steps > 2 * WARM_STEPS ? WARM_STEPS : 0;
        run->seconds_per_step = double_median(seconds + skipped, (size_t)(run->steps - skipped));
        run->data_wait = waited / (double)run->steps;
    }
    free(seconds);
    trainer_close(&trainer);
    return status;
}

static void print_row(const char *what, const char *unit, double predicted, double measured) {
    printf("  %-18s %12.4g  %12.4g %-6s %+7.1f %%\n", what, predicted, measured, unit,
           100 * (predicted / measured - 1));
}

static void print_outcome(const ShortRun *run, const Prediction *prediction, bool predicted, int64_t step_tokens) {
    printf("\n%lld steps, %lld tokens: loss %.3f -> %.3f, data wait %.1f %%\n", (long long)run->steps,
           (long long)run->tokens, run->first_loss, run->last_loss, 100 * run->data_wait);
    double rate = (double)step_tokens / run->seconds_per_step;
    if (!predicted) {
        printf("measured: %.0f tok/s, %.2f GiB\n", rate, run->memory_bytes / 0x1p30);
        return;
    }
    printf("\n                        predicted      measured          error\n");
    print_row("memory", "GiB", prediction->plan.memory.total / 0x1p30, run->memory_bytes / 0x1p30);
    print_row("step", "s", prediction->plan.step.seconds, run->seconds_per_step);
    print_row("throughput", "tok/s", prediction->plan.step.tokens_per_second, rate);
    if (run->steps - WARM_STEPS < OUTCOME_STEPS_LEAST) return;
    Status status = prediction_remember(prediction, &(PlanMeasured){run->memory_bytes, run->seconds_per_step, rate});
    if (status) log_warn("the outcome was not added to the history: %s", status_message(status));
    status_free(status);
}

// The config with the winning lines put in: every key is written out, so the file says all that the run will do.
static Status save_config(const Config *config, const char *path) {
    TextBuffer text = {0};
    config_write(config, &text);
    Status status = file_write_atomic(path, text.data, text.length);
    text_buffer_free(&text);
    return status;
}

Status preflight_run(const Config *config, const PreflightOptions *options) {
    ModelConfig model;
    LayoutRequest request;
    PreflightTry tries[TRIES_MAX];
    BatchPlan batch = batch_plan(config, 1);
    int64_t micro_batch = config->train.micro_batch, grad_accum = batch.grad_accum;
    if (options->save && file_exists(options->save)) // before anything takes time
        return status_hint(status_usage("%s exists already", options->save), "write to another file");
    TRY(trainer_check_single_rank(config)); // else every try would time a part of the model
    // The search needs the model's shape only; the data is opened by the short run.
    Samples train, val;
    TRY(setup_data(config, &train, &val));
    int64_t vocab = (int64_t)train.mix.datasets[0].vocab_size;
    samples_close(&train);
    samples_close(&val);
    TRY(setup_model(config, vocab, &model));
    Ops *ops;
    TRY(ops_create(&ops, config->train.device));
    Status failure = NULL, status = setup_layout(config, &model, ops->kind, &request);
    int count = 0, best = -1;
    if (!status && options->search) {
        count = preflight_candidates(micro_batch, grad_accum, tries, TRIES_MAX);
        printf("%s, seq %d, %lld sequences a step, on %s", setup_model_name(config), request.seq,
               (long long)(micro_batch * grad_accum), device_kind_name(ops->kind));
        double patience = options->seconds > PATIENCE_LEAST ? options->seconds : PATIENCE_LEAST;
        status = search(ops, &request, patience, tries, count, &failure);
        best = status ? -1 : preflight_choose(tries, count);
    }
    if (!status && options->search && best < 0 && !failure) // where memory is the reason, say what would fit
        status = fit_require(config, &request, (FitMemory){ops->memory_free(ops), ops->memory_total(ops)});
    ops_destroy(ops);
    if (!status && best < 0 && failure) return failure;
    status_free(failure);
    if (status) return status;
    if (options->search && best < 0)
        return status_hint(
            status_runtime("no micro-batch ran below %.0f %% of this device's memory", 100 * PREFLIGHT_MEMORY_MAX),
            "try recompute.mode = \"full\" or a shorter seq");
    Config chosen = *config; // shares the strings of `config`, which outlives it
    if (best >= 0) {
        micro_batch = tries[best].micro_batch;
        grad_accum = tries[best].grad_accum;
        int fastest = fastest_try(tries, count);
        if (fastest != best)
            printf("\n%lld is fastest; of those within 1 %% of it, the one nearest to %.0f %% of the memory is taken\n",
                   (long long)tries[fastest].micro_batch, 100 * PREFLIGHT_MEMORY_WANTED);
        printf("\nbest: put this into the config\n\n[train]\nmicro_batch = %lld\ngrad_accum = %lld\n",
               (long long)micro_batch, (long long)grad_accum);
        chosen.train.micro_batch = micro_batch;
        chosen.train.grad_accum = grad_accum;
        chosen.train.batch_tokens = 0;
    }
    chosen.train.batch_warmup_tokens = 0; // the full batch from the first step: that is what must fit
    ShortRun run;
    Prediction prediction;
    bool predicted = false;
    status = short_run(&chosen, options, &run, &prediction, &predicted);
    if (!status) print_outcome(&run, &prediction, predicted, micro_batch * grad_accum * request.seq);
    chosen.train.batch_warmup_tokens = config->train.batch_warmup_tokens;
    if (!status && options->save) {
        status = save_config(&chosen, options->save);
        if (!status) printf("\nwritten to %s\n", options->save);
    }
    return status;
}
