// Names and sizes of element types, and f16 by its bits (bf16 is simple enough for the header).
#include "base/dtype.h"

#include <assert.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, "F32"}, [DTYPE_BF16] = {2, "BF16"},    [DTYPE_F16] = {2, "F16"},
    [DTYPE_I32] = {4, "I32"}, [DTYPE_I64] = {8, "I64"},      [DTYPE_U8] = {1, "U8"},
    [DTYPE_U16] = {2, "U16"}, [DTYPE_E4M3] = {1, "F8_E4M3"}, [DTYPE_E5M2] = {1, "F8_E5M2"},
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

// ---- FP8 ------------------------------------------------------------------------------------------------------------

typedef struct Fp8Format {
    int mantissa, bias;
    float most, least; // largest number, smallest that is not subnormal
    uint8_t nan;
} Fp8Format;

static Fp8Format fp8_format(DType dtype) {
    assert(dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2);
    return dtype == DTYPE_E4M3 ? (Fp8Format){3, 7, E4M3_MAX, 0x1p-6f, 0x7f}
                               : (Fp8Format){2, 15, E5M2_MAX, 0x1p-14f, 0x7f};
}

float fp8_to_f32(uint8_t value, DType dtype) {
    Fp8Format f = fp8_format(dtype);
    uint32_t sign = (uint32_t)(value & 0x80) << 24, magnitude = value & 0x7f, bits;
    bool infinite = dtype == DTYPE_E5M2 && magnitude == 0x7c;
    if (magnitude == 0x7f || (dtype == DTYPE_E5M2 && magnitude >= 0x7c)) {
        bits = infinite ? 0x7f800000u : 0x7fc00000u;
    } else if (magnitude >> f.mantissa) {
        bits = (magnitude << (23 - f.mantissa)) + ((uint32_t)(127 - f.bias) << 23);
    } else { // zero or subnormal
        float small = (float)magnitude * f.least / (float)(1 << f.mantissa);
        memcpy(&bits, &small, sizeof bits);
    }
    bits |= sign;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

uint8_t fp8_from_f32(float value, DType dtype) {
    Fp8Format f = fp8_format(dtype);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | f.nan;
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    if (magnitude > f.most) magnitude = f.most;
    int cut = 23 - f.mantissa;
    if (magnitude < f.least) { // float addition rounds where the last bit of a subnormal is
        float magic = f.least * (float)(1 << cut);
        magnitude += magic;
        uint32_t base;
        memcpy(&bits, &magnitude, sizeof bits);
        memcpy(&base, &magic, sizeof base);
        return sign | (uint8_t)(bits - base);
    }
    memcpy(&bits, &magnitude, sizeof bits);
    bits += (1u << (cut - 1)) - 1 + (bits >> cut & 1);
    return sign | (uint8_t)((bits >> cut) - ((uint32_t)(127 - f.bias) << f.mantissa));
}
