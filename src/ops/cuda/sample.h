// A second opinion on kernels that are raced on the run's own data: a few rows of every result must agree with those of
// the plainest way to compute it. bf16 results of right kernels differ by about 3e-3 of their norm. Codes of FP8 are
// made of such results and differ where a step of bf16, 1/16 of theirs, crosses their middle, as some of them do: by up
// to 2e-2.
#pragma once

#include "ops/cuda/cuda.h"

enum { SAMPLE_ROWS = 64, SAMPLE_PARTS = 3 };

typedef struct Sample {
    void *part[SAMPLE_PARTS]; // rows of each result, on the host; unused parts are NULL
    size_t count[SAMPLE_PARTS];
    DType dtype[SAMPLE_PARTS]; // bf16 or e4m3
} Sample;

// NaN into a result of `columns` elements a row, so that what a kernel leaves unwritten shows.
void sample_poison(CudaState *state, void *result, DType dtype, int64_t stride, int64_t columns, int64_t rows);
// SAMPLE_ROWS rows (or all) of a result, evenly spread. The copy is there when the stream has been synchronised.
void sample_take(CudaState *state, Sample *sample, int part, const void *from, DType dtype, int64_t stride,
                 int64_t columns, int64_t rows);
void sample_free(Sample *sample);

// The largest relative difference of a part, by norm; NaN when a result is.
double sample_difference(const Sample *got, const Sample *wanted);
// Whether there is no NaN in it.
bool sample_sound(const Sample *sample);
// Whether they are near enough for two right kernels; warns about `what` otherwise, and counts it.
bool sample_agrees(CudaState *state, const Sample *got, const Sample *wanted, const char *what, int choice);
