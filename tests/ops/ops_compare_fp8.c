// The cases of ops_compare for FP8. Codes that come straight from a rounding must be the CPU's bit for bit; where float
// arithmetic comes before it, a result near the middle of two codes may be either.
#include "ops_compare.h"

#include <math.h>

static void add_scale(Compare *run, Case *c, float scale) {
    *(float *)add_in(run, c, DTYPE_F32, 1) = scale;
}

static void add_amax(Compare *run, Case *c) {
    float *amax = add(run, c, ROLE_INOUT, DTYPE_F32, 1, 1, 0);
    *amax = 0.125f;
}

static void sweep_turning_codes(Compare *run) {
    EACH(type, 0, 1) EACH_SIZE(rows, 16, 400, 128) EACH_SIZE(dim, 16, 208, 1024) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = true}};
        add_null(run, &c);
        add_out(run, &c, DTYPE_U8, (int64_t)rows * dim, 0);
        add_null(run, &c);
        add_in(run, &c, dtype, (int64_t)rows * dim);
        add_scale(run, &c, 1);
        check(run, &c, call_quantize, "codes of %s, rows %d dim %d", dtype_name(dtype), rows, dim);
    }
}

// A pile of matrices, as the experts' weights are.
static void sweep_quantize_piles(Compare *run) {
    EACH(codes, 0, 1) EACH(piles, 2, 5) EACH_SIZE(rows, 16, 80, 33) EACH_SIZE(dim, 16, 208, 41) {
        if (codes && (rows % 16 || dim % 16)) continue;
        int64_t count = (int64_t)piles * rows * dim;
        Case c = {.sizes = {.dtype = DTYPE_E4M3, .rows = piles * rows, .dim = dim, .flag = codes}};
        c.sizes.moe.experts = piles;
        if (codes)
            add_null(run, &c);
        else
            add_out(run, &c, DTYPE_U8, count, 0);
        add_out(run, &c, DTYPE_U8, count, 0);
        if (codes)
            add_null(run, &c);
        else
            add_amax(run, &c);
        add_in(run, &c, codes ? DTYPE_E4M3 : DTYPE_BF16, count);
        add_scale(run, &c, 0x1p-7f);
        check(run, &c, call_quantize, "codes %d piles %d rows %d dim %d", codes, piles, rows, dim);
    }
}

void sweep_quantize(Compare *run) {
    EACH(type, 0, 1) EACH_SIZE(rows, 16, 400, 133) EACH_SIZE(dim, 8, 200, 41, 1024) EACH(ways, 0, 1, 2, 3) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        int64_t stride = rows == 133 ? 2 * dim : dim, count = (int64_t)rows * dim;
        Case c = {
            .sizes = {
                .dtype = dtype, .rows = rows, .dim = dim, .in_stride = stride, .in_first = rows == 133 ? dim : 0}};
        for (int way = 0; way < 2; way++) {
            if (ways & 1 << way)
                add_out(run, &c, DTYPE_U8, count, 0); // to the bit
            else
                add_null(run, &c);
        }
        add_amax(run, &c);
        add_in(run, &c, DTYPE_BF16, rows * stride);
        add_scale(run, &c, type ? 0x1p-14f : 0x1p-7f); // the largest are beyond the format
        check(run, &c, call_quantize, "%s rows %d dim %d ways %d", dtype_name(dtype), rows, dim, ways);
    }
    sweep_turning_codes(run);
    sweep_quantize_piles(run);
}

void sweep_quantize_scales(Compare *run) {
    EACH(rows, 1, 7) EACH(dim, 1, 200) {
        Case c = {.sizes = {.rows = rows, .dim = dim, .value = E4M3_MAX / 2}};
        add_inout(run, &c, DTYPE_F32, (int64_t)rows * dim, 1);
        float *amax = add_inout(run, &c, DTYPE_F32, (int64_t)rows * dim, 1);
        for (int i = 0; i < rows * dim; i++)
            amax[i] = i % 5 == 4 ? (i % 2 ? INFINITY : 0) : ldexpf(fabsf(amax[i]), i % 170 - 140); // subnormal, too
        check(run, &c, call_quantize_scales, "rows %d dim %d", rows, dim);
    }
}

