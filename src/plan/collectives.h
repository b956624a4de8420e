// Collectives between N ranks: bytes each rank sends and the time that takes. Bandwidth is what one direction of a
// rank's link really carries (bytes/s); latency is per step.
#pragma once

double plan_ring_steps(double ranks);                         // reduce-scatter + all-gather
double plan_ring_phase_bytes(double bytes, double ranks);     // one of the two
double plan_ring_allreduce_bytes(double bytes, double ranks); // sent by each rank; it receives as much
double plan_ring_latency_seconds(double ranks, double latency_s);
double plan_ring_phase_seconds(double bytes, double ranks, double bandwidth, double latency_s);
double plan_ring_allreduce_seconds(double bytes, double ranks, double bandwidth, double latency_s);
double plan_naive_root_bytes(double bytes, double ranks); // gather to one rank and broadcast: each way at the root

// A binary tree that sends the whole payload at every step (not pipelined).
double plan_tree_steps(double ranks);
double plan_tree_allreduce_seconds(double bytes, double ranks, double bandwidth, double latency_s);
double plan_tree_ring_crossover_bytes(double ranks, double latency_s, double bandwidth); // below it the tree wins

double plan_busbw(double bytes, double ranks, double seconds); // as NCCL reports it
double plan_busbw_utilisation(double bytes, double ranks, double seconds, double link_bandwidth);
double plan_transfer_seconds(double bytes, double bandwidth);
double plan_comm_seconds(double seconds_each, double times);

// Hierarchical all-reduce: reduce-scatter inside each node, all-reduce between nodes, all-gather inside.
double plan_hier_intra_seconds(double bytes, double gpus_per_node, double link_bandwidth);
double plan_hier_crossnode_seconds(double bytes, double nodes,
                                   double node_bandwidth); // the payload over one link per node
double plan_hier_total_seconds(double bytes, double gpus_per_node, double nodes, double link_bandwidth,
                               double nic_bandwidth_per_gpu); // one ring of bytes / gpus_per_node per rail

// Overlap with the backward pass, one bucket per layer: a bucket starts when its layer is done and the link is free.
double
plan_overlap_fraction(double layers); // all but the last bucket; holds while a bucket takes no longer than a layer
double plan_exposed_comm_seconds(double layers, double allreduce_s, double backward_s);
// Ring all-reduce of half-precision gradients over the compute of one GPU.
double plan_comm_compute_ratio(double params, double ranks, double bandwidth, double step_flops, double gpu_flops);

// MoE token exchange: dispatch and combine, forward and backward, balanced routing; what stays on the rank is not sent.
double plan_moe_alltoall_bytes(double tokens, double top_k, double hidden, double bytes_per, double layers, double ep);
// The same in time. `imbalance` is the busiest rank's load over the mean, latency is paid per peer and exchange.
double plan_moe_alltoall_seconds(double bytes, double layers, double ep, double bandwidth, double latency_s,
                                 double imbalance);
