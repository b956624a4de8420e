#include "dist/sum.h"

#include <assert.h>
#include <math.h>

enum { SUM_BLOCK = 1024 }; // elements: fits the first cache with a few inputs beside it

bool sum_knows(DType dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_I32;
}

static void sum_block_f32(float *out, const void *const *in, int ranks, int64_t first, int64_t count) {
    float sum[SUM_BLOCK];
    memcpy(sum, (const float *)in[0] + first, (size_t)count * sizeof *sum);
    for (int r = 1; r < ranks; r++) {
        const float *next = (const float *)in[r] + first;
        for (int64_t i = 0; i < count; i++)
            sum[i] += next[i];
    }
    memcpy(out + first, sum, (size_t)count * sizeof *sum);
}

static void sum_block_bf16(bf16 *out, const void *const *in, int ranks, int64_t first, int64_t count) {
    float sum[SUM_BLOCK];
    for (int64_t i = 0; i < count; i++)
        sum[i] = bf16_to_f32(((const bf16 *)in[0])[first + i]);
    for (int r = 1; r < ranks; r++) {
        const bf16 *next = (const bf16 *)in[r] + first;
        for (int64_t i = 0; i < count; i++)
            sum[i] += bf16_to_f32(next[i]);
    }
    for (int64_t i = 0; i < count; i++)
        out[first + i] = bf16_from_f32(sum[i]);
}

static void sum_block_f16(uint16_t *out, const void *const *in, int ranks, int64_t first, int64_t count) {
    float sum[SUM_BLOCK];
    for (int64_t i = 0; i < count; i++)
        sum[i] = f16_to_f32(((const uint16_t *)in[0])[first + i]);
    for (int r = 1; r < ranks; r++) {
        const uint16_t *next = (const uint16_t *)in[r] + first;
        for (int64_t i = 0; i < count; i++)
            sum[i] += f16_to_f32(next[i]);
    }
    for (int64_t i = 0; i < count; i++)
        out[first + i] = f16_from_f32(sum[i]);
}

static void sum_block_i32(uint32_t *out, const void *const *in, int ranks, int64_t first, int64_t count) {
    uint32_t sum[SUM_BLOCK];
    memcpy(sum, (const uint32_t *)in[0] + first, (size_t)count * sizeof *sum);
    for (int r = 1; r < ranks; r++) {
        const uint32_t *next = (const uint32_t *)in[r] + first;
        for (int64_t i = 0; i < count; i++)
            sum[i] += next[i];
    }
    memcpy(out + first, sum, (size_t)count * sizeof *sum);
}

void sum_ranks(void *out, const void *const *in, int ranks, int64_t count, DType dtype) {
    assert(sum_knows(dtype));
    for (int64_t first = 0; first < count; first += SUM_BLOCK) {
        int64_t block = count - first < SUM_BLOCK ? count - first : SUM_BLOCK;
        if (dtype == DTYPE_F32)
            sum_block_f32(out, in, ranks, first, block);
        else if (dtype == DTYPE_BF16)
            sum_block_bf16(out, in, ranks, first, block);
        else if (dtype == DTYPE_F16)
            sum_block_f16(out, in, ranks, first, block);
        else
            sum_block_i32(out, in, ranks, first, block);
    }
}

void sum_ranks_max(void *out, const void *const *in, int ranks, int64_t count, DType dtype) {
    assert(dtype == DTYPE_F32 || dtype == DTYPE_I32);
    for (int64_t i = 0; i < count; i++) {
        float most = 0;
        int32_t whole = 0;
        for (int r = 0; r < ranks; r++) {
            if (dtype == DTYPE_I32) {
                int32_t value = ((const int32_t *)in[r])[i];
                if (r == 0 || value > whole) whole = value;
            } else {
                float value = ((const float *)in[r])[i];
                if (r == 0 || value > most || isnan(value)) most = value;
                if (isnan(most)) break; // nothing is larger
            }
        }
        if (dtype == DTYPE_I32)
            ((int32_t *)out)[i] = whole;
        else
            ((float *)out)[i] = most;
    }
}
