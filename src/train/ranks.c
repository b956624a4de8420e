#include "train/ranks.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static Status unsupported(const Config *config, const char *key, int64_t degree) {
    return config_blame(
        config, key,
        status_hint(status_usage("%s = %lld: training runs data-parallel and with ZeRO so far; the other "
                                 "degrees can only be planned",
                                 key, (long long)degree),
                    "set it to 1 to train here, or see what it would do: hearth plan"));
}

Status ranks_mesh(const Config *config, int size, Mesh *mesh) {
    const struct {
        const char *key;
        int64_t degree;
    } others[] = {{"parallelism.tensor", config->parallelism.tensor},
                  {"parallelism.pipeline", config->parallelism.pipeline},
                  {"parallelism.expert", config->parallelism.expert},
                  {"parallelism.expert_tensor", config->parallelism.expert_tensor},
                  {"parallelism.context", config->parallelism.context}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].degree > 1) return unsupported(config, others[i].key, others[i].degree);
    int64_t data = config->parallelism.data < 0 ? size : config->parallelism.data;
    *mesh = MESH_SINGLE;
    mesh->dp = (int)data;
    mesh->zero = (int)config->parallelism.zero;
    if (data == size) return NULL;
    if (size == 1)
        return config_blame(config, "parallelism.data",
                            status_hint(status_usage("parallelism.data = %lld needs %lld processes, and this is one",
                                                     (long long)data, (long long)data),
                                        "start them with: hearth train CONFIG --ranks %lld (or mpirun, srun); -1 takes "
                                        "as many as there are",
                                        (long long)data));
    return config_blame(
        config, "parallelism.data",
        status_hint(status_usage("parallelism.data = %lld makes %lld ranks, and %d processes were started",
                                 (long long)data, (long long)data, size),
                    "set parallelism.data = %d (or -1: as many as there are), or start %lld processes", size,
                    (long long)data));
}

char *ranks_device(const World *world, const char *device) {
    bool cuda = strcmp(device, "cuda") == 0 || (strcmp(device, "auto") == 0 && ops_cuda_available());
    if (!world || world->size == 1 || !cuda) return text_copy(device);
    int count = ops_cuda_count();
    return text_format("cuda:%d", count > 0 ? world->local_rank % count : 0);
}

Status ranks_open(Ranks *ranks, World *world, const Mesh *mesh, Ops *ops) {
    *ranks = (Ranks){.world = world, .mesh = *mesh};
    if (!world || world->size == 1) return NULL;
    return comm_create_world(&ranks->dp, world, ops, "dp");
}

void ranks_close(Ranks *ranks) {
    comm_destroy(ranks->dp);
    *ranks = (Ranks){0};
}

void ranks_broadcast_text(World *world, char **text) {
    if (!world || world->size == 1) return;
    int64_t length = *text ? (int64_t)strlen(*text) : -1;
    world_broadcast(world, &length, sizeof length, 0);
    if (world->rank) {
        free(*text);
        *text = length >= 0 ? xcalloc((size_t)length + 1, 1) : NULL;
    }
    if (length > 0) world_broadcast(world, *text, (size_t)length, 0);
}
