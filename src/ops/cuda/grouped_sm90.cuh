// What the grouped products of MoE share on Hopper, in bf16 and in FP8 (grouped_gemm_sm90.cu, grouped_fp8_sm90.cu): how
// results leave through shared memory and the copy engine, which also adds them to a weight gradient that accumulates,
// and the gradients of experts without rows.
#pragma once

#include "ops/cuda/gemm_sm90.cuh"

enum { STAGING_BYTES = 64 * 128 }; // a piece of results: 64 rows of at most 128 bytes

// 64 rows by 32 columns of the accumulators, as the tensor map's swizzle wants them.
template <int COUNT> DEVICE_CODE void stage_float(uint32_t to, const float (&d)[COUNT], int first) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const bool odd = row & 1; // odd rows store in another order: rows 0 to 3 then fall into different banks
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int j = i % 4, h = i / 4;
        const int r = (first / 8 + j) * 4 + h * 2, s = (first / 8 + (j ^ 2)) * 4 + h * 2;
        const int column = odd ? j ^ 2 : j;
        const float low = odd ? d[s] : d[r], high = odd ? d[s + 1] : d[r + 1];
        const int at = row + 8 * h;
        const uint32_t place = to + at * 128 + (((column * 2 + lane % 4 / 2) ^ (at & 7)) * 16) + lane % 2 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(low), "f"(high) : "memory");
    }
}

// COLUMNS of a warpgroup's 64 rows, from `first` of its accumulators on, into one of its BUFFERS, which are used in
// turn. leader: the thread of the warpgroup that then stores them.
template <GroupedProduct PRODUCT, int COLUMNS, int BUFFERS, int COUNT>
DEVICE_CODE void piece_stage(uint32_t buffer, const float (&d)[COUNT], int first, int warpgroup, bool leader) {
    if (leader) tensor_store_wait_read<BUFFERS - 1>(); // the store that had this buffer last has read it
    named_barrier(1 + warpgroup, 128);
    if constexpr (PRODUCT == GROUPED_WEIGHT)
        stage_float(buffer, d, first);
    else
        stage_bf16<COLUMNS>(buffer, d, first);
    shared_fence_async();
    named_barrier(1 + warpgroup, 128);
}

template <GroupedProduct PRODUCT>
DEVICE_CODE void piece_store(const CUtensorMap *out, uint32_t buffer, int x, int y, int z, bool accumulate) {
    if (PRODUCT == GROUPED_WEIGHT && accumulate)
        tensor_add(out, buffer, x, y, z);
    else
        tensor_store(out, buffer, x, y, z);
    tensor_store_commit();
}

// Experts without rows have no tiles: their gradients are overwritten with zeros by warps that have nothing else to do.
DEVICE_CODE void empty_experts_zero(const Experts &experts, const GroupedArgs &args, int thread, int threads) {
    for (int e = 0; e < args.experts; e++) {
        if (experts.offsets[e + 1] != experts.offsets[e]) continue;
        float4 *out = (float4 *)(args.out + e * args.count);
        for (int64_t i = (int64_t)blockIdx.x * threads + thread; i < args.count / 4; i += (int64_t)gridDim.x * threads)
            out[i] = make_float4(0, 0, 0, 0);
    }
}
