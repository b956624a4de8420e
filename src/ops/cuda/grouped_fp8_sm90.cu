// Grouped linear layers of MoE in FP8 on Hopper, on the pipeline of gemm_sm90.cuh; see fp8_sm90.cuh.
//
// Tensor cores add FP8 products with fewer bits than a float has. Results in bf16 take these sums as they are; a weight
// gradient adds what each stage gives to sums in float, which takes as many registers again: the two warpgroups then
// share a tile, one adding while the other multiplies, and a whole tile of results has room in shared memory, so that
// they leave while the next tile is computed.
#include "ops/cuda/fp8_sm90.cuh"
#include "ops/cuda/grouped_fp8.h"
#include "ops/cuda/grouped_sm90.cuh"

template <bool WEIGHT_, bool E5M2, int TILE_N_, int STAGES_, bool PINGPONG_, int CLUSTER_M_, int CLUSTER_N_>
struct Fp8Config : Fp8Products<Config<GROUPED_FORWARD, TILE_N_, STAGES_, PINGPONG_, CLUSTER_M_, CLUSTER_N_>, E5M2> {
    using Base = Config<GROUPED_FORWARD, TILE_N_, STAGES_, PINGPONG_, CLUSTER_M_, CLUSTER_N_>;
    static constexpr bool WEIGHT = WEIGHT_;
    static constexpr GroupedProduct PRODUCT = WEIGHT ? GROUPED_WEIGHT : GROUPED_FORWARD;
    static constexpr int OUT_COLUMNS = WEIGHT ? 32 : 64; // of one piece of results, 128 bytes wide
    static constexpr int PIECES = Base::M_PARTS * (TILE_N_ / OUT_COLUMNS);
    static constexpr int BUFFERS = WEIGHT ? PIECES : 2; // for pieces of a warpgroup
    static constexpr int SHARED = STAGES_ * Base::STAGE_BYTES + 2 * BUFFERS * STAGING_BYTES + 1024; // to align by hand
    static_assert(PIECES % BUFFERS == 0, "every tile begins with the first buffer");
    static_assert(!WEIGHT || !PINGPONG_, "sums in float need the registers of half a tile");
};

// ---- products -----------------------------------------------------------------------------------------------------

// Stages of a tile. The walk counts those of a weight gradient in bf16.
template <typename C> DEVICE_CODE int stages_of(const Tile &tile) {
    return C::WEIGHT ? tile.k_blocks / 2 : tile.k_blocks;
}

template <typename C>
DEVICE_CODE void produce_fp8(const Ring<C> &ring, const CUtensorMap *a, const CUtensorMap *b, const Experts &experts,
                             const GroupedArgs &args, int rank) {
    int stage = 0;
    uint32_t parity = 1; // the ring starts empty
    Tile tile = {};
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++) {
        const int m = tile.m * TILE_M + (C::WEIGHT ? 0 : tile.row), n = tile.n * C::TILE_N;
        for (int k = 0; k < stages_of<C>(tile); k++) {
            const uint32_t to = ring.stages + stage * C::STAGE_BYTES, barrier = ring.full + stage * 8;
            const int x = k * FP8_TILE_K + (C::WEIGHT ? tile.row : 0);
            mbarrier_wait(ring.empty + stage * 8, parity);
            mbarrier_expect(barrier, C::STAGE_BYTES);
            operand_load<false, (C::CLUSTER_N > 1), C::A_BOX, 1>(to, a, barrier, x, m, 0, rank);
            operand_load<false, (C::CLUSTER_M > 1), C::B_BOX, 1>(to + C::A_BYTES, b, barrier, x, n,
                                                                 C::WEIGHT ? 0 : tile.expert, rank);
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
        }
    }
}

