// Rounding to FP8, both ways round: rows as they stand, and the transpose, which products with the tokens (or outputs)
// as their reduction read, and SwiGLU between products in FP8.
#include "ops/cuda/cuda.h"
#include "ops/cuda/fp8.cuh"

// ---- any bf16 tensor ------------------------------------------------------------------------------------------------

template <bool E5M2, bool ROWS, bool COLS>
static __global__ __launch_bounds__(TILE_THREADS) void quantize_kernel(uint8_t *rows_out, uint8_t *cols_out,
                                                                       float *amax, const Bf16 *in, int64_t stride,
                                                                       int64_t rows, int64_t cols, const float *scale) {
    __shared__ __align__(16) uint32_t tile[COLS ? TILE_WORDS : 1];
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
    if (COLS) { // one of a pile of matrices
        in += blockIdx.z * rows * stride, cols_out += blockIdx.z * rows * cols;
        if (ROWS) rows_out += blockIdx.z * rows * cols;
    }
    const int64_t x = column + threadIdx.x % 8 * 8, y = row + threadIdx.x / 8 * 4;
    const float inverse = 1.0f / *scale;
    uint4 raw[4];
    uint2 codes[4];
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        raw[i] = x < cols && y + i < rows ? load16_once(in + (y + i) * stride + x) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float value[8];
        vec_unpack<Bf16>(value, raw[i]);
        most = magnitude(value, most);
        if (ROWS || COLS) codes[i] = fp8_pack<E5M2>(value, inverse);
        if (ROWS && x < cols && y + i < rows) *(uint2 *)(rows_out + (y + i) * cols + x) = codes[i];
    }
    amax_note(amax, most);
    if constexpr (COLS) {
        tile_put(tile, codes);
        __syncthreads();
        tile_store(cols_out, tile, column, cols, row, rows);
    }
}

// Codes that were rounded before, as they are.
static __global__ __launch_bounds__(TILE_THREADS) void turn_kernel(uint8_t *out, const uint8_t *in, int64_t rows,
                                                                   int64_t cols) {
    __shared__ __align__(16) uint32_t tile[TILE_WORDS];
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
    const int64_t x = column + threadIdx.x % 8 * 8, y = row + threadIdx.x / 8 * 4;
    in += blockIdx.z * rows * cols, out += blockIdx.z * rows * cols; // one of a pile
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i] = x < cols && y + i < rows ? load8_once(in + (y + i) * cols + x) : make_uint2(0, 0);
    tile_put(tile, codes);
    __syncthreads();
    tile_store(out, tile, column, cols, row, rows);
}

static void turn_launch(CudaState *state, Tensor cols, Tensor in) {
    const int64_t rows = cols.cols;
    dim3 grid((unsigned)ceil_div64(in.cols, TILE_COLS), (unsigned)ceil_div64(rows, TILE_ROWS),
              (unsigned)(in.rows / rows));
    if (rows % 16 || in.cols % 16 || !all_aligned(16, in.data, cols.data))
        cuda_fail(state, __FILE__, __LINE__, "codes are turned in sizes that are multiples of 16, not %lld x %lld",
                  (long long)rows, (long long)in.cols);
    else
        turn_kernel<<<grid, TILE_THREADS, 0, state->stream>>>((uint8_t *)cols.data, (const uint8_t *)in.data, rows,
                                                              in.cols);
}

// Any size and alignment.
template <bool E5M2>
static __global__ __launch_bounds__(256) void quantize_scalar_kernel(uint8_t *rows_out, uint8_t *cols_out, float *amax,
                                                                     const Bf16 *in, int64_t stride, int64_t rows,
                                                                     int64_t cols, int64_t pile, const float *scale) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / cols, col = i - row * cols;
    const float value = row < rows ? to_float(in[row * stride + col]) : 0.0f;
    amax_note(amax, fabsf(value));
    if (row >= rows) return;
    const uint8_t code = (uint8_t)fp8_pair<E5M2>(value / *scale, 0);
    if (rows_out) rows_out[i] = code;
    if (cols_out) cols_out[(row / pile * cols + col) * pile + row % pile] = code; // pile: rows of one matrix
}

