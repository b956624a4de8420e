#include "plan/collectives.h"

#include "plan/memory.h"
#include "plan/rounding.h"

double plan_ring_steps(double ranks) {
    return 2 * (ranks - 1);
}

double plan_ring_phase_bytes(double bytes, double ranks) {
    return bytes * (ranks - 1) / ranks;
}

double plan_ring_allreduce_bytes(double bytes, double ranks) {
    return 2 * plan_ring_phase_bytes(bytes, ranks);
}

double plan_ring_latency_seconds(double ranks, double latency_s) {
    return plan_ring_steps(ranks) * latency_s;
}

double plan_ring_phase_seconds(double bytes, double ranks, double bandwidth, double latency_s) {
    return plan_ring_phase_bytes(bytes, ranks) / bandwidth + (ranks - 1) * latency_s;
}

double plan_ring_allreduce_seconds(double bytes, double ranks, double bandwidth, double latency_s) {
    return 2 * plan_ring_phase_seconds(bytes, ranks, bandwidth, latency_s);
}

double plan_naive_root_bytes(double bytes, double ranks) {
    return bytes * (ranks - 1);
}

static double tree_depth(double ranks) {
    return plan_ceil(log2(ranks));
}

double plan_tree_steps(double ranks) {
    return 2 * tree_depth(ranks);
}

double plan_tree_allreduce_seconds(double bytes, double ranks, double bandwidth, double latency_s) {
    return plan_tree_steps(ranks) * (bytes / bandwidth + latency_s);
}

double plan_tree_ring_crossover_bytes(double ranks, double latency_s, double bandwidth) {
    double depth = tree_depth(ranks);
    return latency_s * bandwidth * (ranks - 1 - depth) / (depth - (ranks - 1) / ranks);
}

double plan_busbw(double bytes, double ranks, double seconds) {
    return plan_ring_allreduce_bytes(bytes, ranks) / seconds;
}

double plan_busbw_utilisation(double bytes, double ranks, double seconds, double link_bandwidth) {
    return plan_busbw(bytes, ranks, seconds) / link_bandwidth;
}

double plan_transfer_seconds(double bytes, double bandwidth) {
    return bytes / bandwidth;
}

double plan_comm_seconds(double seconds_each, double times) {
    return seconds_each * times;
}

double plan_hier_intra_seconds(double bytes, double gpus_per_node, double link_bandwidth) {
    return plan_ring_allreduce_seconds(bytes, gpus_per_node, link_bandwidth, 0);
}

double plan_hier_crossnode_seconds(double bytes, double nodes, double node_bandwidth) {
    return plan_ring_allreduce_seconds(bytes, nodes, node_bandwidth, 0);
}

double plan_hier_total_seconds(double bytes, double gpus_per_node, double nodes, double link_bandwidth,
                               double nic_bandwidth_per_gpu) {
    return plan_hier_intra_seconds(bytes, gpus_per_node, link_bandwidth) +
           plan_hier_crossnode_seconds(bytes / gpus_per_node, nodes, nic_bandwidth_per_gpu);
}

double plan_overlap_fraction(double layers) {
    return (layers - 1) / layers;
}

double plan_exposed_comm_seconds(double layers, double allreduce_s, double backward_s) {
    return fmax(allreduce_s, layers * allreduce_s - (layers - 1) * backward_s);
}

double plan_comm_compute_ratio(double params, double ranks, double bandwidth, double step_flops, double gpu_flops) {
    return plan_ring_allreduce_seconds(params * PLAN_GRAD_BYTES, ranks, bandwidth, 0) / (step_flops / gpu_flops);
}

enum { MOE_EXCHANGES_PER_LAYER = 4 }; // dispatch and combine, forward and backward

double plan_moe_alltoall_bytes(double tokens, double top_k, double hidden, double bytes_per, double layers, double ep) {
    return MOE_EXCHANGES_PER_LAYER * layers * tokens * top_k * hidden * bytes_per * (ep - 1) / ep;
}

double plan_moe_alltoall_seconds(double bytes, double layers, double ep, double bandwidth, double latency_s,
                                 double imbalance) {
    return imbalance * bytes / bandwidth + MOE_EXCHANGES_PER_LAYER * layers * (ep - 1) * latency_s;
}
