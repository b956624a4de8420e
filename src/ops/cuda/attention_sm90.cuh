// What the attention kernels use of Hopper beyond sm90.cuh: bulk copies of one head's rows and of plain memory, turns
// between blocks, matrix products with 64 or 128 columns and with the left operand in registers.
#pragma once

#include "ops/cuda/cuda.h"
#include "ops/cuda/sm90.cuh"

// ---- copies -------------------------------------------------------------------------------------------------------

// The box of a [batch, token, head, column] map; what lies outside arrives as zeros and still counts on the barrier.
HOPPER_CODE void tensor_load_head(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int column, int head,
                                  int token, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(token), "r"(batch)
                 : "memory");
}

// What lies outside the map is left alone.
HOPPER_CODE void tensor_store_head(const CUtensorMap *map, uint32_t shared, int column, int head, int token,
                                   int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared), "r"(column), "r"(head), "r"(token), "r"(batch)
                 : "memory");
}

HOPPER_CODE void bulk_load(uint32_t shared, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

HOPPER_CODE void bulk_store(void *to, uint32_t shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared), "r"(bytes)
                 : "memory");
}

HOPPER_CODE void bulk_add(void *to, uint32_t shared, uint32_t bytes) { // of floats, in the L2 cache
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(shared),
                 "r"(bytes)
                 : "memory");
}

// Until this thread's committed stores and additions are in memory.
HOPPER_CODE void bulk_wait_complete(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

HOPPER_CODE void fence_async_all(void) { // between ordinary accesses and the copy engine's, to any memory
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Counts towards a named_barrier without waiting there.
HOPPER_CODE void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- turns: a counter in memory that orders blocks -----------------------------------------------------------------

HOPPER_CODE void turn_wait(const int32_t *turn, int wanted) {
    int now;
    do
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != wanted);
}

HOPPER_CODE void turn_pass(int32_t *turn) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

// ---- products -------------------------------------------------------------------------------------------------------

// clang-format off
#define PRODUCT_D64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define PRODUCT_D128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define PRODUCT_F4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PRODUCT_F16(i) PRODUCT_F4(i), PRODUCT_F4(i + 4), PRODUCT_F4(i + 8), PRODUCT_F4(i + 12)
#define PRODUCT_F32    PRODUCT_F16(0), PRODUCT_F16(16)
#define PRODUCT_F64    PRODUCT_F16(0), PRODUCT_F16(16), PRODUCT_F16(32), PRODUCT_F16(48)
#define PRODUCT(shape, d, a, b, keep, transposes)                                                                     \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep ", 0;\n"                                                               \
    "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 " d ", " a ", %" #b ", p, 1, 1, " transposes ";\n}\n"

// d [64, N] = (keep ? d : 0) + A [64, 16] . B [16, N]; N = 2 * COUNT. Thread t of the warpgroup holds, for every 8
// columns j: d[4 j + 2 h + i] = D[16 (t / 32) + 8 h + t % 32 / 4][8 j + t % 4 * 2 + i].
template <int TRANSPOSE_A, int TRANSPOSE_B, int COUNT>
HOPPER_CODE void product_shared(float (&d)[COUNT], uint64_t a, uint64_t b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64, "64 or 128 columns");
    if constexpr (COUNT == 32)
        asm volatile(PRODUCT("m64n64k16", PRODUCT_D64, "%32", 33, 34, "%35, %36")
                     : PRODUCT_F32 : "l"(a), "l"(b), "r"(keep), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));
    else
        asm volatile(PRODUCT("m64n128k16", PRODUCT_D128, "%64", 65, 66, "%67, %68")
                     : PRODUCT_F64 : "l"(a), "l"(b), "r"(keep), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));
}

// The left operand in registers, laid out as accumulators are; the reduction of the right one is strided (1) or not.
template <int TRANSPOSE_B = 1, int COUNT>
HOPPER_CODE void product_registers(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64, "64 or 128 columns");
    if constexpr (COUNT == 32)
        asm volatile(PRODUCT("m64n64k16", PRODUCT_D64, "{%32, %33, %34, %35}", 36, 37, "%38")
                     : PRODUCT_F32 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TRANSPOSE_B));
    else
        asm volatile(PRODUCT("m64n128k16", PRODUCT_D128, "{%64, %65, %66, %67}", 68, 69, "%70")
                     : PRODUCT_F64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TRANSPOSE_B));
}
// clang-format on

// ---- host: one head's rows for the copy engine
// ------------------------------------------------------------------------

// Boxes of `rows` tokens and 64 columns of one head.
static inline bool map_make(CUtensorMap *map, const void *memory, const AttentionShape *shape, int heads,
                            int64_t stride, int rows) {
    const cuuint64_t dims[4] = {(cuuint64_t)shape->head_dim, (cuuint64_t)heads, (cuuint64_t)shape->seq,
                                (cuuint64_t)shape->batch};
    const cuuint64_t strides[3] = {(cuuint64_t)shape->head_dim * 2, (cuuint64_t)stride * 2,
                                   (cuuint64_t)stride * shape->seq * 2};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1}, steps[4] = {1, 1, 1, 1};
    MapEncode encode = map_encode_find();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)memory, dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