// As consume, for warpgroups that share their tiles, with sums in float beside those of a stage.
template <typename C, typename Finish>
DEVICE_CODE void consume_exact(const Ring<C> &ring, const Experts &experts, const GroupedArgs &args, int rank,
                               int warpgroup, Finish finish) {
    constexpr int STEP = 32 / 16; // of descriptors, per 32 bytes of the reduction
    float d[C::TILE_N / 2], sum[1][C::TILE_N / 2];
    const uint64_t a0 = wgmma_operand(ring.stages + warpgroup * CHUNK_BYTES, CHUNK_BYTES);
    const uint64_t b0 = wgmma_operand(ring.stages + C::A_BYTES, CHUNK_BYTES);
    int stage = 0;
    uint32_t parity = 0;
    Tile tile = {};
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++) {
#pragma unroll
        for (int i = 0; i < C::TILE_N / 2; i++)
            sum[0][i] = 0;
        for (int k = 0; k < stages_of<C>(tile); k++) {
            mbarrier_wait(ring.full + stage * 8, parity);
            if (tile.real) {
                const uint64_t offset = (uint64_t)(stage * (C::STAGE_BYTES / 16));
                wgmma_fence();
#pragma unroll
                for (int l = 0; l < 4; l++)
                    C::multiply(d, a0 + offset + l * STEP, b0 + offset + l * STEP, l);
                wgmma_commit();
                wgmma_wait<0>();
                wgmma_hold(d);
            }
            stage_release<C>(ring.empty + stage * 8);
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
            if (!tile.real) continue;
#pragma unroll
            for (int i = 0; i < C::TILE_N / 2; i++)
                sum[0][i] += d[i];
        }
        if (tile.real) finish(tile, 0, sum);
    }
}

// ---- results ------------------------------------------------------------------------------------------------------

