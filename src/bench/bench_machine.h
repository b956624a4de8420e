// Measures what the planner needs to know about this machine, through the same op table that training uses: products of
// model shapes, grouped products, attention, memory-bound kernels, launch gap and transfers. The result is a TOML text
// that plan/hardware.h reads.
#pragma once

#include "base/status.h"
#include "base/text.h"
#include "ops/ops.h"

// gpu: name of the catalogue entry that the profile refines. quick: fewer shapes and shorter measurements.
Status bench_machine(Ops *ops, const char *gpu, bool quick, TextBuffer *toml);
