// Linear layers on Hopper, on the pipeline of gemm_sm90.cuh; see linear_sm90.h.
//
// The warpgroups take turns, so one warpgroup's epilogue runs beside the other's products. A finished tile leaves
// through shared memory in pieces of 64 rows by 64 columns: where something is added to it, a warp of the producers has
// brought that into the piece's place ahead of time; the consumers put their results there, and another warp stores
// them.
#include "ops/cuda/gemm_sm90.cuh"
#include "ops/cuda/linear_sm90.h"

// What happens to a finished tile. The rotations: of heads of 64 or 128 columns; a head's halves are in one thread.
typedef enum Ending { ENDING_PLAIN, ENDING_ADD, ENDING_ROTATE_64, ENDING_ROTATE_128 } Ending;

template <GroupedProduct PRODUCT, Ending ENDING_, int TILE_N, int STAGES>
struct LinearConfig : Config<PRODUCT, TILE_N, STAGES, true, 2, 1> {
    using Base = Config<PRODUCT, TILE_N, STAGES, true, 2, 1>;
    static constexpr Ending ENDING = ENDING_;
    static constexpr bool FINISH_IN_TURN = true; // there is room for the pieces of one tile
    static constexpr int HEAD_DIM = ENDING == ENDING_ROTATE_64 ? 64 : ENDING == ENDING_ROTATE_128 ? 128 : 0;
    static constexpr int PIECE_BYTES = 64 * 64 * 2, ACROSS = TILE_N / 64, PIECES = TILE_M / 64 * ACROSS; // of a tile
    static constexpr int SHARED = STAGES * Base::STAGE_BYTES + PIECES * PIECE_BYTES + 1024; // 1024: to align by hand
    static_assert(TILE_N % (HEAD_DIM ? HEAD_DIM : 64) == 0, "tiles of whole pieces and heads");
};

typedef struct Rotation {
    const float *cos, *sin; // [positions, head_dim / 2]
    int seq, first_position;
    int columns; // of the heads that are rotated; those behind are not
} Rotation;

// ---- pieces -------------------------------------------------------------------------------------------------------

// Piece i of a tile from the accumulators of one warpgroup, columns first .. first + 64; parity: of the tile's number.
template <typename C, int COUNT>
DEVICE_CODE void piece_fill(const Slots &pieces, int i, uint32_t parity, float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const uint32_t piece = pieces.memory + i * C::PIECE_BYTES;
    if constexpr (C::ENDING == ENDING_ADD) {
        mbarrier_wait(pieces.loaded + i * 8, parity);
#pragma unroll
        for (int j = 0; j < 8; j += 2) { // as stage_bf16 stores them
            uint32_t add[4];
            matrices_load(add, piece + row * 128 + (((j + lane / 16) ^ (row & 7)) * 16));
#pragma unroll
            for (int m = 0; m < 4; m++) {
                d[(first / 8 + j) * 4 + 2 * m] += low_bf16(add[m]);
                d[(first / 8 + j) * 4 + 2 * m + 1] += high_bf16(add[m]);
            }
        }
    } else {
        mbarrier_wait(pieces.empty + i * 8, parity ^ 1);
    }
    stage_bf16<64>(piece, d, first);
    shared_fence_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(pieces.done + i * 8);
}

// Calls use(i, parity, x, y) for the pieces of this block's tiles, in the order in which they are filled; (x, y) is the
// piece's first column and row.
template <typename C, typename Use>
DEVICE_CODE void pieces_walk(const Experts &experts, const GroupedArgs &args, int rank, Use use) {
    Tile tile = {};
    uint32_t parity = 0;
    for (int wave = 0; tile_find<C>(tile, wave, experts, args, rank); wave++) {
        if (!tile.real) continue;
        for (int i = 0; i < C::PIECES; i++)
            use(i, parity, tile.n * C::TILE_N + i % C::ACROSS * 64, tile.m * TILE_M + i / C::ACROSS * 64);
        parity ^= 1;
    }
}

