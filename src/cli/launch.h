// Ranks on this machine: `--ranks N` starts this very command again under mpirun, N times.
#pragma once

#include "base/status.h"
#include "dist/world.h"

#include <stdbool.h>
#include <stdint.h>

// False: this process is to do the work itself (it is one of the ranks, or there is to be one). True: the ranks have
// run, and *code is what the job ended with. ranks 0: as the launcher says, or one. A launcher that has started another
// number of ranks is an error.
Status launch_ranks(int64_t ranks, bool *launched, int *code);

// The world that this process was started in. HEARTH_WATCH_SECONDS: how long a collective may take before the job ends
// and says who is missing.
Status launch_open_world(World **world);
