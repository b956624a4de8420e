// Experts' products with SwiGLU in their epilogue on Hopper, on the pipeline of gemm_sm90.cuh; see grouped_swiglu.h.
// Rows come through the copy engine, or forward as tokens (grouped_tokens_sm90.cuh).
//
// The warpgroups take turns, so one warpgroup's epilogue runs beside the other's products. Forward a thread has 8
// neighbouring columns of gate and of up (the weights come woven), and stores gate, up and hidden from its registers.
// Backward a finished tile leaves in rounds (swiglu_sm90.cuh), whose slots hold gate and up and then their gradients
// and hidden again. The gradient of a row's weight is a sum over all columns: each tile leaves its part in the
// workspace, and a second kernel adds the parts in order.
#include "ops/cuda/grouped_swiglu.h"
#include "ops/cuda/grouped_tokens_sm90.cuh"
#include "ops/cuda/swiglu_sm90.cuh"

template <bool BACKWARD> static constexpr GroupedProduct PRODUCT_OF = BACKWARD ? GROUPED_INPUT : GROUPED_FORWARD;
template <bool BACKWARD, int TILE_N> static constexpr int STAGES_OF = (BACKWARD ? 4 : 5) + (TILE_N == 128);

template <bool BACKWARD, int TILE_N, int CLUSTER, bool TOKENS>
struct GroupedSwigluBase
    : Config<PRODUCT_OF<BACKWARD>, TILE_N, STAGES_OF<BACKWARD, TILE_N>, true, CLUSTER, 1, !BACKWARD> {};
template <int TILE_N, int CLUSTER>
struct GroupedSwigluBase<false, TILE_N, CLUSTER, true>
    : TokensConfig<GROUPED_FORWARD, TILE_N, STAGES_OF<false, TILE_N>, true, CLUSTER, true> {};

template <bool BACKWARD_, int TILE_N, int CLUSTER, bool TOKENS_>
struct GroupedSwigluConfig : GroupedSwigluBase<BACKWARD_, TILE_N, CLUSTER, TOKENS_> {
    using Base = GroupedSwigluBase<BACKWARD_, TILE_N, CLUSTER, TOKENS_>;
    static constexpr bool BACKWARD = BACKWARD_;
    static constexpr bool FINISH_IN_TURN = BACKWARD;     // a slot's barrier, too, tells only two phases apart
    static constexpr int COLUMNS = 32;                   // of a round, and of a weave
    static constexpr int PIECE_BYTES = 64 * COLUMNS * 2; // gate, up or hidden of a round
    static constexpr int SLOTS = 4, SLOT_BYTES = 3 * PIECE_BYTES;
    static constexpr int GROUPS = Base::N_STEP / COLUMNS, ROUNDS = 2 * GROUPS; // of a tile
    static constexpr int SHARED = Base::STAGES * Base::STAGE_BYTES + (BACKWARD ? SLOTS * SLOT_BYTES : 0) + 1024;
    static_assert(Base::N_STEP % COLUMNS == 0, "rounds of a tile");
};

typedef struct GroupedSwigluArgs {
    uint8_t *gate_up, *hidden; // forward
    const float *row_weight;
    float *row_parts; // backward: [tiles across, rows]
    int64_t rows;
    int dim;
} GroupedSwigluArgs;

// ---- forward ------------------------------------------------------------------------------------------------------

// Of two gates and ups as they are stored.
DEVICE_CODE uint32_t swiglu_pair(uint32_t gate, uint32_t up, float weight) {
    const float g0 = low_bf16(gate), g1 = high_bf16(gate);
    return pack_bf16(g0 * (sigmoid(g0) * low_bf16(up) * weight), g1 * (sigmoid(g1) * high_bf16(up) * weight));
}

