// Joules of the products of a training step and of whole steps, in one precision against another, from a counter of
// the device's energy (bench/meter.h).
#pragma once

#include "bench/bench_step.h"
#include "bench/meter.h"
#include "model/layout.h"

typedef struct EnergyFormat { // what products multiply in
    Precision precision;
    bool tf32; // of PRECISION_FP32
} EnergyFormat;
const char *energy_format_name(EnergyFormat format); // "bf16", "tf32"
// "bf16,fp8": none twice.
enum { ENERGY_FORMATS_MAX = PRECISION_COUNT + 1 };
Status energy_formats_parse(EnergyFormat formats[ENERGY_FORMATS_MAX], int *count, const char *list);

typedef struct BenchEnergy {
    LayoutRequest request; // model, batch shape, device
    EnergyFormat formats[ENERGY_FORMATS_MAX];
    int format_count; // the others are set against the first
    JouleSource source;
    double seconds, warm; // of each measurement, and of the same work before it
    double batch_ms;      // of work between two looks at the counter, at least; products only
} BenchEnergy;

// ---- products -------------------------------------------------------------------------------------------------------

typedef struct EnergyRow {
    const char *product;   // "qkv", "LM head"
    const char *direction; // "forward", "input grad", "weight grad"
    EnergyFormat format;
    int64_t m, n, k;
    int groups;           // experts, each with such a product; 1: a plain one
    double times;         // calls in a micro-step
    double flops;         // of a call
    double seconds;       // of a call
    double joules;        // of a call
    double first_joules;  // of a call in the first precision; 0: it has none
    MeterWindow measured; // in batches of several calls
} EnergyRow;

// The plain products of the model's linear layers, forward and both gradients: those whose name contains `only` (NULL:
// all). Products that training does not run in FP8 are left out of fp8. The operands are random.
Status bench_energy_products(Ops *ops, const BenchEnergy *bench, const char *only,
                             void (*row)(void *context, const EnergyRow *row), void *context);

// ---- whole steps ----------------------------------------------------------------------------------------------------

typedef struct EnergyStep {
    double tokens;          // of a step
    double seconds, joules; // of a step, in steps that follow each other
    MeterWindow measured;   // a batch is a step
    unsigned fp8;           // products that ran in FP8: bits of Fp8Use
} EnergyStep;

Status bench_energy_step(Ops *ops, const BenchEnergy *bench, EnergyFormat format, int accum, EnergyStep *step);

static inline double energy_kwh_per_billion(double joules, double tokens) {
    return joules / tokens * 1e9 / 3.6e6;
}
