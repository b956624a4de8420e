// Short vectors in portable C (gcc and clang vector types) and an exponential on them. Loops over a row are written
// once for all storage types: the dtype is a constant after inlining. Sums keep one partial sum per lane and add the
// lanes in a fixed order, so results do not depend on what the compiler makes of a loop.
#pragma once

#include "base/dtype.h"

#include "ops/ops.h"

#include <stdint.h>
#include <string.h>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" // everything here is inlined: no vector crosses a call

#if defined(__AVX512F__)
enum { VEC_LANES = 16 };
#elif defined(__AVX__)
enum { VEC_LANES = 8 };
#else
enum { VEC_LANES = 4 };
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

typedef float Vec __attribute__((vector_size(VEC_LANES * 4)));
typedef int32_t VecInt __attribute__((vector_size(VEC_LANES * 4)));
typedef uint32_t VecBits __attribute__((vector_size(VEC_LANES * 4)));
typedef uint16_t VecHalf __attribute__((vector_size(VEC_LANES * 2)));
typedef double VecDouble __attribute__((vector_size(VEC_LANES * 8)));
typedef float VecLoose __attribute__((vector_size(VEC_LANES * 4), aligned(4), may_alias));
typedef uint16_t VecHalfLoose __attribute__((vector_size(VEC_LANES * 2), aligned(2), may_alias));
typedef double VecDoubleLoose __attribute__((vector_size(VEC_LANES * 8), aligned(8), may_alias));

// Runs the statement with i = 0, VEC_LANES, ... below `total` and n = how many of the lanes from i on exist.
#define VEC_FOR(i, n, total) \
    for (int64_t i = 0, n; i < (total) && (n = (total)-i < VEC_LANES ? (total)-i : VEC_LANES, 1); i += VEC_LANES)

VEC_INLINE Vec vec_all(float value) {
    return value - (Vec){0};
}

VEC_INLINE Vec vec_select(VecInt mask, Vec yes, Vec no) {
    return (Vec)((mask & (VecInt)yes) | (~mask & (VecInt)no));
}

VEC_INLINE Vec vec_max(Vec a, Vec b) { // a where b is NaN
#if defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)b, (__m512)a);
#else
    return vec_select(b > a, b, a);
#endif
}

VEC_INLINE Vec vec_nonzero(Vec x, DType dtype) { // see OPS_NONZERO
    const float least = dtype == DTYPE_F16 ? OPS_NONZERO_F16 : OPS_NONZERO;
#if defined(__AVX512F__)
    __m512 all = _mm512_set1_ps(least);
    return (Vec)_mm512_mask_mov_ps((__m512)x, _mm512_cmp_ps_mask(_mm512_abs_ps((__m512)x), all, _CMP_LT_OQ), all);
#else
    return vec_select((x < least) & (x > -least), vec_all(least), x);
#endif
}

VEC_INLINE Vec vec_from_bf16(VecHalf half) {
    return (Vec)(__builtin_convertvector(half, VecBits) << 16);
}

