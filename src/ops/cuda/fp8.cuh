// FP8 on the device: pairs of floats to codes and back, rounded as base/dtype.h says, and the largest magnitude of a
// tensor, which its scale for the next step comes from.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

#include <cuda_fp8.h>

// E5M2: gradients; else e4m3.
template <bool E5M2> __device__ __forceinline__ uint32_t fp8_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, E5M2 ? __NV_E5M2 : __NV_E4M3);
}

template <bool E5M2> __device__ __forceinline__ uint2 fp8_pack(const float (&in)[8], float inverse) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = fp8_pair<E5M2>(in[2 * i] * inverse, in[2 * i + 1] * inverse);
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

__device__ __forceinline__ void e4m3_unpack(float (&out)[8], const uint2 &codes, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t word = i < 2 ? codes.x : codes.y;
        const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(word >> (16 * (i % 2))), __NV_E4M3);
        const float2 pair = __half22float2(*(const __half2 *)&raw);
        out[2 * i] = pair.x * scale;
        out[2 * i + 1] = pair.y * scale;
    }
}

__device__ __forceinline__ float magnitude(const float (&in)[8], float most) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, fabsf(in[i]));
    return most;
}

// Notes a warp's maximum. Patterns of positive floats are in the order of the floats, and a maximum is the same in any
// order. A look before saves most of the atomics; an old value does no harm.
__device__ __forceinline__ void amax_note(float *amax, float most) {
    if (!amax) return;
    most = warp_max(most);
    if (threadIdx.x % 32 == 0 && most > *amax) atomicMax((int *)amax, __float_as_int(most));
}

// ---- transposing a tile ---------------------------------------------------------------------------------------------

// A block takes a tile of TILE_ROWS x TILE_COLS; a thread holds 4 rows by 8 columns of it, turns squares of 4 x 4 bytes
// in registers, and the transposed tile leaves through shared memory in whole lines.
enum { TILE_ROWS = 128, TILE_COLS = 64, TILE_THREADS = 256, TILE_WORDS = TILE_COLS * TILE_ROWS / 4 };

// Word w (4 rows) of a column; the exchange spreads a warp's words over all banks and keeps 16-byte pieces whole.
__device__ __forceinline__ int tile_word(int column, int w) {
    return column * (TILE_ROWS / 4) + (w ^ (column >> 3 & 7) << 2);
}

// A thread's 4 rows by 8 columns of codes into the tile.
__device__ __forceinline__ void tile_put(uint32_t *tile, const uint2 (&codes)[4]) {
    const int column = threadIdx.x % 8 * 8, w = threadIdx.x / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = half ? codes[i].y : codes[i].x;
        const uint32_t a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[2], r[3], 0x5140); // columns 0 and 1
        const uint32_t c = __byte_perm(r[0], r[1], 0x7362), d = __byte_perm(r[2], r[3], 0x7362); // 2 and 3
        uint32_t *to = tile + tile_word(column + 4 * half, w);
        to[0] = __byte_perm(a, b, 0x5410);
        to[TILE_ROWS / 4] = __byte_perm(a, b, 0x7632);
        to[2 * (TILE_ROWS / 4)] = __byte_perm(c, d, 0x5410);
        to[3 * (TILE_ROWS / 4)] = __byte_perm(c, d, 0x7632);
    }
}

// The tile, by all threads, to rows [column, column + TILE_COLS) of out: [columns, rows]. Rows are multiples of 16.
__device__ __forceinline__ void tile_store(uint8_t *out, const uint32_t *tile, int64_t column, int64_t columns,
                                           int64_t row, int64_t rows) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE_WORDS / 4; i += TILE_THREADS) {
        const int c = i / (TILE_ROWS / 16), piece = i % (TILE_ROWS / 16);
        if (column + c < columns && row + piece * 16 < rows)
            store16(out + (column + c) * rows + row + piece * 16, load16(tile + tile_word(c, piece * 4)));
    }
}

// ---- SwiGLU ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float fp8_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

typedef struct SwigluCodes { // of 8 columns of a row
    uint2 gate, up, hidden;
} SwigluCodes;

// Forward, a thread's 8 columns of a row: gate becomes hidden. weight: of the row. most, gate_up_most: the largest
// magnitudes of hidden, and of gate and up, or what they were before.
__device__ __forceinline__ SwigluCodes swiglu_round(float (&gate)[8], const float (&up)[8], float weight,
                                                    float hidden_inverse, float gate_up_inverse, float &most,
                                                    float &gate_up_most) {
    SwigluCodes codes;
    gate_up_most = magnitude(up, magnitude(gate, gate_up_most));
    codes.gate = fp8_pack<false>(gate, gate_up_inverse);
    codes.up = fp8_pack<false>(up, gate_up_inverse);
#pragma unroll
    for (int j = 0; j < 8; j++)
        gate[j] = gate[j] * fp8_sigmoid(gate[j]) * up[j] * weight;
    most = magnitude(gate, most);
    codes.hidden = fp8_pack<false>(gate, hidden_inverse);
    return codes;
}

