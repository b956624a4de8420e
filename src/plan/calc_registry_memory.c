// Quantities: model states, ZeRO, activations and the measured memory model.
#include "plan/calc_rows.h"
#include "plan/collectives.h"
#include "plan/memory.h"

#define CONVENTION_STATES                                                                                            \
    "16-bit weights 2 + 16-bit gradients 2 + fp32 master weights 4 + Adam moments 8 = 16 bytes per parameter; GB = " \
    "1e9"
#define IN_BYTES_PARAM IN("bytes_per_param", "", POSITIVE, "bytes per parameter")
#define IN_TWO_POINTS                                                                                            \
    IN("gib_a", "GiB", POSITIVE, "memory of run a"), IN("tok_a", "tokens", POSITIVE, "tokens per GPU of run a"), \
        IN("gib_b", "GiB", POSITIVE, "memory of run b"), IN("tok_b", "tokens", POSITIVE, "tokens per GPU of run b")

static const CalcChoice stage_choices[] = {
    {"0", 0, "16"}, {"1", 1, "4 + 12/{N}"}, {"2", 2, "2 + 14/{N}"}, {"3", 3, "16/{N}"}, {NULL},
};
static const CalcChoice exact_choices[] = {
    {"true", 1, "*({N} - 1)/{N}"},
    {"false", 0, ""},
    {NULL},
};
#define IN_STAGE \
    IN_CHOICE("stage", "ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 weights too", NULL, stage_choices)
#define IN_EXACT IN_CHOICE("exact", "false takes (N-1)/N as 1", NULL, exact_choices)

static double phase_share(const CalcArgs *args) {
    double ranks = calc_arg(args, "N");
    return calc_arg(args, "exact") != 0 ? plan_ring_phase_bytes(1, ranks) : 1;
}

static double zero12_comm(const CalcArgs *args) {
    return plan_zero12_comm_bytes(calc_arg(args, "params_B"), phase_share(args));
}

static double zero3_comm(const CalcArgs *args) {
    return plan_zero3_comm_bytes(calc_arg(args, "params_B"), phase_share(args));
}

static double zero3_comm_seconds(const CalcArgs *args) {
    return plan_transfer_seconds(zero3_comm(args), calc_arg(args, "bw_GBps"));
}

static const char *remark_nothing_fits(const CalcArgs *args, double value) {
    (void)args;
    return value == 0 ? "not even one sequence fits under the limit: shard more, recompute, or shorten the sequence"
                      : NULL;
}

