// Quantities: checkpoints and failures, money and energy.
#include "plan/calc_rows.h"
#include "plan/checkpointing.h"
#include "plan/cost.h"
#include "plan/memory.h"

#define IN_MTBF   IN("mtbf_h", "h", POSITIVE, "mean time between failures")
#define IN_CKPT_S IN("ckpt_s", "s", POSITIVE, "time to write a checkpoint")

static const CalcQuantity checkpoint_table[] = {
    {
        .name = "ckpt_GB",
        .summary = "size of a checkpoint",
        .unit = "GB",
        .inputs = {IN_PARAMS_B,
                   IN("bytes_per_param", "", POSITIVE, "bytes per parameter (14 with mixed-precision Adam)")},
        .function = CALC_CALL(plan_bytes),
        .formula = "{params_B}*{bytes_per_param}",
        .convention = "16-bit weights 2 + fp32 master weights 4 + Adam moments 8 = 14 bytes per parameter, no "
                      "gradients; GB = 1e9",
        .note = "",
    },
    {
        .name = "write_seconds",
        .summary = "time to write a checkpoint",
        .unit = "s",
        .inputs = {IN("GB", "GB", NUMBER, "size"), IN("GBps", "GB/s", POSITIVE, "bandwidth of one writer"),
                   IN_OR("writers", "", COUNT, "ranks that write their shard at the same time", "1")},
        .function = CALC_CALL(plan_write_seconds),
        .formula = "{GB}/({GBps}*{writers})",
        .convention = "every writer has the whole bandwidth to itself",
        .note = "optimistic for many writers: a shared file system has a total of its own",
    },
    {
        .name = "young_interval_min",
        .summary = "best time between checkpoints",
        .unit = "min",
        .inputs = {IN_MTBF, IN_CKPT_S},
        .function = CALC_CALL(plan_young_interval),
        .formula = "sqrt(2*{ckpt_s}*{mtbf_h}*3600)/60",
        .convention = "Young: sqrt(2 C MTBF)",
        .note = "24 h and 98 s give 68.59 min; 68 and 68.5 are roundings",
    },
    {
        .name = "young_waste_pct",
        .summary = "share of time lost to checkpoints and failures at the best interval",
        .unit = "%",
        .inputs = {IN_MTBF, IN_CKPT_S},
        .function = CALC_CALL(plan_young_waste),
        .formula = "(sqrt(2*{ckpt_s}*{mtbf_h}*3600)/2 + "
                   "{ckpt_s}*{mtbf_h}*3600/sqrt(2*{ckpt_s}*{mtbf_h}*3600))/({mtbf_h}*3600)*100",
        .convention = "(interval/2 + C MTBF/interval)/MTBF; at the optimum both terms are equal; recovery not included",
        .note = "",
    },
    {
        .name = "ckpt_overhead_pct",
        .summary = "share of time spent writing checkpoints",
        .unit = "%",
        .inputs = {IN_CKPT_S, IN("interval_min", "min", POSITIVE, "time between checkpoints")},
        .function = CALC_CALL(plan_checkpoint_overhead),
        .formula = "{ckpt_s}/({interval_min}*60)*100",
        .convention = "C / interval; training waits for the write",
        .note = "",
    },
    {
        .name = "steps_per_interval",
        .summary = "steps between checkpoints",
        .unit = "steps",
        .inputs = {IN("interval_min", "min", POSITIVE, "time between checkpoints"),
                   IN("step_s", "s", POSITIVE, "step time")},
        .function = CALC_CALL(plan_steps_per_interval),
        .formula = "{interval_min}*60/{step_s}",
        .convention = "not rounded",
        .note = "",
    },
    {
        .name = "crash_cost_usd",
        .summary = "money lost per crash",
        .unit = "USD",
        .inputs = {IN_GPUS, IN("usd_h", "USD/h", NUMBER, "price of a GPU-hour"),
                   IN("interval_min", "min", POSITIVE, "time between checkpoints"),
                   IN("recovery_s", "s", NUMBER, "time to read the checkpoint and restart")},
        .function = CALC_CALL(plan_crash_cost),
        .formula = "{n_gpus}*{usd_h}*({interval_min}/2/60 + {recovery_s}/3600)",
        .convention = "half an interval of work on average, plus recovery",
        .note = "512 GPUs at 2 USD, 68 min and 98 s cost 608 USD; 618 in the source cannot be derived from its inputs",
    },
};

