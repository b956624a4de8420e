// Quantities: pipeline and tensor parallelism.
#include "plan/calc_rows.h"
#include "plan/pipeline.h"
#include "plan/tensor_parallel.h"

#define CONVENTION_IDEAL "bubble / ideal time, (p-1)/(m v) as in Megatron: a ratio that can pass 100 %"
#define CONVENTION_WALL  "bubble / step time, (p-1)/(m v + p-1): what a clock or a profiler shows"
#define NOTE_SCHEDULES                                                                                          \
    "GPipe and non-interleaved 1F1B have the same bubble (they differ in the stash); the two formulas are two " \
    "denominators, not two schedules"
#define IN_P      IN("p", "", COUNT, "pipeline stages")
#define IN_M      IN("m", "", COUNT, "micro-batches per step")
#define IN_V_OR_1 IN_OR("v", "", COUNT, "virtual stages per rank (interleaving)", "1")
#define IN_ACT_GB IN("act_GB", "GB", NUMBER, "activations of one micro-batch")

static const CalcChoice bubble_choices[] = {
    {"ideal", PLAN_BUBBLE_OF_IDEAL, "({p} - 1)"},
    {"total", PLAN_BUBBLE_OF_WALL, "({p} - 1)*(1 - {limit_pct}/100)"},
    {NULL},
};

static const char *remark_over_100(const CalcArgs *args, double value) {
    (void)args;
    return value > 100
               ? "over 100 %: the stages idle longer than they work; bubble_over_total_pct gives the share of the step"
               : NULL;
}

static char *layer_split(const CalcArgs *args) {
    PlanLayerSplit split = plan_layer_split(calc_arg(args, "layers"), calc_arg(args, "p"));
    if (split.longer == 0) return text_format("%.0fx%.0f", split.shorter, split.least);
    return text_format("%.0fx%.0f+%.0fx%.0f", split.longer, split.most, split.shorter, split.least);
}

