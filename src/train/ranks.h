// The ranks of a run: which mesh the configuration and the number of processes make, and the groups of this one.
#pragma once

#include "model/model.h"
#include "train/config.h"

typedef struct Ranks {
    World *world; // not owned; NULL: one process
    Mesh mesh;
    MeshPlace place;
    ModelRanks groups;
    Comm *opened[16]; // what the groups are, each once
    int opened_count;
} Ranks;

// The mesh of `size` processes. A product of degrees that is not their number is refused with what would be right.
Status ranks_mesh(const Config *config, int size, Mesh *mesh);
// The groups of this rank, as its model has use for them.
Status ranks_open(Ranks *ranks, Ops *ops, const LayoutRequest *request);
void ranks_close(Ranks *ranks);

static inline int ranks_rank(const Ranks *ranks) {
    return ranks->world ? ranks->world->rank : 0;
}
static inline int ranks_size(const Ranks *ranks) {
    return ranks->world ? ranks->world->size : 1;
}

// All ranks must be told the same; files that differ from host to host would show up much later.
Status ranks_agree_config(World *world, const Config *config);

// From rank 0 to all: a malloc'd text, or NULL.
void ranks_broadcast_text(World *world, char **text);
