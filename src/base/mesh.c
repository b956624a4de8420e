#include "base/mesh.h"

MeshPlace mesh_place(const Mesh *mesh, int rank) {
    int within = rank % mesh_stage_ranks(mesh); // its stage
    MeshPlace place = {.pp = rank / mesh_stage_ranks(mesh), .tp = within % mesh->tp, .data = within / mesh->tp};
    place.cp = place.data % mesh->cp;
    place.dp = place.data / mesh->cp;
    place.etp = within % mesh->etp;
    place.ep = within / mesh->etp % mesh->ep;
    place.copy = within / (mesh->etp * mesh->ep);
    return place;
}

MeshGroup mesh_group(const Mesh *mesh, int rank, MeshAxis axis) {
    MeshPlace at = mesh_place(mesh, rank);
    int stage_ranks = mesh_stage_ranks(mesh), experts = mesh->ep * mesh->etp;
    int stage = at.pp * stage_ranks, sequence = stage + at.dp * mesh->cp * mesh->tp;
    switch (axis) {
    case MESH_DATA: return (MeshGroup){stage + at.tp, mesh->tp, mesh->dp * mesh->cp};
    case MESH_CP: return (MeshGroup){sequence + at.tp, mesh->tp, mesh->cp};
    case MESH_TP: return (MeshGroup){sequence + at.cp * mesh->tp, 1, mesh->tp};
    case MESH_MICRO_BATCH: return (MeshGroup){sequence, 1, mesh->cp * mesh->tp};
    case MESH_PP: return (MeshGroup){rank % stage_ranks, stage_ranks, mesh->pp};
    case MESH_EP: return (MeshGroup){stage + at.copy * experts + at.etp, mesh->etp, mesh->ep};
    case MESH_ETP: return (MeshGroup){stage + at.copy * experts + at.ep * mesh->etp, 1, mesh->etp};
    case MESH_DISPATCH: return (MeshGroup){stage + at.copy * experts, 1, experts};
    case MESH_EXPERT_DATA: return (MeshGroup){stage + at.ep * mesh->etp + at.etp, experts, stage_ranks / experts};
    case MESH_STAGE: return (MeshGroup){stage, 1, stage_ranks};
    case MESH_ALL: break;
    }
    return (MeshGroup){0, 1, (int)mesh_ranks(mesh)};
}

void mesh_place_layers(int places, int layers, int place, int *first, int *count) {
    // Extra layers go to the middle first: place 1, 2, ..., then 0, then the last.
    int base = layers / places, extra = layers % places, start = 0;
    for (int s = 0; s <= place; s++) {
        int order = s == 0 ? places - 2 : s == places - 1 ? places - 1 : s - 1; // in the queue for an extra layer
        if (places == 1) order = 0;
        *first = start;
        *count = base + (order < extra);
        start += *count;
    }
}
