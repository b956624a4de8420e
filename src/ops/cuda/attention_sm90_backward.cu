// The backward pass of attention on Hopper in five products instead of the seven of attention_hopper.cu: the scores are
// computed once, by the block that owns 128 keys, and dQ is summed over the blocks in memory, in a fixed order.
//
// A block is persistent and takes work items from a counter. An item is 128 keys of one KV head: K and V stay in shared
// memory, dK and dV in the registers of two warpgroups of 64 keys each, over all query heads of the group and all
// blocks of queries at or below the diagonal (so dK and dV need no reduction). The scores are kept transposed (keys are
// rows): P and dS then are left operands of dV += P dO and dK += dS Q straight from registers, and only dS goes through
// shared memory, for dQ = dS^T K. A third warpgroup gives its registers to them; its first warp feeds Q and dO through
// the bulk copy engine, its second moves dQ.
//
// dQ of a block of queries is the sum over the items with keys at or before it. They take turns (a counter per block of
// queries), by rising key block: the first stores its part, the next ones have the copy engine add theirs to memory,
// and the last has the sum so far brought to shared memory and writes dQ itself. So nothing is cleared before or
// converted after, and the order of the additions is always the same. An item waits only for items handed out before
// it, so a waiting block never blocks the one that it waits for, however few blocks are resident.
//
// Items go by rising key block and take their queries from the end, all heads of the group before the next block of
// queries: the longest items are the first, and items that run side by side touch the sums at the same pace. (Head by
// head an item, being shorter than its predecessor, would catch up with it at every head and wait.) They are grouped in
// sections of a few KV heads, so that Q, dO and the sums of dQ stay in the L2 cache while the key blocks of the section
// pass over them.
//
// Where a rotary embedding is given, dQ and dK go back through it on their way from the accumulators to memory: both
// columns of a pair are in the same thread.
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/attention_sm90_rows.cuh"
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

#include <cuda_bf16.h>
#include <math_constants.h>

typedef __nv_bfloat16 Half;

#define LOG2E 1.4426950408889634f

enum { KEYS = SM90_BACKWARD_KEYS, DQ_BYTES = SM90_BACKWARD_DQ_BYTES, DQ_FLOATS = DQ_BYTES / 4, THREADS = 384 };

struct BackwardArgs {
    const Half *o, *dout;
    const float *lse;
    Half *dq, *dk, *dv;
    float *dq_sum;      // [batch, heads, query blocks, DQ_FLOATS] in the order of the accumulators
    float *lse2, *dots; // [batch, heads, query blocks * queries]: lse * log2 e, sum of dO * O
    int32_t *turns;     // [batch, heads, query blocks]
    int32_t *next_item;
    int batch, seq, heads, kv_heads, head_dim, key_blocks, query_blocks;
    int64_t o_stride, grad_stride;
    float scale;
    const float *cos, *sin; // [seq, head_dim / 2], read where there is a rotation
    int section;            // KV heads (of all sequences) whose items are handed out together
};

struct BackwardMaps {
    CUtensorMap q, k, v, dout;
};

// What the parts of the kernel must agree on: sizes and places in shared memory for heads of up to D columns.
template <int D> struct Config {
    static constexpr int QUERIES = D == 64 ? 128 : 64, PANELS = D / 64;
    static constexpr int KV_SLOTS = D == 64 ? 2 : 1; // a second one lets the next item's K and V arrive early
    static constexpr int KV_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2, DS_BYTES = KEYS * QUERIES * 2;
    static constexpr int KV_PANEL = KEYS * 128, Q_PANEL = QUERIES * 128; // bytes of 64 columns
    static constexpr int K = 0, V = K + KV_SLOTS * KV_BYTES, Q = V + KV_SLOTS * KV_BYTES, DO = Q + 2 * Q_BYTES,
                         DS = DO + 2 * Q_BYTES, DQ = DS + 2 * DS_BYTES, LSE = DQ + DQ_BYTES,
                         DOTS = LSE + 2 * QUERIES * 4, BARRIERS = DOTS + 2 * QUERIES * 4;
    static constexpr int BYTES = BARRIERS + 192;
    static_assert(BYTES <= 232448, "shared memory of a block");
    // Of the 504 for a thread of each warpgroup that the block starts with.
    static constexpr int REGISTERS_MOVE = D == 64 ? 56 : 24, REGISTERS_COMPUTE = D == 64 ? 224 : 240;
    // barriers, 8 bytes each; the item of each slot stands behind them
    static constexpr int KV_FULL = BARRIERS, KV_EMPTY = KV_FULL + 16, Q_FULL = KV_EMPTY + 16, Q_EMPTY = Q_FULL + 16,
                         DO_FULL = Q_EMPTY + 16, DO_EMPTY = DO_FULL + 16, DQ_READY = DO_EMPTY + 16,
                         DQ_DONE = DQ_READY + 8, ITEMS = DQ_DONE + 8;
    static_assert(ITEMS + 32 <= BYTES, "barriers and items");
};

