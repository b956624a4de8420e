// Products of bf16 blocks by the CPU's own instruction for them (AVX512-BF16: pairs of products added to floats), by
// one thread. Both operands are packed into panels of pairs along k, so the same register tile serves all layouts. What
// is summed into an element, and in what order, depends on k alone: not on where the element stands, on the tile, or on
// the number of threads. The instruction takes subnormal numbers for zero and never makes one.
#include "ops/cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>

#define WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define INLINE    static inline __attribute__((always_inline)) WITH_BF16

// A register tile of TILE_ROWS x 2 vectors: 28 sums, two vectors of b, and elements of a as broadcast from memory. The
// panel of b stays in the first cache while all rows of a pass by; DEPTH is what fits there.
enum { LANES = 16, TILE_ROWS = 14, TILE_COLUMNS = 2 * LANES, DEPTH = 384, DEPTH_PAIRS = DEPTH / 2 };
enum {
    A_PANELS = (GEMM_TILE + TILE_ROWS - 1) / TILE_ROWS,
    A_PAIRS = A_PANELS * TILE_ROWS * DEPTH_PAIRS + LANES, // a whole vector is stored where a panel's line ends
    B_PAIRS = GEMM_TILE * DEPTH_PAIRS,
};
static_assert(A_PAIRS + B_PAIRS + GEMM_TILE * GEMM_TILE <= GEMM_SCRATCH_FLOATS, "the buffers fit the scratch");

typedef uint32_t Pair; // elements 2i and 2i + 1 along k of one line

static bool products_used;

void cpu_bf16_start(void) {
    const char *asked = getenv("HEARTH_CPU_BF16");
    products_used = __builtin_cpu_supports("avx512bf16") && !(asked && strcmp(asked, "0") == 0);
}

bool cpu_bf16_products(void) {
    return products_used;
}

// ---- packing: out[panel][pair][line in the panel], zero where k is odd ----------------------------------------------

// In place: dword i of row j becomes dword j of row i.
INLINE void transpose(__m512i row[16]) {
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

// A line is a stored row: `lines` (at most 16) of them, `depth` elements each. Lines beyond are zero.
INLINE void pack_rows(Pair *out, int64_t width, const bf16 *in, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t d = 0; d < depth; d += 32) {
        int64_t left = depth - d;
        __mmask32 mask = left >= 32 ? 0xffffffffu : ((__mmask32)1 << left) - 1;
        __m512i row[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            row[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, in + i * stride + d) : _mm512_setzero_si512();
        transpose(row);
        int64_t pairs = left >= 32 ? 16 : (left + 1) / 2;
        Pair *to = out + d / 2 * width;
        if (pairs == 16)
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(to + i * width, row[i]);
        else
            for (int i = 0; i < pairs; i++)
                _mm512_storeu_si512(to + i * width, row[i]);
    }
}

// A line is a stored column. Row by row over all panels: a pass per panel would touch every row of memory each time.
INLINE void pack_columns(Pair *out, int64_t width, const bf16 *in, int64_t stride, int64_t lines, int64_t depth) {
    const __m512i evens_odds = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                                6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    int64_t pairs = (depth + 1) / 2, step = width < LANES ? width : LANES;
    for (int64_t pair = 0; pair < pairs; pair++) {
        const bf16 *even = in + 2 * pair * stride, *odd = even + stride;
        bool whole = 2 * pair + 1 < depth;
        for (int64_t line = 0; line < lines; line += step) {
            int64_t here = lines - line < step ? lines - line : step;
            __mmask16 mask = (__mmask16)((1u << here) - 1);
            __m256i first = _mm256_maskz_loadu_epi16(mask, even + line);
            __m256i second = _mm256_maskz_loadu_epi16(whole ? mask : 0, odd + line);
            __m512i both =
                _mm512_permutex2var_epi16(_mm512_castsi256_si512(first), evens_odds, _mm512_castsi256_si512(second));
            Pair *to = out + line / width * width * pairs + pair * width + line % width;
            _mm512_mask_storeu_epi32(to, (__mmask16)((1u << step) - 1), both);
        }
    }
}

// Lines [line, line + lines) and elements [first, first + depth) of k; width: TILE_ROWS or TILE_COLUMNS, a constant.
INLINE void pack(Pair *out, int64_t width, const GemmOperand *operand, bool line_is_row, int64_t line, int64_t lines,
                 int64_t first, int64_t depth) {
    const bf16 *in = operand->data;
    int64_t pairs = (depth + 1) / 2, step = width < LANES ? width : LANES;
    if (!line_is_row) {
        pack_columns(out, width, in + first * operand->stride + line, operand->stride, lines, depth);
        return;
    }
    in += line * operand->stride + first;
    for (int64_t i = 0; i < lines; i += step)
        pack_rows(out + i / width * width * pairs + i % width, width, in + i * operand->stride, operand->stride,
                  lines - i < step ? lines - i : step, depth);
}

WITH_BF16 static void pack_a(Pair *out, const GemmOperand *a, int64_t row, int64_t rows, int64_t first, int64_t depth) {
    pack(out, TILE_ROWS, a, !a->transposed, row, rows, first, depth);
}

WITH_BF16 static void pack_b(Pair *out, const GemmOperand *b, int64_t column, int64_t columns, int64_t first,
                             int64_t depth) {
    pack(out, TILE_COLUMNS, b, b->transposed, column, columns, first, depth);
}

// ---- the register tile ----------------------------------------------------------------------------------------------

// Where the sums of a tile go. Every pass over k but the last leaves floats; `old` is what an earlier pass has left, or
// what is added to a product in floats.
typedef struct TileOut {
    const float *old; // NULL: none
    float *floats;    // NULL: the result is bf16
    int64_t float_stride;
    bf16 *c;
    const bf16 *add; // NULL: none
    int64_t c_stride;
    int64_t columns;
} TileOut;

INLINE __m512 bf16_load(__mmask16 mask, const bf16 *in) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, in)), 16));
}

