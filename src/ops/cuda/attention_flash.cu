// Attention kernels of our own, bf16 or f16 on the tensor cores (mma.sync) with float sums. Scores are never stored:
// the forward pass keeps a running maximum and sum (flash attention), the backward pass computes them again from the
// log-sum-exp.
//
// The backward pass is two kernels, so that every gradient has one writer and no order of atomics: one owns queries
// and gives dQ (and the row sums of dout * out), the other owns keys, walks over all query heads of its group and
// gives dK and dV. Tiles above the diagonal or outside the documents are skipped.
//
// Tiles lie in shared memory as rows of 16-byte chunks whose place is XORed with the row, so that ldmatrix meets no
// bank twice. Head dimensions are padded with zeros to the template's D.
#include "ops/cuda/attention_flash.cuh"
#include "ops/cuda/sm80.cuh"
#include "ops/cuda/workspace.h"

// ---- tiles --------------------------------------------------------------------------------------------------------

// Byte offset of an 8-element chunk of a tile of rows of D elements.
template <int D> static __device__ __forceinline__ uint32_t tile_offset(int row, int chunk) {
    int swizzle = D % 64 == 0 ? row & 7 : (row >> 1) & 3;
    return (uint32_t)(row * (D / 8) + (chunk ^ swizzle)) * 16;
}

// Rows [0, ROWS) of a matrix into a tile; rows from `rows` on and columns from `columns` on become zero.
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tile_load(uint32_t tile, const Bf16 *from, int64_t stride, int rows,
                                                 int columns) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8);
        bool valid = row < rows && chunk * 8 < columns;
        copy16_async(tile + tile_offset<D>(row, chunk), valid ? from + row * stride + chunk * 8 : from, valid);
    }
}

// Fragment of the 16 x 16 block (row0, 16 * step) as the left operand.
template <int D>
static __device__ __forceinline__ void left_fragment(uint32_t (&a)[4], uint32_t tile, int row0, int step) {
    int lane = threadIdx.x & 31;
    matrices_load(a, tile + tile_offset<D>(row0 + (lane & 15), step * 2 + (lane >> 4)));
}

// Right operands of two neighbouring 8-column blocks of out, where the tile's rows are out's columns (a product with
// the tile transposed): b[0..1] columns row0.., b[2..3] columns row0 + 8..
template <int D>
static __device__ __forceinline__ void right_rows(uint32_t (&b)[4], uint32_t tile, int row0, int step) {
    int lane = threadIdx.x & 31;
    matrices_load(b, tile + tile_offset<D>(row0 + (lane & 7) + ((lane >> 4) << 3), step * 2 + ((lane >> 3) & 1)));
}

// The same where the tile's rows are summed over: rows 16 * step.., columns 16 * pair..
template <int D>
static __device__ __forceinline__ void right_columns(uint32_t (&b)[4], uint32_t tile, int step, int pair) {
    int lane = threadIdx.x & 31;
    matrices_load_transposed(b, tile + tile_offset<D>(step * 16 + (lane & 15), pair * 2 + (lane >> 4)));
}

// acc += s, rounded to the storage type, times the rows of a tile: 16 rows of a warp for every t.
template <typename T, int D, int MT, int BLOCKS_OF_8>
static __device__ __forceinline__ void rows_multiply(float (&acc)[MT][D / 8][4], const float (&s)[MT][BLOCKS_OF_8][4],
                                                     uint32_t tile) {
#pragma unroll
    for (int j = 0; j < BLOCKS_OF_8 / 2; j++) {
        uint32_t left[MT][4];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                left[t][e] = pair_pack<T>(s[t][2 * j + e / 2][e % 2 * 2], s[t][2 * j + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t r[4];
            right_columns<D>(r, tile, j, i);
#pragma unroll
            for (int t = 0; t < MT; t++) {
                mma<IS_FP16<T>>(acc[t][2 * i], left[t], r[0], r[1]);
                mma<IS_FP16<T>>(acc[t][2 * i + 1], left[t], r[2], r[3]);
            }
        }
    }
}

// A warp's 16 x D accumulators times factor (per row half), as T through its own rows of a tile to memory.
template <typename T, int D>
static __device__ __forceinline__ void rows_store(uint8_t *tile, int row0, const float (*acc)[4], float factor_low,
                                                  float factor_high, Bf16 *to, int64_t stride, int rows, int columns) {
    int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        int row = row0 + lane / 4, at = (lane & 3) * 4;
        *(uint32_t *)(tile + tile_offset<D>(row, i) + at) =
            pair_pack<T>(acc[i][0] * factor_low, acc[i][1] * factor_low);
        *(uint32_t *)(tile + tile_offset<D>(row + 8, i) + at) =
            pair_pack<T>(acc[i][2] * factor_high, acc[i][3] * factor_high);
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        int row = row0 + i / (D / 8), chunk = i % (D / 8);
        if (row < rows && chunk * 8 < columns)
            *(uint4 *)(to + row * stride + chunk * 8) = *(const uint4 *)(tile + tile_offset<D>(row, chunk));
    }
}

