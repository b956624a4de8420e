// FP8 between the grouped products of MoE: codes of tokens to expert rows, both ways round, and SwiGLU's backward pass
// of expert rows.
#include "ops/cuda/cuda.h"
#include "ops/cuda/fp8.cuh"

// ---- tokens to rows -------------------------------------------------------------------------------------------------

// A warp writes a row. The codes of all tokens are about as many bytes as the L2 cache has, so that reading a token
// once for each of its rows costs little.
static __global__ __launch_bounds__(256) void gather_rows_kernel(uint8_t *out, const uint8_t *in,
                                                                 const int32_t *token_of_row, const int32_t *count,
                                                                 int dim) {
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= *count) return;
    const int64_t token = token_of_row[row];
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32 * 16; i < dim; i += 32 * 16)
        store16(out + row * dim + i, token < 0 ? make_uint4(0, 0, 0, 0) : load16(in + token * dim + i));
}

template <bool ROWS>
static __global__
__launch_bounds__(TILE_THREADS) void gather_cols_kernel(uint8_t *rows_out, uint8_t *cols_out, const uint8_t *in,
                                                        const int32_t *token_of_row, const int32_t *count, int64_t rows,
                                                        int64_t cols) {
    __shared__ __align__(16) uint32_t tile[TILE_WORDS];
    const int64_t column = blockIdx.x * (int64_t)TILE_COLS, row = blockIdx.y * (int64_t)TILE_ROWS;
    const int64_t x = column + threadIdx.x % 8 * 8, y = row + threadIdx.x / 8 * 4;
    if (row >= *count) return; // a multiple of CUDA_ROW_ALIGN: all rows of the tile are in use, or none
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t token = x < cols ? token_of_row[y + i] : -1;
        codes[i] = token < 0 ? make_uint2(0, 0) : *(const uint2 *)(in + token * cols + x);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (ROWS && x < cols) *(uint2 *)(rows_out + (y + i) * cols + x) = codes[i];
    tile_put(tile, codes);
    __syncthreads();
    tile_store(cols_out, tile, column, cols, row, rows);
}

static_assert(CUDA_ROW_ALIGN % TILE_ROWS == 0, "a tile has rows that are all in use, or none");

// Any size and alignment.
static __global__ __launch_bounds__(256) void gather_scalar_kernel(uint8_t *rows_out, uint8_t *cols_out,
                                                                   const uint8_t *in, const int32_t *token_of_row,
                                                                   const int32_t *count, int64_t rows, int64_t cols) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = i / cols, col = i - row * cols;
    if (row >= *count) return;
    const int64_t token = token_of_row[row];
    const uint8_t code = token < 0 ? 0 : in[token * cols + col];
    if (rows_out) rows_out[i] = code;
    if (cols_out) cols_out[col * rows + row] = code;
}

extern "C" void cuda_moe_gather_fp8(Ops *ops, Tensor rows, Tensor cols, Tensor in, const MoeRouting *routing) {
    const MoePointers p = moe_pointers(routing);
    const int64_t count = routing->token_of_row.rows;
    const int32_t *used = p.offsets + p.experts;
    const uint8_t *from = (const uint8_t *)in.data;
    uint8_t *rows_out = (uint8_t *)rows.data, *cols_out = (uint8_t *)cols.data;
    if (count == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_MOE_GATHER_FP8);
    dim3 tiles((unsigned)ceil_div64(in.cols, TILE_COLS), (unsigned)ceil_div64(count, TILE_ROWS));
    if (in.cols % 16 || count % TILE_ROWS || !all_aligned(16, rows_out, cols_out, from))
        gather_scalar_kernel<<<(unsigned)ceil_div64(count * in.cols, 256), 256, 0, state->stream>>>(
            rows_out, cols_out, from, p.token_of_row, used, count, in.cols);
    else if (!cols_out)
        gather_rows_kernel<<<(unsigned)ceil_div64(count, 8), 256, 0, state->stream>>>(rows_out, from, p.token_of_row,
                                                                                      used, (int)in.cols);
    else if (rows_out)
        gather_cols_kernel<true>
            <<<tiles, TILE_THREADS, 0, state->stream>>>(rows_out, cols_out, from, p.token_of_row, used, count, in.cols);
    else
        gather_cols_kernel<false>
            <<<tiles, TILE_THREADS, 0, state->stream>>>(rows_out, cols_out, from, p.token_of_row, used, count, in.cols);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- SwiGLU ---------------------------------------------------------------------------------------------------------

// A block takes TILE_ROWS rows and walks their columns, so that it has the gradients of the rows' weights in the end:
// sums over a row in a fixed order.
static __global__ __launch_bounds__(TILE_THREADS) void swiglu_experts_backward_kernel(SwigluBackward s) {
    __shared__ __align__(16) uint32_t tiles[3][TILE_WORDS]; // dgate, dup, hidden
    const int64_t row = blockIdx.x * (int64_t)TILE_ROWS, y = row + threadIdx.x / 8 * 4;
    const int64_t rows = min(s.rows, (int64_t)*s.row_count);
    if (row >= rows) return;
    const SwigluSteps step = swiglu_steps(s);
    float most = 0, weight[4], dweight[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        weight[i] = y + i < rows ? s.row_weight[y + i] : 0;
    for (int64_t column = 0; column < s.dim; column += TILE_COLS) {
        const int64_t x = column + threadIdx.x % 8 * 8;
        uint2 gates[4], ups[4], hidden[4];
        most = swiglu_back_rows(s, step, gates, ups, hidden, x, y, rows, weight, dweight, most);
        if (column) __syncthreads(); // the tiles before have left
        swiglu_tiles_store(s, tiles, gates, ups, hidden, column, row);
    }
    amax_note(s.damax, most);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int apart = 4; apart > 0; apart /= 2) // eight threads have a row
            dweight[i] += __shfl_xor_sync(0xffffffff, dweight[i], apart);
        if (threadIdx.x % 8 == 0 && y + i < rows) s.drow_weight[y + i] = dweight[i];
    }
}

void swiglu_experts_backward(CudaState *state, const SwigluBackward *s) {
    swiglu_experts_backward_kernel<<<(unsigned)ceil_div64(s->rows, TILE_ROWS), TILE_THREADS, 0, state->stream>>>(*s);
}
