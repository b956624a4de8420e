// What the attention kernels use of Hopper beyond sm90.cuh: bulk copies of one head's rows and of plain memory, turns
// between blocks, and matrix products with the left operand in registers.
#pragma once

#include "ops/cuda/cuda.h"
#include "ops/cuda/sm90.cuh"

// ---- copies -------------------------------------------------------------------------------------------------------

// The box of a [batch, token, head, column] map; what lies outside arrives as zeros and still counts on the barrier.
DEVICE_CODE void tensor_load_head(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int column, int head,
                                  int token, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(token), "r"(batch)
                 : "memory");
}

// What lies outside the map is left alone.
DEVICE_CODE void tensor_store_head(const CUtensorMap *map, uint32_t shared, int column, int head, int token,
                                   int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared), "r"(column), "r"(head), "r"(token), "r"(batch)
                 : "memory");
}

DEVICE_CODE void bulk_load(uint32_t shared, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

DEVICE_CODE void bulk_store(void *to, uint32_t shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared), "r"(bytes)
                 : "memory");
}

DEVICE_CODE void bulk_add(void *to, uint32_t shared, uint32_t bytes) { // of floats, in the L2 cache
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(shared),
                 "r"(bytes)
                 : "memory");
}

// Until this thread's committed stores and additions are in memory.
DEVICE_CODE void bulk_wait_complete(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

DEVICE_CODE void fence_async_all(void) { // between ordinary accesses and the copy engine's, to any memory
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Counts towards a named_barrier without waiting there.
DEVICE_CODE void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- turns: a counter in memory that orders blocks -----------------------------------------------------------------

DEVICE_CODE void turn_wait(const int32_t *turn, int wanted) {
    int now;
    do
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != wanted);
}

DEVICE_CODE void turn_pass(int32_t *turn) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

// ---- products -------------------------------------------------------------------------------------------------------

// d [64, N] = (keep ? d : 0) + A [64, 16] . B [16, N] as wgmma, with A in registers, laid out as accumulators are, and
// the reduction of B strided.
template <int COUNT>
DEVICE_CODE void product_registers(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64, "64 or 128 columns");
    // clang-format off
    if constexpr (COUNT == 32)
        asm volatile(WGMMA("m64n64k16", WGMMA_D64, "{%32, %33, %34, %35}", "%36", "%37", "1")
                     : WGMMA_F32 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else
        asm volatile(WGMMA("m64n128k16", WGMMA_D128, "{%64, %65, %66, %67}", "%68", "%69", "1")
                     : WGMMA_F64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    // clang-format on
}

// ---- host: one head's rows for the copy engine ----------------------------------------------------------------------

// Lines of floats. Plain bulk copies would do, but racecheck takes what they write in a loop for races with other
// warps' reads, whatever barrier these wait for.
static inline CUtensorMap lines_map_make(CudaState *state, const float *memory, int64_t lines, int columns) {
    const cuuint64_t line = (cuuint64_t)columns * sizeof(float);
    return map_encode<3>(state, memory, DTYPE_F32, {(cuuint64_t)columns, (cuuint64_t)lines, 1},
                         {line, line * (cuuint64_t)lines}, {(cuuint32_t)columns, 1, 1});
}

// Boxes of `rows` tokens and 64 columns of one head.
static inline CUtensorMap head_map_make(CudaState *state, const void *memory, const AttentionShape *shape, int heads,
                                        int64_t stride, int rows) {
    const cuuint64_t column = sizeof(bf16), token = (cuuint64_t)stride * column;
    return map_encode<4>(
        state, memory, DTYPE_BF16,
        {(cuuint64_t)shape->head_dim, (cuuint64_t)heads, (cuuint64_t)shape->seq, (cuuint64_t)shape->batch},
        {(cuuint64_t)shape->head_dim * column, token, token * (cuuint64_t)shape->seq}, {64, 1, (cuuint32_t)rows, 1});
}
