// hearth bench energy: joules of a model's products and of its training steps, in one precision against another.
#include "bench/bench_energy.h"
#include "base/range.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/bench_commands.h"
#include "model/fp8.h"
#include "watch/machine.h"
#include "watch/rapl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ACCUM_MAX = 1 << 16 };

// ---- where joules come from -----------------------------------------------------------------------------------------

typedef struct EnergyCounter {
    Machine *machine; // a GPU's, by NVML
    Rapl *rapl;       // or a CPU's
} EnergyCounter;

static Status counter_read(void *context, double *joules) {
    EnergyCounter *counter = context;
    if (counter->rapl) return rapl_read(counter->rapl, joules);
    machine_sample(counter->machine); // was it held back by its power limit?
    return machine_joules(counter->machine, joules) ? NULL
                                                    : status_runtime("NVML cannot read the GPU's energy counter");
}

// nvml: its library, which is asked also when a CPU does the work (of the first GPU); NULL: the system's, of a GPU that
// does.
static Status counter_open(EnergyCounter *counter, const Ops *ops, const char *powercap, const char *nvml) {
    *counter = (EnergyCounter){0};
    if (ops->kind == DEVICE_CPU && !nvml) return rapl_open(&counter->rapl, powercap);
    int gpu = ops->gpu >= 0 ? ops->gpu : 0;
    double joules;
    counter->machine = machine_open(&(MachineOptions){.gpu = gpu, .nvml = nvml, .every = 0.05});
    if (machine_joules(counter->machine, &joules)) return NULL;
    return status_hint(status_runtime("GPU %d has no energy counter that NVML can read", gpu),
                       "GPUs from Volta on have one; libnvidia-ml.so.1, which comes with the driver, must be there");
}

static void counter_close(EnergyCounter *counter) {
    machine_close(counter->machine);
    rapl_close(counter->rapl);
}

// Since the last call; NaN: nobody knows.
static double counter_capped(EnergyCounter *counter) {
    return counter->machine ? machine_mean(counter->machine).gpu_power_capped : NAN;
}

static double counter_limit(const EnergyCounter *counter) { // W; 0: not known
    return counter->machine ? machine_power_limit(counter->machine) : 0;
}

// ---- what is printed ------------------------------------------------------------------------------------------------

typedef struct EnergyTable {
    EnergyCounter *counter;
    const char *model;
    bool json;
    int rows;
    const BenchEnergy *bench;
    // Of a micro-step, by format: of products that it and the first one have; all products of the first one.
    double joules[ENERGY_FORMATS_MAX], first_joules[ENERGY_FORMATS_MAX], all;
} EnergyTable;

static void print_json(json_t *json) {
    char *text = json_dumps(json, JSON_REAL_PRECISION(6));
    printf("%s\n", text);
    free(text);
    json_decref(json);
    fflush(stdout);
}

static void print_machine(const EnergyTable *table, const Ops *ops, const MeterWindow *rest) {
    const EnergyCounter *counter = table->counter;
    double watts = rest->joules / rest->seconds, limit = counter_limit(counter);
    const char *source = counter->rapl ? "RAPL" : "NVML", *zones = counter->rapl ? rapl_zones(counter->rapl) : "board";
    if (table->json) {
        json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:f}", "model", table->model, "device", ops->device, "counter",
                                 source, "counts", zones, "rest_w", watts);
        if (limit > 0) json_object_set_new(json, "limit_w", json_real(limit));
        print_json(json);
        return;
    }
    printf("%s on %s: %.1f W at rest, by %s (%s)", table->model, ops->device, watts, source, zones);
    if (limit > 0) printf(", %.0f W at most", limit);
    printf("\n\n");
    fflush(stdout);
}

static int format_index(const BenchEnergy *bench, EnergyFormat format) {
    int index = 0;
    while (strcmp(energy_format_name(bench->formats[index]), energy_format_name(format)) != 0)
        index++;
    return index;
}

static char *share_text(char out[16], double share) { // "" where it is not known
    out[0] = 0;
    if (isfinite(share)) snprintf(out, 16, "%.0f%%", 100 * share);
    return out;
}

