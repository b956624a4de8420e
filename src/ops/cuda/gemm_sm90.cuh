// The pipeline of hearth's own matrix products on Hopper, bf16 with float sums: which tiles there are, how their
// operands come into shared memory, how they are multiplied and how results leave. Kernels add what happens to a
// finished tile.
//
// A block computes tiles of 128 rows. One warp loads: the copy engine fills a ring of stages in shared memory, each a
// slice of 64 of the reduction. Two warpgroups multiply with wgmma, either side by side on the halves of one tile, or
// each on its own tile in turn, so that one finishes its tile while the other multiplies. Blocks may work in pairs
// (clusters) on two neighbouring tiles that share an operand: each loads half of it for both.
//
// Which tiles there are is known only on the device: every role walks the experts' offsets by itself. The tensor maps
// depend on addresses and capacities alone, so a launch can be recorded in a graph. A dense product is one expert that
// has all rows.
#pragma once

#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/vector.cuh"

enum {
    TILE_M = 128,
    TILE_K = 64,                   // 128 bytes of bf16: the width of the swizzle
    CHUNK_BYTES = 64 * TILE_K * 2, // 64 elements of M or N by TILE_K
    EXPERTS_MAX = OPS_CUDA_EXPERTS_MAX,
    BAND = 8, // a wave of 66 pairs is then about as wide as it is high
    BLOCK_THREADS = 384,
    // Of a thread of the two warpgroups that multiply and of the one that loads: in all what a block starts with, 168 a
    // thread.
    CONSUMER_REGISTERS = 232,
    PRODUCER_REGISTERS = 40,
};

typedef struct GroupedArgs {
    const int32_t *offsets; // [experts + 1]; NULL: one expert has all rows
    int experts;
    int m_tiles;     // GROUPED_WEIGHT: tiles over the output features; without offsets: over the rows
    int n_tiles;     // tiles over the columns of the result
    int k_blocks;    // slices of the reduction; GROUPED_WEIGHT: from the rows of the expert
    bool accumulate; // GROUPED_WEIGHT
    float *out;      // GROUPED_WEIGHT: [experts, count]
    int64_t count;   // of one expert's results, a multiple of 8
    int pair_step;   // PAIRED: from a column of the first matrix to the same of the second, in blocks of 32; twice that
                     // from one expert's to the next one's
    int half_slice;  // HALF_SLICE: the slice whose second half lies beyond the reduction, or -1
} GroupedArgs;

// A cluster is CLUSTER_M tiles high and CLUSTER_N wide: blocks above each other share B, those beside each other A.
// PAIRED: b holds two matrices of n columns each (gate and up), and a tile has TILE_N / 2 columns of both, side by side
// and woven (woven_map_make): thread t of a warpgroup gets columns 8 (t % 4) to 8 (t % 4) + 7 of every 32.
template <GroupedProduct PRODUCT_, int TILE_N_, int STAGES_, bool PINGPONG_, int CLUSTER_M_, int CLUSTER_N_,
          bool PAIRED_ = false>
