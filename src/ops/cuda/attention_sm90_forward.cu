// The forward pass of attention on Hopper, for heads of up to 64 columns. There the exponentials of a block of scores
// take as long as its two products, so products and exponentials must run at the same time, and every instruction
// beside them counts.
//
// A block of threads is persistent. Its three warpgroups each own a tile: 64 queries of one head, whose sums stay in
// registers. An item is three tiles of one KV head, the heads of the group before the next 64 queries, so that the
// tiles share the keys and values that one more warp brings in through the bulk copy engine. A warpgroup walks over
// 128 keys at a time from the diagonal down (from the end, where queries see all keys). The scores of the next block of
// keys are started before the product of this one's probabilities with the values, and the warpgroups start their
// products in turns: while one's products run, the others take their exponentials.
//
// Probabilities are relative to the highest score of the block on the diagonal, not of all so far: being floating-point
// numbers they may exceed 1 by far without losing precision, and the search for a maximum would be a fifth of the
// instructions. Only when a sum grows beyond SUM_LIMIT is a new maximum taken and the block done again.
//
// Where there are documents, blocks of keys before the tile's first one are left out, and only the blocks in which a
// query's document begins are masked.
//
// Items are dealt out like cards, the longest first, there and back again, so that all blocks of threads get the same
// work without a counter in memory; and in sections of a few KV heads, whose keys and values stay in the L2 cache.
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

#include <cuda_bf16.h>
#include <math_constants.h>

#define SUM_LIMIT 0x1p60f

enum {
    TILE = 64, // queries of a warpgroup; also the rows of one copy of keys or values
    TILE_BYTES = TILE * 128,
    GROUPS = 3, // warpgroups that compute
    KEYS = 128, // at a time
    KV_BYTES = KEYS * 128,
    STAGES = 4, // blocks of keys and of values in shared memory
    SLOTS = 4,  // tiles of queries of each warpgroup; the results leave through them
    THREADS = 128 + GROUPS * 128,
    REGISTERS_MOVE = 32,
    REGISTERS_COMPUTE = 160,
    // places in shared memory; barriers take 8 bytes each
    PLACE_K = 0,
    PLACE_V = PLACE_K + STAGES * KV_BYTES,
    PLACE_Q = PLACE_V + STAGES * KV_BYTES,
    K_FULL = PLACE_Q + GROUPS * SLOTS * TILE_BYTES,
    K_EMPTY = K_FULL + STAGES * 8,
    V_FULL = K_EMPTY + STAGES * 8,
    V_EMPTY = V_FULL + STAGES * 8,
    Q_FULL = V_EMPTY + STAGES * 8,
    Q_EMPTY = Q_FULL + GROUPS * SLOTS * 8,
    PLACE_WORK = Q_EMPTY + GROUPS * SLOTS * 8, // what each slot is for
    SHARED_BYTES = PLACE_WORK + GROUPS * SLOTS * 32,
};
static_assert(SHARED_BYTES <= 232448, "shared memory of a block");

struct ForwardArgs {
    float *lse;               // [batch, heads, seq]
    const int32_t *doc_start; // [batch, seq], read where there are documents
    int batch, seq, heads, kv_heads;
    int tiles;   // of a KV head: query blocks times heads of the group
    int items;   // of a KV head
    int section; // KV heads (of all sequences) whose items are dealt out together
    float scale;
    int first_key; // position of key 0, as doc_start counts
};

struct ForwardMaps {
    CUtensorMap q, k, v, out;
};

