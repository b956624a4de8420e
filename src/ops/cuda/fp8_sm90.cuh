// Products of FP8 on the pipeline of gemm_sm90.cuh. A stage has 128 FP8 numbers of the reduction in the bytes of 64
// bf16 ones; the layouts in shared memory are those of the bf16 forward product, and both operands have the reduction
// along their rows.
#pragma once

#include "ops/cuda/gemm_sm90.cuh"

enum { FP8_TILE_K = 2 * TILE_K };

// clang-format off
#define WGMMA_FP8(shape, type, registers, a, b, keep)                                                             \
    "{\n"                                                                                                         \
    ".reg .pred p;\n"                                                                                             \
    "setp.ne.b32 p, " keep ", 0;\n"                                                                               \
    "wgmma.mma_async.sync.aligned." shape ".f32." type ".e4m3 {" registers "}, " a ", " b ", p, 1, 1;\n"          \
    "}\n"
#define WGMMA_FP8_IN "l"(a), "l"(b), "r"(keep)
#define WGMMA_FP8_N128(type) \
    asm volatile(WGMMA_FP8("m64n128k32", type, WGMMA_D128, "%64", "%65", "%66") : WGMMA_F64 : WGMMA_FP8_IN)
#define WGMMA_FP8_N192(type) \
    asm volatile(WGMMA_FP8("m64n192k32", type, WGMMA_D192, "%96", "%97", "%98") \
                 : WGMMA_F64, WGMMA_F16(64), WGMMA_F16(80) : WGMMA_FP8_IN)
#define WGMMA_FP8_N256(type) \
    asm volatile(WGMMA_FP8("m64n256k32", type, WGMMA_D256, "%128", "%129", "%130") \
                 : WGMMA_F64, WGMMA_F16(64), WGMMA_F16(80), WGMMA_F16(96), WGMMA_F16(112) : WGMMA_FP8_IN)
// clang-format on

// As wgmma, with A [64, 32] and B [32, N].
template <bool E5M2, int COUNT> DEVICE_CODE void wgmma_fp8(float (&d)[COUNT], uint64_t a, uint64_t b, int keep) {
    static_assert(COUNT == 64 || COUNT == 96 || COUNT == 128, "widths with an instruction below");
    if constexpr (COUNT == 64) {
        if constexpr (E5M2)
            WGMMA_FP8_N128("e5m2");
        else
            WGMMA_FP8_N128("e4m3");
    } else if constexpr (COUNT == 96) {
        if constexpr (E5M2)
            WGMMA_FP8_N192("e5m2");
        else
            WGMMA_FP8_N192("e4m3");
    } else {
        if constexpr (E5M2)
            WGMMA_FP8_N256("e5m2");
        else
            WGMMA_FP8_N256("e4m3");
    }
}

// A configuration of the pipeline with operands in FP8; E5M2: of a, else e4m3. b is e4m3.
template <typename Bf16Config, bool E5M2> struct Fp8Products : Bf16Config {
    static constexpr int K_STEP = FP8_TILE_K;

    template <int COUNT>
    static __device__ __forceinline__ void multiply(float (&d)[COUNT], uint64_t a, uint64_t b, int keep) {
        wgmma_fp8<E5M2>(d, a, b, keep);
    }
};