// Keys after their query, or of documents before its own, do not count. row, key: the first of the warp's block.
template <bool FULL, int MT, int COUNT>
static __device__ __forceinline__ void scores_mask(const FlashArgs &args, float (&s)[MT][COUNT][4], int row, int key,
                                                   const int (&first)[MT][2]) {
    const int lane = threadIdx.x & 31;
    int last[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            last[t][half] = last_key<FULL>(args, row + t * 16 + lane / 4 + half * 8);
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int other = key + j * 8 + (lane & 3) * 2 + (e & 1);
                if (other > last[t][e / 2] || other < first[t][e / 2]) s[t][j][e] = -CUDART_INF_F;
            }
}

// ---- forward ------------------------------------------------------------------------------------------------------

// Scores become powers under the maximum so far; what was summed under an older one is scaled down.
template <int MT, int COUNT, int COLUMNS>
static __device__ __forceinline__ void softmax_step(float (&acc)[MT][COLUMNS][4], float (&s)[MT][COUNT][4],
                                                    float (&maximum)[MT][2], float (&sum)[MT][2], float scale2) {
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = maximum[t][half];
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                top = fmaxf(top, fmaxf(s[t][j][2 * half], s[t][j][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -CUDART_INF_F ? 0.0f : top * scale2; // nothing seen yet: keep zeros zero
            const float shrink = exp2_fast(maximum[t][half] * scale2 - base);
            float added = 0;
#pragma unroll
            for (int j = 0; j < COUNT; j++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    s[t][j][e] = exp2_fast(fmaf(s[t][j][e], scale2, -base));
                    added += s[t][j][e];
                }
            sum[t][half] = sum[t][half] * shrink + added;
            maximum[t][half] = top;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                acc[t][i][2 * half] *= shrink, acc[t][i][2 * half + 1] *= shrink;
        }
}

// WARPS warps of 16 * MT queries each against tiles of BN keys; BLOCKS: blocks that should fit a multiprocessor.
template <typename T, int D, int WARPS, int MT, int BN, int BLOCKS, bool FULL>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS) forward_kernel(const __grid_constant__ FlashArgs args) {
    constexpr int BM = WARPS * 16 * MT, THREADS = WARPS * 32, STEPS = D / 16;
    constexpr bool KEEP_Q = D <= 64; // in registers
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t q_tile = shared_address(shared), k_tile = q_tile + BM * D * 2, v_tile = k_tile + 2 * BN * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int b = blockIdx.x / args.heads, h = blockIdx.x % args.heads, group = h / (args.heads / args.kv_heads);
    const int m0 = (gridDim.y - 1 - blockIdx.y) * BM; // the longest rows first
    const int64_t token0 = (int64_t)b * args.seq;
    const Bf16 *k = args.k + token0 * args.k_stride + group * args.head_dim;
    const Bf16 *v = args.v + token0 * args.v_stride + group * args.head_dim;
    const int32_t *doc_start = args.doc_start ? args.doc_start + token0 : NULL;
    const int n_end = key_blocks_end<FULL>(args, m0, BM, BN),
              n_begin = key_blocks_begin(args, doc_start, m0, BN, n_end);
    const float scale2 = args.scale * LOG2E;

    tile_load<D, BM, THREADS>(q_tile, args.q + (token0 + m0) * args.q_stride + h * args.head_dim, args.q_stride,
                              args.seq - m0, args.head_dim);
    {
        const int n0 = (n_end - 1) * BN;
        tile_load<D, BN, THREADS>(k_tile, k + n0 * args.k_stride, args.k_stride, args.seq - n0, args.head_dim);
        tile_load<D, BN, THREADS>(v_tile, v + n0 * args.v_stride, args.v_stride, args.seq - n0, args.head_dim);
    }
    copies_commit();

    const int row0 = warp * 16 * MT; // of this warp in the block
    float acc[MT][D / 8][4] = {}, maximum[MT][2], sum[MT][2] = {};
    int first[MT][2]; // first key each row may see
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = m0 + row0 + t * 16 + lane / 4 + half * 8;
            maximum[t][half] = -CUDART_INF_F;
            first[t][half] = doc_start && row < args.seq ? doc_start[row] - args.first_key : 0;
        }
    uint32_t q_kept[KEEP_Q ? MT : 1][KEEP_Q ? STEPS : 1][4];

    for (int n = n_end - 1, stage = 0; n >= n_begin; n--, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (n > n_begin) {
            const int next = (n - 1) * BN;
            const uint32_t offset = (stage ^ 1) * BN * D * 2;
            tile_load<D, BN, THREADS>(k_tile + offset, k + next * args.k_stride, args.k_stride, BN, args.head_dim);
            tile_load<D, BN, THREADS>(v_tile + offset, v + next * args.v_stride, args.v_stride, BN, args.head_dim);
            copies_commit();
        }
        if (KEEP_Q && n == n_end - 1) {
#pragma unroll
            for (int t = 0; t < (KEEP_Q ? MT : 1); t++)
#pragma unroll
                for (int i = 0; i < (KEEP_Q ? STEPS : 1); i++)
                    left_fragment<D>(q_kept[t][i], q_tile, row0 + t * 16, i);
        }
        const int n0 = n * BN;
        if (n0 > m0 + row0 + 16 * MT - 1 + keys_ahead<FULL>(args)) continue; // above the diagonal for the whole warp
        const uint32_t k_now = k_tile + stage * BN * D * 2, v_now = v_tile + stage * BN * D * 2;

        float s[MT][BN / 8][4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++) {
                if (KEEP_Q) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        a[t][e] = q_kept[KEEP_Q ? t : 0][KEEP_Q ? i : 0][e];
                } else {
                    left_fragment<D>(a[t], q_tile, row0 + t * 16, i);
                }
            }
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                uint32_t r[4];
                right_rows<D>(r, k_now, j * 16, i);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<IS_FP16<T>>(s[t][2 * j], a[t], r[0], r[1]);
                    mma<IS_FP16<T>>(s[t][2 * j + 1], a[t], r[2], r[3]);
                }
            }
        }
        if (n0 + BN - 1 > last_key<FULL>(args, m0 + row0) || doc_start)
            scores_mask<FULL>(args, s, m0 + row0, n0, first);
        softmax_step(acc, s, maximum, sum, scale2);
        rows_multiply<T, D>(acc, s, v_now);
    }

