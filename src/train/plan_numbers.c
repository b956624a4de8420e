#include "train/plan_numbers.h"

#include "base/range.h"
#include "base/text.h"
#include "train/schedule.h"

#include <string.h>

// 0 when it is not given.
static Status read_number(double *number, const char *option, const char *text, double min, double max,
                          const char *example) {
    *number = 0;
    if (!text) return NULL;
    if (!text_to_count(text, number))
        return status_hint(status_usage("%s takes a number, not \"%s\"", option, text), "%s %s", option, example);
    return check_number(option, *number, min, max);
}

// An option that says something of a model's shape or of how it is cut; NULL: none is given.
static const char *option_of_a_model(const PlanRequest *request) {
    if (request->vocab) return "--vocab";
    if (request->target_hours > 0) return "--target-hours";
    if (request->virtual_stages) return "--virtual-stages";
    if (request->memory_limit > 0) return "--memory-limit";
    if (request->eager) return "--eager";
    if (request->set_count) return "--set";
    if (strcmp(request->software, "hearth") != 0) return "--software";
    if (strcmp(request->mfu_count, "causal") == 0) return "--mfu-count causal"; // 6N is all that there is
    for (int i = 0; i < plan_option_count; i++) {
        const PlanOption *option = &plan_options[i];
        if (option->kind != PLAN_OPTION_KEY || !*(const char *const *)((const char *)request + option->at)) continue;
        if (strcmp(option->key, "train.tokens") != 0 && strcmp(option->key, "train.precision") != 0)
            return option->name;
    }
    return NULL;
}

static Status check_with_model(const NumbersArgs *args, const PlanRequest *request) {
    if (!request->name)
        return status_hint(status_usage("plan needs a config, a preset or --params"),
                           "hearth plan smollm-360m, or hearth plan --params 8B --tokens 160B --gpus 8");
    if (args->active_params || args->peak_tflops)
        return status_hint(
            status_usage("%s goes with --params alone", args->active_params ? "--active-params" : "--peak-tflops"),
            "%s has its own", request->name);
    return NULL;
}

Status numbers_args_check(const NumbersArgs *args, const PlanRequest *request, const char *other) {
    if (!args->params) return check_with_model(args, request);
    if (request->name)
        return status_hint(status_usage("--params %s, and %s is a model of its own size", args->params, request->name),
                           "leave one of them out");
    if (!other) other = option_of_a_model(request);
    if (other)
        return status_hint(status_usage("%s needs a model, and --params says only how large it is", other),
                           "name a preset or a config instead: `hearth config --presets` lists them");
    return NULL;
}

Status numbers_args_plan(PlanNumbersReport *report, const NumbersArgs *args, const PlanSetup *setup,
                         const PlanRequest *request) {
    PlanNumbers numbers = {.mfu = request->mfu,
                           .rate = request->rate,
                           .hours = request->hours,
                           .mtbf_hours = request->mtbf_hours,
                           .checkpoints = (double)request->keep};
    TRY(read_number(&numbers.parameters, "--params", args->params, 1, 1e16, "8B"));
    TRY(read_number(&numbers.active, "--active-params", args->active_params, 1, 1e16, "3B"));
    TRY(read_number(&numbers.peak, "--peak-tflops", args->peak_tflops, 1e-6, 1e6, "989"));
    numbers.peak *= 1e12;
    TRY(precision_parse(&numbers.precision, setup->config.train.precision));
    // What is typical of a CPU is so in fp32.
    if (setup->machine.gpu.cpu && !config_given(&setup->config, "train.precision")) numbers.precision = PRECISION_FP32;
    numbers.tokens = (double)run_tokens(&setup->config, (int64_t)numbers.parameters);
    return plan_numbers(report, &setup->hardware, &setup->machine, &numbers);
}
