// What a run measured of itself, to stand beside what was predicted of it.
#pragma once

#include "dist/world.h"
#include "ops/ops.h"
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
// Share of the machine that other programs had between the two, with `ranks` of this run on it, each as busy as this
// one; 0 where the system does not tell.
double machine_load_others(const MachineLoad *from, const MachineLoad *to, int ranks, int cores);
// The same since `from`, for a run on this kind of device: a GPU is not slowed down by what the cores do.
double outcome_others(const MachineLoad *from, DeviceKind kind, const World *world);
// Why a run of so many steps should not be what the next one is predicted by: they are fewer than `least`, or others
// were at work; NULL: it may.
const char *outcome_unfit(size_t steps, size_t least, double others);
void outcome_free(Outcome *outcome);
