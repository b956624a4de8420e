// Grouped linear layers of MoE on Hopper, bf16 with float sums: one persistent kernel for the three products.
//
// A block computes tiles of 128 rows. One warp loads: the copy engine fills a ring of stages in shared memory, each a
// slice of 64 of the reduction. Two warpgroups multiply with wgmma, either side by side on the halves of one tile, or
// each on its own tile in turn, so that one stores while the other multiplies. Results leave through shared memory and
// the copy engine, which also adds them to the weight gradient. Blocks may work in pairs (clusters) on two neighbouring
// tiles that share an operand: each loads half of it for both.
//
// Which tiles there are is known only on the device: every role walks the experts' offsets by itself. The tensor maps
// depend on addresses and capacities alone, so a launch can be recorded in a graph.
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"

enum {
    TILE_M = 128,
    TILE_K = 64,                   // 128 bytes of bf16: the width of the swizzle
    CHUNK_BYTES = 64 * TILE_K * 2, // 64 elements of M or N by TILE_K
    STAGING_BYTES = 64 * 128,      // 64 rows of 128 bytes of results
    EXPERTS_MAX = 256,
    BLOCK_THREADS = 384,
};

// What two blocks of a cluster share: nothing (no clusters), A (tiles beside each other) or B (tiles above each other).
typedef enum Share { SHARE_NONE, SHARE_A, SHARE_B } Share;

typedef struct GroupedArgs {
    const int32_t *offsets; // [experts + 1]
    int experts;
    int m_tiles;  // GROUPED_WEIGHT: tiles over the output features
    int n_tiles;  // tiles over the columns of the result
    int k_blocks; // slices of the reduction; GROUPED_WEIGHT: from the rows of the expert
} GroupedArgs;

template <GroupedProduct PRODUCT, int TILE_N, int STAGES, bool PINGPONG, Share SHARE> struct Config {
    static constexpr bool TRANSPOSE_A = PRODUCT == GROUPED_WEIGHT, TRANSPOSE_B = PRODUCT != GROUPED_FORWARD;
    static constexpr int BLOCKS = SHARE == SHARE_NONE ? 1 : 2; // of a cluster
    static constexpr int M_PARTS = PINGPONG ? 2 : 1;           // pieces of 64 rows that a warpgroup multiplies
    static constexpr int N_CHUNKS = (TILE_N + 63) / 64;
    static constexpr int A_BYTES = TILE_M * TILE_K * 2;
    static constexpr int B_BYTES = TRANSPOSE_B ? N_CHUNKS * CHUNK_BYTES : TILE_N * TILE_K * 2;
    static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
    // Results leave in pieces of 64 rows by this many columns, 128 or 64 bytes wide.
    static constexpr int OUT_COLUMNS = PRODUCT == GROUPED_WEIGHT ? 32 : TILE_N % 64 ? 32 : 64;
    static constexpr int SHARED = STAGES * STAGE_BYTES + 4 * STAGING_BYTES + 1024; // 1024: to align by hand
    // Boxes of the tensor maps; a shared operand is cut in two, along the reduction where that is strided.
    static constexpr int A_BOX =
        TRANSPOSE_A ? (SHARE == SHARE_A ? TILE_K / 2 : TILE_K) : (SHARE == SHARE_A ? TILE_M / 2 : TILE_M);
    static constexpr int B_BOX =
        TRANSPOSE_B ? (SHARE == SHARE_B ? TILE_K / 2 : TILE_K) : (SHARE == SHARE_B ? TILE_N / 2 : TILE_N);
    static_assert(TILE_N % OUT_COLUMNS == 0 && B_BYTES % 1024 == 0 && (TRANSPOSE_B || B_BOX % 8 == 0), "tile width");
};

// ---- the walk over the tiles --------------------------------------------------------------------------------------

typedef struct Tile {
    int step, first; // of the walk: how many experts are behind, and the number of the current one's first unit
    int expert;
    int m, n; // of this block's tile, in tiles; m within the expert (or the output features)
    int row;  // first row of the expert
    int k_blocks;
    bool real; // false: only the other block of the cluster has a tile here
} Tile;