#pragma unroll
    for (int t = 0; t < MT; t++) {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[t][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            inverse[half] = total > 0 ? 1 / total : 0;
            int row = m0 + row0 + t * 16 + lane / 4 + half * 8;
            if ((lane & 3) == 0 && row < args.seq)
                args.lse[(int64_t)blockIdx.x * args.seq + row] = maximum[t][half] * args.scale + logf(total);
        }
        rows_store<T, D>(shared, row0 + t * 16, acc[t], inverse[0], inverse[1],
                         args.out + (token0 + m0) * args.o_stride + h * args.head_dim, args.o_stride, args.seq - m0,
                         args.head_dim);
    }
}

// ---- backward: dQ and the row sums --------------------------------------------------------------------------------

template <typename T, int D, int WARPS, int MT, int BN, int BLOCKS, bool FULL>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS) backward_q_kernel(const __grid_constant__ FlashArgs args) {
    constexpr int BM = WARPS * 16 * MT, THREADS = WARPS * 32, STEPS = D / 16;
    constexpr bool KEEP = D <= 64 && MT == 1; // Q and dO in registers
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float row_sums[BM];
    const uint32_t q_tile = shared_address(shared), do_tile = q_tile + BM * D * 2, k_tile = do_tile + BM * D * 2,
                   v_tile = k_tile + 2 * BN * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int b = blockIdx.x / args.heads, h = blockIdx.x % args.heads, group = h / (args.heads / args.kv_heads);
    const int m0 = (gridDim.y - 1 - blockIdx.y) * BM;
    const int64_t token0 = (int64_t)b * args.seq, line0 = (int64_t)blockIdx.x * args.seq;
    const Bf16 *k = args.k + token0 * args.k_stride + group * args.head_dim;
    const Bf16 *v = args.v + token0 * args.v_stride + group * args.head_dim;
    const Bf16 *d_o = args.dout + (token0 + m0) * args.o_stride + h * args.head_dim;
    const Bf16 *o = args.o + (token0 + m0) * args.o_stride + h * args.head_dim;
    const int32_t *doc_start = args.doc_start ? args.doc_start + token0 : NULL;
    const int n_end = key_blocks_end<FULL>(args, m0, BM, BN),
              n_begin = key_blocks_begin(args, doc_start, m0, BN, n_end);
    const float scale2 = args.scale * LOG2E;

    tile_load<D, BM, THREADS>(q_tile, args.q + (token0 + m0) * args.q_stride + h * args.head_dim, args.q_stride,
                              args.seq - m0, args.head_dim);
    tile_load<D, BM, THREADS>(do_tile, d_o, args.o_stride, args.seq - m0, args.head_dim);
    {
        const int n0 = n_begin * BN;
        tile_load<D, BN, THREADS>(k_tile, k + n0 * args.k_stride, args.k_stride, args.seq - n0, args.head_dim);
        tile_load<D, BN, THREADS>(v_tile, v + n0 * args.v_stride, args.v_stride, args.seq - n0, args.head_dim);
    }
    copies_commit();

    const int row0 = warp * 16 * MT;
    for (int i = 0; i < 8 * MT; i++) { // half a warp a row
        const int row = row0 + i * 2 + lane / 16, column = (lane & 15) * 8;
        float total = 0;
        if (m0 + row < args.seq && column < args.head_dim)
            total = dot8<T>(load16(d_o + row * args.o_stride + column), load16(o + row * args.o_stride + column));
#pragma unroll
        for (int e = 8; e > 0; e /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, e);
        if ((lane & 15) == 0) {
            row_sums[row] = total;
            if (m0 + row < args.seq) args.row_sum[line0 + m0 + row] = total;
        }
    }
    __syncwarp();
    float lse2[MT][2], row_sum[MT][2];
    int first[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row0 + t * 16 + lane / 4 + half * 8;
            bool there = m0 + row < args.seq;
            lse2[t][half] = there ? args.lse[line0 + m0 + row] * LOG2E : CUDART_INF_F; // P becomes 0
            row_sum[t][half] = row_sums[row];
            first[t][half] = doc_start && there ? doc_start[m0 + row] - args.first_key : 0;
        }

    float acc[MT][D / 8][4] = {};
    uint32_t q_kept[KEEP ? STEPS : 1][4], do_kept[KEEP ? STEPS : 1][4];
    for (int n = n_begin, stage = 0; n < n_end; n++, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (n + 1 < n_end) {
            const int next = (n + 1) * BN;
            const uint32_t offset = (stage ^ 1) * BN * D * 2;
            tile_load<D, BN, THREADS>(k_tile + offset, k + next * args.k_stride, args.k_stride, args.seq - next,
                                      args.head_dim);
            tile_load<D, BN, THREADS>(v_tile + offset, v + next * args.v_stride, args.v_stride, args.seq - next,
                                      args.head_dim);
            copies_commit();
        }
        if (KEEP && n == n_begin) {
#pragma unroll
            for (int i = 0; i < (KEEP ? STEPS : 1); i++) {
                left_fragment<D>(q_kept[i], q_tile, row0, i);
                left_fragment<D>(do_kept[i], do_tile, row0, i);
            }
        }
        const int n0 = n * BN;
        if (n0 > m0 + row0 + 16 * MT - 1 + keys_ahead<FULL>(args)) continue;
        const uint32_t k_now = k_tile + stage * BN * D * 2, v_now = v_tile + stage * BN * D * 2;

        float s[MT][BN / 8][4] = {}, dp[MT][BN / 8][4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[MT][4], c[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++) {
                if (KEEP) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        a[t][e] = q_kept[KEEP ? i : 0][e], c[t][e] = do_kept[KEEP ? i : 0][e];
                } else {
                    left_fragment<D>(a[t], q_tile, row0 + t * 16, i);
                    left_fragment<D>(c[t], do_tile, row0 + t * 16, i);
                }
            }
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                uint32_t r[4], w[4];
                right_rows<D>(r, k_now, j * 16, i);
                right_rows<D>(w, v_now, j * 16, i);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<IS_FP16<T>>(s[t][2 * j], a[t], r[0], r[1]);
                    mma<IS_FP16<T>>(s[t][2 * j + 1], a[t], r[2], r[3]);
                    mma<IS_FP16<T>>(dp[t][2 * j], c[t], w[0], w[1]);
                    mma<IS_FP16<T>>(dp[t][2 * j + 1], c[t], w[2], w[3]);
                }
            }
        }
        if (n0 + BN - 1 > last_key<FULL>(args, m0 + row0) || doc_start)
            scores_mask<FULL>(args, s, m0 + row0, n0, first);
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[t][j][e] =
                        exp2_fast(fmaf(s[t][j][e], scale2, -lse2[t][e / 2])) * (dp[t][j][e] - row_sum[t][e / 2]);
        rows_multiply<T, D>(acc, s, k_now);
    }