VEC_INLINE VecHalf vec_to_bf16(Vec value) { // round to nearest even; NaN stays NaN
    VecBits bits = (VecBits)value;
    VecBits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q);
    __m512i kept = _mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits, _mm512_set1_epi32(0x400000));
    return (VecHalf)_mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#else
    VecBits nan = (VecBits)((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector(((nan & (bits | 0x400000u)) | (~nan & rounded)) >> 16, VecHalf);
#endif
}

// f16 as base/dtype.h has it, by the CPU's own conversions or by the bits; the same numbers either way.
VEC_INLINE Vec vec_from_f16_bits(VecHalf half) {
    VecBits wide = __builtin_convertvector(half, VecBits), magnitude = wide & 0x7fffu;
    Vec normal = (Vec)((magnitude << 13) + (112u << 23));
    Vec subnormal = __builtin_convertvector((VecInt)magnitude, Vec) * 0x1p-24f; // exact, and so is zero
    Vec special = (Vec)((magnitude << 13) | 0x7f800000u);                       // infinity and NaN
    Vec value = vec_select((VecInt)(magnitude < 0x400u), subnormal,
                           vec_select((VecInt)(magnitude >= 0x7c00u), special, normal));
    return (Vec)((VecBits)value | (wide & 0x8000u) << 16);
}

VEC_INLINE VecHalf vec_to_f16_bits(Vec value) { // round to nearest even, overflow to infinity; NaN stays NaN
    VecBits sign = (VecBits)value & 0x80000000u, bits = (VecBits)value ^ sign;
    VecBits normal = (bits + 0xfffu + (bits >> 13 & 1u) - 0x38000000u) >> 13;
    VecBits subnormal = (VecBits)((Vec)bits + 0.5f) - 0x3f000000u; // float addition rounds at 2^-24
    VecBits small = (VecBits)(bits < 0x38800000u), large = (VecBits)(bits >= 0x477ff000u);
    VecBits nan = (VecBits)(bits > 0x7f800000u);
    VecBits half = (small & subnormal) | (~small & normal);
    half = (large & 0x7c00u) | (~large & half);
    return __builtin_convertvector(half | (nan & 0x7e00u) | sign >> 16, VecHalf);
}

#if defined(__AVX512F__) || (defined(__F16C__) && defined(__AVX__))
VEC_INLINE Vec vec_from_f16(VecHalf half) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps((__m256i)half);
#else
    return (Vec)_mm256_cvtph_ps((__m128i)half);
#endif
}

VEC_INLINE VecHalf vec_to_f16(Vec value) {
#if defined(__AVX512F__)
    return (VecHalf)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (VecHalf)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}
#else
#define vec_from_f16 vec_from_f16_bits
#define vec_to_f16   vec_to_f16_bits
#endif

VEC_INLINE Vec vec_widen(VecHalf half, DType dtype) {
    return dtype == DTYPE_BF16 ? vec_from_bf16(half) : vec_from_f16(half);
}

// Lanes beyond n read as 0 and are not written.
VEC_INLINE Vec vec_get(const void *data, int64_t i, int64_t n, DType dtype) {
    if (dtype == DTYPE_F32) {
        if (n == VEC_LANES) return *(const VecLoose *)((const float *)data + i);
        Vec value = {0};
        memcpy(&value, (const float *)data + i, (size_t)n * 4);
        return value;
    }
    if (n == VEC_LANES) return vec_widen(*(const VecHalfLoose *)((const uint16_t *)data + i), dtype);
    VecHalf half = {0};
    memcpy(&half, (const uint16_t *)data + i, (size_t)n * 2);
    return vec_widen(half, dtype);
}

VEC_INLINE void vec_put(void *data, int64_t i, int64_t n, DType dtype, Vec value) {
    if (dtype == DTYPE_F32) {
        if (n == VEC_LANES) {
            *(VecLoose *)((float *)data + i) = value;
        } else {
            Vec some = value; // a copy: what has an address would pass through memory in both branches
            memcpy((float *)data + i, &some, (size_t)n * 4);
        }
        return;
    }
    VecHalf half = dtype == DTYPE_BF16 ? vec_to_bf16(value) : vec_to_f16(value);
    if (n == VEC_LANES) {
        *(VecHalfLoose *)((uint16_t *)data + i) = half;
    } else {
        VecHalf some = half;
        memcpy((uint16_t *)data + i, &some, (size_t)n * 2);
    }
}

// Calls a function whose last argument is the storage type, compiled once for each.
#define VEC_BY_STORAGE(dtype, function, ...)   \
    do {                                       \
        if ((dtype) == DTYPE_F32)              \
            function(__VA_ARGS__, DTYPE_F32);  \
        else if ((dtype) == DTYPE_BF16)        \
            function(__VA_ARGS__, DTYPE_BF16); \
        else                                   \
            function(__VA_ARGS__, DTYPE_F16);  \
    } while (0)

// sums[i..i+n) += value
VEC_INLINE void vec_add_to_doubles(double *sums, int64_t i, int64_t n, Vec value) {
    if (n == VEC_LANES)
        *(VecDoubleLoose *)(sums + i) += __builtin_convertvector(value, VecDouble);
    else
        for (int64_t lane = 0; lane < n; lane++)
            sums[i + lane] += (double)value[lane];
}

