// The device of a rank: each local rank its own GPU.
#pragma once

#include "dist/world.h"
#include "ops/ops.h"

// device: as ops_create takes it. "cuda" and "auto" mean the GPU with the number of the local rank; "cuda:N" is that
// one on every rank. More ranks than GPUs on a host share them in turn, with a warning: for tests.
Status device_open(Ops **ops, const World *world, const char *device);
