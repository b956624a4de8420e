// Grouped products in FP8 for GPUs and sizes that wgmma cannot do: a thread adds up one result.
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/grouped_fp8.h"

enum { PLAIN_TILE = 16 };

static_assert(CUDA_ROW_ALIGN % PLAIN_TILE == 0, "a tile of rows belongs to one expert");

template <bool E5M2> static __device__ __forceinline__ float fp8_value(uint8_t code) {
    const __half_raw raw = __nv_cvt_fp8_to_halfraw(code, E5M2 ? __NV_E5M2 : __NV_E4M3);
    return __half2float(*(const __half *)&raw);
}

template <bool E5M2> static __device__ float codes_multiply(const uint8_t *a, const uint8_t *b, int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum = fmaf(fp8_value<E5M2>(a[i]), fp8_value<false>(b[i]), sum);
    return sum;
}

template <bool E5M2>
static __global__ void __launch_bounds__(PLAIN_TILE *PLAIN_TILE) fp8_rows_kernel(GroupedFp8Call fp8) {
    const GroupedCall &c = fp8.call;
    const int64_t row0 = (int64_t)blockIdx.x * PLAIN_TILE, row = row0 + threadIdx.x / PLAIN_TILE;
    const int column = blockIdx.y * PLAIN_TILE + threadIdx.x % PLAIN_TILE;
    if (row0 >= c.offsets[c.experts]) return;
    const int64_t expert = expert_find(c.offsets, c.experts, row0);
    if (column >= c.n) return;
    const uint8_t *a = (const uint8_t *)c.a + row * c.k, *b = (const uint8_t *)c.b + (expert * c.n + column) * c.k;
    ((Bf16 *)c.out)[row * c.n + column] =
        from_float<Bf16>(codes_multiply<E5M2>(a, b, c.k) * (*fp8.a_scale * *fp8.b_scale));
}

static __global__ void __launch_bounds__(PLAIN_TILE *PLAIN_TILE) fp8_weight_kernel(GroupedFp8Call fp8) {
    const GroupedCall &c = fp8.call;
    const int64_t expert = blockIdx.z, begin = c.offsets[expert], count = c.offsets[expert + 1] - begin;
    const int row = blockIdx.y * PLAIN_TILE + threadIdx.x / PLAIN_TILE;
    const int column = blockIdx.x * PLAIN_TILE + threadIdx.x % PLAIN_TILE;
    if (row >= c.m || column >= c.n || (count == 0 && c.accumulate)) return;
    const uint8_t *a = (const uint8_t *)c.a + row * c.rows + begin, *b = (const uint8_t *)c.b + column * c.rows + begin;
    float *out = (float *)c.out + (expert * c.m + row) * c.n + column;
    const float value = codes_multiply<true>(a, b, count) * (*fp8.a_scale * *fp8.b_scale);
    *out = c.accumulate ? *out + value : value;
}

void grouped_fp8_plain(CudaState *state, const GroupedFp8Call *fp8) {
    const GroupedCall *call = &fp8->call;
    const unsigned columns = (unsigned)ceil_div64(call->n, PLAIN_TILE);
    const unsigned threads = PLAIN_TILE * PLAIN_TILE;
    if (call->product == GROUPED_WEIGHT) {
        dim3 grid(columns, (unsigned)ceil_div64(call->m, PLAIN_TILE), (unsigned)call->experts);
        fp8_weight_kernel<<<grid, threads, 0, state->stream>>>(*fp8);
    } else {
        dim3 grid((unsigned)ceil_div64(call->rows, PLAIN_TILE), columns);
        auto kernel = fp8->a_dtype == DTYPE_E5M2 ? fp8_rows_kernel<true> : fp8_rows_kernel<false>;
        kernel<<<grid, threads, 0, state->stream>>>(*fp8);
    }
    LAUNCH_CHECK(state);
}
