// Quantities: batches and gradient accumulation; learning rate, warm-up and loss.
#include "plan/batch.h"
#include "plan/calc_rows.h"
#include "plan/schedule.h"

#define IN_ACCUM    IN("accum", "", COUNT, "micro-steps per optimizer step")
#define IN_DP       IN("dp", "", COUNT, "data-parallel ranks")
#define IN_MICRO_MS IN("micro_ms", "ms", POSITIVE, "forward and backward of one micro-batch")
#define IN_AR_MS    IN("ar_ms", "ms", NUMBER, "one all-reduce")
#define IN_BATCHES  IN("b0", "", POSITIVE, "batch size before"), IN("b1", "", POSITIVE, "batch size after")
#define IN_TARGET                                                                \
    IN("target_tokens", "tokens", POSITIVE, "tokens wanted per optimizer step"), \
        IN("tokens_per_micro", "tokens", POSITIVE, "tokens per micro-step of all ranks")

static const CalcQuantity batch_table[] = {
    {
        .name = "tokens_per_batch",
        .summary = "tokens per optimizer step",
        .unit = "tokens",
        .inputs = {IN_MICRO, IN("n_gpus", "", COUNT, "data-parallel ranks"), IN_SEQ,
                   IN_OR("accum", "", COUNT, "micro-steps per optimizer step", "1")},
        .function = CALC_CALL(plan_tokens_per_batch),
        .formula = "{micro_batch}*{n_gpus}*{seq_len}*{accum}",
        .convention =
            "micro_batch is per data-parallel rank: with tensor parallelism n_gpus is the data-parallel degree",
        .note = "",
    },
    {
        .name = "tokens_seen",
        .summary = "tokens after a number of steps",
        .unit = "tokens",
        .inputs = {IN_MICRO, IN("n_gpus", "", COUNT, "data-parallel ranks"), IN_SEQ, IN("steps", "", WHOLE, "steps")},
        .function = CALC_CALL(plan_tokens_seen),
        .formula = "{micro_batch}*{n_gpus}*{seq_len}*{steps}",
        .convention = "positions, padding included",
        .note = "",
    },
    {
        .name = "batches_floor",
        .summary = "whole batches in a number of tokens",
        .unit = "batches",
        .inputs = {IN_TOKENS, IN("tokens_per_batch", "tokens", POSITIVE, "tokens per batch")},
        .function = CALC_CALL(plan_batches),
        .formula = "floor({tokens}/{tokens_per_batch})",
        .convention = "rounded down; the rest is not a full batch",
        .note = "",
    },
    {
        .name = "optimizer_steps",
        .summary = "optimizer steps in a run",
        .unit = "steps",
        .inputs = {IN("total_tokens", "tokens", POSITIVE, "tokens of the run"),
                   IN("tokens_per_batch", "tokens", POSITIVE, "tokens per optimizer step")},
        .function = CALC_CALL(plan_optimizer_steps),
        .formula = "{total_tokens}/{tokens_per_batch}",
        .convention = "not rounded: the last step may be partial",
        .note = "",
    },
    {
        .name = "optimizer_steps_bsw_equal_buckets",
        .summary = "optimizer steps with a batch-size warm-up",
        .unit = "steps",
        .inputs = {IN("total_tokens", "tokens", POSITIVE, "tokens of the run"),
                   IN("ramp_tokens", "tokens", NUMBER, "tokens of the warm-up"),
                   IN_MAX("ga_max", "", COUNT, "accumulation after the warm-up", 1e6),
                   IN("tokens_per_micro", "tokens", POSITIVE, "tokens per micro-step of all ranks")},
        .rules = {{CALC_RULE_AT_MOST, "ramp_tokens", "total_tokens"}},
        .function = CALC_CALL(plan_optimizer_steps_ramped),
        .formula = "{ramp_tokens}/{ga_max}/{tokens_per_micro}*harmonic({ga_max}) + ({total_tokens} - "
                   "{ramp_tokens})/({ga_max}*{tokens_per_micro})",
        .convention =
            "accumulation 1, 2, ..., ga_max over equal shares of ramp_tokens; harmonic(n) = 1 + 1/2 + ... + 1/n",
        .note = "the source does not state the shape of its ramp; equal shares of tokens are hearth's convention",
    },
    {
        .name = "effective_batch",
        .summary = "sequences per optimizer step",
        .unit = "seq",
        .inputs = {IN_MICRO, IN_ACCUM, IN_DP},
        .function = CALC_CALL(plan_effective_batch),
        .formula = "{micro_batch}*{accum}*{dp}",
        .convention = "micro_batch per data-parallel rank",
        .note = "",
    },
    {
        .name = "required_accum_steps",
        .summary = "accumulation that reaches a batch size",
        .unit = "steps",
        .inputs = {IN("target_batch", "", POSITIVE, "sequences (or tokens) wanted per optimizer step"),
                   IN("micro_batch", "", POSITIVE, "sequences (or tokens) per micro-batch and rank"), IN_DP},
        .function = CALC_CALL(plan_accum_ceil),
        .formula = "ceil({target_batch}/({micro_batch}*{dp}))",
        .convention = "rounded up: the effective batch is at least the target",
        .note = "",
    },
    {
        .name = "accum_for_target_round",
        .summary = "accumulation nearest to a token target",
        .unit = "steps",
        .inputs = {IN_TARGET},
        .function = CALC_CALL(plan_accum_nearest),
        .formula = "max(1, round({target_tokens}/{tokens_per_micro}))",
        .convention = "rounded to the nearest (ties to even): the effective batch may be a little below the target",
        .note = "rounding up, or a target of 2^20, can give one step more",
    },
    {
        .name = "accum_pow2_for_target",
        .summary = "accumulation as a power of two that reaches a token target",
        .unit = "steps",
        .inputs = {IN_TARGET},
        .function = CALC_CALL(plan_accum_pow2),
        .formula = "2^max(0, ceil(log2({target_tokens}/{tokens_per_micro})))",
        .convention = "the next power of two: the effective batch is at least the target",
        .note = "",
    },
    {
        .name = "ga_step_ms",
        .summary = "step time with accumulation",
        .unit = "ms",
        .inputs = {IN_ACCUM, IN_MICRO_MS, IN_AR_MS},
        .function = CALC_CALL(plan_accum_step_seconds),
        .formula = "{accum}*{micro_ms} + {ar_ms}",
        .convention = "one all-reduce per optimizer step, not overlapped",
        .note = "64*120 + 50 = 7730 ms; 7731 in the source is a slip",
    },
    {
        .name = "ga_seq_per_s",
        .summary = "sequences per second with accumulation",
        .unit = "seq/s",
        .inputs = {IN("batch", "", POSITIVE, "sequences per optimizer step"), IN_ACCUM, IN_MICRO_MS, IN_AR_MS},
        .function = CALC_CALL(plan_accum_sequences_per_second),
        .formula = "{batch}/(({accum}*{micro_ms} + {ar_ms})/1000)",
        .convention = "one all-reduce per optimizer step, not overlapped",
        .note = "",
    },
    {
        .name = "ga_comm_saved_ms",
        .summary = "communication that accumulation saves",
        .unit = "ms",
        .inputs = {IN_ACCUM, IN_AR_MS},
        .function = CALC_CALL(plan_accum_comm_saved),
        .formula = "({accum} - 1)*{ar_ms}",
        .convention = "one all-reduce instead of one per micro-step",
        .note = "without accumulation there would also be accum optimizer updates instead of one",
    },
    {
        .name = "ga_comm_fraction_pct",
        .summary = "share of the step that is communication",
        .unit = "%",
        .inputs = {IN_ACCUM, IN_MICRO_MS, IN_AR_MS, IN("ars", "", WHOLE, "all-reduces in the same time")},
        .function = CALC_CALL(plan_accum_comm_fraction),
        .formula = "{ars}*{ar_ms}/({accum}*{micro_ms} + {ars}*{ar_ms})*100",
        .convention = "share of the whole step (not of compute), not overlapped",
        .note = "",
    },
    {
        .name = "ckpt_step_T",
        .summary = "step cost of a larger micro-batch with recomputation",
        .unit = "T",
        .inputs = {IN("target_batch", "", POSITIVE, "sequences per optimizer step"), IN_MICRO, IN_DP,
                   IN("base_micro", "", COUNT, "micro-batch whose step costs T"),
                   IN("recompute", "", POSITIVE, "factor on the time (1.33 for full recomputation)")},
        .function = CALC_CALL(plan_accum_recompute_cost),
        .formula = "ceil({target_batch}/({micro_batch}*{dp}))*{micro_batch}/{base_micro}*{recompute}",
        .convention =
            "in units of T, one micro-step at base_micro; time proportional to tokens; full recomputation +33 %",
        .note = "a larger micro-batch that runs more efficiently is not credited",
    },
};

