// The backward pass of attention on Hopper's warpgroup instructions (wgmma): the same two kernels as attention_flash.cu
// (one owns queries and gives dQ and the row sums, one owns keys and gives dK and dV, no atomics), with the products of
// 64 rows at a time issued asynchronously, so that the exponentials of one product hide behind the next.
//
// Tiles are panels of 64 columns: rows of 128 bytes whose 16-byte chunks are XORed with the row, which is the 128-byte
// swizzle that wgmma reads. The same tile serves as the operand that is summed over its columns (K-major) and as the
// one that is summed over its rows (MN-major).
#include "ops/cuda/attention_flash.cuh"
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/workspace.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- instructions ---------------------------------------------------------------------------------------------------

// Copies have landed and may be read by wgmma once all threads have passed the barrier.
static __device__ __forceinline__ void copies_arrive() {
    asm volatile("cp.async.wait_all;" ::: "memory"); // also of what belongs to no committed group
    shared_fence_async();
    __syncthreads();
}

// A panel from this address on, 64 columns wide.
static __device__ __forceinline__ uint64_t panel(uint32_t address) {
    return wgmma_operand(address, 16);
}

// ---- tiles --------------------------------------------------------------------------------------------------------

// Byte offset of an 8-element chunk of a tile of ROWS rows.
template <int ROWS> static __device__ __forceinline__ uint32_t tile_offset(int row, int chunk) {
    return (uint32_t)((chunk >> 3) * ROWS * 128 + row * 128 + ((chunk & 7) ^ (row & 7)) * 16);
}

template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tile_load(uint32_t tile, const Bf16 *from, int64_t stride, int rows,
                                                 int columns) {
    const int chunk = threadIdx.x % (D / 8), first = threadIdx.x / (D / 8);
    const bool inside = chunk * 8 < columns;
#pragma unroll
    for (int row = first; row < ROWS; row += THREADS / (D / 8)) {
        const bool valid = inside && row < rows;
        copy16_async(tile + tile_offset<ROWS>(row, chunk), valid ? from + row * stride + chunk * 8 : from, valid);
    }
}

// s[64 x 64 each] = rows row0.. of one tile times a 64-row part of another, summed over D columns.
template <int D, int A_ROWS, int B_ROWS>
static __device__ __forceinline__ void scores(float (&s)[32], uint32_t a_tile, int a_row0, uint32_t b_tile,
                                              int b_row0) {
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        const uint32_t column = (step & 3) * 32;
        wgmma<0, 0>(s, panel(a_tile + (step >> 2) * A_ROWS * 128 + a_row0 * 128 + column),
                    panel(b_tile + (step >> 2) * B_ROWS * 128 + b_row0 * 128 + column), step > 0);
    }
}

// acc[64 x D] += p (64 x 64, as left operands) times rows row0..row0 + 63 of a tile.
template <int D, int ROWS>
static __device__ __forceinline__ void accumulate(float (&acc)[D / 64][32], const uint32_t (&p)[4][4], uint32_t tile,
                                                  int row0) {
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int part = 0; part < D / 64; part++)
            product_registers(acc[part], p[step], panel(tile + part * ROWS * 128 + (row0 + step * 16) * 128), 1);
}

template <int PARTS> static __device__ __forceinline__ void parts_hold(float (&acc)[PARTS][32]) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        wgmma_hold(acc[part]);
}

static __device__ __forceinline__ void left_operands(uint32_t p[4][4], const float s[32]) {
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[step][e] = pack_bf16(s[step * 8 + e * 2], s[step * 8 + e * 2 + 1]);
}

