// Rows of results for a second opinion; see sample.h.
#include "ops/cuda/sample.h"

#include <math.h>
#include <stdlib.h>

static const double SAMPLE_BOUND = 0.03;

void sample_poison(CudaState *state, void *result, DType dtype, int64_t stride, int64_t columns, int64_t rows) {
    size_t size = dtype_size(dtype);
    CUDA_CHECK(state, cudaMemset2DAsync(result, (size_t)stride * size, 0xff, (size_t)columns * size, (size_t)rows,
                                        state->stream));
}

void sample_take(CudaState *state, Sample *sample, int part, const void *from, DType dtype, int64_t stride,
                 int64_t columns, int64_t rows) {
    // An odd step, so that the rows fall on all places of sequences and tiles: a multiple of the sequence length would
    // see only first tokens, whose dQ is zero.
    int64_t step = rows > SAMPLE_ROWS ? (rows / SAMPLE_ROWS - 1) | 1 : 1,
            taken = rows > SAMPLE_ROWS ? SAMPLE_ROWS : rows;
    size_t size = dtype_size(dtype), width = (size_t)columns * size, pitch = (size_t)(stride * step) * size;
    const char *first =
        (const char *)from + (size_t)((rows - 1 - (taken - 1) * step) * stride) * size; // to the last row
    sample->dtype[part] = dtype;
    sample->count[part] = (size_t)(columns * taken);
    sample->part[part] = xmalloc(sample->count[part] * size);
    CUDA_CHECK(state, cudaMemcpy2DAsync(sample->part[part], width, first, pitch, width, (size_t)taken,
                                        cudaMemcpyDeviceToHost, state->stream));
}

void sample_free(Sample *sample) {
    for (int i = 0; i < SAMPLE_PARTS; i++)
        free(sample->part[i]);
}

static double value_at(const Sample *sample, int part, size_t i) {
    const void *values = sample->part[part];
    if (sample->dtype[part] == DTYPE_BF16) return bf16_to_f32(((const bf16 *)values)[i]);
    return fp8_to_f32(((const uint8_t *)values)[i], sample->dtype[part]);
}

double sample_difference(const Sample *got, const Sample *wanted) {
    double worst = 0;
    for (int part = 0; part < SAMPLE_PARTS; part++) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < wanted->count[part]; i++) {
            double x = value_at(got, part, i), y = value_at(wanted, part, i);
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