static const CalcQuantity schedule_table[] = {
    {
        .name = "lr_linear",
        .summary = "learning rate for another batch size, linear rule",
        .unit = "",
        .inputs = {IN("lr", "", NUMBER, "learning rate at b0"), IN_BATCHES},
        .function = CALC_CALL(plan_lr_linear),
        .formula = "{lr}*{b1}/{b0}",
        .convention = "linear in the batch size (Goyal et al.)",
        .note = "with a loss that is a mean, the weight of one token (LR/B) does not change",
    },
    {
        .name = "lr_sqrt",
        .summary = "learning rate for another batch size, square-root rule",
        .unit = "",
        .inputs = {IN("lr", "", NUMBER, "learning rate at b0"), IN_BATCHES},
        .function = CALC_CALL(plan_lr_sqrt),
        .formula = "{lr}*sqrt({b1}/{b0})",
        .convention = "square root of the batch size (usual with Adam)",
        .note = "",
    },
    {
        .name = "warmup_steps",
        .summary = "warm-up steps for a scaled batch",
        .unit = "steps",
        .inputs = {IN_BATCHES},
        .function = CALC_CALL(plan_warmup_steps),
        .formula = "{b1}/{b0}*1000",
        .convention = "heuristic: 1000 steps per factor of batch size",
        .note = "",
    },
    {
        .name = "cosine_lr",
        .summary = "learning rate of a cosine decay at a step",
        .unit = "",
        .inputs = {IN("step", "", NUMBER, "step"), IN("total", "", POSITIVE, "steps of the decay"),
                   IN("lr_max", "", NUMBER, "learning rate at the start"),
                   IN("lr_min", "", NUMBER, "learning rate at the end")},
        .rules = {{CALC_RULE_AT_MOST, "lr_min", "lr_max"}},
        .function = CALC_CALL(plan_lr_cosine),
        .formula = "{lr_min} + ({lr_max} - {lr_min})*(1 + cos(pi*min(1, {step}/{total})))/2",
        .convention = "half a cosine over `total` steps, lr_min afterwards; warm-up not included",
        .note = "decay over the steps that will really be made: a schedule of 100k stopped at 50k is at half, not at "
                "lr_min",
    },
    {
        .name = "perplexity",
        .summary = "perplexity of a loss",
        .unit = "ppl",
        .inputs = {IN("loss", "nats", NUMBER, "mean cross entropy per token")},
        .function = CALC_CALL(plan_perplexity),
        .formula = "exp({loss})",
        .convention = "loss in nats per token",
        .note = "not comparable between tokenizers",
    },
    {
        .name = "initial_loss",
        .summary = "loss of an untrained model",
        .unit = "nats",
        .inputs = {IN_V},
        .function = CALC_CALL(plan_initial_loss),
        .formula = "ln({V})",
        .convention = "uniform prediction: ln V; a little above it is normal, far above points at the initialisation",
        .note = "",
    },
};

const CalcSubject calc_subject_batch = {"Batch and accumulation", SUBJECT_TABLE(batch_table)};
const CalcSubject calc_subject_schedule = {"Learning rate and loss", SUBJECT_TABLE(schedule_table)};
