// From the accumulators of matrix products to rows of memory: back through a rotary embedding, and as bf16.
#pragma once

#include "ops/cuda/vector.cuh"

#include <stdint.h>

// Swaps so that `low` and `high` of the lanes whose number differs in `bit` become rows instead of columns.
static __device__ __forceinline__ void lanes_swap(uint32_t &low, uint32_t &high, int bit, bool upper) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
    low = upper ? got : low, high = upper ? high : got;
}

// The accumulators of a warp's 16 rows times factor as bf16 to memory, 16 bytes a lane.
template <int COUNT>
static __device__ __forceinline__ void rows_store(const float (&acc)[COUNT], float factor, Bf16 *to, int64_t stride,
                                                  int rows, int columns) {
    const int lane = threadIdx.x & 31, quarter = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int part = 0; part < COUNT / 16; part++) {
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = (part * 4 + e) * 4 + half * 2;
                x[e] = pack_bf16(acc[at] * factor, acc[at + 1] * factor);
            }
            lanes_swap(x[0], x[1], 1, quarter & 1);
            lanes_swap(x[2], x[3], 1, quarter & 1);
            lanes_swap(x[0], x[2], 2, quarter & 2);
            lanes_swap(x[1], x[3], 2, quarter & 2);
            const int row = lane / 4 + half * 8, column = (part * 4 + quarter) * 8;
            if (row < rows && column < columns)
                *(uint4 *)(to + row * stride + column) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

// The rotation of a thread's two rows, for heads of 64 columns.
struct Angles {
    float2 cos[2][4], sin[2][4];
};

// cos, sin: [rows, 32], from the first position of the sequence on; row: the warp's first one. Asked for early: the
// values come from the L2 cache.
static __device__ __forceinline__ void angles_load(Angles &angles, const float *cos, const float *sin, int row,
                                                   int rows) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t at = (int64_t)min(row + lane / 4 + half * 8, rows - 1) * 32 + (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            angles.cos[half][i] = __ldg((const float2 *)(cos + at) + i * 4);
            angles.sin[half][i] = __ldg((const float2 *)(sin + at) + i * 4);
        }
    }
}

// The accumulators of a warp's 16 rows of 64 columns back through the rotation.
static __device__ __forceinline__ void rows_rotate(float (&acc)[32], const Angles &angles) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 c = angles.cos[half][i], s = angles.sin[half][i];
            float &x0 = acc[i * 4 + half * 2], &x1 = acc[i * 4 + half * 2 + 1];
            float &y0 = acc[16 + i * 4 + half * 2], &y1 = acc[16 + i * 4 + half * 2 + 1];
            const float a0 = x0, a1 = x1;
            x0 = a0 * c.x + y0 * s.x, y0 = y0 * c.x - a0 * s.x;
            x1 = a1 * c.y + y1 * s.y, y1 = y1 * c.y - a1 * s.y;
        }
}
