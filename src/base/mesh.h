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

// Places along the axes of experts, from those along dp * cp and tp: etp varies fastest, then ep. Ranks that have both
// in common hold the same experts; *copy tells them apart, in [0, mesh_expert_data_ranks).
static inline void mesh_expert_place(const Mesh *mesh, int dp_rank, int tp_rank, int *ep_rank, int *etp_rank,
                                     int *copy) {
    int index = dp_rank * mesh->tp + tp_rank;
    *etp_rank = index % mesh->etp;
    *ep_rank = index / mesh->etp % mesh->ep;
    *copy = index / (mesh->etp * mesh->ep);
}

// Key and value heads on one rank: where there are fewer than tensor-parallel ranks, several ranks hold the same one.
static inline int mesh_kv_heads(const Mesh *mesh, int kv_heads) {
    return kv_heads >= mesh->tp ? kv_heads / mesh->tp : 1;
}

// Layers [first, first + count) of a pipeline stage. The first and last stages, which also hold embedding and head,
// take the smaller shares when layers do not divide.
void mesh_stage_layers(const Mesh *mesh, int layers, int stage, int *first, int *count);