static const CalcQuantity pipeline_table[] = {
    {
        .name = "bubble_over_total_pct",
        .summary = "pipeline bubble as a share of the step",
        .unit = "%",
        .inputs = {IN_P, IN_M, IN_V_OR_1},
        .function = CALC_CALL(plan_bubble_of_wall),
        .formula = "({p} - 1)/({m}*{v} + {p} - 1)*100",
        .convention = CONVENTION_WALL,
        .note = NOTE_SCHEDULES,
    },
    {
        .name = "bubble_over_ideal_pct",
        .summary = "pipeline bubble over the time without it",
        .unit = "%",
        .inputs = {IN_P, IN_M, IN_V_OR_1},
        .function = CALC_CALL(plan_bubble_of_ideal),
        .formula = "({p} - 1)/({m}*{v})*100",
        .convention = CONVENTION_IDEAL,
        .note = NOTE_SCHEDULES
        "; p=4, m=12 is 25 % of ideal time, 20 % of the step: the stages work 12/15 = 80 % of it, not 75 %",
        .remark = remark_over_100,
    },
    {
        .name = "min_microbatches",
        .summary = "fewest micro-batches for a bubble below a limit",
        .unit = "microbatches",
        .inputs = {IN_P, IN_V_OR_1, IN("limit_pct", "%", POSITIVE, "bubble that must not be reached"),
                   IN_CHOICE("denom", "bubble over ideal time or over the total step", NULL, bubble_choices)},
        .function = CALC_CALL(plan_min_microbatches),
        .formula = "max(1, floor({denom}/({v}*{limit_pct}/100)) + 1)",
        .convention = "strictly below the limit; ideal: (p-1)/(m v), total: (p-1)/(m v + p-1)",
        .note = "at p=8, 70 micro-batches with v=2 and 35 with v=4 give exactly 5 %, not less",
    },
    {
        .name = "stash_GB",
        .summary = "activations that a pipeline stage keeps",
        .unit = "GB",
        .inputs = {IN("inflight", "", WHOLE, "micro-batches in flight"), IN_ACT_GB},
        .function = CALC_CALL(plan_stash_bytes),
        .formula = "{inflight}*{act_GB}",
        .convention = "in flight: p - s on stage s (from 0) for 1F1B, all m for GPipe",
        .note = "stage 0 of 1F1B holds p micro-batches, not p-1: with p=4 and 2 GB that is 8 GB, a third of GPipe's 24",
    },
    {
        .name = "p2p_GB",
        .summary = "bytes between pipeline stages per step",
        .unit = "GB",
        .inputs = {IN_P, IN_V_OR_1, IN_M,
                   IN("act_GB", "GB", NUMBER, "activations that cross a boundary per micro-batch")},
        .function = CALC_CALL(plan_p2p_bytes),
        .formula = "({p}*{v} - 1)*{m}*2*{act_GB}",
        .convention = "all boundaries together, forward and backward",
        .note = "interleaving with v=4 on p=4 has 15 boundaries instead of 3: 5 times the traffic, not 4",
    },
    {
        .name = "p2p_ms",
        .summary = "time of the bytes between pipeline stages over one link",
        .unit = "ms",
        .inputs = {IN_P, IN_V_OR_1, IN_M,
                   IN("act_GB", "GB", NUMBER, "activations that cross a boundary per micro-batch"), IN_BW},
        .function = CALC_CALL(plan_p2p_seconds),
        .formula = "({p}*{v} - 1)*{m}*2*{act_GB}/{bw_GBps}*1000",
        .convention = "upper bound: everything one after another over a single link",
        .note = "the boundaries use different links: spread over p of them it takes 1/p of this",
    },
    {
        .name = "pp_layer_split",
        .summary = "layers per pipeline stage, as stages x layers",
        .unit = "layers",
        .inputs = {IN("layers", "", COUNT, "layers"), IN_P},
        .rules = {{CALC_RULE_AT_MOST, "p", "layers"}},
        .function = CALC_CALL(layer_split),
        .formula = "{layers} mod {p} stages of floor({layers}/{p}) + 1 layers, the rest of floor({layers}/{p})",
        .convention =
            "14x8+2x7: 14 stages of 8 layers, 2 of 7; the short ones are best first and last (embedding, LM head)",
        .note = "",
    },
    {
        .name = "stage_weight_GB",
        .summary = "weights of a pipeline stage per GPU",
        .unit = "GB",
        .inputs = {IN("per_layer", "params", POSITIVE, "parameters of a layer"),
                   IN("layers", "", COUNT, "layers of the stage"), IN_TP, IN_BYTES_PER},
        .function = CALC_CALL(plan_stage_weight_bytes),
        .formula = "{per_layer}*{layers}*{bytes_per}/{tp}/1e9",
        .convention = "layers only: the first and last stage also hold embedding and LM head; GB = 1e9",
        .note = "405B with its 8 KV heads: 6.38 GB per GPU, not 7.4",
    },
    {
        .name = "dp_degree",
        .summary = "data-parallel ranks of a mesh",
        .unit = "ranks",
        .inputs = {IN("world", "", COUNT, "GPUs"), IN_TP, IN_OR("pp", "", COUNT, "pipeline stages", "1"),
                   IN_OR("cp", "", COUNT, "context-parallel ranks", "1")},
        .rules = {{CALC_RULE_DIVIDES, "world", "tp*pp*cp"}},
        .function = CALC_CALL(plan_dp_degree),
        .formula = "{world}/({tp}*{pp}*{cp})",
        .convention = "world / (TP * PP * CP); expert parallelism uses the data-parallel ranks again",
        .note = "",
    },
};

static char *column_shape(const CalcArgs *args) {
    return text_format("%.0fx%.0f", calc_arg(args, "d_in"), calc_arg(args, "d_out") / calc_arg(args, "tp"));
}

#define IN_MATRIX IN("d_in", "", COUNT, "input features"), IN("d_out", "", COUNT, "output features"), IN_TP
#define IN_ACTIVATION \
    IN("b", "", COUNT, "sequences"), IN("s", "", COUNT, "tokens per sequence"), IN_D, IN_BYTES_PER, IN_TP
#define RULE_COLUMNS \
    { CALC_RULE_DIVIDES, "d_out", "tp" }