struct Config {
    static constexpr GroupedProduct PRODUCT = PRODUCT_;
    static constexpr int TILE_N = TILE_N_, STAGES = STAGES_;
    static constexpr int K_STEP = TILE_K; // of the reduction, from one stage to the next
    static constexpr bool PINGPONG = PINGPONG_, PAIRED = PAIRED_;
    static constexpr bool FINISH_IN_TURN = false; // the warpgroups finish their tiles in turn as well
    static constexpr bool FRESH_SUMS = false;     // see sums_clear
    static constexpr bool HALF_SLICE = false;     // args.half_slice is set
    // Of warpgroups that share tiles the second begins so many slices behind the first, and one finishes a tile while
    // the other still multiplies.
    static constexpr int STAGGER = 0;
    static constexpr bool TOKENS = false;   // an operand is tokens (grouped_tokens_sm90.cuh)
    static constexpr int FULL_ARRIVALS = 1; // on a stage's barrier, until it is full
    static constexpr int CONSUMER_REGISTERS = ::CONSUMER_REGISTERS, PRODUCER_REGISTERS = ::PRODUCER_REGISTERS;
    static constexpr int CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_, BLOCKS = CLUSTER_M * CLUSTER_N;
    static constexpr bool TRANSPOSE_A = PRODUCT == GROUPED_WEIGHT, TRANSPOSE_B = PRODUCT != GROUPED_FORWARD;
    static constexpr int M_PARTS = PINGPONG ? 2 : 1; // pieces of 64 rows that a warpgroup multiplies
    static constexpr int N_CHUNKS = (TILE_N + 63) / 64;
    static constexpr int N_STEP = PAIRED ? TILE_N / 2 : TILE_N; // columns from one tile to the next
    static constexpr int A_BYTES = TILE_M * TILE_K * 2;
    static constexpr int B_BYTES = TRANSPOSE_B ? N_CHUNKS * CHUNK_BYTES : TILE_N * TILE_K * 2;
    static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
    // Boxes of the tensor maps; a shared operand is cut in two, along the reduction where that is strided. Two paired
    // matrices are two boxes.
    static constexpr int A_BOX = (TRANSPOSE_A ? TILE_K : TILE_M) / CLUSTER_N;
    static constexpr int B_BOX = PAIRED ? TILE_N / 2 : (TRANSPOSE_B ? TILE_K : TILE_N) / CLUSTER_M;
    static_assert(B_BYTES % 1024 == 0 && B_BOX % 8 == 0, "tile width");
    static_assert(BLOCKS <= 2, "loads and releases are for two blocks");
    static_assert(!PAIRED || (!TRANSPOSE_B && CLUSTER_N == 1 && B_BOX % 32 == 0), "whole blocks of a weave");

    // What one instruction multiplies: 32 bytes of the reduction.
    template <int COUNT>
    static __device__ __forceinline__ void multiply(float (&d)[COUNT], uint64_t a, uint64_t b, int keep) {
        wgmma<TRANSPOSE_A, TRANSPOSE_B>(d, a, b, keep);
    }
};

// ---- the ring of stages -------------------------------------------------------------------------------------------

// The ring of stages and the barriers of a block.
template <typename C> struct Ring {
    uint32_t stages;             // shared memory
    uint32_t full, empty, turns; // barriers; turns: two to multiply, two to finish
};

