// Rounding to FP8, both ways round: rows as they stand, and the transpose, which products with the tokens (or outputs)
// as their reduction read. A block takes a tile of TILE_ROWS x TILE_COLS; a thread holds 4 rows by 8 columns of it,
// turns squares of 4 x 4 bytes in registers, and the transposed tile leaves through shared memory in whole lines.
#include "ops/cuda/cuda.h"
#include "ops/cuda/fp8.cuh"

enum { TILE_ROWS = 128, TILE_COLS = 64, TILE_THREADS = 256, TILE_WORDS = TILE_COLS * TILE_ROWS / 4 };

// ---- transposing a tile ---------------------------------------------------------------------------------------------

// Word w (4 rows) of a column; the exchange spreads a warp's words over all banks and keeps 16-byte pieces whole.
__device__ __forceinline__ int tile_word(int column, int w) {
    return column * (TILE_ROWS / 4) + (w ^ (column >> 3 & 7) << 2);
}

// A thread's 4 rows by 8 columns of codes into the tile.
__device__ __forceinline__ void tile_put(uint32_t *tile, const uint2 (&codes)[4]) {
    const int column = threadIdx.x % 8 * 8, w = threadIdx.x / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = half ? codes[i].y : codes[i].x;
        const uint32_t a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[2], r[3], 0x5140); // columns 0 and 1
        const uint32_t c = __byte_perm(r[0], r[1], 0x7362), d = __byte_perm(r[2], r[3], 0x7362); // 2 and 3
        uint32_t *to = tile + tile_word(column + 4 * half, w);
        to[0] = __byte_perm(a, b, 0x5410);
        to[TILE_ROWS / 4] = __byte_perm(a, b, 0x7632);
        to[2 * (TILE_ROWS / 4)] = __byte_perm(c, d, 0x5410);
        to[3 * (TILE_ROWS / 4)] = __byte_perm(c, d, 0x7632);
    }
}

// The tile, by all threads, to rows [column, column + TILE_COLS) of out: [columns, rows]. Rows are multiples of 16.
__device__ __forceinline__ void tile_store(uint8_t *out, const uint32_t *tile, int64_t column, int64_t columns,
                                           int64_t row, int64_t rows) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE_WORDS / 4; i += TILE_THREADS) {
        const int c = i / (TILE_ROWS / 16), piece = i % (TILE_ROWS / 16);
        if (column + c < columns && row + piece * 16 < rows)
            store16(out + (column + c) * rows + row + piece * 16, load16(tile + tile_word(c, piece * 4)));
    }
}

// ---- any bf16 tensor ------------------------------------------------------------------------------------------------

template <bool E5M2, bool ROWS, bool COLS>
static __global__ __launch_bounds__(TILE_THREADS) void quantize_kernel(uint8_t *rows_out, uint8_t *cols_out,
                                                                       float *amax, const Bf16 *in, int64_t stride,
                                                                       int64_t rows, int64_t cols, const float *scale) {
    __shared__ __align__(16) uint32_t tile[COLS ? TILE_WORDS : 1];
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
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
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i] = x < cols && y + i < rows ? load8_once(in + (y + i) * cols + x) : make_uint2(0, 0);
    tile_put(tile, codes);
    __syncthreads();
    tile_store(out, tile, column, cols, row, rows);
}

static void turn_launch(CudaState *state, Tensor cols, Tensor in) {
    dim3 grid((unsigned)ceil_div64(in.cols, TILE_COLS), (unsigned)ceil_div64(in.rows, TILE_ROWS));
    if (in.rows % 16 || in.cols % 16 || !all_aligned(16, in.data, cols.data))
        cuda_fail(state, __FILE__, __LINE__, "codes are turned in sizes that are multiples of 16, not %lld x %lld",
                  (long long)in.rows, (long long)in.cols);
    else
        turn_kernel<<<grid, TILE_THREADS, 0, state->stream>>>((uint8_t *)cols.data, (const uint8_t *)in.data, in.rows,
                                                              in.cols);
}

