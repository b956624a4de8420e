// The parts of layout_build, by subject. Inside of the layout only.
#pragma once

#include "model/layout.h"

enum { LAYOUT_ALIGN = 256 /* bytes */, PARAM_ALIGN = 128 /* elements */ };

static inline int64_t align_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

Status layout_check_request(const LayoutRequest *request);
void layout_build_params(Layout *layout);
void layout_build_states(Layout *layout);
void layout_build_activations(Layout *layout);
// The next place of an array that grows by doubling: *items has *count elements of `size`, one more on return, cleared.
void *layout_grow(void *items, int *count, size_t size);
// What attention's backward pass is lent at least, 0 where the workspace has as much.
int64_t layout_scratch_least(const LayoutRequest *request);
