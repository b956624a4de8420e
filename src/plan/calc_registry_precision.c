// Quantities: number formats and loss scaling.
#include "plan/calc_rows.h"
#include "plan/precision.h"

#include <stdlib.h>
#include <string.h>

static double loss_scale(const CalcArgs *args) {
    const char *trace = args->text[0];
    size_t steps = strlen(trace);
    bool *overflow = xmalloc(steps * sizeof *overflow);
    for (size_t i = 0; i < steps; i++)
        overflow[i] = trace[i] == 'T' || trace[i] == 't';
    double scale = plan_loss_scale(overflow, steps, calc_arg(args, "init"), calc_arg(args, "grow"));
    free(overflow);
    return scale;
}

#define IN_INIT IN("init", "", POSITIVE, "scale at the start")
#define IN_GROW IN("grow", "", COUNT, "steps without overflow before the scale doubles")

static const CalcQuantity table[] = {
    {
        .name = "fp_min_normal",
        .summary = "smallest normal number of a float format",
        .unit = "",
        .inputs = {IN("bias", "", WHOLE, "exponent bias (15 for FP16, 127 for BF16)")},
        .function = CALC_CALL(plan_float_min_normal),
        .formula = "2^(1 - {bias})",
        .convention = "IEEE: the exponent field of the smallest normal number is 1",
        .note = "smaller values do not vanish: subnormals reach further (FP16: 5.96e-8) unless the hardware flushes "
                "them to zero",
    },
    {
        .name = "fp_min_subnormal",
        .summary = "smallest subnormal number of a float format",
        .unit = "",
        .inputs = {IN("bias", "", WHOLE, "exponent bias"), IN("man", "", WHOLE, "mantissa bits")},
        .function = CALC_CALL(plan_float_min_subnormal),
        .formula = "2^(1 - {bias} - {man})",
        .convention = "with gradual underflow",
        .note = "",
    },
    {
        .name = "fp_max",
        .summary = "largest number of a float format",
        .unit = "",
        .inputs = {IN("exp_max", "", WHOLE, "largest exponent of a finite number"),
                   IN_MAX("man_max_frac", "", POSITIVE,
                          "largest significand there (1.9990234375 for FP16, 1.75 for FP8)", 2)},
        .function = CALC_CALL(plan_float_max),
        .formula = "{man_max_frac}*2^{exp_max}",
        .convention = "E4M3 as OCP defines it: no infinity, largest number 448; E5M2: 57344",
        .note = "",
    },
    {
        .name = "loss_scale",
        .summary = "dynamic loss scale after a trace of steps",
        .unit = "",
        .inputs = {IN("steps", "", OVERFLOWS, "one letter per step"), IN_INIT, IN_GROW},
        .function = CALC_CALL(loss_scale),
        .formula = "{init} through {steps}: T halves, {grow} F in a row double",
        .convention =
            "halve on overflow, double after `grow` steps in a row without; an overflow starts the count again",
        .note = "",
    },
    {
        .name = "loss_scale_n_good",
        .summary = "dynamic loss scale after steps without overflow",
        .unit = "",
        .inputs = {IN("n", "", WHOLE, "steps"), IN_INIT, IN_GROW},
        .function = CALC_CALL(plan_loss_scale_after_good),
        .formula = "{init}*2^floor({n}/{grow})",
        .convention = "double after `grow` steps in a row without overflow",
        .note = "",
    },
};

const CalcSubject calc_subject_precision = {"Number formats", SUBJECT_TABLE(table)};
