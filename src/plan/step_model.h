// The time of one training step, op by op. Each op of model/transformer.c is a product, an attention or a pass over
// memory with the shapes of the layout; it takes the longer of its FLOPs (of a pass on a CPU: its instructions) at the
// reachable rate and its bytes at the reachable bandwidth. On top come launch gaps, the optimizer, communication per
// axis with what hides behind compute, and the pipeline bubble.
#pragma once

#include "model/layout.h"
#include "ops/ops.h"
#include "plan/hardware.h"

enum { STEP_OPS_MAX = 128, STEP_OP_NAME = 48 };
// Raise it with every change of a rule or of the shipped catalogue that moves predicted step times by more than a few
// per cent: what runs taught an older model (train/prediction.c) is no correction of this one. Lines from before the
// number have none: 0.
enum { STEP_MODEL_VERSION = 2 };
#define PLAN_MEMORY_FULL 0.95 // beyond this share of the device a run thrashes or fails

typedef struct PlanMachine { // what runs the job
    HardwareGpu gpu;
    HardwareSoftware software;
    HardwareDefaults defaults;
    HardwareTypical typical[2]; // what others reach on so many of them: dense and MoE models
    int gpus, gpus_per_node;
    double link_bandwidth, link_latency; // inside a node
    double nic_bandwidth, nic_latency;   // between nodes, per GPU
} PlanMachine;

typedef struct PlanRun {  // the job
    LayoutRequest layout; // its stage is not used
    int grad_accum;       // micro-batches of an optimizer step on one data-parallel rank
    int virtual_stages;   // of the interleaved schedule; 1: plain 1F1B
    bool eager;           // no compilation, no recorded graph
    double calibration;   // factor on the step time learned from earlier runs; 1: none
    double outer_every;   // steps between meetings of the layout's islands
    double outer_bytes;   // of one parameter's change on the wire: 4, or 2
} PlanRun;
static inline int plan_islands(const PlanRun *run) { // each has the layout's mesh
    return run->layout.islands > 1 ? run->layout.islands : 1;
}

// Where the time of a step goes: first the categories of its ops (ops/ops.h), which the profile measures too.
typedef enum StepPart {
    STEP_GEMM = CATEGORY_GEMM,
    STEP_GROUPED = CATEGORY_GROUPED,
    STEP_ATTENTION = CATEGORY_ATTENTION,
    STEP_ROUTING = CATEGORY_ROUTING,
    STEP_ELEMENTWISE = CATEGORY_ELEMENTWISE,
    STEP_OPTIMIZER = CATEGORY_OPTIMIZER,
    STEP_COPY = CATEGORY_COPY,
    STEP_LAUNCH = CATEGORY_COUNT,
    STEP_TENSOR,   // all-reduces of activations
    STEP_CONTEXT,  // keys and values around the ring
    STEP_EXPERT,   // tokens to their experts and back
    STEP_PIPELINE, // activations between stages
    STEP_DATA_PARALLEL,
    STEP_OUTER, // changes of weights between islands
    STEP_BUBBLE,
    STEP_HOST_DATA,
    STEP_PRESSURE, // allocation retries near the memory limit
    STEP_PART_COUNT,
} StepPart;
const char *step_part_name(StepPart part);
const char *step_pass_name(StepPass pass);

typedef struct StepOp { // one line of the table: the op in all layers of the stage, per micro-step
    char name[STEP_OP_NAME];
    StepPart part;
    StepPass pass;
    double kernels;
    double flops, bytes;
    double seconds;
    bool compute_bound;
} StepOp;

// Communication of one axis, in one optimizer step of one rank.
typedef struct StepAxis {
    int ranks;
    bool between_nodes;
    double bytes;   // sent
    double seconds; // on the links
    double exposed; // not hidden behind compute
} StepAxis;

typedef struct StepModel {
    int stage; // the busiest one: ops are its
    StepOp ops[STEP_OPS_MAX];
    int op_count;
    double forward, backward;     // seconds of a micro-step of the busiest stage, in-layer communication included
    double fill;                  // seconds that a micro-batch takes through all stages
    double part[STEP_PART_COUNT]; // seconds of a step, exposed; they add up to `seconds`
    StepAxis axis[STEP_PART_COUNT];
    double seconds;
    double tokens; // of a step, all ranks
    double tokens_per_second;
    double flops_per_token; // torchtitan's count
    double flops_per_token_causal, flops_per_token_6n;
    double mfu, mfu_causal, mfu_6n;
    double hfu; // with recomputed FLOPs, causal attention
    HardwareDtype dtype;
    double peak;
    double imbalance; // of the experts' load
} StepModel;

// `layouts` are those of the distinct pipeline stages (1 to 3); used_fraction is the share of memory in use.
void step_model(StepModel *model, const PlanMachine *machine, const PlanRun *run, const Layout *layouts, int count,
                double used_fraction);
HardwareDtype step_dtype(const PlanMachine *machine, const LayoutRequest *request);
