// What races of grouped products share: which of their results are looked at, and when there is a race at all.
#pragma once

#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/race.h"

void grouped_race_results(Race *race, const GroupedCall *call); // sets race->results and race->rows
// How many rows are in use, of which results can be compared: where experts are spread over ranks, most of the capacity
// may be unused. 0: too few, the race has been given up. row_count: on the device.
int64_t grouped_race_rows(Ops *ops, const Race *race, const int32_t *row_count);
// Runs the fastest choice. A gradient that is added to is not raced, as that would add many times: it takes what was
// found for the first micro-batch of a step.
void grouped_race_perform(Ops *ops, Race *race, const GroupedCall *call);