typedef struct Experts {
    int32_t offsets[EXPERTS_MAX + 1];
    uint8_t order[EXPERTS_MAX]; // GROUPED_WEIGHT: the walk goes from most rows to fewest
} Experts;

// By all threads; a barrier must follow.
template <GroupedProduct PRODUCT> HOPPER_CODE void experts_load(Experts &experts, const GroupedArgs &args) {
    for (int e = threadIdx.x; e <= args.experts; e += BLOCK_THREADS)
        experts.offsets[e] = args.offsets[e];
    if (PRODUCT != GROUPED_WEIGHT) return;
    __syncthreads();
    for (int e = threadIdx.x; e < args.experts; e += BLOCK_THREADS) {
        const int rows = experts.offsets[e + 1] - experts.offsets[e];
        int place = 0;
        for (int i = 0; i < args.experts; i++) {
            const int others = experts.offsets[i + 1] - experts.offsets[i];
            place += others > rows || (others == rows && i < e);
        }
        experts.order[place] = (uint8_t)e;
    }
}

// Moves to this block's tile of the given wave; false when there are no more. A unit is a tile, or two for a cluster.
// Units of an expert that meet the same rows are adjacent, so that the blocks of a wave share rows and weights in the
// L2 cache. Tiles of the weight gradient take as long as the expert has rows: every second wave is dealt in the
// opposite order, so that each block gets about the same in all.
template <GroupedProduct PRODUCT, Share SHARE>
HOPPER_CODE bool tile_find(Tile &tile, int wave, const Experts &experts, const GroupedArgs &args, int rank) {
    constexpr int BLOCKS = SHARE == SHARE_NONE ? 1 : 2;
    const int width = gridDim.x / BLOCKS, block = blockIdx.x / BLOCKS;
    const int unit = wave * width + (PRODUCT == GROUPED_WEIGHT && wave % 2 ? width - 1 - block : block);
    const int n_units = SHARE == SHARE_A ? (args.n_tiles + 1) / 2 : args.n_tiles;
    int m_tiles = 0;
    for (;; tile.step++) {
        if (tile.step == args.experts) return false;
        tile.expert = PRODUCT == GROUPED_WEIGHT ? experts.order[tile.step] : tile.step;
        tile.row = experts.offsets[tile.expert];
        const int rows = experts.offsets[tile.expert + 1] - tile.row;
        m_tiles = PRODUCT == GROUPED_WEIGHT ? (rows ? args.m_tiles : 0) : rows / TILE_M;
        tile.k_blocks = PRODUCT == GROUPED_WEIGHT ? rows / TILE_K : args.k_blocks;
        const int units = (SHARE == SHARE_B ? (m_tiles + 1) / 2 : m_tiles) * n_units;
        if (unit < tile.first + units) break;
        tile.first += units;
    }
    const int place = unit - tile.first;
    tile.m = place / n_units;
    tile.n = place % n_units;
    if (SHARE == SHARE_A) tile.n = tile.n * 2 + rank;
    if (SHARE == SHARE_B) tile.m = tile.m * 2 + rank;
    tile.real = tile.m < m_tiles && tile.n < args.n_tiles;
    return true;
}

// ---- loads --------------------------------------------------------------------------------------------------------

// One slice of an operand: `chunks` of 64 along its contiguous dimension where the reduction is strided, else one box.
// (x, y, z) is the first element. SHARED_BOX: this block loads its half of each box, for both blocks.
template <bool TRANSPOSE, bool SHARED_BOX, int BOX, int CHUNKS>
HOPPER_CODE void operand_load(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int y, int z,
                              int rank) {
    const int half = SHARED_BOX ? rank * BOX : 0; // rows of 128 bytes
#pragma unroll
    for (int c = 0; c < (TRANSPOSE ? CHUNKS : 1); c++) {
        const uint32_t to = shared + c * CHUNK_BYTES + half * 128;
        if (SHARED_BOX)
            tensor_load_multicast(to, map, barrier, x + c * 64, y + half, z, 3);
        else
            tensor_load(to, map, barrier, x + c * 64, y, z);
    }
}