// 64 rows of a tile, by one warpgroup; (x, y) is this thread's first column and row. It has 8 columns of every 32, in
// rows y and y + 8. Gate and up are next read in the backward pass.
template <typename C, int COUNT>
DEVICE_CODE void rows_finish(const GroupedSwigluArgs &out, const float (&d)[COUNT], int x, int y) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = y + 8 * h;
        const float weight = out.row_weight[row];
        uint8_t *gate_to = out.gate_up + (row * 2 * out.dim + x) * 2, *up_to = gate_to + out.dim * 2;
        uint8_t *hidden_to = out.hidden + (row * out.dim + x) * 2;
#pragma unroll
        for (int group = 0; group < C::GROUPS; group++) {
            uint32_t gate[4], up[4], hidden[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = (group * 4 + j) * 4 + 2 * h;
                gate[j] = pack_bf16(d[r], d[r + 1]);
                up[j] = pack_bf16(d[COUNT / 2 + r], d[COUNT / 2 + r + 1]);
                hidden[j] = swiglu_pair(gate[j], up[j], weight);
            }
            if (x + group * C::COLUMNS < out.dim) {
                store16_once(gate_to + group * C::COLUMNS * 2, make_uint4(gate[0], gate[1], gate[2], gate[3]));
                store16_once(up_to + group * C::COLUMNS * 2, make_uint4(up[0], up[1], up[2], up[3]));
                store16(hidden_to + group * C::COLUMNS * 2, make_uint4(hidden[0], hidden[1], hidden[2], hidden[3]));
            }
        }
    }
}

// ---- backward -----------------------------------------------------------------------------------------------------

// Gate and up become their gradients; d is that of hidden. Returns hidden.
DEVICE_CODE float swiglu_back(float &gate, float &up, float d, float weight, float &dweight) {
    const float s = sigmoid(gate), silu = gate * s, product = silu * up, weighted = d * weight;
    dweight += d * product;
    gate = weighted * up * (s + silu * (1.0f - s));
    up = weighted * silu;
    return product * weight;
}

DEVICE_CODE uint32_t swiglu_back_pair(uint32_t &gate, uint32_t &up, float d0, float d1, float weight, float &dweight) {
    float g0 = low_bf16(gate), g1 = high_bf16(gate), u0 = low_bf16(up), u1 = high_bf16(up);
    const float h0 = swiglu_back(g0, u0, d0, weight, dweight), h1 = swiglu_back(g1, u1, d1, weight, dweight);
    gate = pack_bf16(g0, g1);
    up = pack_bf16(u0, u1);
    return pack_bf16(h0, h1);
}

// One round: 64 rows by COLUMNS of a tile from column `first` on, by one warpgroup. weight, dweight: of this thread's
// two rows, which stand 8 apart.
template <typename C, int COUNT>
DEVICE_CODE void round_fill(const Slots &rounds, uint32_t round, const float (&d)[COUNT], int first,
                            const float (&weight)[2], float (&dweight)[2]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int exchange = row >> 1 & 3; // the swizzle of 64-byte rows
    const uint32_t index = round % C::SLOTS;
    const uint32_t line = rounds.memory + index * C::SLOT_BYTES + row * C::COLUMNS * 2;
    mbarrier_wait(rounds.loaded + index * 8, round / C::SLOTS & 1);
#pragma unroll
    for (int j = 0; j < C::COLUMNS / 16; j++) { // two 8 x 8 matrices beside each other, two above each other
        const uint32_t at = line + (((2 * j + lane / 16) ^ exchange) * 16);
        const int r = (first / 8 + 2 * j) * 4;
        uint32_t gate[4], up[4], hidden[4];
        matrices_load(gate, at);
        matrices_load(up, at + C::PIECE_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++)
            hidden[i] = swiglu_back_pair(gate[i], up[i], d[r + 2 * i], d[r + 2 * i + 1], weight[i % 2], dweight[i % 2]);
        matrices_store(at, gate[0], gate[1], gate[2], gate[3]);
        matrices_store(at + C::PIECE_BYTES, up[0], up[1], up[2], up[3]);
        matrices_store(at + 2 * C::PIECE_BYTES, hidden[0], hidden[1], hidden[2], hidden[3]);
    }
    shared_fence_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(rounds.done + index * 8);
}

