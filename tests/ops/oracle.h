// A float64 oracle for the ops: each operation written as its definition says, slowly, on doubles; and values that
// exist both as an op stores them and as doubles.
#pragma once

#include "ops/shapes.h"
#include "testing.h"

// ---- values --------------------------------------------------------------------------------------------------------

static const DType storage_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16}; // of activations and weights

typedef struct Values {
    DType dtype;
    int64_t count;
    void *data;    // as stored; exactly count elements, so that a sanitizer sees any step beyond
    double *value; // the same as doubles
} Values;

Values values_normal(DType dtype, int64_t count, double deviation, double mean); // a new stream of draws on each call
Values values_poison(DType dtype, int64_t count);                                // NaN: what an op must overwrite
Values values_zero(DType dtype, int64_t count);
Values values_integers(int64_t count); // -8 to 8 in bf16: sums of 2^18 products are exact in floats
Values values_copy(const Values *values);
Values values_of(DType dtype, int64_t count, const double *from); // rounded to the storage type
void values_restart(void);                                        // the next draws are those of a new program
void values_read(Values *values);                                 // value from data
void values_free_one(Values *values);
#define values_free(...)                                                 \
    do {                                                                 \
        Values *values_[] = {__VA_ARGS__};                               \
        for (size_t i_ = 0; i_ < sizeof values_ / sizeof *values_; i_++) \
            values_free_one(values_[i_]);                                \
    } while (0)

// What an op is told. All of the values, which must be as many as the shape says; columns of it: tensor_cols.
Tensor view(const Values *values, int64_t rows, int64_t cols);
Tensor view_floats(const float *data, int64_t rows, int64_t cols);
Tensor view_ints(const int32_t *data, int64_t rows, int64_t cols);

// Fails unless every element of the values (read first) is within
//     u * |want| + 8 * 2^-24 * sqrt(length + 8) * max(|want|, rms of want)
// of `want`, with u = 2^-8 for bf16 storage (half a unit in the last of 8 bits), 2^-11 for f16 (and 2^-25 beside it,
// half a subnormal), 2^-24 for float: one rounding on the way out, plus a float sum of `length` terms whose roundings
// add up like a random walk. A dropped term of a dot product of `length` is off by about rms / sqrt(length): thousands
// of times the float bound, and above the bf16 one to length 4096.
void values_check(const char *what, Values *values, const double *want, int64_t length);
// The same, and for half-width values u * magnitude more, which is what rounding one factor of each addend may add up
// to: `magnitude` is the sum of the addends' magnitudes. In fp16 a subnormal factor is off by 2^-25 at most, and the
// other factor is below 8.
void values_check_rounded(const char *what, Values *values, const double *want, const double *magnitude,
                          int64_t length);
double *doubles(int64_t count); // zeroed
double *magnitudes(const double *values, int64_t count);
int32_t *ids(int64_t count, int bound); // random in [0, bound)

// A CPU table with a workspace for the given shapes bound to it.
Ops *oracle_ops(int seq, int hidden, int heads, int kv_heads, int head_dim, int experts);
void oracle_ops_free(Ops *ops);

// ---- operations ----------------------------------------------------------------------------------------------------

// c[m, n] += a . b with a at a[i * a_row + x * a_column], b likewise
void oracle_matmul(double *c, const double *a, int64_t a_row, int64_t a_column, const double *b, int64_t b_row,
                   int64_t b_column, int64_t m, int64_t n, int64_t k);
void oracle_rmsnorm(double *out, double *rstd, const double *in, const double *weight, int64_t rows, int dim,
                    double eps);
void oracle_rmsnorm_backward(double *din, double *dweight, const double *dout, const double *in, const double *weight,
                             int64_t rows, int dim, double eps); // both +=
// What an op is told of the rotation that the shape describes.
Rope rope_of(const QkRopeShape *shape, DType dtype);
void oracle_rope(double *x, const QkRopeShape *shape, int64_t stride,
                 bool back); // in place, back: the inverse rotation
void oracle_attention(double *out, double *lse, const double *q, const double *k, const double *v,
                      const AttentionShape *shape, int first);
// out: as stored, which is what the op reads. of_magnitudes: sums of the addends' magnitudes instead.
void oracle_attention_backward(double *dq, double *dk, double *dv, int64_t stride, const double *dout,
                               const double *out, const double *q, const double *k, const double *v,
                               const AttentionShape *shape, bool of_magnitudes);
double oracle_silu(double x);
double oracle_silu_slope(double x);
