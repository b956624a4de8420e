// hearth preflight: a short real run before the long one.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/data_commands.h"
#include "cli/launch.h"
#include "train/preflight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static Status check_run_length(PreflightOptions *run, const char *tokens) {
    if (tokens) TRY(data_parse_count("--tokens", tokens, &run->tokens));
    if (run->tokens < 1) return status_usage("--tokens must be at least 1");
    if (!(run->seconds > 0) || !isfinite(run->seconds))
        return status_usage("--seconds must be more than 0 and finite, not %g", run->seconds);
    return NULL;
}

// ---- while it works -------------------------------------------------------------------------------------------------

static void print_search_start(void *context, const PreflightSearch *search) {
    (void)context;
    printf("%s, seq %lld, %lld sequences a step, on %s\n", search->model, (long long)search->seq,
           (long long)search->sequences, search->device);
    printf("  micro_batch  grad_accum  memory (predicted)          tok/s\n");
}

static void print_try_start(void *context, const PreflightTry *attempt) {
    char memory[32];
    (void)context;
    printf("  %11lld  %10lld  %10s  %5.1f %%  ", (long long)attempt->micro_batch, (long long)attempt->grad_accum,
           text_gib(memory, attempt->memory_bytes), 100 * attempt->memory_fraction);
    fflush(stdout);
}

static void print_try_end(void *context, const PreflightTry *attempt) {
    char duration[32];
    (void)context;
    switch (attempt->verdict) {
    case PREFLIGHT_RAN: printf("%15.0f\n", attempt->tokens_per_second); break;
    case PREFLIGHT_TOO_LARGE: printf("  over %.0f %% of the device: not tried\n", 100 * PLAN_MEMORY_FULL); break;
    case PREFLIGHT_NOT_FREE: printf("  more than is free: not tried\n"); break;
    case PREFLIGHT_TOO_SLOW:
        printf("  about %s to measure: not tried\n", text_duration(duration, attempt->expected_seconds));
        break;
    case PREFLIGHT_FAILED: printf("  %s\n", attempt->message); break;
    }
}

static void print_search_end(void *context, const PreflightSearch *search) {
    const PreflightTry *best = &search->tries[search->best];
    (void)context;
    if (search->fastest != search->best)
        printf("\n%lld is fastest; of those within 1 %% of it, the one nearest to %.0f %% of the memory is taken\n",
               (long long)search->tries[search->fastest].micro_batch, 100 * PLAN_MEMORY_LIMIT);
    printf("\nbest: put this into the config\n\n[train]\nmicro_batch = %lld\ngrad_accum = %lld\n",
           (long long)best->micro_batch, (long long)best->grad_accum);
    fflush(stdout);
}

// ---- at the end -----------------------------------------------------------------------------------------------------

static void print_row(const char *what, const char *unit, double scale, PlanOutcome outcome) {
    printf("  %-18s %12.4g  %12.4g %-6s %+7.1f %%\n", what, outcome.predicted / scale, outcome.measured / scale, unit,
           plan_error_percent(outcome));
}

static void print_result(const PreflightResult *result) {
    printf("\n%lld steps, %lld tokens: loss %.3f -> %.3f, data wait %.1f %%\n", (long long)result->steps,
           (long long)result->tokens, result->first_loss, result->last_loss, 100 * result->data_wait);
    if (!result->predicted) {
        printf("measured: %.0f tok/s, %.2f GiB\n", result->tokens_per_second.measured,
               result->memory.measured / 0x1p30);
        return;
    }
    printf("\n                        predicted      measured          error\n");
    print_row("memory", "GiB", 0x1p30, result->memory);
    print_row("step", "s", 1, result->step);
    print_row("throughput", "tok/s", 1, result->tokens_per_second);
    if (result->unfit) printf("  (not kept for later predictions: %s)\n", result->unfit);
}

static Status read_and_run(const char *path, const ArgList *sets, PreflightOptions *run) {
    Config config;
    PreflightResult result = {0};
    TRY(config_read(&config, path, sets->items, sets->count));
    bool first = run->world->rank == 0;
    if (first)
        run->listener = (PreflightListener){.search_starts = print_search_start,
                                            .try_starts = print_try_start,
                                            .try_ends = print_try_end,
                                            .search_ends = print_search_end};
    Status status = config_check(&config);
    if (!status) status = preflight_run(&config, run, &result);
    if (first && result.step.measured > 0) print_result(&result); // also when the config cannot be written
    if (first && !status && run->save) printf("\nwritten to %s\n", run->save);
    config_free(&config);
    return status;
}

// A failure of one rank ends all, with its message.
static Status run_on_ranks(const char *path, const ArgList *sets, PreflightOptions *run) {
    TRY(launch_open_world(&run->world));
    Status status = read_and_run(path, sets, run);
    if (status && run->world->size > 1) world_abort(run->world, status);
    world_close(run->world);
    return status;
}

Status cmd_preflight(int argc, char **argv) {
    PreflightOptions run = {.tokens = 10000000, .seconds = 60, .search = true};
    const char *tokens = NULL;
    bool no_search = false, launched = false;
    int64_t ranks = 0;
    int code = 0;
    ArgList sets = {0}, words;
    const Arg options[] = {
        {"--tokens", ARG_TEXT, &tokens, "N", "tokens of the short run (10M)"},
        {"--seconds", ARG_DOUBLE, &run.seconds, "S", "or this long, whichever comes first (60)"},
        {"--no-search", ARG_FLAG, &no_search, NULL, "keep the config's micro-batch"},
        {"--write", ARG_TEXT, &run.save, "FILE", "write the config with the winning lines to FILE"},
        {"--ranks", ARG_INT, &ranks, "N", "start N ranks on this machine, which share the work as the config says"},
        {"--set", ARG_LIST, &sets, "KEY=VALUE", "override a key: section.key=value"},
    };
    const ArgCommand command = {"hearth preflight CONFIG [options]",
                                "Finds the micro-batch that trains fastest at the same global batch (80-85 % of memory "
                                "preferred, never over 95 %),\nthen trains on the config's data for a short while and "
                                "compares memory and speed with the prediction.",
                                options,
                                ARG_COUNT(options),
                                1,
                                1};
    bool helped;
    TRY(args_parse(&command, argc, argv, &words, &helped));
    Status status = NULL;
    if (!helped) {
        run.search = !no_search;
        status = check_run_length(&run, tokens);
        if (!status) status = launch_ranks(ranks, &launched, &code);
        if (!status && !launched) status = run_on_ranks(words.items[0], &sets, &run);
    }
    free(words.items);
    free(sets.items);
    if (!status && launched) exit(code);
    return status;
}
