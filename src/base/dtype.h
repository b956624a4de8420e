// Element types of tensors, as stored.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum DType {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_U16,
    DTYPE_E4M3,
    DTYPE_E5M2,
    DTYPE_COUNT
} DType;

size_t dtype_size(DType dtype);
const char *dtype_name(DType dtype);                  // as safetensors spells it: "F32", "BF16", ...
bool dtype_from_name(DType *dtype, const char *name); // the same spelling

typedef uint16_t bf16; // bfloat16: the upper half of a float

static inline float bf16_to_f32(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline bf16 bf16_from_f32(float value) { // round to nearest even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 0x40);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// A float as a bf16 and the 16 bits beyond it: bits = (weight << 16) + low, exact for every float. Halves round up in
// the bit pattern (not to even), since low reaches from -32768 to 32767.
static inline bf16 bf16_split(float value, int16_t *low) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bf16 weight = (bf16)((bits + 0x8000u) >> 16);
    *low = (int16_t)(bits - ((uint32_t)weight << 16));
    return weight;
}

// The weight alone, for a model that keeps no low part: the same bits that one with it computes with.
static inline bf16 bf16_split_weight(float value) {
    int16_t low;
    return bf16_split(value, &low);
}

static inline float bf16_join(bf16 weight, int16_t low) {
    uint32_t bits = ((uint32_t)weight << 16) + (uint32_t)(int32_t)low;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

float f16_to_f32(uint16_t value);
uint16_t f16_from_f32(float value); // round to nearest even, overflow to infinity

// One element of an array of F32, BF16 or F16.
static inline float storage_get(const void *data, int64_t index, DType dtype) {
    if (dtype == DTYPE_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static inline void storage_put(void *data, int64_t index, DType dtype, float value) {
    if (dtype == DTYPE_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
}

// FP8: 4 bits of exponent and 3 of mantissa up to 448, or 5 and 2 up to 57344. Round to nearest even; what is larger,
// infinity included, becomes the largest number; NaN stays NaN.
#define E4M3_MAX 448.0f
#define E5M2_MAX 57344.0f
float fp8_to_f32(uint8_t value, DType dtype);
uint8_t fp8_from_f32(float value, DType dtype);
