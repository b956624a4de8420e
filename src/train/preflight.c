// The search for the micro-batch, and the short run that follows it.
#include "train/preflight.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stats.h"
#include "base/text.h"
#include "base/threads.h"
#include "bench/bench_step.h"
#include "dist/device.h"
#include "model/agree.h"
#include "train/fit.h"
#include "train/outcome.h"
#include "train/prediction.h"
#include "train/setup.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 3, PATIENCE_LEAST = 120 /* seconds of one try */ };

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
        if (tries[i].memory_fraction <= PLAN_MEMORY_FULL &&
            tries[i].tokens_per_second > (fastest < 0 ? 0 : tries[fastest].tokens_per_second))
            fastest = i;
    return fastest;
}

int preflight_choose(const PreflightTry *tries, int count) {
    int fastest = fastest_try(tries, count), best = -1;
    for (int i = 0; i < count && fastest >= 0; i++) {
        if (tries[i].tokens_per_second < 0.99 * tries[fastest].tokens_per_second ||
            tries[i].memory_fraction > PLAN_MEMORY_FULL)
            continue;
        // Above the wanted share, less is better; below it, more.
        double distance =
            fabs(tries[i].memory_fraction - PLAN_MEMORY_LIMIT) + (tries[i].memory_fraction > PLAN_MEMORY_LIMIT ? 1 : 0);
        double best_distance = best < 0 ? INFINITY
                                        : fabs(tries[best].memory_fraction - PLAN_MEMORY_LIMIT) +
                                              (tries[best].memory_fraction > PLAN_MEMORY_LIMIT ? 1 : 0);
        if (distance < best_distance) best = i;
    }
    return best;
}

// A value of rank 0, on all ranks; and the largest that a rank has.
static double from_first(World *world, double value) {
    if (world) world_broadcast(world, &value, sizeof value, 0);
    return value;
}

static double largest(World *world, double value) {
    if (!world || world->size == 1) return value;
    double *all = xmalloc((size_t)world->size * sizeof *all);
    world_gather_doubles(world, &value, 1, all);
    for (int i = 0; i < world->size; i++)
        value = fmax(value, all[i]);
    free(all);
    return value;
}

// Tokens per second at the full accumulation, from steps of at most two micro-batches: the optimizer's part is measured
// by the profile and paid once per step.
static Status time_try(Ops *ops, const Ranks *ranks, const LayoutRequest *request, PreflightTry *attempt) {
    BenchStep bench = {.request = *request,
                       .groups = ranks->groups,
                       .world = ranks->world,
                       .accum = attempt->grad_accum < 2 ? 1 : 2,
                       .steps = 3};
    if (request->mesh.pp > 1) bench.accum = (int)attempt->grad_accum; // a pipeline's speed depends on it
    BenchResult result;
    TRY(bench_step(ops, &bench, &result));
    bench_result_free(&result);
    double once = result.split_ms[CATEGORY_OPTIMIZER] / 1e3, micro = (result.step_seconds - once) / bench.accum;
    double tokens = (double)request->micro_batch * request->seq * request->mesh.dp *
                    (request->islands > 1 ? request->islands : 1) * (double)attempt->grad_accum;
    attempt->tokens_per_second =
        from_first(ranks->world, tokens / (once + micro * (double)attempt->grad_accum)); // all choose by one clock
    return NULL;
}

// Seconds that time_try will take, as predicted; 0: nobody knows.
static double try_seconds(Ops *ops, const LayoutRequest *request) {
    enum { MICRO_STEPS = 10 }; // warm-up and timed ones
    Prediction prediction;
    Status status = prediction_make(&prediction, request, 1, ops->device, (double)ops->memory_total(ops),
                                    (int)mesh_ranks(&request->mesh));
    double seconds = status ? 0 : MICRO_STEPS * prediction.plan.step.seconds;
    status_free(status);
    return seconds;
}

// Memory of the try on the rank that needs most of its device, and whether there is room on all of them.
static Status predict_try_memory(Ops *ops, World *world, const LayoutRequest *request, PreflightTry *attempt,
                                 bool *fits) {
    Layout layout;
    TRY(layout_build(&layout, request));
    attempt->memory_bytes = largest(world, (double)layout.total_bytes);
    attempt->memory_fraction = largest(world, (double)layout.total_bytes / (double)ops->memory_total(ops));
    *fits = largest(world, layout.total_bytes + fit_reserve(request->device) > ops->memory_free(ops)) == 0;
    layout_free(&layout);
    return NULL;
}

static Status too_slow_here(double expected) {
    return status_hint(status_runtime("this device is too slow to try the model on"),
                       "preflight on the GPU that will train it, or be patient: --seconds %.0f", ceil(expected));
}

