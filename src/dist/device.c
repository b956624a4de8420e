#include "dist/device.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

Status device_open(Ops **ops, const World *world, const char *device) {
    bool choose = strcmp(device, "auto") == 0 || strcmp(device, "cuda") == 0;
    int gpus = choose && world->local_size > 1 ? ops_cuda_count() : 0;
    if (!gpus) return ops_create(ops, device);
    if (world->local_size > gpus && world->local_rank == 0)
        log_warn("%d ranks share the %d GPU%s of %s", world->local_size, gpus, gpus > 1 ? "s" : "",
                 world->hosts[world->rank]);
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", world->local_rank % gpus);
    return ops_create(ops, name);
}
