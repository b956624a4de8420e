// What products with SwiGLU in their epilogue share on Hopper, of dense layers, of experts and in FP8
// (swiglu_gemm_sm90.cu, grouped_swiglu_sm90.cu, swiglu_fp8_sm90.cu): the sigmoid, the weave of gate and up, and the
// rounds through which a finished tile of a backward product leaves.
//
// A round is 64 rows by C::COLUMNS of a tile. A ring of slots in shared memory holds what it is made with, side by side
// in pieces of C::PIECE_BYTES: a warp of the producers loads the first two ahead of time, the consumers replace them by
// results, and another warp stores these.
#pragma once

#include "ops/cuda/gemm_sm90.cuh"

// ---- elements -----------------------------------------------------------------------------------------------------

DEVICE_CODE float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Good for some 21 bits: enough for bf16. Far left the exponential is infinite and its reciprocal 0, as it should be.
DEVICE_CODE float sigmoid(float x) {
    return reciprocal(1.0f + exp2_fast(x * -LOG2E));
}

// ---- rounds -------------------------------------------------------------------------------------------------------

// Calls use(round, x, y) for every round of this block's tiles, in the order in which they are filled; (x, y) is the
// round's first column and row.
template <typename C, typename Use>
DEVICE_CODE void rounds_walk(const Experts &experts, const GroupedArgs &args, int rank, Use use) {
    Tile tile = {};
    uint32_t round = 0;
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++)
        for (int i = 0; i < (tile.real ? C::ROUNDS : 0); i++)
            use(round++, tile.n * C::N_STEP + i % C::GROUPS * C::COLUMNS,
                tile.row + tile.m * TILE_M + i / C::GROUPS * 64);
}

// before: of two matrices whose rows lie in turn (pair_map_make).
template <typename C>
DEVICE_CODE void rounds_load(const Slots &rounds, const CUtensorMap *before, const Experts &experts,
                             const GroupedArgs &args, int rank) {
    rounds_walk<C>(experts, args, rank, [&](uint32_t round, int x, int y) {
        const uint32_t index = round % C::SLOTS, parity = round / C::SLOTS & 1, barrier = rounds.loaded + index * 8;
        mbarrier_wait(rounds.empty + index * 8, parity ^ 1);
        mbarrier_expect(barrier, 2 * C::PIECE_BYTES);
        tensor_load(rounds.memory + index * C::SLOT_BYTES, before, barrier, x, y, 0);
    });
}

// store(shared, x, y) stores a slot's results.
template <typename C, typename Store>
DEVICE_CODE void rounds_store(const Slots &rounds, const Experts &experts, const GroupedArgs &args, int rank,
                              Store store) {
    rounds_walk<C>(experts, args, rank, [&](uint32_t round, int x, int y) {
        const uint32_t index = round % C::SLOTS;
        mbarrier_wait(rounds.done + index * 8, round / C::SLOTS & 1);
        store(rounds.memory + index * C::SLOT_BYTES, x, y);
        tensor_store_commit();
        tensor_store_wait_read<1>(); // those of the round before
        if (round) mbarrier_arrive(rounds.empty + (round - 1) % C::SLOTS * 8);
    });
    tensor_store_wait_read<0>();
}

// ---- maps ---------------------------------------------------------------------------------------------------------

// A matrix [rows, columns] in boxes of box_rows by 128 bytes whose rows are woven: of 32, row 8 q + 2 j + i goes to
// place 8 j + 2 q + i, the column of a product that thread q of four holds as its j-th pair. All but columns are
// multiples of 32.
static inline CUtensorMap woven_map_make(CudaState *state, const void *memory, DType dtype, int64_t rows, int columns,
                                         int box_rows) {
    const cuuint32_t size = (cuuint32_t)dtype_size(dtype);
    const cuuint64_t line = (cuuint64_t)columns * size;
    return map_encode<5>(state, memory, dtype, {(cuuint64_t)columns, 2, 4, 4, (cuuint64_t)rows / 32},
                         {line, 8 * line, 2 * line, 32 * line}, {128 / size, 2, 4, 4, (cuuint32_t)box_rows / 32});
}

// Two matrices whose rows lie in turn: a round is 64 rows of both.
template <typename C> static CUtensorMap pair_map_make(CudaState *state, const void *memory, int64_t rows, int dim) {
    const cuuint64_t line = (cuuint64_t)dim * 2;
    return map_encode<3>(state, memory, DTYPE_BF16, {(cuuint64_t)dim, (cuuint64_t)rows, 2}, {2 * line, line},
                         {C::COLUMNS, 64, 2});
}
