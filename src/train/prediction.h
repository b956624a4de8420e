// The prediction that a run makes of itself: hardware files, history, and plan/plan.h put together. `plan`, `preflight`
// and `train` all come through here, so they predict the same numbers.
//
// Files, later ones replace values of earlier ones:
//   the catalogue   $HEARTH_HARDWARE, else configs/hardware.toml here or with the program (base/installed.h)
//   the machine     $HEARTH_MACHINE, else ~/.config/hearth/machine.toml, as `hearth bench` writes it
//   the user's      --hardware FILE
#pragma once

#include "plan/calibration.h"
#include "plan/plan.h"

Status prediction_hardware(Hardware *hardware, const char *user_file, bool with_machine);
char *prediction_machine_path(void); // malloc'd; NULL when there is no home
char *prediction_history_path(void); // $HEARTH_HISTORY, else ~/.local/share/hearth/history.jsonl; likewise

typedef struct Prediction {
    PlanMachine machine;
    PlanRun run;
    PlanPrediction plan;         // calibrated
    PlanCalibration calibration; // what earlier runs said; factor 1 when switched off
    double raw_step_seconds;     // without it
} Prediction;

// Of `ranks` devices as `device` names one (a CPU by its name in the catalogue, a GPU as its driver calls it; memory in
// bytes, 0: as the catalogue says). An unknown device is a usage error that says how to add it. $HEARTH_CALIBRATION=off
// leaves the history aside, here and in prediction_remember.
Status prediction_make(Prediction *prediction, const LayoutRequest *layout, int grad_accum, const char *device,
                       double device_memory, int ranks);

// What earlier runs on this device say about this kind of run (dense or MoE, precision, one device or many) with steps
// of about this length. Outcomes of predictions by another version of the step model teach nothing.
Status prediction_calibration(PlanCalibration *calibration, const PlanMachine *machine, const PlanRun *run);
// Appends the outcome of a run to the history; one line of JSON, so that concurrent runs do not tear it.
Status prediction_remember(const Prediction *prediction, const PlanMeasured *measured);
