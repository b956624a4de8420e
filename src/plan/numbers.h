// A plan of bare numbers: so many parameters on so many tokens with so many GPUs. No model, so nothing of its shape:
// time is 6 x active parameters x tokens over what the GPUs do of their peak, and that share is a typical one of its
// class unless it is given.
#pragma once

#include "plan/nodes.h"

typedef struct PlanNumbers {
    double parameters, active; // active 0: dense
    double tokens;             // 0: 20 per parameter
    double mfu;                // of 6N; 0: typical
    double rate;               // > 0: tokens/s of all GPUs, instead of an MFU
    double peak;               // FLOP/s of one device; 0: as the catalogue says
    Precision precision;
    double hours; // > 0: how many tokens fit into this time
    double mtbf_hours, checkpoints;
} PlanNumbers;

typedef struct PlanNumbersReport {
    PlanMachine machine;
    PlanNumbers asked; // with active filled in
    PlanRateSource rate_source;
    bool assumed; // the MFU is the middle of typical
    HardwareTypical typical;
    HardwareDtype dtype; // of the peak
    double peak;
    double rate, mfu;                 // tokens/s of all devices, and what that is of the peak by 6N
    double seconds_low, seconds_high; // at the ends of typical: the longer first; 0 unless assumed
    PlanBudget budget;
    double state_bytes, state_bytes_sharded; // of mixed-precision Adam: on one device, and over all (ZeRO 3)
    bool fits;                               // states alone, sharded over all
    double hours_tokens;
    double fp8_seconds; // > 0: what the run would take with fp8, which the device has and the run has not
    PlanNodes nodes;
    char warnings[PLAN_WARNINGS_MAX][PLAN_TEXT_MAX];
    int warning_count;
} PlanNumbersReport;

Status plan_numbers(PlanNumbersReport *report, const Hardware *hardware, const PlanMachine *machine,
                    const PlanNumbers *numbers);
