// Inverse questions: the same model with another vocabulary, and the largest model that a time allows.
#include "plan/plan.h"

#include "plan/throughput.h"

#include <math.h>

Status plan_vocab(PlanVocab *result, const PlanReport *report, int vocab) {
    PlanRun run = report->run;
    PlanPrediction prediction;
    run.layout.config.vocab = vocab;
    TRY(plan_predict(&prediction, &report->machine, &run));
    *result = (PlanVocab){.vocab = vocab,
                          .parameters = model_parameters(&run.layout.config),
                          .flops_per_token = prediction.step.flops_per_token,
                          .tokens_per_second = prediction.step.tokens_per_second,
                          .memory_total = prediction.memory.total,
                          .seconds = plan_seconds_for_tokens(report->budget.tokens, prediction.step.tokens_per_second)};
    return NULL;
}

static int round_to_multiple(double value, int to) {
    int steps = (int)lround(value / to);
    return (steps < 1 ? 1 : steps) * to;
}

// The model scaled to `heads` query heads and `layers`: width and MLP follow the heads, head size and vocabulary stay.
static ModelConfig scale_model(const ModelConfig *base, int heads, int layers) {
    ModelConfig config = *base;
    double factor = (double)heads / base->heads;
    int group = base->heads / base->kv_heads;
    config.heads = heads;
    config.kv_heads = heads / group;
    config.hidden = round_to_multiple(base->hidden * factor, 64);
    config.ffn = round_to_multiple(base->ffn * factor, 64);
    if (base->experts) config.moe_ffn = round_to_multiple(base->moe_ffn * factor, 64);
    config.layers = layers;
    for (int i = 0; i < config.layers; i++)
        config.sparse[i] = base->sparse[i < base->layers ? i : base->layers - 1];
    return config;
}

// The best micro-batch that fits for one size, the tokens of a step kept near those of the plan.
static bool try_size(PlanLargest *size, const PlanReport *report, const ModelConfig *config) {
    *size = (PlanLargest){.config = *config, .parameters = model_parameters(config)};
    double batch = report->prediction.step.tokens;
    for (int micro = 1; micro <= 256; micro *= 2) {
        PlanRun run = report->run;
        PlanPrediction prediction;
        run.layout.config = *config;
        run.layout.micro_batch = micro;
        run.grad_accum =
            (int)fmax(1, round(batch / ((double)micro * run.layout.seq * run.layout.mesh.dp * plan_islands(&run))));
        plan_limit_virtual_stages(&run);
        Status status = plan_predict(&prediction, &report->machine, &run);
        if (status || prediction.memory.fraction > report->questions.memory_limit) {
            status_free(status);
            break;
        }
        if (prediction.step.tokens_per_second <= size->tokens_per_second) continue;
        size->found = true;
        size->micro_batch = micro;
        size->tokens_per_second = prediction.step.tokens_per_second;
        size->memory_fraction = prediction.memory.fraction;
    }
    size->tokens = plan_chinchilla_tokens((double)size->parameters.total);
    size->seconds = size->found ? size->tokens / size->tokens_per_second : 0;
    return size->found && size->seconds <= report->questions.target_hours * 3600;
}

void plan_largest(PlanLargest *largest, const PlanReport *report) {
    const ModelConfig *base = &report->run.layout.config;
    int group = base->heads / base->kv_heads, step = group;
    while (step % report->run.layout.mesh.tp) // heads must still divide over tensor-parallel ranks
        step += group;
    *largest = (PlanLargest){0};
    for (int heads = step; heads <= 1024; heads += step) {
        // Depth follows width within a quarter, so that sizes are fine enough.
        double depth = (double)base->layers * heads / base->heads;
        int first = (int)fmax(fmax(2, report->run.layout.mesh.pp), ceil(0.75 * depth));
        int last = (int)fmin(MODEL_LAYERS_MAX, ceil(1.25 * depth));
        bool any = false;
        for (int layers = first; layers <= last; layers++) {
            ModelConfig config = scale_model(base, heads, layers);
            PlanLargest size;
            if (!try_size(&size, report, &config)) break;
            any = true;
            if (!largest->found || size.parameters.total > largest->parameters.total) *largest = size;
        }
        if (!any && largest->found) break;
    }
}
