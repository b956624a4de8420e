// The timeline of a simulated step as an SVG picture: a lane per pipeline stage, gradients reduced below it.
#pragma once

#include "base/text.h"
#include "plan/simulate.h"

void timeline_svg(const SimulateResult *result, TextBuffer *out);
