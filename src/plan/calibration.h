// Prediction against measurement: the error of a run, and what earlier runs say about the next prediction.
#pragma once

#include <stdbool.h>

typedef struct PlanOutcome {
    double predicted, measured;
} PlanOutcome;

// What a run turned out to take, beside PlanPrediction.
typedef struct PlanMeasured {
    double memory, step_seconds, tokens_per_second; // bytes, of the median step; 0: not known
    double memory_beside;                           // in use on the device, and nothing that was predicted
} PlanMeasured;

// In per cent of the measured value: +10 means that the prediction was 10 % too high.
double plan_error_percent(PlanOutcome outcome);

enum { CALIBRATION_WINDOW = 8 };
#define CALIBRATION_LEAST 0.5
#define CALIBRATION_MOST  2.0

typedef struct PlanCalibration {
    double factor; // on predicted step time, within the bounds; 1 when there is nothing to learn from
    int runs;      // that it rests on
    bool bounded;  // the runs asked for more than the bounds allow
    double spread; // largest over smallest ratio of those runs: how much they agree
} PlanCalibration;

// The median of measured / predicted step time of the last runs, oldest first, and the lower of two middle ones: what
// disturbs a run makes it slower, so one that was disturbed must not outweigh one that was not, and a machine that did
// become slower shows in more than half of them. Predictions without calibration; ratios that cannot be (not positive,
// not finite) are left out.
PlanCalibration plan_calibrate(const PlanOutcome *steps, int count);