#pragma unroll
    for (int t = 0; t < MT; t++)
        rows_store<T, D>(shared, row0 + t * 16, acc[t], args.scale, args.scale,
                         args.dq + (token0 + m0) * args.grad_stride + h * args.head_dim, args.grad_stride,
                         args.seq - m0, args.head_dim);
}

// ---- backward: dK and dV ------------------------------------------------------------------------------------------

// s becomes P, dp becomes dS.
template <int COUNT>
static __device__ __forceinline__ void keys_differences(float (&s)[COUNT][4], float (&dp)[COUNT][4], const float *lse2,
                                                        const float *row_sum, float scale2) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int column = j * 8 + (lane & 3) * 2;
        const float2 shift = *(const float2 *)&lse2[column];
        const float2 centre = *(const float2 *)&row_sum[column];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[j][e] = exp2_fast(fmaf(s[j][e], scale2, -(e & 1 ? shift.y : shift.x)));
            dp[j][e] = s[j][e] * (dp[j][e] - (e & 1 ? centre.y : centre.x));
        }
    }
}

// dv += P dO, dk += dS Q.
template <typename T, int D, int COUNT>
static __device__ __forceinline__ void keys_accumulate(float (&dk)[D / 8][4], float (&dv)[D / 8][4],
                                                       const float (&s)[COUNT][4], const float (&dp)[COUNT][4],
                                                       uint32_t q_now, uint32_t do_now) {
#pragma unroll
    for (int j = 0; j < COUNT / 2; j++) {
        uint32_t p[4], ds[4];
        p[0] = pair_pack<T>(s[2 * j][0], s[2 * j][1]), p[1] = pair_pack<T>(s[2 * j][2], s[2 * j][3]);
        p[2] = pair_pack<T>(s[2 * j + 1][0], s[2 * j + 1][1]), p[3] = pair_pack<T>(s[2 * j + 1][2], s[2 * j + 1][3]);
        ds[0] = pair_pack<T>(dp[2 * j][0], dp[2 * j][1]), ds[1] = pair_pack<T>(dp[2 * j][2], dp[2 * j][3]);
        ds[2] = pair_pack<T>(dp[2 * j + 1][0], dp[2 * j + 1][1]),
        ds[3] = pair_pack<T>(dp[2 * j + 1][2], dp[2 * j + 1][3]);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t r[4], w[4];
            right_columns<D>(r, do_now, j, step);
            right_columns<D>(w, q_now, j, step);
            mma<IS_FP16<T>>(dv[2 * step], p, r[0], r[1]);
            mma<IS_FP16<T>>(dv[2 * step + 1], p, r[2], r[3]);
            mma<IS_FP16<T>>(dk[2 * step], ds, w[0], w[1]);
            mma<IS_FP16<T>>(dk[2 * step + 1], ds, w[2], w[3]);
        }
    }
}

