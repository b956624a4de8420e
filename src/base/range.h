// Numbers of the command line that have a range.
#pragma once

#include "base/status.h"

// A usage error that names the option, unless min <= value <= max; NaN is outside every range.
Status check_number(const char *option, double value, double min, double max);