// Sets up the ring at the first multiple of 1024 bytes in the dynamic shared memory, which the swizzle needs; by all
// threads.
template <typename C> DEVICE_CODE Ring<C> ring_make(uint8_t *dynamic, uint64_t (&barriers)[2 * C::STAGES + 4]) {
    const Ring<C> ring = {(shared_address(dynamic) + 1023) & ~1023u, shared_address(barriers),
                          shared_address(barriers + C::STAGES), shared_address(barriers + 2 * C::STAGES)};
    if (threadIdx.x == 0) {
        for (int s = 0; s < C::STAGES; s++) {
            mbarrier_init(ring.full + s * 8, C::FULL_ARRIVALS);
            mbarrier_init(ring.empty + s * 8, (C::PINGPONG ? 4 : 8) * C::BLOCKS);
        }
        for (int t = 0; t < 4; t++)
            mbarrier_init(ring.turns + t * 8, 4);
        mbarrier_init_fence();
    }
    return ring;
}

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
template <GroupedProduct PRODUCT> DEVICE_CODE void experts_load(Experts &experts, const GroupedArgs &args) {
    for (int e = threadIdx.x; e <= args.experts; e += BLOCK_THREADS)
        experts.offsets[e] = args.offsets ? args.offsets[e] : e * args.m_tiles * TILE_M;
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
// An expert's units are dealt in bands of BAND units of rows, down and then to the right, so that the blocks of a wave
// share both rows and weights in the L2 cache and a large weight passes through it once per band. Tiles of the weight
// gradient take as long as the expert has rows: every second wave is dealt in the opposite order, so that each block
// gets about the same in all.
template <typename C>
DEVICE_CODE bool tile_find(Tile &tile, int wave, const Experts &experts, const GroupedArgs &args, int rank) {
    const int width = gridDim.x / C::BLOCKS, block = blockIdx.x / C::BLOCKS;
    const int unit = wave * width + (C::PRODUCT == GROUPED_WEIGHT && wave % 2 ? width - 1 - block : block);
    const int n_units = (args.n_tiles + C::CLUSTER_N - 1) / C::CLUSTER_N;
    int m_tiles = 0, m_units = 0;
    for (;; tile.step++) {
        if (tile.step == args.experts) return false;
        tile.expert = C::PRODUCT == GROUPED_WEIGHT ? experts.order[tile.step] : tile.step;
        tile.row = experts.offsets[tile.expert];
        const int rows = experts.offsets[tile.expert + 1] - tile.row;
        m_tiles = C::PRODUCT == GROUPED_WEIGHT ? (rows ? args.m_tiles : 0) : rows / TILE_M;
        tile.k_blocks = C::PRODUCT == GROUPED_WEIGHT ? rows / TILE_K : args.k_blocks;
        m_units = (m_tiles + C::CLUSTER_M - 1) / C::CLUSTER_M;
        if (unit < tile.first + m_units * n_units) break;
        tile.first += m_units * n_units;
    }
    const int place = unit - tile.first, band = place / (BAND * n_units), in_band = place - band * BAND * n_units;
    const int height = min(BAND, m_units - band * BAND);
    tile.m = (band * BAND + in_band % height) * C::CLUSTER_M + rank % C::CLUSTER_M;
    tile.n = in_band / height * C::CLUSTER_N + rank / C::CLUSTER_M;
    tile.real = tile.m < m_tiles && tile.n < args.n_tiles;
    return true;
}

// ---- a block ------------------------------------------------------------------------------------------------------

template <typename C> DEVICE_CODE int block_rank(void) { // in its cluster
    return C::BLOCKS == 1 ? 0 : (int)cluster_rank();
}

// By all threads, after all barriers are set up: from here on both blocks of a cluster may signal them.
template <typename C> DEVICE_CODE void block_begin(Experts &experts, const GroupedArgs &args) {
    experts_load<C::PRODUCT>(experts, args);
    __syncthreads();
    if (C::BLOCKS > 1) cluster_sync();
}

// By all threads: the other block may still write here, or signal.
template <typename C> DEVICE_CODE void block_end(void) {
    if (C::BLOCKS == 1) return;
    __syncwarp();
    cluster_sync();
}

// ---- loads --------------------------------------------------------------------------------------------------------

// One slice of an operand: `chunks` of 64 along its contiguous dimension where the reduction is strided, else one box.
// (x, y, z) is the first element. SHARED_BOX: this block loads its half of each box, for both blocks.
template <bool TRANSPOSE, bool SHARED_BOX, int BOX, int CHUNKS>
DEVICE_CODE void operand_load(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int y, int z,
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

// B of one slice; by: first row of the box (of b's z-th matrix).
template <typename C>
DEVICE_CODE void b_load(uint32_t to, const CUtensorMap *b, uint32_t barrier, int bx, int by, int z, int rank,
                        int pair_step) {
    const int block = by / 32 + z * 2 * pair_step;
    if constexpr (C::PAIRED && C::CLUSTER_M > 1) // one of the two matrices for both blocks
        woven_load_multicast(to + rank * C::B_BOX * 128, b, barrier, bx, block + rank * pair_step, 3);
    else if constexpr (C::PAIRED)
        for (int i = 0; i < 2; i++)
            woven_load(to + i * C::B_BOX * 128, b, barrier, bx, block + i * pair_step);
    else
        operand_load<C::TRANSPOSE_B, (C::CLUSTER_M > 1), C::B_BOX, C::N_CHUNKS>(to, b, barrier, bx, by, z, rank);
}

// Slice k of a tile.
template <typename C>
DEVICE_CODE void a_slice_load(uint32_t to, const CUtensorMap *a, uint32_t barrier, const Tile &tile, int k, int rank) {
    constexpr bool WEIGHT = C::PRODUCT == GROUPED_WEIGHT;
    const int m = tile.m * TILE_M, l = k * C::K_STEP;
    operand_load<C::TRANSPOSE_A, (C::CLUSTER_N > 1), C::A_BOX, 2>(to, a, barrier, WEIGHT ? m : l,
                                                                  tile.row + (WEIGHT ? l : m), 0, rank);
}

template <typename C>
DEVICE_CODE void b_slice_load(uint32_t to, const CUtensorMap *b, uint32_t barrier, const Tile &tile, int k, int rank,
                              int pair_step) {
    constexpr GroupedProduct PRODUCT = C::PRODUCT;
    const int n = tile.n * C::N_STEP, l = k * C::K_STEP;
    const int by = PRODUCT == GROUPED_FORWARD ? n : PRODUCT == GROUPED_INPUT ? l : tile.row + l;
    b_load<C>(to + C::A_BYTES, b, barrier, PRODUCT == GROUPED_FORWARD ? l : n, by,
              PRODUCT == GROUPED_WEIGHT ? 0 : tile.expert, rank, pair_step);
}

template <typename C>
DEVICE_CODE void produce(const Ring<C> &ring, const CUtensorMap *a, const CUtensorMap *b, const Experts &experts,
                         const GroupedArgs &args, int rank) {
    int stage = 0;
    uint32_t parity = 1; // the ring starts empty
    Tile tile = {};
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++) {
        for (int k = 0; k < tile.k_blocks; k++) {
            const uint32_t to = ring.stages + stage * C::STAGE_BYTES, barrier = ring.full + stage * 8;
            mbarrier_wait(ring.empty + stage * 8, parity);
            mbarrier_expect(barrier, C::STAGE_BYTES);
            a_slice_load<C>(to, a, barrier, tile, k, rank);
            b_slice_load<C>(to, b, barrier, tile, k, rank, args.pair_step);
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
        }
    }
}

// ---- results ------------------------------------------------------------------------------------------------------

// 64 rows of the accumulators of one warpgroup, columns first .. first + COLUMNS, to shared memory as the tensor map's
// swizzle wants them: 16-byte pieces of a row are exchanged by the row's number.
template <int COLUMNS, int COUNT> DEVICE_CODE void stage_bf16(uint32_t to, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int exchange = COLUMNS == 64 ? row & 7 : row >> 1 & 3;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j += 2) { // two 8 x 8 matrices beside each other, two above each other
        const int r = (first / 8 + j) * 4;
        matrices_store(to + row * COLUMNS * 2 + (((j + lane / 16) ^ exchange) * 16), pack_bf16(d[r], d[r + 1]),
                       pack_bf16(d[r + 2], d[r + 3]), pack_bf16(d[r + 4], d[r + 5]), pack_bf16(d[r + 6], d[r + 7]));
    }
}

