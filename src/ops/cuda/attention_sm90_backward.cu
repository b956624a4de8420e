// The backward pass of attention on Hopper in five products instead of the seven of attention_hopper.cu: the scores are
// computed once, by the block that owns 128 keys, and dQ is summed over the blocks in memory, in a fixed order.
// attention_sm90_backward.cuh has the order of the work and the threads that move data; here are the two warpgroups
// that compute, the kernels and their launch.
//
// A warpgroup has 64 of the keys. The scores are kept transposed (keys are rows): P and dS then are left operands of
// dV += P dO and dK += dS Q straight from registers, and only dS goes through shared memory, for dQ = dS^T K.
//
// A step, one block of queries, has a part without products (powers of the scores, dS) and one that is nothing else: dQ
// of the step before (by now the other warpgroup has stored its dS), dV, dK, and scores and dP of the next step, across
// the border of items. A warp that has issued a few products waits until the tensor cores have taken them, so products
// do not overlap with its own arithmetic: the two warpgroups pass a token, and one computes powers while the other's
// products run.
//
// Where a rotary embedding is given, dQ and dK go back through it on their way from the accumulators to memory: both
// columns of a pair are in the same thread.
#include "ops/cuda/attention_sm90_backward.cuh"
#include "ops/cuda/attention_sm90_rows.cuh"

#include <math_constants.h>

// The next kernel's blocks may come to their places; this one's wait for the kernel before.
DEVICE_CODE void dependents_launch(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

DEVICE_CODE void dependency_wait(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- the two warpgroups that compute --------------------------------------------------------------------------------

// On the diagonal the second warpgroup's 64 keys lie after the first 64 of 128 queries: of its scores and of what they
// are multiplied with only the second half counts ("not whole"), and dQ of those queries needs the first keys only.

template <int COUNT> static __device__ __forceinline__ float (&half_of(float (&d)[COUNT], int half))[COUNT / 2] {
    return *(float(*)[COUNT / 2])(d + half * (COUNT / 2));
}

// The low word of an operand: only that changes further on in the tile. The compiler is kept from seeing that it has
// unused bits, as it would clear them each time.
struct Operand {
    uint32_t low;
};

static __device__ __forceinline__ Operand operand_make(uint32_t tile, uint32_t leading_bytes) {
    Operand operand;
    asm("mov.b32 %0, %1;" : "=r"(operand.low) : "r"((uint32_t)wgmma_operand(tile, leading_bytes)));
    return operand;
}

static __device__ __forceinline__ uint64_t operand_after(Operand operand, uint32_t bytes) {
    return wgmma_operand(0, 0) | (operand.low + (bytes >> 4));
}

// d [64, QUERIES] = 64 rows of a tile of keys . a tile of queries, summed over D columns.
template <int D, int COUNT>
static __device__ __forceinline__ void scores_start(float (&d)[COUNT], uint32_t keys, uint32_t queries) {
    using C = Config<D>;
    const Operand a = operand_make(keys, 16), b = operand_make(queries, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
        wgmma<0, 0>(d, operand_after(a, (step >> 2) * C::KV_PANEL + (step & 3) * 32),
                    operand_after(b, (step >> 2) * C::Q_PANEL + (step & 3) * 32), step > 0);
    wgmma_commit();
}

// Whole or not, the products of one kind stand in one branch with their fence and commit: otherwise ptxas serializes
// them.

template <int D, int FROM>
static __device__ __forceinline__ void
accumulate_from(float (&d)[D / 2], const uint32_t (&p)[Config<D>::QUERIES / 16][4], uint32_t queries, int keep) {
    const Operand b = operand_make(queries, Config<D>::Q_PANEL);
    wgmma_fence();
#pragma unroll
    for (int step = FROM; step < Config<D>::QUERIES / 16; step++)
        product_registers(d, p[step], operand_after(b, step * 2048), step > FROM ? 1 : keep);
    wgmma_commit();
}

// d [64 keys, D] += p [64 keys, QUERIES] . a tile of queries
template <int D>
static __device__ __forceinline__ void accumulate_start(float (&d)[D / 2],
                                                        const uint32_t (&p)[Config<D>::QUERIES / 16][4],
                                                        uint32_t queries, int keep, bool whole) {
    if (D != 64 || whole)
        accumulate_from<D, 0>(d, p, queries, keep);
    else
        accumulate_from<D, Config<D>::QUERIES / 32>(d, p, queries, keep);
}

template <int D, int STEPS>
static __device__ __forceinline__ void dq_start_steps(float (&d)[32], Operand a, Operand b) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma<1, 1>(d, operand_after(a, step * 2048), operand_after(b, step * 2048), step > 0);
    wgmma_commit();
}

// This warpgroup's part of dQ: its 64 queries when there are 128, its 64 columns when there are 128.
template <int D>
static __device__ __forceinline__ void dq_start(float (&d)[32], uint32_t ds, uint32_t keys, int warpgroup, bool whole) {
    using C = Config<D>;
    const Operand a = operand_make(D == 64 ? ds + warpgroup * KEYS * 128 : ds, 16);
    const Operand b = operand_make(D == 64 ? keys : keys + warpgroup * C::KV_PANEL, 16);
    if (D != 64 || whole)
        dq_start_steps<D, KEYS / 16>(d, a, b);
    else
        dq_start_steps<D, KEYS / 32>(d, a, b);
}

// Keys after their query do not count. first: position of the first query minus that of this thread's first row.
template <int COUNT> static __device__ __forceinline__ void scores_mask(float (&s)[COUNT], int first) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i / 4 * 8 + (i & 1) < (i & 2) * 4) s[i] = -CUDART_INF_F;
}

