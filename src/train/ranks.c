#include "train/ranks.h"

#include "base/text.h"
#include "ops/cpu/level.h"

#include <stdlib.h>
#include <string.h>

Status ranks_islands(const Config *config, int size, int *islands) {
    *islands = (int)config->diloco.islands;
    if (size % *islands == 0) return NULL;
    return config_blame(
        config, "diloco.islands",
        status_hint(status_usage("diloco.islands = %d, and the number of processes is %d", *islands, size),
                    "start a multiple of %d: hearth train CONFIG --ranks N (or mpirun, srun)", *islands));
}

// A mesh that is not of as many ranks as there are processes.
static Status refuse_product(const Config *config, const Mesh *mesh, int size) {
    const struct {
        const char *key;
        int degree;
    } degrees[] = {{"parallelism.tensor", mesh->tp},
                   {"parallelism.pipeline", mesh->pp},
                   {"parallelism.context", mesh->cp},
                   {"parallelism.data", mesh->dp}};
    const char *key = "parallelism.data";
    int64_t all = mesh_ranks(mesh), others = all / mesh->dp;
    TextBuffer names = {0}, product = {0};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        if (degrees[i].degree == 1 && !(i == 3 && !names.length)) continue;
        if (!names.length) key = degrees[i].key;
        text_buffer_format(&names, "%s%s", names.length ? " x " : "parallelism.",
                           degrees[i].key + strlen("parallelism."));
        text_buffer_format(&product, "%s%d", product.length ? " x " : "", degrees[i].degree);
    }
    Status status;
    if (size == 1)
        status = status_hint(
            status_usage("%s = %s needs %lld processes, and this is one", names.data, product.data, (long long)all),
            "start them with --ranks %lld (or mpirun, srun)", (long long)all);
    else if (size % others)
        status = status_hint(status_usage("%s = %s makes %lld ranks, and %d processes were started", names.data,
                                          product.data, (long long)all, size),
                             "start a multiple of %lld processes, or choose degrees whose product divides %d",
                             (long long)others, size);
    else
        status = status_hint(status_usage("%s = %s makes %lld ranks, and %d processes were started", names.data,
                                          product.data, (long long)all, size),
                             "set parallelism.data = %lld (or -1: what the others leave), or start %lld processes",
                             (long long)(size / others), (long long)all);
    text_buffer_free(&names);
    text_buffer_free(&product);
    return config_blame(config, key, status);
}

Status ranks_mesh(const Config *config, int size, Mesh *mesh) {
    *mesh = (Mesh){.dp = 1,
                   .tp = (int)config->parallelism.tensor,
                   .pp = (int)config->parallelism.pipeline,
                   .ep = (int)config->parallelism.expert,
                   .cp = (int)config->parallelism.context,
                   .etp = (int)config->parallelism.expert_tensor,
                   .zero = (int)config->parallelism.zero};
    int64_t each = mesh_ranks(mesh), data = config->parallelism.data;
    mesh->dp = data >= 0 ? (int)data : size % each == 0 ? (int)(size / each) : 1;
    return mesh_ranks(mesh) == size ? NULL : refuse_product(config, mesh, size);
}

// ---- groups ---------------------------------------------------------------------------------------------------------

static bool same_ranks(const Comm *comm, MeshGroup group) {
    return comm && !comm->lane && comm->size == group.count && comm->ranks[0] == group.first &&
           comm->ranks[1] == group.first + group.stride;
}

// Makes a group of places of this rank's island, unless one of the same ranks is there already; *comm stays NULL for
// one rank.
static Status open_group(Ranks *ranks, Comm **comm, Ops *ops, const char *name, MeshGroup group) {
    if (group.count == 1) return NULL;
    group.first += ranks_island(ranks) * ranks_of_island(ranks);
    for (int i = 0; i < ranks->opened_count; i++)
        if (same_ranks(ranks->opened[i], group)) {
            *comm = ranks->opened[i];
            return NULL;
        }
    int *members = xmalloc((size_t)group.count * sizeof *members);
    for (int i = 0; i < group.count; i++)
        members[i] = group.first + i * group.stride;
    Status status = comm_create(comm, ranks->world, ops, name, members, group.count);
    free(members);
    if (!status) ranks->opened[ranks->opened_count++] = *comm;
    return status;
}

