// Counting floats by their sign, exponent and two bits more.
#include "watch/histogram.h"

#include "base/text.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MANTISSA_SHIFT = 21, BUCKETS_OF_A_SIGN = HISTOGRAM_BUCKETS / 2 };

void histogram_add(Histogram *histogram, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = values[i];
        uint32_t bits;
        if (!isfinite(value)) {
            histogram->not_finite++;
            continue;
        }
        memcpy(&bits, &values[i], sizeof bits);
        histogram->bucket[bits >> MANTISSA_SHIFT]++;
        if (!histogram->count || value < histogram->min) histogram->min = value;
        if (!histogram->count || value > histogram->max) histogram->max = value;
        histogram->count++;
        histogram->sum += value;
        histogram->sum_squares += value * value;
    }
}

// The smallest magnitude of a bucket; that of the one behind the largest finite is infinite.
static double bucket_start(uint32_t index) {
    uint32_t bits = index << MANTISSA_SHIFT;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int histogram_buckets(const Histogram *histogram, double **limits, double **counts) {
    *limits = xmalloc(HISTOGRAM_BUCKETS * sizeof **limits);
    *counts = xmalloc(HISTOGRAM_BUCKETS * sizeof **counts);
    int used = 0;
    int64_t left = histogram->count;
    for (int i = 0; i < HISTOGRAM_BUCKETS && left > 0; i++) { // from the most negative up
        bool negative = i < BUCKETS_OF_A_SIGN;
        uint32_t magnitude = (uint32_t)(negative ? BUCKETS_OF_A_SIGN - 1 - i : i - BUCKETS_OF_A_SIGN);
        double limit = negative ? -bucket_start(magnitude) : bucket_start(magnitude + 1);
        int64_t held = histogram->bucket[(negative ? BUCKETS_OF_A_SIGN : 0) + magnitude];
        if (!isfinite(limit)) limit = copysign(FLT_MAX, limit);
        bool joins = used && held == 0 && (*counts)[used - 1] == 0;
        if (!joins) (*counts)[used++] = (double)held;
        (*limits)[used - 1] = limit;
        left -= held;
    }
    return used;
}
