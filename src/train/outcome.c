// Step times of a run and their median.
#include "train/outcome.h"

#include "base/stats.h"
#include "base/text.h"

#include <stdlib.h>

void outcome_note(Outcome *outcome, double seconds, double memory) {
    if (outcome->count == outcome->capacity) {
        outcome->capacity = outcome->capacity ? 2 * outcome->capacity : 256;
        outcome->seconds = xrealloc(outcome->seconds, outcome->capacity * sizeof *outcome->seconds);
    }
    outcome->seconds[outcome->count++] = seconds;
    outcome->memory = memory;
}

bool outcome_measured(const Outcome *outcome, double step_tokens, PlanMeasured *measured) {
    *measured = (PlanMeasured){0};
    if (outcome->count < OUTCOME_STEPS_LEAST) return false;
    double median = double_median(outcome->seconds, outcome->count);
    *measured =
        (PlanMeasured){.memory = outcome->memory, .step_seconds = median, .tokens_per_second = step_tokens / median};
    return true;
}

void outcome_free(Outcome *outcome) {
    free(outcome->seconds);
    *outcome = (Outcome){0};
}
