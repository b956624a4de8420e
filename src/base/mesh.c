#include "base/mesh.h"

void mesh_stage_layers(const Mesh *mesh, int layers, int stage, int *first, int *count) {
    // Extra layers go to the middle stages first: stage 1, 2, ..., then 0, then the last.
    int stages = mesh->pp, base = layers / stages, extra = layers % stages, start = 0;
    for (int s = 0; s <= stage; s++) {
        int order = s == 0 ? stages - 2 : s == stages - 1 ? stages - 1 : s - 1; // place in the queue for an extra layer
        if (stages == 1) order = 0;
        *first = start;
        *count = base + (order < extra);
        start += *count;
    }
}