// WARPS warps of 16 keys each; scores are kept transposed (keys are rows), so that P and dS come out of the
// accumulators in the shape of a left operand. All query heads of the group are walked in turn, BM queries at a time.
template <typename T, int D, int WARPS, int BM, int BLOCKS, bool FULL>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    backward_kv_kernel(const __grid_constant__ FlashArgs args) {
    constexpr int BN = WARPS * 16, THREADS = WARPS * 32, STEPS = D / 16;
    constexpr bool KEEP = D <= 64; // K and V in registers
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float lse2[2][BM], row_sum[2][BM];
    const uint32_t k_tile = shared_address(shared), v_tile = k_tile + BN * D * 2, q_tile = v_tile + BN * D * 2,
                   do_tile = q_tile + 2 * BM * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int b = blockIdx.x / args.kv_heads, group = blockIdx.x % args.kv_heads,
              group_heads = args.heads / args.kv_heads;
    const int n0 = blockIdx.y * BN; // the first keys are seen by the most queries, and come first
    const int64_t token0 = (int64_t)b * args.seq;
    const int32_t *doc_start = args.doc_start ? args.doc_start + token0 : NULL;
    const int m_begin = query_blocks_begin<FULL>(args, n0, BM);
    const int m_end = query_blocks_end(args, doc_start, BM, m_begin, n0 + BN - 1);
    const int tiles = m_end - m_begin, iterations = tiles * group_heads;
    const float scale2 = args.scale * LOG2E;

    tile_load<D, BN, THREADS>(k_tile, args.k + (token0 + n0) * args.k_stride + group * args.head_dim, args.k_stride,
                              args.seq - n0, args.head_dim);
    tile_load<D, BN, THREADS>(v_tile, args.v + (token0 + n0) * args.v_stride + group * args.head_dim, args.v_stride,
                              args.seq - n0, args.head_dim);
    float next_lse2 = CUDART_INF_F, next_row_sum = 0; // of query threadIdx.x of the next tile
    auto fetch = [&](int i, int stage) {
        const int h = group * group_heads + i / tiles, m0 = (m_begin + i % tiles) * BM;
        tile_load<D, BM, THREADS>(q_tile + stage * BM * D * 2,
                                  args.q + (token0 + m0) * args.q_stride + h * args.head_dim, args.q_stride,
                                  args.seq - m0, args.head_dim);
        tile_load<D, BM, THREADS>(do_tile + stage * BM * D * 2,
                                  args.dout + (token0 + m0) * args.o_stride + h * args.head_dim, args.o_stride,
                                  args.seq - m0, args.head_dim);
        copies_commit();
        if (threadIdx.x < BM) {
            const bool there = m0 + (int)threadIdx.x < args.seq;
            const int64_t line = ((int64_t)b * args.heads + h) * args.seq + m0 + threadIdx.x;
            next_lse2 = there ? args.lse[line] * LOG2E : CUDART_INF_F; // P becomes 0
            next_row_sum = there ? args.row_sum[line] : 0;
        }
    };
    auto keep = [&](int stage) {
        if (threadIdx.x < BM) lse2[stage][threadIdx.x] = next_lse2, row_sum[stage][threadIdx.x] = next_row_sum;
    };
    fetch(0, 0);
    keep(0);

    const int row0 = warp * 16;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    uint32_t k_kept[KEEP ? STEPS : 1][4], v_kept[KEEP ? STEPS : 1][4];
    for (int i = 0, stage = 0; i < iterations; i++, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (i + 1 < iterations) fetch(i + 1, stage ^ 1);
        if (KEEP && i == 0) {
#pragma unroll
            for (int step = 0; step < (KEEP ? STEPS : 1); step++) {
                left_fragment<D>(k_kept[step], k_tile, row0, step);
                left_fragment<D>(v_kept[step], v_tile, row0, step);
            }
        }
        const int m0 = (m_begin + i % tiles) * BM;
        if (m0 + BM - 1 + keys_ahead<FULL>(args) >= n0 + row0) { // else all of the warp's keys come after these queries
            const uint32_t q_now = q_tile + stage * BM * D * 2, do_now = do_tile + stage * BM * D * 2;
            float s[BM / 8][4] = {}, dp[BM / 8][4] = {};
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                uint32_t a[4], c[4];
                if (KEEP) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        a[e] = k_kept[KEEP ? step : 0][e], c[e] = v_kept[KEEP ? step : 0][e];
                } else {
                    left_fragment<D>(a, k_tile, row0, step);
                    left_fragment<D>(c, v_tile, row0, step);
                }
#pragma unroll
                for (int j = 0; j < BM / 16; j++) {
                    uint32_t r[4], w[4];
                    right_rows<D>(r, q_now, j * 16, step);
                    right_rows<D>(w, do_now, j * 16, step);
                    mma<IS_FP16<T>>(s[2 * j], a, r[0], r[1]);
                    mma<IS_FP16<T>>(s[2 * j + 1], a, r[2], r[3]);
                    mma<IS_FP16<T>>(dp[2 * j], c, w[0], w[1]);
                    mma<IS_FP16<T>>(dp[2 * j + 1], c, w[2], w[3]);
                }
            }
            if (m0 + keys_ahead<FULL>(args) < n0 + row0 + 15 || doc_start) {
                const KeyPair keys = key_pair<FULL>(args, n0 + row0 + lane / 4);
#pragma unroll
                for (int j = 0; j < BM / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int query = m0 + j * 8 + (lane & 3) * 2 + (e & 1);
                        if (keys.first_query[e / 2] > query ||
                            (doc_start && query < args.seq && keys.position[e / 2] < doc_start[query]))
                            s[j][e] = -CUDART_INF_F;
                    }
            }
            keys_differences(s, dp, lse2[stage], row_sum[stage], scale2);
            keys_accumulate<T, D>(dk, dv, s, dp, q_now, do_now);
        }
        if (i + 1 < iterations) keep(stage ^ 1);
    }
    rows_store<T, D>(shared, row0, dk, args.scale, args.scale,
                     args.dk + (token0 + n0) * args.grad_stride + group * args.head_dim, args.grad_stride,
                     args.seq - n0, args.head_dim);
    rows_store<T, D>(shared + BN * D * 2, row0, dv, 1, 1,
                     args.dv + (token0 + n0) * args.grad_stride + group * args.head_dim, args.grad_stride,
                     args.seq - n0, args.head_dim);
}

