#include "train/loss_facts.h"

#include "base/text.h"

#include <stdlib.h>

static bool run_fits(const Prediction *prediction, int batches, Recompute recompute) {
    PlanPrediction plan;
    PlanRun run = prediction->run;
    run.layout.micro_batch *= batches;
    run.layout.recompute = recompute;
    Status status = plan_predict(&plan, &prediction->machine, &run);
    bool fits = !status && plan.memory.fraction <= PLAN_MEMORY_LIMIT;
    status_free(status);
    return fits;
}

LossFacts loss_facts(const Prediction *prediction) {
    if (!prediction) return (LossFacts){0};
    const PlanMachine *machine = &prediction->machine;
    const LayoutRequest *layout = &prediction->run.layout;
    const StepModel *step = &prediction->plan.step;
    LossFacts facts = {.gpu = !machine->gpu.cpu,
                       .precision = layout->precision,
                       .recompute = layout->recompute,
                       .batch_fits = run_fits(prediction, 2, layout->recompute),
                       .recompute_fits =
                           layout->recompute && run_fits(prediction, 1, (Recompute)(layout->recompute - 1)),
                       .shards_optimizer = layout->mesh.zero > 0 || mesh_data_ranks(&layout->mesh) == 1};
    if (facts.gpu && step->peak > 0)
        facts.products_peak = step->tokens * step->flops_per_token_causal / (step->peak * machine->gpus);
    PlanReport *report = xmalloc(sizeof *report);
    PlanQuestions questions = {0};
    Status status = plan_report(report, "", machine, &prediction->run, &questions);
    facts.known = !status;
    if (!status && report->change_count) facts.change = report->changes[0];
    if (!status) facts.fp8 = report->fp8;
    status_free(status);
    free(report);
    return facts;
}
