// hearth preflight: a short real run before the long one.
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/data_commands.h"
#include "train/preflight.h"

#include <math.h>
#include <stdlib.h>

static Status check_length(PreflightOptions *run, const char *tokens) {
    if (tokens) TRY(data_parse_count("--tokens", tokens, &run->tokens));
    if (run->tokens < 1) return status_usage("--tokens must be at least 1");
    if (!(run->seconds > 0) || !isfinite(run->seconds))
        return status_usage("--seconds must be more than 0 and finite, not %g", run->seconds);
    return NULL;
}

static Status read_and_run(const char *path, const ArgList *sets, const PreflightOptions *run) {
    Config config;
    TRY(config_read(&config, path, sets->items, sets->count));
    Status status = config_check(&config);
    if (!status) status = preflight_run(&config, run);
    config_free(&config);
    return status;
}

Status cmd_preflight(int argc, char **argv) {
    PreflightOptions run = {.tokens = 10000000, .seconds = 60, .search = true};
    const char *tokens = NULL;
    bool no_search = false;
    ArgList sets = {0}, words;
    const Arg options[] = {
        {"--tokens", ARG_TEXT, &tokens, "N", "tokens of the short run (10M)"},
        {"--seconds", ARG_DOUBLE, &run.seconds, "S", "or this long, whichever comes first (60)"},
        {"--no-search", ARG_FLAG, &no_search, NULL, "keep the config's micro-batch"},
        {"--write", ARG_TEXT, &run.save, "FILE", "write the config with the winning lines to FILE"},
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
        status = check_length(&run, tokens);
        if (!status) status = read_and_run(words.items[0], &sets, &run);
    }
    free(words.items);
    free(sets.items);
    return status;
}
