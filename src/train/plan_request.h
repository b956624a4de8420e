// A plan as somebody asks for it, on the command line or on a page. One table holds the options: the command makes its
// arguments of it and the page its fields, so that both take the same words, check the same ranges and get the same
// answer.
#pragma once

#include "plan/nodes.h"
#include "plan/plan.h"
#include "train/config.h"

#include <jansson.h>

enum { PLAN_REQUEST_KEYS_MAX = 20 };

typedef enum PlanOptionKind {
    PLAN_OPTION_KEY, // stands for a key of the configuration, whose table checks it
    PLAN_OPTION_TEXT,
    PLAN_OPTION_INT,
    PLAN_OPTION_DOUBLE,
    PLAN_OPTION_FLAG,
} PlanOptionKind;

typedef struct PlanOption {
    const char *name; // "--gpus"
    PlanOptionKind kind;
    size_t at;       // in PlanRequest
    const char *key; // of PLAN_OPTION_KEY
    double min, max; // of numbers
    const char *value_name, *help;
} PlanOption;

extern const PlanOption plan_options[];
extern const int plan_option_count;

typedef struct PlanRequest { // strings are borrowed
    const char *name;        // a preset, or a file; NULL: no model, for plan_setup_machine alone
    bool preset_only;        // never a file
    const char *keys[PLAN_REQUEST_KEYS_MAX];
    const char **sets; // "section.key=value", over all else
    int set_count;
    const char *gpu, *node, *cluster, *software, *hardware, *mfu_count;
    int64_t gpus, nodes, gpus_per_node, cores, virtual_stages, vocab, keep;
    double hours, target_hours, price, storage_price, mfu, rate, mtbf_hours, checkpoint, kwh, pue, memory_limit;
    bool eager, compare_nodes, no_machine, no_calibration;
} PlanRequest;

void plan_request_init(PlanRequest *request); // nothing is given
Status plan_request_set(PlanRequest *request, const PlanOption *option, const char *text);
// Ranges of the numbers. Those that were not given become 0, which none of them may be, or stay below zero where a
// price may be nothing.
Status plan_request_check(PlanRequest *request);

typedef struct PlanSetup { // what a request that was checked names
    Config config;
    Hardware hardware;
    PlanMachine machine;
    PlanRun run;
} PlanSetup;

Status plan_setup_machine(PlanSetup *setup, const PlanRequest *request); // all but the run
Status plan_setup(PlanSetup *setup, const PlanRequest *request);
void plan_setup_free(PlanSetup *setup);
Status plan_setup_report(PlanReport *report, const PlanSetup *setup, const PlanRequest *request);
PlanNodes *plan_setup_nodes(const PlanSetup *setup, const PlanReport *report,
                            const PlanRequest *request); // to be freed; NULL: no comparison was asked for
// What `hearth plan --json` writes; nodes: those of a comparison, or NULL.
json_t *plan_setup_json(const PlanSetup *setup, const PlanReport *report, const PlanNodes *nodes);

// ---- what this build can do -----------------------------------------------------------------------------------------

Status plan_mesh_refused(const Config *config,
                         const Mesh *mesh);               // why hearth does not train on this mesh; NULL: it does
const char *plan_build_lacks(const PlanMachine *machine); // "CUDA and MPI"; NULL: nothing
bool plan_tells_build(const PlanMachine *machine);        // several devices, and hearth's own way to train
