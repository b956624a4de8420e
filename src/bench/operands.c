#include "bench/operands.h"

#include "base/rng.h"
#include "base/text.h"

#include <stdlib.h>

enum { RANDOM_BLOCK = 1 << 20 };

Status operand_make(Ops *ops, Tensor *out, DType dtype, int64_t rows, int64_t cols) {
    void *memory;
    TRY(ops->alloc(ops, &memory, (size_t)(rows * cols) * dtype_size(dtype), "operands of a benchmark"));
    *out = tensor_make(memory, dtype, rows, cols, "of the benchmark");
    return NULL;
}

void operand_free(Ops *ops, Tensor *tensor) {
    if (tensor_present(*tensor))
        ops->free(ops, tensor->data, (size_t)tensor_count(*tensor) * dtype_size(tensor->dtype));
    *tensor = TENSOR_NONE;
}

// One block of them, again and again.
void operand_fill(Ops *ops, Tensor out) {
    size_t size = dtype_size(out.dtype), bytes = (size_t)tensor_count(out) * size;
    int64_t count = tensor_count(out) < RANDOM_BLOCK ? tensor_count(out) : RANDOM_BLOCK;
    float *values = xmalloc((size_t)count * sizeof *values);
    uint16_t *narrow = xmalloc((size_t)count * sizeof *narrow);
    rng_fill_normal(values, count, 1, RNG_STREAM_BENCH, 0, 0, 1);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = out.dtype == DTYPE_F16 ? f16_from_f32(values[i]) : bf16_from_f32(values[i]);
    size_t block = (size_t)count * size;
    ops->upload(ops, out.data, dtype_size(out.dtype) == 2 ? (const void *)narrow : values, block);
    for (size_t at = block; at < bytes; at += block)
        ops->copy(ops, (char *)out.data + at, out.data, bytes - at < block ? bytes - at : block);
    free(values);
    free(narrow);
}

// Rounded twice: the first time for the largest magnitude, which gives the scale.
static void fill_fp8(Ops *ops, Tensor out, Tensor scale, Tensor amax, Tensor values) {
    operand_fill(ops, values);
    ops->zero(ops, amax);
    ops->upload(ops, scale.data, &(float){1}, sizeof(float));
    ops->quantize(ops, out, TENSOR_NONE, amax, values, scale);
    ops->quantize_scales(ops, scale, amax, out.dtype == DTYPE_E4M3 ? E4M3_MAX : E5M2_MAX);
    ops->quantize(ops, out, TENSOR_NONE, TENSOR_NONE, values, scale);
}

Status operand_make_fp8(Ops *ops, Tensor *out, Tensor *scale, DType dtype, int64_t rows, int64_t cols) {
    Tensor values = TENSOR_NONE, amax = TENSOR_NONE;
    Status status = operand_make(ops, out, dtype, rows, cols);
    if (!status) status = operand_make(ops, scale, DTYPE_F32, 1, 1);
    if (!status) status = operand_make(ops, &amax, DTYPE_F32, 1, 1);
    if (!status) status = operand_make(ops, &values, DTYPE_BF16, rows, cols);
    if (!status) fill_fp8(ops, *out, *scale, amax, values);
    if (!status) status = ops->sync(ops); // what it reads is given back
    operand_free(ops, &values);
    operand_free(ops, &amax);
    return status;
}
