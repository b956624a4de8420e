// The forward pass of attention on Hopper, for heads of up to 64 columns. There the exponentials of a block of scores
// take as long as its two products, so the point is to do both at once.
//
// A block of threads is persistent. Its warpgroups each own a tile: 64 queries of one head, whose sums stay in
// registers. An item is as many tiles of one KV head as there are warpgroups, heads of the group first, so that they
// share the keys and values that one more warp brings in through the bulk copy engine. A warpgroup walks from the
// diagonal down. The scores of the next block of keys are started before the product of this one's probabilities with
// the values, which then runs under the next exponentials.
//
// Items are dealt out like cards, the longest first, there and back again, so that all blocks of threads get the same
// work without a counter in memory; and in sections of a few KV heads, whose keys and values stay in the L2 cache.
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

#include <cuda_bf16.h>
#include <math_constants.h>

#define LOG2E 1.4426950408889634f

enum { TILE = 64, TILE_BYTES = TILE * 128 }; // rows of a tile of queries, or of one copy of keys or values

struct ForwardArgs {
    float *lse; // [batch, heads, seq]
    int batch, seq, heads, kv_heads;
    int tiles;   // of a KV head: query blocks times heads of the group
    int items;   // of a KV head
    int section; // KV heads (of all sequences) whose items are dealt out together
    float scale;
};

struct ForwardMaps {
    CUtensorMap q, k, v, out;
};

template <int GROUPS_, int KEYS_, bool TURNS_, bool KEEP_Q_, bool LATE_, int EMULATE_, bool ROTATE_, bool CHAIN_>
struct Config {
    static constexpr int GROUPS = GROUPS_, KEYS = KEYS_; // warpgroups that compute; keys at a time
    static constexpr bool TURNS = TURNS_;                // they start their products in turns
    static constexpr bool KEEP_Q = KEEP_Q_;              // queries in registers
    static constexpr bool LATE = LATE_, ROTATE = ROTATE_, CHAIN = CHAIN_;
    static constexpr int EMULATE = EMULATE_;
    static constexpr int THREADS = 128 + GROUPS * 128, STAGES = 512 / KEYS, KV_BYTES = KEYS * 128;
    static constexpr int REGISTERS_MOVE = GROUPS == 3 ? 32 : 24, REGISTERS_COMPUTE = GROUPS == 2   ? 240
                                                                                     : GROUPS == 3 ? 160
                                                                                                   : 112;
    // places in shared memory; queries have two slots for each warpgroup, and the results leave through them
    static constexpr int K = 0, V = K + STAGES * KV_BYTES, Q = V + STAGES * KV_BYTES,
                         BARRIERS = Q + GROUPS * 2 * TILE_BYTES;
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + STAGES * 8, V_FULL = K_EMPTY + STAGES * 8,
                         V_EMPTY = V_FULL + STAGES * 8, Q_FULL = V_EMPTY + STAGES * 8, Q_EMPTY = Q_FULL + GROUPS * 16,
                         WORK = Q_EMPTY + GROUPS * 16, BYTES = WORK + GROUPS * 2 * 16;
    static_assert(BYTES <= 232448, "shared memory of a block");
};

