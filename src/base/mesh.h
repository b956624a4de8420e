// The mesh: how many ranks a run has and along which axes they split the work. Pure arithmetic, used by plan, dist,
// model and train alike, so that all of them mean the same ranks.
//
// ep and etp are not ranks of their own: expert parallelism is folded into the data-parallel ranks (dp * cp), the cut
// of single experts into tp.
#pragma once

#include <stdint.h>

typedef struct Mesh {
    int dp, tp, pp, ep, cp, etp; // degrees; 1 = off
    int zero; // 0..3: nothing, optimizer state, + gradients, + weights sharded over data-parallel ranks
} Mesh;
#define MESH_SINGLE ((Mesh){.dp = 1, .tp = 1, .pp = 1, .ep = 1, .cp = 1, .etp = 1})

static inline int64_t mesh_ranks(const Mesh *mesh) {
    return (int64_t)mesh->dp * mesh->cp * mesh->tp * mesh->pp;
}

// Ranks that hold the same parameter and add up its gradient: of everything but experts, and of an expert's weights.
static inline int64_t mesh_data_ranks(const Mesh *mesh) {
    return (int64_t)mesh->dp * mesh->cp;
}
static inline int64_t mesh_expert_data_ranks(const Mesh *mesh) {
    return mesh_data_ranks(mesh) * mesh->tp / ((int64_t)mesh->ep * mesh->etp);
}

// Ranks of one pipeline stage.
static inline int mesh_stage_ranks(const Mesh *mesh) {
    return mesh->dp * mesh->cp * mesh->tp;
}

// Where a rank stands along every axis. Of the ranks in their order, tp varies fastest, then cp, dp and pp. The same
// ranks of a stage are also counted by etp, then ep, then `copy`, in [0, mesh_expert_data_ranks): those that have ep
// and etp in common hold the same experts.
typedef struct MeshPlace {
    int pp, dp, cp, tp;
    int data; // along dp * cp: which of the ranks with the same weights
    int ep, etp, copy;
} MeshPlace;
MeshPlace mesh_place(const Mesh *mesh, int rank);

// Groups of ranks that differ along one axis, or along two that are neighbours, and are the same along the others.
typedef enum MeshAxis {
    MESH_DATA,        // dp * cp: the same weights, other tokens
    MESH_CP,          // the same sequences, other parts of them
    MESH_TP,          // the same tokens, other shares of every layer
    MESH_MICRO_BATCH, // cp * tp: the ranks that share a micro-batch
    MESH_PP,          // other layers
    MESH_EP,          // other experts
    MESH_ETP,         // other shares of the same experts
    MESH_DISPATCH,    // ep * etp: ranks that have every share of every expert once between them
    MESH_EXPERT_DATA, // the same shares of the same experts
    MESH_STAGE,       // all of a pipeline stage
    MESH_ALL,
} MeshAxis;
typedef struct MeshGroup {
    int first, stride, count; // ranks first, first + stride, ...
} MeshGroup;
MeshGroup mesh_group(const Mesh *mesh, int rank, MeshAxis axis);

// Key and value heads on one rank: where there are fewer than tensor-parallel ranks, several ranks hold the same one.
static inline int mesh_kv_heads(const Mesh *mesh, int kv_heads) {
    return kv_heads >= mesh->tp ? kv_heads / mesh->tp : 1;
}

// Context parallelism cuts a sequence into 2 * cp chunks of equal length. A rank has two of them, one as far from the
// beginning as the other from the end: of all pairs of a token and one before it, every rank has the same share.
static inline int mesh_chunk(const Mesh *mesh, int cp_rank, int place) { // place 0 or 1
    return place == 0 ? cp_rank : 2 * mesh->cp - 1 - cp_rank;
}
static inline int mesh_chunk_tokens(const Mesh *mesh, int seq) {
    return seq / (2 * mesh->cp);
}

// Layers [first, first + count) of one of the places along a pipeline: its stages, or their chunks where each has
// several. The first and last, which also hold embedding and head, take the smaller shares when layers do not divide.
void mesh_place_layers(int places, int layers, int place, int *first, int *count);