struct Item {
    int batch, kv_head, key_block; // key_block < 0: there are no more
};

// Walks over the query blocks of an item, from the last one down to the diagonal, each for all heads of the group.
struct Walk {
    int block, head;
    int line; // of turns and dq_sum
    int left; // steps, this one included
};

template <int D> static __device__ __forceinline__ Item item_decode(const BackwardArgs &args, int number) {
    if (number >= args.batch * args.kv_heads * args.key_blocks) return {0, 0, -1};
    const int whole = args.section * args.key_blocks, section = number / whole, rest = number - section * whole;
    const int pairs = min(args.section, args.batch * args.kv_heads - section * args.section);
    const int turn = rest / pairs, pair = section * args.section + rest - turn * pairs;
    Item item;
    item.batch = pair / args.kv_heads, item.kv_head = pair - item.batch * args.kv_heads;
    item.key_block = turn;
    return item;
}

template <int D> static __device__ __forceinline__ int item_first(const Item &item) {
    return item.key_block * (KEYS / Config<D>::QUERIES);
}

template <int D> static __device__ __forceinline__ Walk walk_begin(const BackwardArgs &args, const Item &item) {
    const int group = args.heads / args.kv_heads;
    Walk walk;
    walk.block = args.query_blocks - 1, walk.head = item.kv_head * group;
    walk.line = (item.batch * args.heads + walk.head) * args.query_blocks + walk.block;
    walk.left = group * (args.query_blocks - item_first<D>(item));
    return walk;
}

