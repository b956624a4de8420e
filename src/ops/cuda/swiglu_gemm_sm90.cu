// Products with SwiGLU in their epilogue on Hopper, on the pipeline of gemm_sm90.cuh; see swiglu_gemm.h.
//
// The warpgroups take turns, so one warpgroup's epilogue runs beside the other's products. A finished tile leaves in
// rounds of 64 rows by COLUMNS through a second ring in shared memory, whose slots hold gate, up and hidden of a round:
// backward a warp of the producers loads gate and up into it ahead of time, the consumers replace them by their
// gradients and add hidden, and another warp stores all three. Forward the consumers fill the slots alone.
#include "ops/cuda/gemm_sm90.cuh"
#include "ops/cuda/swiglu_gemm.h"

// HINTS 1: stores leave L2 first; 2: loads of gate and up leave L2 first; 4: gate and up are fetched a tile ahead.
// DIAG 1: no epilogue; 2: no loads and stores of the epilogue.
template <bool BACKWARD_, int TILE_N, int STAGES, int CLUSTER_M, int CLUSTER_N, int COLUMNS_ = 32, int SLOTS_ = 4,
          int HINTS_ = 0, int DIAG_ = 0>
struct SwigluConfig
    : Config<BACKWARD_ ? GROUPED_INPUT : GROUPED_FORWARD, TILE_N, STAGES, true, CLUSTER_M, CLUSTER_N, !BACKWARD_> {
    using Base =
        Config<BACKWARD_ ? GROUPED_INPUT : GROUPED_FORWARD, TILE_N, STAGES, true, CLUSTER_M, CLUSTER_N, !BACKWARD_>;
    static constexpr bool BACKWARD = BACKWARD_;
    static constexpr int HINTS = HINTS_, DIAG = DIAG_;
    static constexpr bool FINISH_IN_TURN = true;         // a slot's barrier, too, tells only two phases apart
    static constexpr int COLUMNS = COLUMNS_;             // of a round
    static constexpr int PIECE_BYTES = 64 * COLUMNS * 2; // gate, up or hidden of a round
    static constexpr int SLOTS = SLOTS_, SLOT_BYTES = 3 * PIECE_BYTES;
    static constexpr int GROUPS = Base::N_STEP / COLUMNS, ROUNDS = 2 * GROUPS; // of a tile
    static constexpr int SHARED = STAGES * Base::STAGE_BYTES + SLOTS * SLOT_BYTES + 1024;
    static_assert(Base::N_STEP % COLUMNS == 0 && ROUNDS % 2 == 0, "rounds of a tile");
    static_assert(SHARED + 2048 <= 227 * 1024, "shared memory");
};

// The ring of rounds. loaded: gate and up are there (backward). done: the consumers have filled the slot. empty: the
// stores have read it.
template <typename C> struct Rounds { uint32_t slots, loaded, done, empty; };

template <typename C> HOPPER_CODE Rounds<C> rounds_make(uint32_t slots, uint64_t (&barriers)[3 * C::SLOTS]) {
    const Rounds<C> rounds = {slots, shared_address(barriers), shared_address(barriers + C::SLOTS),
                              shared_address(barriers + 2 * C::SLOTS)};
    if (threadIdx.x == 0) {
        for (int s = 0; s < C::SLOTS; s++) {
            mbarrier_init(rounds.loaded + s * 8, 1);
            mbarrier_init(rounds.done + s * 8, 4);
            mbarrier_init(rounds.empty + s * 8, 1);
        }
        mbarrier_init_fence();
    }
    return rounds;
}

// Good for some 21 bits: enough for bf16. Far left the exponential is infinite and its reciprocal 0, as it should be.
HOPPER_CODE float sigmoid(float x) {
    float s;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + exp2_fast(x * -1.4426950408889634f)));
    return s;
}

// gate and up as they are stored, two of each, to hidden.
HOPPER_CODE uint32_t swiglu_pair(uint32_t gate, uint32_t up) {
    const float g0 = low_bf16(gate), g1 = high_bf16(gate);
    return pack_bf16(g0 * sigmoid(g0) * low_bf16(up), g1 * sigmoid(g1) * high_bf16(up));
}

