// The loader: a thread that reads micro-batches ahead of the training loop into its own buffers. Its state is the index
// of the next sample.
#pragma once

#include "data/loader_samples.h"

typedef struct LoaderBatch {
    int32_t *ids, *targets, *doc_start; // [micro_batch, seq]; doc_start is NULL without mask_documents
    uint64_t first_sample;
    int64_t valid; // targets that count
} LoaderBatch;

typedef struct Loader Loader;

// Micro-batch m of rank r is samples [first + (m * ranks + r) * micro_batch, + micro_batch): whatever the number of
// ranks, the samples of a step are the same. `samples` must outlive the loader.
Status loader_start(Loader **loader, const Samples *samples, int micro_batch, int rank, int ranks, int depth,
                    uint64_t first_sample);
// The next micro-batch; it stays valid until the next call. Adds to *waited the seconds that the caller had to wait.
// After an error (see samples_read) there are no more.
Status loader_next(Loader *loader, const LoaderBatch **batch, double *waited);
void loader_stop(Loader *loader);