typedef struct SwigluBackward {
    uint8_t *drows, *dcols, *hidden_cols;
    float *damax;
    const uint8_t *gate_up8;
    const Bf16 *dhidden;
    const float *dscale, *hidden_scale, *gate_up_scale;
    int64_t rows;
    int dim;
    const float *row_weight; // of expert rows
    float *drow_weight;
    const int32_t *row_count;
} SwigluBackward;

void swiglu_experts_backward(CudaState *state, const SwigluBackward *s); // fp8_experts.cu

// Backward, a thread's 8 columns of a row: gate, up and the gradient of hidden become dgate, dup and hidden. With s the
// sigmoid of g, w the row's weight: dgate = w d u (s + g s (1 - s)), dup = w d g s, hidden = w g s u; dweight += d g s
// u.
__device__ __forceinline__ void swiglu_back(float (&g)[8], float (&u)[8], float (&d)[8], float weight, float &dweight) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float part = fp8_sigmoid(g[j]), silu = g[j] * part, product = silu * u[j];
        const float grad = d[j] * weight, up = u[j];
        dweight += d[j] * product;
        d[j] = product * weight;
        g[j] = grad * up * (part + silu * (1.0f - part));
        u[j] = grad * silu;
    }
}

typedef struct SwigluSteps {
    float dinverse, hidden_inverse, gate_up; // of the gradients and of hidden the inverse scale
} SwigluSteps;

__device__ __forceinline__ SwigluSteps swiglu_steps(const SwigluBackward &s) {
    return {1.0f / *s.dscale, 1.0f / *s.hidden_scale, *s.gate_up_scale};
}

// The same of a thread's 4 rows from y on of `rows`, columns from x on: what was kept and the gradient become codes, of
// which those of dgate and dup leave at once. Returns the largest magnitude of them, or `most`.
__device__ __forceinline__ float swiglu_back_rows(const SwigluBackward &s, const SwigluSteps &step, uint2 (&gates)[4],
                                                  uint2 (&ups)[4], uint2 (&hidden)[4], int64_t x, int64_t y,
                                                  int64_t rows, const float (&weight)[4], float (&dweight)[4],
                                                  float most) {
    uint4 grads[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = x < s.dim && y + i < rows;
        const uint8_t *kept = s.gate_up8 + (y + i) * 2 * s.dim + x;
        gates[i] = there ? load8_once(kept) : make_uint2(0, 0);
        ups[i] = there ? load8_once(kept + s.dim) : make_uint2(0, 0);
        grads[i] = there ? load16_once(s.dhidden + (y + i) * s.dim + x) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float g[8], u[8], d[8];
        e4m3_unpack(g, gates[i], step.gate_up);
        e4m3_unpack(u, ups[i], step.gate_up);
        vec_unpack<Bf16>(d, grads[i]);
        swiglu_back(g, u, d, weight[i], dweight[i]);
        most = magnitude(u, magnitude(g, most));
        gates[i] = fp8_pack<true>(g, step.dinverse);
        ups[i] = fp8_pack<true>(u, step.dinverse);
        hidden[i] = fp8_pack<false>(d, step.hidden_inverse);
        if (x < s.dim && y + i < rows) {
            uint8_t *to = s.drows + (y + i) * 2 * s.dim + x;
            *(uint2 *)to = gates[i];
            *(uint2 *)(to + s.dim) = ups[i];
        }
    }
    return most;
}

// The codes of a tile leave as its transposes, by all threads.
__device__ __forceinline__ void swiglu_tiles_store(const SwigluBackward &s, uint32_t (&tiles)[3][TILE_WORDS],
                                                   const uint2 (&dgate)[4], const uint2 (&dup)[4],
                                                   const uint2 (&hidden)[4], int64_t column, int64_t row) {
    tile_put(tiles[0], dgate);
    tile_put(tiles[1], dup);
    tile_put(tiles[2], hidden);
    __syncthreads();
    tile_store(s.dcols, tiles[0], column, s.dim, row, s.rows);
    tile_store(s.dcols + (int64_t)s.dim * s.rows, tiles[1], column, s.dim, row, s.rows);
    tile_store(s.hidden_cols, tiles[2], column, s.dim, row, s.rows);
}