// gate and up become their gradients; d is the gradient of hidden, which comes back.
HOPPER_CODE float swiglu_back(float &gate, float &up, float d) {
    const float s = sigmoid(gate), silu = gate * s, hidden = silu * up;
    gate = d * up * (s + silu * (1.0f - s));
    up = d * silu;
    return hidden;
}

HOPPER_CODE uint32_t swiglu_back_pair(uint32_t &gate, uint32_t &up, float d0, float d1) {
    float g0 = low_bf16(gate), g1 = high_bf16(gate), u0 = low_bf16(up), u1 = high_bf16(up);
    const float h0 = swiglu_back(g0, u0, d0), h1 = swiglu_back(g1, u1, d1);
    gate = pack_bf16(g0, g1);
    up = pack_bf16(u0, u1);
    return pack_bf16(h0, h1);
}

// One round: 64 rows by COLUMNS of a tile from column `first` on, by one warpgroup.
template <typename C, int COUNT>
HOPPER_CODE void round_fill(const Rounds<C> &rounds, uint32_t round, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int exchange = C::COLUMNS == 64 ? row & 7 : row >> 1 & 3; // the swizzle of 128-byte and 64-byte rows
    const uint32_t index = round % C::SLOTS, parity = round / C::SLOTS & 1;
    const uint32_t line = rounds.slots + index * C::SLOT_BYTES + row * C::COLUMNS * 2;
    if (C::DIAG != 2)
        mbarrier_wait(C::BACKWARD ? rounds.loaded + index * 8 : rounds.empty + index * 8,
                      C::BACKWARD ? parity : parity ^ 1);
    // Per pair of 8 columns: two 8 x 8 matrices beside each other, two above each other. Two pairs are read before any
    // is written, so that their exponentials overlap.
    constexpr int PAIRS = 2;
#pragma unroll
    for (int half = 0; half < C::COLUMNS / 16; half += PAIRS) {
        uint32_t gate[PAIRS][4], up[PAIRS][4], hidden[PAIRS][4];
        if constexpr (C::BACKWARD) {
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                const uint32_t at = line + (((2 * (half + j) + lane / 16) ^ exchange) * 16);
                shared_load_matrices(gate[j], at);
                shared_load_matrices(up[j], at + C::PIECE_BYTES);
            }
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int r = (first / 8 + 2 * (half + j)) * 4;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (C::BACKWARD) {
                    hidden[j][i] = swiglu_back_pair(gate[j][i], up[j][i], d[r + 2 * i], d[r + 2 * i + 1]);
                } else {
                    gate[j][i] = pack_bf16(d[r + 2 * i], d[r + 2 * i + 1]);
                    up[j][i] = pack_bf16(d[COUNT / 2 + r + 2 * i], d[COUNT / 2 + r + 2 * i + 1]);
                    hidden[j][i] = swiglu_pair(gate[j][i], up[j][i]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const uint32_t at = line + (((2 * (half + j) + lane / 16) ^ exchange) * 16);
            shared_store_matrices(at, gate[j][0], gate[j][1], gate[j][2], gate[j][3]);
            shared_store_matrices(at + C::PIECE_BYTES, up[j][0], up[j][1], up[j][2], up[j][3]);
            shared_store_matrices(at + 2 * C::PIECE_BYTES, hidden[j][0], hidden[j][1], hidden[j][2], hidden[j][3]);
        }
    }
    shared_fence_async();
    __syncwarp();
    if (C::DIAG != 2 && lane == 0) mbarrier_arrive(rounds.done + index * 8);
}

// Calls use(round, x, y) for every round of this block's tiles, in the order in which they are filled; (x, y) is the
// round's first column and row.
template <typename C, typename Use>
HOPPER_CODE void rounds_walk(const Experts &experts, const GroupedArgs &args, int rank, Use use) {
    Tile tile = {};
    uint32_t round = 0;
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++)
        for (int i = 0; i < (tile.real ? C::ROUNDS : 0); i++)
            use(round++, tile.n * C::N_STEP + i % C::GROUPS * C::COLUMNS,
                tile.row + tile.m * TILE_M + i / C::GROUPS * 64);
}