struct Work { // of a warpgroup
    int batch, head;
    int row; // block of queries; negative: no tile for this warpgroup
    int top; // last block of keys of the item; negative: there are no more
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Which 16 rows of its tile a warp has: those with the most to do on the diagonal are not all on one scheduler.
template <typename C> static __device__ __forceinline__ int rows_place(int warp, int group) {
    return C::ROTATE ? (warp + group) & 3 : warp;
}

// ---- the warp that moves data -------------------------------------------------------------------------------------

// One thread: deals itself items and loads what they need, as far ahead as the buffers allow.
template <typename C>
static __device__ __forceinline__ void forward_load(const ForwardArgs &args, const ForwardMaps &maps, uint8_t *shared,
                                                    uint32_t base) {
    const int pairs = args.batch * args.kv_heads, group = args.heads / args.kv_heads, last = args.tiles / group - 1;
    const int round = gridDim.x, place = blockIdx.x;
    int n = 0;
    for (int turn = 0;; turn++) {
        const int slot = turn & 1, number = turn * round + (turn & 1 ? round - 1 - place : place);
        const bool more = number < pairs * args.items;
        const int whole = args.section * args.items, section = number / whole, rest = number - section * whole;
        const int here = min(args.section, pairs - section * args.section), index = more ? rest / here : 0;
        const int pair = section * args.section + rest - index * here, batch = pair / args.kv_heads;
        const int kv_head = pair - batch * args.kv_heads, first = index * C::GROUPS;
        const int row = last - first / group, top = more ? row * TILE / C::KEYS : -1;
        for (int i = 0; i < C::GROUPS; i++) {
            const uint32_t full = base + C::Q_FULL + (i * 2 + slot) * 8;
            mbarrier_wait(base + C::Q_EMPTY + (i * 2 + slot) * 8, (turn / 2 + 1) & 1);
            const int tile = first + i;
            const bool there = more && tile < args.tiles;
            const int4 work = make_int4(batch, kv_head * group + tile % group, there ? last - tile / group : -1, top);
            *(int4 *)(shared + C::WORK + (i * 2 + slot) * 16) = work;
            if (there) {
                mbarrier_expect(full, TILE_BYTES);
                for (int w = 0; w < 4; w++)
                    tensor_load_head(base + C::Q + (i * 2 + slot) * TILE_BYTES + w * 2048, &maps.q, full, 0, work.y,
                                     work.z * TILE + rows_place<C>(w, i) * 16, batch);
            } else {
                mbarrier_arrive(full);
            }
        }
        if (!more) return;
        for (int block = top; block >= 0; block--, n++) {
            const int stage = n % C::STAGES, parity = (n / C::STAGES + 1) & 1;
            const int parts = min(C::KEYS / TILE, row + 1 - block * (C::KEYS / TILE));
            const uint32_t k_full = base + C::K_FULL + stage * 8, v_full = base + C::V_FULL + stage * 8;
            mbarrier_wait(base + C::K_EMPTY + stage * 8, parity);
            mbarrier_expect(k_full, parts * TILE_BYTES);
            for (int i = 0; i < parts; i++)
                tensor_load_head(base + C::K + stage * C::KV_BYTES + i * TILE_BYTES, &maps.k, k_full, 0, kv_head,
                                 block * C::KEYS + i * TILE, batch);
            mbarrier_wait(base + C::V_EMPTY + stage * 8, parity);
            mbarrier_expect(v_full, parts * TILE_BYTES);
            for (int i = 0; i < parts; i++)
                tensor_load_head(base + C::V + stage * C::KV_BYTES + i * TILE_BYTES, &maps.v, v_full, 0, kv_head,
                                 block * C::KEYS + i * TILE, batch);
        }
    }
}

// ---- the warpgroups that compute ----------------------------------------------------------------------------------

// Queries as left operands, where they are kept in registers.
static __device__ __forceinline__ void queries_load(uint32_t (&q)[4][4], uint32_t tile) {
    const int lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + (lane & 15);
#pragma unroll
    for (int step = 0; step < 4; step++)
        shared_load_matrices(q[step], tile + row * 128 + (((step * 2 + (lane >> 4)) ^ (row & 7)) << 4));
}

// s [64, 2 COUNT] = queries . keys
template <bool KEEP_Q, int COUNT>
static __device__ __forceinline__ void scores_start(float (&s)[COUNT], const uint32_t (&q)[4][4], uint32_t queries,
                                                    uint32_t keys) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        if constexpr (KEEP_Q)
            product_registers<0>(s, q[step], wgmma_operand(keys + step * 32, 16), step > 0);
        else
            product_shared<0, 0>(s, wgmma_operand(queries + step * 32, 16), wgmma_operand(keys + step * 32, 16),
                                 step > 0);
    wgmma_commit();
}

// o [64, 64] += p . values
template <int STEPS, int MOST>
static __device__ __forceinline__ void values_start(float (&o)[32], const uint32_t (&p)[MOST][4], uint32_t values,
                                                    int keep) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        product_registers(o, p[step], wgmma_operand(values + step * 2048, 16), step > 0 ? 1 : keep);
    wgmma_commit();
}

struct Rows { // of a thread: two, 8 apart; sums are of its own columns only
    float maximum[2], sum[2];
};

