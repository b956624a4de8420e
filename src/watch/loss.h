// What a step loses its time to, and what to try: one sentence for the report and for a profile. An advice names
// nothing that the run does already, or that its device cannot do.
#pragma once

#include "plan/plan.h"

typedef enum Loss {
    LOSS_DATA,
    LOSS_RANKS,
    LOSS_GAPS,
    LOSS_OPTIMIZER,
    LOSS_ELEMENTWISE,
    LOSS_ROUTING,
    LOSS_COPY,
    LOSS_RATES, // products and attention that take longer than at the rates that were measured or are known
    LOSS_RECOMPUTE,
    LOSS_COUNT,
} Loss;
const char *loss_name(Loss loss); // "waiting for data"

#define LOSS_AT_FLOOR 1.05 // times it: rates of a device are not known better
bool loss_at_floor(double seconds, double floor);
double loss_over_floor(double seconds, double floor); // 0 where the floor is not known (0)

// The run that loses it, and what the planner says of it (train/loss_facts.h).
typedef struct LossFacts {
    bool known; // else nothing of it is, and nothing is advised that rests on it
    bool gpu;
    Precision precision;
    Recompute recompute;
    bool batch_fits;        // the device's memory takes twice the micro-batch
    bool recompute_fits;    // or the next lesser mode of recomputation
    bool shards_optimizer;  // ZeRO, or there is nobody to share with
    double products_peak;   // seconds of a step's products and attention at the peak of the device
    PlanChange change, fp8; // the planner's best change, and what FP8 would bring; what is "" where there is none
} LossFacts;

typedef struct LossItem {
    double seconds;
    double floor;    // of them, at the rates of the device; 0: not known, or all of it could be had back
    char where[160]; // "most of all in" it; "": not known
    bool experts;    // that is a product of experts
} LossItem;

typedef struct LossTable {
    double step; // seconds
    LossItem item[LOSS_COUNT];
    double products, products_floor; // products and attention; floor 0: not known
    bool graph_known;
    char no_graph[160]; // why micro-steps are not replayed from a graph; "": they are
} LossTable;

Loss loss_worst(const LossTable *table);
// A few sentences: the biggest loss, what to try, and what the planner expects. malloc'd.
char *loss_sentence(const LossTable *table, const LossFacts *facts);
