// Grouped linear layers of MoE on Hopper: the three products on the pipeline of gemm_sm90.cuh. The input may be tokens
// (grouped_tokens_sm90.cuh).
#include "ops/cuda/grouped_sm90.cuh"
#include "ops/cuda/grouped_tokens_sm90.cuh"

// Results leave in pieces of 64 rows by this many columns, 128 or 64 bytes wide.
template <typename C> static constexpr int OUT_COLUMNS = C::PRODUCT == GROUPED_WEIGHT || C::TILE_N % 64 ? 32 : 64;
template <typename C>
static constexpr int SHARED = C::STAGES *C::STAGE_BYTES + 4 * STAGING_BYTES + 1024; // 1024: to align by hand

// ---- results ------------------------------------------------------------------------------------------------------

// One warpgroup's accumulators to memory through its two staging buffers; 64 rows from row y on.
template <typename C, int COUNT>
DEVICE_CODE void results_store(uint32_t staging, const float (&d)[COUNT], const CUtensorMap *out, int x, int y, int z,
                               bool accumulate, int warpgroup) {
    const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
    for (int first = 0; first < C::TILE_N; first += OUT_COLUMNS<C>) {
        const uint32_t buffer = staging + first / OUT_COLUMNS<C> % 2 * STAGING_BYTES;
        piece_stage<C::PRODUCT, OUT_COLUMNS<C>, 2>(buffer, d, first, warpgroup, leader);
        if (leader) piece_store<C::PRODUCT>(out, buffer, x + first, y, z, accumulate);
    }
    // An odd number of pieces: the next call starts with the first buffer again, which the last store may still read.
    if (C::TILE_N / OUT_COLUMNS<C> % 2 && leader) tensor_store_wait_read<0>();
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ CUtensorMap out, const __grid_constant__ GroupedArgs args,
                   const __grid_constant__ TokenRows tokens) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4];
    __shared__ Experts experts;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<C::PRODUCER_REGISTERS>();
        if constexpr (C::TOKENS) {
            produce_tokens<C>(ring, C::OF_B ? &a : &b, tokens, experts, args, rank);
            if (C::PRODUCT == GROUPED_WEIGHT && !args.accumulate)
                empty_experts_zero(experts, args, threadIdx.x - 256, LOAD_THREADS);
        } else if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            tensor_prefetch(&out);
            produce<C>(ring, &a, &b, experts, args, rank);
        } else if (C::PRODUCT == GROUPED_WEIGHT && !args.accumulate && threadIdx.x >= 288) {
            empty_experts_zero(experts, args, threadIdx.x - 288, BLOCK_THREADS - 288);
        }
    } else {
        registers_grow<C::CONSUMER_REGISTERS>();
        const uint32_t staging = ring.stages + C::STAGES * C::STAGE_BYTES + warpgroup * 2 * STAGING_BYTES;
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &tile, uint32_t, auto &d) {
            constexpr bool WEIGHT = C::PRODUCT == GROUPED_WEIGHT;
#pragma unroll
            for (int part = 0; part < C::M_PARTS; part++) {
                const int row = tile.m * TILE_M + (C::PINGPONG ? part : warpgroup) * 64;
                results_store<C>(staging, d[part], &out, tile.n * C::TILE_N, WEIGHT ? row : tile.row + row,
                                 WEIGHT ? tile.expert : 0, args.accumulate, warpgroup);
            }
        });
        if (threadIdx.x % 128 == 0) tensor_store_wait_read<0>();
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

