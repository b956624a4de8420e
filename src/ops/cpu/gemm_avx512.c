// Products of blocks by one thread with AVX-512: of floats, and of bf16 by the CPU's own instruction for them where it
// has one (AVX512-BF16: two products along k added to a float). Both operands are packed into panels, so one register
// tile serves all layouts. What is summed into an element, and in what order, depends on k alone: not on where the
// element stands, on the tile, or on the number of threads. The bf16 instruction takes subnormal numbers for zero and
// makes none.
#include "ops/cpu/cpu.h"

#include <assert.h>
#include <stdatomic.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include "ops/cpu/pack_avx512.h"

#define WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

// A register tile is TILE_ROWS x 2 vectors: 28 sums, two vectors of b and a broadcast cell of a. A panel of b, packed
// just before, stays in the first cache while the packed rows of a pass by from the second; DEPTH cells along k are
// what fits there.
enum { LANES = PACK_LANES, TILE_ROWS = AVX512_TILE_ROWS, TILE_COLUMNS = AVX512_TILE_COLUMNS, DEPTH = AVX512_DEPTH };
enum {
    A_CELLS = AVX512_ROWS * DEPTH + LANES, // a whole vector is stored where a panel's line ends
    B_CELLS = TILE_COLUMNS * DEPTH,
    SUMS = AVX512_WAITING_ROWS * AVX512_WAITING_COLUMNS,
};
static_assert(TILE_COLUMNS == 2 * LANES, "two vectors of b");
static_assert(A_CELLS + B_CELLS + SUMS <= GEMM_SCRATCH_FLOATS, "the buffers fit the scratch");
static_assert((int)GEMM_TILE <= (int)AVX512_WAITING_ROWS && (int)GEMM_TILE <= (int)AVX512_WAITING_COLUMNS,
              "of any caller");

static atomic_bool bf16_used;

void cpu_avx512_start(bool bf16) {
    atomic_store(&bf16_used, bf16);
}

bool cpu_avx512_multiplies(const Gemm *gemm) {
    if (gemm->a.dtype != gemm->b.dtype) return false;
    return gemm->a.dtype == DTYPE_F32
               ? gemm->c_dtype == DTYPE_F32
               : gemm->a.dtype == DTYPE_BF16 && atomic_load_explicit(&bf16_used, memory_order_relaxed);
}

static void pack_a(Cell *out, const GemmOperand *a, int64_t row, int64_t rows, int64_t first, int64_t depth) {
    if (a->dtype == DTYPE_F32)
        pack(out, TILE_ROWS, a, !a->transposed, row, rows, first, depth, false);
    else
        pack(out, TILE_ROWS, a, !a->transposed, row, rows, first, depth, true);
}

static void pack_b(Cell *out, const GemmOperand *b, int64_t column, int64_t columns, int64_t first, int64_t depth) {
    if (b->dtype == DTYPE_F32)
        pack(out, TILE_COLUMNS, b, b->transposed, column, columns, first, depth, false);
    else
        pack(out, TILE_COLUMNS, b, b->transposed, column, columns, first, depth, true);
}

// ---- the register tile ----------------------------------------------------------------------------------------------

// Where the sums of a tile go. Every pass along k but the last leaves floats; `old` is what an earlier pass has left,
// or what is added to a product in floats.
typedef struct TileOut {
    const float *old; // NULL: none
    float *floats;    // NULL: the result is bf16
    int64_t float_stride;
    bf16 *c;
    const bf16 *add; // NULL: none
    int64_t c_stride;
    int64_t columns;
} TileOut;

PACK_INLINE __m512 bf16_load(__mmask16 mask, const bf16 *in) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, in)), 16));
}

PACK_INLINE WITH_BF16 void tile_store(const TileOut *out, int64_t row, int v, __m512 sum, bool half) {
    int64_t left = out->columns - v * LANES;
    if (left <= 0) return;
    __mmask16 mask = left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
    if (out->old) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, out->old + row * out->float_stride + v * LANES));
    if (!half || out->floats) {
        _mm512_mask_storeu_ps(out->floats + row * out->float_stride + v * LANES, mask, sum);
        return;
    }
    if (out->add) sum = _mm512_add_ps(sum, bf16_load(mask, out->add + row * out->c_stride + v * LANES));
    _mm256_mask_storeu_epi16(out->c + row * out->c_stride + v * LANES, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

PACK_INLINE WITH_BF16 __m512 multiply_add(__m512 sum, __m512i a, __m512i b, bool half) {
    return half ? _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a) : _mm512_fmadd_ps((__m512)a, (__m512)b, sum);
}

