// Packing the operands of products with AVX-512: cells along k, side by side for the lines of a panel. Included where
// AVX-512 is there (gemm_avx512.c, gemm_amx.c).
#pragma once

#include "ops/cpu/cpu.h"

#include <immintrin.h>

#define PACK_INLINE static inline __attribute__((always_inline, unused))

// What the panels are made of: a float, or two bf16 that follow each other along k (zero behind an odd k).
typedef uint32_t Cell;

enum { PACK_LANES = 16 };

// ---- packing: out[panel][cell along k][line in the panel] -----------------------------------------------------------

// In place: dword i of row j becomes dword j of row i.
PACK_INLINE void pack_transpose(__m512i row[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // row[i + c]: column c of each group of four columns, of rows i to i + 3
        row[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        row[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        row[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        row[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i low = _mm512_shuffle_i32x4(row[c], row[4 + c], 0x88),
                high = _mm512_shuffle_i32x4(row[c], row[4 + c], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0x88),
                high2 = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(low, low2, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(high, high2, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        row[i] = t[i];
}

PACK_INLINE int64_t pack_cells(int64_t depth, bool half) {
    return half ? (depth + 1) / 2 : depth;
}

PACK_INLINE const void *pack_element(const void *data, int64_t index, bool half) {
    return (const char *)data + index * (half ? 2 : 4);
}

// A line is a stored row: at most 16 of them, `depth` elements each. Lines that are not there are zero.
PACK_INLINE void pack_rows(Cell *out, int64_t width, const void *in, int64_t stride, int64_t lines, int64_t depth,
                           bool half) {
    int64_t step = half ? 2 * PACK_LANES : PACK_LANES; // elements of a vector
    for (int64_t d = 0; d < depth; d += step) {
        int64_t left = depth - d < step ? depth - d : step, cells = pack_cells(left, half);
        uint32_t mask = (uint32_t)((1ull << left) - 1);
        __m512i row[PACK_LANES];
#pragma GCC unroll 16
        for (int i = 0; i < PACK_LANES; i++) {
            const void *from = pack_element(in, i * stride + d, half);
            row[i] = i >= lines ? _mm512_setzero_si512()
                     : half     ? _mm512_maskz_loadu_epi16(mask, from)
                                : _mm512_maskz_loadu_epi32((__mmask16)mask, from);
        }
        pack_transpose(row);
        Cell *to = out + d / step * PACK_LANES * width;
        if (cells == PACK_LANES)
#pragma GCC unroll 16
            for (int i = 0; i < PACK_LANES; i++)
                _mm512_storeu_si512(to + i * width, row[i]);
        else
            for (int i = 0; i < cells; i++)
                _mm512_storeu_si512(to + i * width, row[i]);
    }
}

// Cells of neighbouring lines: an element of each and the one a row further along k. Lanes outside the masks are zero.
PACK_INLINE __m512i pack_pair(const bf16 *first, int64_t stride, __mmask16 mask, __mmask16 second_mask) {
    const __m512i in_pairs = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                              6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m256i low = _mm256_maskz_loadu_epi16(mask, first), high = _mm256_maskz_loadu_epi16(second_mask, first + stride);
    return _mm512_permutex2var_epi16(_mm512_castsi256_si512(low), in_pairs, _mm512_castsi256_si512(high));
}

// A line is a stored column. Some rows at a time, over all panels: a pass per panel would touch every row of memory
// each time, and one row at a time every panel.
PACK_INLINE void pack_columns(Cell *out, int64_t width, const void *in, int64_t stride, int64_t lines, int64_t depth,
                              bool half) {
    enum { STRETCH = 16 };
    int64_t cells = pack_cells(depth, half), step = width < PACK_LANES ? width : PACK_LANES;
    for (int64_t begin = 0; begin < cells; begin += STRETCH) {
        int64_t end = begin + STRETCH < cells ? begin + STRETCH : cells;
        for (int64_t line = 0; line < lines; line += step) {
            int64_t here = lines - line < step ? lines - line : step;
            __mmask16 mask = (__mmask16)((1u << here) - 1);
            Cell *to = out + line / width * width * cells + begin * width + line % width;
            for (int64_t cell = begin; cell < end; cell++, to += width) {
                __m512i both;
                if (half) {
                    const bf16 *even = (const bf16 *)in + 2 * cell * stride + line;
                    both = pack_pair(even, stride, mask, 2 * cell + 1 < depth ? mask : 0);
                } else {
                    both = _mm512_maskz_loadu_epi32(mask, (const float *)in + cell * stride + line);
                }
                _mm512_mask_storeu_epi32(to, (__mmask16)((1u << step) - 1), both);
            }
        }
    }
}

// Lines [line, line + lines) and elements [first, first + depth) along k; width and half are constants.
PACK_INLINE void pack(Cell *out, int64_t width, const GemmOperand *operand, bool line_is_row, int64_t line,
                      int64_t lines, int64_t first, int64_t depth, bool half) {
    int64_t stride = operand->stride, step = width < PACK_LANES ? width : PACK_LANES;
    if (!line_is_row) {
        pack_columns(out, width, pack_element(operand->data, first * stride + line, half), stride, lines, depth, half);
        return;
    }
    const void *in = pack_element(operand->data, line * stride + first, half);
    for (int64_t i = 0; i < lines; i += step)
        pack_rows(out + i / width * width * pack_cells(depth, half) + i % width, width,
                  pack_element(in, i * stride, half), stride, lines - i < step ? lines - i : step, depth, half);
}
