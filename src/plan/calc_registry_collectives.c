// Quantities: collectives, overlap with compute, MoE exchange.
#include "plan/calc_rows.h"
#include "plan/collectives.h"

#define CONVENTION_BW "bandwidth per direction that the ring can use; GB = 1e9 bytes"
#define NOTE_TWO_WAY                                                                                                 \
    "a data sheet's \"bidirectional\" bandwidth sums both directions: enter half of it (A100 NVLink: 300 GB/s, not " \
    "600), the time doubles"
#define IN_LATENCY IN_OR("latency_us", "us", NUMBER, "latency of one step", "0")
#define IN_SECONDS IN("seconds", "s", POSITIVE, "measured time")

static const CalcQuantity table[] = {
    {
        .name = "ring_allreduce_ms",
        .summary = "time of a ring all-reduce",
        .unit = "ms",
        .inputs = {IN_M_GB, IN_RANKS, IN_BW, IN_LATENCY},
        .function = CALC_CALL(plan_ring_allreduce_seconds),
        .formula = "2*{M_GB}*({N} - 1)/{N}/{bw_GBps}*1000 + 2*({N} - 1)*{latency_us}/1000",
        .convention = CONVENTION_BW,
        .note = NOTE_TWO_WAY,
    },
    {
        .name = "ring_allreduce_GB_per_gpu",
        .summary = "bytes each rank sends in a ring all-reduce",
        .unit = "GB",
        .inputs = {IN_M_GB, IN_RANKS},
        .function = CALC_CALL(plan_ring_allreduce_bytes),
        .formula = "2*{M_GB}*({N} - 1)/{N}",
        .convention = "sent per rank; it receives as much; GB = 1e9 bytes",
        .note = "7.38 GB over 128 ranks are 14.645 GB; 14.63 in the source is a slip",
    },
    {
        .name = "ring_phase_GB_per_gpu",
        .summary = "bytes each rank sends in one ring phase (reduce-scatter or all-gather)",
        .unit = "GB",
        .inputs = {IN_M_GB, IN_RANKS},
        .function = CALC_CALL(plan_ring_phase_bytes),
        .formula = "{M_GB}*({N} - 1)/{N}",
        .convention = "half of an all-reduce; GB = 1e9 bytes",
        .note = "",
    },
    {
        .name = "ring_latency_us",
        .summary = "latency part of a ring all-reduce",
        .unit = "us",
        .inputs = {IN_RANKS, IN("latency_us", "us", NUMBER, "latency of one step")},
        .function = CALC_CALL(plan_ring_latency_seconds),
        .formula = "2*({N} - 1)*{latency_us}",
        .convention = "2(N-1) steps, one after another",
        .note = "",
    },
    {
        .name = "ring_steps",
        .summary = "steps of a ring all-reduce",
        .unit = "steps",
        .inputs = {IN_RANKS},
        .function = CALC_CALL(plan_ring_steps),
        .formula = "2*({N} - 1)",
        .convention = "N-1 of the reduce-scatter, N-1 of the all-gather",
        .note = "",
    },
    {
        .name = "naive_root_GB",
        .summary = "traffic at the root when one rank gathers and broadcasts",
        .unit = "GB each way",
        .inputs = {IN_M_GB, IN_RANKS},
        .function = CALC_CALL(plan_naive_root_bytes),
        .formula = "{M_GB}*({N} - 1)",
        .convention = "received, and sent again",
        .note = "",
    },
    {
        .name = "tree_steps",
        .summary = "steps of a tree all-reduce",
        .unit = "steps",
        .inputs = {IN_RANKS},
        .function = CALC_CALL(plan_tree_steps),
        .formula = "2*ceil(log2({N}))",
        .convention = "binary tree, reduce and broadcast",
        .note = "",
    },
    {
        .name = "tree_allreduce_ms",
        .summary = "time of a tree all-reduce",
        .unit = "ms",
        .inputs = {IN_M_GB, IN_RANKS, IN_BW, IN_LATENCY},
        .function = CALC_CALL(plan_tree_allreduce_seconds),
        .formula = "2*ceil(log2({N}))*({M_GB}/{bw_GBps}*1000 + {latency_us}/1000)",
        .convention = "binary tree that sends the whole payload at each step, not pipelined; " CONVENTION_BW,
        .note = "NCCL's double binary trees are pipelined and close to the ring's bandwidth: \"the ring always wins "
                "for large "
                "messages\" does not hold for them",
    },
    {
        .name = "tree_ring_crossover_bytes",
        .summary = "message size below which the tree beats the ring",
        .unit = "B",
        .inputs = {IN_MIN("N", "", COUNT, "ranks", 2), IN("latency_us", "us", NUMBER, "latency of one step"), IN_BW},
        .function = CALC_CALL(plan_tree_ring_crossover_bytes),
        .formula = "{latency_us}*{bw_GBps}*1000*({N} - 1 - ceil(log2({N})))/(ceil(log2({N})) - ({N} - 1)/{N})",
        .convention = "unpipelined tree against ring with the same latency per step",
        .note = "",
    },
    {
        .name = "busbw_GBps",
        .summary = "bus bandwidth of a measured all-reduce",
        .unit = "GB/s",
        .inputs = {IN_M_GB, IN_RANKS, IN_SECONDS},
        .function = CALC_CALL(plan_busbw),
        .formula = "2*({N} - 1)/{N}*{M_GB}/{seconds}",
        .convention = "as NCCL's tests report it: payload / time * 2(N-1)/N",
        .note = "",
    },
    {
        .name = "busbw_util_pct",
        .summary = "share of the link that an all-reduce used",
        .unit = "%",
        .inputs = {IN_M_GB, IN_RANKS, IN_SECONDS,
                   IN("link_GBps", "GB/s", POSITIVE, "bandwidth of the link in one direction")},
        .function = CALC_CALL(plan_busbw_utilisation),
        .formula = "2*({N} - 1)/{N}*{M_GB}/{seconds}/{link_GBps}*100",
        .convention = "NCCL bus bandwidth over link bandwidth; 78 % is usual",
        .note = "",
    },
    {
        .name = "transfer_ms",
        .summary = "time of one transfer",
        .unit = "ms",
        .inputs = {IN("MB", "MB", NUMBER, "bytes"), IN_BW},
        .function = CALC_CALL(plan_transfer_seconds),
        .formula = "{MB}/{bw_GBps}",
        .convention = "MB = 1e6 bytes, no latency",
        .note = "a tensor-parallel all-reduce of [1, 4096, 8192] in 16 bits over 8 ranks is 117.4 MB (0.196 ms at 600 "
                "GB/s), not 56 MB (0.09 ms)",
    },
    {
        .name = "comm_hours",
        .summary = "hours of a run spent in all-reduces",
        .unit = "h",
        .inputs = {IN("seconds_per_allreduce", "s", NUMBER, "one all-reduce"),
                   IN("batches", "", NUMBER, "all-reduces in the run")},
        .function = CALC_CALL(plan_comm_seconds),
        .formula = "{seconds_per_allreduce}*{batches}/3600",
        .convention = "one all-reduce per batch, not overlapped",
        .note = "",
    },
    {
        .name = "hier_intra_ms",
        .summary = "part of a hierarchical all-reduce inside the nodes",
        .unit = "ms",
        .inputs = {IN("S_GB", "GB", NUMBER, "payload"), IN("gpus_per_node", "", COUNT, "GPUs per node"),
                   IN("nvlink_GBps", "GB/s", POSITIVE, "bandwidth between GPUs of a node, one direction")},
        .function = CALC_CALL(plan_hier_intra_seconds),
        .formula = "2*{S_GB}*({gpus_per_node} - 1)/{gpus_per_node}/{nvlink_GBps}*1000",
        .convention = "reduce-scatter before and all-gather after the exchange between nodes",
        .note = "20 GB at 600 GB/s are 58.3 ms, not \"maybe 10 ms\"",
    },
    {
        .name = "hier_crossnode_ms",
        .summary = "part of a hierarchical all-reduce between nodes",
        .unit = "ms",
        .inputs = {IN("S_GB", "GB", NUMBER, "payload"), IN("nodes", "", COUNT, "nodes"),
                   IN("node_bw_GBps", "GB/s", POSITIVE, "bandwidth of a node, one direction")},
        .function = CALC_CALL(plan_hier_crossnode_seconds),
        .formula = "2*{S_GB}*({nodes} - 1)/{nodes}/{node_bw_GBps}*1000",
        .convention = "the whole payload crosses the node's bandwidth",
        .note = "350 ms for 20 GB holds only when ONE 100 GB/s link per node carries everything; see hier_total_ms for "
                "one NIC "
                "per GPU",
    },
    {
        .name = "hier_total_ms",
        .summary = "hierarchical all-reduce with one NIC per GPU",
        .unit = "ms",
        .inputs = {IN("S_GB", "GB", NUMBER, "payload"), IN("gpus_per_node", "", COUNT, "GPUs per node"),
                   IN("nodes", "", COUNT, "nodes"),
                   IN("nvlink_GBps", "GB/s", POSITIVE, "bandwidth between GPUs of a node, one direction"),
                   IN("nic_GBps_per_gpu", "GB/s", POSITIVE, "network bandwidth of a GPU, one direction")},
        .function = CALC_CALL(plan_hier_total_seconds),
        .formula = "2*{S_GB}*({gpus_per_node} - 1)/{gpus_per_node}/{nvlink_GBps}*1000 + "
                   "2*{S_GB}/{gpus_per_node}*({nodes} - 1)/{nodes}/{nic_GBps_per_gpu}*1000",
        .convention =
            "reduce-scatter inside, gpus_per_node parallel rings of S/gpus_per_node between nodes, all-gather inside",
        .note = "",
    },
    {
        .name = "overlap_fraction_pct",
        .summary = "share of the gradient all-reduce hidden behind the backward pass",
        .unit = "%",
        .inputs = {IN("layers", "", COUNT, "layers, one bucket each")},
        .function = CALC_CALL(plan_overlap_fraction),
        .formula = "({layers} - 1)/{layers}*100",
        .convention = "all buckets but the last are hidden",
        .note = "holds only while the all-reduce of a bucket takes no longer than the backward of a layer; see "
                "exposed_comm_ms",
    },
    {
        .name = "exposed_comm_ms",
        .summary = "gradient all-reduce that is not hidden behind the backward pass",
        .unit = "ms",
        .inputs = {IN("layers", "", COUNT, "layers, one bucket each"),
                   IN("ar_ms", "ms", NUMBER, "all-reduce of a bucket"),
                   IN("bwd_ms", "ms", NUMBER, "backward of a layer")},
        .function = CALC_CALL(plan_exposed_comm_seconds),
        .formula = "max({ar_ms}, {layers}*{ar_ms} - ({layers} - 1)*{bwd_ms})",
        .convention = "a bucket starts when its layer is done and the link is free",
        .note = "",
    },
    {
        .name = "comm_compute_ratio",
        .summary = "gradient all-reduce over compute",
        .unit = "x",
        .inputs = {IN_PARAMS_B, IN_RANKS, IN_BW, IN("tflop_per_step", "TFLOP", POSITIVE, "FLOPs per GPU and step"),
                   IN("gpu_tflops", "TFLOP/s", POSITIVE, "FLOP/s that the GPU reaches")},
        .function = CALC_CALL(plan_comm_compute_ratio),
        .formula = "2*(2*{params_B})*({N} - 1)/({N}*{bw_GBps})/({tflop_per_step}/{gpu_tflops})",
        .convention =
            "ring all-reduce of 16-bit gradients over the compute of one GPU; over 1: communication is longer",
        .note = "",
    },
    {
        .name = "moe_a2a_GB",
        .summary = "bytes each rank sends in the all-to-alls of a MoE step",
        .unit = "GB",
        .inputs = {IN("tokens", "tokens", POSITIVE, "tokens per GPU and step"), IN_K, IN_D, IN_BYTES_PER,
                   IN("layers", "", COUNT, "MoE layers"), IN("ep", "", COUNT, "expert-parallel ranks")},
        .function = CALC_CALL(plan_moe_alltoall_bytes),
        .formula = "4*{layers}*{tokens}*{k}*{d}*{bytes_per}*({ep} - 1)/{ep}/1e9",
        .convention =
            "dispatch and combine, forward and backward: 4 per layer; balanced routing; (ep-1)/ep leaves the rank",
        .note = "bytes alone under-predict the time: latency, imbalance and waiting dominate (EP 8 to 4 saved 1.0 s "
                "per step "
                "where bytes explain 0.09 s)",
    },
};

const CalcSubject calc_subject_collectives = {"Communication", SUBJECT_TABLE(table)};