// The last 64 keys are those of the queries themselves: those after the query do not count.
template <int COUNT> static __device__ __forceinline__ void scores_mask(float (&s)[COUNT], int place) {
    const int lane = threadIdx.x & 31, ahead = place * 16 + lane / 4 - (lane & 3) * 2;
#pragma unroll
    for (int i = COUNT - 32; i < COUNT; i++)
        if ((i - COUNT + 32) / 4 * 8 + (i & 1) > ahead + (i & 2) * 4) s[i] = -CUDART_INF_F;
}

// The highest score of each row so far. Whether that has grown for any row of the warp; then what was summed before is
// to be multiplied by factor.
template <bool FIRST, int COUNT>
static __device__ __forceinline__ bool scores_maximum(const float (&s)[COUNT], Rows &rows, float (&factor)[2],
                                                      float scale2) {
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float a = fmaxf(s[half * 2], s[half * 2 + 1]), b = fmaxf(s[half * 2 + 4], s[half * 2 + 5]);
#pragma unroll
        for (int i = half * 2 + 8; i < COUNT; i += 8)
            a = fmaxf(a, fmaxf(s[i], s[i + 1])), b = fmaxf(b, fmaxf(s[i + 4], s[i + 5]));
        a = fmaxf(a, b);
        if (!FIRST) a = fmaxf(a, rows.maximum[half]);
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
        if (!FIRST) {
            grown |= a != rows.maximum[half];
            factor[half] = exp2_fast((rows.maximum[half] - a) * scale2);
        }
        rows.maximum[half] = a;
    }
    return !FIRST && __any_sync(0xffffffffu, grown);
}

// 2^x for x <= 0 on the units that multiply and add: a polynomial for the fraction, within 8e-5.
static __device__ __forceinline__ float exp2_polynomial(float x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    x = fmaxf(x, -126.0f);
    const float rounded = x + magic, f = x - (rounded - magic);
    const float y = fmaf(fmaf(fmaf(0.05517166909f, f, 0.24261112222f), f, 0.69326098545f), f, 0.99992807353f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(rounded) << 23));
}

template <int EMULATE> static __device__ __forceinline__ float exponential(float x, int i) {
    return EMULATE && i % (EMULATE ? EMULATE : 1) == 1 ? exp2_polynomial(x) : exp2_fast(x);
}

// Scores become probabilities, relative to the highest one, and left operands; their sums count. Of the last 64 keys
// only those of the first `parts` 16.
template <int EMULATE, int MOST, int COUNT>
static __device__ __forceinline__ void scores_exponentiate(uint32_t (&p)[MOST][4], const float (&s)[COUNT], Rows &rows,
                                                           float scale2, int parts) {
    const float shift[2] = {rows.maximum[0] * scale2, rows.maximum[1] * scale2};
#pragma unroll
    for (int step = 0; step < COUNT / 8; step++) {
        if (step >= COUNT / 8 - 4 && step - COUNT / 8 + 4 >= parts) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[step][i] = 0;
            continue;
        }
#pragma unroll
        for (int i = step * 4; i < step * 4 + 4; i++) {
            const float x = exponential<EMULATE>(fmaf(s[i * 2], scale2, -shift[i & 1]), i * 2);
            const float y = exponential<EMULATE>(fmaf(s[i * 2 + 1], scale2, -shift[i & 1]), i * 2 + 1);
            rows.sum[i & 1] += x + y;
            p[i / 4][i % 4] = pack_bf16(x, y);
        }
    }
}

// The warp's 16 rows, divided by their sums, through the slot of their queries to memory; and the log-sum-exps.
static __device__ __forceinline__ void rows_finish(const ForwardArgs &args, const ForwardMaps &maps, const Work &work,
                                                   const float (&o)[32], Rows &rows, uint32_t slot, int place) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, first = work.row * TILE + place * 16;
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
    const int row = lane & 15;
    const uint32_t out = slot + warp * 2048;
#pragma unroll
    for (int i = 0; i < 4; i++)
        shared_store_matrices(out + row * 128 + (((i * 2 + (lane >> 4)) ^ (row & 7)) << 4),
                              pack_bf16(o[i * 8] * factor[0], o[i * 8 + 1] * factor[0]),
                              pack_bf16(o[i * 8 + 2] * factor[1], o[i * 8 + 3] * factor[1]),
                              pack_bf16(o[i * 8 + 4] * factor[0], o[i * 8 + 5] * factor[0]),
                              pack_bf16(o[i * 8 + 6] * factor[1], o[i * 8 + 7] * factor[1]));
    shared_fence_async();
    __syncwarp();
    if (lane == 0) {
        if (first < args.seq) tensor_store_head(&maps.out, out, 0, work.head, first, work.batch);
        bulk_commit();
    }
}