// Whether the part of dQ that comes from these keys is the last one.
template <int D> static __device__ __forceinline__ bool part_ends(const Item &item, const Walk &walk) {
    return item.key_block == walk.block / (KEYS / Config<D>::QUERIES);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

static __device__ __forceinline__ void walk_step(const BackwardArgs &args, const Item &item, Walk &walk) {
    const int group = args.heads / args.kv_heads;
    walk.left--, walk.head++, walk.line += args.query_blocks;
    if (walk.head == (item.kv_head + 1) * group)
        walk.block--, walk.head -= group, walk.line -= group * args.query_blocks + 1;
}

// ---- the two warps that move data
// ------------------------------------------------------------------------------------

template <int D>
static __device__ __forceinline__ void load_rows(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int head,
                                                 int token, int batch, int panel_bytes) {
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
        tensor_load_head(shared + panel * panel_bytes, map, barrier, panel * 64, head, token, batch);
}

// One thread: takes items and loads what they need, as far ahead as the buffers allow.
template <int D>
static __device__ __forceinline__ void backward_load(const BackwardArgs &args, const BackwardMaps &maps,
                                                     uint8_t *shared, uint32_t base) {
    using C = Config<D>;
    int number = atomicAdd(args.next_item, 1), n = 0;
    for (int turn = 0;; turn++) {
        const int slot = turn % C::KV_SLOTS;
        const uint32_t full = base + C::KV_FULL + slot * 8;
        mbarrier_wait(base + C::KV_EMPTY + slot * 8, (turn / C::KV_SLOTS + 1) & 1);
        const Item item = item_decode<D>(args, number);
        *(volatile int *)(shared + C::ITEMS + slot * 16) = item.batch;
        *(volatile int *)(shared + C::ITEMS + slot * 16 + 4) = item.kv_head;
        *(volatile int *)(shared + C::ITEMS + slot * 16 + 8) = item.key_block;
        if (item.key_block < 0) {
            mbarrier_arrive(full);
            return;
        }
        number = atomicAdd(args.next_item, 1);
        mbarrier_expect(full, 2 * C::KV_BYTES);
        load_rows<D>(base + C::K + slot * C::KV_BYTES, &maps.k, full, item.kv_head, item.key_block * KEYS, item.batch,
                     C::KV_PANEL);
        load_rows<D>(base + C::V + slot * C::KV_BYTES, &maps.v, full, item.kv_head, item.key_block * KEYS, item.batch,
                     C::KV_PANEL);
        for (Walk walk = walk_begin<D>(args, item); walk.left > 0; walk_step(args, item, walk), n++) {
            const int stage = n & 1, parity = (n / 2 + 1) & 1;
            const uint32_t q_full = base + C::Q_FULL + stage * 8, do_full = base + C::DO_FULL + stage * 8;
            mbarrier_wait(base + C::Q_EMPTY + stage * 8, parity);
            mbarrier_expect(q_full, C::Q_BYTES + C::QUERIES * 4);
            load_rows<D>(base + C::Q + stage * C::Q_BYTES, &maps.q, q_full, walk.head, walk.block * C::QUERIES,
                         item.batch, C::Q_PANEL);
            bulk_load(base + C::LSE + stage * C::QUERIES * 4, args.lse2 + (int64_t)walk.line * C::QUERIES,
                      C::QUERIES * 4, q_full);
            mbarrier_wait(base + C::DO_EMPTY + stage * 8, parity);
            mbarrier_expect(do_full, C::Q_BYTES + C::QUERIES * 4);
            load_rows<D>(base + C::DO + stage * C::Q_BYTES, &maps.dout, do_full, walk.head, walk.block * C::QUERIES,
                         item.batch, C::Q_PANEL);
            bulk_load(base + C::DOTS + stage * C::QUERIES * 4, args.dots + (int64_t)walk.line * C::QUERIES,
                      C::QUERIES * 4, do_full);
        }
    }
}

static __device__ __forceinline__ Item item_read(const uint8_t *slot) {
    const volatile int *x = (const volatile int *)slot;
    return Item{x[0], x[1], x[2]};
}

static __device__ __forceinline__ void turn_finish(int32_t *turns, int &line) {
    if (line < 0) return;
    bulk_wait_complete();
    fence_async_all();
    turn_pass(turns + line); // releases what the copy engine wrote
    line = -1;
}

// One thread: adds the parts of dQ to the sums in memory, each in its turn, and fetches the sums that end here.
template <int D>
static __device__ __forceinline__ void backward_sum(const BackwardArgs &args, uint8_t *shared, uint32_t base) {
    using C = Config<D>;
    const uint32_t ready = base + C::DQ_READY, done = base + C::DQ_DONE, buffer = base + C::DQ;
    int n = 0, pending = -1; // line of turns to pass when its addition is complete
    for (int turn = 0;; turn++) {
        const int slot = turn % C::KV_SLOTS;
        mbarrier_wait(base + C::KV_FULL + slot * 8, turn / C::KV_SLOTS & 1);
        const Item item = item_read(shared + C::ITEMS + slot * 16);
        if (item.key_block < 0) return;
        mbarrier_arrive(base + C::KV_EMPTY + slot * 8);
        for (Walk walk = walk_begin<D>(args, item); walk.left > 0; walk_step(args, item, walk), n++) {
            float *sum = args.dq_sum + (int64_t)walk.line * DQ_FLOATS;
            const bool first = item.key_block == 0;
            if (part_ends<D>(item, walk)) {
                turn_finish(args.turns, pending);
                if (first) {
                    mbarrier_arrive(ready);
                } else {
                    turn_wait(args.turns + walk.line, item.key_block);
                    fence_async_all();
                    mbarrier_expect(ready, DQ_BYTES);
                    bulk_load(buffer, sum, DQ_BYTES, ready);
                }
                mbarrier_wait(done, n & 1);
            } else {
                mbarrier_arrive(ready);
                turn_finish(args.turns, pending);
                // Asked for while the part is being computed.
                if (!first) turn_wait(args.turns + walk.line, item.key_block);
                mbarrier_wait(done, n & 1);
                if (first) {
                    bulk_store(sum, buffer, DQ_BYTES);
                } else {
                    fence_async_all();
                    bulk_add(sum, buffer, DQ_BYTES);
                }
                bulk_commit();
                bulk_wait_read();
                pending = walk.line;
            }
        }
        turn_finish(args.turns, pending);
    }
}

// ---- the two warpgroups that compute
// ---------------------------------------------------------------------------------

// d [64, QUERIES] = 64 rows of a tile of keys . a tile of queries, summed over D columns.
template <int D, int COUNT>
static __device__ __forceinline__ void scores_start(float (&d)[COUNT], uint32_t keys, uint32_t queries) {
    using C = Config<D>;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
        product_shared<0, 0>(d, wgmma_operand(keys + (step >> 2) * C::KV_PANEL + (step & 3) * 32, 16),
                             wgmma_operand(queries + (step >> 2) * C::Q_PANEL + (step & 3) * 32, 16), step > 0);
    wgmma_commit();
}

// d [64 keys, D] += p [64 keys, QUERIES] . a tile of queries
template <int D>
static __device__ __forceinline__ void
accumulate_start(float (&d)[D / 2], const uint32_t (&p)[Config<D>::QUERIES / 16][4], uint32_t queries, int keep) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Config<D>::QUERIES / 16; step++)
        product_registers(d, p[step], wgmma_operand(queries + step * 2048, Config<D>::Q_PANEL), step > 0 ? 1 : keep);
    wgmma_commit();
}