// A warp's 16 x D accumulators times factor, as bf16 through its own rows of a tile to memory.
template <int D, int ROWS>
static __device__ __forceinline__ void rows_store(uint8_t *tile, int row0, const float acc[D / 64][32], float factor,
                                                  Bf16 *to, int64_t stride, int rows, int columns) {
    const int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float *a = &acc[i / 8][(i % 8) * 4];
        const int row = row0 + lane / 4, at = (lane & 3) * 4;
        *(uint32_t *)(tile + tile_offset<ROWS>(row, i) + at) = pack_bf16(a[0] * factor, a[1] * factor);
        *(uint32_t *)(tile + tile_offset<ROWS>(row + 8, i) + at) = pack_bf16(a[2] * factor, a[3] * factor);
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        const int row = row0 + i / (D / 8), chunk = i % (D / 8);
        if (row < rows && chunk * 8 < columns)
            *(uint4 *)(to + row * stride + chunk * 8) = *(const uint4 *)(tile + tile_offset<ROWS>(row, chunk));
    }
}

#endif

// ---- dQ and the row sums ------------------------------------------------------------------------------------------

// GROUPS warpgroups of 64 queries each, against tiles of 64 keys.
template <int D, int GROUPS, int BLOCKS, bool FULL>
static __global__ void __launch_bounds__(GROUPS * 128, BLOCKS) hopper_q_kernel(const __grid_constant__ FlashArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int BM = GROUPS * 64, BN = 64, THREADS = GROUPS * 128;
    extern __shared__ __align__(1024) uint8_t shared[]; // nothing static: the swizzle needs the tiles at 1024
    float *row_sums = (float *)(shared + (2 * BM + 4 * BN) * D * 2);
    const uint32_t q_tile = shared_address(shared), do_tile = q_tile + BM * D * 2, k_tile = do_tile + BM * D * 2,
                   v_tile = k_tile + 2 * BN * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group0 = warp / 4 * 64, row0 = warp * 16;
    const int b = blockIdx.x / args.heads, h = blockIdx.x % args.heads, kv_head = h / (args.heads / args.kv_heads);
    const int m0 = (gridDim.y - 1 - blockIdx.y) * BM; // the longest rows first
    const int64_t token0 = (int64_t)b * args.seq, line0 = (int64_t)blockIdx.x * args.seq;
    const Bf16 *k = args.k + token0 * args.k_stride + kv_head * args.head_dim;
    const Bf16 *v = args.v + token0 * args.v_stride + kv_head * args.head_dim;
    const Bf16 *d_o = args.dout + (token0 + m0) * args.o_stride + h * args.head_dim;
    const Bf16 *o = args.o + (token0 + m0) * args.o_stride + h * args.head_dim;
    const int32_t *doc_start = args.doc_start ? args.doc_start + token0 : NULL;
    const int n_end = key_blocks_end<FULL>(args, m0, BM, BN),
              n_begin = key_blocks_begin(args, doc_start, m0, BN, n_end);
    const float scale2 = args.scale * LOG2E;

    tile_load<D, BM, THREADS>(q_tile, args.q + (token0 + m0) * args.q_stride + h * args.head_dim, args.q_stride,
                              args.seq - m0, args.head_dim);
    tile_load<D, BM, THREADS>(do_tile, d_o, args.o_stride, args.seq - m0, args.head_dim);
    tile_load<D, BN, THREADS>(k_tile, k + n_begin * BN * args.k_stride, args.k_stride, args.seq - n_begin * BN,
                              args.head_dim);
    tile_load<D, BN, THREADS>(v_tile, v + n_begin * BN * args.v_stride, args.v_stride, args.seq - n_begin * BN,
                              args.head_dim);

    for (int i = 0; i < 8; i++) { // half a warp a row
        const int row = row0 + i * 2 + lane / 16, column = (lane & 15) * 8;
        float total = 0;
        if (m0 + row < args.seq && column < args.head_dim)
            total = dot8<Bf16>(load16(d_o + row * args.o_stride + column), load16(o + row * args.o_stride + column));
#pragma unroll
        for (int e = 8; e > 0; e /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, e);
        if ((lane & 15) == 0) {
            row_sums[row] = total;
            if (m0 + row < args.seq) args.row_sum[line0 + m0 + row] = total;
        }
    }
    __syncwarp();
    float lse2[2], row_sum[2];
    int first[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + lane / 4 + half * 8;
        const bool there = m0 + row < args.seq;
        lse2[half] = there ? args.lse[line0 + m0 + row] * LOG2E : CUDART_INF_F; // P becomes 0
        row_sum[half] = row_sums[row];
        first[half] = doc_start && there ? doc_start[m0 + row] - args.first_key : 0;
    }

    float acc[D / 64][32] = {};
    for (int n = n_begin, stage = 0; n < n_end; n++, stage ^= 1) {
        copies_arrive();
        if (n + 1 < n_end) {
            const int next = (n + 1) * BN;
            const uint32_t offset = (stage ^ 1) * BN * D * 2;
            tile_load<D, BN, THREADS>(k_tile + offset, k + next * args.k_stride, args.k_stride, args.seq - next,
                                      args.head_dim);
            tile_load<D, BN, THREADS>(v_tile + offset, v + next * args.v_stride, args.v_stride, args.seq - next,
                                      args.head_dim);
        }
        const int n0 = n * BN;
        if (n0 > m0 + group0 + 63 + keys_ahead<FULL>(args)) continue; // above the diagonal for the whole warpgroup
        const uint32_t k_now = k_tile + stage * BN * D * 2, v_now = v_tile + stage * BN * D * 2;
        float s[32], dp[32];
        wgmma_fence();
        scores<D, BM, BN>(s, q_tile, group0, k_now, 0);
        wgmma_commit();
        scores<D, BM, BN>(dp, do_tile, group0, v_now, 0);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(s);
        if (n0 + BN - 1 > last_key<FULL>(args, m0 + group0) || doc_start) {
            const int row = m0 + row0 + lane / 4, last[2] = {last_key<FULL>(args, row), last_key<FULL>(args, row + 8)};
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int half = (i / 2) & 1, key = n0 + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
                if (key > last[half] || key < first[half]) s[i] = -CUDART_INF_F;
            }
        }
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = exp2_fast(fmaf(s[i], scale2, -lse2[(i / 2) & 1]));
        wgmma_wait<0>();
        wgmma_hold(dp);
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] *= dp[i] - row_sum[(i / 2) & 1];
        uint32_t ds[4][4];
        left_operands(ds, s);
        wgmma_fence();
        accumulate<D, BN>(acc, ds, k_now, 0);
        wgmma_commit();
        wgmma_wait<0>();
        parts_hold(acc);
    }
    // Without waiting for the other warps: a warp writes over its own 16 rows of queries, and its part of wgmma is the
    // only one that reads these rows of the left operand.
    rows_store<D, BM>(shared, row0, acc, args.scale, args.dq + (token0 + m0) * args.grad_stride + h * args.head_dim,
                      args.grad_stride, args.seq - m0, args.head_dim);
