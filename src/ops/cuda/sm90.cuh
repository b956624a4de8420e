// Hopper's asynchronous instructions as small functions, shared by the matrix products (grouped, linear and SwiGLU) and
// the attention kernels: mbarriers, bulk copies (TMA), warpgroup matrix products (wgmma) and register redistribution.
// They exist only in code for sm_90a.
#pragma once

#include "ops/cuda/cuda.h"
#include "ops/cuda/sm80.cuh"

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

// ---- places and thread blocks of a cluster ------------------------------------------------------------------------

DEVICE_CODE uint32_t cluster_rank(void) {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE_CODE void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier among `threads` of the block; number 0 is __syncthreads.
DEVICE_CODE void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- mbarriers ----------------------------------------------------------------------------------------------------

// A barrier completes a phase when its arrivals are in and all expected bytes have landed. Waiting for parity p returns
// when the phase of that parity is complete; a fresh barrier behaves as if a phase of parity 1 had just completed.

DEVICE_CODE void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the inits and before a cluster or block barrier: makes them visible to the copy engine and the other block.
DEVICE_CODE void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE_CODE void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE_CODE void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The barrier at the same place in block `rank` of the cluster. Only says that a place may be overwritten: no ordinary
// writes are passed on, so the cluster-wide ordering (which would flush caches each time) is not asked for.
DEVICE_CODE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

DEVICE_CODE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// ---- bulk tensor copies -------------------------------------------------------------------------------------------

// The box of the map at (x, y, z), innermost dimension first. Loads: elements outside the tensor arrive as zeros, and
// the barrier counts the whole box. Stores: elements outside the tensor are left alone.

DEVICE_CODE void tensor_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE_CODE void tensor_load(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// The box goes to the same place in every block of `blocks` (a bit for each), and counts on the barrier of each.
DEVICE_CODE void tensor_load_multicast(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int y, int z,
                                       uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
}

// The same for a map of five dimensions of which the three in the middle are whole in every box.
DEVICE_CODE void woven_load(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int block) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %5, %5, %5, %4}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(x), "r"(block), "r"(0)
                 : "memory");
}

DEVICE_CODE void woven_load_multicast(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int x, int block,
                                      uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %5, %5, %5, %4}], [%2], %6;" ::"r"(shared),
        "l"(map), "r"(barrier), "r"(x), "r"(block), "r"(0), "h"(blocks)
        : "memory");
}