// The warpgroup with the token issues its products.
static __device__ __forceinline__ void token_wait(int warpgroup) {
    named_barrier(1 + warpgroup, 256);
}

static __device__ __forceinline__ void token_pass(int warpgroup) {
    named_barrier_arrive(2 - warpgroup, 256);
}

// Where a warpgroup stands: its place in the shared buffers, and the step that it works on.
struct Place {
    uint8_t *shared;
    uint32_t base;
    int warpgroup, lane, row0; // row0: of the warp, in the block of keys
    float scale2;
    int n;
};

// P of [FROM, FROM + 16 * STEPS) queries, in the place of the scores.
template <int D, int FROM, int STEPS, int COUNT>
static __device__ __forceinline__ void powers(const Place &at, float (&s)[COUNT]) {
    const float4 *lse2 =
        (const float4 *)(at.shared + Config<D>::LSE + (at.n & 1) * Config<D>::QUERIES * 4) + (at.lane & 3);
#pragma unroll
    for (int i = FROM / 16; i < FROM / 16 + STEPS; i++) {
        const float4 x = lse2[i * 4];
#pragma unroll
        for (int e = 0; e < 8; e++)
            s[i * 8 + e] = exp2_fast(fmaf(s[i * 8 + e], at.scale2, -(e < 4 ? e & 1 ? x.y : x.x : e & 1 ? x.w : x.z)));
    }
}

// P and dS of the same as left operands, and dS in shared memory: [key, query] with 64 queries in a panel, so that the
// reduction of dQ is strided.
template <int D, int FROM, int STEPS, int COUNT>
static __device__ __forceinline__ void differences(const Place &at, const float (&s)[COUNT], const float (&dp)[COUNT],
                                                   uint32_t (&p)[COUNT / 8][4], uint32_t (&ds)[COUNT / 8][4]) {
    using C = Config<D>;
    const float4 *dots = (const float4 *)(at.shared + C::DOTS + (at.n & 1) * C::QUERIES * 4) + (at.lane & 3);
    const int row = at.row0 + (at.lane & 15), column = at.lane >> 4;
    const uint32_t to = at.base + C::DS + (at.n & 1) * C::DS_BYTES + row * 128;
    float4 next = dots[FROM / 4]; // asked for before the store of the 16 queries before
#pragma unroll
    for (int i = FROM / 16; i < FROM / 16 + STEPS; i++) {
        const float4 x = next;
        if (i + 1 < FROM / 16 + STEPS) next = dots[i * 4 + 4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = i * 8 + e * 2;
            p[i][e] = pack_bf16(s[c], s[c + 1]);
            ds[i][e] = pack_bf16(s[c] * (dp[c] - (e < 2 ? x.x : x.z)), s[c + 1] * (dp[c + 1] - (e < 2 ? x.y : x.w)));
        }
        matrices_store(to + (i >> 2) * KEYS * 128 + ((((i & 3) * 2 + column) ^ (row & 7)) << 4), ds[i][0], ds[i][1],
                       ds[i][2], ds[i][3]);
    }
}