// ---- launches -----------------------------------------------------------------------------------------------------

template <typename T, int D, int WARPS, int MT, int BN, int BLOCKS>
static void forward_launch(CudaState *state, const FlashArgs &args) {
    constexpr int BM = WARPS * 16 * MT, BYTES = (BM + 4 * BN) * D * 2;
    dim3 grid((unsigned)(args.batch * args.heads), (unsigned)((args.seq + BM - 1) / BM));
    if (args.full)
        LAUNCH_SHARED(state, (forward_kernel<T, D, WARPS, MT, BN, BLOCKS, true>), grid, WARPS * 32, BYTES, args);
    else
        LAUNCH_SHARED(state, (forward_kernel<T, D, WARPS, MT, BN, BLOCKS, false>), grid, WARPS * 32, BYTES, args);
}

template <typename T, int D, int WARPS, int MT, int BN, int BLOCKS>
static void backward_q_launch(CudaState *state, const FlashArgs &args) {
    constexpr int BM = WARPS * 16 * MT, BYTES = (2 * BM + 4 * BN) * D * 2;
    dim3 grid((unsigned)(args.batch * args.heads), (unsigned)((args.seq + BM - 1) / BM));
    if (args.full)
        LAUNCH_SHARED(state, (backward_q_kernel<T, D, WARPS, MT, BN, BLOCKS, true>), grid, WARPS * 32, BYTES, args);
    else
        LAUNCH_SHARED(state, (backward_q_kernel<T, D, WARPS, MT, BN, BLOCKS, false>), grid, WARPS * 32, BYTES, args);
}