#endif
}

// ---- dK and dV ----------------------------------------------------------------------------------------------------

// GROUPS warpgroups of 64 keys each; scores are kept transposed (keys are rows). All query heads of the group are
// walked in turn, 64 queries at a time.
template <int D, int GROUPS, int BLOCKS, bool LEAN, bool FULL>
static __global__ void __launch_bounds__(GROUPS * 128, BLOCKS)
    hopper_kv_kernel(const __grid_constant__ FlashArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int BN = GROUPS * 64, BM = 64, THREADS = GROUPS * 128;
    extern __shared__ __align__(1024) uint8_t shared[];
    float(*lse2)[BM] = (float(*)[BM])(shared + (2 * BN + 4 * BM) * D * 2), (*row_sum)[BM] = lse2 + 2;
    const uint32_t k_tile = shared_address(shared), v_tile = k_tile + BN * D * 2, q_tile = v_tile + BN * D * 2,
                   do_tile = q_tile + 2 * BM * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group0 = warp / 4 * 64, row0 = warp * 16;
    const int b = blockIdx.x / args.kv_heads, kv_head = blockIdx.x % args.kv_heads;
    const int group_heads = args.heads / args.kv_heads;
    const int n0 = blockIdx.y * BN; // the first keys are seen by the most queries, and come first
    const int64_t token0 = (int64_t)b * args.seq;
    const int32_t *doc_start = args.doc_start ? args.doc_start + token0 : NULL;
    const int m_begin = query_blocks_begin<FULL>(args, n0, BM);
    const int m_end = query_blocks_end(args, doc_start, BM, m_begin, n0 + BN - 1);
    const int tiles = m_end - m_begin, iterations = tiles * group_heads;
    const float scale2 = args.scale * LOG2E;

    tile_load<D, BN, THREADS>(k_tile, args.k + (token0 + n0) * args.k_stride + kv_head * args.head_dim, args.k_stride,
                              args.seq - n0, args.head_dim);
    tile_load<D, BN, THREADS>(v_tile, args.v + (token0 + n0) * args.v_stride + kv_head * args.head_dim, args.v_stride,
                              args.seq - n0, args.head_dim);
    float next_lse2 = CUDART_INF_F, next_row_sum = 0; // of query threadIdx.x of the next tile
    auto fetch = [&](int i, int stage) {
        const int h = kv_head * group_heads + i / tiles, m0 = (m_begin + i % tiles) * BM;
        tile_load<D, BM, THREADS>(q_tile + stage * BM * D * 2,
                                  args.q + (token0 + m0) * args.q_stride + h * args.head_dim, args.q_stride,
                                  args.seq - m0, args.head_dim);
        tile_load<D, BM, THREADS>(do_tile + stage * BM * D * 2,
                                  args.dout + (token0 + m0) * args.o_stride + h * args.head_dim, args.o_stride,
                                  args.seq - m0, args.head_dim);
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

    float dk[D / 64][32] = {}, dv[D / 64][32] = {};
    for (int i = 0, stage = 0; i < iterations; i++, stage ^= 1) {
        copies_arrive();
        if (i + 1 < iterations) fetch(i + 1, stage ^ 1);
        const int m0 = (m_begin + i % tiles) * BM;
        if (m0 + BM - 1 + keys_ahead<FULL>(args) >=
            n0 + group0) { // else all of the warpgroup's keys come after these queries
            const uint32_t q_now = q_tile + stage * BM * D * 2, do_now = do_tile + stage * BM * D * 2;
            float s[32], dp[32];
            wgmma_fence();
            scores<D, BN, BM>(s, k_tile, group0, q_now, 0);
            wgmma_commit();
            scores<D, BN, BM>(dp, v_tile, group0, do_now, 0);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_hold(s);
            if (m0 + keys_ahead<FULL>(args) < n0 + group0 + 63 || doc_start) {
                const KeyPair keys = key_pair<FULL>(args, n0 + row0 + lane / 4);
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    const int half = (i / 2) & 1, query = m0 + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
                    if (keys.first_query[half] > query ||
                        (doc_start && query < args.seq && keys.position[half] < doc_start[query]))
                        s[i] = -CUDART_INF_F;
                }
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 shift = *(const float2 *)&lse2[stage][j * 8 + (lane & 3) * 2];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[j * 4 + e] = exp2_fast(fmaf(s[j * 4 + e], scale2, -(e & 1 ? shift.y : shift.x)));
            }
            uint32_t p[4][4], ds[4][4];
            left_operands(p, s);
            wgmma_fence();
            accumulate<D, BM>(dv, p, do_now, 0);
            wgmma_commit();
            wgmma_wait<1>(); // dp is there, dv is under way
            wgmma_hold(dp);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 centre = *(const float2 *)&row_sum[stage][j * 8 + (lane & 3) * 2];
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    // LEAN takes P as it was rounded for dV, so that s need not be kept
                    const __nv_bfloat162 rounded = *reinterpret_cast<__nv_bfloat162 *>(&p[j / 2][(j & 1) * 2 + e / 2]);
                    const float2 kept =
                        LEAN ? __bfloat1622float2(rounded) : make_float2(s[j * 4 + e], s[j * 4 + e + 1]);
                    dp[j * 4 + e] = kept.x * (dp[j * 4 + e] - centre.x);
                    dp[j * 4 + e + 1] = kept.y * (dp[j * 4 + e + 1] - centre.y);
                }
            }
            left_operands(ds, dp);
            wgmma_fence();
            accumulate<D, BM>(dk, ds, q_now, 0);
            wgmma_commit();
            wgmma_wait<0>();
            parts_hold(dk);
            parts_hold(dv);
        }
        if (i + 1 < iterations) keep(stage ^ 1);
    }
    __syncthreads(); // the K and V tiles become the way out
    rows_store<D, BN>(shared, row0, dk, args.scale,
                      args.dk + (token0 + n0) * args.grad_stride + kv_head * args.head_dim, args.grad_stride,
                      args.seq - n0, args.head_dim);
    rows_store<D, BN>(shared + BN * D * 2, row0, dv, 1,
                      args.dv + (token0 + n0) * args.grad_stride + kv_head * args.head_dim, args.grad_stride,
                      args.seq - n0, args.head_dim);
