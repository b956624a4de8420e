// Trains a case, on one rank or on its mesh, and gathers what came of it.
#pragma once

#include "mesh_case.h"

#include "dist/world.h"

typedef struct MeshTrained {
    double loss[MESH_CASE_STEPS], loss_aux[MESH_CASE_STEPS], norm[MESH_CASE_STEPS];
    // Of all HF tensors, as in a layout of one rank without gaps: [elements]. On rank 0 only.
    float *gradients; // of the first step
    float *weights;   // at the end
} MeshTrained;

void mesh_trained_free(MeshTrained *trained);

// world NULL: the whole model here. Else collective over the ranks of the case's mesh. nudge: moves every initial
// weight by so many units in the last place, up or down as the dice say.
Status mesh_train(const MeshCase *c, World *world, int nudge, MeshTrained *trained);

// The tensors of the case's model in their order, for names and sizes.
typedef struct MeshTensors {
    LayoutSlice *slices; // whole ones
    int64_t *first;      // [count + 1] where each begins
    int count;
} MeshTensors;
Status mesh_tensors_make(MeshTensors *tensors, const LayoutRequest *request);
void mesh_tensors_free(MeshTensors *tensors);
