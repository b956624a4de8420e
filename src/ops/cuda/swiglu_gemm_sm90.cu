// Products with SwiGLU in their epilogue on Hopper, on the pipeline of gemm_sm90.cuh; see swiglu_gemm.h.
//
// The warpgroups take turns, so one warpgroup's epilogue runs beside the other's products. Forward a thread has 8
// neighbouring columns of gate and of up (the weights come woven), and stores gate and hidden from its registers.
// Backward a finished tile leaves in rounds (swiglu_sm90.cuh), whose slots hold gate and hidden and then the gradients
// of gate and up.
#include "ops/cuda/swiglu_gemm.h"
#include "ops/cuda/swiglu_sm90.cuh"

template <bool BACKWARD, int TILE_N>
using SwigluBase = Config<BACKWARD ? GROUPED_INPUT : GROUPED_FORWARD, TILE_N, (BACKWARD ? 4 : 5) + (TILE_N == 128),
                          true, 2, 1, !BACKWARD>;

// ONCE: results are the first to leave the L2 cache.
template <bool BACKWARD_, int TILE_N, bool ONCE_> struct SwigluConfig : SwigluBase<BACKWARD_, TILE_N> {
    using Base = SwigluBase<BACKWARD_, TILE_N>;
    static constexpr bool BACKWARD = BACKWARD_, ONCE = ONCE_;
    static constexpr bool FINISH_IN_TURN = BACKWARD;              // a slot's barrier, too, tells only two phases apart
    static constexpr int COLUMNS = 32;                            // of a round, and of a weave
    static constexpr int PIECE_BYTES = 64 * COLUMNS * 2;          // gate or hidden of a round
    static constexpr int SLOTS = 4, SLOT_BYTES = 2 * PIECE_BYTES; // 8 slots are no faster
    static constexpr int GROUPS = Base::N_STEP / COLUMNS, ROUNDS = 2 * GROUPS; // of a tile
    static constexpr int SHARED = Base::STAGES * Base::STAGE_BYTES + (BACKWARD ? SLOTS * SLOT_BYTES : 0) + 1024;
    static_assert(Base::N_STEP % COLUMNS == 0, "rounds of a tile");
};

typedef struct SwigluArgs {
    uint8_t *gate_hidden;
    int rows, dim;
} SwigluArgs;

// ---- elements -----------------------------------------------------------------------------------------------------

// Two gates as they are stored, and up, to hidden.
DEVICE_CODE uint32_t swiglu_pair(uint32_t gate, float up0, float up1) {
    const float g0 = nonzero<Bf16>(low_bf16(gate)), g1 = nonzero<Bf16>(high_bf16(gate));
    return pack_bf16(g0 * sigmoid(g0) * up0, g1 * sigmoid(g1) * up1);
}

// gate and hidden become the gradients of gate and up; d is that of hidden. With s the sigmoid and h = g s up:
// dgate = d up (s + g s (1 - s)) = d h (1 / g + 1 - s).
DEVICE_CODE void swiglu_back(float &gate, float &hidden, float d) {
    const float g = nonzero<Bf16>(gate), s = sigmoid(g);
    gate = d * (hidden * (reciprocal(g) + (1.0f - s)));
    hidden = d * (g * s);
}

DEVICE_CODE void swiglu_back_pair(uint32_t &gate, uint32_t &hidden, float d0, float d1) {
    float g0 = low_bf16(gate), g1 = high_bf16(gate), h0 = low_bf16(hidden), h1 = high_bf16(hidden);
    swiglu_back(g0, h0, d0);
    swiglu_back(g1, h1, d1);
    gate = pack_bf16(g0, g1);
    hidden = pack_bf16(h0, h1);
}

// ---- forward ------------------------------------------------------------------------------------------------------

template <typename C> DEVICE_CODE void result_store(uint8_t *to, const uint32_t (&v)[4]) {
    if (C::ONCE)
        store16_once(to, make_uint4(v[0], v[1], v[2], v[3]));
    else
        store16(to, make_uint4(v[0], v[1], v[2], v[3]));
}

// 64 rows of a tile, by one warpgroup; (x, y) is this thread's first column and row. It has 8 columns of every 32, in
// rows y and y + 8.
template <typename C, int COUNT>
DEVICE_CODE void rows_finish(const SwigluArgs &out, const float (&d)[COUNT], int x, int y) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = y + 8 * h;
        uint8_t *gate_to = out.gate_hidden + ((int64_t)row * 2 * out.dim + x) * 2, *hidden_to = gate_to + out.dim * 2;
#pragma unroll
        for (int group = 0; group < C::GROUPS; group++) {
            uint32_t gate[4], hidden[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = (group * 4 + j) * 4 + 2 * h;
                gate[j] = pack_bf16(d[r], d[r + 1]);
                hidden[j] = swiglu_pair(gate[j], d[COUNT / 2 + r], d[COUNT / 2 + r + 1]);
            }
            if (row < out.rows && x + group * C::COLUMNS < out.dim) {
                result_store<C>(gate_to + group * C::COLUMNS * 2, gate);
                result_store<C>(hidden_to + group * C::COLUMNS * 2, hidden);
            }
        }
    }
}

// ---- backward -----------------------------------------------------------------------------------------------------

