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

Status ranks_islands(const Config *config, int size, int *islands) {
    *islands = (int)config->diloco.islands;
    if (size % *islands == 0) return NULL;
    return config_blame(
        config, "diloco.islands",
        status_hint(status_usage("diloco.islands = %d, and the number of processes is %d", *islands, size),
                    "start a multiple of %d: hearth train CONFIG --ranks N (or mpirun, srun)", *islands));
}

Status ranks_mesh(const Config *config, int size, Mesh *mesh) {
    const struct {
        const char *key;
        int64_t degree;
    } others[] = {{"parallelism.pipeline", config->parallelism.pipeline},
                  {"parallelism.expert", config->parallelism.expert},
                  {"parallelism.expert_tensor", config->parallelism.expert_tensor},
                  {"parallelism.context", config->parallelism.context}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].degree > 1) return unsupported(config, others[i].key, others[i].degree);
    int64_t tensor = config->parallelism.tensor, data = config->parallelism.data;
    if (data < 0) data = size % tensor == 0 ? size / tensor : 1;
    *mesh = MESH_SINGLE;
    mesh->dp = (int)data;
    mesh->tp = (int)tensor;
    mesh->zero = (int)config->parallelism.zero;
    if (data * tensor == size) return NULL;
    const char *key = tensor > 1 ? "parallelism.tensor" : "parallelism.data";
    if (size == 1)
        return config_blame(
            config, key,
            status_hint(status_usage("%s = %lld needs %lld processes, and this is one", key,
                                     (long long)(tensor > 1 ? tensor : data), (long long)(data * tensor)),
                        "start them with: hearth train CONFIG --ranks %lld (or mpirun, srun)",
                        (long long)(data * tensor)));
    Status status =
        status_usage("parallelism.data x tensor = %lld x %lld makes %lld ranks, and %d processes were started",
                     (long long)data, (long long)tensor, (long long)(data * tensor), size);
    if (size % tensor)
        status = status_hint(status, "start a multiple of %lld processes, or choose a tensor degree that divides %d",
                             (long long)tensor, size);
    else
        status =
            status_hint(status, "set parallelism.data = %lld (or -1: what the others leave), or start %lld processes",
                        (long long)(size / tensor), (long long)(data * tensor));
    return config_blame(config, key, status);
}

// The group of `count` places first, first + stride, ... of this rank's island; NULL for one rank.
static Status open_group(Comm **comm, const Ranks *ranks, Ops *ops, const char *name, int first, int stride,
                         int count) {
    int *members = xmalloc((size_t)count * sizeof *members);
    for (int i = 0; i < count; i++)
        members[i] = ranks_island(ranks) * ranks_of_island(ranks) + first + i * stride;
    Status status = count > 1 ? comm_create(comm, ranks->world, ops, name, members, count) : NULL;
    free(members);
    return status;
}

Status ranks_open(Ranks *ranks, Ops *ops, const LayoutRequest *request) {
    int all = ranks_of_island(ranks);
    if (all == 1) return NULL;
    int tp = ranks->mesh.tp, dp = ranks->mesh.dp, kv_heads = request->config.kv_heads;
    int copies = tp > kv_heads ? tp / kv_heads : 1;
    ModelRanks *groups = &ranks->groups;
    TRY(open_group(&groups->dp, ranks, ops, "dp", ranks->tp_rank, tp, dp));
    TRY(open_group(&groups->tp, ranks, ops, "tp", ranks->dp_rank * tp, 1, tp));
    groups->expert_dp = groups->dp;
    if (request->config.experts && tp > 1) TRY(open_group(&groups->expert_dp, ranks, ops, "experts", 0, 1, all));
    TRY(open_group(&groups->kv, ranks, ops, "kv", ranks_place(ranks) / copies * copies, 1, copies));
    bool sharded = ranks->mesh.zero && dp > 1;
    if (sharded && tp > 1) return open_group(&groups->norms, ranks, ops, "norms", 0, 1, all);
    groups->norms = sharded ? groups->dp : groups->tp;
    return NULL;
}

void ranks_close(Ranks *ranks) {
    ModelRanks *groups = &ranks->groups;
    if (groups->norms != groups->dp && groups->norms != groups->tp) comm_destroy(groups->norms);
    if (groups->expert_dp != groups->dp) comm_destroy(groups->expert_dp);
    comm_destroy(groups->kv);
    comm_destroy(groups->tp);
    comm_destroy(groups->dp);
    *ranks = (Ranks){0};
}

void ranks_broadcast_text(World *world, char **text, int root) {
    if (!world || world->size == 1) return;
    int64_t length = *text ? (int64_t)strlen(*text) : -1;
    world_broadcast(world, &length, sizeof length, root);
    if (world->rank != root) {
        free(*text);
        *text = length >= 0 ? xcalloc((size_t)length + 1, 1) : NULL;
    }
    if (length > 0) world_broadcast(world, *text, (size_t)length, root);
}
