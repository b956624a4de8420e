// The float64 oracle: see oracle.h.
#include "oracle.h"

#include "base/rng.h"
#include "base/threads.h"

// ---- values --------------------------------------------------------------------------------------------------------

static uint64_t draws; // all values take their own stream, the same on every run

void values_restart(void) {
    draws = 0;
}

double *doubles(int64_t count) {
    return xcalloc((size_t)(count ? count : 1), sizeof(double));
}

static Values values_new(DType dtype, int64_t count) {
    return (Values){dtype, count, xmalloc((size_t)count * dtype_size(dtype)), doubles(count)};
}

static void values_set(Values *values, int64_t i, float value) {
    storage_put(values->data, i, values->dtype, value);
}

void values_read(Values *values) {
    for (int64_t i = 0; i < values->count; i++)
        values->value[i] = (double)storage_get(values->data, i, values->dtype);
}

Values values_normal(DType dtype, int64_t count, double deviation, double mean) {
    Values values = values_new(dtype, count);
    uint64_t seed = ++draws;
    for (int64_t i = 0; i < count; i++)
        values_set(&values, i, (float)(mean + deviation * rng_normal(seed, RNG_STREAM_TEST, (uint64_t)i)));
    values_read(&values);
    return values;
}

Values values_poison(DType dtype, int64_t count) {
    Values values = values_new(dtype, count);
    for (int64_t i = 0; i < count; i++)
        values_set(&values, i, NAN);
    return values;
}

Values values_of(DType dtype, int64_t count, const double *from) {
    Values values = values_new(dtype, count);
    for (int64_t i = 0; i < count; i++)
        values_set(&values, i, (float)from[i]);
    values_read(&values);
    return values;
}

Values values_zero(DType dtype, int64_t count) {
    Values values = values_new(dtype, count);
    memset(values.data, 0, (size_t)count * dtype_size(dtype));
    return values;
}

Values values_integers(int64_t count) {
    int32_t *drawn = ids(count, 17);
    double *value = doubles(count);
    for (int64_t i = 0; i < count; i++)
        value[i] = drawn[i] - 8;
    Values values = values_of(DTYPE_BF16, count, value);
    free(drawn), free(value);
    return values;
}

Values values_copy(const Values *values) {
    Values copy = values_new(values->dtype, values->count);
    memcpy(copy.data, values->data, (size_t)values->count * dtype_size(values->dtype));
    values_read(&copy);
    return copy;
}

void values_free_one(Values *values) {
    free(values->data);
    free(values->value);
}

Tensor view(const Values *values, int64_t rows, int64_t cols) {
    assert_int_equal(rows * cols, values->count);
    return tensor_make(values->data, values->dtype, rows, cols, "values");
}

Tensor view_floats(const float *data, int64_t rows, int64_t cols) {
    return tensor_make((void *)data, DTYPE_F32, rows, cols, "floats");
}

Tensor view_ints(const int32_t *data, int64_t rows, int64_t cols) {
    return tensor_make((void *)data, DTYPE_I32, rows, cols, "ints");
}

double *magnitudes(const double *values, int64_t count) {
    double *result = doubles(count);
    for (int64_t i = 0; i < count; i++)
        result[i] = fabs(values[i]);
    return result;
}

void values_check(const char *what, Values *values, const double *want, int64_t length) {
    values_check_rounded(what, values, want, NULL, length);
}

void values_check_rounded(const char *what, Values *values, const double *want, const double *magnitude,
                          int64_t length) {
    values_read(values);
    double rms = 0, unit = values->dtype == DTYPE_F32 ? 0x1p-24 : values->dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    double least = values->dtype == DTYPE_F16 ? 0x1p-25 : 0;
    for (int64_t i = 0; i < values->count; i++)
        rms += want[i] * want[i];
    rms = sqrt(rms / (double)(values->count ? values->count : 1));
    for (int64_t i = 0; i < values->count; i++) {
        double error = fabs(values->value[i] - want[i]);
        double bound = least + unit * fabs(want[i]) + 8 * 0x1p-24 * sqrt((double)length + 8) * fmax(fabs(want[i]), rms);
        if (magnitude && values->dtype != DTYPE_F32) bound += unit * magnitude[i] + 8 * least * (double)length;
        if (!(error <= bound))
            fail_msg("%s [%lld of %lld] is %.9g, expected %.9g: off by %.3g, allowed %.3g (rms %.3g)", what,
                     (long long)i, (long long)values->count, values->value[i], want[i], error, bound, rms);
    }
}