// One round: 64 rows by COLUMNS of a tile from column `first` on, by one warpgroup.
template <typename C, int COUNT>
DEVICE_CODE void round_fill(const Slots &rounds, uint32_t round, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int exchange = row >> 1 & 3; // the swizzle of 64-byte rows
    const uint32_t index = round % C::SLOTS;
    const uint32_t line = rounds.memory + index * C::SLOT_BYTES + row * C::COLUMNS * 2;
    mbarrier_wait(rounds.loaded + index * 8, round / C::SLOTS & 1);
    // Per pair of 8 columns: two 8 x 8 matrices beside each other, two above each other. All are read before any is
    // written, so that their exponentials overlap.
    constexpr int PAIRS = C::COLUMNS / 16;
    uint32_t gate[PAIRS][4], hidden[PAIRS][4];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t at = line + (((2 * j + lane / 16) ^ exchange) * 16);
        matrices_load(gate[j], at);
        matrices_load(hidden[j], at + C::PIECE_BYTES);
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int r = (first / 8 + 2 * j) * 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            swiglu_back_pair(gate[j][i], hidden[j][i], d[r + 2 * i], d[r + 2 * i + 1]);
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t at = line + (((2 * j + lane / 16) ^ exchange) * 16);
        matrices_store(at, gate[j][0], gate[j][1], gate[j][2], gate[j][3]);
        matrices_store(at + C::PIECE_BYTES, hidden[j][0], hidden[j][1], hidden[j][2], hidden[j][3]);
    }
    shared_fence_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(rounds.done + index * 8);
}

template <typename C> DEVICE_CODE void round_store(const CUtensorMap *map, uint32_t shared, int x, int y) {
    if (C::ONCE)
        tensor_store_once(map, shared, x, y, 0);
    else
        tensor_store(map, shared, x, y, 0);
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

// before, after: of rounds, backward only.
template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    swiglu_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  const __grid_constant__ CUtensorMap before, const __grid_constant__ CUtensorMap after,
                  const __grid_constant__ SwigluArgs out, const __grid_constant__ GroupedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4], round_barriers[3 * C::SLOTS];
    __shared__ Experts experts;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    const Slots rounds = slots_make<C::SLOTS>(ring.stages + C::STAGES * C::STAGE_BYTES, round_barriers);
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<PRODUCER_REGISTERS>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            produce<C>(ring, &a, &b, experts, args, rank);
        } else if (C::BACKWARD && threadIdx.x == 288) {
            rounds_load<C>(rounds, &before, experts, args, rank);
        } else if (C::BACKWARD && threadIdx.x == 320) {
            rounds_store<C>(rounds, experts, args, rank,
                            [&](uint32_t shared, int x, int y) { round_store<C>(&after, shared, x, y); });
        }
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &tile, uint32_t number, auto &d) {
            if constexpr (C::BACKWARD) {
#pragma unroll
                for (int i = 0; i < C::ROUNDS; i++)
                    round_fill<C>(rounds, number * C::ROUNDS + i, d[i / C::GROUPS], i % C::GROUPS * C::COLUMNS);
            } else {
                const int x = tile.n * C::N_STEP + threadIdx.x % 4 * 8;
                const int y = tile.m * TILE_M + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
                for (int part = 0; part < 2; part++)
                    rows_finish<C>(out, d[part], x, y + part * 64);
            }
        });
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

template <bool BACKWARD, int TILE_N, bool ONCE> static bool swiglu_launch(CudaState *state, const SwigluCall *call) {
    using C = SwigluConfig<BACKWARD, TILE_N, ONCE>;
    const int64_t rows = call->out.rows;
    const int dim = (int)(call->out.cols / 2), inner = (int)call->in.cols;
    const SwigluArgs out = {(uint8_t *)call->out.data, (int)rows, dim};
    GroupedArgs args = {NULL,
                        1,
                        (int)ceil_div64(rows, TILE_M),
                        (int)ceil_div64(dim, C::N_STEP),
                        (int)ceil_div64(inner, TILE_K),
                        false,
                        NULL,
                        0,
                        dim / 32};
    CUtensorMap a = map_make(state, call->in.data, DTYPE_BF16, 1, rows, inner, C::A_BOX, TILE_K);
    CUtensorMap b, before = a, after = a;
    if (BACKWARD) {
        b = map_make(state, call->weight.data, DTYPE_BF16, 1, inner, dim, C::B_BOX, 64);
        before = pair_map_make<C>(state, call->before.data, rows, dim);
        after = pair_map_make<C>(state, call->out.data, rows, dim);
    } else {
        b = woven_map_make(state, call->weight.data, DTYPE_BF16, 2 * (int64_t)dim, inner, C::B_BOX);
    }
    if (!state->failure) persistent_launch<C>(state, swiglu_kernel<C>, C::SHARED, a, b, before, after, out, args);
    return true;
}

static bool call_fits(CudaState *state, const SwigluCall *call) {
    static int there = -1; // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, swiglu_kernel<SwigluConfig<false, 192, false>>);
    const bool aligned = all_aligned(16, call->before.data, call->out.data, call->in.data, call->weight.data);
    return there && aligned && call->out.cols / 2 % (call->backward ? 8 : 32) == 0 && call->in.cols % 8 == 0 &&
           call->out.rows > 0;
}

// Which is best depends on how tiles of 64, 96, 128 or 192 columns fill the width, and on what must stay in L2.
// Measured and no better, as the tensor cores use most of the power: larger clusters, and tiles of 128 x 256 that both
// warpgroups multiply at once.
template <bool BACKWARD> static bool swiglu_variant(CudaState *state, const SwigluCall *call, int variant) {
    switch (variant) {
    case 0: return swiglu_launch<BACKWARD, 192, false>(state, call);
    case 1: return swiglu_launch<BACKWARD, 192, true>(state, call);
    case 2: return swiglu_launch<BACKWARD, 128, false>(state, call);
    }
    return false;
}

bool swiglu_sm90(CudaState *state, const SwigluCall *call, int variant) {
    if (!call_fits(state, call)) return false;
    return call->backward ? swiglu_variant<true>(state, call, variant) : swiglu_variant<false>(state, call, variant);
}