// rows and half are constants.
PACK_INLINE WITH_BF16 void tile(int rows, const Cell *a, const Cell *b, int64_t cells, const TileOut *out, bool half) {
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t d = 0; d < cells; d++, a += TILE_ROWS, b += TILE_COLUMNS) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + LANES);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            __m512i all = _mm512_set1_epi32((int)a[i]);
            sum[i][0] = multiply_add(sum[i][0], all, b0, half);
            sum[i][1] = multiply_add(sum[i][1], all, b1, half);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        tile_store(out, i, 0, sum[i][0], half);
        tile_store(out, i, 1, sum[i][1], half);
    }
}

// Rows that are not there cost nothing.
PACK_INLINE WITH_BF16 void tile_rows(int64_t rows, const Cell *a, const Cell *b, int64_t cells, const TileOut *out,
                                     bool half) {
#define TILE_CASE(n) \
    case n: tile(n, a, b, cells, out, half); return;
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
    default: tile(TILE_ROWS, a, b, cells, out, half);
    }
#undef TILE_CASE
}

typedef void TileRun(int64_t rows, const Cell *a, const Cell *b, int64_t cells, const TileOut *out);

WITH_BF16 static void tile_bf16(int64_t rows, const Cell *a, const Cell *b, int64_t cells, const TileOut *out) {
    tile_rows(rows, a, b, cells, out, true);
}

// Of what WITH_BF16 allows, nothing is used in floats: this runs on every CPU with AVX-512.
WITH_BF16 static void tile_floats(int64_t rows, const Cell *a, const Cell *b, int64_t cells, const TileOut *out) {
    tile_rows(rows, a, b, cells, out, false);
}

void cpu_avx512_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    assert(rows <= AVX512_ROWS);
    assert(!cpu_avx512_waits(gemm) || (rows <= AVX512_WAITING_ROWS && columns <= AVX512_WAITING_COLUMNS));
    bool half = gemm->a.dtype == DTYPE_BF16, floats = gemm->c_dtype == DTYPE_F32;
    TileRun *run = half ? tile_bf16 : tile_floats;
    int64_t most = half ? 2 * DEPTH : DEPTH, at = row * gemm->c_stride + column, first = 0;
    Cell *a = (Cell *)scratch, *b = a + A_CELLS;
    float *partial = floats ? (float *)gemm->c + at : (float *)(b + B_CELLS);
    int64_t stride = floats ? gemm->c_stride : AVX512_WAITING_COLUMNS;
    const void *add = gemm->accumulate ? gemm->c : gemm->add;
    if (add) add = cpu_at(add, at, gemm->c_dtype);
    do { // once where k is 0, too
        int64_t depth = gemm->k - first < most ? gemm->k - first : most, cells = pack_cells(depth, half);
        bool last = first + depth == gemm->k;
        pack_a(a, &gemm->a, row, rows, first, depth);
        const float *old = first ? partial : floats ? add : NULL;
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
            TileOut out = {.float_stride = stride, .c_stride = gemm->c_stride, .columns = columns - j};
            if (out.columns > TILE_COLUMNS) out.columns = TILE_COLUMNS;
            pack_b(b, &gemm->b, column + j, out.columns, first, depth);
            for (int64_t i = 0; i < rows; i += TILE_ROWS) {
                if (old) out.old = old + i * stride + j;
                if (floats || !last) {
                    out.floats = partial + i * stride + j;
                } else {
                    out.c = (bf16 *)gemm->c + at + i * gemm->c_stride + j;
                    if (add) out.add = (const bf16 *)add + i * gemm->c_stride + j;
                }
                run(rows - i < TILE_ROWS ? rows - i : TILE_ROWS, a + i * cells, b, cells, &out);
            }
        }
        first += depth;
    } while (first < gemm->k);
}

#else

void cpu_avx512_start(bool bf16) {
    (void)bf16;
}

bool cpu_avx512_multiplies(const Gemm *gemm) {
    (void)gemm;
    return false;
}

void cpu_avx512_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    (void)gemm, (void)row, (void)rows, (void)column, (void)columns, (void)scratch;
    assert(!"this copy of the file has no AVX-512");
}

#endif