int32_t *ids(int64_t count, int bound) {
    int32_t *result = xmalloc((size_t)(count ? count : 1) * sizeof *result);
    uint64_t seed = ++draws;
    for (int64_t i = 0; i < count; i++)
        result[i] = (int32_t)rng_below(seed, RNG_STREAM_TEST, (uint64_t)i, (uint64_t)bound);
    return result;
}

static void *workspace;

Ops *oracle_ops(int seq, int hidden, int heads, int kv_heads, int head_dim, int experts) {
    OpsWorkspaceRequest request = {.seq = seq,
                                   .hidden = hidden,
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = head_dim,
                                   .experts = experts,
                                   .threads = threads_count()};
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    size_t bytes = ops_cpu_workspace(&request);
    workspace = xmalloc(bytes);     // exact, so that a sanitizer sees any step beyond
    memset(workspace, 0xff, bytes); // NaN: scratch is not read before it is written
    ops->bind_workspace(ops, workspace, bytes);
    return ops;
}

void oracle_ops_free(Ops *ops) {
    ops_cpu_destroy(ops);
    free(workspace);
}

// ---- operations ----------------------------------------------------------------------------------------------------

void oracle_matmul(double *c, const double *a, int64_t a_row, int64_t a_column, const double *b, int64_t b_row,
                   int64_t b_column, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t x = 0; x < k; x++)
                sum += a[i * a_row + x * a_column] * b[x * b_row + j * b_column];
            c[i * n + j] += sum;
        }
}

static double rstd_of(const double *x, int dim, double eps) {
    double squares = 0;
    for (int i = 0; i < dim; i++)
        squares += x[i] * x[i];
    return 1 / sqrt(squares / dim + eps);
}

void oracle_rmsnorm(double *out, double *rstd, const double *in, const double *weight, int64_t rows, int dim,
                    double eps) {
    for (int64_t row = 0; row < rows; row++) {
        rstd[row] = rstd_of(in + row * dim, dim, eps);
        for (int i = 0; i < dim; i++)
            out[row * dim + i] = in[row * dim + i] * rstd[row] * weight[i];
    }
}

void oracle_rmsnorm_backward(double *din, double *dweight, const double *dout, const double *in, const double *weight,
                             int64_t rows, int dim, double eps) {
    for (int64_t row = 0; row < rows; row++) {
        const double *x = in + row * dim, *dy = dout + row * dim;
        double rstd = rstd_of(x, dim, eps), dot = 0;
        for (int i = 0; i < dim; i++) {
            dot += dy[i] * weight[i] * x[i];
            dweight[i] += dy[i] * x[i] * rstd;
        }
        for (int i = 0; i < dim; i++)
            din[row * dim + i] += rstd * dy[i] * weight[i] - rstd * rstd * rstd * x[i] * dot / dim;
    }
}

Rope rope_of(const QkRopeShape *shape, DType dtype) {
    int64_t positions = shape->first_position + shape->seq;
    Rope rope = {.seq = shape->seq,
                 .first_position = shape->first_position,
                 .heads = shape->heads,
                 .kv_heads = shape->kv_heads,
                 .head_dim = shape->head_dim,
                 .cos = view_floats(shape->cos, positions, shape->head_dim / 2),
                 .sin = view_floats(shape->sin, positions, shape->head_dim / 2),
                 .eps = shape->eps};
    if (shape->q_weight) rope.q_weight = tensor_make((void *)shape->q_weight, dtype, 1, shape->head_dim, "q_weight");
    if (shape->k_weight) rope.k_weight = tensor_make((void *)shape->k_weight, dtype, 1, shape->head_dim, "k_weight");
    return rope;
}

void oracle_rope(double *x, const QkRopeShape *shape, int64_t stride, bool back) {
    int half = shape->head_dim / 2;
    for (int64_t t = 0; t < shape->tokens; t++) {
        int64_t position = shape->first_position + t % shape->seq;
        for (int h = 0; h < shape->heads + shape->kv_heads; h++) {
            double *head = x + t * stride + (int64_t)h * shape->head_dim;
            for (int i = 0; i < half; i++) {
                double c = (double)shape->cos[position * half + i], s = (double)shape->sin[position * half + i];
                if (back) s = -s;
                double x1 = head[i], x2 = head[half + i];
                head[i] = x1 * c - x2 * s;
                head[half + i] = x2 * c + x1 * s;
            }
        }
    }
}