// A word of what was told about step n. Only the lane that arrives on barriers for its warp reads it; and branches on a
// lane's word are known to be the warp's.
template <int D> static __device__ __forceinline__ int step_word(const Place &at, int n, int Step::*word) {
    const volatile Step *step = (const volatile Step *)(at.shared + Config<D>::STEPS + n % STEP_SLOTS * sizeof(Step));
    return __shfl_sync(0xffffffffu, at.lane == 0 ? step->*word : 0, 0);
}

// The part of dQ of step n goes to the buffer for the sum in memory; or, where the sum ends, to its place.
template <int D, bool ROPE>
static __device__ __forceinline__ void dq_hand_over(const BackwardArgs &args, const Place &at, float (&dq)[32], int n,
                                                    int flags) {
    using C = Config<D>;
    float4 *buffer = (float4 *)(at.shared + C::DQ + at.warpgroup * (DQ_BYTES / 2)) + (threadIdx.x & 127);
    const uint32_t ready = at.base + C::DQ_READY + at.warpgroup * 8, done = at.base + C::DQ_DONE + at.warpgroup * 8;
    if (!(flags & STEP_ENDS)) {
        mbarrier_wait(ready, n & 1);
#pragma unroll
        for (int i = 0; i < 8; i++)
            buffer[i * 128] = make_float4(dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]);
        shared_fence_async();
        mbarrier_arrive(done);
        return;
    }
    const int key_block = step_word<D>(at, n, &Step::key_block);
    const int row = step_word<D>(at, n, &Step::query) + (D == 64 ? at.warpgroup * 64 : 0) + (threadIdx.x / 32 & 3) * 16;
    Angles angles;
    if constexpr (ROPE) {
        angles_load(angles, args.cos, args.sin, row, args.seq);
    }
    mbarrier_wait(ready, n & 1);
    if (key_block > 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 x = buffer[i * 128];
            dq[i * 4] += x.x, dq[i * 4 + 1] += x.y, dq[i * 4 + 2] += x.z, dq[i * 4 + 3] += x.w;
        }
    }
    mbarrier_arrive(done);
    if constexpr (ROPE) rows_rotate(dq, angles);
    const int column = D == 64 ? 0 : at.warpgroup * 64;
    const int64_t token = (int64_t)step_word<D>(at, n, &Step::batch) * args.seq + row;
    rows_store(dq, args.scale,
               args.dq + token * args.grad_stride + step_word<D>(at, n, &Step::head) * args.head_dim + column,
               args.grad_stride, args.seq - row, args.head_dim - column);
}