static const CalcQuantity tensor_table[] = {
    {
        .name = "tp_col_shape",
        .summary = "shape of a column-parallel shard",
        .unit = "shape",
        .inputs = {IN_MATRIX},
        .rules = {RULE_COLUMNS},
        .function = CALC_CALL(column_shape),
        .formula = "{d_in} x {d_out}/{tp}",
        .convention = "W is [d_in, d_out]; columns are output features",
        .note = "",
    },
    {
        .name = "tp_params",
        .summary = "parameters of a tensor-parallel shard",
        .unit = "params",
        .inputs = {IN_MATRIX},
        .rules = {RULE_COLUMNS},
        .function = CALC_CALL(plan_tp_shard_params),
        .formula = "{d_in}*{d_out}/{tp}",
        .convention = "one matrix without bias",
        .note = "",
    },
    {
        .name = "tp_weight_GB",
        .summary = "weights per GPU under tensor parallelism",
        .unit = "GB",
        .inputs = {IN("layers", "", COUNT, "layers"), IN_D, IN_BYTES_PER, IN_TP},
        .rules = {{CALC_RULE_DIVIDES, "d", "tp"}},
        .function = CALC_CALL(plan_tp_weight_bytes),
        .formula = "{layers}*12*{d}^2*{bytes_per}/{tp}/1e9",
        .convention = "12 d^2 parameters per layer, no embeddings; GB = 1e9",
        .note = "12 d^2 is a rule of thumb: 80 layers of 8192 come to 64.4B, not 70B",
    },
    {
        .name = "tp_allreduce_MB",
        .summary = "bytes each rank sends in one tensor-parallel all-reduce",
        .unit = "MB",
        .inputs = {IN_ACTIVATION},
        .function = CALC_CALL(plan_tp_allreduce_bytes),
        .formula = "2*{b}*{s}*{d}*{bytes_per}*({tp} - 1)/{tp}/1e6",
        .convention = "ring, 2 M (N-1)/N; MB = 1e6 bytes",
        .note = "[1, 4096, 8192] over 8 ranks is 117.4 MB; 56 in the source is one of the two phases, in MiB",
    },
    {
        .name = "tp_allreduce_MiB",
        .summary = "bytes each rank sends in one tensor-parallel all-reduce, in MiB",
        .unit = "MiB",
        .inputs = {IN_ACTIVATION},
        .function = CALC_CALL(plan_tp_allreduce_bytes),
        .formula = "2*{b}*{s}*{d}*{bytes_per}*({tp} - 1)/{tp}/2^20",
        .convention = "ring, 2 M (N-1)/N; MiB = 2^20 bytes",
        .note = "[1, 4096, 8192] over 8 ranks is 112 MiB; 56 is one of the two phases",
    },
    {
        .name = "tp_onephase_MiB",
        .summary = "bytes each rank sends in one phase of a tensor-parallel all-reduce",
        .unit = "MiB",
        .inputs = {IN_ACTIVATION},
        .function = CALC_CALL(plan_tp_phase_bytes),
        .formula = "{b}*{s}*{d}*{bytes_per}*({tp} - 1)/{tp}/2^20",
        .convention =
            "reduce-scatter or all-gather alone (what sequence parallelism calls), M (N-1)/N; MiB = 2^20 bytes",
        .note = "",
    },
    {
        .name = "tp_overhead_pct",
        .summary = "tensor-parallel communication over compute",
        .unit = "%",
        .inputs = {IN("layers", "", COUNT, "layers"),
                   IN("per_layer_fwd", "", COUNT, "all-reduces per layer in the forward pass"),
                   IN("ar_ms", "ms", NUMBER, "one all-reduce"),
                   IN("compute_ms", "ms", POSITIVE, "forward and backward compute")},
        .function = CALC_CALL(plan_tp_overhead),
        .formula = "{layers}*{per_layer_fwd}*2*{ar_ms}/{compute_ms}*100",
        .convention = "of compute, not of the step; backward repeats the forward all-reduces; nothing is hidden",
        .note =
            "with the full volume an all-reduce of the 70B example takes 0.196 ms and the overhead is 20.9 %, not 10 %",
    },
    {
        .name = "q_heads_per_gpu",
        .summary = "query heads per GPU",
        .unit = "heads",
        .inputs = {IN("heads", "", COUNT, "attention heads"), IN_TP},
        .rules = {{CALC_RULE_DIVIDES, "heads", "tp"}},
        .function = CALC_CALL(plan_heads_per_rank),
        .formula = "{heads}/{tp}",
        .convention = "whole heads per rank",
        .note = "",
    },
    {
        .name = "kv_heads_per_gpu",
        .summary = "KV heads per GPU",
        .unit = "heads",
        .inputs = {IN("kv", "", COUNT, "KV heads"), IN_TP},
        .rules = {{CALC_RULE_DIVIDES_EITHER, "kv", "tp"}},
        .function = CALC_CALL(plan_kv_heads_per_rank),
        .formula = "max(1, {kv}/{tp})",
        .convention = "whole heads; with more ranks than heads each head is replicated",
        .note = "",
    },
    {
        .name = "kv_replicas",
        .summary = "copies of each KV head",
        .unit = "copies",
        .inputs = {IN("kv", "", COUNT, "KV heads"), IN_TP},
        .rules = {{CALC_RULE_DIVIDES_EITHER, "kv", "tp"}},
        .function = CALC_CALL(plan_kv_replicas),
        .formula = "max(1, {tp}/{kv})",
        .convention = "1 while there are at least as many heads as ranks",
        .note = "",
    },
};

const CalcSubject calc_subject_pipeline = {"Pipeline parallelism and mesh", SUBJECT_TABLE(pipeline_table)};
const CalcSubject calc_subject_tensor_parallel = {"Tensor parallelism", SUBJECT_TABLE(tensor_table)};
