// What the rules of check.c and check_experts.c are made of. A rule returns NULL, or the condition that does not hold.
#pragma once

#include "ops/record.h"

#define NEED(condition) \
    if (!(condition)) return #condition

static inline bool is_storage(DType dtype) { // of activations and weights
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static inline bool has_shape(Tensor t, DType dtype, int64_t rows, int64_t cols) {
    return tensor_present(t) && t.dtype == dtype && t.rows == rows && t.cols == cols && t.stride >= t.cols;
}

static inline bool packed(Tensor t, DType dtype, int64_t rows, int64_t cols) { // and no gaps between rows
    return has_shape(t, dtype, rows, cols) && tensor_contiguous(t);
}

static inline bool absent_or_packed(Tensor t, DType dtype, int64_t rows, int64_t cols) {
    return !tensor_present(t) || packed(t, dtype, rows, cols);
}

static inline bool one(Tensor t, DType dtype) {
    return has_shape(t, dtype, 1, 1);
}

static inline bool flat(Tensor t, DType dtype) {
    return tensor_present(t) && t.dtype == dtype && tensor_contiguous(t);
}

static inline bool is_fp8(DType dtype) {
    return dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
}

static inline bool absent_or_one(Tensor t) {
    return !tensor_present(t) || one(t, DTYPE_F32);
}

// SwiGLU without a product beside it.
const char *check_swiglu_forward(const Tensor *t);
const char *check_swiglu_backward(const Tensor *t);

// And of SwiGLU in FP8 with its product, what is not the product's: t as the two ops have it.
const char *check_swiglu_fp8_of_product(const Tensor *t, Tensor row_weight, Tensor row_count);

const char *op_check_experts(const OpRecord *r); // OP_MOE_... and OP_GROUPED_...
