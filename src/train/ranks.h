// The ranks of a run: which mesh the configuration and the number of processes make, and the groups of this one.
#pragma once

#include "model/model.h"
#include "train/config.h"

typedef struct Ranks {
    World *world;    // not owned; NULL: one process
    int islands;     // of [diloco]: rank = island * ranks of an island + place in it; 0 or 1: all ranks train together
    Mesh mesh;       // of an island; no group of a model reaches beyond it
    MeshPlace place; // in it
    ModelRanks groups;
    Comm *opened[24]; // what the groups are, each once
    int opened_count;
} Ranks;

// As many islands as the configuration says, if so many processes can be shared out to them.
Status ranks_islands(const Config *config, int size, int *islands);
// The mesh of an island of `size` processes. A product of degrees that is not their number is refused with what would
// be right.
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
// The same kind of device on all: ranks that repeat each other's work must round alike, or their weights drift apart
// and their tokens go to different experts.
Status ranks_agree_device(const Ranks *ranks, Ops *ops);

static inline int ranks_of_island(const Ranks *ranks) {
    return ranks->islands > 1 ? ranks_size(ranks) / ranks->islands : ranks_size(ranks);
}
static inline int ranks_island(const Ranks *ranks) {
    return ranks_rank(ranks) / ranks_of_island(ranks);
}
static inline int ranks_place(const Ranks *ranks) { // in the island
    return ranks_rank(ranks) % ranks_of_island(ranks);
}

// From rank `root` to all: a malloc'd text, or NULL.
void ranks_broadcast_text(World *world, char **text, int root);
