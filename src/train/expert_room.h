// Room for the rows of experts that are spread over ranks. There is room for a multiple of what each rank gets when all
// experts are equally busy (parallelism.expert_headroom); a step that needs more is refused by the guard on all ranks,
// and what follows is here: more room, and the same step again. Nothing is lost, and no token is left out.
#pragma once

#include "model/model.h"

// what: "step 12", for the log. rows_needed: the most of all ranks, the same number on each.
Status expert_room_grow(Model *model, const char *what, int64_t rows_needed);