static const CalcQuantity table[] = {
    {
        .name = "bytes_total_GB",
        .summary = "bytes of a model at so many bytes per parameter",
        .unit = "GB",
        .inputs = {IN_PARAMS_B, IN_BYTES_PARAM},
        .function = CALC_CALL(plan_bytes),
        .formula = "{params_B}*{bytes_per_param}",
        .convention =
            "weights alone: 2 (16 bits) or 4 (fp32); mixed precision with Adam 2+4+8 = 14, fp32 with Adam 4+8 = 12, "
            "gradients 2 or 4 more; GB = 1e9",
        .note = "mixed precision saves no state memory: 13B takes 182 against 156 GB without gradients, 208 against "
                "208 with",
    },
    {
        .name = "state_bytes_sharded_GiB",
        .summary = "model states per rank when everything is sharded",
        .unit = "GiB",
        .inputs = {IN_PARAMS, IN_BYTES_PARAM, IN("shards", "", COUNT, "ranks that share the states")},
        .function = CALC_CALL(plan_state_bytes_sharded),
        .formula = "{params}*{bytes_per_param}/{shards}/2^30",
        .convention = "fp32 weights, gradients and two moments are 16 bytes per parameter; GiB = 2^30",
        .note = "",
    },
    {
        .name = "zero_state_GB",
        .summary = "model states per rank under ZeRO",
        .unit = "GB",
        .inputs = {IN_PARAMS_B, IN_STAGE, IN_RANKS},
        .function = CALC_CALL(plan_zero_state_bytes),
        .formula = "{params_B}*({stage})",
        .convention = CONVENTION_STATES,
        .note = "activations come on top: 30B with ZeRO-2 on 16 ranks is 86.25 GB and does not fit in 80 GB, ZeRO-3 is "
                "30 GB; "
                "FSDP's default (FULL_SHARD) is ZeRO-3",
    },
    {
        .name = "zero1_opt_GB",
        .summary = "optimizer states per rank under ZeRO-1",
        .unit = "GB",
        .inputs = {IN("params_gpu", "params", POSITIVE, "parameters on this GPU (after TP and PP)"),
                   IN("dp", "", COUNT, "data-parallel ranks")},
        .function = CALC_CALL(plan_zero1_optimizer_bytes),
        .formula = "12*{params_gpu}/{dp}/1e9",
        .convention = "fp32 master weights 4 + moments 8, sharded over data-parallel ranks only; GB = 1e9",
        .note = "weights and gradients are not sharded: add 2 + 2 bytes per parameter (2 + 4 with fp32 gradients)",
    },
    {
        .name = "zero12_comm_GB",
        .summary = "bytes each rank sends per step under ZeRO-1 or 2",
        .unit = "GB",
        .inputs = {IN_PARAMS_B, IN_RANKS, IN_EXACT},
        .function = CALC_CALL(zero12_comm),
        .formula = "2*2*{params_B}{exact}",
        .convention = "reduce-scatter of gradients and all-gather of weights, 16 bits",
        .note = "",
    },
    {
        .name = "zero3_comm_GB",
        .summary = "bytes each rank sends per step under ZeRO-3",
        .unit = "GB",
        .inputs = {IN_PARAMS_B, IN_RANKS, IN_EXACT},
        .function = CALC_CALL(zero3_comm),
        .formula = "3*2*{params_B}{exact}",
        .convention = "all-gather of weights forward and backward, reduce-scatter of gradients, 16 bits",
        .note = "this is the total; over ZeRO-1/2 it is half as much again (7B: 42 GB, of which 14 GB are extra)",
    },
    {
        .name = "zero3_comm_ms",
        .summary = "communication time per step under ZeRO-3",
        .unit = "ms",
        .inputs = {IN_PARAMS_B, IN_RANKS, IN_BW, IN_EXACT},
        .function = CALC_CALL(zero3_comm_seconds),
        .formula = "3*2*{params_B}{exact}/{bw_GBps}*1000",
        .convention = "three phases, 16 bits, none of it hidden; bandwidth per direction",
        .note = "420 ms for 7B over 64 ranks at 100 GB/s takes (N-1)/N as 1; exactly it is 413 ms",
    },
    {
        .name = "act_tensor_MiB",
        .summary = "bytes of one activation tensor",
        .unit = "MiB",
        .inputs = {IN("b", "", COUNT, "sequences"), IN("s", "", COUNT, "tokens per sequence"), IN_D, IN_BYTES_PER},
        .function = CALC_CALL(plan_activation_tensor_bytes),
        .formula = "{b}*{s}*{d}*{bytes_per}/2^20",
        .convention = "MiB = 2^20 bytes (64 MiB = 67.1 MB)",
        .note = "",
    },
    {
        .name = "act_mem_GB",
        .summary = "activations kept for the backward pass",
        .unit = "GB",
        .inputs = {IN("tensors", "", POSITIVE, "tensors kept per layer"), IN("b", "", COUNT, "sequences"),
                   IN("s", "", COUNT, "tokens per sequence"), IN_D, IN("layers", "", COUNT, "layers"), IN_BYTES_PER},
        .function = CALC_CALL(plan_activation_bytes),
        .formula = "{tensors}*{b}*{s}*{d}*{layers}*{bytes_per}/1e9",
        .convention = "GB = 1e9 bytes; 2 tensors per layer are the inputs of attention and MLP",
        .note = "FP8 instead of 16 bits saves 21.5 GB in the 70B example (42.9 to 21.5); 172 is gigabits",
    },
    {
        .name = "attn_score_bytes",
        .summary = "attention scores that naive attention keeps",
        .unit = "B",
        .inputs = {IN("batch", "", COUNT, "sequences"), IN("heads", "", COUNT, "attention heads"), IN_S, IN_BYTES_PER,
                   IN("layers", "", COUNT, "layers")},
        .function = CALC_CALL(plan_attention_score_bytes),
        .formula = "{batch}*{heads}*{S}*{S}*{bytes_per}*{layers}",
        .convention = "one [batch, heads, S, S] tensor kept per layer",
        .note = "keeping the softmax output as well doubles it; flash attention keeps neither",
    },
    {
        .name = "mem_capacity_GiB",
        .summary = "GPU memory implied by a log line",
        .unit = "GiB",
        .inputs = {IN("used_GiB", "GiB", POSITIVE, "memory used"),
                   IN_MAX("pct", "%", POSITIVE, "the same in percent", 100)},
        .function = CALC_CALL(plan_memory_capacity),
        .formula = "{used_GiB}/({pct}/100)",
        .convention = "reserved memory over total memory, GiB = 2^30",
        .note = "an H200 has 139.7 GiB: \"140 GB\" in the source is GiB",
    },
    {
        .name = "mem_slope_bytes_per_token",
        .summary = "memory per token from two runs",
        .unit = "B/token",
        .inputs = {IN_TWO_POINTS},
        .rules = {{CALC_RULE_DIFFER, "tok_a", "tok_b"}},
        .function = CALC_CALL(plan_memory_slope),
        .formula = "({gib_a} - {gib_b})*2^30/({tok_a} - {tok_b})",
        .convention = "memory = static + slope * tokens per GPU, same recomputation and parallelism in both runs",
        .note = "",
    },
    {
        .name = "mem_static_GiB",
        .summary = "memory without tokens from two runs",
        .unit = "GiB",
        .inputs = {IN_TWO_POINTS},
        .rules = {{CALC_RULE_DIFFER, "tok_a", "tok_b"}},
        .function = CALC_CALL(plan_memory_static),
        .formula = "{gib_a} - ({gib_a} - {gib_b})/({tok_a} - {tok_b})*{tok_a}",
        .convention = "memory = static + slope * tokens per GPU; compare it with the sharded model states",
        .note = "",
    },
    {
        .name = "max_local_batch",
        .summary = "largest micro-batch under a memory limit",
        .unit = "seq",
        .inputs = {IN("capacity_GiB", "GiB", POSITIVE, "memory of the GPU"),
                   IN("limit", "", FRACTION, "share of it that may be used"),
                   IN("static_GiB", "GiB", NUMBER, "memory that does not depend on tokens"),
                   IN("bytes_per_token", "B/token", POSITIVE, "memory per token"), IN_SEQ},
        .function = CALC_CALL(plan_max_local_batch),
        .formula = "max(0, floor(({capacity_GiB}*{limit} - {static_GiB})*2^30/({bytes_per_token}*{seq_len})))",
        .convention = "memory = static + slope * tokens per GPU (mem_static_GiB, mem_slope_bytes_per_token)",
        .note = "",
        .remark = remark_nothing_fits,
    },
};

const CalcSubject calc_subject_memory = {"Memory", SUBJECT_TABLE(table)};