// The error of a try that did not run for want of speed or memory. An allocation that other programs' memory leaves no
// room for is an answer, not an end.
static Status run_try(Ops *ops, const Ranks *ranks, const LayoutRequest *request, bool fits, double patience,
                      PreflightTry *attempt) {
    if (attempt->memory_fraction > PLAN_MEMORY_FULL) {
        attempt->verdict = PREFLIGHT_TOO_LARGE;
        return NULL;
    }
    if (!fits) {
        attempt->verdict = PREFLIGHT_NOT_FREE;
        return NULL;
    }
    attempt->expected_seconds = from_first(ranks->world, try_seconds(ops, request));
    if (attempt->expected_seconds > patience) {
        attempt->verdict = PREFLIGHT_TOO_SLOW;
        return too_slow_here(attempt->expected_seconds);
    }
    Status status = time_try(ops, ranks, request, attempt);
    attempt->verdict = status ? PREFLIGHT_FAILED : PREFLIGHT_RAN;
    return status;
}

// *failure: the first error of a try, for when none of them runs.
static Status try_candidates(Ops *ops, const Ranks *ranks, const LayoutRequest *base, double patience,
                             const PreflightListener *listener, PreflightSearch *search, Status *failure) {
    if (listener->search_starts) listener->search_starts(listener->context, search);
    for (int i = 0; i < search->count; i++) {
        PreflightTry *attempt = &search->tries[i];
        LayoutRequest request = *base;
        request.micro_batch = (int)attempt->micro_batch;
        request.micro_batches = (int)attempt->grad_accum;
        bool fits;
        TRY(predict_try_memory(ops, ranks->world, &request, attempt, &fits));
        if (listener->try_starts) listener->try_starts(listener->context, attempt);
        Status status = run_try(ops, ranks, &request, fits, patience, attempt);
        attempt->message = status ? status_message(status) : NULL;
        if (listener->try_ends) listener->try_ends(listener->context, attempt);
        attempt->message = NULL;
        if (*failure)
            status_free(status);
        else
            *failure = status;
    }
    return NULL;
}

static Status nothing_ran(const Config *config, const LayoutRequest *request, Ops *ops) {
    // Where memory is the reason, say what would fit.
    TRY(fit_require(config, request, (FitMemory){ops->memory_free(ops), ops->memory_total(ops)}));
    return status_hint(
        status_runtime("no micro-batch ran below %.0f %% of this device's memory", 100 * PLAN_MEMORY_FULL),
        "try recompute.mode = \"full\" or a shorter seq");
}

static Status search_on(Ops *ops, Ranks *ranks, const Config *config, const ModelConfig *model,
                        const PreflightOptions *options, PreflightSearch *search) {
    LayoutRequest request;
    TRY(setup_layout(config, model, ops->kind, &request));
    request.mesh = ranks->mesh;
    request.island = ranks_island(ranks);
    request.rank = ranks_place(ranks);
    TRY(ranks_open(ranks, ops, &request));
    int dp = ranks->mesh.dp * (ranks->islands > 1 ? ranks->islands : 1); // of all islands
    int64_t micro_batch = config->train.micro_batch, grad_accum = batch_plan(config, dp).grad_accum;
    *search = (PreflightSearch){.model = setup_model_name(config),
                                .device = device_kind_name(ops->kind),
                                .seq = request.seq,
                                .sequences = micro_batch * grad_accum * dp};
    search->count = preflight_candidates(micro_batch, grad_accum, search->tries, PREFLIGHT_TRIES_MAX);
    double patience = options->seconds > PATIENCE_LEAST ? options->seconds : PATIENCE_LEAST;
    Status failure = NULL;
    Status status = try_candidates(ops, ranks, &request, patience, &options->listener, search, &failure);
    if (status) {
        status_free(failure);
        return status;
    }
    search->best = preflight_choose(search->tries, search->count);
    search->fastest = fastest_try(search->tries, search->count);
    if (search->best < 0) return failure ? failure : nothing_ran(config, &request, ops);
    status_free(failure);
    if (options->listener.search_ends) options->listener.search_ends(options->listener.context, search);
    return NULL;
}

// The search needs the model's shape only; the data is opened by the short run.
static Status search_micro_batch(const Config *config, Ranks ranks, const PreflightOptions *options,
                                 PreflightSearch *search) {
    Samples train, val;
    ModelConfig model;
    Ops *ops;
    TRY(setup_data(config, &train, &val));
    int64_t vocab = (int64_t)train.mix.datasets[0].vocab_size;
    samples_close(&train);
    samples_close(&val);
    TRY(setup_model(config, vocab, &model));
    if (!options->search) return NULL;
    TRY(options->world ? device_open(&ops, options->world, config->train.device)
                       : ops_create(&ops, config->train.device));
    Status status = search_on(ops, &ranks, config, &model, options, search);
    ranks_close(&ranks);
    ops_destroy(ops);
    return status;
}

// ---- the short run --------------------------------------------------------------------------------------------------

