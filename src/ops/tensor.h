// A view of a matrix in memory: what an op is told. It owns nothing and is passed by value. Rows are tokens (or expert
// rows, or the outputs of a weight); a vector with a value per column (a norm's weight) is one row, a vector with a
// value per row (reciprocal deviations, losses) is one column. An absent tensor has no data: TENSOR_NONE.
#pragma once

#include "base/dtype.h"

#include <assert.h>

typedef struct Tensor {
    void *data;
    const char *name; // what it is, for messages and records; static storage
    int64_t rows, cols;
    int64_t stride; // elements from one row to the next
    DType dtype;
} Tensor;

#define TENSOR_NONE ((Tensor){0})

static inline Tensor tensor_make(void *data, DType dtype, int64_t rows, int64_t cols, const char *name) {
    Tensor tensor = {data, name, rows, cols, cols, dtype};
    return tensor;
}

static inline bool tensor_present(Tensor tensor) {
    return tensor.data != NULL;
}

static inline int64_t tensor_count(Tensor tensor) {
    return tensor.rows * tensor.cols;
}

static inline bool tensor_contiguous(Tensor tensor) {
    return tensor.stride == tensor.cols || tensor.rows <= 1;
}

static inline void *tensor_at(Tensor tensor, int64_t row, int64_t col) {
    return (char *)tensor.data + (size_t)(row * tensor.stride + col) * dtype_size(tensor.dtype);
}

// Rows [first, first + rows) and columns [first, first + cols): views of the same memory.
static inline Tensor tensor_rows(Tensor tensor, int64_t first, int64_t rows) {
    assert(first >= 0 && rows >= 0 && first + rows <= tensor.rows);
    tensor.data = tensor_at(tensor, first, 0);
    tensor.rows = rows;
    return tensor;
}

static inline Tensor tensor_cols(Tensor tensor, int64_t first, int64_t cols) {
    assert(first >= 0 && cols >= 0 && first + cols <= tensor.cols);
    tensor.data = tensor_at(tensor, 0, first);
    tensor.cols = cols;
    return tensor;
}

// The same memory under another shape that it has room for.
static inline Tensor tensor_reshape(Tensor tensor, int64_t rows, int64_t cols) {
    assert(tensor_contiguous(tensor) && rows * cols <= tensor_count(tensor));
    tensor.rows = rows;
    tensor.cols = tensor.stride = cols;
    return tensor;
}
