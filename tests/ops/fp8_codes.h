// FP8 numbers of a test: as an op stores them, and what they stand for.
#pragma once

#include "oracle.h"

typedef struct Codes {
    Tensor tensor;
    uint8_t *data;
    double *value; // what they stand for
} Codes;

static inline Codes codes_make(DType dtype, int64_t rows, int64_t cols) {
    uint8_t *data = test_malloc((size_t)(rows * cols));
    memset(data, 0x7f, (size_t)(rows * cols)); // NaN
    return (Codes){tensor_make(data, dtype, rows, cols, "codes"), data, doubles(rows * cols)};
}

static inline void codes_read(Codes *codes, float scale) {
    for (int64_t i = 0; i < tensor_count(codes->tensor); i++)
        codes->value[i] = (double)fp8_to_f32(codes->data[i], codes->tensor.dtype) * (double)scale;
}

static inline void codes_free(Codes *codes) {
    test_free(codes->data);
    free(codes->value);
}

static inline Tensor number(float *value) {
    return view_floats(value, 1, 1);
}

static inline Codes random_codes(Ops *ops, DType dtype, int64_t rows, int64_t cols, float scale) {
    Values in = values_normal(DTYPE_BF16, rows * cols, 1, 0);
    Codes codes = codes_make(dtype, rows, cols);
    ops->quantize(ops, codes.tensor, TENSOR_NONE, TENSOR_NONE, view(&in, rows, cols), number(&scale));
    codes_read(&codes, scale);
    values_free(&in);
    return codes;
}

// Within half a step of the format (2^-4 of an e4m3 number, 2^-3 of an e5m2 one, or of its smallest step), and the
// float arithmetic before it.
static inline void check_rounded(double got, double want, DType dtype, double scale) {
    double half = dtype == DTYPE_E4M3 ? 0x1p-4 : 0x1p-3, least = dtype == DTYPE_E4M3 ? 0x1p-10 : 0x1p-17;
    assert_true(fabs(got - want) <= 1.0001 * fmax(half * fabs(want), least * scale) + 1e-6);
}