// This warpgroup's part of dQ: its 64 queries when there are 128, its 64 columns when there are 128.
template <int D>
static __device__ __forceinline__ void dq_start(float (&d)[32], uint32_t ds, uint32_t keys, int warpgroup) {
    using C = Config<D>;
    const uint32_t a = D == 64 ? ds + warpgroup * KEYS * 128 : ds, b = D == 64 ? keys : keys + warpgroup * C::KV_PANEL;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        product_shared<1, 1>(d, wgmma_operand(a + step * 2048, 16), wgmma_operand(b + step * 2048, 16), step > 0);
    wgmma_commit();
}

// Keys after their query do not count. first: position of the first query minus that of this thread's first row.
template <int COUNT> static __device__ __forceinline__ void scores_mask(float (&s)[COUNT], int first) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i / 4 * 8 + (i & 1) < (i & 2) * 4) s[i] = -CUDART_INF_F;
}

template <int COUNT>
static __device__ __forceinline__ void left_operands(uint32_t (&p)[COUNT / 8][4], const float (&s)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        p[i / 4][i % 4] = pack_bf16(s[i * 2], s[i * 2 + 1]);
}

// dS as [key, query] with 64 queries in a panel: the reduction of dQ is strided.
template <int D>
static __device__ __forceinline__ void ds_store(uint32_t ds, const uint32_t (&p)[Config<D>::QUERIES / 16][4],
                                                int row0) {
    const int lane = threadIdx.x & 31, row = row0 + (lane & 15), column = lane >> 4;
#pragma unroll
    for (int i = 0; i < Config<D>::QUERIES / 16; i++)
        shared_store_matrices(ds + (i >> 2) * KEYS * 128 + row * 128 + ((((i & 3) * 2 + column) ^ (row & 7)) << 4),
                              p[i][0], p[i][1], p[i][2], p[i][3]);
}

