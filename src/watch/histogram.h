// How values are spread: counts in buckets of four to a power of two, of either sign. A value finds its bucket by the
// bits of its float, so that counting costs about as much as reading.
#pragma once

#include <stdint.h>

enum { HISTOGRAM_BUCKETS = 2048 }; // one for each sign, exponent and first two bits of the mantissa

typedef struct Histogram { // {0} is empty
    int64_t bucket[HISTOGRAM_BUCKETS];
    int64_t count, not_finite; // those that are not finite are in no bucket
    double min, max, sum, sum_squares;
} Histogram;

void histogram_add(Histogram *histogram, const float *values, int64_t count);

// The buckets that have something between them, rising, with neighbours that are empty taken together: *limits are
// their upper ends and *counts what they hold; both malloc'd.
int histogram_buckets(const Histogram *histogram, double **limits, double **counts);