// Any size and alignment.
template <bool E5M2>
static __global__ __launch_bounds__(256) void quantize_scalar_kernel(uint8_t *rows_out, uint8_t *cols_out, float *amax,
                                                                     const Bf16 *in, int64_t stride, int64_t rows,
                                                                     int64_t cols, const float *scale) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / cols, col = i - row * cols;
    const float value = row < rows ? to_float(in[row * stride + col]) : 0.0f;
    amax_note(amax, fabsf(value));
    if (row >= rows) return;
    const uint8_t code = (uint8_t)fp8_pair<E5M2>(value / *scale, 0);
    if (rows_out) rows_out[i] = code;
    if (cols_out) cols_out[col * rows + row] = code;
}

template <bool E5M2>
static void quantize_launch(CudaState *state, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale) {
    uint8_t *rows_out = (uint8_t *)rows.data, *cols_out = (uint8_t *)cols.data;
    float *most = (float *)amax.data;
    const float *step = (const float *)scale.data;
    const Bf16 *from = (const Bf16 *)in.data;
    bool tiles = in.cols % 8 == 0 && in.stride % 8 == 0 && all_aligned(16, in.data, cols_out) &&
                 all_aligned(8, rows_out) && (!cols_out || in.rows % 16 == 0);
    if (!tiles) {
        quantize_scalar_kernel<E5M2><<<(unsigned)ceil_div64(tensor_count(in), 256), 256, 0, state->stream>>>(
            rows_out, cols_out, most, from, in.stride, in.rows, in.cols, step);
        return;
    }
    dim3 grid((unsigned)ceil_div64(in.cols, TILE_COLS), (unsigned)ceil_div64(in.rows, TILE_ROWS));
    auto kernel = rows_out && cols_out ? quantize_kernel<E5M2, true, true>
                  : rows_out           ? quantize_kernel<E5M2, true, false>
                  : cols_out           ? quantize_kernel<E5M2, false, true>
                                       : quantize_kernel<E5M2, false, false>;
    kernel<<<grid, TILE_THREADS, 0, state->stream>>>(rows_out, cols_out, most, from, in.stride, in.rows, in.cols, step);
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
    if (amax[i] > 0 && isfinite(amax[i])) scale[i] = ldexpf(1, -ilogbf(most / amax[i]));
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

static __device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

typedef struct SwigluForward {
    uint8_t *hidden, *gate_up8;
    float *hidden_amax, *gate_up_amax;
    const Bf16 *gate_up;
    const float *hidden_scale, *gate_up_scale;
    int64_t rows;
    int dim;
} SwigluForward;

// A thread has 8 columns at a time, PIECES of them 256 pieces apart.
template <int PIECES> static __global__ __launch_bounds__(256) void swiglu_forward_kernel(SwigluForward s) {
    const unsigned pieces = (unsigned)(s.dim / 8);
    const int64_t total = s.rows * pieces, first = (int64_t)blockIdx.x * (256 * PIECES) + threadIdx.x;
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
        gate_up_most = magnitude(up, magnitude(gate, gate_up_most));
        *(uint2 *)(s.gate_up8 + at[p]) = fp8_pack<false>(gate, gate_up_inverse);
        *(uint2 *)(s.gate_up8 + at[p] + s.dim) = fp8_pack<false>(up, gate_up_inverse);
#pragma unroll
        for (int j = 0; j < 8; j++)
            gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
        most = magnitude(gate, most);
        *(uint2 *)(s.hidden + to[p]) = fp8_pack<false>(gate, hidden_inverse);
    }
    amax_note(s.hidden_amax, most);
    amax_note(s.gate_up_amax, gate_up_most);
}

extern "C" void cuda_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                        Tensor gate_up_amax, Tensor gate_up, Tensor hidden_scale,
                                        Tensor gate_up_scale) {
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
                       .dim = (int)hidden.cols};
    if (hidden.cols % 16 || !all_aligned(16, hidden.data, gate_up8.data, gate_up.data))
        cuda_fail(state, __FILE__, __LINE__, "SwiGLU in FP8 needs a width that is a multiple of 16, not %d", s.dim);
    else if (hidden.rows)
        swiglu_forward_kernel<PIECES>
            <<<(unsigned)ceil_div64(hidden.rows * (s.dim / 8), 256 * PIECES), 256, 0, state->stream>>>(s);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

