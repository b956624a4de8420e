// FP8 on the device: pairs of floats to codes and back, rounded as base/dtype.h says, and the largest magnitude of a
// tensor, which its scale for the next step comes from.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

#include <cuda_fp8.h>

// E5M2: gradients; else e4m3.
template <bool E5M2> __device__ __forceinline__ uint32_t fp8_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, E5M2 ? __NV_E5M2 : __NV_E4M3);
}

template <bool E5M2> __device__ __forceinline__ uint2 fp8_pack(const float (&in)[8], float inverse) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = fp8_pair<E5M2>(in[2 * i] * inverse, in[2 * i + 1] * inverse);
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

__device__ __forceinline__ void e4m3_unpack(float (&out)[8], const uint2 &codes, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t word = i < 2 ? codes.x : codes.y;
        const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(word >> (16 * (i % 2))), __NV_E4M3);
        const float2 pair = __half22float2(*(const __half2 *)&raw);
        out[2 * i] = pair.x * scale;
        out[2 * i + 1] = pair.y * scale;
    }
}

__device__ __forceinline__ float magnitude(const float (&in)[8], float most) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, fabsf(in[i]));
    return most;
}

// Notes a warp's maximum. Patterns of positive floats are in the order of the floats, and a maximum is the same in any
// order. A look before saves most of the atomics; an old value does no harm.
__device__ __forceinline__ void amax_note(float *amax, float most) {
    if (!amax) return;
    most = warp_max(most);
    if (threadIdx.x % 32 == 0 && most > *amax) atomicMax((int *)amax, __float_as_int(most));
}
