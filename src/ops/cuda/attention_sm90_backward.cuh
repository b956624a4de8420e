// What the threads of the backward pass in attention_sm90_backward.cu agree on: the order of the work, the places in
// shared memory, and the threads that move data.
//
// A block is persistent and takes work items from a counter. An item is 128 keys of one KV head: K and V stay in shared
// memory, dK and dV in the registers of two warpgroups of 64 keys each, over all query heads of the group and all
// blocks of queries at or below the diagonal, or all where queries see all keys (so dK and dV need no reduction). A
// third warpgroup gives its registers to them; its first warp feeds Q and dO through the bulk copy engine, its second
// and third move dQ of one warpgroup each.
//
// dQ of a block of queries is the sum over the items with keys at or before it. They take turns (a counter per block of
// queries and warpgroup), by rising key block: the first stores its part, the next ones have the copy engine add theirs
// to memory, and the last has the sum so far brought to shared memory and writes dQ itself. So nothing is cleared
// before or converted after, and the order of the additions is always the same. An item waits only for items handed out
// before it, so a waiting block never blocks the one that it waits for, however few blocks are resident.
//
// Items go by rising key block and take their queries from the end, all heads of the group before the next block of
// queries: the longest items are the first, and items that run side by side touch the sums at the same pace. (Head by
// head an item, being shorter than its predecessor, would catch up with it at every head and wait.) They are grouped in
// sections of a few KV heads, so that Q, dO and the sums of dQ stay in the L2 cache while the key blocks of the section
// pass over them.
#pragma once

#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

enum {
    KEYS = SM90_BACKWARD_KEYS,
    DQ_BYTES = SM90_BACKWARD_DQ_BYTES,
    DQ_FLOATS = DQ_BYTES / 4,
    THREADS = 384,
    STEP_SLOTS = 4
};

struct BackwardArgs {
    const Bf16 *o, *dout;
    const float *lse;
    Bf16 *dq, *dk, *dv;
    float *dq_sum;      // [batch, heads, query blocks, DQ_FLOATS] in the order of the accumulators
    float *lse2, *dots; // [batch, heads, query blocks * queries]: lse * log2 e, sum of dO * O; see prepare_kernel
    int32_t *turns;     // [batch, heads, query blocks, 2]
    int32_t *next_item;
    int batch, seq, heads, kv_heads, head_dim, key_blocks, query_blocks;
    int64_t o_stride, grad_stride;
    float scale;
    const float *cos, *sin; // [seq, head_dim / 2], read where there is a rotation
    bool full;              // queries see all keys
    int section;            // KV heads (of all sequences) whose items are handed out together
};

struct BackwardMaps {
    CUtensorMap q, k, v, dout;
    CUtensorMap lse2, dots; // a line each
};

// One block of queries of one head against the keys of an item, as the loading thread tells the others.
enum { STEP_FIRST = 1, STEP_LAST = 2, STEP_ENDS = 4, STEP_STOP = 8, STEP_SLOT = 16, STEP_DIAGONAL = 32 };
struct Step {
    int flags; // first or last step of the item, sum of dQ ends here, there are no more, the second place of K and V,
               // some keys come after some queries
    int ahead; // position of the first query minus that of the first key; KEYS where queries see all keys
    int query, head, line;
    int batch, kv_head, key_block;
};