// Places in shared memory through which results leave, one after the other. loaded: what they are made with is there.
// done: the results are. empty: the stores have read them.
typedef struct Slots {
    uint32_t memory;
    uint32_t loaded, done, empty; // barriers
} Slots;

// By all threads; a barrier must follow.
template <int COUNT> DEVICE_CODE Slots slots_make(uint32_t memory, uint64_t (&barriers)[3 * COUNT]) {
    const Slots slots = {memory, shared_address(barriers), shared_address(barriers + COUNT),
                         shared_address(barriers + 2 * COUNT)};
    if (threadIdx.x == 0) {
        for (int i = 0; i < COUNT; i++) {
            mbarrier_init(slots.loaded + i * 8, 1);
            mbarrier_init(slots.done + i * 8, 4);
            mbarrier_init(slots.empty + i * 8, 1);
        }
        mbarrier_init_fence();
    }
    return slots;
}

// ---- products -----------------------------------------------------------------------------------------------------

// Lets both blocks of the cluster (or this one) fill the stage again; one arrival per warp and block.
template <typename C> DEVICE_CODE void stage_release(uint32_t barrier) {
    const int lane = threadIdx.x % 32;
    if (C::BLOCKS == 1) {
        if (lane == 0) mbarrier_arrive(barrier);
    } else if (lane < C::BLOCKS) {
        mbarrier_arrive_cluster(barrier, lane);
    }
}