// The products of dQ end here: to the buffer for the sum in memory; or, where the sum ends, to its place.
template <int D, bool ROPE>
static __device__ __forceinline__ void dq_hand_over(const BackwardArgs &args, float (&dq)[32], const Item &item,
                                                    const Walk &walk, uint8_t *shared, uint32_t base, int n,
                                                    int warpgroup) {
    using C = Config<D>;
    const bool ends = part_ends<D>(item, walk);
    const int row = walk.block * C::QUERIES + (D == 64 ? warpgroup * 64 : 0) + (threadIdx.x / 32 & 3) * 16;
    float4 *buffer = (float4 *)(shared + C::DQ + warpgroup * (DQ_BYTES / 2)) + (threadIdx.x & 127);
    if (!ends) {
        wgmma_wait<1>();
        wgmma_hold(dq);
        mbarrier_wait(base + C::DQ_READY, n & 1);
#pragma unroll
        for (int i = 0; i < 8; i++)
            buffer[i * 128] = make_float4(dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]);
        shared_fence_async();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(base + C::DQ_DONE);
        return;
    }
    Angles angles;
    if constexpr (ROPE) angles_load(angles, args.cos, args.sin, row, args.seq);
    wgmma_wait<1>();
    wgmma_hold(dq);
    mbarrier_wait(base + C::DQ_READY, n & 1);
    if (item.key_block > 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 x = buffer[i * 128];
            dq[i * 4] += x.x, dq[i * 4 + 1] += x.y, dq[i * 4 + 2] += x.z, dq[i * 4 + 3] += x.w;
        }
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(base + C::DQ_DONE);
    if constexpr (ROPE) rows_rotate(dq, angles);
    const int column = D == 64 ? 0 : warpgroup * 64;
    rows_store(dq, args.scale,
               args.dq + ((int64_t)item.batch * args.seq + row) * args.grad_stride + walk.head * args.head_dim + column,
               args.grad_stride, args.seq - row, args.head_dim - column);
}

// Where a warpgroup stands: its item, its place in the shared buffers, and the query block that it works on.
struct Place {
    uint8_t *shared;
    uint32_t base, k_tile, v_tile;
    int warpgroup, lane, row0; // row0: of the warp, in the block of keys
    float scale2;
    int n; // query blocks so far
};

// s holds the scores of query block n in flight. From them and dO: dV, and dS, which is left in registers and in shared
// memory. The exponentials run while dP is computed, the differences while dV is.
template <int D>
static __device__ __forceinline__ void scores_finish(const Place &at, float (&s)[Config<D>::QUERIES / 2],
                                                     uint32_t (&ds)[Config<D>::QUERIES / 16][4], float (&dv)[D / 2],
                                                     int ahead, int keep) {
    using C = Config<D>;
    constexpr int COUNT = C::QUERIES / 2;
    const int stage = at.n & 1, quarter = at.lane & 3;
    const uint32_t do_tile = at.base + C::DO + stage * C::Q_BYTES;
    float dp[COUNT];
    mbarrier_wait(at.base + C::DO_FULL + stage * 8, at.n / 2 & 1);
    scores_start<D>(dp, at.v_tile + at.warpgroup * 8192, do_tile);
    wgmma_wait<1>();
    wgmma_hold(s);
    if (ahead < at.warpgroup * 64 + 63) scores_mask(s, ahead + quarter * 2 - at.row0 - at.lane / 4);
    const float2 *lse2 = (const float2 *)(at.shared + C::LSE + stage * C::QUERIES * 4) + quarter;
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        const float2 x = lse2[i * 4];
        s[i * 4] = exp2_fast(fmaf(s[i * 4], at.scale2, -x.x));
        s[i * 4 + 1] = exp2_fast(fmaf(s[i * 4 + 1], at.scale2, -x.y));
        s[i * 4 + 2] = exp2_fast(fmaf(s[i * 4 + 2], at.scale2, -x.x));
        s[i * 4 + 3] = exp2_fast(fmaf(s[i * 4 + 3], at.scale2, -x.y));
    }
    uint32_t p[COUNT / 8][4];
    left_operands(p, s);
    accumulate_start<D>(dv, p, do_tile, keep);
    wgmma_wait<1>();
    wgmma_hold(dp);
    const float2 *dots = (const float2 *)(at.shared + C::DOTS + stage * C::QUERIES * 4) + quarter;
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        const float2 x = dots[i * 4];
        const uint32_t a = p[i / 2][i % 2 * 2], b = p[i / 2][i % 2 * 2 + 1];
        ds[i / 2][i % 2 * 2] = pack_bf16(low_bf16(a) * (dp[i * 4] - x.x), high_bf16(a) * (dp[i * 4 + 1] - x.y));
        ds[i / 2][i % 2 * 2 + 1] = pack_bf16(low_bf16(b) * (dp[i * 4 + 2] - x.x), high_bf16(b) * (dp[i * 4 + 3] - x.y));
    }
    ds_store<D>(at.base + C::DS + stage * C::DS_BYTES, ds, at.row0);
    shared_fence_async();
}