// 64 rows of a tile; `row` is this thread's first. round: the first of them.
template <typename C, int COUNT>
DEVICE_CODE void rows_leave(const Slots &rounds, uint32_t round, const GroupedSwigluArgs &out, const float (&d)[COUNT],
                            int tile_n, int row) {
    const float weight[2] = {out.row_weight[row], out.row_weight[row + 8]};
    float dweight[2] = {0, 0};
#pragma unroll
    for (int group = 0; group < C::GROUPS; group++)
        round_fill<C>(rounds, round + group, d, group * C::COLUMNS, weight, dweight);
#pragma unroll
    for (int h = 0; h < 2; h++) { // four threads share a row
        dweight[h] += __shfl_xor_sync(0xffffffff, dweight[h], 1);
        dweight[h] += __shfl_xor_sync(0xffffffff, dweight[h], 2);
        if (threadIdx.x % 4 == 0) out.row_parts[tile_n * out.rows + (row + 8 * h)] = dweight[h];
    }
}

static __global__ void __launch_bounds__(256)
    row_parts_sum_kernel(float *sums, const float *parts, int count, const int32_t *row_count, int64_t rows) {
    const int64_t row = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (row >= *row_count) return;
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += parts[i * rows + row];
    sums[row] = sum;
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

// before, after, hidden: of rounds, backward only.
template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grouped_swiglu_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                          const __grid_constant__ CUtensorMap before, const __grid_constant__ CUtensorMap after,
                          const __grid_constant__ CUtensorMap hidden, const __grid_constant__ GroupedSwigluArgs out,
                          const __grid_constant__ GroupedArgs args, const __grid_constant__ TokenRows tokens) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4], round_barriers[3 * C::SLOTS];
    __shared__ Experts experts;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    const Slots rounds = slots_make<C::SLOTS>(ring.stages + C::STAGES * C::STAGE_BYTES, round_barriers);
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<C::PRODUCER_REGISTERS>();
        if constexpr (C::TOKENS) {
            if (threadIdx.x < 256 + LOAD_THREADS) produce_tokens<C>(ring, &b, tokens, experts, args, rank);
        } else if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            produce<C>(ring, &a, &b, experts, args, rank);
        }
        if (C::BACKWARD && threadIdx.x == 320)
            rounds_load<C>(rounds, &before, experts, args, rank);
        else if (C::BACKWARD && threadIdx.x == 352)
            rounds_store<C>(rounds, experts, args, rank, [&](uint32_t shared, int x, int y) {
                tensor_store(&after, shared, x, y, 0);
                tensor_store(&hidden, shared + 2 * C::PIECE_BYTES, x, y, 0);
            });
    } else {
        registers_grow<C::CONSUMER_REGISTERS>();
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &tile, uint32_t number, auto &d) {
            const int y = tile.row + tile.m * TILE_M + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                if constexpr (C::BACKWARD)
                    rows_leave<C>(rounds, number * C::ROUNDS + part * C::GROUPS, out, d[part], tile.n, y + part * 64);
                else
                    rows_finish<C>(out, d[part], tile.n * C::N_STEP + threadIdx.x % 4 * 8, y + part * 64);
            }
        });
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

static int64_t tiles_across(int dim, int tile_n) {
    return ceil_div64(dim, tile_n);
}