template <typename C>
DEVICE_CODE void pieces_load(const Slots &pieces, const CUtensorMap *add, const Experts &experts,
                             const GroupedArgs &args, int rank) {
    pieces_walk<C>(experts, args, rank, [&](int i, uint32_t parity, int x, int y) {
        mbarrier_wait(pieces.empty + i * 8, parity ^ 1);
        mbarrier_expect(pieces.loaded + i * 8, C::PIECE_BYTES);
        tensor_load(pieces.memory + i * C::PIECE_BYTES, add, pieces.loaded + i * 8, x, y, 0);
    });
}

template <typename C>
DEVICE_CODE void pieces_store(const Slots &pieces, const CUtensorMap *out, const Experts &experts,
                              const GroupedArgs &args, int rank) {
    pieces_walk<C>(experts, args, rank, [&](int i, uint32_t parity, int x, int y) {
        mbarrier_wait(pieces.done + i * 8, parity);
        tensor_store(out, pieces.memory + i * C::PIECE_BYTES, x, y, 0);
        tensor_store_commit();
        tensor_store_wait_read<0>();
        mbarrier_arrive(pieces.empty + i * 8);
    });
}

// ---- rotation -----------------------------------------------------------------------------------------------------

// Rotates the heads of 64 rows in registers; (column, row) is the first. Rows beyond the end get some position. Few
// angles are loaded at a time: the accumulators leave few registers.
template <int HEAD_DIM, int COUNT>
DEVICE_CODE void heads_rotate(float (&d)[COUNT], const Rotation &rotation, int column, int row) {
    constexpr int HALF = HEAD_DIM / 2, BATCH = 2; // of 8 columns
    if (column >= rotation.columns) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t token = (uint32_t)(row + threadIdx.x % 128 / 32 * 16 + 8 * h + lane / 4);
        const uint32_t position = (uint32_t)rotation.first_position + token % (uint32_t)rotation.seq;
        const uint32_t angle = position * HALF + lane % 4 * 2;
#pragma unroll
        for (int first = 0; first < HALF / 8; first += BATCH) {
            float2 cosine[BATCH], sine[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                cosine[j] = __ldg((const float2 *)(rotation.cos + angle + (first + j) * 8));
                sine[j] = __ldg((const float2 *)(rotation.sin + angle + (first + j) * 8));
            }
#pragma unroll
            for (int head = 0; head < COUNT * 2 / HEAD_DIM; head++) {
                if (column + head * HEAD_DIM >= rotation.columns) continue;
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    const int at = (head * HEAD_DIM / 8 + first + j) * 4 + 2 * h;
                    float *x = d + at, *y = d + at + HALF / 2;
                    const float x0 = x[0], x1 = x[1];
                    x[0] = x0 * cosine[j].x - y[0] * sine[j].x;
                    x[1] = x1 * cosine[j].y - y[1] * sine[j].y;
                    y[0] = y[0] * cosine[j].x + x0 * sine[j].x;
                    y[1] = y[1] * cosine[j].y + x1 * sine[j].y;
                }
            }
        }
    }
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    linear_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  const __grid_constant__ CUtensorMap add, const __grid_constant__ CUtensorMap out,
                  const __grid_constant__ GroupedArgs args, const __grid_constant__ Rotation rotation) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4], piece_barriers[3 * C::PIECES];
    __shared__ Experts experts;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    const Slots pieces = slots_make<C::PIECES>(ring.stages + C::STAGES * C::STAGE_BYTES, piece_barriers);
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<PRODUCER_REGISTERS>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            produce<C>(ring, &a, &b, experts, args, rank);
        } else if (C::ENDING == ENDING_ADD && threadIdx.x == 288) {
            pieces_load<C>(pieces, &add, experts, args, rank);
        } else if (threadIdx.x == 320) {
            pieces_store<C>(pieces, &out, experts, args, rank);
        }
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &tile, uint32_t number, auto &d) {
#pragma unroll
            for (int i = 0; i < C::PIECES; i++) {
                const int part = i / C::ACROSS, column = i % C::ACROSS;
                if constexpr (C::HEAD_DIM != 0)
                    if (column == 0)
                        heads_rotate<C::HEAD_DIM>(d[part], rotation, tile.n * C::TILE_N, tile.m * TILE_M + part * 64);
                piece_fill<C>(pieces, i, number & 1, d[part], column * 64);
            }
        });
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