#endif
}

// ---- launches -----------------------------------------------------------------------------------------------------

template <int D, int GROUPS, int BLOCKS> static void hopper_q_launch(CudaState *state, const FlashArgs &args) {
    constexpr int BM = GROUPS * 64, BYTES = (2 * BM + 4 * 64) * D * 2 + BM * 4;
    dim3 grid((unsigned)(args.batch * args.heads), (unsigned)((args.seq + BM - 1) / BM));
    if (args.full)
        LAUNCH_SHARED(state, (hopper_q_kernel<D, GROUPS, BLOCKS, true>), grid, GROUPS * 128, BYTES, args);
    else
        LAUNCH_SHARED(state, (hopper_q_kernel<D, GROUPS, BLOCKS, false>), grid, GROUPS * 128, BYTES, args);
}

template <int D, int GROUPS, int BLOCKS, bool LEAN>
static void hopper_kv_launch(CudaState *state, const FlashArgs &args) {
    constexpr int BN = GROUPS * 64, BYTES = (2 * BN + 4 * 64) * D * 2 + 4 * 64 * 4;
    dim3 grid((unsigned)(args.batch * args.kv_heads), (unsigned)((args.seq + BN - 1) / BN));
    if (args.full)
        LAUNCH_SHARED(state, (hopper_kv_kernel<D, GROUPS, BLOCKS, LEAN, true>), grid, GROUPS * 128, BYTES, args);
    else
        LAUNCH_SHARED(state, (hopper_kv_kernel<D, GROUPS, BLOCKS, LEAN, false>), grid, GROUPS * 128, BYTES, args);
}

