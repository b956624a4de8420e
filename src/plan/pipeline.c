#include "plan/pipeline.h"

#include "plan/rounding.h"

double plan_bubble_of_ideal(double p, double m, double v) {
    return (p - 1) / (m * v);
}

double plan_bubble_of_wall(double p, double m, double v) {
    return (p - 1) / (m * v + p - 1);
}

double plan_min_microbatches(double p, double v, double limit, double base) {
    double idle = base == PLAN_BUBBLE_OF_WALL ? (p - 1) * (1 - limit) : p - 1;
    return fmax(1, plan_floor(idle / (v * limit)) + 1);
}

double plan_stash_bytes(double inflight, double activation_bytes) {
    return inflight * activation_bytes;
}

double plan_stash_inflight_1f1b(double p, double stage) {
    return p - stage;
}

double plan_p2p_bytes(double p, double v, double m, double activation_bytes) {
    return (p * v - 1) * m * 2 * activation_bytes;
}

double plan_p2p_seconds(double p, double v, double m, double activation_bytes, double bandwidth) {
    return plan_p2p_bytes(p, v, m, activation_bytes) / bandwidth;
}

PlanLayerSplit plan_layer_split(double layers, double p) {
    double least = plan_floor(layers / p), longer = layers - least * p;
    return (PlanLayerSplit){.longer = longer, .most = least + 1, .shorter = p - longer, .least = least};
}

double plan_stage_weight_bytes(double per_layer, double layers, double tp, double bytes_per) {
    return per_layer * layers * bytes_per / tp;
}

double plan_dp_degree(double world, double tp, double pp, double cp) {
    return world / (tp * pp * cp);
}
