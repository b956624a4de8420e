// What a run measured of itself, to stand beside what was predicted of it.
#pragma once

#include "plan/calibration.h"

#include <stdbool.h>
#include <stddef.h>

enum { OUTCOME_STEPS_LEAST = 5 }; // fewer say nothing about the next run

typedef struct Outcome { // {0} is empty
    double *seconds;     // of the steps that count: not warm-up, not profiled, full batch
    size_t count, capacity;
    double memory; // bytes in use
} Outcome;

void outcome_note(Outcome *outcome, double seconds, double memory);
// The median step. False when there were too few steps.
bool outcome_measured(const Outcome *outcome, double step_tokens, PlanMeasured *measured);
void outcome_free(Outcome *outcome);
