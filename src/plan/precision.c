#include "plan/precision.h"

#include "plan/rounding.h"

double plan_float_min_normal(double bias) {
    return exp2(1 - bias);
}

double plan_float_min_subnormal(double bias, double mantissa_bits) {
    return exp2(1 - bias - mantissa_bits);
}

double plan_float_max(double exponent_max, double significand_max) {
    return significand_max * exp2(exponent_max);
}

double plan_loss_scale(const bool *overflow, size_t steps, double scale, double grow) {
    double good = 0;
    for (size_t i = 0; i < steps; i++) {
        if (overflow[i])
            scale /= 2, good = 0;
        else if (++good >= grow)
            scale *= 2, good = 0;
    }
    return scale;
}

double plan_loss_scale_after_good(double steps, double scale, double grow) {
    return scale * exp2(plan_floor(steps / grow));
}
