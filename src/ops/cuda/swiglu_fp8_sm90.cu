// The gate-up product in FP8 with SwiGLU in its epilogue on Hopper, of a dense layer or of experts, on the pipeline of
// gemm_sm90.cuh; see swiglu_fp8.h.
//
// For each element of hidden the separate ops write 4 bytes of gate and up in bf16, read them and write 3 of codes;
// here the 3 alone leave. At 32,768 tokens (products at 1250 TFLOP/s, memory at 3.47 TB/s):
//                 products   memory, fused   separate: products + SwiGLU
//   smollm-360m   0.258 ms   0.083 ms        0.258 + 0.169 ms
//   llama-3.2-1b  1.759      0.261           1.759 + 0.541
// so that products are the floor, if an epilogue runs beside the other warpgroup's products. It takes 24 instructions
// an element, two of them in the units for special functions (16 a cycle): the 12,288 elements of a tile of 128 x 192
// columns are 2,300 cycles, their products of 960 numbers at least 5,760. The library's product alone reaches 1332 and
// 1530 TFLOP/s here: with SwiGLU inside, 784 and 1110 are as fast.
//
// A thread has 8 neighbouring columns of gate and of up (the weights come woven), rounds them as the separate ops do,
// and stores 8 codes at once; four threads fill a sector. Maxima stay in registers until a block's last tile.
#include "ops/cuda/swiglu_fp8.h"

#include "ops/cuda/fp8.cuh"
#include "ops/cuda/fp8_sm90.cuh"
#include "ops/cuda/swiglu_sm90.cuh"

// ONCE: hidden, too, is the first to leave the L2 cache, as gate and up always are. EXPERTS: rows have experts and
// weights.
template <bool EXPERTS_, int TILE_N, int STAGES, bool PINGPONG, int CLUSTER, bool ONCE_, int STAGGER_ = 0>
struct SwigluFp8Config : Fp8Products<Config<GROUPED_FORWARD, TILE_N, STAGES, PINGPONG, CLUSTER, 1, true>, false> {
    using Base = Config<GROUPED_FORWARD, TILE_N, STAGES, PINGPONG, CLUSTER, 1, true>;
    static constexpr bool EXPERTS = EXPERTS_, ONCE = ONCE_;
    static constexpr bool FRESH_SUMS = true, HALF_SLICE = true;
    static constexpr int STAGGER = STAGGER_;
    static constexpr int COLUMNS = 32; // of a weave
    static constexpr int GROUPS = Base::N_STEP / COLUMNS;
    static constexpr int SHARED = STAGES * Base::STAGE_BYTES + 1024; // to align by hand
    static_assert(Base::N_STEP % COLUMNS == 0, "whole weaves");
};

typedef struct SwigluFp8Args {
    uint8_t *hidden, *gate_up8;
    float *hidden_amax, *gate_up_amax;
    const float *in_scale, *weight_scale, *hidden_scale, *gate_up_scale;
    int rows, dim;
} SwigluFp8Args;

// In shared memory: the products leave no registers for them.
typedef struct SwigluScales {
    float sums, hidden_inverse, gate_up_inverse;
} SwigluScales;

typedef struct SwigluMost { // of a thread
    float hidden, gate_up;
} SwigluMost;

// ---- results ------------------------------------------------------------------------------------------------------

// Pairs of sums as the product alone would store them; all at once, so that their registers are free before SwiGLU
// needs some.
template <int COUNT> DEVICE_CODE void sums_round(float (&d)[COUNT], float scale) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        d[i] = __uint_as_float(pack_bf16(d[i] * scale, d[i + 1] * scale));
        asm volatile("" : "+f"(d[i])); // here, not where they are used
    }
}

// 64 rows of a tile, by one warpgroup; (x, y) is this thread's first column and row. It has 8 columns of every 32, in
// rows y and y + 8. What lies outside the result does not count for the maxima either: the last columns of a tile of
// gate may be the first of up. Tiles of experts have all of their rows.
template <typename C, int COUNT>
DEVICE_CODE void rows_finish(const SwigluFp8Args &out, const float *row_weight, const SwigluScales &scales,
                             SwigluMost &most, float (&d)[COUNT], int x, int y) {
    float weights[2]; // of the two rows
    if constexpr (C::EXPERTS) weights[0] = row_weight[y], weights[1] = row_weight[y + 8];
    sums_round(d, scales.sums);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = y + 8 * h;
        uint8_t *gate_to = out.gate_up8 + row * 2 * out.dim + x, *hidden_to = out.hidden + row * out.dim + x;
#pragma unroll
        for (int group = 0; group < C::GROUPS; group++) {
            const int at = group * C::COLUMNS;
            if ((!C::EXPERTS && row >= out.rows) || x + at >= out.dim) continue;
            float gate[8], up[8];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = (group * 4 + j) * 4 + 2 * h;
                const uint32_t g = __float_as_uint(d[r]), u = __float_as_uint(d[COUNT / 2 + r]);
                gate[2 * j] = low_bf16(g), gate[2 * j + 1] = high_bf16(g);
                up[2 * j] = low_bf16(u), up[2 * j + 1] = high_bf16(u);
            }
            const SwigluCodes codes = swiglu_round(gate, up, C::EXPERTS ? weights[h] : 1.0f, scales.hidden_inverse,
                                                   scales.gate_up_inverse, most.hidden, most.gate_up);
            store8_once(gate_to + at, codes.gate);
            store8_once(gate_to + out.dim + at, codes.up);
            if (C::ONCE)
                store8_once(hidden_to + at, codes.hidden);
            else
                *(uint2 *)(hidden_to + at) = codes.hidden;
        }
    }
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

