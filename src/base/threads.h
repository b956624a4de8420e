// Threads: one pool of pthreads for all host loops (not OpenMP: ThreadSanitizer can see it, clang and gcc behave alike,
// and the same threads run BLAS tiles and plain loops without two pools spinning against each other).
//
// Work is cut into chunks of a fixed size, which does not depend on the number of threads; threads take the next chunk
// as they come free. So a loop whose chunks are independent gives the same bits on any number of threads.
#pragma once

#include "base/status.h"

#include <pthread.h>
#include <stdint.h>

// Called once before the first loop; 0 means HEARTH_THREADS, or else the number of cores. Later calls change it.
void threads_set(int count);
// HEARTH_THREADS, which says how many there are where nothing else does, is a whole number from 1 to 256.
Status threads_check_environment(void);
int threads_count(void);
int threads_cores(void); // cores this process may run on

// Handles [begin, end); worker is in [0, threads_count()) and identifies per-thread scratch.
typedef void ThreadsTask(void *context, int64_t begin, int64_t end, int worker);

// Runs task over [0, count) in chunks of `chunk` items and waits. Called from inside a task, it runs inline. One loop
// runs at a time: a second thread that calls it runs its loop inline too, as worker 0 of its own; such callers must not
// share per-worker scratch with the first.
void threads_for(int64_t count, int64_t chunk, ThreadsTask *task, void *context);

// ---- threads beside the pool, which wait more than they compute ----------------------------------------------------

// With all signals blocked: they are for the program's own threads. 0, or the error of pthread_create.
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
void condition_init(pthread_cond_t *condition); // its limits are times of CLOCK_MONOTONIC
