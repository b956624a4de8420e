// Conversions between float and the 16-bit formats, exhaustively, against definitions in double.
#include "testing.h"

#include "base/dtype.h"
#include "base/rng.h"

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The value of a small float format by its definition: sign, exponent bits, mantissa bits.
static double decode(unsigned bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> mantissa_bits) & top;
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1)) / (double)(1u << mantissa_bits);
    double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (exponent == top) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias);
    return sign * ldexp(1 + mantissa, exponent - bias);
}

static void every_16_bit_value_decodes_by_its_definition(void **state) {
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        double f16 = decode(i, 5, 10), bf = decode(i, 8, 7);
        float got_f16 = f16_to_f32((uint16_t)i), got_bf = bf16_to_f32((bf16)i);
        assert_true(isnan(f16) ? isnan(got_f16) : bits_of((float)f16) == bits_of(got_f16));
        assert_true(isnan(bf) ? isnan(got_bf) : bits_of((float)bf) == bits_of(got_bf));
    }
}

static void every_16_bit_value_survives_the_round_trip(void **state) {
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        if (isnan(f16_to_f32((uint16_t)i)))
            assert_true(isnan(f16_to_f32(f16_from_f32(f16_to_f32((uint16_t)i)))));
        else
            assert_int_equal(f16_from_f32(f16_to_f32((uint16_t)i)), i);
        if (isnan(bf16_to_f32((bf16)i)))
            assert_true(isnan(bf16_to_f32(bf16_from_f32(bf16_to_f32((bf16)i)))));
        else
            assert_int_equal(bf16_from_f32(bf16_to_f32((bf16)i)), i);
    }
}

// For neighbours low < high of the format: just below the middle rounds to low, just above to high, the middle to the
// even one. The middle of two neighbours and its float neighbours are exact in float for both formats.
static void check_rounding(unsigned low, float a, float b, unsigned (*from)(float)) {
    float middle = (float)(((double)a + (double)b) / 2);
    assert_int_equal(from(middle), low % 2 ? low + 1 : low);
    assert_int_equal(from(nextafterf(middle, -INFINITY)), low);
    assert_int_equal(from(nextafterf(middle, INFINITY)), low + 1);
    assert_int_equal(from(-middle), (low % 2 ? low + 1 : low) | 0x8000);
}

static unsigned to_f16(float value) {
    return f16_from_f32(value);
}

static unsigned to_bf16(float value) {
    return bf16_from_f32(value);
}

static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    for (unsigned low = 0; low < 0x7bff; low++) // up to the largest finite f16, subnormals included
        check_rounding(low, f16_to_f32((uint16_t)low), f16_to_f32((uint16_t)(low + 1)), to_f16);
    for (unsigned low = 1; low < 0x7f7f; low++)
        check_rounding(low, bf16_to_f32((bf16)low), bf16_to_f32((bf16)(low + 1)), to_bf16);
}

static void overflow_becomes_infinity_and_nan_stays(void **state) {
    (void)state;
    assert_int_equal(f16_from_f32(65504.0f), 0x7bff);
    assert_int_equal(f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(bf16_from_f32(3.4028235e38f), 0x7f80);
    assert_int_equal(bf16_from_f32(-INFINITY), 0xff80);
    assert_true(isnan(f16_to_f32(f16_from_f32(NAN))));
    assert_true(isnan(bf16_to_f32(bf16_from_f32(float_of(0x7f800001))))); // the payload is all in the lower half
    assert_true(isnan(bf16_to_f32(bf16_from_f32(float_of(0xffffffff)))));
}

static void random_floats_round_to_the_nearest_value(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        float value = float_of((uint32_t)rng_bits(1, RNG_STREAM_TEST, i));
        if (!isfinite(value)) continue;
        double back = bf16_to_f32(bf16_from_f32(value)); // 8 bits of mantissa with the hidden one: half a unit is 2^-8
        if (isfinite(back) && fabsf(value) > 1e-37f) assert_true(fabs(back - value) <= fabs(value) * 0x1p-8);
        float small = value;
        while (fabsf(small) > 60000.0f)
            small *= 0x1p-16f;
        back = f16_to_f32(f16_from_f32(small)); // 11 bits, and subnormals in steps of 2^-24
        assert_true(fabs(back - small) <= fmax(fabs(small) * 0x1p-11, 0x1p-25));
    }
}