bool hopper_available(CudaState *state) {
    return kernel_is_there(state->arch, hopper_q_kernel<64, 2, 2, false>);
}

void hopper_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                     const void *out, const float *lse, const void *q, const void *k, const void *v,
                     const AttentionShape *shape, int variant) {
    const int64_t tokens = (int64_t)shape->batch * shape->seq;
    float *row_sum = (float *)cuda_scratch(state, workspace_attention_backward(tokens, shape->heads));
    if (!row_sum) return;
    FlashArgs args = flash_backward_args(shape, dq, dk, dv, dqkv_stride, dout, out, lse, row_sum, q, k, v);
    if (shape->head_dim <= 64 && variant == 0) {
        hopper_q_launch<64, 2, 2>(state, args);
        hopper_kv_launch<64, 1, 3, true>(state, args);
    } else if (shape->head_dim <= 64) {
        hopper_q_launch<64, 1, 4>(state, args);
        hopper_kv_launch<64, 3, 1, true>(state, args);
    } else if (variant == 0) {
        hopper_q_launch<128, 2, 1>(state, args);
        hopper_kv_launch<128, 2, 1, false>(state, args);
    } else {
        hopper_q_launch<128, 3, 1>(state, args);
        hopper_kv_launch<128, 2, 1, false>(state, args);
    }
}