template <GroupedProduct PRODUCT, Ending ENDING, int TILE_N, int STAGES>
static bool linear_launch(CudaState *state, const LinearCall *call) {
    using C = LinearConfig<PRODUCT, ENDING, TILE_N, STAGES>;
    const int64_t rows = call->out.rows;
    const int n = (int)call->out.cols, k = (int)call->in.cols;
    const void *weight = call->weight.data;
    CUtensorMap a = rows_map_make(state, call->in.data, rows, k, call->in.stride, C::A_BOX, TILE_K);
    CUtensorMap b = PRODUCT == GROUPED_INPUT ? map_make(state, weight, DTYPE_BF16, 1, k, n, C::B_BOX, 64)
                                             : map_make(state, weight, DTYPE_BF16, 1, n, k, C::B_BOX, TILE_K);
    CUtensorMap out = map_make(state, call->out.data, DTYPE_BF16, 1, rows, n, 64, 64);
    CUtensorMap add = ENDING == ENDING_ADD ? map_make(state, call->add.data, DTYPE_BF16, 1, rows, n, 64, 64) : out;
    if (state->failure) return true;
    GroupedArgs args = {
        NULL, 1, (int)ceil_div64(rows, TILE_M), (int)ceil_div64(n, TILE_N), (int)ceil_div64(k, TILE_K), false, NULL, 0};
    Rotation rotation = {};
    if (const Rope *rope = call->rope)
        rotation = {(const float *)rope->cos.data, (const float *)rope->sin.data, rope->seq, rope->first_position,
                    (rope->heads + rope->kv_heads) * rope->head_dim};
    persistent_launch<C>(state, linear_kernel<C>, C::SHARED, a, b, add, out, args, rotation);
    return true;
}

// Which is best depends on how the tiles fill the width. Measured and no better, as the tensor cores use most of the
// power: clusters of four, whatever they share; tiles of 128 x 256 and 256 x 192 that both warpgroups multiply at once.
template <GroupedProduct PRODUCT, Ending ENDING>
static bool linear_variant(CudaState *state, const LinearCall *call, int variant) {
    if (variant == 0) return linear_launch<PRODUCT, ENDING, 128, 5>(state, call);
    if constexpr (ENDING != ENDING_ROTATE_128)
        if (variant == 1) return linear_launch<PRODUCT, ENDING, 192, 4>(state, call);
    return false;
}

static bool call_fits(CudaState *state, const LinearCall *call) {
    static int there = -1; // asking costs some microseconds
    if (there < 0)
        there = kernel_is_there(state->arch, linear_kernel<LinearConfig<GROUPED_FORWARD, ENDING_PLAIN, 192, 4>>);
    const bool aligned = all_aligned(16, call->out.data, call->add.data, call->in.data, call->weight.data);
    return there && aligned && call->out.cols % 8 == 0 && call->in.cols % 8 == 0 && call->in.stride % 8 == 0 &&
           call->out.rows > 0;
}

static bool rope_fits(const Rope *rope) {
    const bool aligned = (((uintptr_t)rope->cos.data | (uintptr_t)rope->sin.data) & 7) == 0;
    return aligned && !rope->q_weight.data && !rope->k_weight.data && (rope->head_dim == 64 || rope->head_dim == 128);
}

bool linear_sm90(CudaState *state, const LinearCall *call, int variant) {
    if (!call_fits(state, call) || (call->rope && !rope_fits(call->rope))) return false;
    if (call->backward) return linear_variant<GROUPED_INPUT, ENDING_PLAIN>(state, call, variant);
    if (call->add.data) return linear_variant<GROUPED_FORWARD, ENDING_ADD>(state, call, variant);
    if (!call->rope) return linear_variant<GROUPED_FORWARD, ENDING_PLAIN>(state, call, variant);
    return call->rope->head_dim == 64 ? linear_variant<GROUPED_FORWARD, ENDING_ROTATE_64>(state, call, variant)
                                      : linear_variant<GROUPED_FORWARD, ENDING_ROTATE_128>(state, call, variant);
}
