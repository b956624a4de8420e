// Instructions of GPUs from Ampere on that several kernels use: 16-byte copies from device to shared memory in the
// background, matrices of 16-bit elements from shared memory to registers, and products of a warp.
#pragma once

#include <stdint.h>

// Unused where a kernel needs only some of them, or a build has no code for their GPU.
#define DEVICE_CODE [[maybe_unused]] static __device__ __forceinline__

DEVICE_CODE uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

// ---- copies
// -----------------------------------------------------------------------------------------------------------

DEVICE_CODE void copy16_async(uint32_t shared, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

// Zeros where it is not real.
DEVICE_CODE void copy16_async(uint32_t shared, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

DEVICE_CODE void copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the newest LEFT groups of this thread's copies are there.
template <int LEFT> DEVICE_CODE void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// ---- matrices
// ---------------------------------------------------------------------------------------------------------

// Four 8 x 8 matrices: lane l gives the place of row l % 8 of matrix l / 8.
DEVICE_CODE void matrices_load(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

DEVICE_CODE void matrices_load_transposed(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

// d [16, 8] += a [16, 16] . b [16, 8], of bf16 or of f16
#define MMA_16_8_16(type)                                                                                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <bool F16 = false> DEVICE_CODE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (F16)
        MMA_16_8_16("f16");
    else
        MMA_16_8_16("bf16");
}
#undef MMA_16_8_16
