// What a run measured of itself, to stand beside what was predicted of it.
#pragma once

#include "plan/calibration.h"

#include <stdbool.h>
#include <stddef.h>

enum { OUTCOME_STEPS_LEAST = 5 };  // fewer say nothing
enum { OUTCOME_STEPS_TEACH = 30 }; // fewer say nothing about the next run
#define OUTCOME_OTHERS_MOST 0.1    // share of the cores that other programs may have had

typedef struct Outcome { // {0} is empty
    double *seconds;     // of the steps that count: not warm-up, not profiled, full batch
    size_t count, capacity;
    double memory, in_use; // bytes: what hearth asked for, and all that the device has in it
} Outcome;

void outcome_note(Outcome *outcome, double seconds, double memory, double in_use);
// The median step. False when there were too few steps.
bool outcome_measured(const Outcome *outcome, double step_tokens, PlanMeasured *measured);

typedef struct MachineLoad { // seconds, at one moment
    double clock, busy, own; // busy: of all cores by all programs, own: by this one
} MachineLoad;
MachineLoad machine_load_now(void);
// Share of the machine that other programs had between the two; 0 where the system does not tell.
double machine_load_others(const MachineLoad *from, const MachineLoad *to, int cores);
// Why this run should not be what the next one is predicted by: it was short, or others were at work; NULL: it may.
const char *outcome_unfit(const Outcome *outcome, double others);
void outcome_free(Outcome *outcome);