template <typename C, GroupedProduct PRODUCT, int TILE_N, int STAGES, Share SHARE>
HOPPER_CODE void produce(uint32_t stages, uint32_t full, uint32_t empty, const CUtensorMap *a, const CUtensorMap *b,
                         const Experts &experts, const GroupedArgs &args, int rank) {
    int stage = 0;
    uint32_t parity = 1; // the ring starts empty
    Tile tile = {};
    for (int wave = 0; tile_find<PRODUCT, SHARE>(tile, wave, experts, args, rank); wave++) {
        for (int k = 0; k < tile.k_blocks; k++) {
            const uint32_t to = stages + stage * C::STAGE_BYTES, barrier = full + stage * 8;
            mbarrier_wait(empty + stage * 8, parity);
            mbarrier_expect(barrier, C::STAGE_BYTES);
            const int m = tile.m * TILE_M, n = tile.n * TILE_N, l = k * TILE_K;
            const int ax = PRODUCT == GROUPED_WEIGHT ? m : l, ay = tile.row + (PRODUCT == GROUPED_WEIGHT ? l : m);
            operand_load<C::TRANSPOSE_A, SHARE == SHARE_A, C::A_BOX, 2>(to, a, barrier, ax, ay, 0, rank);
            const int bx = PRODUCT == GROUPED_FORWARD ? l : n;
            const int by = PRODUCT == GROUPED_FORWARD ? n : PRODUCT == GROUPED_INPUT ? l : tile.row + l;
            operand_load<C::TRANSPOSE_B, SHARE == SHARE_B, C::B_BOX, C::N_CHUNKS>(
                to + C::A_BYTES, b, barrier, bx, by, PRODUCT == GROUPED_WEIGHT ? 0 : tile.expert, rank);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

// ---- results ------------------------------------------------------------------------------------------------------

// 64 rows of the accumulators of one warpgroup, columns first .. first + COLUMNS, to shared memory as the tensor map's
// swizzle wants them: 16-byte pieces of a row are exchanged by the row's number.
template <int COLUMNS, int COUNT> HOPPER_CODE void stage_bf16(uint32_t to, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int exchange = COLUMNS == 64 ? row & 7 : row >> 1 & 3;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j += 2) { // two 8 x 8 matrices beside each other, two above each other
        const int r = (first / 8 + j) * 4;
        shared_store_matrices(to + row * COLUMNS * 2 + (((j + lane / 16) ^ exchange) * 16), pack_bf16(d[r], d[r + 1]),
                              pack_bf16(d[r + 2], d[r + 3]), pack_bf16(d[r + 4], d[r + 5]),
                              pack_bf16(d[r + 6], d[r + 7]));
    }
}

template <int COUNT> HOPPER_CODE void stage_float(uint32_t to, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const bool odd = row & 1; // odd rows store in another order: rows 0 to 3 then fall into different banks
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int j = i % 4, h = i / 4;
        const int r = (first / 8 + j) * 4 + h * 2, s = (first / 8 + (j ^ 2)) * 4 + h * 2;
        const int column = odd ? j ^ 2 : j;
        const float low = odd ? d[s] : d[r], high = odd ? d[s + 1] : d[r + 1];
        const int at = row + 8 * h;
        const uint32_t place = to + at * 128 + (((column * 2 + lane % 4 / 2) ^ (at & 7)) * 16) + lane % 2 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(low), "f"(high) : "memory");
    }
}

// One warpgroup's accumulators to memory through its two staging buffers; 64 rows from row y on.
template <typename C, GroupedProduct PRODUCT, int TILE_N, int COUNT>
HOPPER_CODE void results_store(uint32_t staging, const float (&d)[COUNT], const CUtensorMap *out, int x, int y, int z,
                               int warpgroup) {
    const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
    for (int first = 0; first < TILE_N; first += C::OUT_COLUMNS) {
        const uint32_t buffer = staging + first / C::OUT_COLUMNS % 2 * STAGING_BYTES;
        if (leader) tensor_store_wait_read<1>(); // the store before the last has read this buffer
        named_barrier(1 + warpgroup, 128);
        if constexpr (PRODUCT == GROUPED_WEIGHT)
            stage_float(buffer, d, first);
        else
            stage_bf16<C::OUT_COLUMNS>(buffer, d, first);
        shared_fence_async();
        named_barrier(1 + warpgroup, 128);
        if (leader) {
            if (PRODUCT == GROUPED_WEIGHT)
                tensor_add(out, buffer, x + first, y, z);
            else
                tensor_store(out, buffer, x + first, y, z);
            tensor_store_commit();
        }
    }
    // An odd number of pieces: the next call starts with the first buffer again, which the last store may still read.
    if (TILE_N / C::OUT_COLUMNS % 2 && leader) tensor_store_wait_read<0>();
}