struct Work { // of a warpgroup
    int batch, head;
    int row;           // block of 64 queries; negative: no tile for this warpgroup
    int top;           // last block of keys of the item; negative: there are no more
    int bottom, first; // first block of keys of the item, and of this tile
    int edge;          // first key that all queries of the tile see
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// First key of a query's document; those beyond the end count as the last query.
static __device__ __forceinline__ int document_start(const ForwardArgs &args, const int32_t *start, int query) {
    return max(start[min(query, args.seq - 1)] - args.first_key, 0);
}

// ---- the warp that moves data -------------------------------------------------------------------------------------

static __device__ __forceinline__ void keys_load(const CUtensorMap *map, uint32_t shared, uint32_t full, int parts,
                                                 int kv_head, int token, int batch) {
    mbarrier_expect(full, parts * TILE_BYTES);
    for (int i = 0; i < parts; i++)
        tensor_load_head(shared + i * TILE_BYTES, map, full, 0, kv_head, token + i * TILE, batch);
}

// One thread: deals itself items and loads what they need, as far ahead as the buffers allow.
template <bool DOCUMENTS, bool FULL>
static __device__ __forceinline__ void forward_load(const ForwardArgs &args, const ForwardMaps &maps, uint8_t *shared,
                                                    uint32_t base) {
    const int pairs = args.batch * args.kv_heads, group = args.heads / args.kv_heads, last = args.tiles / group - 1;
    const int round = gridDim.x, place = blockIdx.x;
    int n = 0;
    for (int n_item = 0;; n_item++) {
        const int slot = n_item % SLOTS, number = n_item * round + (n_item & 1 ? round - 1 - place : place);
        const bool more = number < pairs * args.items;
        const int whole = args.section * args.items, section = number / whole, rest = number - section * whole;
        const int here = min(args.section, pairs - section * args.section), index = more ? rest / here : 0;
        const int pair = section * args.section + rest - index * here, batch = pair / args.kv_heads;
        const int kv_head = pair - batch * args.kv_heads, first = index * GROUPS;
        const int row = last - first / group, top = !more ? -1 : FULL ? last * TILE / KEYS : row * TILE / KEYS;
        const int32_t *start = DOCUMENTS ? args.doc_start + (int64_t)batch * args.seq : NULL;
        // Documents begin ever later: the earliest keys are those of the item's last tile.
        const int earliest = last - (min(first + GROUPS, args.tiles) - 1) / group;
        const int bottom = DOCUMENTS && more ? document_start(args, start, earliest * TILE) / KEYS : 0;
        for (int i = 0; i < GROUPS; i++) {
            const int at = i * SLOTS + slot, tile = first + i;
            const uint32_t full = base + Q_FULL + at * 8;
            const bool there = more && tile < args.tiles;
            const int head = kv_head * group + tile % group, tile_row = there ? last - tile / group : -1;
            int4 *work = (int4 *)(shared + PLACE_WORK + at * 32);
            mbarrier_wait(base + Q_EMPTY + at * 8, (n_item / SLOTS + 1) & 1);
            work[0] = make_int4(batch, head, tile_row, top);
            if (DOCUMENTS)
                work[1] = make_int4(bottom, there ? document_start(args, start, tile_row * TILE) / KEYS : 0,
                                    there ? document_start(args, start, tile_row * TILE + TILE - 1) : 0, 0);
            if (there) {
                mbarrier_expect(full, TILE_BYTES);
                tensor_load_head(base + PLACE_Q + at * TILE_BYTES, &maps.q, full, 0, head, tile_row * TILE, batch);
            } else {
                mbarrier_arrive(full);
            }
        }
        if (!more) return;
        for (int block = top; block >= bottom; block--, n++) {
            const int stage = n % STAGES, parity = (n / STAGES + 1) & 1, token = block * KEYS;
            const int parts = FULL ? KEYS / TILE : min(KEYS / TILE, row + 1 - block * (KEYS / TILE));
            mbarrier_wait(base + K_EMPTY + stage * 8, parity);
            keys_load(&maps.k, base + PLACE_K + stage * KV_BYTES, base + K_FULL + stage * 8, parts, kv_head, token,
                      batch);
            mbarrier_wait(base + V_EMPTY + stage * 8, parity);
            keys_load(&maps.v, base + PLACE_V + stage * KV_BYTES, base + V_FULL + stage * 8, parts, kv_head, token,
                      batch);
        }
    }
}

// ---- the warpgroups that compute ----------------------------------------------------------------------------------

struct Rows { // of a thread: two, 8 apart; sums are of its own columns only
    float maximum[2], sum[2];
};

// Where a warpgroup stands.
struct Place {
    uint8_t *shared;
    uint32_t base;
    int group;
    bool leader;        // of its warp
    unsigned n, n_item; // blocks of keys and items so far
    int storing;        // slot that results are still leaving through, or -1
    float scale2;
    uint64_t q, k, v; // operands in the first slot and stages
};

static __device__ __forceinline__ void keys_wait(const Place &at, unsigned n) {
    mbarrier_wait(at.base + K_FULL + n % STAGES * 8, n / STAGES & 1);
}

static __device__ __forceinline__ void values_wait(const Place &at, unsigned n) {
    mbarrier_wait(at.base + V_FULL + n % STAGES * 8, n / STAGES & 1);
}

static __device__ __forceinline__ void keys_release(const Place &at, unsigned n) {
    if (at.leader) mbarrier_arrive(at.base + K_EMPTY + n % STAGES * 8);
}

static __device__ __forceinline__ void values_release(const Place &at, unsigned n) {
    if (at.leader) mbarrier_arrive(at.base + V_EMPTY + n % STAGES * 8);
}

// The warpgroup with the token starts its products.
static __device__ __forceinline__ void token_wait(int group) {
    named_barrier(1 + group, 256);
}

static __device__ __forceinline__ void token_pass(int group) {
    named_barrier_arrive(1 + (group + 1) % GROUPS, 256);
}

// All lanes get lane 0's copy: the compiler then knows that the warp agrees, and does the arithmetic once for all.
template <bool DOCUMENTS> static __device__ __forceinline__ Work work_wait(const Place &at) {
    const int slot = at.group * SLOTS + at.n_item % SLOTS;
    mbarrier_wait(at.base + Q_FULL + slot * 8, at.n_item / SLOTS & 1);
    const int4 x = *(const int4 *)(at.shared + PLACE_WORK + slot * 32);
    const int4 y = DOCUMENTS ? *(const int4 *)(at.shared + PLACE_WORK + slot * 32 + 16) : make_int4(0, 0, 0, 0);
    auto agree = [](int value) { return __shfl_sync(0xffffffffu, value, 0); };
    if (!DOCUMENTS) return Work{agree(x.x), agree(x.y), agree(x.z), agree(x.w), 0, 0, 0};
    return Work{agree(x.x), agree(x.y), agree(x.z), agree(x.w), agree(y.x), agree(y.y), agree(y.z)};
}

// The results of the tile before have left shared memory: its slot is free.
static __device__ __forceinline__ void store_finish(Place &at) {
    if (at.storing < 0) return;
    if (at.leader) {
        tensor_store_wait_read<0>();
        mbarrier_arrive(at.base + Q_EMPTY + (at.group * SLOTS + at.storing) * 8);
    }
    __syncwarp();
    at.storing = -1;
}

// s [64, 128] = queries . keys. Where only 64 keys are there, the rest of s is not used.
static __device__ __forceinline__ void scores_start(float (&s)[64], const Place &at, unsigned n) {
    const uint64_t queries = at.q + at.n_item % SLOTS * (TILE_BYTES / 16), keys = at.k + n % STAGES * (KV_BYTES / 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<0, 0>(s, queries + step * 2, keys + step * 2, step > 0);
    wgmma_commit();
}

// o [64, 64] += p . values
template <int STEPS>
static __device__ __forceinline__ void values_start(float (&o)[32], const uint32_t (&p)[8][4], const Place &at,
                                                    int keep) {
    const uint64_t values = at.v + at.n % STAGES * (KV_BYTES / 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        product_registers(o, p[step], values + step * 128, step > 0 ? 1 : keep);
    wgmma_commit();
}

// The 64 keys from FIRST on are those of the queries themselves: those after the query do not count.
template <int FIRST> static __device__ __forceinline__ void scores_mask(float (&s)[64]) {
    const int lane = threadIdx.x & 31, ahead = (threadIdx.x / 32 & 3) * 16 + lane / 4 - (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (i / 4 * 8 + (i & 1) > ahead + (i & 2) * 4) s[FIRST / 2 + i] = -CUDART_INF_F;
}

// Keys before the document of their query do not count; key: the first one of the block.
static __device__ __forceinline__ void documents_mask(float (&s)[64], const ForwardArgs &args, const Work &work,
                                                      int key) {
    const int query = work.row * TILE + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    const int32_t *start = args.doc_start + (int64_t)work.batch * args.seq;
    const int first[2] = {document_start(args, start, query), document_start(args, start, query + 8)};
    key += (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (key + i / 4 * 8 + (i & 1) < first[i / 2 & 1]) s[i] = -CUDART_INF_F;
}

// The highest score of each row among the first COUNT of each thread, and what there was.
template <int COUNT> static __device__ __forceinline__ void scores_maximum(const float (&s)[64], float (&maximum)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float a = fmaxf(maximum[half], fmaxf(s[half * 2], s[half * 2 + 1]));
        float b = fmaxf(s[half * 2 + 4], s[half * 2 + 5]);
#pragma unroll
        for (int i = half * 2 + 8; i < COUNT; i += 8)
            a = fmaxf(a, fmaxf(s[i], s[i + 1])), b = fmaxf(b, fmaxf(s[i + 4], s[i + 5]));
        a = fmaxf(a, b);
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        maximum[half] = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
    }
}

// The first COUNT scores of each thread become probabilities, as left operands; their sums count.
template <int COUNT>
static __device__ __forceinline__ void scores_exponentiate(uint32_t (&p)[8][4], const float (&s)[64], Rows &rows,
                                                           float scale2) {
    const float shift[2] = {rows.maximum[0] * scale2, rows.maximum[1] * scale2};
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const float x = exp2_fast(fmaf(s[i * 2], scale2, -shift[i & 1]));
        const float y = exp2_fast(fmaf(s[i * 2 + 1], scale2, -shift[i & 1]));
        rows.sum[i & 1] += x + y;
        p[i / 4][i % 4] = pack_bf16(x, y);
    }
}

// What was summed so far becomes relative to a new maximum.
static __device__ __forceinline__ void sums_rescale(float (&o)[32], Rows &rows, const float (&maximum)[2],
                                                    float scale2) {
    const float factor[2] = {exp2_fast((rows.maximum[0] - maximum[0]) * scale2),
                             exp2_fast((rows.maximum[1] - maximum[1]) * scale2)};
#pragma unroll
    for (int i = 0; i < 32; i++)
        o[i] *= factor[i / 2 & 1];
#pragma unroll
    for (int half = 0; half < 2; half++)
        rows.sum[half] *= factor[half], rows.maximum[half] = maximum[half];
}

// Blocks of keys that other warpgroups need: above the own part of the diagonal, or before the documents; those of a
// whole item where there is no tile.
static __device__ __forceinline__ void blocks_skip(Place &at, int from, int to, int bottom) {
    for (int block = from; block > to; block--, at.n++) {
        keys_wait(at, at.n), keys_release(at, at.n);
        if (block > bottom) token_wait(at.group), token_pass(at.group);
        values_wait(at, at.n), values_release(at, at.n);
    }
}

// The block of keys on the diagonal: all 128, or the first 64 of them where the tile is an even one. Or the last block.
template <bool DOCUMENTS, bool FULL>
static __device__ __forceinline__ void tile_begin(Place &at, const ForwardArgs &args, const Work &work, Rows &rows,
                                                  uint32_t (&p)[8][4], bool wide) {
    float s[64];
    keys_wait(at, at.n);
    scores_start(s, at, at.n);
    store_finish(at);
    wgmma_wait<0>();
    wgmma_hold(s);
    keys_release(at, at.n);
    if (DOCUMENTS && work.row / 2 * KEYS < work.edge) documents_mask(s, args, work, work.row / 2 * KEYS);
    rows.maximum[0] = rows.maximum[1] = -CUDART_INF_F;
    rows.sum[0] = rows.sum[1] = 0;
    if (wide) {
        if (!FULL) scores_mask<64>(s);
        scores_maximum<64>(s, rows.maximum);
        scores_exponentiate<64>(p, s, rows, at.scale2);
    } else {
        scores_mask<0>(s);
        scores_maximum<32>(s, rows.maximum);
        scores_exponentiate<32>(p, s, rows, at.scale2);
    }
}

static __device__ __forceinline__ void values_begin(const Place &at, float (&o)[32], const uint32_t (&p)[8][4],
                                                    bool &wide, int &keep) {
    values_wait(at, at.n);
    if (wide)
        values_start<8>(o, p, at, keep);
    else
        values_start<4>(o, p, at, keep);
    wide = true, keep = 1;
}

// From the probabilities of one block of keys to those of the next one below.
template <bool DOCUMENTS>
static __device__ __forceinline__ void block_step(Place &at, const ForwardArgs &args, const Work &work, int block,
                                                  Rows &rows, float (&o)[32], uint32_t (&p)[8][4], bool &wide,
                                                  int &keep) {
    float s[64];
    keys_wait(at, at.n + 1);
    token_wait(at.group);
    scores_start(s, at, at.n + 1);
    values_begin(at, o, p, wide, keep);
    token_pass(at.group);
    wgmma_wait<1>();
    wgmma_hold(s);
    keys_release(at, at.n + 1);
    wgmma_wait<0>();
    wgmma_hold(o);
    values_release(at, at.n);
    if (DOCUMENTS && block * KEYS < work.edge) documents_mask(s, args, work, block * KEYS);
    const float before[2] = {rows.sum[0], rows.sum[1]};
    scores_exponentiate<64>(p, s, rows, at.scale2);
    if (__any_sync(0xffffffffu, rows.sum[0] > SUM_LIMIT || rows.sum[1] > SUM_LIMIT)) {
        float maximum[2] = {rows.maximum[0], rows.maximum[1]};
        rows.sum[0] = before[0], rows.sum[1] = before[1];
        scores_maximum<64>(s, maximum);
        sums_rescale(o, rows, maximum, at.scale2);
        scores_exponentiate<64>(p, s, rows, at.scale2);
    }
    at.n++;
}

// The warp's 16 rows, divided by their sums, through the slot of their queries to memory; and the log-sum-exps. It
// writes over its own 16 rows of queries without waiting for the other warps: a warp's part of wgmma reads only its own
// rows of the left operand.
static __device__ __forceinline__ void tile_store(Place &at, const ForwardArgs &args, const ForwardMaps &maps,
                                                  const Work &work, const float (&o)[32], const Rows &rows) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, first = work.row * TILE + warp * 16;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        factor[half] = 1.0f / sum;
        const int query = first + lane / 4 + half * 8;
        if ((lane & 3) == 0 && query < args.seq)
            args.lse[((int64_t)work.batch * args.heads + work.head) * args.seq + query] =
                rows.maximum[half] * args.scale + logf(sum);
    }
    const int slot = at.n_item % SLOTS, row = lane & 15;
    const uint32_t out = at.base + PLACE_Q + (at.group * SLOTS + slot) * TILE_BYTES + warp * 2048;
#pragma unroll
    for (int i = 0; i < 4; i++)
        matrices_store(out + row * 128 + (((i * 2 + (lane >> 4)) ^ (row & 7)) << 4),
                       pack_bf16(o[i * 8] * factor[0], o[i * 8 + 1] * factor[0]),
                       pack_bf16(o[i * 8 + 2] * factor[1], o[i * 8 + 3] * factor[1]),
                       pack_bf16(o[i * 8 + 4] * factor[0], o[i * 8 + 5] * factor[0]),
                       pack_bf16(o[i * 8 + 6] * factor[1], o[i * 8 + 7] * factor[1]));
    shared_fence_async();
    __syncwarp();
    if (at.leader) {
        if (first < args.seq) tensor_store_head(&maps.out, out, 0, work.head, first, work.batch);
        tensor_store_commit();
    }
    at.storing = slot;
}

template <bool DOCUMENTS, bool FULL>
static __device__ __forceinline__ void forward_compute(const ForwardArgs &args, const ForwardMaps &maps,
                                                       uint8_t *shared, uint32_t base, int group) {
    Place at;
    at.shared = shared, at.base = base, at.group = group, at.leader = (threadIdx.x & 31) == 0;
    at.n = at.n_item = 0, at.storing = -1;
    at.scale2 = args.scale * LOG2E;
    at.q = wgmma_operand(base + PLACE_Q + group * SLOTS * TILE_BYTES, 16);
    at.k = wgmma_operand(base + PLACE_K, 16), at.v = wgmma_operand(base + PLACE_V, 16);
    if (group == GROUPS - 1) token_pass(group); // to the first one
    for (;; at.n_item++) {
        const Work work = work_wait<DOCUMENTS>(at);
        if (work.top < 0) break;
        const int own = work.row < 0 ? work.bottom - 1 : FULL ? work.top : work.row * TILE / KEYS;
        blocks_skip(at, work.top, own, work.bottom);
        if (work.row < 0) {
            store_finish(at);
            if (at.leader) mbarrier_arrive(base + Q_EMPTY + (group * SLOTS + at.n_item % SLOTS) * 8);
            continue;
        }
        Rows rows;
        float o[32];
        uint32_t p[8][4];
        bool wide = FULL || work.row & 1;
        int keep = 0;
        tile_begin<DOCUMENTS, FULL>(at, args, work, rows, p, wide);
        for (int block = own - 1; block >= work.first; block--)
            block_step<DOCUMENTS>(at, args, work, block, rows, o, p, wide, keep);
        values_begin(at, o, p, wide, keep);
        wgmma_wait<0>();
        wgmma_hold(o);
        values_release(at, at.n);
        at.n++;
        tile_store(at, args, maps, work, o, rows);
        blocks_skip(at, work.first, work.bottom, work.bottom);
    }
    if (at.leader) tensor_store_wait_read<0>();
}

#endif

template <bool DOCUMENTS, bool FULL>
static __global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t shared[]; // nothing static: the swizzle needs the tiles at 1024
    const uint32_t base = shared_address(shared);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(base + K_FULL + i * 8, 1), mbarrier_init(base + K_EMPTY + i * 8, GROUPS * 4);
            mbarrier_init(base + V_FULL + i * 8, 1), mbarrier_init(base + V_EMPTY + i * 8, GROUPS * 4);
        }
        for (int i = 0; i < GROUPS * SLOTS; i++)
            mbarrier_init(base + Q_FULL + i * 8, 1), mbarrier_init(base + Q_EMPTY + i * 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (warpgroup == 0) {
        registers_shrink<REGISTERS_MOVE>();
        if (threadIdx.x == 0) forward_load<DOCUMENTS, FULL>(args, maps, shared, base);
    } else {
        registers_grow<REGISTERS_COMPUTE>();
        forward_compute<DOCUMENTS, FULL>(args, maps, shared, base, warpgroup - 1);
    }
#endif
}

