// The same run on every node of the catalogue: which is cheapest, which is fastest. The number of devices stays, and
// all are paid by the device-hour.
#pragma once

#include "plan/plan.h"

enum { PLAN_NODES_MAX = 64 };

typedef struct PlanNode {
    char name[HARDWARE_NAME_MAX]; // of the node, or of a GPU that no node of the catalogue has
    char title[HARDWARE_TITLE_MAX];
    bool here; // what the plan is of
    bool fits;
    char how[PLAN_TEXT_MAX]; // what must be set otherwise so that it fits
    double rate, mfu;        // tokens/s of all devices; MFU as the plan counts it
    double seconds, cost, energy_kwh;
} PlanNode;

typedef struct PlanNodes { // cheapest first, then those that do not fit
    PlanNode rows[PLAN_NODES_MAX];
    int count;
    int cheapest, fastest; // -1: nothing fits
} PlanNodes;

// What one machine does with the run; fills fits, how, rate and mfu.
typedef void (*PlanNodeTry)(PlanNode *row, const PlanMachine *machine, const void *context);
// `machine` is that of the plan: its own GPU keeps what options changed about it.
void plan_nodes(PlanNodes *nodes, const Hardware *hardware, const PlanMachine *machine, double tokens, PlanNodeTry try,
                const void *context);

// A planned run: as configured where that fits, else the fastest way that does. A rate that was measured or assumed
// here carries over: by its ratio to the model's, or as the same MFU.
void plan_nodes_of_report(PlanNodes *nodes, const Hardware *hardware, const PlanReport *report);