typedef struct SwigluBackward {
    uint8_t *drows, *dcols, *hidden_cols;
    float *damax;
    const uint8_t *gate_up8;
    const Bf16 *dhidden;
    const float *dscale, *hidden_scale, *gate_up_scale;
    int64_t rows;
    int dim;
} SwigluBackward;

// With s the sigmoid of g: dgate = d u (s + g s (1 - s)), dup = d g s, hidden = g s u.
static __global__ __launch_bounds__(TILE_THREADS) void swiglu_backward_kernel(SwigluBackward s) {
    __shared__ __align__(16) uint32_t tiles[3][TILE_WORDS]; // dgate, dup, hidden
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
    const int64_t x = column + threadIdx.x % 8 * 8, y = row + threadIdx.x / 8 * 4;
    const float dinverse = 1.0f / *s.dscale, hidden_inverse = 1.0f / *s.hidden_scale, step = *s.gate_up_scale;
    uint2 gates[4], ups[4], hidden[4];
    uint4 grads[4];
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = x < s.dim && y + i < s.rows;
        const uint8_t *kept = s.gate_up8 + (y + i) * 2 * s.dim + x;
        gates[i] = there ? load8_once(kept) : make_uint2(0, 0);
        ups[i] = there ? load8_once(kept + s.dim) : make_uint2(0, 0);
        grads[i] = there ? load16_once(s.dhidden + (y + i) * s.dim + x) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float g[8], u[8], d[8];
        e4m3_unpack(g, gates[i], step);
        e4m3_unpack(u, ups[i], step);
        vec_unpack<Bf16>(d, grads[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float part = sigmoid(g[j]), silu = g[j] * part, grad = d[j], up = u[j];
            d[j] = silu * up;
            g[j] = grad * up * (part + silu * (1.0f - part));
            u[j] = grad * silu;
        }
        most = magnitude(u, magnitude(g, most));
        gates[i] = fp8_pack<true>(g, dinverse);
        ups[i] = fp8_pack<true>(u, dinverse);
        hidden[i] = fp8_pack<false>(d, hidden_inverse);
        if (x < s.dim && y + i < s.rows) {
            uint8_t *to = s.drows + (y + i) * 2 * s.dim + x;
            *(uint2 *)to = gates[i];
            *(uint2 *)(to + s.dim) = ups[i];
        }
    }
    amax_note(s.damax, most);
    tile_put(tiles[0], gates);
    tile_put(tiles[1], ups);
    tile_put(tiles[2], hidden);
    __syncthreads();
    tile_store(s.dcols, tiles[0], column, s.dim, row, s.rows);
    tile_store(s.dcols + (int64_t)s.dim * s.rows, tiles[1], column, s.dim, row, s.rows);
    tile_store(s.hidden_cols, tiles[2], column, s.dim, row, s.rows);
}

extern "C" void cuda_swiglu_fp8_backward(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                                         Tensor gate_up8, Tensor dhidden, Tensor dscale, Tensor hidden_scale,
                                         Tensor gate_up_scale) {
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
                        .dim = (int)dhidden.cols};
    dim3 grid((unsigned)ceil_div64(s.dim, TILE_COLS), (unsigned)ceil_div64(s.rows, TILE_ROWS));
    if (s.dim % 16 || s.rows % 16 ||
        !all_aligned(16, drows.data, dcols.data, hidden_cols.data, gate_up8.data, dhidden.data))
        cuda_fail(state, __FILE__, __LINE__, "SwiGLU in FP8 needs sizes that are multiples of 16, not %lld x %d",
                  (long long)s.rows, s.dim);
    else if (s.rows)
        swiglu_backward_kernel<<<grid, TILE_THREADS, 0, state->stream>>>(s);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
