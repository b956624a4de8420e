// Reductions in a fixed order: within a warp (or an aligned part of it) by shuffles, within a block through shared
// memory, across blocks through partial rows that a second kernel adds up column by column. No float atomics anywhere,
// so the same inputs give the same bits.
#pragma once

#include <stdint.h>

constexpr unsigned FULL_WARP = 0xffffffffu;

// Sum over the `width` lanes (a power of two) that share a lane / width; every lane gets it.
__device__ __forceinline__ float warp_sum(float value, int width = 32) {
    for (int step = width / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}
__device__ __forceinline__ double warp_sum(double value) {
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}
__device__ __forceinline__ float warp_max(float value) {
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

// Barrier of `threads` threads (whole warps) of a block; barrier 0 is that of __syncthreads.
__device__ __forceinline__ void group_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Sum over a group of THREADS threads; group is its place in the block, shared holds THREADS / 32 floats of its own,
// twice (calls alternate between the halves, so that one barrier per call is enough).
template <int THREADS> __device__ __forceinline__ float group_sum(float value, int group, float *shared, int &half) {
    value = warp_sum(value);
    if constexpr (THREADS > 32) {
        constexpr int WARPS = THREADS / 32;
        float *slot = shared + half * WARPS;
        half ^= 1;
        if (threadIdx.x % 32 == 0) slot[threadIdx.x % THREADS / 32] = value;
        group_sync(group + 1, THREADS);
        value = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            value += slot[i];
    }
    return value;
}

// Sum over the block (whole warps); every thread gets it. shared: 32 values; ends with a barrier.
template <typename T> __device__ __forceinline__ T block_sum(T value, T *shared) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    T total = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        total += shared[i];
    __syncthreads();
    return total;
}

// out[c] (+)= sum over parts of partials[part * columns + c]; elementwise.cu.
void columns_reduce(cudaStream_t stream, float *out, const float *partials, int parts, int64_t columns,
                    bool accumulate);
