// Names and sizes of element types, and f16 by its bits (bf16 is simple enough for the header).
#include "base/dtype.h"

#include <assert.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, "F32"}, [DTYPE_BF16] = {2, "BF16"}, [DTYPE_F16] = {2, "F16"}, [DTYPE_I32] = {4, "I32"},
    [DTYPE_I64] = {8, "I64"}, [DTYPE_U8] = {1, "U8"},     [DTYPE_U16] = {2, "U16"},
};

size_t dtype_size(DType dtype) {
    assert(dtype < DTYPE_COUNT);
    return dtypes[dtype].size;
}

const char *dtype_name(DType dtype) {
    assert(dtype < DTYPE_COUNT);
    return dtypes[dtype].name;
}

bool dtype_from_name(DType *dtype, const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (DType)i;
            return true;
        }
    }
    return false;
}

float f16_to_f32(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = (value >> 10) & 31, mantissa = value & 0x3ff, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else { // zero or subnormal: mantissa * 2^-24 is exact in float
        float magnitude = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &magnitude, sizeof bits);
        bits |= sign;
    }
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

uint16_t f16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00;
    if (bits >= 0x477ff000u) return sign | 0x7c00; // rounds past 65504
    if (bits < 0x38800000u) {                      // subnormal in f16: let float addition round at 2^-24
        float magnitude, magic = 0.5f;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += magic;
        memcpy(&bits, &magnitude, sizeof bits);
        return sign | (uint16_t)(bits - 0x3f000000u);
    }
    bits += 0xfffu + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - 0x38000000u) >> 13);
}