template <int D, bool ROPE>
static __device__ __forceinline__ void gradients_store(const BackwardArgs &args, const Place &at,
                                                       const float (&dk)[D / 2], const float (&dv)[D / 2]) {
    const int row = step_word<D>(at, at.n, &Step::key_block) * KEYS + at.row0;
    const int64_t token = (int64_t)step_word<D>(at, at.n, &Step::batch) * args.seq + row;
    const int64_t to = token * args.grad_stride + step_word<D>(at, at.n, &Step::kv_head) * args.head_dim;
    Angles angles;
    if constexpr (ROPE) angles_load(angles, args.cos, args.sin, row, args.seq);
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

// From the scores s and dP, in flight, to the left operands of the products: P for dV, dS for dK and, in shared memory,
// for dQ.
template <int D, int COUNT>
static __device__ __forceinline__ void operands_make(const Place &at, float (&s)[COUNT], float (&dp)[COUNT],
                                                     uint32_t (&p)[COUNT / 8][4], uint32_t (&ds)[COUNT / 8][4],
                                                     int flags, int ahead, bool whole) {
    using C = Config<D>;
    wgmma_wait<1>();
    wgmma_hold(s);
    if constexpr (D == 64) {
        if (ahead == 0) {
            const int first = (at.lane & 3) * 2 - (threadIdx.x / 32 & 3) * 16 - at.lane / 4;
            if (at.warpgroup == 0)
                scores_mask(half_of(s, 0), first);
            else
                scores_mask(half_of(s, 1), first);
        }
        if (whole) powers<D, 0, 4>(at, s);
        powers<D, 64, 4>(at, s);
    } else {
        if (ahead < at.warpgroup * 64 + 63) scores_mask(s, ahead + (at.lane & 3) * 2 - at.row0 - at.lane / 4);
        powers<D, 0, 4>(at, s);
    }
    wgmma_wait<0>();
    wgmma_hold(dp);
    if (flags & STEP_LAST && at.lane == 0)
        mbarrier_arrive(at.base + C::V_EMPTY + (C::V_SLOTS > 1 && flags & STEP_SLOT ? 8 : 0));
    // dS of the step before is complete, and no product reads the place of this one any more.
    mbarrier_wait(at.base + C::DS_FULL + (at.n & 1 ^ 1) * 8, (at.n - 1) >> 1 & 1);
    if constexpr (D == 64) {
        if (whole)
            differences<D, 0, 4>(at, s, dp, p, ds);
        else
#pragma unroll
            for (int i = 0; i < 16; i++)
                p[i / 4][i % 4] = 0, ds[i / 4][i % 4] = 0;
        differences<D, 64, 4>(at, s, dp, p, ds);
    } else {
        differences<D, 0, 4>(at, s, dp, p, ds);
    }
    shared_fence_async();
}

template <int D, bool ROPE>
static __device__ __forceinline__ void backward_compute(const BackwardArgs &args, uint8_t *shared, uint32_t base,
                                                        int warpgroup) {
    using C = Config<D>;
    constexpr int COUNT = C::QUERIES / 2;
    Place at;
    at.shared = shared, at.base = base, at.warpgroup = warpgroup, at.lane = threadIdx.x & 31;
    at.row0 = warpgroup * 64 + (threadIdx.x / 32 & 3) * 16;
    at.scale2 = args.scale * LOG2E;
    at.n = 0;
    float s[COUNT], dp[COUNT], dk[D / 2], dv[D / 2], dq[32];
    int before = 0;                     // flags of the step before
    mbarrier_wait(base + C::Q_FULL, 0); // which the loading thread arrived on after the step's words
    int flags = step_word<D>(at, 0, &Step::flags), ahead = step_word<D>(at, 0, &Step::ahead);
    if (flags & STEP_STOP) return;
    bool whole = D != 64 || ahead > 0 || warpgroup == 0;
    scores_start<D>(s, base + C::K + warpgroup * 8192, base + C::Q);
    mbarrier_wait(base + C::DO_FULL, 0);
    scores_start<D>(dp, base + C::V + warpgroup * 8192, base + C::DO);
    if (C::HAS_TOKEN && warpgroup == 1) token_pass(warpgroup);
    for (;;) {
        const int stage = at.n & 1, next = at.n + 1;
        const uint32_t do_tile = base + C::DO + stage * C::Q_BYTES, q_tile = base + C::Q + stage * C::Q_BYTES;
        uint32_t p[COUNT / 8][4], ds[COUNT / 8][4];
        operands_make<D>(at, s, dp, p, ds, flags, ahead, whole);
        if (C::HAS_TOKEN) token_wait(warpgroup);
        dq_start<D>(dq, base + C::DS + (stage ^ 1) * C::DS_BYTES, base + C::K + (before & STEP_SLOT ? C::KV_BYTES : 0),
                    warpgroup, D != 64 || warpgroup == 1 || !(before & STEP_DIAGONAL));
        accumulate_start<D>(dv, p, do_tile, !(flags & STEP_FIRST), whole);
        wgmma_wait<1>(); // dQ
        wgmma_hold(dq);
        __syncwarp();
        if (at.lane == 0) {
            mbarrier_arrive(base + C::DS_FULL + stage * 8);
            if (before & STEP_LAST) mbarrier_arrive(base + C::K_EMPTY + (before & STEP_SLOT ? 8 : 0));
        }
        accumulate_start<D>(dk, ds, q_tile, !(flags & STEP_FIRST), whole);
        // What ends a sum of dQ takes long: the other warpgroup need not wait for it.
        if (C::HAS_TOKEN && before & STEP_ENDS) token_pass(warpgroup);
        if (at.n > 0) dq_hand_over<D, ROPE>(args, at, dq, at.n - 1, before);
        wgmma_wait<1>(); // dV
        if (at.lane == 0) mbarrier_arrive(base + C::DO_EMPTY + stage * 8);
        mbarrier_wait(base + C::Q_FULL + (stage ^ 1) * 8, next / 2 & 1);
        const int next_flags = step_word<D>(at, next, &Step::flags);
        ahead = step_word<D>(at, next, &Step::ahead);
        whole = D != 64 || ahead > 0 || warpgroup == 0;
        if (next_flags & STEP_STOP) break;
        if (flags & STEP_LAST) { // before the next scores: with products in flight ptxas would serialize all
            wgmma_wait<0>();
            wgmma_hold(dk);
            wgmma_hold(dv);
            gradients_store<D, ROPE>(args, at, dk, dv);
        }
        scores_start<D>(s, base + C::K + (next_flags & STEP_SLOT ? C::KV_BYTES : 0) + warpgroup * 8192,
                        base + C::Q + (stage ^ 1) * C::Q_BYTES);
        wgmma_wait<1>(); // dK
        if (at.lane == 0) mbarrier_arrive(base + C::Q_EMPTY + stage * 8);
        mbarrier_wait(base + C::DO_FULL + (stage ^ 1) * 8, next / 2 & 1);
        scores_start<D>(dp,
                        base + C::V + (C::V_SLOTS > 1 && next_flags & STEP_SLOT ? C::KV_BYTES : 0) + warpgroup * 8192,
                        base + C::DO + (stage ^ 1) * C::Q_BYTES);
        if (C::HAS_TOKEN && !(before & STEP_ENDS)) token_pass(warpgroup);
        before = flags, flags = next_flags, at.n = next;
    }
    if (C::HAS_TOKEN && !(before & STEP_ENDS)) token_pass(warpgroup);
    wgmma_wait<0>();
    wgmma_hold(dk);
    wgmma_hold(dv);
    mbarrier_wait(base + C::DS_FULL + (at.n & 1) * 8, at.n >> 1 & 1);
    dq_start<D>(dq, base + C::DS + (at.n & 1) * C::DS_BYTES, base + C::K + (flags & STEP_SLOT ? C::KV_BYTES : 0),
                warpgroup, D != 64 || warpgroup == 1 || !(flags & STEP_DIAGONAL));
    gradients_store<D, ROPE>(args, at, dk, dv);
    wgmma_wait<0>();
    wgmma_hold(dq);
    dq_hand_over<D, ROPE>(args, at, dq, at.n, flags);
}

#endif

template <int D, bool ROPE>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ BackwardMaps maps, const __grid_constant__ BackwardArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using C = Config<D>;
    extern __shared__ __align__(1024) uint8_t shared[]; // nothing static: the swizzle needs the tiles at 1024
    const uint32_t base = shared_address(shared);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); // known to be the same in a warp
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) { // 8 warps compute
            mbarrier_init(base + C::Q_FULL + i * 8, 1), mbarrier_init(base + C::Q_EMPTY + i * 8, 8);
            mbarrier_init(base + C::DO_FULL + i * 8, 1), mbarrier_init(base + C::DO_EMPTY + i * 8, 8);
            mbarrier_init(base + C::K_EMPTY + i * 8, 8), mbarrier_init(base + C::V_EMPTY + i * 8, 8);
            mbarrier_init(base + C::DS_FULL + i * 8, 8);
            mbarrier_init(base + C::DQ_READY + i * 8, 1), mbarrier_init(base + C::DQ_DONE + i * 8, 128);
        }
        for (int i = 0; i < STEP_SLOTS; i++)
            mbarrier_init(base + C::STEP_FULL + i * 8, 1), mbarrier_init(base + C::STEP_EMPTY + i * 8, 2);
        mbarrier_init_fence();
    }
    __syncthreads();
    dependency_wait();
    if (warpgroup == 0) {
        registers_shrink<C::REGISTERS_MOVE>();
        if (threadIdx.x == 0) backward_load<D>(args, maps, shared, base);
        if (threadIdx.x == 32) backward_sum<D>(args, shared, base, 0);
        if (threadIdx.x == 64) backward_sum<D>(args, shared, base, 1);
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
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    dependents_launch();
#endif
    const int head = blockIdx.x % args.heads, block = blockIdx.x / args.heads % args.query_blocks;
    const int batch = blockIdx.x / args.heads / args.query_blocks;
    const int line = (batch * args.heads + head) * args.query_blocks + block;
    const int row0 = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
    if (threadIdx.x == 0) {
        args.turns[line * 2] = 0, args.turns[line * 2 + 1] = 0;
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
        float total = dot8<Bf16>(x[i], y[i]);
#pragma unroll
        for (int e = LANES / 2; e > 0; e /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, e);
        if (column == 0) {
            const int64_t in = ((int64_t)batch * args.heads + head) * args.seq + token;
            // In the order in which a lane of the accumulators needs them: 2 of each 8 queries, for 16 at once.
            const int64_t to =
                (int64_t)line * QUERIES + (row & ~15) + (row >> 1 & 3) * 4 + (row >> 3 & 1) * 2 + (row & 1);
            args.dots[to] = total;
            args.lse2[to] = token < args.seq ? args.lse[in] * LOG2E : CUDART_INF_F;
        }
    }
}