// Between the neighbours of a pipeline, a lane for each direction and kind of pass. All ranks make theirs in the order
// of the stages that they lead from, so that no circle of them waits.
static Status open_lanes(Ranks *ranks, Ops *ops, bool ring) {
    int stages = ranks->mesh.pp, own = ranks->place.pp;
    MeshGroup line = mesh_group(&ranks->mesh, ranks_place(ranks), MESH_PP);
    int island = ranks_rank(ranks) - ranks_place(ranks); // its first rank
    for (int from = 0; from < (ring ? stages : stages - 1); from++) {
        int to = (from + 1) % stages;
        if (own != from && own != to) continue;
        int ends[2] = {island + line.first + from * line.stride, island + line.first + to * line.stride};
        for (int pass = 0; pass < 2; pass++) { // the backward pass runs from `to` to `from`
            bool sends = own == (pass ? to : from);
            Comm **lane = &ranks->groups.lane[pass][sends];
            TRY(comm_create_lane(lane, ranks->world, ops, pass ? "backward" : "forward", ends[pass], ends[!pass]));
            ranks->opened[ranks->opened_count++] = *lane;
        }
    }
    return NULL;
}

// Ranks at both ends of a pipeline hold a tied embedding.
static Status open_ends(Ranks *ranks, Ops *ops) {
    int last = ranks->mesh.pp - 1;
    if (ranks->place.pp != 0 && ranks->place.pp != last) return NULL;
    MeshGroup line = mesh_group(&ranks->mesh, ranks_place(ranks), MESH_PP);
    return open_group(ranks, &ranks->groups.ends, ops, "ends", (MeshGroup){line.first, last * line.stride, 2});
}

Status ranks_open(Ranks *ranks, Ops *ops, const LayoutRequest *request) {
    int place = ranks_place(ranks);
    ranks->place = mesh_place(&ranks->mesh, place);
    if (ranks_of_island(ranks) == 1) return NULL;
    const Mesh *mesh = &ranks->mesh;
    ModelRanks *groups = &ranks->groups;
    const struct {
        Comm **comm;
        const char *name;
        MeshAxis axis;
    } wanted[] = {{&groups->dp, "dp", MESH_DATA},
                  {&groups->tp, "tp", MESH_TP},
                  {&groups->cp, "cp", MESH_CP},
                  {&groups->micro_batch, "micro-batch", MESH_MICRO_BATCH},
                  {&groups->pp, "pp", MESH_PP},
                  {&groups->ep, "ep", MESH_EP},
                  {&groups->etp, "etp", MESH_ETP},
                  {&groups->dispatch, "dispatch", MESH_DISPATCH},
                  {&groups->expert_dp, "experts", MESH_EXPERT_DATA},
                  {&groups->stage, "stage", MESH_STAGE},
                  {&groups->all, "all", MESH_ALL}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        bool of_experts = wanted[i].axis >= MESH_EP && wanted[i].axis <= MESH_STAGE;
        if (of_experts && !request->config.experts) continue;
        TRY(open_group(ranks, wanted[i].comm, ops, wanted[i].name, mesh_group(mesh, place, wanted[i].axis)));
    }
    if (mesh->pp > 1) TRY(open_lanes(ranks, ops, layout_chunks(request) > 1));
    if (mesh->pp > 1 && request->config.tied) TRY(open_ends(ranks, ops));
    int kv_heads = request->config.kv_heads, copies = mesh->tp > kv_heads ? mesh->tp / kv_heads : 1;
    return open_group(ranks, &groups->kv, ops, "kv", (MeshGroup){place / copies * copies, 1, copies});
}

void ranks_close(Ranks *ranks) {
    while (ranks->opened_count)
        comm_destroy(ranks->opened[--ranks->opened_count]);
    *ranks = (Ranks){0};
}

Status ranks_agree_config(World *world, const Config *config) {
    if (!world || world->size == 1) return NULL;
    TextBuffer text = {0};
    config_write(config, &text);
    Status status = world_agree(world, "configuration", text.data, text.length);
    text_buffer_free(&text);
    return status;
}

Status ranks_agree_device(const Ranks *ranks, Ops *ops) {
    if (ranks_of_island(ranks) == 1) return NULL;
    const CpuLevel *level;
    char kind[64] = "GPU";
    if (ops->kind == DEVICE_CPU) {
        TRY(cpu_level(&level));
        const char *bf16 = ops_cpu_bf16(ops);
        snprintf(kind, sizeof kind, "CPU %s%s%s", level->name, bf16 ? " with " : "", bf16 ? bf16 : "");
    }
    Status differs = world_agree(ranks->world, "kind of device", kind, strlen(kind));
    if (!differs) return NULL;
    Status status = status_hint(status_usage("%s", status_message(differs)),
                                "this one is a %s; train.device, HEARTH_CPU and HEARTH_CPU_BF16, the same on all "
                                "ranks, choose what all of them have",
                                kind);
    status_free(differs);
    return status;
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
