#include "base/range.h"

Status check_number(const char *option, double value, double min, double max) {
    if (value >= min && value <= max) return NULL;
    return status_usage("%s must be between %.10g and %.10g, not %.10g", option, min, max, value);
}