// ---- host -----------------------------------------------------------------------------------------------------------

template <bool DOCUMENTS, bool FULL>
static void forward_launch(CudaState *state, const ForwardMaps &maps, const ForwardArgs &args) {
    const int64_t items = (int64_t)args.batch * args.kv_heads * args.items;
    const int blocks = items < state->sm_count ? (int)items : state->sm_count;
    CUDA_CHECK(state, cudaFuncSetAttribute(forward_kernel<DOCUMENTS, FULL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           SHARED_BYTES));
    forward_kernel<DOCUMENTS, FULL><<<blocks, THREADS, SHARED_BYTES, state->stream>>>(maps, args);
    LAUNCH_CHECK(state);
}

extern "C" bool attention_sm90_forward_supported(const CudaState *state, const AttentionShape *shape) {
    if (shape->head_dim > 64 || shape->head_dim % 8 || shape->q_stride % 8 || shape->k_stride % 8 ||
        shape->v_stride % 8 || shape->o_stride % 8)
        return false;
    if (shape->full && (shape->doc_start || shape->seq % KEYS)) return false; // nothing masks keys beyond the end
    static int there = -1;                                                    // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, forward_kernel<false, false>);
    return there;
}

extern "C" bool attention_sm90_forward(CudaState *state, void *out, float *lse, const void *q, const void *k,
                                       const void *v, const AttentionShape *shape) {
    if (!attention_sm90_forward_supported(state, shape)) return false;
    ForwardMaps maps;
    maps.q = head_map_make(state, q, shape, shape->heads, shape->q_stride, TILE);
    maps.k = head_map_make(state, k, shape, shape->kv_heads, shape->k_stride, TILE);
    maps.v = head_map_make(state, v, shape, shape->kv_heads, shape->v_stride, TILE);
    maps.out = head_map_make(state, out, shape, shape->heads, shape->o_stride, 16); // of a warp
    if (state->failure) return true;
    ForwardArgs args = {};
    args.lse = lse, args.doc_start = shape->doc_start;
    args.batch = shape->batch, args.seq = shape->seq, args.heads = shape->heads, args.kv_heads = shape->kv_heads;
    args.tiles = (shape->seq + TILE - 1) / TILE * (shape->heads / shape->kv_heads);
    args.items = (args.tiles + GROUPS - 1) / GROUPS;
    args.section = (state->sm_count + 3) / 4;
    args.scale = shape->scale, args.first_key = shape->first_key;
    if (shape->doc_start)
        forward_launch<true, false>(state, maps, args);
    else if (shape->full)
        forward_launch<false, true>(state, maps, args);
    else
        forward_launch<false, false>(state, maps, args);
    return true;
}