template <int N> struct Count { // a number that the compiler knows
    static constexpr int value = N;
};

template <typename C> static __device__ __forceinline__ void turn_take(int group) {
    if (C::TURNS) named_barrier(1 + group, 256);
}

template <typename C> static __device__ __forceinline__ void turn_give(int group) {
    if (C::TURNS) named_barrier_arrive(1 + (group + 1) % C::GROUPS, 256);
}

template <typename C>
static __device__ __forceinline__ void forward_compute(const ForwardArgs &args, const ForwardMaps &maps,
                                                       uint8_t *shared, uint32_t base, int group) {
    const float scale2 = args.scale * LOG2E;
    const bool leader = (threadIdx.x & 31) == 0;
    int n = 0, storing = -1; // blocks of keys so far; slot that the results are still leaving through
    auto store_finish = [&]() {
        if (storing < 0) return;
        if (leader) {
            bulk_wait_read();
            mbarrier_arrive(base + C::Q_EMPTY + (group * 2 + storing) * 8);
        }
        __syncwarp();
        storing = -1;
    };
    auto keys_wait = [&](int n) { mbarrier_wait(base + C::K_FULL + n % C::STAGES * 8, n / C::STAGES & 1); };
    auto values_wait = [&](int n) { mbarrier_wait(base + C::V_FULL + n % C::STAGES * 8, n / C::STAGES & 1); };
    auto keys_release = [&](int n) {
        if (leader) mbarrier_arrive(base + C::K_EMPTY + n % C::STAGES * 8);
    };
    auto values_release = [&](int n) {
        if (leader) mbarrier_arrive(base + C::V_EMPTY + n % C::STAGES * 8);
    };
    if (group == C::GROUPS - 1) turn_give<C>(group); // the first one's first turn
    const int place = rows_place<C>(threadIdx.x / 32 & 3, group);
    float ahead[32];
    uint32_t q[4][4];
    bool started = false; // the scores of the top block are under way
    Work work, next;
    auto work_wait = [&](int turn) {
        mbarrier_wait(base + C::Q_FULL + (group * 2 + (turn & 1)) * 8, turn / 2 & 1);
        const int4 x = *(const int4 *)(shared + C::WORK + (group * 2 + (turn & 1)) * 16);
        return Work{x.x, x.y, x.z, x.w};
    };
    auto is_wide = [&](const Work &work) { return C::KEYS == TILE || (work.row & 1); };
    for (int turn = 0;; turn++) {
        const int slot = turn & 1;
        const uint32_t queries = base + C::Q + (group * 2 + slot) * TILE_BYTES;
        if (C::CHAIN && started)
            work = next;
        else
            work = work_wait(turn);
        if (work.top < 0) break;
        const int own = work.row < 0 ? -1 : work.row * TILE / C::KEYS;
        if (!started) {
            for (int block = work.top; block > own; block--, n++) { // not needed here
                keys_wait(n), keys_release(n);
                if (block > 0) turn_take<C>(group), turn_give<C>(group);
                values_wait(n), values_release(n);
            }
            if (own < 0) {
                store_finish();
                if (leader) mbarrier_arrive(base + C::Q_EMPTY + (group * 2 + slot) * 8);
                continue;
            }
            if (C::KEEP_Q) queries_load(q, queries);
            keys_wait(n);
            if (C::CHAIN) {
                scores_start<C::KEEP_Q>(ahead, q, queries, base + C::K + n % C::STAGES * C::KV_BYTES);
                store_finish();
                wgmma_wait<0>();
                wgmma_hold(ahead);
            }
        }
        store_finish();
        Rows rows;
        int block = own, keep = 0;
        float o[32];
        uint32_t p[C::KEYS / 16][4];
        auto begin = [&](auto &s) {
            float factor[2];
            if constexpr (C::CHAIN) {
#pragma unroll
                for (int i = 0; i < 32; i++)
                    s[i] = ahead[i];
            } else {
                scores_start<C::KEEP_Q>(s, q, queries, base + C::K + n % C::STAGES * C::KV_BYTES);
                store_finish();
                wgmma_wait<0>();
                wgmma_hold(s);
            }
            keys_release(n);
            scores_mask(s, place);
            scores_maximum<true>(s, rows, factor, scale2);
            rows.sum[0] = rows.sum[1] = 0;
            scores_exponentiate<0>(p, s, rows, scale2, C::ROTATE ? place + 1 : 4);
        };
        auto step = [&](auto steps) {
            float s[C::KEYS / 2], factor[2];
            keys_wait(n + 1);
            turn_take<C>(group);
            scores_start<C::KEEP_Q>(s, q, queries, base + C::K + (n + 1) % C::STAGES * C::KV_BYTES);
            values_wait(n);
            values_start<decltype(steps)::value>(o, p, base + C::V + n % C::STAGES * C::KV_BYTES, keep);
            turn_give<C>(group);
            keep = 1;
            wgmma_wait<1>();
            wgmma_hold(s);
            keys_release(n + 1);
            const bool grown = scores_maximum<false>(s, rows, factor, scale2);
            if (grown) rows.sum[0] *= factor[0], rows.sum[1] *= factor[1];
            if constexpr (C::LATE) {
                const float shift[2] = {rows.maximum[0] * scale2, rows.maximum[1] * scale2};
#pragma unroll
                for (int i = 0; i < C::KEYS / 2; i++) {
                    s[i] = exponential<C::EMULATE>(fmaf(s[i], scale2, -shift[i / 2 & 1]), i);
                    rows.sum[i / 2 & 1] += s[i];
                }
            }
            wgmma_wait<0>();
            wgmma_hold(o);
            values_release(n);
            if (grown) {
#pragma unroll
                for (int i = 0; i < 32; i++)
                    o[i] *= factor[i / 2 & 1];
            }
            if constexpr (C::LATE) {
#pragma unroll
                for (int i = 0; i < C::KEYS / 4; i++)
                    p[i / 4][i % 4] = pack_bf16(s[i * 2], s[i * 2 + 1]);
            } else {
                scores_exponentiate<C::EMULATE>(p, s, rows, scale2, 4);
            }
            n++, block--;
        };
        // Where the next tile has the same top block as its item, its first scores go ahead of the last product here.
        auto end = [&](auto steps) {
            const uint32_t next_queries = base + C::Q + (group * 2 + (slot ^ 1)) * TILE_BYTES;
            values_wait(n);
            if (C::CHAIN) {
                next = work_wait(turn + 1);
                started = next.row >= 0 && next.row * TILE / C::KEYS == next.top;
            }
            if (C::CHAIN && started) {
                if (C::KEEP_Q) queries_load(q, next_queries);
                keys_wait(n + 1);
                scores_start<C::KEEP_Q>(ahead, q, next_queries, base + C::K + (n + 1) % C::STAGES * C::KV_BYTES);
                values_start<decltype(steps)::value>(o, p, base + C::V + n % C::STAGES * C::KV_BYTES, keep);
                wgmma_wait<0>();
                wgmma_hold(ahead);
            } else {
                values_start<decltype(steps)::value>(o, p, base + C::V + n % C::STAGES * C::KV_BYTES, keep);
                wgmma_wait<0>();
            }
            wgmma_hold(o);
            values_release(n);
            n++;
        };
        constexpr Count<C::KEYS / 16> all;
        constexpr Count<TILE / 16> half;
        if (is_wide(work)) {
            float s[C::KEYS / 2];
            begin(s);
        } else { // 64 keys on the diagonal
            float s[32];
            begin(s);
            if (block > 0)
                step(half);
            else
                end(half);
        }
        if (work.row > 0 || C::KEYS == TILE) {
            while (block > 0)
                step(all);
            end(all);
        }
        rows_finish(args, maps, work, o, rows, queries, place);
        storing = slot;
    }
    if (leader) bulk_wait_read();
}