template <bool E5M2>
static void quantize_launch(CudaState *state, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale) {
    uint8_t *rows_out = (uint8_t *)rows.data, *cols_out = (uint8_t *)cols.data;
    float *most = (float *)amax.data;
    const float *step = (const float *)scale.data;
    const Bf16 *from = (const Bf16 *)in.data;
    const int64_t pile = cols_out ? cols.cols : in.rows; // rows of one of the matrices
    bool tiles = in.cols % 8 == 0 && in.stride % 8 == 0 && all_aligned(16, in.data, cols_out) &&
                 all_aligned(8, rows_out) && (!cols_out || pile % 16 == 0);
    if (!tiles) {
        quantize_scalar_kernel<E5M2><<<(unsigned)ceil_div64(tensor_count(in), 256), 256, 0, state->stream>>>(
            rows_out, cols_out, most, from, in.stride, in.rows, in.cols, pile, step);
        return;
    }
    dim3 grid((unsigned)ceil_div64(in.cols, TILE_COLS), (unsigned)ceil_div64(pile, TILE_ROWS),
              (unsigned)(in.rows / pile));
    auto kernel = rows_out && cols_out ? quantize_kernel<E5M2, true, true>
                  : rows_out           ? quantize_kernel<E5M2, true, false>
                  : cols_out           ? quantize_kernel<E5M2, false, true>
                                       : quantize_kernel<E5M2, false, false>;
    kernel<<<grid, TILE_THREADS, 0, state->stream>>>(rows_out, cols_out, most, from, in.stride, pile, in.cols, step);
}

extern "C" void cuda_quantize(Ops *ops, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale) {
    if (tensor_count(in) == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_QUANTIZE);
    if (in.dtype != DTYPE_BF16)
        turn_launch(state, cols, in);
    else if (rows.dtype == DTYPE_E5M2 || cols.dtype == DTYPE_E5M2)
        quantize_launch<true>(state, rows, cols, amax, in, scale);
    else
        quantize_launch<false>(state, rows, cols, amax, in, scale);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

static __global__ void quantize_scales_kernel(float *scale, float *amax, float most, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (amax[i] > 0 && isfinite(amax[i]))
        scale[i] = ldexpf(1, -ilogbf(most / fmaxf(amax[i], most * OPS_FP8_LEAST_SCALE)));
    amax[i] = 0;
}

extern "C" void cuda_quantize_scales(Ops *ops, Tensor scale, Tensor amax, float most) {
    CudaState *state = cuda_scope_begin(ops, OP_QUANTIZE_SCALES);
    quantize_scales_kernel<<<(unsigned)ceil_div64(tensor_count(scale), 128), 128, 0, state->stream>>>(
        (float *)scale.data, (float *)amax.data, most, tensor_count(scale));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- SwiGLU ---------------------------------------------------------------------------------------------------------

typedef struct SwigluForward {
    uint8_t *hidden, *gate_up8;
    float *hidden_amax, *gate_up_amax;
    const Bf16 *gate_up;
    const float *hidden_scale, *gate_up_scale;
    int64_t rows;
    int dim;
    const float *row_weight; // of expert rows
    const int32_t *row_count;
} SwigluForward;

// A thread has 8 columns at a time, PIECES of them 256 pieces apart. EXPERTS: of expert rows, with their weights.
template <int PIECES, bool EXPERTS>
static __global__ __launch_bounds__(256) void swiglu_forward_kernel(SwigluForward s) {
    const unsigned pieces = (unsigned)(s.dim / 8);
    const int64_t rows = EXPERTS ? min(s.rows, (int64_t)*s.row_count) : s.rows;
    const int64_t total = rows * pieces, first = (int64_t)blockIdx.x * (256 * PIECES) + threadIdx.x;
    const float hidden_inverse = 1.0f / *s.hidden_scale, gate_up_inverse = 1.0f / *s.gate_up_scale;
    uint4 gates[PIECES], ups[PIECES];
    int64_t at[PIECES], to[PIECES];
    float most = 0, gate_up_most = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int64_t i = first + p * 256;
        if (i >= total) break;
        const int64_t row = i / pieces, column = (i - row * pieces) * 8;
        at[p] = row * 2 * s.dim + column, to[p] = row * s.dim + column;
        gates[p] = load16_once(s.gate_up + at[p]);
        ups[p] = load16_once(s.gate_up + at[p] + s.dim);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (first + p * 256 >= total) break;
        float gate[8], up[8];
        vec_unpack<Bf16>(gate, gates[p]);
        vec_unpack<Bf16>(up, ups[p]);
        const float weight = EXPERTS ? s.row_weight[to[p] / s.dim] : 1.0f;
        const SwigluCodes codes = swiglu_round(gate, up, weight, hidden_inverse, gate_up_inverse, most, gate_up_most);
        *(uint2 *)(s.gate_up8 + at[p]) = codes.gate;
        *(uint2 *)(s.gate_up8 + at[p] + s.dim) = codes.up;
        *(uint2 *)(s.hidden + to[p]) = codes.hidden;
    }
    amax_note(s.hidden_amax, most);
    amax_note(s.gate_up_amax, gate_up_most);
}

extern "C" void cuda_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                        Tensor gate_up_amax, Tensor gate_up, Tensor hidden_scale, Tensor gate_up_scale,
                                        Tensor row_weight, Tensor row_count) {
    enum { PIECES = 4 };
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_FP8_FORWARD);
    SwigluForward s = {.hidden = (uint8_t *)hidden.data,
                       .gate_up8 = (uint8_t *)gate_up8.data,
                       .hidden_amax = (float *)hidden_amax.data,
                       .gate_up_amax = (float *)gate_up_amax.data,
                       .gate_up = (const Bf16 *)gate_up.data,
                       .hidden_scale = (const float *)hidden_scale.data,
                       .gate_up_scale = (const float *)gate_up_scale.data,
                       .rows = hidden.rows,
                       .dim = (int)hidden.cols,
                       .row_weight = (const float *)row_weight.data,
                       .row_count = (const int32_t *)row_count.data};
    auto kernel = s.row_count ? swiglu_forward_kernel<PIECES, true> : swiglu_forward_kernel<PIECES, false>;
    if (hidden.cols % 16 || !all_aligned(16, hidden.data, gate_up8.data, gate_up.data))
        cuda_fail(state, __FILE__, __LINE__, "SwiGLU in FP8 needs a width that is a multiple of 16, not %d", s.dim);
    else if (hidden.rows)
        kernel<<<(unsigned)ceil_div64(hidden.rows * (s.dim / 8), 256 * PIECES), 256, 0, state->stream>>>(s);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

