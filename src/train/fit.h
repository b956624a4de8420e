// Whether a run fits its device, decided before anything is allocated: the layout is exact, so this is no estimate.
#pragma once

#include "model/layout.h"
#include "train/config.h"

// Left free on a GPU for what libraries load after the first free-memory reading: kernels, handles, graphs.
#define FIT_CUDA_RESERVE (INT64_C(512) << 20)

typedef struct FitMemory { // of the device, in bytes; free <= 0: not known, and everything fits
    int64_t free, total;
} FitMemory;

typedef struct Fit {
    bool fits;
    int64_t need; // the layout, and the reserve of its device
    // What would fit, when it does not. 0 and negative: nothing of the kind.
    int micro_batch;      // largest one with the recompute mode asked for
    int recompute;        // lightest mode with the micro-batch asked for
    int full_micro_batch; // largest one with full recompute, when neither of the above helps
} Fit;

int64_t fit_reserve(DeviceKind device);
// Error: the request has no layout at all.
Status fit_check(Fit *fit, const LayoutRequest *request, int64_t free_bytes);
// Success when it fits; else a usage error that says what is needed, what is there and which lines would fit, blamed on
// train.micro_batch.
Status fit_require(const Config *config, const LayoutRequest *request, FitMemory memory);
