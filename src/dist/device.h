// The device of a rank: each local rank its own GPU.
#pragma once

#include "dist/world.h"
#include "ops/ops.h"

// The ordinal of the GPU that a rank gets on a host that has so many; -1: none. What was opened says Ops.gpu.
int device_of_rank(const char *device, int local_rank, int gpus);
// device: as ops_create takes it. "cuda" and "auto" mean the GPU with the number of the local rank; "cuda:N" is that
// one on every rank. More ranks than GPUs on a host share them in turn, with a warning: for tests.
Status device_open(Ops **ops, const World *world, const char *device);
