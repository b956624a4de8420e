// Loads of a grouped product on Hopper whose input is tokens, found by the index of each row. The copy engine has no
// gather on this chip, so the four warps of the loading warpgroup copy this operand in pieces of 16 bytes, to the
// places where the copy engine would have put them; one thread leaves the other operand to the copy engine as ever.
//
// A stage is full when the copy engine has brought its bytes and each of these warps has handed over its pieces. A warp
// waits for its copies, makes them visible to wgmma (which reads through another proxy than cp.async writes
// through) and arrives. It does so LAG slices late, so that as many slices are on their way. LAG must leave two stages:
// a stage becomes empty when the slice behind it has been started, so the slice that is LAG + 1 behind the one that is
// to be filled must be full, and the one before that has its stage: STAGES >= LAG + 2.
#pragma once

#include "ops/cuda/gemm_sm90.cuh"

enum { LOAD_THREADS = 128, PIECE_ROWS = LOAD_THREADS / 8 }; // eight threads copy the 128 bytes of a row

typedef struct TokenRows {
    const uint16_t *tokens; // [.., columns] bf16
    const int32_t *token_of_row;
    int columns; // a multiple of 8
} TokenRows;

// GROUPED_FORWARD, whose first operand is tokens, or GROUPED_WEIGHT, whose second is (OF_B). CLUSTER blocks share the
// other one.
template <GroupedProduct PRODUCT_, int TILE_N_, int STAGES_, bool PINGPONG_, int CLUSTER_, bool PAIRED_ = false>
struct TokensConfig : Config<PRODUCT_, TILE_N_, STAGES_, PINGPONG_, PRODUCT_ == GROUPED_WEIGHT ? 1 : CLUSTER_,
                             PRODUCT_ == GROUPED_WEIGHT ? CLUSTER_ : 1, PAIRED_> {
    static constexpr bool TOKENS = true, OF_B = PRODUCT_ == GROUPED_WEIGHT;
    static constexpr int ROWS_EACH = (OF_B ? TILE_K : TILE_M) / PIECE_ROWS; // of a slice
    static constexpr int FULL_ARRIVALS = 1 + LOAD_THREADS / 32;
    static constexpr int LAG = STAGES_ - 2;
    // Threads that hold their tokens need more registers than those that only tell the copy engine: 16 that two
    // products of 192 columns cannot spare, where the tokens are spilled in part.
    static constexpr int LENT = PINGPONG_ && TILE_N_ > 128 ? 0 : 8;
    static constexpr int CONSUMER_REGISTERS = ::CONSUMER_REGISTERS - LENT;
    static constexpr int PRODUCER_REGISTERS = ::PRODUCER_REGISTERS + 2 * LENT;
    static_assert(PRODUCT_ != GROUPED_INPUT, "it reads gradients");
};

// 16 bytes, or zeros. The rest of a line of 256 bytes comes into the L2 cache: the next slices are beside this one.
DEVICE_CODE void piece_copy(uint32_t shared, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

// Pieces of COUNT rows that stand PIECE_ROWS apart, from `column` on. to: the place of the first row's piece.
template <int COUNT>
DEVICE_CODE void pieces_copy(uint32_t to, const TokenRows &source, const int32_t (&token)[COUNT], int column) {
    const bool inside = column < source.columns;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const bool real = inside && token[i] >= 0;
        const uint16_t *from = source.tokens + (real ? (int64_t)token[i] * source.columns + column : 0);
        piece_copy(to + i * PIECE_ROWS * 128, from, real);
    }
}

// Of rows that stand PIECE_ROWS apart.
template <int COUNT> DEVICE_CODE void tokens_find(int32_t (&token)[COUNT], const int32_t *token_of_row, bool real) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        token[i] = real ? token_of_row[i * PIECE_ROWS] : -1;
}

// Which tokens a thread copies: some of the tile's 128 rows, the same in every slice, or where the reduction is over
// rows some of the 64 of each slice, found one slice ahead.
template <typename C> struct TokenWalk {
    int32_t token[C::ROWS_EACH], next[C::ROWS_EACH];

    __device__ __forceinline__ void begin(const TokenRows &source, const Tile &tile, int line) {
        const int row = tile.row + (C::OF_B ? 0 : tile.m * TILE_M) + line;
        // Beyond the last tile of an expert there may be no rows at all.
        tokens_find(next, source.token_of_row + row, C::OF_B || tile.real);
    }

    __device__ __forceinline__ void slice(const TokenRows &source, const Tile &tile, int line, int k) {
#pragma unroll
        for (int i = 0; i < C::ROWS_EACH; i++)
            token[i] = next[i];
        if (C::OF_B && k + 1 < tile.k_blocks)
            tokens_find(next, source.token_of_row + tile.row + (k + 1) * TILE_K + line, true);
    }
};

// A slice's pieces of this thread, which takes those of `line` (and every PIECE_ROWS behind it) at 16-byte place
// `piece` of 128. The 128-byte swizzle of the tensor maps: places are exchanged by the row's number, of 8.
template <typename C>
DEVICE_CODE void slice_copy(uint32_t to, const TokenRows &source, const TokenWalk<C> &walk, const Tile &tile, int k,
                            int line, int piece) {
    to += line * 128 + ((piece ^ (line & 7)) * 16);
    if constexpr (!C::OF_B) {
        pieces_copy(to, source, walk.token, k * TILE_K + piece * 8);
    } else {
        const int column = tile.n * C::N_STEP + piece * 8;
#pragma unroll
        for (int c = 0; c < C::N_CHUNKS; c++)
            pieces_copy(to + c * CHUNK_BYTES, source, walk.token, column + c * 64);
    }
}

// This thread's pieces of a slice are in shared memory.
DEVICE_CODE void slice_hand_over(uint32_t barrier) {
    shared_fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// By the first LOAD_THREADS of the loading warpgroup. map: of the operand that the copy engine loads.
template <typename C>
DEVICE_CODE void produce_tokens(const Ring<C> &ring, const CUtensorMap *map, const TokenRows &source,
                                const Experts &experts, const GroupedArgs &args, int rank) {
    const int thread = threadIdx.x % LOAD_THREADS, line = thread / 8, piece = thread % 8;
    int stage = 0, handed = 0, pending = 0; // stages; slices that are not handed over
    uint32_t parity = 1;                    // the ring starts empty
    Tile tile = {};
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++) {
        TokenWalk<C> walk;
        walk.begin(source, tile, line);
        for (int k = 0; k < tile.k_blocks; k++) {
            const uint32_t to = ring.stages + stage * C::STAGE_BYTES, barrier = ring.full + stage * 8;
            walk.slice(source, tile, line, k);
            mbarrier_wait(ring.empty + stage * 8, parity);
            if (thread == 0) {
                mbarrier_expect(barrier, C::OF_B ? C::A_BYTES : C::B_BYTES);
                if constexpr (C::OF_B)
                    a_slice_load<C>(to, map, barrier, tile, k, rank);
                else
                    b_slice_load<C>(to, map, barrier, tile, k, rank, args.pair_step);
            }
            slice_copy<C>(to + (C::OF_B ? C::A_BYTES : 0), source, walk, tile, k, line, piece);
            copies_commit();
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
            if (++pending <= C::LAG) continue;
            copies_wait<C::LAG>();
            slice_hand_over(ring.full + handed * 8);
            if (++handed == C::STAGES) handed = 0;
            pending--;
        }
    }
    copies_wait<0>();
    for (; pending > 0; pending--) {
        slice_hand_over(ring.full + handed * 8);
        if (++handed == C::STAGES) handed = 0;
    }
}
