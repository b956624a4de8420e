// Times each op of a training step at the shapes that a model trains with, against its floor: the fewest bytes it must
// move over the rate of a large copy, or its FLOPs over the rate of a large product, both measured first on the same
// device. Which ops and shapes is the record of the step itself (model/step_record.h).
#pragma once

#include "base/status.h"
#include "model/layout.h"

typedef struct BenchOpsRow {
    const char *op;    // name in the table of ops.h
    const char *shape; // for people: "gate_up 32768x960 -> 5120"
    double ms;         // median
    double bytes, flops;
    double floor_ms;
} BenchOpsRow;

typedef struct BenchOps {
    LayoutRequest request;                              // model, batch shape, precision, device
    const char *only;                                   // ops whose name contains it; NULL: all
    bool quick;                                         // small ceilings and short measurements
    void (*row)(void *context, const BenchOpsRow *row); // called as results come, the two ceilings first
    void *context;
} BenchOps;

Status bench_ops(Ops *ops, const BenchOps *bench);