// One warpgroup's results of a tile to memory, piece after piece through its staging buffers.
template <typename C>
DEVICE_CODE void results_store(uint32_t staging, float (&d)[C::M_PARTS][C::TILE_N / 2], const CUtensorMap *out,
                               const Tile &tile, float scale, bool accumulate, int warpgroup) {
    constexpr int ACROSS = C::TILE_N / C::OUT_COLUMNS;
    const bool leader = threadIdx.x % 128 == 0;
    const int y = tile.m * TILE_M + (C::PINGPONG ? 0 : warpgroup * 64) + (C::WEIGHT ? 0 : tile.row);
#pragma unroll
    for (int part = 0; part < C::M_PARTS; part++)
#pragma unroll
        for (int i = 0; i < C::TILE_N / 2; i++)
            d[part][i] *= scale;
#pragma unroll
    for (int piece = 0; piece < C::PIECES; piece++) {
        const int part = piece / ACROSS, first = piece % ACROSS * C::OUT_COLUMNS;
        const uint32_t buffer = staging + piece % C::BUFFERS * STAGING_BYTES;
        piece_stage<C::PRODUCT, C::OUT_COLUMNS, C::BUFFERS>(buffer, d[part], first, warpgroup, leader);
        if (leader)
            piece_store<C::PRODUCT>(out, buffer, tile.n * C::TILE_N + first, y + part * 64, C::WEIGHT ? tile.expert : 0,
                                    accumulate);
    }
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

typedef struct Scales {
    const float *a, *b;
} Scales;

template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grouped_fp8_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const __grid_constant__ CUtensorMap out, const __grid_constant__ GroupedArgs args,
                       const __grid_constant__ Scales scales) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4];
    __shared__ Experts experts;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            tensor_prefetch(&out);
            produce_fp8<C>(ring, &a, &b, experts, args, rank);
        } else if (C::WEIGHT && !args.accumulate && threadIdx.x >= 288) {
            empty_experts_zero(experts, args, threadIdx.x - 288, BLOCK_THREADS - 288);
        }
    } else {
        registers_grow<C::CONSUMER_REGISTERS>();
        const uint32_t staging =
            ring.stages + C::STAGES * C::STAGE_BYTES + warpgroup * C::BUFFERS * (uint32_t)STAGING_BYTES;
        const float scale = *scales.a * *scales.b;
        const auto finish = [&](const Tile &tile, uint32_t, auto &d) {
            results_store<C>(staging, d, &out, tile, scale, args.accumulate, warpgroup);
        };
        if constexpr (C::WEIGHT)
            consume_exact<C>(ring, experts, args, rank, warpgroup, finish);
        else
            consume<C>(ring, experts, args, rank, warpgroup, finish);
        if (threadIdx.x % 128 == 0) tensor_store_wait_read<0>();
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

template <typename C> static void fp8_launch(CudaState *state, const GroupedFp8Call *fp8) {
    const GroupedCall *call = &fp8->call;
    const int experts = call->experts, m = call->m, n = call->n, k = call->k;
    CUtensorMap map_a, map_b, map_out;
    if (C::WEIGHT) {
        map_a = map_make(state, call->a, fp8->a_dtype, 1, m, call->rows, C::A_BOX, FP8_TILE_K);
        map_b = map_make(state, call->b, DTYPE_E4M3, 1, n, call->rows, C::B_BOX, FP8_TILE_K);
        map_out = map_make(state, call->out, DTYPE_F32, experts, m, n, 64, C::OUT_COLUMNS);
    } else {
        map_a = map_make(state, call->a, fp8->a_dtype, 1, call->rows, k, C::A_BOX, FP8_TILE_K);
        map_b = map_make(state, call->b, DTYPE_E4M3, experts, n, k, C::B_BOX, FP8_TILE_K);
        map_out = map_make(state, call->out, DTYPE_BF16, 1, call->rows, n, 64, C::OUT_COLUMNS);
    }
    if (state->failure) return;
    GroupedArgs args = {call->offsets,
                        experts,
                        (int)ceil_div64(m, TILE_M),
                        (int)ceil_div64(n, C::TILE_N),
                        (int)ceil_div64(k, FP8_TILE_K),
                        call->accumulate,
                        (float *)call->out,
                        (int64_t)m * n};
    persistent_launch<C>(state, grouped_fp8_kernel<C>, C::SHARED, map_a, map_b, map_out, args,
                         Scales{fp8->a_scale, fp8->b_scale});
}

// Which is fastest depends on how tiles fill the width, and on how many rows an expert has: raced.
template <bool E5M2> static bool fp8_rows(CudaState *state, const GroupedFp8Call *call, int variant) {
    switch (variant) {
    case 0: fp8_launch<Fp8Config<false, E5M2, 192, 4, true, 1, 1>>(state, call); return true;
    case 1: fp8_launch<Fp8Config<false, E5M2, 192, 4, true, 2, 1>>(state, call); return true;
    case 2: fp8_launch<Fp8Config<false, E5M2, 128, 6, true, 1, 1>>(state, call); return true;
    case 3: fp8_launch<Fp8Config<false, E5M2, 128, 6, true, 1, 2>>(state, call); return true;
    case 4: fp8_launch<Fp8Config<false, E5M2, 256, 4, false, 2, 1>>(state, call); return true;
    default: return false;
    }
}

static bool fp8_weight(CudaState *state, const GroupedFp8Call *call, int variant) {
    switch (variant) {
    case 0: fp8_launch<Fp8Config<true, true, 192, 3, false, 1, 1>>(state, call); return true;
    case 1: fp8_launch<Fp8Config<true, true, 192, 3, false, 2, 1>>(state, call); return true;
    case 2: fp8_launch<Fp8Config<true, true, 128, 5, false, 1, 1>>(state, call); return true;
    case 3: fp8_launch<Fp8Config<true, true, 128, 5, false, 1, 2>>(state, call); return true;
    default: return false;
    }
}

bool grouped_fp8_sm90(CudaState *state, const GroupedFp8Call *fp8, int variant) {
    const GroupedCall *call = &fp8->call;
    const bool weight = call->product == GROUPED_WEIGHT;
    const int sizes = weight ? call->m | call->n : call->n | call->k;
    const bool aligned = all_aligned(16, call->out, call->a, call->b);
    static int there = -1; // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, grouped_fp8_kernel<Fp8Config<false, true, 192, 4, true, 1, 1>>);
    if (!there || call->experts > EXPERTS_MAX || sizes % 16 || call->rows % 16 || !aligned) return false;
    if (weight) return fp8->a_dtype == DTYPE_E5M2 && fp8_weight(state, fp8, variant);
    return fp8->a_dtype == DTYPE_E5M2 ? fp8_rows<true>(state, fp8, variant) : fp8_rows<false>(state, fp8, variant);
}
