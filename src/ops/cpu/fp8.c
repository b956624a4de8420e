// FP8 by emulation: the same rounding as on a GPU, products in float. A code becomes a float by a table that already
// contains the scale, which is a power of two, so that nothing is rounded twice.
#include "ops/cpu/cpu.h"

#include <math.h>

void cpu_fp8_table(float table[256], DType dtype, Tensor scale) {
    for (int code = 0; code < 256; code++)
        table[code] = fp8_to_f32((uint8_t)code, dtype) * *(const float *)scale.data;
}

void cpu_fp8_to_floats(float *out, const uint8_t *in, const float table[256], int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = table[in[i]];
}

// Rows of floats, or columns of them, to FP8; returns the largest magnitude, or `most` where that is larger.
static float round_row(uint8_t *rows, uint8_t *cols, int64_t cols_stride, DType dtype, const float *in, int64_t count,
                       float scale, float most) {
    for (int64_t i = 0; i < count; i++) {
        float magnitude = fabsf(in[i]);
        if (magnitude > most) most = magnitude;
        if (!rows && !cols) continue;
        uint8_t code = fp8_from_f32(in[i] / scale, dtype);
        if (rows) rows[i] = code;
        if (cols) cols[i * cols_stride] = code;
    }
    return most;
}

// ---- tasks over rows: each part leaves its maximum, and the order of maxima does not matter
// ---------------------------

enum { ROUND_FLOATS = 1 << 12 }; // of a row at a time, on the stack

typedef struct Round {
    Tensor rows, cols, in;
    float scale;
    float *most; // [CPU_PARTS]
} Round;

// The element of cols that is (row, col) of in. cols: one transpose, or a pile of them.
static uint8_t *turned_at(const Round *r, int64_t row, int64_t col) {
    return tensor_at(r->cols, row / r->cols.cols * r->in.cols + col, row % r->cols.cols);
}

static void round_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Round *r = context;
    DType dtype = tensor_present(r->rows) ? r->rows.dtype : tensor_present(r->cols) ? r->cols.dtype : DTYPE_E4M3;
    float most = 0, buffer[ROUND_FLOATS];
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < r->in.cols; at += ROUND_FLOATS) {
            int64_t count = r->in.cols - at < ROUND_FLOATS ? r->in.cols - at : ROUND_FLOATS;
            cpu_to_floats(buffer, tensor_at(r->in, row, at), r->in.dtype, count);
            uint8_t *rows = tensor_present(r->rows) ? tensor_at(r->rows, row, at) : NULL;
            uint8_t *cols = tensor_present(r->cols) ? turned_at(r, row, at) : NULL;
            most = round_row(rows, cols, r->cols.stride, dtype, buffer, count, r->scale, most);
        }
    r->most[begin / cpu_part_rows(r->in.rows)] = most;
}

static void note_amax(Tensor amax, const float *most, int64_t parts) {
    if (!tensor_present(amax)) return;
    float *value = amax.data;
    for (int64_t i = 0; i < parts; i++)
        if (most[i] > *value) *value = most[i];
}

static void turn_task(void *context, int64_t begin, int64_t end, int worker) { // columns of what is turned
    (void)worker;
    const Round *r = context;
    for (int64_t col = begin; col < end; col++)
        for (int64_t row = 0; row < r->in.rows; row++)
            *turned_at(r, row, col) = *(const uint8_t *)tensor_at(r->in, row, col);
}

static void cpu_quantize(Ops *ops, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale) {
    CPU_TIMED(ops, OP_QUANTIZE);
    if (in.dtype != DTYPE_BF16) {
        threads_for(in.cols, cpu_part_rows(in.cols), turn_task, &(Round){.cols = cols, .in = in});
        return;
    }
    float most[CPU_PARTS] = {0};
    threads_for(in.rows, cpu_part_rows(in.rows), round_task,
                &(Round){rows, cols, in, *(const float *)scale.data, most});
    note_amax(amax, most, cpu_part_count(in.rows));
}