// ---- host -----------------------------------------------------------------------------------------------------------

template <int D, bool ROPE>
static void backward_launch(CudaState *state, const BackwardArgs *args, const void *q, const void *k, const void *v,
                            const AttentionShape *shape) {
    using C = Config<D>;
    BackwardMaps maps;
    maps.q = head_map_make(state, q, shape, shape->heads, shape->q_stride, C::QUERIES);
    maps.k = head_map_make(state, k, shape, shape->kv_heads, shape->k_stride, KEYS);
    maps.v = head_map_make(state, v, shape, shape->kv_heads, shape->v_stride, KEYS);
    maps.dout = head_map_make(state, args->dout, shape, shape->heads, shape->o_stride, C::QUERIES);
    const int64_t lines = (int64_t)args->batch * args->heads * args->query_blocks;
    maps.lse2 = lines_map_make(state, args->lse2, lines, C::QUERIES);
    maps.dots = lines_map_make(state, args->dots, lines, C::QUERIES);
    if (state->failure) return;
    prepare_kernel<D><<<args->batch * args->heads * args->query_blocks, 256, 0, state->stream>>>(*args);
    LAUNCH_CHECK(state);
    CUDA_CHECK(state,
               cudaFuncSetAttribute(backward_kernel<D, ROPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::BYTES));
    const int items = args->batch * args->kv_heads * args->key_blocks;
    const int blocks = items < state->sm_count ? items : state->sm_count;
    // Its blocks come to their places while the last ones of the kernel before are at work.
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    launch.gridDim = dim3((unsigned)blocks), launch.blockDim = dim3(THREADS), launch.dynamicSmemBytes = C::BYTES;
    launch.stream = state->stream, launch.attrs = &early, launch.numAttrs = 1;
    CUDA_CHECK(state, cudaLaunchKernelEx(&launch, backward_kernel<D, ROPE>, maps, *args));
    LAUNCH_CHECK(state);
}