// A tile's first products overwrite the sums, but the compiler takes them for readers, and keeps the registers of all
// sums through the epilogue before. One that has none to spare says that they begin anew, for half an instruction each.
template <int COUNT> DEVICE_CODE void sums_clear(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[i])::"memory");
}

// The first half of a slice, where the other lies beyond the reduction; its products are a group of their own, as
// tensor cores wait for each other where a branch stands within one. No operand is transposed.
template <typename C>
DEVICE_CODE void half_multiply(float (&d)[C::M_PARTS][C::TILE_N / 2], uint64_t a, uint64_t b, int k) {
    wgmma_fence();
#pragma unroll
    for (int l = 0; l < TILE_K / 32; l++)
#pragma unroll
        for (int part = 0; part < C::M_PARTS; part++)
            C::multiply(d[part], a + l * 2 + part * (CHUNK_BYTES / 16), b + l * 2, k | l);
    wgmma_commit();
    wgmma_wait<1>();
}

// Walks the tiles of a warpgroup and multiplies them. finish(tile, number, d) gets each with its sums: d[part] holds
// 64 rows, from part * 64 of the tile on when the warpgroups take turns, else from warpgroup * 64 on; number counts the
// block's tiles.
template <typename C, typename Finish>
DEVICE_CODE void consume(const Ring<C> &ring, const Experts &experts, const GroupedArgs &args, int rank, int warpgroup,
                         Finish finish) {
    static_assert(C::PINGPONG || !C::FINISH_IN_TURN, "only warpgroups with tiles of their own finish in turn");
    static_assert(!C::STAGGER || (!C::PINGPONG && C::STAGGER < C::STAGES),
                  "the first has as many slices as there are stages");
    // Descriptors move by these per 16 of the reduction, in units of 16 bytes.
    constexpr int A_STEP = (C::TRANSPOSE_A ? 2048 : 32) / 16, B_STEP = (C::TRANSPOSE_B ? 2048 : 32) / 16;
    constexpr int A_PART = CHUNK_BYTES / 16; // 64 rows of A, in either layout
    float d[C::M_PARTS][C::TILE_N / 2];
    const uint64_t a0 = wgmma_operand(ring.stages + (C::PINGPONG ? 0 : warpgroup * CHUNK_BYTES), CHUNK_BYTES);
    const uint64_t b0 = wgmma_operand(ring.stages + C::A_BYTES, CHUNK_BYTES);
    int stage = 0, turn = 0;
    uint32_t parity = 0, turn_parity = warpgroup ? 0 : 1; // the first warpgroup begins
    Tile tile = {};
    uint32_t number = 0;
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++, turn ^= 1, number += tile.real) {
        if (C::PINGPONG && turn != warpgroup) { // the other warpgroup's tile: pass over its slices
            const int next = stage + tile.k_blocks;
            parity ^= next / C::STAGES & 1;
            stage = next % C::STAGES;
            continue;
        }
        if constexpr (C::FRESH_SUMS) {
#pragma unroll
            for (int part = 0; part < C::M_PARTS; part++)
                sums_clear(d[part]);
        }
        // A stage's barrier tells two phases apart, no more: nobody may wait for a slice before the one that used its
        // stage last has arrived. So the warpgroups take turns.
        if (C::PINGPONG) {
            mbarrier_wait(ring.turns + warpgroup * 8, turn_parity);
            turn_parity ^= 1;
        }
        const bool staggers = C::STAGGER && wave == 0 && tile.k_blocks >= C::STAGGER; // at the start alone
        if (staggers && warpgroup == 1) mbarrier_wait(ring.turns, 0);
        int before = -1; // stage whose products may still run
        for (int k = 0; k < tile.k_blocks; k++) {
            mbarrier_wait(ring.full + stage * 8, parity);
            const uint64_t offset = (uint64_t)(stage * (C::STAGE_BYTES / 16));
            if (C::HALF_SLICE && tile.real && k == args.half_slice) {
                half_multiply<C>(d, a0 + offset, b0 + offset, k);
            } else if (tile.real) {
                wgmma_fence();
#pragma unroll
                for (int l = 0; l < TILE_K / 16; l++)
#pragma unroll
                    for (int part = 0; part < C::M_PARTS; part++)
                        C::multiply(d[part], a0 + offset + l * A_STEP + part * A_PART, b0 + offset + l * B_STEP, k | l);
                wgmma_commit();
                wgmma_wait<1>();
            }
            if (staggers && warpgroup == 0 && k == C::STAGGER - 1 && threadIdx.x % 32 == 0) mbarrier_arrive(ring.turns);
            if (before >= 0) stage_release<C>(ring.empty + before * 8);
            before = stage;
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
        }
        if (C::PINGPONG && threadIdx.x % 32 == 0) mbarrier_arrive(ring.turns + (1 - warpgroup) * 8);
        wgmma_wait<0>();
#pragma unroll
        for (int part = 0; part < C::M_PARTS; part++)
            wgmma_hold(d[part]);
        if (before >= 0) stage_release<C>(ring.empty + before * 8);
        if (C::FINISH_IN_TURN) mbarrier_wait(ring.turns + (2 + warpgroup) * 8, turn_parity ^ 1);
        if (tile.real) finish(tile, number, d);
        if (C::FINISH_IN_TURN && threadIdx.x % 32 == 0) mbarrier_arrive(ring.turns + (3 - warpgroup) * 8);
    }
}