static void cpu_quantize_scales(Ops *ops, Tensor scale, Tensor amax, float most) {
    CPU_TIMED(ops, OP_QUANTIZE_SCALES);
    float *scales = scale.data, *largest = amax.data;
    for (int64_t i = 0; i < tensor_count(scale); i++) {
        if (largest[i] > 0 && isfinite(largest[i]))
            scales[i] = ldexpf(1, -ilogbf(most / fmaxf(largest[i], most * OPS_FP8_LEAST_SCALE)));
        largest[i] = 0;
    }
}

static void cpu_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor add,
                           bool accumulate) {
    CPU_TIMED(ops, OP_LINEAR_FP8);
    float a_table[256], b_table[256];
    cpu_fp8_table(a_table, a.dtype, a_scale);
    cpu_fp8_table(b_table, b.dtype, b_scale);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = out.rows,
                                  .n = out.cols,
                                  .k = a.cols,
                                  .a = {a.data, a.stride, false, a.dtype, a_table},
                                  .b = {b.data, b.stride, true, b.dtype, b_table},
                                  .c = out.data,
                                  .c_stride = out.stride,
                                  .c_dtype = out.dtype,
                                  .accumulate = accumulate,
                                  .add = add.data});
}

static void cpu_rmsnorm_fp8_forward(Ops *ops, Tensor out, Tensor rows, Tensor amax, Tensor rstd, Tensor residual,
                                    Tensor weight, Tensor scale, float eps) {
    ops->add_rmsnorm_forward(ops, out, TENSOR_NONE, rstd, residual, TENSOR_NONE, weight, eps);
    ops->quantize(ops, rows, TENSOR_NONE, amax, out, scale);
}

// ---- SwiGLU
// -----------------------------------------------------------------------------------------------------------

typedef struct SwigluFp8 {
    Tensor hidden, gate_up8, gate_up; // forward
    Tensor drows, dcols, hidden_cols, dhidden;
    float hidden_scale, gate_up_scale, dscale;
    const float *table;         // of gate_up8
    float *most, *gate_up_most; // [CPU_PARTS]
    int64_t part;               // rows of each
    const float *row_weight;    // of expert rows, else NULL
    float *drow_weight;
} SwigluFp8;

static int64_t existing_rows(int64_t rows, Tensor row_count) {
    const int32_t *count = row_count.data;
    return count && *count < rows ? *count : rows;
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void swiglu_forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const SwigluFp8 *s = context;
    int64_t dim = s->hidden.cols;
    float most = 0, gate_up_most = 0, value[3];
    for (int64_t row = begin; row < end; row++) {
        float weight = s->row_weight ? s->row_weight[row] : 1.0f;
        const bf16 *in = tensor_at(s->gate_up, row, 0);
        uint8_t *kept = tensor_at(s->gate_up8, row, 0), *hidden = tensor_at(s->hidden, row, 0);
        for (int64_t i = 0; i < dim; i++) {
            float gate = value[0] = bf16_to_f32(in[i]), up = value[1] = bf16_to_f32(in[dim + i]);
            value[2] = gate * sigmoid(gate) * up * weight;
            gate_up_most = round_row(kept + i, NULL, 0, DTYPE_E4M3, &value[0], 1, s->gate_up_scale, gate_up_most);
            gate_up_most = round_row(kept + dim + i, NULL, 0, DTYPE_E4M3, &value[1], 1, s->gate_up_scale, gate_up_most);
            most = round_row(hidden + i, NULL, 0, DTYPE_E4M3, &value[2], 1, s->hidden_scale, most);
        }
    }
    s->most[begin / s->part] = most;
    s->gate_up_most[begin / s->part] = gate_up_most;
}