template <int D, bool ROPE>
static __device__ __forceinline__ void backward_compute(const BackwardArgs &args, uint8_t *shared, uint32_t base,
                                                        int warpgroup) {
    using C = Config<D>;
    Place at;
    at.shared = shared, at.base = base, at.warpgroup = warpgroup, at.lane = threadIdx.x & 31;
    at.row0 = warpgroup * 64 + (threadIdx.x / 32 & 3) * 16;
    at.scale2 = args.scale * LOG2E;
    at.n = 0;
    for (int turn = 0;; turn++) {
        const int slot = turn % C::KV_SLOTS;
        mbarrier_wait(base + C::KV_FULL + slot * 8, turn / C::KV_SLOTS & 1);
        const Item item = item_read(shared + C::ITEMS + slot * 16);
        if (item.key_block < 0) return;
        at.k_tile = base + C::K + slot * C::KV_BYTES, at.v_tile = base + C::V + slot * C::KV_BYTES;
        const int key0 = item.key_block * KEYS;
        Walk walk = walk_begin<D>(args, item);
        float s[C::QUERIES / 2], dk[D / 2], dv[D / 2];
        int keep = 0, stage;
        mbarrier_wait(base + C::Q_FULL + (at.n & 1) * 8, at.n / 2 & 1);
        scores_start<D>(s, at.k_tile + warpgroup * 8192, base + C::Q + (at.n & 1) * C::Q_BYTES);
        // A round ends the products of one query block and begins the scores of the next. Products follow each other
        // without a pause, except for the exponentials; dV is known to be complete when dQ is, as they end in order.
        for (;;) {
            uint32_t ds[C::QUERIES / 16][4];
            float dq[32];
            stage = at.n & 1;
            scores_finish<D>(at, s, ds, dv, walk.block * C::QUERIES - key0, keep);
            named_barrier(1, 256);
            dq_start<D>(dq, base + C::DS + stage * C::DS_BYTES, at.k_tile, warpgroup);
            accumulate_start<D>(dk, ds, base + C::Q + stage * C::Q_BYTES, keep);
            keep = 1;
            dq_hand_over<D, ROPE>(args, dq, item, walk, shared, base, at.n, warpgroup);
            if (at.lane == 0) mbarrier_arrive(base + C::DO_EMPTY + stage * 8);
            if (walk.left == 1) break;
            mbarrier_wait(base + C::Q_FULL + (stage ^ 1) * 8, (at.n + 1) / 2 & 1);
            scores_start<D>(s, at.k_tile + warpgroup * 8192, base + C::Q + (stage ^ 1) * C::Q_BYTES);
            wgmma_wait<1>();
            if (at.lane == 0) mbarrier_arrive(base + C::Q_EMPTY + stage * 8);
            at.n++;
            walk_step(args, item, walk);
        }
        Angles angles;
        if constexpr (ROPE) angles_load(angles, args.cos, args.sin, key0 + at.row0, args.seq);
        wgmma_wait<0>();
        wgmma_hold(dk);
        wgmma_hold(dv);
        if (at.lane == 0) {
            mbarrier_arrive(base + C::Q_EMPTY + stage * 8);
            mbarrier_arrive(base + C::KV_EMPTY + slot * 8);
        }
        at.n++;
        const int row = key0 + at.row0;
        const int64_t to = ((int64_t)item.batch * args.seq + row) * args.grad_stride + item.kv_head * args.head_dim;
        rows_store(dv, 1.0f, args.dv + to, args.grad_stride, args.seq - row, args.head_dim);
        if constexpr (ROPE) {
            // A copy: rotating the accumulators themselves makes ptxas run out of registers and serialize the products.
            float turned[32];
#pragma unroll
            for (int i = 0; i < 32; i++)
                asm volatile("mov.b32 %0, %1;" : "=f"(turned[i]) : "f"(dk[i]));
            rows_rotate(turned, angles);
            rows_store(turned, args.scale, args.dk + to, args.grad_stride, args.seq - row, args.head_dim);
        } else {
            rows_store(dk, args.scale, args.dk + to, args.grad_stride, args.seq - row, args.head_dim);
        }
    }
}