#endif

template <typename C>
static __global__ void __launch_bounds__(C::THREADS, 1)
    forward_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t shared[]; // nothing static: the swizzle needs the tiles at 1024
    const uint32_t base = shared_address(shared);
    const int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(base + C::K_FULL + i * 8, 1), mbarrier_init(base + C::K_EMPTY + i * 8, C::GROUPS * 4);
            mbarrier_init(base + C::V_FULL + i * 8, 1), mbarrier_init(base + C::V_EMPTY + i * 8, C::GROUPS * 4);
        }
        for (int i = 0; i < C::GROUPS * 2; i++)
            mbarrier_init(base + C::Q_FULL + i * 8, 1), mbarrier_init(base + C::Q_EMPTY + i * 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (warpgroup == 0) {
        registers_shrink<C::REGISTERS_MOVE>();
        if (threadIdx.x == 0) forward_load<C>(args, maps, shared, base);
    } else {
        registers_grow<C::REGISTERS_COMPUTE>();
        forward_compute<C>(args, maps, shared, base, warpgroup - 1);
    }
#endif
}

// ---- host -----------------------------------------------------------------------------------------------------------

template <typename C>
static bool forward_launch(CudaState *state, ForwardArgs args, void *out, const void *q, const void *k, const void *v,
                           const AttentionShape *shape) {
    ForwardMaps maps;
    if (!map_make(&maps.q, q, shape, shape->heads, shape->q_stride, 16) ||
        !map_make(&maps.k, k, shape, shape->kv_heads, shape->k_stride, TILE) ||
        !map_make(&maps.v, v, shape, shape->kv_heads, shape->v_stride, TILE) ||
        !map_make(&maps.out, out, shape, shape->heads, shape->o_stride, 16))
        return false;
    args.items = (args.tiles + C::GROUPS - 1) / C::GROUPS;
    CUDA_CHECK(state, cudaFuncSetAttribute(forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::BYTES));
    const int64_t items = (int64_t)args.batch * args.kv_heads * args.items;
    const int blocks = items < state->sm_count ? (int)items : state->sm_count;
    forward_kernel<C><<<blocks, C::THREADS, C::BYTES, state->stream>>>(maps, args);
    LAUNCH_CHECK(state);
    return true;
}