// Scores of query i of head h against all its keys; returns the first key, and the log-sum-exp.
static int64_t scores_of(double *score, double *lse, const double *q, const double *k, const AttentionShape *shape,
                         int64_t batch, int64_t h, int64_t i, int first) {
    int64_t kv_head = h / (shape->heads / shape->kv_heads), row = batch * shape->seq;
    int64_t start = shape->doc_start ? shape->doc_start[row + i] : 0;
    double highest = -INFINITY, sum = 0;
    for (int64_t j = start; j <= first + i; j++) {
        score[j] = 0;
        for (int x = 0; x < shape->head_dim; x++)
            score[j] += q[(row + i) * shape->q_stride + h * shape->head_dim + x] *
                        k[(row + j) * shape->k_stride + kv_head * shape->head_dim + x];
        score[j] *= (double)shape->scale;
        highest = fmax(highest, score[j]);
    }
    for (int64_t j = start; j <= first + i; j++)
        sum += exp(score[j] - highest);
    *lse = highest + log(sum);
    return start;
}

void oracle_attention(double *out, double *lse, const double *q, const double *k, const double *v,
                      const AttentionShape *shape, int first) {
    double *score = doubles(shape->seq + first);
    for (int64_t b = 0; b < shape->batch; b++)
        for (int64_t h = 0; h < shape->heads; h++)
            for (int64_t i = 0; i < shape->seq; i++) {
                double *row_lse = &lse[(b * shape->heads + h) * shape->seq + i];
                int64_t start = scores_of(score, row_lse, q, k, shape, b, h, i, first);
                for (int x = 0; x < shape->head_dim; x++) {
                    double sum = 0;
                    for (int64_t j = start; j <= first + i; j++)
                        sum += exp(score[j] - *row_lse) * v[(b * shape->seq + j) * shape->v_stride +
                                                            h / (shape->heads / shape->kv_heads) * shape->head_dim + x];
                    out[(b * shape->seq + i) * shape->o_stride + h * shape->head_dim + x] = sum;
                }
            }
    free(score);
}

void oracle_attention_backward(double *dq, double *dk, double *dv, int64_t stride, const double *dout,
                               const double *out, const double *q, const double *k, const double *v,
                               const AttentionShape *shape, bool of_magnitudes) {
    double *score = doubles(shape->seq);
    int hd = shape->head_dim;
    for (int64_t b = 0; b < shape->batch; b++)
        for (int64_t h = 0; h < shape->heads; h++)
            for (int64_t i = 0; i < shape->seq; i++) {
                double lse, dot = 0;
                int64_t start = scores_of(score, &lse, q, k, shape, b, h, i, 0), row = b * shape->seq;
                int64_t kv = h / (shape->heads / shape->kv_heads) * hd;
                const double *d = dout + (row + i) * shape->o_stride + h * hd;
                for (int x = 0; x < hd; x++)
                    dot += d[x] * out[(row + i) * shape->o_stride + h * hd + x];
                for (int64_t j = start; j <= i; j++) {
                    double p = exp(score[j] - lse), dp = 0;
                    for (int x = 0; x < hd; x++) {
                        dp += d[x] * v[(row + j) * shape->v_stride + kv + x];
                        dv[(row + j) * stride + kv + x] += of_magnitudes ? fabs(p * d[x]) : p * d[x];
                    }
                    double ds = p * (dp - dot) * (double)shape->scale;
                    for (int x = 0; x < hd; x++) {
                        double to_q = ds * k[(row + j) * shape->k_stride + kv + x];
                        double to_k = ds * q[(row + i) * shape->q_stride + h * hd + x];
                        dq[(row + i) * stride + h * hd + x] += of_magnitudes ? fabs(to_q) : to_q;
                        dk[(row + j) * stride + kv + x] += of_magnitudes ? fabs(to_k) : to_k;
                    }
                }
            }
    free(score);
}

double oracle_silu(double x) {
    return x / (1 + exp(-x));
}

double oracle_silu_slope(double x) {
    double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}
