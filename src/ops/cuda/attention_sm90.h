// The scratch that attention_sm90_backward needs, as a plain function of sizes: whoever chooses a kernel asks it first.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    SM90_BACKWARD_KEYS = 128,       // that one work item owns
    SM90_BACKWARD_DQ_BYTES = 32768, // one block of dQ: 128 queries of up to 64 columns or 64 of up to 128, in fp32
};

// Queries that are handled together: what the registers of two warpgroups hold beside dK and dV.
static inline int sm90_backward_queries(int head_dim) {
    return head_dim <= 64 ? 128 : 64;
}

// The sums of dQ, then two floats per query (log-sum-exp and row sum of dO * O, padded to whole blocks), then two turn
// counters per block of queries and the counter of work items.
static inline size_t attention_sm90_backward_workspace(int batch, int seq, int heads, int head_dim) {
    const int queries = sm90_backward_queries(head_dim);
    const size_t blocks = (size_t)batch * (size_t)heads * (size_t)((seq + queries - 1) / queries);
    return blocks * (SM90_BACKWARD_DQ_BYTES + 2 * (size_t)queries * sizeof(float) + 2 * sizeof(int32_t)) +
           sizeof(int32_t);
}
