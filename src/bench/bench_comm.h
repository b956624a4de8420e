// Measures the collectives of dist/comm.h on the ranks at hand: time, algorithm and bus bandwidth by operation and
// size, counted as nccl-tests counts, and messages between two ranks. Collective over the world; every rank gets the
// same rows.
#pragma once

#include "dist/comm.h"

// size: bytes of the whole message: the larger side of a gather or scatter. Algorithm bandwidth is size / time; bus
// bandwidth is what that takes of each rank's link, by the bytes that the operation must move: times 2 (n - 1) / n for
// an all-reduce, (n - 1) / n for gathers, scatters and all-to-all, 1 for the others.
typedef struct BenchCommRow {
    const char *op;
    int64_t bytes;
    double seconds;        // of one, on the slowest rank
    double algorithm, bus; // bytes/s
    int64_t wrong;         // elements that are not what they should be, on all ranks
} BenchCommRow;

typedef struct BenchComm {
    const int64_t *sizes; // in bytes
    int size_count;
    double seconds; // to measure each for
} BenchComm;

// What the planner needs: of the longest and the shortest all-reduce.
typedef struct BenchLink {
    double bus;     // bytes/s
    double latency; // seconds of each of a ring's 2 (n - 1) steps
} BenchLink;

Status bench_comm(Comm *comm, const BenchComm *bench, BenchCommRow **rows, int *count);
BenchLink bench_comm_link(const BenchCommRow *rows, int count, int ranks);
