// Grouped linear layers of MoE in bf16 or f16 with mma.sync, for GPUs from Ampere on: 128 x 128 tiles, slices of 32 of
// the reduction copied asynchronously through a ring in shared memory, 4 warps of 64 x 64 results each.
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/sm80.cuh"
#include "ops/cuda/vector.cuh"

enum { TILE = 128, SLICE = 32, RING = 3, OPERAND_BYTES = TILE * SLICE * 2, MMA_THREADS = 128 };

static_assert(CUDA_ROW_ALIGN % TILE == 0, "a tile of rows belongs to one expert");

// One operand of a tile: the element at (i, l), i along M or N and l along the reduction, is
// memory[i * stride + l], or memory[l * stride + i] when STRIDED (the reduction is not the contiguous one).
typedef struct Operand {
    const uint16_t *memory; // of either type
    int64_t stride;
    int count;             // of i that exist; the rest are zeros. A multiple of 8, as is the length of the reduction
    const int32_t *tokens; // or NULL: the row of memory that row i is (or l when STRIDED), zeros where it is negative
} Operand;

// Place of the 16 bytes that hold (i, l) and the 7 after it. Pieces of a row are exchanged by the row's number, so that
// the eight rows that one ldmatrix reads lie in different banks.
template <bool STRIDED> static __device__ __forceinline__ uint32_t piece_place(int i, int l) {
    if (STRIDED) return (uint32_t)(l * TILE * 2 + ((i / 8 ^ (l & 7)) * 16));
    return (uint32_t)(i * SLICE * 2 + ((l / 8 ^ (i >> 1 & 3)) * 16));
}

template <bool STRIDED>
static __device__ __forceinline__ void slice_load(uint32_t to, const Operand &operand, int64_t l0, int64_t length) {
#pragma unroll
    for (int piece = threadIdx.x; piece < TILE * SLICE / 8; piece += MMA_THREADS) {
        const int i = STRIDED ? piece % (TILE / 8) * 8 : piece / (SLICE / 8);
        const int l = STRIDED ? piece / (TILE / 8) : piece % (SLICE / 8) * 8;
        bool real = i < operand.count && l0 + l < length;
        int64_t row = STRIDED ? l0 + l : i;
        if (operand.tokens && real) row = operand.tokens[row], real = row >= 0;
        const int64_t at = row * operand.stride + (STRIDED ? i : l0 + l);
        copy16_async(to + piece_place<STRIDED>(i, l), operand.memory + (real ? at : 0), real);
    }
}

template <bool STRIDED> static __device__ __forceinline__ void operand_load(uint32_t (&r)[4], uint32_t from) {
    if (STRIDED)
        matrices_load_transposed(r, from);
    else
        matrices_load(r, from);
}

