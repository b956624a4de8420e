// The energy counters of a CPU's packages and their memory, as Linux shows them (RAPL, of Intel and of AMD).
#pragma once

#include "base/status.h"

typedef struct Rapl Rapl;

// folder NULL: /sys/class/powercap. None there that can be read is an error that says what would be one.
Status rapl_open(Rapl **rapl, const char *folder);
void rapl_close(Rapl *rapl);
const char *rapl_zones(const Rapl *rapl); // "package-0, dram"
// J of all zones since they were opened. The counters begin again at 0 when they are full, which takes minutes: it is
// to be read more often than that.
Status rapl_read(Rapl *rapl, double *joules);
