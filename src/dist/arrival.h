// Coming together. Before MPI has connected the ranks, each holds a socket whose name says which rank of which job it
// is (an abstract one: it has no file and goes away with the process). When the ranks do not come together in time,
// those of a host ask these names who is here, say who is missing, and end.
#pragma once

#include "base/status.h"

#include <stdbool.h>

// What the launcher has told this process in its environment; -1 where it says nothing.
typedef struct Launch {
    const char *launcher; // "mpirun", "srun"; NULL: started alone
    int rank, size, local_rank, local_size;
    char job[128]; // a name of this job, the same on all of its ranks
} Launch;

Launch launch_read(void);
// RANK, LOCAL_RANK and WORLD_SIZE, where they are set, against what is so.
Status launch_check(int rank, int size, int local_rank);

typedef struct Arrival Arrival;
Arrival *arrival_start(const Launch *launch, double limit);
void arrival_stop(Arrival *arrival); // all are here
