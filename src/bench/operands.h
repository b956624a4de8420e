// Tensors to measure with: memory of a device, filled with random values.
#pragma once

#include "base/status.h"
#include "ops/ops.h"

Status operand_make(Ops *ops, Tensor *out, DType dtype, int64_t rows, int64_t cols); // not filled
void operand_free(Ops *ops, Tensor *tensor);                                         // absent: nothing
// Mean 0 and deviation 1: the power that a GPU draws, and with it its clock, depends on the values. Floats, bf16 or
// f16.
void operand_fill(Ops *ops, Tensor out);
// FP8, filled: as operand_fill, with the scale (made too, [1, 1] float) that these values ask for.
Status operand_make_fp8(Ops *ops, Tensor *out, Tensor *scale, DType dtype, int64_t rows, int64_t cols);