// An operand that is tokens has no map; the other's stands in its place.
template <typename C> static void grouped_launch(CudaState *state, const GroupedCall *call) {
    constexpr GroupedProduct PRODUCT = C::PRODUCT;
    const int experts = call->experts, m = call->m, n = call->n, k = call->k;
    CUtensorMap map_a, map_b, map_out;
    TokenRows tokens = {};
    if (PRODUCT == GROUPED_WEIGHT) {
        map_a = map_make(state, call->a, DTYPE_BF16, 1, call->rows, m, C::A_BOX, 64);
        map_b = map_make(state, call->b, DTYPE_BF16, 1, call->rows, n, C::B_BOX, 64);
        map_out = map_make(state, call->out, DTYPE_F32, experts, m, n, 64, OUT_COLUMNS<C>);
    } else {
        map_a = map_make(state, call->a, DTYPE_BF16, 1, call->rows, k, C::A_BOX, TILE_K);
        map_b = PRODUCT == GROUPED_FORWARD ? map_make(state, call->b, DTYPE_BF16, experts, n, k, C::B_BOX, TILE_K)
                                           : map_make(state, call->b, DTYPE_BF16, experts, k, n, C::B_BOX, 64);
        map_out = map_make(state, call->out, DTYPE_BF16, 1, call->rows, n, 64, OUT_COLUMNS<C>);
    }
    if constexpr (C::TOKENS) {
        (C::OF_B ? map_b : map_a) = C::OF_B ? map_a : map_b;
        tokens = {(const uint16_t *)(C::OF_B ? call->b : call->a), C::OF_B ? call->b_tokens : call->a_tokens,
                  C::OF_B ? n : k};
    }
    if (state->failure) return;
    GroupedArgs args = {call->offsets,
                        experts,
                        (int)ceil_div64(m, TILE_M),
                        (int)ceil_div64(n, C::TILE_N),
                        (int)ceil_div64(k, TILE_K),
                        call->accumulate,
                        (float *)call->out,
                        (int64_t)m * n};
    persistent_launch<C>(state, grouped_kernel<C>, SHARED<C>, map_a, map_b, map_out, args, tokens);
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
        grouped_launch<Config<PRODUCT, 128, 6, true, 1, 1>>(state, call);
    else if (pairs < wide)
        grouped_launch<Config<PRODUCT, 128, 6, true, 1, 2>>(state, call);
    else if (experts_are_tall(call))
        grouped_launch<Config<PRODUCT, 192, 4, true, 2, 1>>(state, call);
    else
        grouped_launch<Config<PRODUCT, 192, 4, true, 1, 1>>(state, call);
}

// With few rows per expert a tile is soon done, and reading and writing the gradient takes as long as the products: it
// pays to overlap them by taking turns.
static void grouped_weight(CudaState *state, const GroupedCall *call) {
    if (!experts_are_tall(call))
        grouped_launch<Config<GROUPED_WEIGHT, 128, 6, true, 1, 2>>(state, call);
    else if (padded(call->n, 224) < padded(call->n, 256))
        grouped_launch<Config<GROUPED_WEIGHT, 224, 4, false, 2, 1>>(state, call);
    else
        grouped_launch<Config<GROUPED_WEIGHT, 256, 4, false, 1, 1>>(state, call);
}

// Which is fastest depends on how tiles fill the width, and on how many rows an expert has: raced. Tiles of tokens
// share the other operand with a neighbour, or nothing.
static void tokens_forward(CudaState *state, const GroupedCall *call, int variant) {
    switch (variant) {
    case 0: grouped_launch<TokensConfig<GROUPED_FORWARD, 192, 4, true, 1>>(state, call); break;
    case 1: grouped_launch<TokensConfig<GROUPED_FORWARD, 192, 4, true, 2>>(state, call); break;
    case 2: grouped_launch<TokensConfig<GROUPED_FORWARD, 128, 6, true, 1>>(state, call); break;
    default: grouped_launch<TokensConfig<GROUPED_FORWARD, 128, 6, true, 2>>(state, call); break;
    }
}

static void tokens_weight(CudaState *state, const GroupedCall *call, int variant) {
    switch (variant) {
    case 0: grouped_launch<TokensConfig<GROUPED_WEIGHT, 256, 4, false, 1>>(state, call); break;
    case 1: grouped_launch<TokensConfig<GROUPED_WEIGHT, 256, 4, false, 2>>(state, call); break;
    case 2: grouped_launch<TokensConfig<GROUPED_WEIGHT, 128, 6, true, 1>>(state, call); break;
    default: grouped_launch<TokensConfig<GROUPED_WEIGHT, 128, 6, true, 2>>(state, call); break;
    }
}

static bool call_fits(CudaState *state, const GroupedCall *call) {
    const int contiguous = call->product == GROUPED_WEIGHT ? call->m | call->n : call->n | call->k;
    const bool aligned = all_aligned(16, call->out, call->a, call->b);
    static int there = -1; // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, grouped_kernel<Config<GROUPED_FORWARD, 192, 4, true, 1, 1>>);
    return there && call->experts <= EXPERTS_MAX && contiguous % 8 == 0 && aligned;
}

bool grouped_sm90(CudaState *state, const GroupedCall *call) {
    if (!call_fits(state, call)) return false;
    if (call->product == GROUPED_FORWARD)
        grouped_rows<GROUPED_FORWARD>(state, call);
    else if (call->product == GROUPED_INPUT)
        grouped_rows<GROUPED_INPUT>(state, call);
    else
        grouped_weight(state, call);
    return true;
}

bool grouped_tokens_sm90(CudaState *state, const GroupedCall *call, int variant) {
    if (!call_fits(state, call) || variant >= GROUPED_TOKENS_VARIANTS) return false;
    if (call->product == GROUPED_FORWARD)
        tokens_forward(state, call, variant);
    else
        tokens_weight(state, call, variant);
    return true;
}