// ---- products -----------------------------------------------------------------------------------------------------

// Lets both blocks of the cluster (or this one) fill the stage again; one arrival per warp and block.
template <typename C> HOPPER_CODE void stage_release(uint32_t barrier) {
    const int lane = threadIdx.x % 32;
    if (C::BLOCKS == 1) {
        if (lane == 0) mbarrier_arrive(barrier);
    } else if (lane < C::BLOCKS) {
        mbarrier_arrive_cluster(barrier, lane);
    }
}

template <typename C, GroupedProduct PRODUCT, int TILE_N, int STAGES, bool PINGPONG, Share SHARE>
HOPPER_CODE void consume(uint32_t stages, uint32_t staging, uint32_t full, uint32_t empty, uint32_t turns,
                         const CUtensorMap *out, const Experts &experts, const GroupedArgs &args, int rank,
                         int warpgroup) {
    // Descriptors move by these per 16 of the reduction, in units of 16 bytes.
    constexpr int A_STEP = (C::TRANSPOSE_A ? 2048 : 32) / 16, B_STEP = (C::TRANSPOSE_B ? 2048 : 32) / 16;
    constexpr int A_PART = CHUNK_BYTES / 16; // 64 rows of A, in either layout
    float d[C::M_PARTS][TILE_N / 2];
    const uint64_t a0 = wgmma_operand(stages + (PINGPONG ? 0 : warpgroup * CHUNK_BYTES), CHUNK_BYTES);
    const uint64_t b0 = wgmma_operand(stages + C::A_BYTES, CHUNK_BYTES);
    int stage = 0, turn = 0;
    uint32_t parity = 0, turn_parity = warpgroup ? 0 : 1; // the first warpgroup begins
    Tile tile = {};
    for (int wave = 0; tile_find<PRODUCT, SHARE>(tile, wave, experts, args, rank); wave++, turn ^= 1) {
        if (PINGPONG && turn != warpgroup) { // the other warpgroup's tile: pass over its slices
            const int next = stage + tile.k_blocks;
            parity ^= next / STAGES & 1;
            stage = next % STAGES;
            continue;
        }
        // A stage's barrier tells two phases apart, no more: nobody may wait for a slice before the one that used its
        // stage last has arrived. So the warpgroups take turns.
        if (PINGPONG) {
            mbarrier_wait(turns + warpgroup * 8, turn_parity);
            turn_parity ^= 1;
        }
        int before = -1; // stage whose products may still run
        for (int k = 0; k < tile.k_blocks; k++) {
            mbarrier_wait(full + stage * 8, parity);
            const uint64_t offset = (uint64_t)(stage * (C::STAGE_BYTES / 16));
            if (tile.real) {
                wgmma_fence();
#pragma unroll
                for (int l = 0; l < TILE_K / 16; l++)
#pragma unroll
                    for (int part = 0; part < C::M_PARTS; part++)
                        wgmma<C::TRANSPOSE_A, C::TRANSPOSE_B>(d[part], a0 + offset + l * A_STEP + part * A_PART,
                                                              b0 + offset + l * B_STEP, k | l);
                wgmma_commit();
                wgmma_wait<1>();
            }
            if (before >= 0) stage_release<C>(empty + before * 8);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (PINGPONG && threadIdx.x % 32 == 0) mbarrier_arrive(turns + (1 - warpgroup) * 8);
        wgmma_wait<0>();
#pragma unroll
        for (int part = 0; part < C::M_PARTS; part++)
            wgmma_hold(d[part]);
        if (before >= 0) stage_release<C>(empty + before * 8);
        if (!tile.real) continue;
#pragma unroll
        for (int part = 0; part < C::M_PARTS; part++) {
            const int row = tile.m * TILE_M + (PINGPONG ? part : warpgroup) * 64;
            results_store<C, PRODUCT, TILE_N>(staging + warpgroup * 2 * STAGING_BYTES, d[part], out, tile.n * TILE_N,
                                              PRODUCT == GROUPED_WEIGHT ? row : tile.row + row,
                                              PRODUCT == GROUPED_WEIGHT ? tile.expert : 0, warpgroup);
        }
    }
    if (threadIdx.x % 128 == 0) tensor_store_wait_read<0>();
}

template <GroupedProduct PRODUCT, int TILE_N, int STAGES, bool PINGPONG, Share SHARE>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ CUtensorMap out, const __grid_constant__ GroupedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using C = Config<PRODUCT, TILE_N, STAGES, PINGPONG, SHARE>;
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * STAGES + 2];
    __shared__ Experts experts;
    const uint32_t stages = (shared_address(dynamic) + 1023) & ~1023u, staging = stages + STAGES * C::STAGE_BYTES;
    const uint32_t full = shared_address(barriers), empty = full + STAGES * 8, turns = empty + STAGES * 8;
    const int rank = C::BLOCKS == 1 ? 0 : (int)cluster_rank(), warpgroup = threadIdx.x / 128;

    experts_load<PRODUCT>(experts, args);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + s * 8, 1);
            mbarrier_init(empty + s * 8, (PINGPONG ? 4 : 8) * C::BLOCKS);
        }
        mbarrier_init(turns, 4);
        mbarrier_init(turns + 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (C::BLOCKS > 1) cluster_sync();

    if (warpgroup == 2) {
        registers_shrink<40>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            tensor_prefetch(&out);
            produce<C, PRODUCT, TILE_N, STAGES, SHARE>(stages, full, empty, &a, &b, experts, args, rank);
        }
    } else {
        registers_grow<232>();
        consume<C, PRODUCT, TILE_N, STAGES, PINGPONG, SHARE>(stages, staging, full, empty, turns, &out, experts, args,
                                                             rank, warpgroup);
    }
    // The other block may still write here, or signal.
    if (C::BLOCKS > 1) {
        __syncwarp();
        cluster_sync();
    }
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

