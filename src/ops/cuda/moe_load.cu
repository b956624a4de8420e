// How many tokens experts get over micro-batches, how evenly that is, and the bias that evens it out: a block for each
// layer, over its experts' counts.
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"

enum { LOAD_THREADS = 256 };

static __global__ __launch_bounds__(LOAD_THREADS) void add_counts_kernel(int32_t *total, const int32_t *counts,
                                                                         int experts, bool accumulate) {
    for (int e = (int)threadIdx.x; e < experts; e += LOAD_THREADS) {
        int64_t at = (int64_t)blockIdx.x * experts + e;
        total[at] = accumulate ? total[at] + counts[at] : counts[at];
    }
}

extern "C" void cuda_moe_add_counts(Ops *ops, Tensor total, Tensor counts, bool accumulate) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_ADD_COUNTS);
    add_counts_kernel<<<(unsigned)counts.rows, LOAD_THREADS, 0, state->stream>>>(
        (int32_t *)total.data, (const int32_t *)counts.data, (int)counts.cols, accumulate);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// Counts are whole numbers below 2^53 in all, so that their sum is exact in any order.
static __global__ __launch_bounds__(LOAD_THREADS) void load_stats_kernel(float *stats, const int32_t *counts,
                                                                         int experts) {
    __shared__ double shared[32];
    __shared__ int32_t most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    counts += (int64_t)blockIdx.x * experts;
    double total = 0, dead = 0, entropy = 0;
    for (int e = (int)threadIdx.x; e < experts; e += LOAD_THREADS) {
        total += counts[e];
        dead += counts[e] == 0;
        atomicMax(&most, counts[e]);
    }
    total = block_sum(total, shared);
    dead = block_sum(dead, shared);
    for (int e = (int)threadIdx.x; e < experts; e += LOAD_THREADS)
        if (counts[e] > 0) entropy -= counts[e] / total * log(counts[e] / total);
    entropy = block_sum(entropy, shared);
    if (threadIdx.x) return;
    entropy = experts > 1 ? fmin(fmax(entropy / log((double)experts), 0.0), 1.0) : total > 0;
    stats += (int64_t)blockIdx.x * MOE_LOAD_STATS;
    stats[MOE_LOAD_MAX] = total > 0 ? (float)((double)most * experts / total) : 0;
    stats[MOE_LOAD_ENTROPY] = (float)entropy;
    stats[MOE_LOAD_DEAD] = (float)dead;
}

extern "C" void cuda_moe_load_stats(Ops *ops, Tensor stats, Tensor counts) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_LOAD_STATS);
    load_stats_kernel<<<(unsigned)counts.rows, LOAD_THREADS, 0, state->stream>>>(
        (float *)stats.data, (const int32_t *)counts.data, (int)counts.cols);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

static __global__ __launch_bounds__(LOAD_THREADS) void bias_update_kernel(float *bias, const int32_t *counts,
                                                                          const int32_t *skip, float rate,
                                                                          int experts) {
    __shared__ double shared[32];
    if (*skip) return;
    counts += (int64_t)blockIdx.x * experts;
    bias += (int64_t)blockIdx.x * experts;
    double total = 0;
    for (int e = (int)threadIdx.x; e < experts; e += LOAD_THREADS)
        total += counts[e];
    total = block_sum(total, shared);
    for (int e = (int)threadIdx.x; e < experts; e += LOAD_THREADS) {
        double load = (double)counts[e] * experts; // against the total: the mean may be a fraction
        bias[e] += load < total ? rate : load > total ? -rate : 0;
    }
}

extern "C" void cuda_moe_bias_update(Ops *ops, Tensor bias, Tensor counts, Tensor skip, float rate) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_BIAS_UPDATE);
    bias_update_kernel<<<(unsigned)counts.rows, LOAD_THREADS, 0, state->stream>>>(
        (float *)bias.data, (const int32_t *)counts.data, (const int32_t *)skip.data, rate, (int)counts.cols);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