template <typename C>
HOPPER_CODE void rounds_load(const Rounds<C> &rounds, const CUtensorMap *gate_up, const Experts &experts,
                             const GroupedArgs &args, int rank) {
    rounds_walk<C>(experts, args, rank, [&](uint32_t round, int x, int y) {
        const uint32_t index = round % C::SLOTS, parity = round / C::SLOTS & 1;
        const uint32_t slot = rounds.slots + index * C::SLOT_BYTES, barrier = rounds.loaded + index * 8;
        mbarrier_wait(rounds.empty + index * 8, parity ^ 1);
        mbarrier_expect(barrier, 2 * C::PIECE_BYTES);
        if (C::HINTS & 2)
            tensor_load(slot, gate_up, barrier, x, y, 0, policy_evict_first());
        else
            tensor_load(slot, gate_up, barrier, x, y, 0);
    });
}

// Paced by the slots: when round r's gate and up have come, those a tile later are fetched.
template <typename C>
HOPPER_CODE void rounds_fetch(const Rounds<C> &rounds, const CUtensorMap *gate_up, const Experts &experts,
                              const GroupedArgs &args, int rank) {
    rounds_walk<C>(experts, args, rank, [&](uint32_t round, int x, int y) {
        if (round >= C::ROUNDS) {
            const uint32_t past = round - C::ROUNDS;
            mbarrier_wait(rounds.loaded + past % C::SLOTS * 8, past / C::SLOTS & 1);
        }
        tensor_fetch(gate_up, x, y, 0);
    });
}

template <typename C>
HOPPER_CODE void rounds_store(const Rounds<C> &rounds, const CUtensorMap *gate_up, const CUtensorMap *hidden,
                              const Experts &experts, const GroupedArgs &args, int rank) {
    rounds_walk<C>(experts, args, rank, [&](uint32_t round, int x, int y) {
        const uint32_t index = round % C::SLOTS, parity = round / C::SLOTS & 1;
        const uint32_t slot = rounds.slots + index * C::SLOT_BYTES;
        mbarrier_wait(rounds.done + index * 8, parity);
        if (C::HINTS & 1) {
            tensor_store(gate_up, slot, x, y, 0, policy_evict_first());
            tensor_store(hidden, slot + 2 * C::PIECE_BYTES, x, y, 0, policy_evict_first());
        } else {
            tensor_store(gate_up, slot, x, y, 0);
            tensor_store(hidden, slot + 2 * C::PIECE_BYTES, x, y, 0);
        }
        tensor_store_commit();
        tensor_store_wait_read<1>(); // those of the round before
        if (round) mbarrier_arrive(rounds.empty + (round - 1) % C::SLOTS * 8);
    });
    tensor_store_wait_read<0>();
}

template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    swiglu_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  const __grid_constant__ CUtensorMap before, const __grid_constant__ CUtensorMap gate_up,
                  const __grid_constant__ CUtensorMap hidden, const __grid_constant__ GroupedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4], round_barriers[3 * C::SLOTS];
    __shared__ Experts experts;
    const int rank = C::BLOCKS == 1 ? 0 : (int)cluster_rank(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>((shared_address(dynamic) + 1023) & ~1023u, barriers);
    const Rounds<C> rounds = rounds_make<C>(ring.stages + C::STAGES * C::STAGE_BYTES, round_barriers);
    experts_load<C::PRODUCT>(experts, args);
    __syncthreads();
    if (C::BLOCKS > 1) cluster_sync();

    if (warpgroup == 2) {
        registers_shrink<PRODUCER_REGISTERS>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            produce<C>(ring, &a, &b, experts, args, rank);
        } else if (!C::DIAG && C::BACKWARD && threadIdx.x == 288) {
            rounds_load<C>(rounds, &before, experts, args, rank);
        } else if ((C::HINTS & 4) && C::BACKWARD && threadIdx.x == 352) {
            rounds_fetch<C>(rounds, &before, experts, args, rank);
        } else if (!C::DIAG && threadIdx.x == 320) {
            rounds_store<C>(rounds, &gate_up, &hidden, experts, args, rank);
        }
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &, uint32_t number, auto &d) {
#pragma unroll
            for (int i = 0; i < (C::DIAG == 1 ? 0 : C::ROUNDS); i++)
                round_fill<C>(rounds, number * C::ROUNDS + i, d[i / C::GROUPS], i % C::GROUPS * C::COLUMNS);
        });
    }
    // Another block of the cluster may still write here, or signal.
    if (C::BLOCKS > 1) {
        __syncwarp();
        cluster_sync();
    }
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