// The products of one slice: a warp's 64 x 64 from row m0 and column n0 of the tile.
template <typename T, bool A_STRIDED, bool B_STRIDED>
static __device__ __forceinline__ void slice_multiply(float (&d)[4][8][4], uint32_t a, uint32_t b, int m0, int n0) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int l = 0; l < SLICE; l += 16) {
        uint32_t left[4][4], right[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) // matrices: (rows, reduction) = (0, 0), (8, 0), (0, 8), (8, 8)
            operand_load<A_STRIDED>(
                left[i], a + (A_STRIDED ? piece_place<true>(m0 + i * 16 + matrix % 2 * 8, l + matrix / 2 * 8 + row)
                                        : piece_place<false>(m0 + i * 16 + matrix % 2 * 8 + row, l + matrix / 2 * 8)));
#pragma unroll
        for (int j = 0; j < 4; j++) // matrices: (columns, reduction) = (0, 0), (0, 8), (8, 0), (8, 8)
            operand_load<B_STRIDED>(
                right[j], b + (B_STRIDED ? piece_place<true>(n0 + j * 16 + matrix / 2 * 8, l + matrix % 2 * 8 + row)
                                         : piece_place<false>(n0 + j * 16 + matrix / 2 * 8 + row, l + matrix % 2 * 8)));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                mma<IS_FP16<T>>(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
}

// All products of a tile. Every thread copies and multiplies; slices up to RING - 1 ahead are on their way.
template <typename T, bool A_STRIDED, bool B_STRIDED>
static __device__ __forceinline__ void tile_multiply(float (&d)[4][8][4], const Operand &a, const Operand &b,
                                                     int64_t length) {
    __shared__ __align__(128) uint8_t ring[RING * 2 * OPERAND_BYTES];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(ring);
    const int warp = threadIdx.x / 32, slices = (int)((length + SLICE - 1) / SLICE);
#pragma unroll
    for (int s = 0; s < RING - 1; s++) {
        if (s < slices) {
            slice_load<A_STRIDED>(base + s * 2 * OPERAND_BYTES, a, (int64_t)s * SLICE, length);
            slice_load<B_STRIDED>(base + s * 2 * OPERAND_BYTES + OPERAND_BYTES, b, (int64_t)s * SLICE, length);
        }
        copies_commit();
    }
    for (int s = 0; s < slices; s++) {
        copies_wait<RING - 2>();
        __syncthreads(); // slice s has arrived for all, and all have done slice s - 1, whose place is filled next
        const int next = s + RING - 1;
        if (next < slices) {
            const uint32_t to = base + next % RING * 2 * OPERAND_BYTES;
            slice_load<A_STRIDED>(to, a, (int64_t)next * SLICE, length);
            slice_load<B_STRIDED>(to + OPERAND_BYTES, b, (int64_t)next * SLICE, length);
        }
        copies_commit();
        const uint32_t from = base + s % RING * 2 * OPERAND_BYTES;
        slice_multiply<T, A_STRIDED, B_STRIDED>(d, from, from + OPERAND_BYTES, warp / 2 * 64, warp % 2 * 64);
    }
}

template <typename T, bool B_STRIDED>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    mma_rows_kernel(uint16_t *out, const uint16_t *in, const int32_t *tokens, const uint16_t *weight,
                    const int32_t *offsets, int experts, int n, int k, int n_tiles) {
    const int64_t row0 = (int64_t)(blockIdx.x / n_tiles) * TILE;
    const int column0 = (int)(blockIdx.x % n_tiles) * TILE;
    if (row0 >= offsets[experts]) return;
    const int expert = expert_find(offsets, experts, row0);
    weight += (int64_t)expert * n * k + (B_STRIDED ? column0 : (int64_t)column0 * k);
    float d[4][8][4] = {};
    const Operand a = {tokens ? in : in + row0 * k, k, TILE, tokens ? tokens + row0 : NULL};
    tile_multiply<T, false, B_STRIDED>(d, a, {weight, B_STRIDED ? n : k, n - column0, NULL}, k);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t row = row0 + warp / 2 * 64 + lane / 4;
    const int column = column0 + warp % 2 * 64 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (column + j * 8 < n)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *reinterpret_cast<uint32_t *>(out + (row + i * 16 + h * 8) * n + column + j * 8) =
                        pair_pack<T>(d[i][j][2 * h], d[i][j][2 * h + 1]);
}

template <typename T>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    mma_weight_kernel(float *out, const uint16_t *a, const int32_t *a_tokens, const uint16_t *b,
                      const int32_t *b_tokens, const int32_t *offsets, int m, int n, bool accumulate) {
    const int64_t expert = blockIdx.z, begin = offsets[expert], rows = offsets[expert + 1] - begin;
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    if (rows == 0 && accumulate) return;
    float d[4][8][4] = {};
    const Operand left = {a + (a_tokens ? 0 : begin * m) + m0, m, m - m0, a_tokens ? a_tokens + begin : NULL};
    const Operand right = {b + (b_tokens ? 0 : begin * n) + n0, n, n - n0, b_tokens ? b_tokens + begin : NULL};
    tile_multiply<T, true, true>(d, left, right, rows);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = m0 + warp / 2 * 64 + lane / 4, column = n0 + warp % 2 * 64 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (row + i * 16 + h * 8 < m && column + j * 8 < n) {
                    float2 *at =
                        reinterpret_cast<float2 *>(out + (expert * m + row + i * 16 + h * 8) * n + column + j * 8);
                    float2 sum = accumulate ? *at : make_float2(0, 0);
                    sum.x += d[i][j][2 * h], sum.y += d[i][j][2 * h + 1];
                    *at = sum;
                }
}

template <typename T> static void mma_launch(CudaState *state, const GroupedCall *call) {
    const uint16_t *a = (const uint16_t *)call->a, *b = (const uint16_t *)call->b;
    const unsigned n_tiles = (unsigned)ceil_div64(call->n, TILE);
    if (call->product == GROUPED_WEIGHT) {
        dim3 grid(n_tiles, (unsigned)ceil_div64(call->m, TILE), (unsigned)call->experts);
        mma_weight_kernel<T><<<grid, MMA_THREADS, 0, state->stream>>>((float *)call->out, a, call->a_tokens, b,
                                                                      call->b_tokens, call->offsets, call->m, call->n,
                                                                      call->accumulate);
    } else {
        const unsigned grid = (unsigned)(call->rows / TILE) * n_tiles;
        auto *kernel = call->product == GROUPED_FORWARD ? mma_rows_kernel<T, false> : mma_rows_kernel<T, true>;
        kernel<<<grid, MMA_THREADS, 0, state->stream>>>((uint16_t *)call->out, a, call->a_tokens, b, call->offsets,
                                                        call->experts, call->n, call->k, (int)n_tiles);
    }
    LAUNCH_CHECK(state);
}

bool grouped_mma(CudaState *state, const GroupedCall *call, DType dtype) {
    const int contiguous = call->product == GROUPED_WEIGHT ? call->m | call->n : call->n | call->k;
    const bool aligned = all_aligned(16, call->out, call->a, call->b);
    if (state->arch < 80 || contiguous % 8 || !aligned) return false;
    if (dtype == DTYPE_F16)
        mma_launch<Fp16>(state, call);
    else
        mma_launch<Bf16>(state, call);
    return true;
}