static void cpu_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                   Tensor gate_up, Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight,
                                   Tensor row_count) {
    CPU_TIMED(ops, OP_SWIGLU_FP8_FORWARD);
    float most[CPU_PARTS] = {0}, gate_up_most[CPU_PARTS] = {0};
    int64_t rows = existing_rows(hidden.rows, row_count);
    threads_for(rows, cpu_part_rows(rows), swiglu_forward_task,
                &(SwigluFp8){.hidden = hidden,
                             .gate_up8 = gate_up8,
                             .gate_up = gate_up,
                             .hidden_scale = *(const float *)hidden_scale.data,
                             .gate_up_scale = *(const float *)gate_up_scale.data,
                             .most = most,
                             .gate_up_most = gate_up_most,
                             .part = cpu_part_rows(rows),
                             .row_weight = row_weight.data});
    note_amax(hidden_amax, most, cpu_part_count(rows));
    note_amax(gate_up_amax, gate_up_most, cpu_part_count(rows));
}

// With s = sigmoid(g): dgate = d u (s + g s (1 - s)), dup = d g s.
static void swiglu_backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const SwigluFp8 *s = context;
    int64_t dim = s->dhidden.cols, stride = s->dcols.stride;
    float most = 0;
    for (int64_t row = begin; row < end; row++) {
        const uint8_t *kept = tensor_at(s->gate_up8, row, 0);
        const bf16 *dhidden = tensor_at(s->dhidden, row, 0);
        uint8_t *drow = tensor_at(s->drows, row, 0), *dcol = tensor_at(s->dcols, 0, row);
        uint8_t *hidden = tensor_at(s->hidden_cols, 0, row);
        float weight = s->row_weight ? s->row_weight[row] : 1.0f, dweight = 0;
        for (int64_t i = 0; i < dim; i++) {
            float g = s->table[kept[i]], u = s->table[kept[dim + i]], dout = bf16_to_f32(dhidden[i]);
            float part = sigmoid(g), silu = g * part, d = dout * weight;
            float dgate = d * u * (part + silu * (1.0f - part)), dup = d * silu, h = silu * u * weight;
            dweight += dout * silu * u;
            most = round_row(drow + i, dcol + i * stride, 0, DTYPE_E5M2, &dgate, 1, s->dscale, most);
            most = round_row(drow + dim + i, dcol + (dim + i) * stride, 0, DTYPE_E5M2, &dup, 1, s->dscale, most);
            round_row(hidden + i * s->hidden_cols.stride, NULL, 0, DTYPE_E4M3, &h, 1, s->hidden_scale, 0);
        }
        if (s->drow_weight) s->drow_weight[row] = dweight;
    }
    s->most[begin / s->part] = most;
}

static void cpu_swiglu_fp8_backward(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                                    Tensor drow_weight, Tensor gate_up8, Tensor dhidden, Tensor dscale,
                                    Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight, Tensor row_count) {
    CPU_TIMED(ops, OP_SWIGLU_FP8_BACKWARD);
    float table[256], most[CPU_PARTS] = {0};
    cpu_fp8_table(table, DTYPE_E4M3, gate_up_scale);
    int64_t rows = existing_rows(dhidden.rows, row_count);
    threads_for(rows, cpu_part_rows(rows), swiglu_backward_task,
                &(SwigluFp8){.gate_up8 = gate_up8,
                             .drows = drows,
                             .dcols = dcols,
                             .hidden_cols = hidden_cols,
                             .dhidden = dhidden,
                             .dscale = *(const float *)dscale.data,
                             .hidden_scale = *(const float *)hidden_scale.data,
                             .table = table,
                             .most = most,
                             .part = cpu_part_rows(rows),
                             .row_weight = row_weight.data,
                             .drow_weight = drow_weight.data});
    note_amax(damax, most, cpu_part_count(rows));
}

void cpu_install_fp8(Ops *ops) {
    ops->quantize = cpu_quantize;
    ops->quantize_scales = cpu_quantize_scales;
    ops->linear_fp8 = cpu_linear_fp8;
    ops->rmsnorm_fp8_forward = cpu_rmsnorm_fp8_forward;
    ops->swiglu_fp8_forward = cpu_swiglu_fp8_forward;
    ops->swiglu_fp8_backward = cpu_swiglu_fp8_backward;
    ops->linear_swiglu_fp8_forward = ops_linear_then_swiglu_fp8_forward;
}