// row_weight: of experts.
template <typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    swiglu_fp8_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      const __grid_constant__ SwigluFp8Args out, const __grid_constant__ GroupedArgs args,
                      const float *row_weight) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * C::STAGES + 4];
    __shared__ Experts experts;
    __shared__ SwigluScales scales;
    const int rank = block_rank<C>(), warpgroup = threadIdx.x / 128;
    const Ring<C> ring = ring_make<C>(dynamic, barriers);
    if (threadIdx.x == 0)
        scales = {*out.in_scale * *out.weight_scale, 1.0f / *out.hidden_scale, 1.0f / *out.gate_up_scale};
    block_begin<C>(experts, args);

    if (warpgroup == 2) {
        registers_shrink<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 256) {
            tensor_prefetch(&a);
            tensor_prefetch(&b);
            produce<C>(ring, &a, &b, experts, args, rank);
        }
    } else {
        registers_grow<C::CONSUMER_REGISTERS>();
        SwigluMost most = {0, 0};
        const int column = threadIdx.x % 4 * 8, row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        consume<C>(ring, experts, args, rank, warpgroup, [&](const Tile &tile, uint32_t, auto &d) {
            const int y = (C::EXPERTS ? tile.row : 0) + tile.m * TILE_M + (C::PINGPONG ? 0 : warpgroup * 64) + row;
#pragma unroll
            for (int part = 0; part < C::M_PARTS; part++)
                rows_finish<C>(out, row_weight, scales, most, d[part], tile.n * C::N_STEP + column, y + part * 64);
        });
        amax_note(out.hidden_amax, most.hidden);
        amax_note(out.gate_up_amax, most.gate_up);
    }
    block_end<C>();
#endif
}

// ---- launch -------------------------------------------------------------------------------------------------------

template <typename C> static bool swiglu_fp8_launch(CudaState *state, const SwigluFp8Call *call) {
    const int64_t rows = call->hidden.rows;
    const int dim = (int)call->hidden.cols, inner = (int)call->in.cols;
    const SwigluFp8Args out = {(uint8_t *)call->hidden.data,
                               (uint8_t *)call->gate_up8.data,
                               (float *)call->hidden_amax.data,
                               (float *)call->gate_up_amax.data,
                               (const float *)call->in_scale.data,
                               (const float *)call->weight_scale.data,
                               (const float *)call->hidden_scale.data,
                               (const float *)call->gate_up_scale.data,
                               (int)rows,
                               dim};
    GroupedArgs args = {};
    args.offsets = (const int32_t *)call->offsets.data;
    args.experts = swiglu_fp8_experts(call);
    args.m_tiles = (int)ceil_div64(rows, TILE_M);
    args.n_tiles = (int)ceil_div64(dim, C::N_STEP);
    args.k_blocks = (int)ceil_div64(inner, C::K_STEP);
    args.pair_step = dim / C::COLUMNS;
    args.half_slice = inner % C::K_STEP && inner % C::K_STEP <= C::K_STEP / 2 ? args.k_blocks - 1 : -1;
    CUtensorMap a = map_make(state, call->in.data, DTYPE_E4M3, 1, rows, inner, C::A_BOX, C::K_STEP);
    CUtensorMap b = woven_map_make(state, call->weight.data, DTYPE_E4M3, call->weight.rows, inner, C::B_BOX);
    if (!state->failure)
        persistent_launch<C>(state, swiglu_fp8_kernel<C>, C::SHARED, a, b, out, args,
                             (const float *)call->row_weight.data);
    return true;
}

// Sums longer than OPS_FP8_SHORT_SUM need more bits than the tensor cores' own have.
static bool call_fits(CudaState *state, const SwigluFp8Call *call) {
    static int there = -1; // asking costs some microseconds
    if (there < 0)
        there = kernel_is_there(state->arch, swiglu_fp8_kernel<SwigluFp8Config<false, 192, 5, true, 2, false>>);
    const bool aligned = all_aligned(16, call->hidden.data, call->gate_up8.data, call->in.data, call->weight.data);
    return there && aligned && call->hidden.cols % 32 == 0 && call->in.cols % 16 == 0 && call->hidden.rows > 0 &&
           call->in.cols <= OPS_FP8_SHORT_SUM && swiglu_fp8_experts(call) <= EXPERTS_MAX;
}

// Which is best depends on how tiles of 64, 96 or 128 columns fill the width, and on what must stay in L2. The last two
// have the most products to a byte that is loaded, but their warpgroups share tiles: both round at the same time and
// leave the tensor cores idle, or the second stays two slices behind the first.
template <bool EXPERTS> static bool variant_launch(CudaState *state, const SwigluFp8Call *call, int variant) {
    switch (variant) {
    case 0: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 192, 5, true, 2, false>>(state, call);
    case 1: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 192, 5, true, 2, true>>(state, call);
    case 2: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 192, 5, true, 1, false>>(state, call);
    case 3: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 128, 6, true, 2, false>>(state, call);
    case 4: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 256, 4, false, 2, false>>(state, call);
    case 5: return swiglu_fp8_launch<SwigluFp8Config<EXPERTS, 256, 4, false, 2, false, 2>>(state, call);
    default: return false;
    }
}

bool swiglu_fp8_sm90(CudaState *state, const SwigluFp8Call *call, int variant) {
    if (!call_fits(state, call)) return false;
    return tensor_present(call->offsets) ? variant_launch<true>(state, call, variant)
                                         : variant_launch<false>(state, call, variant);
}