#define IN_RUN_COST IN("run_cost_usd", "USD", NUMBER, "cost of the run")
#define IN_NODE_USD IN("usd_per_node_hour", "USD/h", NUMBER, "price of a node-hour")

static const CalcQuantity cost_table[] = {
    {
        .name = "node_cost_usd",
        .summary = "cost of whole days on a node",
        .unit = "USD",
        .inputs = {IN("days_whole", "d", WHOLE, "whole days"), IN_NODE_USD},
        .function = CALC_CALL(plan_node_cost),
        .formula = "{days_whole}*24*{usd_per_node_hour}",
        .convention = "days rounded before the price; the price is of the whole node",
        .note = "rounding 22.2 days to 22 first makes it 1 % low: node_cost_from_hours does not round",
    },
    {
        .name = "node_cost_from_hours",
        .summary = "cost of hours on a node",
        .unit = "USD",
        .inputs = {IN("hours", "h", NUMBER, "hours"), IN_NODE_USD},
        .function = CALC_CALL(plan_node_cost),
        .formula = "{hours}*{usd_per_node_hour}",
        .convention = "not rounded; the price is of the whole node",
        .note = "",
    },
    {
        .name = "gpu_cost_usd",
        .summary = "rent of GPUs for days",
        .unit = "USD",
        .inputs = {IN_GPUS, IN("days", "d", NUMBER, "days"),
                   IN("usd_per_gpu_hour", "USD/h", NUMBER, "price of a GPU-hour")},
        .function = CALC_CALL(plan_gpu_cost),
        .formula = "{n_gpus}*{days}*24*{usd_per_gpu_hour}",
        .convention = "all GPUs for the whole time",
        .note = "",
    },
    {
        .name = "electricity_usd",
        .summary = "cost of electricity",
        .unit = "USD",
        .inputs = {IN_GPUS, IN("watts", "W", NUMBER, "power of a GPU"), IN("days", "d", NUMBER, "days"),
                   IN("usd_per_kwh", "USD/kWh", NUMBER, "price"),
                   IN_OR("pue", "", POSITIVE, "power of the building over power of the GPUs", "1")},
        .function = CALC_CALL(plan_electricity_cost),
        .formula = "{n_gpus}*{watts}/1000*{days}*24*{usd_per_kwh}*{pue}",
        .convention = "GPU power alone at pue 1; 1.4 adds cooling, network and hosts",
        .note = "",
    },
    {
        .name = "mfu_gain_saving_usd",
        .summary = "money saved by a relative gain of MFU",
        .unit = "USD",
        .inputs = {IN_RUN_COST, IN("rel_gain", "", FRACTION, "relative gain: 0.01 for 1 %")},
        .function = CALC_CALL(plan_saving_relative),
        .formula = "{run_cost_usd}*{rel_gain}",
        .convention = "1 % RELATIVE (40 to 40.4 %), to first order",
        .note = "\"1 % MFU\" usually means a point (40 to 41 %), which saves more: mfu_pp_saving_usd",
    },
    {
        .name = "mfu_pp_saving_usd",
        .summary = "money saved by a gain of MFU in points",
        .unit = "USD",
        .inputs = {IN_RUN_COST, IN_MFU, IN("pp", "", FRACTION, "gain in points: 0.01 for one")},
        .function = CALC_CALL(plan_saving_points),
        .formula = "{run_cost_usd}*(1 - {mfu}/({mfu} + {pp}))",
        .convention = "one point ABSOLUTE (40 to 41 %): the run gets shorter by 40/41",
        .note = "",
    },
};

const CalcSubject calc_subject_checkpointing = {"Checkpoints and failures", SUBJECT_TABLE(checkpoint_table)};
const CalcSubject calc_subject_cost = {"Cost and energy", SUBJECT_TABLE(cost_table)};