INLINE void tile_store(const TileOut *out, int64_t row, int v, __m512 sum) {
    int64_t left = out->columns - v * LANES;
    if (left <= 0) return;
    __mmask16 mask = left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
    if (out->old) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, out->old + row * out->float_stride + v * LANES));
    if (out->floats) {
        _mm512_mask_storeu_ps(out->floats + row * out->float_stride + v * LANES, mask, sum);
        return;
    }
    if (out->add) sum = _mm512_add_ps(sum, bf16_load(mask, out->add + row * out->c_stride + v * LANES));
    _mm256_mask_storeu_epi16(out->c + row * out->c_stride + v * LANES, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

INLINE void tile(const int rows, const Pair *a, const Pair *b, int64_t pairs, const TileOut *out) {
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t d = 0; d < pairs; d++, a += TILE_ROWS, b += TILE_COLUMNS) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + LANES);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            __m512bh both = (__m512bh)_mm512_set1_epi32((int)a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], b0, both);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], b1, both);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        tile_store(out, i, 0, sum[i][0]);
        tile_store(out, i, 1, sum[i][1]);
    }
}

// Rows that are not there cost nothing.
WITH_BF16 static void tile_run(int64_t rows, const Pair *a, const Pair *b, int64_t pairs, const TileOut *out) {
#define TILE_CASE(n) \
    case n: tile(n, a, b, pairs, out); return;
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
        TILE_CASE(13)
    default: tile(TILE_ROWS, a, b, pairs, out);
    }
#undef TILE_CASE
}

void cpu_gemm_bf16_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    assert(rows <= GEMM_TILE && columns <= GEMM_TILE);
    Pair *a = (Pair *)scratch, *b = a + A_PAIRS;
    bool floats = gemm->c_dtype == DTYPE_F32;
    int64_t at = row * gemm->c_stride + column;
    const void *add = gemm->accumulate ? gemm->c : gemm->add;
    if (add) add = cpu_at(add, at, gemm->c_dtype);
    TileOut whole = {.c_stride = gemm->c_stride};
    float *partial = floats ? (float *)gemm->c + at : (float *)(b + B_PAIRS);
    whole.float_stride = floats ? gemm->c_stride : GEMM_TILE;
    int64_t first = 0;
    do { // once where k is 0, too
        int64_t depth = gemm->k - first < DEPTH ? gemm->k - first : DEPTH, pairs = (depth + 1) / 2;
        bool last = first + depth == gemm->k;
        pack_a(a, &gemm->a, row, rows, first, depth);
        pack_b(b, &gemm->b, column, columns, first, depth);
        const float *old = first ? partial : floats ? add : NULL;
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
            for (int64_t i = 0; i < rows; i += TILE_ROWS) {
                TileOut out = whole;
                out.columns = columns - j;
                out.old = old ? old + i * whole.float_stride + j : NULL;
                out.floats = floats || !last ? partial + i * whole.float_stride + j : NULL;
                if (!out.floats) {
                    out.c = (bf16 *)gemm->c + at + i * gemm->c_stride + j;
                    out.add = add ? (const bf16 *)add + i * gemm->c_stride + j : NULL;
                }
                tile_run(rows - i < TILE_ROWS ? rows - i : TILE_ROWS, a + i * pairs, b + j * pairs, pairs, &out);
            }
        first += depth;
    } while (first < gemm->k);
}

#else

void cpu_bf16_start(void) {}

bool cpu_bf16_products(void) {
    return false;
}

void cpu_gemm_bf16_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    (void)gemm, (void)row, (void)rows, (void)column, (void)columns, (void)scratch;
    assert(!"this copy has no bf16 products");
}

#endif