static void predict_short_run(const Trainer *trainer, Prediction *prediction, PreflightResult *result) {
    Status status = prediction_make(prediction, &trainer->model->layout.request, (int)trainer->batch.grad_accum,
                                    trainer->ops->device, (double)trainer->ops->memory_total(trainer->ops),
                                    ranks_size(&trainer->ranks));
    result->predicted = !status;
    if (status) log_warn("no prediction: %s", status_message(status));
    status_free(status);
    if (!result->predicted) return;
    result->memory.predicted = prediction->plan.memory.total;
    result->step.predicted = prediction->plan.step.seconds;
    result->tokens_per_second.predicted = prediction->plan.step.tokens_per_second;
}

static void remember_short_run(const Prediction *prediction, double others, PreflightResult *result) {
    if (!result->predicted || result->steps - WARM_STEPS < OUTCOME_STEPS_LEAST) return;
    result->unfit = outcome_unfit((size_t)result->steps - WARM_STEPS, OUTCOME_STEPS_LEAST, others);
    if (result->unfit) return;
    PlanMeasured measured = {.memory = result->memory.measured,
                             .step_seconds = result->step.measured,
                             .tokens_per_second = result->tokens_per_second.measured};
    Status status = prediction_remember(prediction, &measured);
    if (status) log_warn("the outcome was not added to the history: %s", status_message(status));
    status_free(status);
}

static Status short_run(const Config *config, const PreflightOptions *options, PreflightResult *result) {
    Trainer trainer;
    TRY(trainer_open_ranks(&trainer, config, options->world));
    Prediction *prediction = xcalloc(1, sizeof *prediction);
    predict_short_run(&trainer, prediction, result);
    Status status = model_agree_kernels(trainer.model, options->world);
    double *seconds = NULL, start = clock_seconds(), waited = 0;
    MachineLoad load = machine_load_now();
    bool more = !status;
    while (more) { // at least one step, however little is asked for
        MetricsStep metrics;
        bool stopped;
        status = trainer_step(&trainer, &metrics, NULL, &stopped);
        if (status) break;
        if (result->steps == 0) result->first_loss = metrics.loss;
        result->last_loss = metrics.loss;
        result->memory.measured = metrics.memory_own_bytes;
        waited += metrics.data_wait;
        seconds = xrealloc(seconds, (size_t)(result->steps + 1) * sizeof *seconds);
        seconds[result->steps++] = metrics.seconds;
        result->tokens = metrics.tokens;
        more = from_first(options->world,
                          result->tokens < options->tokens && clock_seconds() - start < options->seconds) != 0;
    }
    if (!status) {
        int64_t skipped = result->steps > 2 * WARM_STEPS ? WARM_STEPS : 0;
        result->step.measured = double_median(seconds + skipped, (size_t)(result->steps - skipped));
        result->tokens_per_second.measured =
            (double)(trainer.batch.micro_tokens * trainer.batch.grad_accum) / result->step.measured;
        result->data_wait = waited / (double)result->steps;
        if (ranks_rank(&trainer.ranks) == 0)
            remember_short_run(prediction, outcome_others(&load, trainer.ops->kind, options->world), result);
    }
    free(seconds);
    free(prediction);
    trainer_close(&trainer);
    return status;
}

// The config with the winning lines put in: every key is written out, so the file says all that the run will do.
static Status save_config(const Config *config, const char *path) {
    TextBuffer text = {0};
    config_write(config, &text);
    Status status = file_write_atomic(path, text.data, text.length);
    text_buffer_free(&text);
    return status;
}

Status preflight_run(const Config *config, const PreflightOptions *options, PreflightResult *result) {
    *result = (PreflightResult){.search = {.best = -1, .fastest = -1}};
    World *world = options->world;
    bool first = !world || world->rank == 0;
    if (first && options->save && file_exists(options->save)) // before anything takes time
        return status_hint(status_usage("%s exists already", options->save), "write to another file");
    Ranks ranks = {.world = world};
    TRY(ranks_islands(config, ranks_size(&ranks), &ranks.islands));
    TRY(ranks_mesh(config, ranks_of_island(&ranks), &ranks.mesh)); // else every try would time a part of the model
    TRY(ranks_agree_config(world, config));
    TRY(search_micro_batch(config, ranks, options, &result->search));
    Config chosen = *config; // shares the strings of `config`, which outlives it
    if (result->search.best >= 0) {
        const PreflightTry *best = &result->search.tries[result->search.best];
        chosen.train.micro_batch = best->micro_batch;
        chosen.train.grad_accum = best->grad_accum;
        chosen.train.batch_tokens = 0;
    }
    chosen.train.batch_warmup_tokens = 0; // the full batch from the first step: that is what must fit
    TRY(short_run(&chosen, options, result));
    chosen.train.batch_warmup_tokens = config->train.batch_warmup_tokens;
    return first && options->save ? save_config(&chosen, options->save) : NULL;
}
