// This process among its peers: how many ranks there are, which one this is, where they run, and what happens when one
// of them fails. A process that was started alone is a world of one rank, for which nothing is started and everything
// below returns at once; under mpirun or srun the ranks are those of MPI.
//
// Faults. Beside MPI the ranks keep a small channel of their own (TCP to rank 0, dist/watch.h), over which each says
// what it is doing. So a rank that died, stopped or never came to a collective is named, with the operation, the group
// and the step, instead of being waited for; a rank that fails on purpose (world_abort) ends the job with its message.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Who carries what comm.h sends. Auto: NCCL between ranks that have a GPU each, MPI otherwise.
typedef enum CommBackend { COMM_AUTO, COMM_MPI, COMM_NCCL } CommBackend;

typedef struct WorldOptions {
    double start_seconds; // how long the ranks may take to come together (0: 60)
    double watch_seconds; // how long a collective may take (0: 300)
    CommBackend backend;
} WorldOptions;

typedef struct WorldState WorldState; // dist's own

typedef struct World {
    int size, rank;
    int local_size, local_rank; // among the ranks of this host
    const char *const *hosts;   // [size]: the host of each rank
    WorldState *state;          // NULL in a world that was started alone
} World;

// The ranks come together: collective over all of them. options may be NULL. One world at a time in a process, and MPI
// allows only one in its life. Contradictions between the launcher, MPI and RANK, LOCAL_RANK, WORLD_SIZE are errors;
// once MPI has connected the ranks, such an error ends the job with its message as world_abort does. Also tells the log
// which rank speaks (log_set_rank).
Status world_open(World **world, const WorldOptions *options);
// Waits for what was started and for all other ranks to come here, and leaves MPI. NULL is allowed.
void world_close(World *world);

// Ends the job: prints the failure once for all ranks that have the same ("rank 2 of 4 on node7: ..."), gives it time
// to be seen, ends the other ranks, and exits with the status's code. Any thread may call it.
_Noreturn void world_abort(World *world, Status status);

// Was this process started by mpirun or srun as one of several ranks? Asks the environment only.
bool world_launched(void);

// ---- small collectives of host values, blocking: for decisions that all ranks take together -----------------------

// all: [size, count], in rank order.
void world_gather_doubles(World *world, const double *mine, int count, double *all);
void world_broadcast(World *world, void *bytes, size_t size, int root);
void world_barrier(World *world);
// Do all ranks have the same bytes? what: "configuration". Every rank gets the same error, which names those that
// differ from rank 0.
Status world_agree(World *world, const char *what, const void *bytes, size_t size);
// A failure of any rank becomes the failure of all, at the same point of the program: NULL only when `status` is NULL
// on every rank. The rank itself gets its own status back, the others one that names it.
Status world_share(World *world, Status status);

// ---- the watchdog ---------------------------------------------------------------------------------------------------

void world_set_step(World *world, int64_t step); // for messages
// Between the two, this thread waits for something that other ranks must take part in without being a collective of
// comm.h: a graph on the GPU, a file of another rank. The time limit holds for it too.
void world_enter(World *world, const char *what); // what: static storage
void world_leave(World *world);