static __global__ __launch_bounds__(TILE_THREADS) void swiglu_backward_kernel(SwigluBackward s) {
    __shared__ __align__(16) uint32_t tiles[3][TILE_WORDS]; // dgate, dup, hidden
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
    const int64_t x = column + threadIdx.x % 8 * 8, y = row + threadIdx.x / 8 * 4;
    const float weight[4] = {1, 1, 1, 1};
    float dweight[4] = {}; // of rows without weights, which nobody asks for
    uint2 gates[4], ups[4], hidden[4];
    amax_note(s.damax, swiglu_back_rows(s, swiglu_steps(s), gates, ups, hidden, x, y, s.rows, weight, dweight, 0));
    swiglu_tiles_store(s, tiles, gates, ups, hidden, column, row);
}

extern "C" void cuda_swiglu_fp8_backward(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                                         Tensor drow_weight, Tensor gate_up8, Tensor dhidden, Tensor dscale,
                                         Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight,
                                         Tensor row_count) {
    CudaState *state = cuda_scope_begin(ops, OP_SWIGLU_FP8_BACKWARD);
    SwigluBackward s = {.drows = (uint8_t *)drows.data,
                        .dcols = (uint8_t *)dcols.data,
                        .hidden_cols = (uint8_t *)hidden_cols.data,
                        .damax = (float *)damax.data,
                        .gate_up8 = (const uint8_t *)gate_up8.data,
                        .dhidden = (const Bf16 *)dhidden.data,
                        .dscale = (const float *)dscale.data,
                        .hidden_scale = (const float *)hidden_scale.data,
                        .gate_up_scale = (const float *)gate_up_scale.data,
                        .rows = dhidden.rows,
                        .dim = (int)dhidden.cols,
                        .row_weight = (const float *)row_weight.data,
                        .drow_weight = (float *)drow_weight.data,
                        .row_count = (const int32_t *)row_count.data};
    dim3 grid((unsigned)ceil_div64(s.dim, TILE_COLS), (unsigned)ceil_div64(s.rows, TILE_ROWS));
    if (s.dim % 16 || s.rows % 16 ||
        !all_aligned(16, drows.data, dcols.data, hidden_cols.data, gate_up8.data, dhidden.data))
        cuda_fail(state, __FILE__, __LINE__, "SwiGLU in FP8 needs sizes that are multiples of 16, not %lld x %d",
                  (long long)s.rows, s.dim);
    else if (s.rows && s.row_count)
        swiglu_experts_backward(state, &s);
    else if (s.rows)
        swiglu_backward_kernel<<<grid, TILE_THREADS, 0, state->stream>>>(s);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