static void print_product(void *context, const EnergyRow *row) {
    EnergyTable *table = context;
    int index = format_index(table->bench, row->format);
    double watts = row->joules / row->seconds, tflops = row->flops / row->seconds / 1e12;
    double picojoules = 1e12 * row->joules / row->flops, capped = counter_capped(table->counter);
    double ratio = index && row->first_joules > 0 ? row->joules / row->first_joules : NAN;
    if (index == 0) table->all += row->times * row->joules;
    if (row->first_joules > 0) {
        table->joules[index] += row->times * row->joules;
        table->first_joules[index] += row->times * row->first_joules;
    }
    if (table->json) {
        json_t *json =
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "product", row->product,
                      "direction", row->direction, "precision", energy_format_name(row->format), "m",
                      (json_int_t)row->m, "n", (json_int_t)row->n, "k", (json_int_t)row->k, "groups", row->groups,
                      "calls", row->times, "ms", 1e3 * row->seconds, "tflops", tflops, "watts", watts, "joules",
                      row->joules, "pj_per_flop", picojoules, "counter_moves", row->measured.moves);
        if (isfinite(ratio)) json_object_set_new(json, "ratio", json_real(ratio));
        if (isfinite(capped)) json_object_set_new(json, "power_capped", json_real(capped));
        print_json(json);
    } else {
        char share[16], of_first[16];
        if (table->rows == 0) {
            snprintf(of_first, sizeof of_first, "of %s", energy_format_name(table->bench->formats[0]));
            printf("%-15s %-11s %7s %7s %7s %6s %-9s %9s %8s %6s %6s %9s %9s %8s\n", "product", "direction", "m", "n",
                   "k", "groups", "precision", "ms", "TFLOP/s", "W", "capped", "J/call", "pJ/FLOP", of_first);
        }
        printf("%-15s %-11s %7lld %7lld %7lld %6d %-9s %9.4f %8.4g %6.1f %6s %9.4g %9.4g %8s\n", row->product,
               row->direction, (long long)row->m, (long long)row->n, (long long)row->k, row->groups,
               energy_format_name(row->format), 1e3 * row->seconds, tflops, watts, share_text(share, capped),
               row->joules, picojoules, share_text(of_first, ratio));
        fflush(stdout);
    }
    table->rows++;
}

// The last lines: what another precision saves, in words.
static void print_saving(const EnergyTable *table, EnergyFormat format, double joules, double first, double share,
                         const char *of) {
    const char *name = energy_format_name(format), *other = energy_format_name(table->bench->formats[0]);
    double saved = 1 - joules / first;
    if (table->json) {
        print_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "precision", name, "against", other, "joules", joules,
                             "against_joules", first, "saved", saved, "share", share));
        return;
    }
    printf("\n%s takes %.4g J where %s takes %.4g J for %s: %.1f %% %s", name, joules, other, first, of,
           100 * fabs(saved), saved >= 0 ? "less" : "more");
    if (share < 1 - 1e-9) printf(" (products that %s has; they are %.0f %% of %s's joules)", name, 100 * share, other);
    printf(".\n");
}

static Status run_products(Ops *ops, EnergyTable *table, const char *only) {
    const BenchEnergy *bench = table->bench;
    TRY(bench_energy_products(ops, bench, only, print_product, table));
    bool rounds = false;
    for (int i = 1; i < bench->format_count; i++) {
        if (!(table->first_joules[i] > 0)) continue;
        rounds = rounds || bench->formats[i].precision == PRECISION_FP8;
        print_saving(table, bench->formats[i], table->joules[i], table->first_joules[i],
                     table->first_joules[i] / table->all, "the products of a micro-step");
    }
    if (rounds && !table->json) printf("Rounding to FP8 is not in it; --step has everything.\n");
    return NULL;
}

