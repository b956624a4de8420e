// Cases of the mesh fuzzer: a small model, a batch and a mesh, drawn from a seed.
#pragma once

#include "model/model.h"

enum { MESH_CASE_STEPS = 2 };

typedef struct MeshCase {
    uint64_t seed;
    LayoutRequest request; // of rank 0
    int accum;             // micro-batches of a step on each data-parallel rank
    int masked;            // of ten targets, so many are not learned from
    bool uneven;           // and the last micro-batch of a step has none that is
    float z_loss_coef, clip;
    MoeBalance balance;
    bool router_bias;
} MeshCase;

// A case of at most `ranks` ranks in fp32 or fp8; the same for the same seed.
MeshCase mesh_case_draw(uint64_t seed, int ranks, Precision precision);
void mesh_case_print(const MeshCase *c, char *text, size_t size); // one line
int mesh_case_micro_batches(const MeshCase *c);                   // of a step, over all ranks
// Micro-batch `index` of a step, for all ranks that share it: arrays of [micro_batch * seq]. Returns its valid targets.
int64_t mesh_case_batch(const MeshCase *c, int step, int index, int32_t *ids, int32_t *targets, int32_t *doc_start);