extern "C" bool attention_sm90_forward_supported(const CudaState *state, const AttentionShape *shape) {
    if (shape->doc_start || shape->head_dim > 64 || shape->head_dim % 8 || shape->q_stride % 8 || shape->k_stride % 8 ||
        shape->v_stride % 8 || shape->o_stride % 8)
        return false;
    return kernel_is_there(state->arch, forward_kernel<Config<3, 128, false, false, false, 0, false, false>>);
}

extern "C" bool attention_sm90_forward(CudaState *state, void *out, float *lse, const void *q, const void *k,
                                       const void *v, const AttentionShape *shape, int variant) {
    if (!attention_sm90_forward_supported(state, shape)) return false;
    ForwardArgs args = {};
    args.lse = lse;
    args.batch = shape->batch, args.seq = shape->seq, args.heads = shape->heads, args.kv_heads = shape->kv_heads;
    args.tiles = (shape->seq + TILE - 1) / TILE * (shape->heads / shape->kv_heads);
    args.section = state->sm_count / 4;
    args.scale = shape->scale;
    switch (variant) {
    case 0:
        return forward_launch<Config<3, 128, false, false, false, 0, false, false>>(state, args, out, q, k, v, shape);
    case 1:
        return forward_launch<Config<3, 128, true, false, false, 0, false, false>>(state, args, out, q, k, v, shape);
    case 2: return forward_launch<Config<3, 128, true, false, true, 0, false, false>>(state, args, out, q, k, v, shape);
    case 3:
        return forward_launch<Config<3, 128, false, false, true, 0, false, false>>(state, args, out, q, k, v, shape);
    case 4:
        return forward_launch<Config<3, 128, false, false, false, 4, false, false>>(state, args, out, q, k, v, shape);
    case 5:
        return forward_launch<Config<3, 128, false, false, false, 0, true, false>>(state, args, out, q, k, v, shape);
    case 6: return forward_launch<Config<3, 64, false, true, false, 0, false, false>>(state, args, out, q, k, v, shape);
    case 7: return forward_launch<Config<3, 64, false, true, true, 0, true, true>>(state, args, out, q, k, v, shape);
    case 8:
        return forward_launch<Config<4, 64, false, false, false, 0, false, false>>(state, args, out, q, k, v, shape);
    case 9: return forward_launch<Config<2, 128, true, true, true, 0, false, false>>(state, args, out, q, k, v, shape);
    default: return false;
    }
}