#endif

template <int D, bool ROPE>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ BackwardMaps maps, const __grid_constant__ BackwardArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using C = Config<D>;
    extern __shared__ __align__(1024) uint8_t shared[]; // nothing static: the swizzle needs the tiles at 1024
    const uint32_t base = shared_address(shared);
    const int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) { // 8 warps compute
            mbarrier_init(base + C::KV_FULL + i * 8, 1), mbarrier_init(base + C::KV_EMPTY + i * 8, 9);
            mbarrier_init(base + C::Q_FULL + i * 8, 1), mbarrier_init(base + C::Q_EMPTY + i * 8, 8);
            mbarrier_init(base + C::DO_FULL + i * 8, 1), mbarrier_init(base + C::DO_EMPTY + i * 8, 8);
        }
        mbarrier_init(base + C::DQ_READY, 1), mbarrier_init(base + C::DQ_DONE, 8);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (warpgroup == 0) {
        registers_shrink<C::REGISTERS_MOVE>();
        if (threadIdx.x == 0) backward_load<D>(args, maps, shared, base);
        if (threadIdx.x == 32) backward_sum<D>(args, shared, base);
    } else {
        registers_grow<C::REGISTERS_COMPUTE>();
        backward_compute<D, ROPE>(args, shared, base, warpgroup - 1);
    }
#endif
}

// Sums of dO * O, the log-sum-exps for powers of two (infinite beyond the end, so that P becomes 0), and the counters.
// A block for QUERIES rows of one head.
template <int D>
static __global__ void __launch_bounds__(256) prepare_kernel(const __grid_constant__ BackwardArgs args) {
    constexpr int QUERIES = Config<D>::QUERIES, LANES = D / 8, ROWS = 256 / LANES;
    const int head = blockIdx.x % args.heads, block = blockIdx.x / args.heads % args.query_blocks;
    const int batch = blockIdx.x / args.heads / args.query_blocks;
    const int line = (batch * args.heads + head) * args.query_blocks + block;
    const int row0 = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
    if (threadIdx.x == 0) {
        args.turns[line] = 0;
        if (blockIdx.x == 0) *args.next_item = 0;
    }
    uint4 x[QUERIES / ROWS], y[QUERIES / ROWS];
#pragma unroll
    for (int i = 0; i < QUERIES / ROWS; i++) {
        const int token = block * QUERIES + i * ROWS + row0;
        const bool inside = token < args.seq && column < args.head_dim;
        const int64_t at = ((int64_t)batch * args.seq + token) * args.o_stride + head * args.head_dim + column;
        x[i] = inside ? *(const uint4 *)(args.o + at) : make_uint4(0, 0, 0, 0);
        y[i] = inside ? *(const uint4 *)(args.dout + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < QUERIES / ROWS; i++) {
        const int row = i * ROWS + row0, token = block * QUERIES + row;
        const __nv_bfloat162 *xs = (const __nv_bfloat162 *)&x[i], *ys = (const __nv_bfloat162 *)&y[i];
        float total = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 a = __bfloat1622float2(xs[e]), b = __bfloat1622float2(ys[e]);
            total = fmaf(a.x, b.x, fmaf(a.y, b.y, total));
        }
#pragma unroll
        for (int e = LANES / 2; e > 0; e /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, e);
        if (column == 0) {
            const int64_t in = ((int64_t)batch * args.heads + head) * args.seq + token;
            args.dots[(int64_t)line * QUERIES + row] = total;
            args.lse2[(int64_t)line * QUERIES + row] = token < args.seq ? args.lse[in] * LOG2E : CUDART_INF_F;
        }
    }
}

// ---- host -----------------------------------------------------------------------------------------------------------