// Tensor cores add products in pieces of 32 with 13 bits beyond the largest of them, which is a few times the rms of
// the sum: forward all along the reduction, if it is short, elsewhere over 128 of it.
static void product_case(Compare *run, DType dtype, int kind, int rows, int in_dim, int out_dim) {
    bool fast = kind < 2 && in_dim <= OPS_FP8_SHORT_SUM;
    DType out = kind < 2 ? DTYPE_BF16 : DTYPE_F32;
    int64_t count = (int64_t)rows * out_dim;
    Case c = {
        .sizes = {
            .dtype = dtype, .rows = rows, .in_dim = in_dim, .out_dim = out_dim, .first = kind >= 2, .flag = kind == 3}};
    add(run, &c, kind == 3 ? ROLE_INOUT : ROLE_OUT, out, count, in_dim, ((fast ? in_dim / 32.0 : 4) + 6) * 0x1p-11);
    add_in(run, &c, dtype, (int64_t)rows * in_dim);
    add_in(run, &c, DTYPE_E4M3, (int64_t)out_dim * in_dim);
    add_scale(run, &c, 0x1p-3f);
    add_scale(run, &c, 0x1p-2f);
    if (kind == 1)
        add_in(run, &c, out, count);
    else
        add_null(run, &c);
    check(run, &c, call_linear_fp8, "%s kind %d rows %d in %d out %d", dtype_name(dtype), kind, rows, in_dim, out_dim);
}

void sweep_linear_fp8(Compare *run) {
    EACH(type, 0, 1) EACH(kind, 0, 1, 2, 3) {
        DType dtype = type ? DTYPE_E5M2 : DTYPE_E4M3;
        EACH_SIZE(rows, 16, 144, 1104)
        EACH_SIZE(in_dim, 32, 96, 272)
        EACH_SIZE(out_dim, 16, 64, 144) product_case(run, dtype, kind, rows, in_dim, out_dim);
        product_case(run, dtype, kind, 16, 4 * OPS_FP8_SHORT_SUM, 32); // as long as a vocabulary
    }
}

// Probabilities go down to e^-18 of the largest here: from one end of the format to the other, and below it.
void sweep_cross_entropy_fp8(Compare *run) {
    EACH_SIZE(rows, 1, 9) EACH(vocab, 16, 48, 1008, 49152, 128256, 151936, 200064) {
        Case c = {.sizes = {.rows = rows, .vocab = vocab}};
        int64_t count = (int64_t)rows * vocab;
        add(run, &c, ROLE_OUT, DTYPE_F32, rows, vocab, 0x1p-20);
        add_out(run, &c, DTYPE_E5M2, count, 0);
        random_fill(add_in(run, &c, DTYPE_BF16, count), DTYPE_BF16, count, 3.0f, run->seed++);
        int32_t *targets = add_in(run, &c, DTYPE_I32, rows);
        for (int i = 0; i < rows; i++)
            targets[i] = i % 4 == 3 ? -1 : (int32_t)((int64_t)(i + 1) * 7919 % vocab);
        add_scale(run, &c, 0.001f);
        add_scale(run, &c, 0x1p-25f);
        check(run, &c, call_cross_entropy_fp8, "rows %d vocab %d", rows, vocab);
    }
}

void sweep_rmsnorm_fp8_forward(Compare *run) {
    EACH_SIZE(rows, 1, 37, 300) EACH(dim, 16, 41, 256, 960, 2048, 8192) {
        Case c = {.sizes = {.dtype = DTYPE_E4M3, .rows = rows, .dim = dim}};
        int64_t count = (int64_t)rows * dim;
        add_out(run, &c, DTYPE_BF16, count, dim);
        add_out(run, &c, DTYPE_E4M3, count, dim);
        float *amax = add(run, &c, ROLE_INOUT, DTYPE_F32, 1, dim, 0x1p-7);
        *amax = 0.125f;
        add_out(run, &c, DTYPE_F32, rows, dim);
        add_in(run, &c, DTYPE_BF16, count);
        add_in(run, &c, DTYPE_BF16, dim);
        add_scale(run, &c, 0x1p-5f);
        check(run, &c, call_rmsnorm_fp8_forward, "rows %d dim %d", rows, dim);
    }
}

// Weights of expert rows, and how many rows there are: not the last ones, which hold anything.
static void add_row_weights(Compare *run, Case *c, bool experts, int64_t rows) {
    enum { TILE = OPS_CUDA_ROW_ALIGN };
    if (!experts) {
        add_null(run, c);
        add_null(run, c);
        return;
    }
    positive(add_in(run, c, DTYPE_F32, rows), rows);
    *(int32_t *)add_in(run, c, DTYPE_I32, 1) = (int32_t)(rows > TILE ? rows - TILE : rows);
}

