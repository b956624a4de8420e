// Storage types on the device: 16-byte vectors of float, bf16 or f16, converted to and from float. Kernels are
// templates on the storage type only; the launchers pick it with WITH_STORAGE.
#pragma once

#include "ops/cuda/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __nv_bfloat16 Bf16;
typedef __half Fp16;

template <typename T> constexpr bool IS_FP16 = false;
template <> constexpr bool IS_FP16<Fp16> = true;

__device__ __forceinline__ float to_float(float value) {
    return value;
}
__device__ __forceinline__ float to_float(Bf16 value) {
    return __bfloat162float(value);
}
__device__ __forceinline__ float to_float(Fp16 value) {
    return __half2float(value);
}

template <typename T> __device__ __forceinline__ T from_float(float value);
template <> __device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <> __device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
    return __float2bfloat16_rn(value);
}
template <> __device__ __forceinline__ Fp16 from_float<Fp16>(float value) {
    return __float2half_rn(value);
}

template <typename T> struct Vec; // N elements in 16 bytes
template <> struct Vec<float> { static constexpr int N = 4; };
template <> struct Vec<Bf16> { static constexpr int N = 8; };
template <> struct Vec<Fp16> { static constexpr int N = 8; };

// Two elements of 16 bits in a word.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}
__device__ __forceinline__ float low_bf16(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

template <typename T> __device__ __forceinline__ uint32_t pair_pack(float low, float high) {
    if constexpr (IS_FP16<T>) {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    } else {
        return pack_bf16(low, high);
    }
}
template <typename T> __device__ __forceinline__ float2 pair_unpack(uint32_t pair) {
    if constexpr (IS_FP16<T>)
        return __half22float2(*reinterpret_cast<__half2 *>(&pair));
    else
        return make_float2(low_bf16(pair), high_bf16(pair));
}

template <typename T> __device__ __forceinline__ void vec_unpack(float (&out)[Vec<T>::N], const uint4 &raw) {
    if constexpr (sizeof(T) == 4) {
        out[0] = __uint_as_float(raw.x), out[1] = __uint_as_float(raw.y);
        out[2] = __uint_as_float(raw.z), out[3] = __uint_as_float(raw.w);
    } else {
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 pair = pair_unpack<T>(words[i]);
            out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
        }
    }
}

// The sum of the products of eight elements each.
template <typename T> __device__ __forceinline__ float dot8(const uint4 &x, const uint4 &y) {
    const T *xs = (const T *)&x, *ys = (const T *)&y;
    float total = 0;
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        const float a[2] = {to_float(xs[e]), to_float(xs[e + 1])}, b[2] = {to_float(ys[e]), to_float(ys[e + 1])};
        total = fmaf(a[0], b[0], fmaf(a[1], b[1], total));
    }
    return total;
}

template <typename T> __device__ __forceinline__ float nonzero(float x) { // see OPS_NONZERO
    constexpr float least = IS_FP16<T> ? OPS_NONZERO_F16 : OPS_NONZERO;
    return fabsf(x) < least ? least : x;
}

// e^x = 2^(x * LOG2E).
static constexpr float LOG2E = 1.4426950408889634f;

// 2^x within 2 ulp, without the care for denormal results that exp2f takes: they would be rounded away anyway.
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

template <typename T> __device__ __forceinline__ uint4 vec_pack(const float (&in)[Vec<T>::N]) {
    if constexpr (sizeof(T) == 4)
        return make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
                          __float_as_uint(in[3]));
    else
        return make_uint4(pair_pack<T>(in[0], in[1]), pair_pack<T>(in[2], in[3]), pair_pack<T>(in[4], in[5]),
                          pair_pack<T>(in[6], in[7]));
}

__device__ __forceinline__ uint4 load16(const void *pointer) {
    return *reinterpret_cast<const uint4 *>(pointer);
}
__device__ __forceinline__ uint4 load16_once(const void *pointer) { // read once: do not keep it in L1
    return __ldcs(reinterpret_cast<const uint4 *>(pointer));
}
__device__ __forceinline__ uint2 load8_once(const void *pointer) {
    return __ldcs(reinterpret_cast<const uint2 *>(pointer));
}
__device__ __forceinline__ void store8_once(void *pointer, const uint2 &value) {
    __stcs(reinterpret_cast<uint2 *>(pointer), value);
}
__device__ __forceinline__ void store16(void *pointer, const uint4 &value) {
    *reinterpret_cast<uint4 *>(pointer) = value;
}
__device__ __forceinline__ void store16_once(void *pointer, const uint4 &value) { // not read again soon
    __stcs(reinterpret_cast<uint4 *>(pointer), value);
}

// V elements at once, V * sizeof(T) in {2, 4, 8, 16, 32}; the pointer is aligned to that (or 16).
template <int V> __device__ __forceinline__ void load_floats(float (&out)[V], const float *in) {
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            float4 part = *reinterpret_cast<const float4 *>(in + i);
            out[i] = part.x, out[i + 1] = part.y, out[i + 2] = part.z, out[i + 3] = part.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            out[i] = in[i];
    }
}
template <int V, typename T> __device__ __forceinline__ void load_floats(float (&out)[V], const T *in) {
    if constexpr (V == 8) {
        vec_unpack<T>(out, load16(in));
    } else if constexpr (V == 4) {
        const uint2 raw = *reinterpret_cast<const uint2 *>(in);
        const float2 low = pair_unpack<T>(raw.x), high = pair_unpack<T>(raw.y);
        out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            out[i] = to_float(in[i]);
    }
}
template <int V> __device__ __forceinline__ void store_floats(float *out, const float (&in)[V]) {
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (int i = 0; i < V; i += 4)
            *reinterpret_cast<float4 *>(out + i) = make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            out[i] = in[i];
    }
}
template <int V, typename T> __device__ __forceinline__ void store_floats(T *out, const float (&in)[V]) {
    if constexpr (V == 8) {
        store16(out, vec_pack<T>(in));
    } else if constexpr (V == 4) {
        *reinterpret_cast<uint2 *>(out) = make_uint2(pair_pack<T>(in[0], in[1]), pair_pack<T>(in[2], in[3]));
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            out[i] = from_float<T>(in[i]);
    }
}

// Host side: whether all pointers (NULL allowed) are multiples of `bytes`.
static inline bool all_aligned(size_t bytes, const void *a, const void *b = nullptr, const void *c = nullptr,
                               const void *d = nullptr, const void *e = nullptr, const void *f = nullptr) {
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e | (uintptr_t)f) % bytes) == 0;
}

// Runs the statement with T as the storage type of `dtype`.
#define WITH_STORAGE(dtype, ...)           \
    do {                                   \
        if ((dtype) == DTYPE_BF16) {       \
            using T = Bf16;                \
            __VA_ARGS__;                   \
        } else if ((dtype) == DTYPE_F16) { \
            using T = Fp16;                \
            __VA_ARGS__;                   \
        } else {                           \
            using T = float;               \
            __VA_ARGS__;                   \
        }                                  \
    } while (0)