static void print_step(EnergyTable *table, EnergyFormat format, const EnergyStep *step) {
    double watts = step->joules / step->seconds, limit = counter_limit(table->counter);
    double capped = counter_capped(table->counter), of_limit = limit > 0 ? watts / limit : NAN;
    double kwh = energy_kwh_per_billion(step->joules, step->tokens);
    char fp8[FP8_TEXT] = "", share[16], at_cap[16];
    if (format.precision == PRECISION_FP8) fp8_describe(step->fp8, fp8);
    if (table->json) {
        json_t *json = json_pack(
            "{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:I}", "precision", energy_format_name(format), "step_ms",
            1e3 * step->seconds, "tok_s", step->tokens / step->seconds, "tokens", step->tokens, "watts", watts,
            "joules", step->joules, "joules_per_token", step->joules / step->tokens, "kwh_per_1e9_tokens", kwh,
            "counter_moves", step->measured.moves, "steps", (json_int_t)step->measured.batches);
        if (isfinite(of_limit)) json_object_set_new(json, "of_limit", json_real(of_limit));
        if (isfinite(capped)) json_object_set_new(json, "power_capped", json_real(capped));
        if (fp8[0]) json_object_set_new(json, "fp8", json_string(fp8));
        print_json(json);
        return;
    }
    if (table->rows++ == 0)
        printf("%-9s %10s %11s %8s %9s %7s %10s %10s %12s\n", "precision", "ms/step", "tok/s", "W", "of limit",
               "capped", "J/step", "J/token", "kWh/1e9 tok");
    printf("%-9s %10.2f %11.0f %8.1f %9s %7s %10.4g %10.4g %12.4g\n", energy_format_name(format), 1e3 * step->seconds,
           step->tokens / step->seconds, watts, share_text(share, of_limit), share_text(at_cap, capped), step->joules,
           step->joules / step->tokens, kwh);
    if (fp8[0]) printf("          in FP8: %s\n", fp8);
    if (isfinite(capped) && capped > 0.5) printf("          held back by its power limit\n");
    fflush(stdout);
}

static Status run_steps(Ops *ops, EnergyTable *table, int accum) {
    const BenchEnergy *bench = table->bench;
    double joules[ENERGY_FORMATS_MAX];
    for (int i = 0; i < bench->format_count; i++) {
        EnergyStep step;
        counter_capped(table->counter); // what was before is of no interest
        TRY(bench_energy_step(ops, bench, bench->formats[i], accum, &step));
        print_step(table, bench->formats[i], &step);
        joules[i] = step.joules;
    }
    for (int i = 1; i < bench->format_count; i++)
        print_saving(table, bench->formats[i], joules[i], joules[0], 1, "a step");
    return NULL;
}

// ---- the command ----------------------------------------------------------------------------------------------------

typedef struct EnergyRequest {
    const char *model, *device, *precision, *recompute, *powercap, *nvml, *only;
    int64_t seq, micro_batch, accum, layers;
    double seconds;
    bool step, json;
} EnergyRequest;

static Status request_read(BenchEnergy *bench, const EnergyRequest *asked, const Ops *ops) {
    bool cuda = ops->kind == DEVICE_CUDA;
    LayoutRequest *request = &bench->request;
    int64_t seq = asked->seq ? asked->seq : cuda ? 2048 : 256, rows = asked->micro_batch;
    if (!rows) rows = cuda ? 16 : 4;
    TRY(bench_check_shape(seq, rows));
    *request = (LayoutRequest){.mesh = MESH_SINGLE,
                               .seq = (int)seq,
                               .micro_batch = (int)rows,
                               .device = ops->kind,
                               .threads = threads_count()};
    TRY(recompute_parse(&request->recompute, asked->recompute));
    TRY(energy_formats_parse(bench->formats, &bench->format_count,
                             asked->precision ? asked->precision
                             : cuda           ? "bf16,fp8"
                                              : "fp32,bf16"));
    for (int i = 0; i < bench->format_count; i++)
        if (bench->formats[i].tf32 && !cuda) return status_usage("--precision tf32 is of GPUs; this is a CPU");
    return bench_model_read(&request->config, asked->model, asked->layers);
}

