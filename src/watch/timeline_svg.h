// The timeline of a simulated step as an SVG picture: a lane per pipeline stage, gradients reduced below it.
#pragma once

#include "base/text.h"
#include "plan/simulate.h"

void timeline_svg(const SimulateResult *result, TextBuffer *out);
// Two of them below each other with their names, on one scale of time.
void timeline_svg_pair(const SimulateResult *const results[2], const char *const names[2], TextBuffer *out);