// KV heads in a section: what fills the multiprocessors with two key blocks of each when items are short, so that they
// seldom wait for each other; with three, or four where three would leave a small section at the end, when they are
// long and more of the L2 cache each is worth more.
static int section_choose(const CudaState *state, int key_blocks, int pairs) {
    if (key_blocks <= 8) return state->sm_count / 2;
    const int third = state->sm_count / 3, quarter = state->sm_count / 4, rest = pairs % third;
    return rest == 0 || rest >= quarter ? third : quarter;
}

extern "C" bool attention_sm90_backward_supported(const CudaState *state, int64_t dqkv_stride,
                                                  const AttentionShape *shape) {
    if (shape->doc_start || shape->head_dim > 128 || shape->head_dim % 8 || shape->q_stride % 8 ||
        shape->k_stride % 8 || shape->v_stride % 8 || shape->o_stride % 8 || dqkv_stride % 8)
        return false;
    if (shape->full && shape->seq % KEYS) return false; // only the diagonal masks keys beyond the end
    static int there = -1;                              // asking costs some microseconds
    if (there < 0) there = kernel_is_there(state->arch, backward_kernel<64, false>);
    return there;
}

extern "C" bool attention_sm90_rotates(const AttentionShape *shape, const QkRopeShape *rope) {
    return shape->head_dim == 64 && rope->seq == shape->seq &&
           ((uintptr_t)rope->cos | (uintptr_t)rope->sin) % sizeof(float2) == 0;
}