template <int D, bool ROPE>
static bool backward_launch(CudaState *state, const BackwardArgs *args, const void *q, const void *k, const void *v,
                            const AttentionShape *shape) {
    using C = Config<D>;
    BackwardMaps maps;
    if (!map_make(&maps.q, q, shape, shape->heads, shape->q_stride, C::QUERIES) ||
        !map_make(&maps.k, k, shape, shape->kv_heads, shape->k_stride, KEYS) ||
        !map_make(&maps.v, v, shape, shape->kv_heads, shape->v_stride, KEYS) ||
        !map_make(&maps.dout, args->dout, shape, shape->heads, shape->o_stride, C::QUERIES))
        return false;
    prepare_kernel<D><<<args->batch * args->heads * args->query_blocks, 256, 0, state->stream>>>(*args);
    LAUNCH_CHECK(state);
    CUDA_CHECK(state,
               cudaFuncSetAttribute(backward_kernel<D, ROPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::BYTES));
    const int items = args->batch * args->kv_heads * args->key_blocks;
    const int blocks = items < state->sm_count ? items : state->sm_count;
    backward_kernel<D, ROPE><<<blocks, THREADS, C::BYTES, state->stream>>>(maps, *args);
    LAUNCH_CHECK(state);
    return true;
}

// KV heads in a section, as measured: the longer the items, the fewer, for more of the L2 cache each; with short ones
// more of them, so that items of one head seldom run at the same time.
static int section_choose(const CudaState *state, int key_blocks) {
    return state->sm_count / (key_blocks <= 8 ? 2 : 4);
}

extern "C" bool attention_sm90_supported(const CudaState *state, int64_t dqkv_stride, const AttentionShape *shape) {
    if (shape->doc_start || shape->head_dim > 128 || shape->head_dim % 8 || shape->q_stride % 8 ||
        shape->k_stride % 8 || shape->v_stride % 8 || shape->o_stride % 8 || dqkv_stride % 8)
        return false;
    return kernel_is_there(state->arch, backward_kernel<64, false>);
}

extern "C" bool attention_sm90_rotates(const AttentionShape *shape, const QkRopeShape *rope) {
    return shape->head_dim == 64 && rope->seq == shape->seq &&
           ((uintptr_t)rope->cos | (uintptr_t)rope->sin) % sizeof(float2) == 0;
}

extern "C" bool attention_sm90_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride,
                                        const void *dout, const void *out, const float *lse, const void *q,
                                        const void *k, const void *v, const AttentionShape *shape,
                                        const QkRopeShape *rope) {
    if (!attention_sm90_supported(state, dqkv_stride, shape)) return false;
    const int queries = sm90_backward_queries(shape->head_dim), query_blocks = (shape->seq + queries - 1) / queries;
    const int64_t lines = (int64_t)shape->batch * shape->heads * query_blocks;
    float *scratch =
        (float *)cuda_scratch(state, attention_sm90_backward_workspace(shape->batch, shape->seq, shape->heads,
                                                                       shape->kv_heads, shape->head_dim));
    if (!scratch) return true; // the failure is recorded
    BackwardArgs args = {};
    args.dq_sum = scratch, args.lse2 = scratch + lines * DQ_FLOATS, args.dots = args.lse2 + lines * queries;
    args.turns = (int32_t *)(args.dots + lines * queries), args.next_item = args.turns + lines;
    args.o = (const Half *)out, args.dout = (const Half *)dout, args.lse = lse;
    args.dq = (Half *)dq, args.dk = (Half *)dk, args.dv = (Half *)dv, args.grad_stride = dqkv_stride;
    args.batch = shape->batch, args.seq = shape->seq, args.heads = shape->heads, args.kv_heads = shape->kv_heads;
    args.head_dim = shape->head_dim, args.o_stride = shape->o_stride, args.scale = shape->scale;
    args.key_blocks = (shape->seq + KEYS - 1) / KEYS, args.query_blocks = query_blocks;
    if (rope) {
        const int64_t first = (int64_t)rope->first_position * (rope->head_dim / 2);
        args.cos = rope->cos + first, args.sin = rope->sin + first;
    }
    args.section = section_choose(state, args.key_blocks);
    if (rope) return backward_launch<64, true>(state, &args, q, k, v, shape);
    return shape->head_dim <= 64 ? backward_launch<64, false>(state, &args, q, k, v, shape)
                                 : backward_launch<128, false>(state, &args, q, k, v, shape);
}