template <bool BACKWARD, int TILE_N, int STAGES, int CLUSTER_M, int CLUSTER_N, int COLUMNS = 32, int SLOTS = 4,
          int HINTS = 0, int DIAG = 0>
static bool swiglu_launch(CudaState *state, const SwigluCall *call) {
    using C = SwigluConfig<BACKWARD, TILE_N, STAGES, CLUSTER_M, CLUSTER_N, COLUMNS, SLOTS, HINTS, DIAG>;
    const int64_t rows = call->rows;
    const int dim = call->dim, inner = call->inner;
    CUtensorMap a = map_make(state, call->in, DTYPE_BF16, 1, rows, inner, C::A_BOX, TILE_K);
    CUtensorMap b = BACKWARD ? map_make(state, call->weight, DTYPE_BF16, 1, inner, dim, C::B_BOX, 64)
                             : map_make(state, call->weight, DTYPE_BF16, 2, dim, inner, C::B_BOX, TILE_K);
    // gate and up are two matrices whose rows lie in turn: a round is 64 rows of both
    CUtensorMap gate_up =
        map_make_boxes(state, call->gate_up, DTYPE_BF16, 2, rows, dim, dim, 2 * (int64_t)dim, 2, 64, C::COLUMNS);
    CUtensorMap before = gate_up; // read backward only
    if (BACKWARD)
        before =
            map_make_boxes(state, call->before, DTYPE_BF16, 2, rows, dim, dim, 2 * (int64_t)dim, 2, 64, C::COLUMNS);
    CUtensorMap hidden = map_make(state, call->hidden, DTYPE_BF16, 1, rows, dim, 64, C::COLUMNS);
    if (state->failure) return true;
    GroupedArgs args = {
        NULL, 1, (int)ceil_div64(rows, TILE_M), (int)ceil_div64(dim, C::N_STEP), (int)ceil_div64(inner, TILE_K), false,
        NULL, 0};
    persistent_launch<C>(state, swiglu_kernel<C>, C::SHARED, a, b, before, gate_up, hidden, args);
    return true;
}

static bool call_fits(CudaState *state, const SwigluCall *call) {
    static int there = -1; // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, swiglu_kernel<SwigluConfig<false, 192, 4, 2, 1>>);
    const bool aligned = (((uintptr_t)call->before | (uintptr_t)call->gate_up | (uintptr_t)call->hidden |
                           (uintptr_t)call->in | (uintptr_t)call->weight) &
                          15) == 0;
    return there && aligned && call->dim % 8 == 0 && call->inner % 8 == 0 && call->rows > 0;
}

// Which is best depends on how tiles of 64, 96, 128 or 192 columns fill the width, and on what must pass through L2.
static bool swiglu_forward(CudaState *state, const SwigluCall *call, int variant) {
    switch (variant) {
    case 0: return swiglu_launch<false, 192, 4, 2, 1>(state, call);
    case 1: return swiglu_launch<false, 192, 4, 2, 2>(state, call);
    }
    return false;
}

static bool swiglu_backward(CudaState *state, const SwigluCall *call, int variant) {
    switch (variant) {
    case 0: return swiglu_launch<true, 192, 4, 2, 1>(state, call);
    case 1: return swiglu_launch<true, 192, 4, 2, 2>(state, call);
    }
    return false;
}

bool swiglu_sm90(CudaState *state, bool backward, const SwigluCall *call, int variant) {
    if (!call_fits(state, call)) return false;
    return backward ? swiglu_backward(state, call, variant) : swiglu_forward(state, call, variant);
}