template <typename T, int D, int WARPS, int BM, int BLOCKS>
static void backward_kv_launch(CudaState *state, const FlashArgs &args) {
    constexpr int BN = WARPS * 16, BYTES = (2 * BN + 4 * BM) * D * 2;
    dim3 grid((unsigned)(args.batch * args.kv_heads), (unsigned)((args.seq + BN - 1) / BN));
    if (args.full)
        LAUNCH_SHARED(state, (backward_kv_kernel<T, D, WARPS, BM, BLOCKS, true>), grid, WARPS * 32, BYTES, args);
    else
        LAUNCH_SHARED(state, (backward_kv_kernel<T, D, WARPS, BM, BLOCKS, false>), grid, WARPS * 32, BYTES, args);
}

// f16 has one variant of each size.
template <typename T> static void forward_choose(CudaState *state, const FlashArgs &args, int variant) {
    const bool other = !IS_FP16<T> && variant != 0;
    if (args.head_dim <= 32) {
        forward_launch<T, 32, 4, 2, 64, 1>(state, args);
    } else if (args.head_dim <= 64 && !other) {
        forward_launch<T, 64, 4, 2, 64, 1>(state, args);
    } else if (args.head_dim <= 64) {
        if constexpr (!IS_FP16<T>) forward_launch<T, 64, 8, 1, 64, 2>(state, args);
    } else if (args.head_dim <= 96) {
        forward_launch<T, 96, 8, 1, 64, 1>(state, args);
    } else if (!other) {
        forward_launch<T, 128, 4, 2, 32, 1>(state, args);
    } else {
        if constexpr (!IS_FP16<T>) forward_launch<T, 128, 8, 1, 64, 1>(state, args);
    }
}