static Status run_energy(const EnergyRequest *asked, Ops *ops) {
    EnergyCounter counter = {0};
    BenchEnergy bench = {.source = {counter_read, NULL, &counter},
                         .seconds = asked->seconds,
                         .warm = fmin(1, asked->seconds),
                         .batch_ms = 20};
    TRY(request_read(&bench, asked, ops));
    EnergyTable table = {.counter = &counter, .model = asked->model, .json = asked->json, .bench = &bench};
    MeterWindow rest;
    Status status = counter_open(&counter, ops, asked->powercap, asked->nvml);
    if (!status) status = meter_rest(&bench.source, fmin(1, asked->seconds), &rest);
    if (!status) {
        print_machine(&table, ops, &rest);
        counter_capped(&counter);
        status = asked->step ? run_steps(ops, &table, (int)asked->accum) : run_products(ops, &table, asked->only);
    }
    counter_close(&counter);
    return status;
}

Status bench_energy_command(int argc, char **argv) {
    EnergyRequest asked = {.model = "smollm-360m", .device = "auto", .recompute = "none", .accum = 1, .seconds = 2};
    const Arg options[] = {
        {"--model", ARG_TEXT, &asked.model, "NAME", "preset, or a directory with a config.json (smollm-360m)"},
        {"--step", ARG_FLAG, &asked.step, NULL, "whole training steps on random tokens instead of single products"},
        {"--precision", ARG_TEXT, &asked.precision, "P,P",
         "of fp32, tf32, bf16, bf16-pure, fp8 and fp16; the others are set against the first (bf16,fp8 on a GPU, "
         "fp32,bf16 on the CPU)"},
        {"--seq", ARG_INT, &asked.seq, "S", "sequence length (2048 on a GPU, 256 on the CPU)"},
        {"--micro-batch", ARG_INT, &asked.micro_batch, "B", "sequences in a micro-batch (16 on a GPU, 4 on the CPU)"},
        {"--accum", ARG_INT, &asked.accum, "A", "micro-batches in a step (1)"},
        {"--recompute", ARG_TEXT, &asked.recompute, "R", "none, selective or full (none)"},
        {"--layers", ARG_INT, &asked.layers, "N", "only the first N layers of the model"},
        {"--seconds", ARG_DOUBLE, &asked.seconds, "S",
         "of each measurement (2); it goes on until the counter has moved ten times"},
        {"--device", ARG_TEXT, &asked.device, "D", "auto, cpu or cuda"},
        {"--powercap", ARG_TEXT, &asked.powercap, "DIR",
         "where Linux shows the energy counters of the CPU (/sys/class/powercap)"},
        {"--nvml", ARG_TEXT, &asked.nvml, "FILE",
         "library to ask for the energy counter of a GPU, on whatever device the work is done (libnvidia-ml.so.1 for "
         "work on a GPU)"},
        {"--json", ARG_FLAG, &asked.json, NULL, "one JSON object a line: the machine, each measurement, what is saved"},
    };
    const ArgCommand command = {
        "hearth bench energy [options] [NAME]",
        "Joules of the products of a model's linear layers (those whose name contains NAME), forward and both "
        "gradients,\nor with --step of whole training steps, from the device's energy counter: a GPU's by NVML, a "
        "CPU's by RAPL.\nWhat the machine takes at rest is measured first and is part of every figure, as is what "
        "else runs on it.",
        options,
        ARG_COUNT(options),
        0,
        1};
    ArgList words;
    bool helped;
    TRY(args_parse(&command, argc, argv, &words, &helped));
    if (words.count > 0) asked.only = words.items[0];
    free(words.items);
    if (helped) return NULL;
    if (asked.step && asked.only)
        return status_usage("--step measures whole steps: \"%s\" names a product", asked.only);
    if (!asked.step && (asked.accum != 1 || strcmp(asked.recompute, "none") != 0))
        return status_usage("--accum and --recompute are of whole steps: add --step");
    TRY(check_number("--accum", (double)asked.accum, 1, ACCUM_MAX));
    TRY(check_number("--layers", (double)asked.layers, 0, MODEL_LAYERS_MAX));
    TRY(check_number("--seconds", asked.seconds, 0.1, 600));
    Ops *ops;
    TRY(ops_create(&ops, asked.device));
    Status status = run_energy(&asked, ops);
    ops_destroy(ops);
    return status;
}
