#include "dist/device.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static bool leaves_choice(const char *device) {
    return strcmp(device, "auto") == 0 || strcmp(device, "cuda") == 0;
}

int device_of_rank(const char *device, int local_rank, int gpus) {
    return leaves_choice(device) && gpus > 0 ? local_rank % gpus : device_ordinal(device);
}

Status device_open(Ops **ops, const World *world, const char *device) {
    int gpus = leaves_choice(device) && world->local_size > 1 ? ops_cuda_count() : 0;
    if (!gpus) return ops_create(ops, device);
    if (world->local_size > gpus && world->local_rank == 0)
        log_warn("%d ranks share the %d GPU%s of %s", world->local_size, gpus, gpus > 1 ? "s" : "",
                 world->hosts[world->rank]);
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", device_of_rank(device, world->local_rank, gpus));
    return ops_create(ops, name);
}