void sweep_swiglu_fp8_forward(Compare *run) {
    EACH(experts, 0, 1) EACH_SIZE(rows, 1, 37, 300, 512) EACH_SIZE(dim, 16, 80, 2560) {
        Case c = {.sizes = {.rows = rows, .dim = dim}};
        int64_t count = (int64_t)rows * dim;
        add_out(run, &c, DTYPE_E4M3, count, 0);
        add_amax(run, &c);
        if (experts) c.buffers[1].inner = 0x1p-18; // with a weight the largest may be of any gate
        add_out(run, &c, DTYPE_U8, 2 * count, 0);
        add_amax(run, &c);
        add_in(run, &c, DTYPE_BF16, 2 * count);
        add_scale(run, &c, 0x1p-6f);
        add_scale(run, &c, 0x1p-5f);
        add_row_weights(run, &c, experts, rows);
        check(run, &c, call_swiglu_fp8_forward, "rows %d dim %d experts %d", rows, dim, experts);
    }
}

void sweep_swiglu_fp8_backward(Compare *run) {
    EACH(experts, 0, 1) EACH_SIZE(rows, 16, 48, 400, 512) EACH_SIZE(dim, 16, 80, 2560) {
        if (experts) rows = OPS_CUDA_ROW_ALIGN * (2 + rows / 128); // whole tiles are in use, and one is not
        Case c = {.sizes = {.rows = rows, .dim = dim}};
        int64_t count = (int64_t)rows * dim;
        add_out(run, &c, DTYPE_E5M2, 2 * count, 0);
        add_out(run, &c, DTYPE_E5M2, 2 * count, 0);
        add_amax(run, &c);
        if (experts) c.buffers[2].inner = 0x1p-18;
        add_out(run, &c, DTYPE_E4M3, count, 0);
        if (experts)
            add(run, &c, ROLE_OUT, DTYPE_F32, rows, dim, 0x1p-16); // for fast exponentials
        else
            add_null(run, &c);
        add_in(run, &c, DTYPE_E4M3, 2 * count);
        add_in(run, &c, DTYPE_BF16, count);
        add_scale(run, &c, 0x1p-12f);
        add_scale(run, &c, 0x1p-6f);
        add_scale(run, &c, 1.0f);
        add_row_weights(run, &c, experts, rows);
        check(run, &c, call_swiglu_fp8_backward, "rows %d dim %d experts %d", rows, dim, experts);
    }
}

// 1104 rows with dims that are multiples of 32: the kernels for one op race there, and each is checked against the two
// separate ones. A sum of the tensor cores is off by some `off` of the sums' rms, as in linear_fp8, and may fall on the
// other side of a bf16 (2^-7 of it, and results reach four times their rms) and then of a code. With gate and up of
// deviation d, hidden has an rms of at least 0.4 d^2 and, at four times d, changes by 2 * 4 d times what they do: 20
// times that; steps of bf16 are within one step of a code.
void sweep_linear_swiglu_fp8_forward(Compare *run) {
    EACH_SIZE(rows, 16, 1104, 144) EACH(in_dim, 192, 224, 272) EACH_SIZE(dim, 48, 224, 16, 96) {
        Case c = {.sizes = {.rows = rows, .in_dim = in_dim, .dim = dim}};
        const bool noted = in_dim != 224;
        const double off = (in_dim / 32.0 + 6) * 0x1p-11;
        int64_t count = (int64_t)rows * dim;
        add(run, &c, ROLE_OUT, DTYPE_E4M3, count, 0, 20 * off);
        c.buffers[0].steps = 1;
        add(run, &c, noted ? ROLE_INOUT : ROLE_NULL, DTYPE_F32, 1, 1, 2 * off + 0x1p-5);
        add(run, &c, ROLE_OUT, DTYPE_E4M3, 2 * count, 0, off + 0x1p-5);
        add(run, &c, noted ? ROLE_INOUT : ROLE_NULL, DTYPE_F32, 1, 1, off + 0x1p-7);
        for (int i = 1; noted && i < 4; i += 2)
            *(float *)c.buffers[i].start = 0.125f;
        add(run, &c, ROLE_SCRATCH, DTYPE_BF16, 2 * count, 0, 0);
        add_in(run, &c, DTYPE_E4M3, (int64_t)rows * in_dim);
        add_in(run, &c, DTYPE_E4M3, (int64_t)2 * dim * in_dim);
        add_scale(run, &c, 0x1p-3f);
        add_scale(run, &c, 0x1p-2f);
        add_scale(run, &c, 0x1p-8f);
        add_scale(run, &c, 0x1p-9f); // the largest are beyond the format
        check(run, &c, call_linear_swiglu_fp8_forward, "rows %d in %d dim %d", rows, in_dim, dim);
    }
}
