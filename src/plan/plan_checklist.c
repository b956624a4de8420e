// What to do in which order, and what FP8 would bring: the plan's own functions run on the changed run.
#include "plan/plan.h"

#include <stdio.h>

void plan_checklist(PlanReport *report) {
    PlanPrediction now = report->prediction;
    PlanTry step = report->fitting;
    report->checklist_count = 0;
    bool found = report->fits ? plan_changes(&step, 1, report, &report->run, &now) > 0 : step.change.what[0] != '\0';
    while (found && report->checklist_count < PLAN_CHECKLIST_MAX) {
        report->checklist[report->checklist_count++] = step.change;
        Status status = plan_predict(&now, &report->machine, &step.run);
        if (status) { // cannot be: it was predicted when it was found
            status_free(status);
            return;
        }
        PlanRun run = step.run;
        found = plan_changes(&step, 1, report, &run, &now) > 0;
    }
}

void plan_what_if_fp8(PlanReport *report) {
    PlanPrediction prediction;
    PlanRun run = report->run;
    run.layout.precision = PRECISION_FP8;
    bool other = report->run.layout.precision == PRECISION_FP8 || report->run.layout.precision == PRECISION_FP32;
    if (other || report->machine.gpu.peak[HARDWARE_FP8] <= 0 || report->machine.software.state_bytes > 0) return;
    Status status = plan_predict(&prediction, &report->machine, &run);
    if (!status) {
        double rate = prediction.step.tokens_per_second;
        report->fp8 = (PlanChange){.gain = rate / report->prediction.step.tokens_per_second - 1,
                                   .tokens_per_second = rate,
                                   .memory_fraction = prediction.memory.fraction};
        snprintf(report->fp8.what, sizeof report->fp8.what, "precision fp8 instead of %s",
                 precision_name(report->run.layout.precision));
    }
    status_free(status);
}
