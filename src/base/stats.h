// Figures that sum up a list of measurements.
#pragma once

#include <stddef.h>

// The middle value, or the mean of the middle two. The values stay as they are; there is at least one.
double double_median(const double *values, size_t count);
