// Rows of results for a second opinion; see sample.h.
#include "ops/cuda/sample.h"

#include <math.h>
#include <stdlib.h>

static const double SAMPLE_BOUND = 0.03;

void sample_poison(CudaState *state, void *result, int64_t stride, int64_t columns, int64_t rows) {
    CUDA_CHECK(state, cudaMemset2DAsync(result, (size_t)stride * sizeof(bf16), 0xff, (size_t)columns * sizeof(bf16),
                                        (size_t)rows, state->stream));
}

void sample_take(CudaState *state, Sample *sample, int part, const void *from, int64_t stride, int64_t columns,
                 int64_t rows) {
    // An odd step, so that the rows fall on all places of sequences and tiles: a multiple of the sequence length would
    // see only first tokens, whose dQ is zero.
    int64_t step = rows > SAMPLE_ROWS ? (rows / SAMPLE_ROWS - 1) | 1 : 1,
            taken = rows > SAMPLE_ROWS ? SAMPLE_ROWS : rows;
    const bf16 *first = (const bf16 *)from + (rows - 1 - (taken - 1) * step) * stride; // up to the last row
    size_t width = (size_t)columns * sizeof(bf16), pitch = (size_t)(stride * step) * sizeof(bf16);
    sample->count[part] = (size_t)(columns * taken);
    sample->part[part] = xmalloc(sample->count[part] * sizeof(bf16));
    CUDA_CHECK(state, cudaMemcpy2DAsync(sample->part[part], width, first, pitch, width, (size_t)taken,
                                        cudaMemcpyDeviceToHost, state->stream));
}

void sample_free(Sample *sample) {
    for (int i = 0; i < SAMPLE_PARTS; i++)
        free(sample->part[i]);
}

double sample_difference(const Sample *got, const Sample *wanted) {
    double worst = 0;
    for (int part = 0; part < SAMPLE_PARTS; part++) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < wanted->count[part]; i++) {
            double x = bf16_to_f32(got->part[part][i]), y = bf16_to_f32(wanted->part[part][i]);
            difference += (x - y) * (x - y);
            size += y * y;
        }
        double relative = difference == 0 ? 0 : sqrt(difference / size);
        if (isnan(relative)) return relative;
        if (relative > worst) worst = relative;
    }
    return worst;
}

bool sample_sound(const Sample *sample) {
    return !isnan(sample_difference(sample, sample));
}

bool sample_agrees(CudaState *state, const Sample *got, const Sample *wanted, const char *what, int choice) {
    double difference = sample_difference(got, wanted);
    if (difference <= SAMPLE_BOUND) return true;
    if (!sample_sound(wanted)) return false; // the inputs are broken, so no kernel can be judged
    state->disagreements++;
    log_warn("%s: kernel %d differs by %.2g from the plain way and is not used; please report this", what, choice,
             difference);
    return false;
}