extern "C" bool attention_sm90_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride,
                                        const void *dout, const void *out, const float *lse, const void *q,
                                        const void *k, const void *v, const AttentionShape *shape,
                                        const QkRopeShape *rope) {
    if (!attention_sm90_backward_supported(state, dqkv_stride, shape)) return false;
    const int queries = sm90_backward_queries(shape->head_dim), query_blocks = (shape->seq + queries - 1) / queries;
    const int64_t lines = (int64_t)shape->batch * shape->heads * query_blocks;
    float *scratch = (float *)cuda_scratch(
        state, attention_sm90_backward_workspace(shape->batch, shape->seq, shape->heads, shape->head_dim));
    if (!scratch) return true; // the failure is recorded
    BackwardArgs args = {};
    args.dq_sum = scratch, args.lse2 = scratch + lines * DQ_FLOATS, args.dots = args.lse2 + lines * queries;
    args.turns = (int32_t *)(args.dots + lines * queries), args.next_item = args.turns + 2 * lines;
    args.o = (const Bf16 *)out, args.dout = (const Bf16 *)dout, args.lse = lse;
    args.dq = (Bf16 *)dq, args.dk = (Bf16 *)dk, args.dv = (Bf16 *)dv, args.grad_stride = dqkv_stride;
    args.batch = shape->batch, args.seq = shape->seq, args.heads = shape->heads, args.kv_heads = shape->kv_heads;
    args.head_dim = shape->head_dim, args.o_stride = shape->o_stride, args.scale = shape->scale;
    args.key_blocks = (shape->seq + KEYS - 1) / KEYS, args.query_blocks = query_blocks;
    if (rope) {
        const int64_t first = (int64_t)rope->first_position * (rope->head_dim / 2);
        args.cos = rope->cos + first, args.sin = rope->sin + first;
    }
    args.full = shape->full;
    args.section = section_choose(state, args.key_blocks, args.batch * args.kv_heads);
    if (rope)
        backward_launch<64, true>(state, &args, q, k, v, shape);
    else if (shape->head_dim <= 64)
        backward_launch<64, false>(state, &args, q, k, v, shape);
    else
        backward_launch<128, false>(state, &args, q, k, v, shape);
    return true;
}