// What the parts of the kernel must agree on: sizes and places in shared memory for heads of up to D columns.
template <int D> struct Config {
    static constexpr int QUERIES = D == 64 ? 128 : 64, PANELS = D / 64;
    // The next item's K arrives while this one's is in use: its first scores precede the last dQ of this one. So does
    // its V where there is room.
    static constexpr int K_SLOTS = 2, V_SLOTS = D == 64 ? 2 : 1;
    static constexpr int KV_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2, DS_BYTES = KEYS * QUERIES * 2;
    static constexpr int KV_PANEL = KEYS * 128, Q_PANEL = QUERIES * 128; // bytes of 64 columns
    static constexpr int K = 0, V = K + K_SLOTS * KV_BYTES, Q = V + V_SLOTS * KV_BYTES, DO = Q + 2 * Q_BYTES,
                         DS = DO + 2 * Q_BYTES, DQ = DS + 2 * DS_BYTES, LSE = DQ + DQ_BYTES,
                         DOTS = LSE + 2 * QUERIES * 4, STEPS = DOTS + 2 * QUERIES * 4,
                         BARRIERS = STEPS + STEP_SLOTS * (int)sizeof(Step);
    static constexpr bool HAS_TOKEN = D == 64; // which the warpgroups pass, for the tensor cores; slower for long heads
    // Of the 504 for a thread of each warpgroup that the block starts with.
    static constexpr int REGISTERS_MOVE = 24, REGISTERS_COMPUTE = 240;
    // barriers, 8 bytes each
    static constexpr int Q_FULL = BARRIERS, Q_EMPTY = Q_FULL + 16, DO_FULL = Q_EMPTY + 16, DO_EMPTY = DO_FULL + 16,
                         K_EMPTY = DO_EMPTY + 16, V_EMPTY = K_EMPTY + 16, DS_FULL = V_EMPTY + 16,
                         DQ_READY = DS_FULL + 16, DQ_DONE = DQ_READY + 16, STEP_FULL = DQ_DONE + 16,
                         STEP_EMPTY = STEP_FULL + STEP_SLOTS * 8, BYTES = STEP_EMPTY + STEP_SLOTS * 8;
    static_assert(BYTES <= 232448, "shared memory of a block");
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

static __device__ __forceinline__ Item item_decode(const BackwardArgs &args, int number) {
    if (number >= args.batch * args.kv_heads * args.key_blocks) return {0, 0, -1};
    const int whole = args.section * args.key_blocks, section = number / whole, rest = number - section * whole;
    const int pairs = min(args.section, args.batch * args.kv_heads - section * args.section);
    const int key_block = rest / pairs, pair = section * args.section + rest - key_block * pairs;
    const int batch = pair / args.kv_heads;
    return {batch, pair - batch * args.kv_heads, key_block};
}

template <int D> static __device__ __forceinline__ Walk walk_begin(const BackwardArgs &args, const Item &item) {
    const int group = args.heads / args.kv_heads;
    Walk walk;
    walk.block = args.query_blocks - 1, walk.head = item.kv_head * group;
    walk.line = (item.batch * args.heads + walk.head) * args.query_blocks + walk.block;
    walk.left = group * (args.query_blocks - (args.full ? 0 : item.key_block * (KEYS / Config<D>::QUERIES)));
    return walk;
}

static __device__ __forceinline__ void walk_step(const BackwardArgs &args, const Item &item, Walk &walk) {
    const int group = args.heads / args.kv_heads;
    walk.left--, walk.head++, walk.line += args.query_blocks;
    if (walk.head == (item.kv_head + 1) * group)
        walk.block--, walk.head -= group, walk.line -= group * args.query_blocks + 1;
}

// ---- the warps that move data ---------------------------------------------------------------------------------------

template <int D>
static __device__ __forceinline__ void load_rows(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int head,
                                                 int token, int batch, int panel_bytes) {
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
        tensor_load_head(shared + panel * panel_bytes, map, barrier, panel * 64, head, token, batch);
}

// A step's words have a place of STEP_SLOTS. The threads that sum dQ say when they have read them. The warps that
// compute need not: they have read them when they leave the Q of the step after (which still stores the dQ of this
// one), and whoever comes to tell of a step has waited for the Q of two steps before it.
static_assert(STEP_SLOTS >= 3, "words stay until the step after is left");
template <int D>
static __device__ __forceinline__ void step_tell(uint8_t *shared, uint32_t base, int n, const Step &step) {
    using C = Config<D>;
    int4 *to = (int4 *)(shared + C::STEPS + n % STEP_SLOTS * sizeof(Step));
    mbarrier_wait(base + C::STEP_EMPTY + n % STEP_SLOTS * 8, (n / STEP_SLOTS + 1) & 1);
    to[0] = make_int4(step.flags, step.ahead, step.query, step.head);
    to[1] = make_int4(step.line, step.batch, step.kv_head, step.key_block);
    mbarrier_arrive(base + C::STEP_FULL + n % STEP_SLOTS * 8);
}

template <int D> static __device__ __forceinline__ Step step_read(const uint8_t *shared, uint32_t base, int n) {
    using C = Config<D>;
    mbarrier_wait(base + C::STEP_FULL + n % STEP_SLOTS * 8, n / STEP_SLOTS & 1);
    const int4 *from = (const int4 *)(shared + C::STEPS + n % STEP_SLOTS * sizeof(Step));
    const int4 x = from[0], y = from[1];
    mbarrier_arrive(base + C::STEP_EMPTY + n % STEP_SLOTS * 8);
    return Step{x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
}

// One thread: takes items and loads what they need, as far ahead as the buffers allow. K and V count on the barriers of
// the first Q and dO that meet them.
template <int D>
static __device__ __forceinline__ void backward_load(const BackwardArgs &args, const BackwardMaps &maps,
                                                     uint8_t *shared, uint32_t base) {
    using C = Config<D>;
    int number = atomicAdd(args.next_item, 1), n = 0;
    for (int n_item = 0;; n_item++) {
        const Item item = item_decode(args, number);
        if (item.key_block < 0) break;
        number = atomicAdd(args.next_item, 1);
        const int k_slot = n_item % C::K_SLOTS, v_slot = n_item % C::V_SLOTS, key = item.key_block * KEYS;
        bool first = true;
        for (Walk walk = walk_begin<D>(args, item); walk.left > 0; walk_step(args, item, walk), n++, first = false) {
            const int stage = n & 1, parity = (n / 2 + 1) & 1, query = walk.block * C::QUERIES;
            const uint32_t q_full = base + C::Q_FULL + stage * 8, do_full = base + C::DO_FULL + stage * 8;
            mbarrier_wait(base + C::Q_EMPTY + stage * 8, parity);
            const int ahead = args.full ? KEYS : query - key;
            const bool ends = args.full ? item.key_block == args.key_blocks - 1 : ahead < KEYS;
            const int flags = (first ? STEP_FIRST : 0) | (walk.left == 1 ? STEP_LAST : 0) | (ends ? STEP_ENDS : 0) |
                              (n_item & 1 ? STEP_SLOT : 0) | (ahead < KEYS ? STEP_DIAGONAL : 0);
            step_tell<D>(shared, base, n,
                         Step{flags, ahead, query, walk.head, walk.line, item.batch, item.kv_head, item.key_block});
            mbarrier_expect(q_full, C::Q_BYTES + C::QUERIES * 4 + (first ? C::KV_BYTES : 0));
            load_rows<D>(base + C::Q + stage * C::Q_BYTES, &maps.q, q_full, walk.head, query, item.batch, C::Q_PANEL);
            tensor_load(base + C::LSE + stage * C::QUERIES * 4, &maps.lse2, q_full, 0, walk.line, 0);
            if (first) {
                mbarrier_wait(base + C::K_EMPTY + k_slot * 8, (n_item / C::K_SLOTS + 1) & 1);
                load_rows<D>(base + C::K + k_slot * C::KV_BYTES, &maps.k, q_full, item.kv_head, key, item.batch,
                             C::KV_PANEL);
            }
            mbarrier_wait(base + C::DO_EMPTY + stage * 8, parity);
            mbarrier_expect(do_full, C::Q_BYTES + C::QUERIES * 4 + (first ? C::KV_BYTES : 0));
            load_rows<D>(base + C::DO + stage * C::Q_BYTES, &maps.dout, do_full, walk.head, query, item.batch,
                         C::Q_PANEL);
            tensor_load(base + C::DOTS + stage * C::QUERIES * 4, &maps.dots, do_full, 0, walk.line, 0);
            if (first) {
                mbarrier_wait(base + C::V_EMPTY + v_slot * 8, (n_item / C::V_SLOTS + 1) & 1);
                load_rows<D>(base + C::V + v_slot * C::KV_BYTES, &maps.v, do_full, item.kv_head, key, item.batch,
                             C::KV_PANEL);
            }
        }
    }
    mbarrier_wait(base + C::Q_EMPTY + (n & 1) * 8, (n / 2 + 1) & 1);
    step_tell<D>(shared, base, n, Step{STEP_STOP});
    mbarrier_arrive(base + C::Q_FULL + (n & 1) * 8);
}

static __device__ __forceinline__ void turn_finish(int32_t *&turn) {
    if (!turn) return;
    bulk_wait_complete();
    fence_async_all();
    turn_pass(turn); // releases what the copy engine wrote
    turn = NULL;
}

// A thread for each warpgroup: adds its parts of dQ to the sums in memory, each in its turn, and fetches the sums that
// end here.
template <int D>
static __device__ __forceinline__ void backward_sum(const BackwardArgs &args, uint8_t *shared, uint32_t base,
                                                    int half) {
    using C = Config<D>;
    const uint32_t ready = base + C::DQ_READY + half * 8, done = base + C::DQ_DONE + half * 8,
                   buffer = base + C::DQ + half * (DQ_BYTES / 2);
    int32_t *pending = NULL; // turn to pass when its addition is complete
    for (int n = 0;; n++) {
        const Step step = step_read<D>(shared, base, n);
        if (step.flags & STEP_STOP) break;
        float *sum = args.dq_sum + (int64_t)step.line * DQ_FLOATS + half * (DQ_FLOATS / 2);
        int32_t *turn = args.turns + (int64_t)step.line * 2 + half;
        const bool first = step.key_block == 0;
        if (step.flags & STEP_ENDS) {
            turn_finish(pending);
            if (first) {
                mbarrier_arrive(ready);
            } else {
                turn_wait(turn, step.key_block);
                fence_async_all();
                mbarrier_expect(ready, DQ_BYTES / 2);
                bulk_load(buffer, sum, DQ_BYTES / 2, ready);
            }
            mbarrier_wait(done, n & 1);
        } else {
            mbarrier_arrive(ready);
            turn_finish(pending);
            // Asked for while the part is being computed.
            if (!first) turn_wait(turn, step.key_block);
            mbarrier_wait(done, n & 1);
            if (first) {
                bulk_store(sum, buffer, DQ_BYTES / 2);
            } else {
                fence_async_all();
                bulk_add(sum, buffer, DQ_BYTES / 2);
            }
            tensor_store_commit();
            tensor_store_wait_read<0>();
            pending = turn;
        }
    }
    turn_finish(pending);
}

#endif