static void a_split_float_joins_to_the_same_bits(void **state) {
    (void)state;
    static const uint16_t lows[] = {0, 1, 0x1234, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    for (uint32_t high = 0; high < 65536; high++) {
        for (size_t k = 0; k < sizeof lows / sizeof lows[0]; k++) {
            float value = float_of(high << 16 | lows[k]);
            int16_t low;
            bf16 weight = bf16_split(value, &low);
            assert_int_equal(bits_of(bf16_join(weight, low)), high << 16 | lows[k]);
            // Away from the middle of two bf16 values the weight is the nearest one.
            if (isfinite(value) && lows[k] != 0x8000) assert_int_equal(weight, bf16_from_f32(value));
        }
    }
}

// Every code by its definition: sign, exponent, mantissa.
static void every_fp8_code_decodes_by_its_definition_and_back(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        int mantissa = type ? 2 : 3, bias = type ? 15 : 7, finite = 0;
        float largest = 0;
        for (int code = 0; code < 256; code++) {
            int exponent = (code & 0x7f) >> mantissa, fraction = code & ((1 << mantissa) - 1);
            float got = fp8_to_f32((uint8_t)code, dtype);
            if (type ? exponent == 31 : (code & 0x7f) == 0x7f) {
                assert_false(isfinite(got));
                assert_int_equal(isnan(got) != 0, !type || fraction != 0);
                continue;
            }
            float want = exponent ? ldexpf(1 + (float)fraction / (float)(1 << mantissa), exponent - bias)
                                  : ldexpf((float)fraction, 1 - bias - mantissa);
            assert_int_equal(bits_of(got), bits_of(code & 0x80 ? -want : want));
            assert_int_equal(fp8_from_f32(got, dtype), code);
            largest = fmaxf(largest, got);
            finite++;
        }
        assert_int_equal(finite, type ? 2 * 124 : 2 * 127);
        assert_true(largest == (type ? E5M2_MAX : E4M3_MAX));
    }
}

// Between any two neighbours: below the middle down, above it up, in the middle to the even code.
static void fp8_rounds_to_nearest_even_and_saturates(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        float most = type ? E5M2_MAX : E4M3_MAX;
        for (int code = 0; fp8_to_f32((uint8_t)code, dtype) < most; code++) {
            float low = fp8_to_f32((uint8_t)code, dtype), high = fp8_to_f32((uint8_t)(code + 1), dtype);
            float middle = (low + high) / 2;
            assert_int_equal(fp8_from_f32(middle, dtype), code + (code & 1));
            assert_int_equal(fp8_from_f32(nextafterf(middle, 0), dtype), code);
            assert_int_equal(fp8_from_f32(nextafterf(middle, most), dtype), code + 1);
            assert_int_equal(fp8_from_f32(-nextafterf(middle, most), dtype), (code + 1) | 0x80);
        }
        assert_true(fp8_to_f32(fp8_from_f32(INFINITY, dtype), dtype) == most);
        assert_true(fp8_to_f32(fp8_from_f32(-2 * most, dtype), dtype) == -most);
        assert_true(isnan(fp8_to_f32(fp8_from_f32(NAN, dtype), dtype)));
    }
}

static void names_and_sizes_agree(void **state) {
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        DType found = DTYPE_COUNT;
        assert_true(dtype_from_name(&found, dtype_name((DType)i)));
        assert_int_equal(found, i);
    }
    DType found;
    assert_false(dtype_from_name(&found, "F8"));
    assert_false(dtype_from_name(&found, "f32"));
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
    assert_int_equal(dtype_size(DTYPE_I64), 8);
    assert_int_equal(dtype_size(DTYPE_U8), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_decodes_by_its_definition),
        cmocka_unit_test(every_16_bit_value_survives_the_round_trip),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(overflow_becomes_infinity_and_nan_stays),
        cmocka_unit_test(random_floats_round_to_the_nearest_value),
        cmocka_unit_test(a_split_float_joins_to_the_same_bits),
        cmocka_unit_test(every_fp8_code_decodes_by_its_definition_and_back),
        cmocka_unit_test(fp8_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(names_and_sizes_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