// A tensor [d2, d1, d0] that is read or written in boxes of [1, box1, box0].
static CUtensorMap map_make(CudaState *state, const void *memory, DType dtype, int64_t d2, int64_t d1, int64_t d0,
                            int box1, int box0) {
    CUtensorMap map;
    const cuuint64_t size = dtype == DTYPE_BF16 ? 2 : 4;
    const cuuint64_t dims[3] = {(cuuint64_t)d0, (cuuint64_t)d1, (cuuint64_t)d2};
    const cuuint64_t strides[2] = {d0 * size, d0 * d1 * size};
    const cuuint32_t box[3] = {(cuuint32_t)box0, (cuuint32_t)box1, 1}, steps[3] = {1, 1, 1};
    MapEncode encode = map_encode_find();
    CUresult result =
        !encode ? CUDA_ERROR_NOT_FOUND
                : encode(&map, dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                         3, (void *)memory, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         box0 * size == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        cuda_fail(state, __FILE__, __LINE__, "the driver refused a tensor map (error %d)", (int)result);
    return map;
}

template <GroupedProduct PRODUCT, int TILE_N, int STAGES, bool PINGPONG, Share SHARE>
static void grouped_launch(CudaState *state, const GroupedCall *call) {
    using C = Config<PRODUCT, TILE_N, STAGES, PINGPONG, SHARE>;
    auto *kernel = grouped_kernel<PRODUCT, TILE_N, STAGES, PINGPONG, SHARE>;
    const int experts = call->experts, m = call->m, n = call->n, k = call->k;
    CUtensorMap map_a, map_b, map_out;
    if (PRODUCT == GROUPED_WEIGHT) {
        map_a = map_make(state, call->a, DTYPE_BF16, 1, call->rows, m, C::A_BOX, 64);
        map_b = map_make(state, call->b, DTYPE_BF16, 1, call->rows, n, C::B_BOX, 64);
        map_out = map_make(state, call->out, DTYPE_F32, experts, m, n, 64, C::OUT_COLUMNS);
    } else {
        map_a = map_make(state, call->a, DTYPE_BF16, 1, call->rows, k, C::A_BOX, TILE_K);
        map_b = PRODUCT == GROUPED_FORWARD ? map_make(state, call->b, DTYPE_BF16, experts, n, k, C::B_BOX, TILE_K)
                                           : map_make(state, call->b, DTYPE_BF16, experts, k, n, C::B_BOX, 64);
        map_out = map_make(state, call->out, DTYPE_BF16, 1, call->rows, n, 64, C::OUT_COLUMNS);
    }
    if (state->failure) return;
    CUDA_CHECK(state, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    GroupedArgs args = {call->offsets, experts, (int)ceil_div64(m, TILE_M), (int)ceil_div64(n, TILE_N),
                        (int)ceil_div64(k, TILE_K)};
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = C::BLOCKS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(state->sm_count / C::BLOCKS * C::BLOCKS));
    config.blockDim = dim3(BLOCK_THREADS);
    config.dynamicSmemBytes = C::SHARED;
    config.stream = state->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    CUDA_CHECK(state, cudaLaunchKernelEx(&config, kernel, map_a, map_b, map_out, args));
}

// The kernel's body exists only in code for sm_90a. A build without it has an empty kernel, which shows in the
// registers.
static bool kernel_is_there(void) {
    static int there = -1;
    if (there < 0) {
        cudaFuncAttributes attributes;
        there = cudaFuncGetAttributes(&attributes, grouped_kernel<GROUPED_FORWARD, 192, 4, true, SHARE_NONE>) ==
                    cudaSuccess &&
                attributes.numRegs > 64;
        cudaGetLastError();
    }
    return there;
}

// Columns that tiles of this width compute, those beyond the matrix included.
static int64_t padded(int n, int width) {
    return ceil_div64(n, width) * width;
}

// Whether an expert has so many rows, on average, that half a pair of tiles lost at its end does not matter.
static bool experts_are_tall(const GroupedCall *call) {
    return call->rows >= (int64_t)call->experts * 2048;
}

// Taking turns hides the stores. 192-wide tiles, and pairs of 128-wide ones that share their rows, run about equally
// fast, so what is lost at the right edge decides; single 128-wide tiles load more per product and are about an eighth
// slower.
template <GroupedProduct PRODUCT> static void grouped_rows(CudaState *state, const GroupedCall *call) {
    const int64_t pairs = padded(call->n, 256), wide = padded(call->n, 192), narrow = padded(call->n, 128) * 8 / 7;
    if (narrow < wide && narrow < pairs)
        grouped_launch<PRODUCT, 128, 6, true, SHARE_NONE>(state, call);
    else if (pairs < wide)
        grouped_launch<PRODUCT, 128, 6, true, SHARE_A>(state, call);
    else if (experts_are_tall(call))
        grouped_launch<PRODUCT, 192, 4, true, SHARE_B>(state, call);
    else
        grouped_launch<PRODUCT, 192, 4, true, SHARE_NONE>(state, call);
}

// With few rows per expert a tile is soon done, and reading and writing the gradient takes as long as the products: it
// pays to overlap them by taking turns.
static void grouped_weight(CudaState *state, const GroupedCall *call) {
    if (!experts_are_tall(call))
        grouped_launch<GROUPED_WEIGHT, 128, 6, true, SHARE_A>(state, call);
    else if (padded(call->n, 224) < padded(call->n, 256))
        grouped_launch<GROUPED_WEIGHT, 224, 4, false, SHARE_B>(state, call);
    else
        grouped_launch<GROUPED_WEIGHT, 256, 4, false, SHARE_NONE>(state, call);
}

bool grouped_sm90(CudaState *state, const GroupedCall *call) {
    const int contiguous = call->product == GROUPED_WEIGHT ? call->m | call->n : call->n | call->k;
    const bool aligned = (((uintptr_t)call->out | (uintptr_t)call->a | (uintptr_t)call->b) & 15) == 0;
    if (state->arch != 90 || call->experts > EXPERTS_MAX || contiguous % 8 || !aligned || !kernel_is_there())
        return false;
    if (call->product == GROUPED_FORWARD)
        grouped_rows<GROUPED_FORWARD>(state, call);
    else if (call->product == GROUPED_INPUT)
        grouped_rows<GROUPED_INPUT>(state, call);
    else
        grouped_weight(state, call);
    return true;
}