#if defined(__AVX512F__)
VEC_INLINE double vec_sum(Vec value) { // by halves
    __m256 low = _mm512_castps512_ps256((__m512)value);
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)value, 1)); // AVX512F has no such move of floats
    return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(low), _mm512_cvtps_pd(high)));
}

VEC_INLINE float vec_highest(Vec value) {
    return _mm512_reduce_max_ps((__m512)value);
}
#else
VEC_INLINE double vec_sum(Vec value) {
    double sum = 0;
    for (int lane = 0; lane < VEC_LANES; lane++)
        sum += (double)value[lane];
    return sum;
}

VEC_INLINE float vec_highest(Vec value) {
    float highest = value[0];
    for (int lane = 1; lane < VEC_LANES; lane++)
        if (value[lane] > highest) highest = value[lane];
    return highest;
}
#endif

// A long sum: floats in lanes for a stretch, doubles beyond it, so that the error does not grow with the length.
enum { VEC_STRETCH = 32 };
typedef struct VecSum {
    Vec lanes;
    int filled;
    double total;
} VecSum;

VEC_INLINE void vec_sum_add(VecSum *sum, Vec value) {
    sum->lanes += value;
    if (++sum->filled == VEC_STRETCH) {
        sum->total += vec_sum(sum->lanes);
        sum->lanes = (Vec){0};
        sum->filled = 0;
    }
}

VEC_INLINE double vec_sum_total(const VecSum *sum) {
    return sum->total + vec_sum(sum->lanes);
}

// e^x to 2 ulp, over the whole range: 0 far below, infinity far above, NaN for NaN, subnormal results rounded.
// x = n ln 2 + r with |r| <= ln 2 / 2. Where the result is 0 nothing may underflow on the way: some CPUs take a hundred
// cycles for it, and masked scores of attention are minus infinity.
VEC_INLINE Vec vec_exp_rest(Vec r) {        // e^r
    Vec p = r * (1 / 5040.0f) + 1 / 720.0f; // the series to r^7: what is left out is below 0.1 ulp
    p = p * r + 1 / 120.0f;
    p = p * r + 1 / 24.0f;
    p = p * r + 1 / 6.0f;
    p = p * r + 0.5f;
    return p * (r * r) + r + 1.0f;
}

#define VEC_LN2_HIGH 0x1.62e400p-1f // ln 2 in two parts: the first has few enough bits that n times it is exact
#define VEC_LN2_LOW  0x1.7f7d1cp-20f
#define VEC_LOG2_E   0x1.715476p0f

#if defined(__AVX512F__)
VEC_INLINE Vec vec_exp(Vec x) {
    __mmask16 there = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-104.0f), _CMP_NLT_UQ);
    x = (Vec)_mm512_min_ps(_mm512_set1_ps(89.0f), (__m512)x); // NaN stays
    Vec n = (Vec)_mm512_roundscale_ps((__m512)(x * VEC_LOG2_E), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Vec r = x - n * VEC_LN2_HIGH;
    r = r - n * VEC_LN2_LOW;
    return (Vec)_mm512_maskz_scalef_ps(there, (__m512)vec_exp_rest(r), (__m512)n);
}
#else
VEC_INLINE Vec vec_exp(Vec x) {
    VecInt there = ~(x < -104.0f);
    x = vec_select(there, x, vec_all(0));
    x = vec_select(x > 89.0f, vec_all(89.0f), x);
    const float shifter = 0x1.8p23f; // adding it rounds to an integer, which then stands in the low bits
    Vec shifted = x * VEC_LOG2_E + shifter;
    Vec n = shifted - shifter;
    Vec r = x - n * VEC_LN2_HIGH;
    r = r - n * VEC_LN2_LOW;
    VecInt power = (VecInt)((VecBits)shifted - 0x4b400000u);
    VecInt half = power >> 1; // 2^n as two factors, because n reaches from -150 to 128
    Vec low = (Vec)((VecBits)(half + 127) << 23), high = (Vec)((VecBits)(power - half + 127) << 23);
    return (Vec)((VecInt)(vec_exp_rest(r) * low * high) & there);
}
#endif
