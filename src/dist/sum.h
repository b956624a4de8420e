// Sums and maxima of the ranks' values on the host, in the order of the ranks.
#pragma once

#include "base/dtype.h"

bool sum_knows(DType dtype); // float, bf16, int32
// out[i] = in[0][i] + in[1][i] + ...: float in float, bf16 in float and rounded once, int32 modulo 2^32. out may be one
// of the inputs.
void sum_ranks(void *out, const void *const *in, int ranks, int64_t count, DType dtype);
// The largest instead; NaN where one is NaN. float and int32.
void sum_ranks_max(void *out, const void *const *in, int ranks, int64_t count, DType dtype);
