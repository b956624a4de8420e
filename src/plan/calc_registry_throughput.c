// Quantities: time to train, tokens in a budget, measured rates.
#include "plan/calc_rows.h"
#include "plan/throughput.h"

#define CONVENTION_TIME "6ND with N as given (active parameters for a MoE), dense peak of the dtype that is used"
#define NOTE_PEAK_1000  "an H100 entered as 1000 TFLOP/s instead of 989.4 makes times 1.1 % optimistic"
#define CONVENTION_STEP "step = accum * c + o: c compute of a micro-step, o paid once per optimizer step"

static const char *remark_two_point(const CalcArgs *args, double value) {
    (void)args;
    return value < 0 ? "negative: the two rates do not fit step = accum * c + o" : NULL;
}

#define IN_TWO_POINT                                                                                          \
    IN("tok_per_micro_global", "tokens", POSITIVE, "tokens per micro-step of all ranks"),                     \
        IN("tok_s_a", "tok/s", POSITIVE, "rate of run a"), IN("accum_a", "", COUNT, "accumulation of run a"), \
        IN("tok_s_b", "tok/s", POSITIVE, "rate of run b"), IN("accum_b", "", COUNT, "accumulation of run b")

static const CalcQuantity table[] = {
    {
        .name = "chinchilla_tokens",
        .summary = "compute-optimal tokens for a model",
        .unit = "tokens",
        .inputs = {IN_PARAMS},
        .function = CALC_CALL(plan_chinchilla_tokens),
        .formula = "20*{params}",
        .convention = "20 tokens per parameter",
        .note = "",
    },
    {
        .name = "train_hours",
        .summary = "hours to train",
        .unit = "h",
        .inputs = {IN_PARAMS, IN_TOKENS, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_train_seconds),
        .formula = "6*{params}*{tokens}/({peak_tflops}*1e12*{n_gpus}*{mfu})/3600",
        .convention = CONVENTION_TIME,
        .note = NOTE_PEAK_1000,
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "train_days",
        .summary = "days to train",
        .unit = "d",
        .inputs = {IN_PARAMS, IN_TOKENS, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_train_seconds),
        .formula = "6*{params}*{tokens}/({peak_tflops}*1e12*{n_gpus}*{mfu})/86400",
        .convention = CONVENTION_TIME,
        .note = NOTE_PEAK_1000,
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "train_months30",
        .summary = "months of 30 days to train",
        .unit = "month",
        .inputs = {IN_PARAMS, IN_TOKENS, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_train_seconds),
        .formula = "6*{params}*{tokens}/({peak_tflops}*1e12*{n_gpus}*{mfu})/86400/30",
        .convention = CONVENTION_TIME "; month = 30 days",
        .note = "a mean month of 30.44 days gives 1.4 % less",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "compute_ms",
        .summary = "compute of one GPU for its tokens of a step",
        .unit = "ms",
        .inputs = {IN_PARAMS, IN("tokens_per_gpu", "tokens", POSITIVE, "tokens per GPU and step"), IN_PEAK, IN_MFU},
        .function = CALC_CALL(plan_compute_seconds),
        .formula = "6*{params}*{tokens_per_gpu}/({peak_tflops}*1e12*{mfu})*1000",
        .convention = CONVENTION_TIME,
        .note = "",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "flop_budget",
        .summary = "FLOPs that fit into a time",
        .unit = "FLOP",
        .inputs = {IN_HOURS, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_flop_budget),
        .formula = "{hours}*3600*{peak_tflops}*1e12*{n_gpus}*{mfu}",
        .convention = "dense peak of the dtype that is used",
        .note = "",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "token_budget",
        .summary = "tokens that fit into a time",
        .unit = "tokens",
        .inputs = {IN_PARAMS, IN_HOURS, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_token_budget),
        .formula = "{hours}*3600*{peak_tflops}*1e12*{n_gpus}*{mfu}/(6*{params})",
        .convention = CONVENTION_TIME,
        .note = "",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "predicted_tok_s",
        .summary = "tokens per second at an assumed MFU",
        .unit = "tok/s",
        .inputs = {IN_FPT, IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_tokens_per_second),
        .formula = "{peak_tflops}*1e12*{n_gpus}*{mfu}/{flops_per_token}",
        .convention = "of all GPUs together; the MFU must be of the same convention as flops_per_token",
        .note = "",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "hours_to_tokens",
        .summary = "hours to see a number of tokens at a measured rate",
        .unit = "h",
        .inputs = {IN_TOKENS, IN_TOK_S},
        .function = CALC_CALL(plan_seconds_for_tokens),
        .formula = "{tokens}/{tok_s}/3600",
        .convention = "tok_s of all GPUs together; rounding only when printed",
        .note = "10B tokens at 59,037 tok/s take 47.05 h; 47.5 h is a slip of the source",
    },
    {
        .name = "tok_s_from_hours",
        .summary = "rate that a deadline needs",
        .unit = "tok/s",
        .inputs = {IN_TOKENS, IN_HOURS},
        .function = CALC_CALL(plan_rate_for_seconds),
        .formula = "{tokens}/({hours}*3600)",
        .convention = "of all GPUs or workers together",
        .note = "",
    },
    {
        .name = "step_seconds",
        .summary = "step time from the rate per GPU",
        .unit = "s",
        .inputs = {IN("global_tokens", "tokens", POSITIVE, "tokens per step of all ranks"), IN_TOK_S_GPU, IN_GPUS},
        .function = CALC_CALL(plan_step_seconds),
        .formula = "{global_tokens}/({tok_s_per_gpu}*{n_gpus})",
        .convention = "torchtitan's tps: global tokens per second divided by all GPUs",
        .note = "",
    },
    {
        .name = "speedup_pct",
        .summary = "gain of one rate over another",
        .unit = "%",
        .inputs = {IN("new", "", NUMBER, "rate afterwards"), IN("old", "", POSITIVE, "rate before")},
        .function = CALC_CALL(plan_relative_gain),
        .formula = "({new}/{old} - 1)*100",
        .convention = "relative gain; negative when the new rate is lower; for times it is the slowdown",
        .note = "",
    },
    {
        .name = "scaling_efficiency_pct",
        .summary = "what n GPUs deliver of n times one GPU",
        .unit = "%",
        .inputs = {IN("tok_s_n", "tok/s", POSITIVE, "rate of n GPUs together"), IN("n", "", COUNT, "GPUs"),
                   IN("tok_s_1", "tok/s", POSITIVE, "rate of one GPU")},
        .function = CALC_CALL(plan_scaling_efficiency),
        .formula = "{tok_s_n}/({n}*{tok_s_1})*100",
        .convention = "against one GPU with the same settings",
        .note = "",
    },
    {
        .name = "step_overhead_two_point",
        .summary = "fixed cost of an optimizer step from two accumulation settings",
        .unit = "s",
        .inputs = {IN_TWO_POINT},
        .rules = {{CALC_RULE_DIFFER, "accum_a", "accum_b"}},
        .function = CALC_CALL(plan_step_overhead),
        .formula = "({tok_per_micro_global}/{tok_s_a} - {tok_per_micro_global}/{tok_s_b})/(1/{accum_a} - 1/{accum_b})",
        .convention = CONVENTION_STEP,
        .note = "o holds all-reduce, optimizer, synchronisation and launches, not all-reduce alone",
        .remark = remark_two_point,
    },
    {
        .name = "micro_compute_two_point",
        .summary = "compute of a micro-step from two accumulation settings",
        .unit = "s",
        .inputs = {IN_TWO_POINT},
        .rules = {{CALC_RULE_DIFFER, "accum_a", "accum_b"}},
        .function = CALC_CALL(plan_micro_seconds),
        .formula = "{tok_per_micro_global}/{tok_s_a} - ({tok_per_micro_global}/{tok_s_a} - "
                   "{tok_per_micro_global}/{tok_s_b})/(1/{accum_a} - 1/{accum_b})/{accum_a}",
        .convention = CONVENTION_STEP,
        .note = "",
        .remark = remark_two_point,
    },
    {
        .name = "predicted_tok_s_accum",
        .summary = "rate with accumulation from the rate without",
        .unit = "tok/s",
        .inputs = {IN("tok_per_micro_global", "tokens", POSITIVE, "tokens per micro-step of all ranks"),
                   IN("tok_s_accum1", "tok/s", POSITIVE, "rate without accumulation"),
                   IN("overhead_s", "s", NUMBER, "part of the step that is paid once per optimizer step"),
                   IN("accum", "", COUNT, "micro-steps per optimizer step")},
        .rules = {{CALC_RULE_AT_MOST, "overhead_s*tok_s_accum1", "tok_per_micro_global"}},
        .function = CALC_CALL(plan_rate_with_accum),
        .formula = "{accum}*{tok_per_micro_global}/({accum}*({tok_per_micro_global}/{tok_s_accum1} - {overhead_s}) + "
                   "{overhead_s})",
        .convention = CONVENTION_STEP,
        .note = "with the all-reduce alone as overhead this is a lower bound: optimizer and launches amortise too",
    },
};

const CalcSubject calc_subject_throughput = {"Time and tokens", SUBJECT_TABLE(table)};