// Maps that a kernel does not use are those of the weights.
template <bool BACKWARD, int TILE_N, int CLUSTER, bool TOKENS>
static void grouped_swiglu_launch(CudaState *state, const GroupedSwigluCall *call) {
    using C = GroupedSwigluConfig<BACKWARD, TILE_N, CLUSTER, TOKENS>;
    const int64_t rows = call->out.rows;
    const int dim = (int)call->hidden.cols, inner = (int)call->in.cols, experts = (int)call->offsets.cols - 1;
    const int32_t *offsets = (const int32_t *)call->offsets.data;
    const int n_tiles = (int)tiles_across(dim, C::N_STEP);
    GroupedArgs args = {
        offsets, experts, 0, n_tiles, (int)ceil_div64(inner, TILE_K), false, NULL, 0, BACKWARD ? 0 : dim / 32};
    GroupedSwigluArgs out = {
        (uint8_t *)call->out.data, (uint8_t *)call->hidden.data, (const float *)call->row_weight.data, NULL, rows, dim};
    TokenRows tokens = {};
    CUtensorMap b =
        BACKWARD ? map_make(state, call->weight.data, DTYPE_BF16, experts, inner, dim, C::B_BOX, 64)
                 : woven_map_make(state, call->weight.data, DTYPE_BF16, (int64_t)experts * 2 * dim, inner, C::B_BOX);
    CUtensorMap a = b, before = b, after = b, hidden = b;
    if (TOKENS)
        tokens = {(const uint16_t *)call->in.data, (const int32_t *)call->token_of_row.data, inner};
    else
        a = map_make(state, call->in.data, DTYPE_BF16, 1, rows, inner, C::A_BOX, TILE_K);
    if (BACKWARD) {
        out.row_parts = (float *)cuda_scratch(state, (size_t)(n_tiles * rows) * sizeof(float));
        before = pair_map_make<C>(state, call->before.data, rows, dim);
        after = pair_map_make<C>(state, call->out.data, rows, dim);
        hidden = map_make(state, call->hidden.data, DTYPE_BF16, 1, rows, dim, 64, C::COLUMNS);
    }
    if (state->failure) return;
    persistent_launch<C>(state, grouped_swiglu_kernel<C>, C::SHARED, a, b, before, after, hidden, out, args, tokens);
    if (!BACKWARD) return;
    row_parts_sum_kernel<<<(unsigned)ceil_div64(rows, 256), 256, 0, state->stream>>>(
        (float *)call->drow_weight.data, out.row_parts, n_tiles, offsets + experts, rows);
    LAUNCH_CHECK(state);
}

static bool call_fits(CudaState *state, const GroupedSwigluCall *call) {
    static int there = -1; // asking costs some microseconds
    if (there < 0)
        there = kernel_is_there(state->arch, grouped_swiglu_kernel<GroupedSwigluConfig<false, 192, 1, false>>);
    const bool aligned =
        all_aligned(16, call->before.data, call->out.data, call->in.data, call->weight.data, call->hidden.data);
    const int64_t rows = call->out.rows, dim = call->hidden.cols;
    const size_t parts = call->backward ? (size_t)(tiles_across((int)dim, 128) * rows) * sizeof(float) : 0;
    return there && aligned && rows > 0 && dim % (call->backward ? 8 : 32) == 0 && call->in.cols % 8 == 0 &&
           call->offsets.cols - 1 <= EXPERTS_MAX && parts <= state->workspace_bytes;
}

// Which is best depends on how tiles fill the width, and on how many rows an expert has.
template <bool BACKWARD, bool TOKENS>
static bool grouped_swiglu_variant(CudaState *state, const GroupedSwigluCall *call, int variant) {
    switch (variant) {
    case 0: grouped_swiglu_launch<BACKWARD, 192, 1, TOKENS>(state, call); return true;
    case 1: grouped_swiglu_launch<BACKWARD, 192, 2, TOKENS>(state, call); return true;
    case 2: grouped_swiglu_launch<BACKWARD, 128, 1, TOKENS>(state, call); return true;
    case 3: grouped_swiglu_launch<BACKWARD, 128, 2, TOKENS>(state, call); return true;
    }
    return false;
}

bool grouped_swiglu_sm90(CudaState *state, const GroupedSwigluCall *call, int variant) {
    if (!call_fits(state, call)) return false;
    if (call->backward) return grouped_swiglu_variant<true, false>(state, call, variant);
    return call->token_of_row.data ? grouped_swiglu_variant<false, true>(state, call, variant)
                                   : grouped_swiglu_variant<false, false>(state, call, variant);
}
