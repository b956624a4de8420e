// Figures that sum up a list of measurements.
#pragma once

#include <stddef.h>

int double_order(const void *a, const void *b); // for qsort
// The middle value, or the mean of the middle two. The values stay as they are; there is at least one.
double double_median(const double *values, size_t count);
