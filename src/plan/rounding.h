// Floor and ceiling of quotients that should be whole but arrive a few bits beside it (7 / 0.05 = 140 - 2e-14).
#pragma once

#include <float.h>
#include <math.h>

static inline double plan_snap(double value) {
    double near = round(value);
    return fabs(value - near) <= 4 * DBL_EPSILON * fabs(value) ? near : value;
}

static inline double plan_floor(double value) {
    return floor(plan_snap(value));
}

static inline double plan_ceil(double value) {
    return ceil(plan_snap(value));
}