DEVICE_CODE void tensor_store(const CUtensorMap *map, uint32_t shared, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// The same for results that are not read again soon: they are the first to leave the L2 cache.
DEVICE_CODE void tensor_store_once(const CUtensorMap *map, uint32_t shared, int x, int y, int z) {
    asm volatile("{\n"
                 ".reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], "
                 "policy;\n"
                 "}" ::"l"(map),
                 "r"(shared), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// memory += box, in the L2 cache. One addition per element: the result does not depend on timing.
DEVICE_CODE void tensor_add(const CUtensorMap *map, uint32_t shared, int x, int y, int z) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
        "r"(shared), "r"(x), "r"(y), "r"(z)
        : "memory");
}

DEVICE_CODE void tensor_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until at most PENDING of this thread's committed groups (stores and additions) still have to read their shared
// memory.
template <int PENDING> DEVICE_CODE void tensor_store_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Ordinary writes to shared memory become visible to the copy engine; each writing thread, before the barrier.
DEVICE_CODE void shared_fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// As matrices_load, the other way.
DEVICE_CODE void matrices_store(uint32_t shared, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// ---- warpgroup matrix products ------------------------------------------------------------------------------------

// Where wgmma finds an operand in shared memory that a tensor copy wrote with the 128-byte swizzle. Fields, all sizes
// in units of 16 bytes:
//   bits  0-13  start address (the low 18 bits of the byte address)
//   bits 16-29  leading byte offset
//   bits 32-45  stride byte offset
//   bits 49-51  base offset: 0, as every 1024-byte swizzle pattern here starts at a multiple of 1024 bytes
//   bits 62-63  swizzle: 1 is 128 bytes
// The two layouts in use, of bf16 elements:
//   reduction contiguous ("K-major"): rows of 64 elements of the reduction, 128 bytes each; 8 rows make a pattern of
//     1024 bytes. Stride: from 8 rows to the next 8, 1024 bytes. Leading: not used. The next 16 of the reduction: + 32
//     bytes.
//   reduction strided ("MN-major"): rows of 64 elements of M (or N), one row per step of the reduction; 8 rows make a
//     pattern. Stride: from 8 steps of the reduction to the next 8, 1024 bytes. Leading: from 64 elements of M to the
//     next 64. The next 16 of the reduction: + 2048 bytes. The instruction is told to transpose.
DEVICE_CODE uint64_t wgmma_operand(uint32_t shared, uint32_t leading_bytes) {
    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

// Before the first product that touches the accumulators, and after other instructions have touched them.
DEVICE_CODE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE_CODE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> DEVICE_CODE void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The accumulators belong to wgmma until the wait: keeps the compiler from moving their uses across it.
template <int COUNT> DEVICE_CODE void wgmma_hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

// clang-format off
#define WGMMA_D64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D128 WGMMA_D64 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
    "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_D192 WGMMA_D128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_D224 WGMMA_D192 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111"
#define WGMMA_D256 WGMMA_D224 \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"

#define WGMMA_F4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_F16(i) WGMMA_F4(i), WGMMA_F4(i + 4), WGMMA_F4(i + 8), WGMMA_F4(i + 12)
#define WGMMA_F32    WGMMA_F16(0), WGMMA_F16(16)
#define WGMMA_F64    WGMMA_F32, WGMMA_F16(32), WGMMA_F16(48)

#define WGMMA(shape, registers, a, b, keep, transposes)                                                              \
    "{\n"                                                                                                            \
    ".reg .pred p;\n"                                                                                                \
    "setp.ne.b32 p, " keep ", 0;\n"                                                                                  \
    "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" registers "}, " a ", " b ", p, 1, 1, " transposes ";\n" \
    "}\n"
#define WGMMA_IN "l"(a), "l"(b), "r"(keep), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B)
// clang-format on

// d [64, N] = (keep ? d : 0) + A [64, 16] . B [16, N]; N = 2 * COUNT. Thread t of the warpgroup holds, for every 8
// columns j: d[4 j + 2 h + i] = D[16 (t / 32) + 8 h + t % 32 / 4][8 j + t % 4 * 2 + i].
template <int TRANSPOSE_A, int TRANSPOSE_B, int COUNT>
DEVICE_CODE void wgmma(float (&d)[COUNT], uint64_t a, uint64_t b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64 || COUNT == 96 || COUNT == 112 || COUNT == 128,
                  "widths with an instruction below");
    // clang-format off
    if constexpr (COUNT == 32)
        asm volatile(WGMMA("m64n64k16", WGMMA_D64, "%32", "%33", "%34", "%35, %36")
                     : WGMMA_F32 : WGMMA_IN);
    else if constexpr (COUNT == 64)
        asm volatile(WGMMA("m64n128k16", WGMMA_D128, "%64", "%65", "%66", "%67, %68")
                     : WGMMA_F64 : WGMMA_IN);
    else if constexpr (COUNT == 96)
        asm volatile(WGMMA("m64n192k16", WGMMA_D192, "%96", "%97", "%98", "%99, %100")
                     : WGMMA_F64, WGMMA_F16(64), WGMMA_F16(80) : WGMMA_IN);
    else if constexpr (COUNT == 112)
        asm volatile(WGMMA("m64n224k16", WGMMA_D224, "%112", "%113", "%114", "%115, %116")
                     : WGMMA_F64, WGMMA_F16(64), WGMMA_F16(80), WGMMA_F16(96) : WGMMA_IN);
    else
        asm volatile(WGMMA("m64n256k16", WGMMA_D256, "%128", "%129", "%130", "%131, %132")
                     : WGMMA_F64, WGMMA_F16(64), WGMMA_F16(80), WGMMA_F16(96), WGMMA_F16(112) : WGMMA_IN);
    // clang-format on
}

// ---- registers ----------------------------------------------------------------------------------------------------

// Each warpgroup hands registers back, or takes them; COUNT per thread.
template <int COUNT> DEVICE_CODE void registers_shrink(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> DEVICE_CODE void registers_grow(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- host: descriptions of tensors for the copy engine --------------------------------------------------------------

typedef CUresult (*MapEncode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, found through the runtime so that hearth need not link with the driver; NULL without one.
static inline MapEncode map_encode_find(void) {
    static MapEncode found = NULL; // the same for every device
    if (!found) {
        void *function = NULL;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) ==
                cudaSuccess &&
            result == cudaDriverEntryPointSuccess)
            found = (MapEncode)function;
    }
    return found;
}

// bf16, float or FP8; dimensions from the innermost on, strides in bytes from the second on. Rows of up to 128 bytes of
// a box are swizzled, longer ones not.
template <int RANK>
static CUtensorMap map_encode(CudaState *state, const void *memory, DType dtype, const cuuint64_t (&dims)[RANK],
                              const cuuint64_t (&strides)[RANK - 1], const cuuint32_t (&box)[RANK]) {
    CUtensorMap map;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const cuuint32_t width = box[0] * (cuuint32_t)dtype_size(dtype);
    const CUtensorMapDataType type = dtype == DTYPE_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : dtype == DTYPE_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                          : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const CUtensorMapSwizzle swizzle = width > 128   ? CU_TENSOR_MAP_SWIZZLE_NONE
                                       : width < 128 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_128B;
    MapEncode encode = map_encode_find();
    CUresult result =
        !encode ? CUDA_ERROR_NOT_FOUND
                : encode(&map, type, RANK, (void *)memory, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        cuda_fail(state, __FILE__, __LINE__, "the driver refused a tensor map (error %d)", (int)result);
    return map;
}

// A kernel's body exists only in code for sm_90a. A build without it has an empty kernel, which shows in the registers.
template <typename... Parameters> static inline bool kernel_is_there(int arch, void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes;
    const bool there =
        arch == 90 && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.numRegs > 64;
    cudaGetLastError();
    return there;
}
