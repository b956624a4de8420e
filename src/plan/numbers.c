#include "plan/numbers.h"

#include "base/text.h"
#include "plan/memory.h"
#include "plan/throughput.h"

#include <stdarg.h>
#include <stdio.h>

static bool is_moe(const PlanNumbers *n) {
    return n->active < n->parameters;
}

// FP8 is known here only by what it brought others, on top of the bf16 peak.
static double precision_gain(const PlanNumbers *n, const PlanMachine *machine) {
    return n->precision == PRECISION_FP8 ? machine->defaults.fp8_speedup : 1;
}

static double middle(const HardwareTypical *typical) {
    return (typical->low + typical->high) / 2;
}

static Status check_numbers(const PlanNumbers *n, const PlanMachine *machine) {
    if (n->active > n->parameters)
        return status_hint(
            status_usage("%.4g active parameters are more than the %.4g that there are", n->active, n->parameters),
            "--params counts all experts, --active-params those that a token meets");
    if (n->precision == PRECISION_FP8 && machine->gpu.peak[HARDWARE_FP8] <= 0)
        return status_hint(status_usage("%s has no FP8 units", machine->gpu.title), "--precision bf16");
    return NULL;
}

// Tokens/s at a share of the peak.
static double rate_at(const PlanNumbers *n, const PlanMachine *machine, double peak, double mfu) {
    return plan_tokens_per_second(6 * n->active, peak, machine->gpus, mfu);
}

static HardwareDtype numbers_dtype(const PlanNumbers *n, const PlanMachine *machine) {
    const LayoutRequest of_precision = {.precision = n->precision};
    return step_dtype(machine, &of_precision);
}

static double machine_peak(const PlanNumbers *n, const PlanMachine *machine) {
    return n->peak > 0 ? n->peak : machine->gpu.peak[numbers_dtype(n, machine)];
}

static Status set_rate(PlanNumbersReport *r) {
    const PlanNumbers *n = &r->asked;
    r->dtype = numbers_dtype(n, &r->machine);
    r->peak = machine_peak(n, &r->machine);
    r->typical = r->machine.typical[is_moe(n)];
    r->assumed = n->rate <= 0 && n->mfu <= 0;
    if (r->assumed && r->typical.high <= 0)
        return status_hint(status_usage("the catalogue has no typical MFU for this machine"), "--mfu 0.35");
    r->rate_source = n->rate > 0 ? PLAN_RATE_MEASURED : PLAN_RATE_MFU;
    double gain = precision_gain(n, &r->machine);
    r->rate = n->rate > 0  ? n->rate
              : n->mfu > 0 ? rate_at(n, &r->machine, r->peak, n->mfu)
                           : gain * rate_at(n, &r->machine, r->peak, middle(&r->typical));
    r->mfu = plan_mfu_6n(n->active, r->rate, r->peak, r->machine.gpus);
    return NULL;
}

static void set_memory(PlanNumbersReport *r) {
    r->state_bytes = plan_zero_state_bytes(r->asked.parameters, 0, 1);
    r->state_bytes_sharded = plan_zero_state_bytes(r->asked.parameters, 3, r->machine.gpus);
    r->fits = r->state_bytes_sharded <= r->machine.gpu.memory;
}

// Other machines reach as much above or below what is typical of their class as this one does of its own.
static void try_numbers(PlanNode *row, const PlanMachine *machine, const void *context) {
    const PlanNumbersReport *r = context;
    const PlanNumbers *n = &r->asked;
    HardwareTypical typical = machine->typical[is_moe(n)];
    bool able = n->precision != PRECISION_FP8 || machine->gpu.peak[HARDWARE_FP8] > 0;
    row->fits = able && plan_zero_state_bytes(n->parameters, 3, machine->gpus) <= machine->gpu.memory;
    double peak = row->here ? r->peak : machine->gpu.peak[numbers_dtype(n, machine)];
    bool known = typical.high > 0 && r->typical.high > 0;
    row->mfu = r->mfu * (known ? middle(&typical) / middle(&r->typical) : 1);
    row->rate = rate_at(n, machine, peak, row->mfu);
}

static void add_warning(PlanNumbersReport *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_warning(PlanNumbersReport *r, const char *format, ...) {
    if (r->warning_count == PLAN_WARNINGS_MAX) return;
    va_list args;
    va_start(args, format);
    vsnprintf(r->warnings[r->warning_count++], PLAN_TEXT_MAX, format, args);
    va_end(args);
}

static void set_warnings(PlanNumbersReport *r) {
    bool fp8 = r->asked.precision == PRECISION_FP8;
    if (!r->fits)
        add_warning(r, "does not fit: 16 bytes per parameter are %.0f %% of the memory of all devices together",
                    100 * r->state_bytes_sharded / r->machine.gpu.memory);
    if (r->mfu > 1 && !fp8)
        add_warning(r, "MFU %.0f %% is above the peak: the rate, the peak or the parameters are wrong", 100 * r->mfu);
    else if (r->typical.high > 0 && r->mfu > 1.25 * r->typical.high && !fp8)
        add_warning(r, "MFU %.0f %% is more than others reach on such machines: %.0f to %.0f %%", 100 * r->mfu,
                    100 * r->typical.low, 100 * r->typical.high);
    if (r->state_bytes > r->machine.gpu.memory && r->fits)
        add_warning(r, "the states do not fit on one device: they must be cut over devices (ZeRO, tensor or pipeline)");
}

Status plan_numbers(PlanNumbersReport *report, const Hardware *hardware, const PlanMachine *machine,
                    const PlanNumbers *numbers) {
    *report = (PlanNumbersReport){.machine = *machine, .asked = *numbers};
    PlanNumbers *n = &report->asked;
    if (n->active <= 0) n->active = n->parameters;
    TRY(check_numbers(n, machine));
    TRY(set_rate(report));
    report->budget = plan_budget(machine, &(PlanBudgetRequest){.parameters = n->parameters,
                                                               .active = n->active,
                                                               .tokens = n->tokens,
                                                               .rate = report->rate,
                                                               .mtbf_hours = n->mtbf_hours,
                                                               .checkpoints = n->checkpoints});
    if (report->assumed) {
        report->seconds_low = report->budget.seconds * middle(&report->typical) / report->typical.low;
        report->seconds_high = report->budget.seconds * middle(&report->typical) / report->typical.high;
    }
    set_memory(report);
    report->hours_tokens = n->hours > 0 ? report->rate * n->hours * 3600 : 0;
    if (n->precision == PRECISION_BF16 && machine->gpu.peak[HARDWARE_FP8] > 0)
        report->fp8_seconds = report->budget.seconds / machine->defaults.fp8_speedup;
    plan_nodes(&report->nodes, hardware, machine, report->budget.tokens, try_numbers, report);
    set_warnings(report);
    return NULL;
}
