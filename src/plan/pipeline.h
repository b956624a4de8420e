// Pipeline parallelism: bubble, activation stash and point-to-point traffic for p stages, m micro-batches and v virtual
// stages per rank. GPipe and non-interleaved 1F1B have the same bubble; they differ in the stash.
#pragma once

double plan_bubble_of_ideal(double p, double m, double v); // bubble / time without it: (p-1)/(m v); may pass 1
double plan_bubble_of_wall(double p, double m, double v);  // bubble / step time: what a clock shows

typedef enum PlanBubbleBase { PLAN_BUBBLE_OF_IDEAL, PLAN_BUBBLE_OF_WALL } PlanBubbleBase;
// The least m whose bubble is strictly below the limit.
double plan_min_microbatches(double p, double v, double limit, double base);

double plan_stash_bytes(double inflight, double activation_bytes);
double plan_stash_inflight_1f1b(double p, double stage); // p - stage, stages from 0; GPipe holds all m
double plan_p2p_bytes(double p, double v, double m, double activation_bytes); // all boundaries, forward and backward
double plan_p2p_seconds(double p, double v, double m, double activation_bytes, double bandwidth); // over one link

// Layers over p stages, as even as it goes: `longer` stages of `most` layers, the rest one layer shorter.
typedef struct PlanLayerSplit {
    double longer, most;
    double shorter, least;
} PlanLayerSplit;
PlanLayerSplit plan_layer_split(double layers, double p);
double plan_stage_weight_bytes(double per_layer, double layers, double tp, double bytes_per);

double plan_dp_degree(double world, double tp, double pp, double cp);
