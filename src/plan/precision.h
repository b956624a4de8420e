// Number formats and dynamic loss scaling.
#pragma once

#include <stdbool.h>
#include <stddef.h>

double plan_float_min_normal(double bias); // 2^(1-bias)
double plan_float_min_subnormal(double bias, double mantissa_bits);
double plan_float_max(double exponent_max, double significand_max); // largest significand is below 2

// Halved on overflow, doubled after `grow` steps in a row without one; an overflow starts the count again.
double plan_loss_scale(const bool *overflow, size_t steps, double scale, double grow);
double plan_loss_scale_after_good(double steps, double scale, double grow); // no overflow at all