// ---- host ---------------------------------------------------------------------------------------------------------

// A tensor [d2, d1, d0] that is read or written in boxes of [1, box1, box0].
static CUtensorMap map_make(CudaState *state, const void *memory, DType dtype, int64_t d2, int64_t d1, int64_t d0,
                            int box1, int box0) {
    const cuuint64_t size = dtype_size(dtype);
    return map_encode<3>(state, memory, dtype, {(cuuint64_t)d0, (cuuint64_t)d1, (cuuint64_t)d2},
                         {d0 * size, d0 * d1 * size}, {(cuuint32_t)box0, (cuuint32_t)box1, 1});
}

// Rows of bf16 that stand apart by a stride, as one matrix of such a tensor.
static inline CUtensorMap rows_map_make(CudaState *state, const void *memory, int64_t rows, int64_t columns,
                                        int64_t stride, int box_rows, int box_columns) {
    return map_encode<3>(state, memory, DTYPE_BF16, {(cuuint64_t)columns, (cuuint64_t)rows, 1},
                         {(cuuint64_t)stride * 2, (cuuint64_t)(stride * rows) * 2},
                         {(cuuint32_t)box_columns, (cuuint32_t)box_rows, 1});
}

// One block (or cluster) per multiprocessor; they find their tiles themselves.
template <typename C, typename... Parameters, typename... Values>
static void persistent_launch(CudaState *state, void (*kernel)(Parameters...), int shared, Values... values) {
    CUDA_CHECK(state, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = C::BLOCKS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(state->sm_count / C::BLOCKS * C::BLOCKS));
    config.blockDim = dim3(BLOCK_THREADS);
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = state->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    CUDA_CHECK(state, cudaLaunchKernelEx(&config, kernel, values...));
}