template <typename T> static void backward_choose(CudaState *state, const FlashArgs &args, int variant) {
    const bool other = !IS_FP16<T> && variant != 0;
    if (args.head_dim <= 32) {
        backward_q_launch<T, 32, 4, 1, 64, 1>(state, args);
        backward_kv_launch<T, 32, 4, 64, 1>(state, args);
    } else if (args.head_dim <= 64 && !other) {
        backward_q_launch<T, 64, 4, 1, 64, 3>(state, args);
        backward_kv_launch<T, 64, 4, 64, 3>(state, args);
    } else if (args.head_dim <= 64) {
        if constexpr (!IS_FP16<T>) {
            backward_q_launch<T, 64, 4, 2, 64, 2>(state, args);
            backward_kv_launch<T, 64, 8, 64, 1>(state, args);
        }
    } else if (args.head_dim <= 96) {
        backward_q_launch<T, 96, 4, 1, 64, 1>(state, args);
        backward_kv_launch<T, 96, 4, 32, 1>(state, args);
    } else if (!other) {
        backward_q_launch<T, 128, 4, 1, 64, 1>(state, args);
        backward_kv_launch<T, 128, 4, 64, 1>(state, args);
    } else {
        if constexpr (!IS_FP16<T>) {
            backward_q_launch<T, 128, 8, 1, 32, 1>(state, args);
            backward_kv_launch<T, 128, 4, 32, 1>(state, args);
        }
    }
}

void flash_forward(CudaState *state, void *out, float *lse, const void *q, const void *k, const void *v,
                   const AttentionShape *shape, DType dtype, int variant) {
    if (dtype == DTYPE_F32) {
        flash_forward_f32(state, (float *)out, lse, (const float *)q, (const float *)k, (const float *)v, shape);
        return;
    }
    FlashArgs args = flash_args(shape, q, k, v);
    args.out = (Bf16 *)out, args.lse = lse;
    if (dtype == DTYPE_F16)
        forward_choose<Fp16>(state, args, variant);
    else
        forward_choose<Bf16>(state, args, variant);
}

void flash_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                    const void *out, const float *lse, const void *q, const void *k, const void *v,
                    const AttentionShape *shape, DType dtype, int variant) {
    const int64_t tokens = (int64_t)shape->batch * shape->seq;
    float *row_sum = (float *)cuda_scratch(state, workspace_attention_backward(tokens, shape->heads));
    if (!row_sum) return;
    if (dtype == DTYPE_F32) {
        flash_backward_f32(state, (float *)dq, (float *)dk, (float *)dv, dqkv_stride, (const float *)dout,
                           (const float *)out, lse, row_sum, (const float *)q, (const float *)k, (const float *)v,
                           shape);
        return;
    }
    FlashArgs args = flash_backward_args(shape, dq, dk, dv, dqkv_stride, dout, out, lse, row_sum, q, k, v);
    if (dtype == DTYPE_F16)
        backward_choose<Fp16>(state, args, variant);
    else
        backward_choose<Bf16>(state, args, variant);
}
