// Products of bf16 by one thread with AMX: a tile of 16 x 16 floats gains what 16 rows of a and 16 columns of b have
// along 32 elements of k, in one instruction. What is summed into an element, and in what order, depends on k alone:
// 32 by 32 elements of k, of each 32 the even and the odd ones apart. The instruction takes subnormal numbers for zero
// and makes none.
#include "ops/cpu/cpu.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include "ops/cpu/pack_avx512.h"

#define WITH_AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")))

// Sums are made in blocks of 2 x 2 tiles. A panel of b, packed just before, stays in the first cache while the packed
// rows of a pass by from the second; DEPTH elements of k of both are what fits there.
enum { TILE = 16, STEP = 32, BLOCK = 2 * TILE, DEPTH = 384, STEPS = DEPTH / STEP };
enum {
    TILE_CELLS = TILE * TILE, // of a tile of a or b: two bf16 a cell
    A_CELLS = AMX_ROWS / TILE * STEPS * TILE_CELLS,
    B_CELLS = STEPS * TILE * BLOCK,
    SUMS = BLOCK * BLOCK,
};
static_assert(AMX_ROWS % BLOCK == 0 && AMX_COLUMNS % BLOCK == 0, "whole blocks");
static_assert(A_CELLS + B_CELLS + SUMS + AMX_ROWS * AMX_COLUMNS <= GEMM_SCRATCH_FLOATS, "the buffers fit the scratch");

static atomic_bool amx_used;

void cpu_amx_start(bool used) {
    atomic_store(&amx_used, used);
}

bool cpu_amx_multiplies(const Gemm *gemm) {
    return gemm->a.dtype == DTYPE_BF16 && gemm->b.dtype == DTYPE_BF16 &&
           (gemm->c_dtype == DTYPE_F32 || gemm->c_dtype == DTYPE_BF16) &&
           atomic_load_explicit(&amx_used, memory_order_relaxed);
}

// ---- packing: a into whole tiles, out[tile of rows][step along k], b as panels of 32 columns ------------------------

// Rows of a tile that are not there hold whatever they hold: their sums go nowhere.
static void pack_a_rows(Cell *out, const bf16 *in, int64_t stride, int64_t rows, int64_t depth) {
    int64_t steps = (depth + STEP - 1) / STEP;
    for (int64_t row = 0; row < rows; row++, in += stride) {
        Cell *to = out + (row / TILE * steps * TILE + row % TILE) * TILE;
        for (int64_t d = 0; d < depth; d += STEP, to += TILE_CELLS) {
            __mmask32 mask = depth - d < STEP ? (1u << (depth - d)) - 1 : ~0u;
            _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, in + d));
        }
    }
}

static void pack_a_columns(Cell *out, const bf16 *in, int64_t stride, int64_t rows, int64_t depth) {
    int64_t steps = (depth + STEP - 1) / STEP;
    for (int64_t step = 0; step < steps; step++, in += STEP * stride) {
        for (int64_t row = 0; row < rows; row += TILE) {
            __mmask16 mask = rows - row < TILE ? (__mmask16)((1u << (rows - row)) - 1) : 0xffff;
            int64_t left = depth - step * STEP;
            __m512i cell[TILE];
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++)
                cell[i] =
                    pack_pair(in + 2 * i * stride + row, stride, 2 * i < left ? mask : 0, 2 * i + 1 < left ? mask : 0);
            pack_transpose(cell);
            Cell *to = out + (row / TILE * steps + step) * TILE_CELLS;
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++)
                _mm512_storeu_si512(to + i * TILE, cell[i]);
        }
    }
}

static void pack_a(Cell *out, const GemmOperand *a, int64_t row, int64_t rows, int64_t first, int64_t depth) {
    const bf16 *in = a->data;
    if (a->transposed)
        pack_a_columns(out, in + first * a->stride + row, a->stride, rows, depth);
    else
        pack_a_rows(out, in + row * a->stride + first, a->stride, rows, depth);
}

static void pack_b(Cell *out, const GemmOperand *b, int64_t column, int64_t columns, int64_t first, int64_t depth) {
    pack(out, BLOCK, b, b->transposed, column, columns, first, depth, true);
    int64_t cells = pack_cells(depth, true), padded = (depth + STEP - 1) / STEP * TILE;
    memset(out + cells * BLOCK, 0, (size_t)((padded - cells) * BLOCK) * sizeof *out);
}

// ---- a block of 2 x 2 tiles -----------------------------------------------------------------------------------------

#ifndef TILES_CONFIGURE // a test stands in for the instructions of tiles (tests/ops/amx_emulated.c)
// gcc 12's intrinsic says that 8 of the 64 bytes are read, and the stores of the others may be left out.
#define TILES_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#endif

typedef struct __attribute__((packed)) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

WITH_AMX static void tiles_configure(void) {
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE * 4;
        config.rows[i] = TILE;
    }
    TILES_CONFIGURE(config);
}

// The compiler does not know that tiles are loaded from what was just written.
#define TILES_SEE_MEMORY() __asm__ volatile("" ::: "memory")

// sums = old (NULL: 0) + a . b. Tiles: 0 to 3 sums, 4 and 5 rows of a, 6 and 7 columns of b.
WITH_AMX static __attribute__((noinline)) void block_multiply(const Cell *a, const Cell *b, int64_t steps,
                                                              const float *old, int64_t old_stride, float *sums,
                                                              int64_t stride, bool both) {
    TILES_SEE_MEMORY();
    if (old) {
        _tile_loadd(0, old, old_stride * 4);
        _tile_loadd(1, old + TILE, old_stride * 4);
        if (both) {
            _tile_loadd(2, old + TILE * old_stride, old_stride * 4);
            _tile_loadd(3, old + TILE * old_stride + TILE, old_stride * 4);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const Cell *below = a + steps * TILE_CELLS;
    for (int64_t i = 0; i < steps; i++, a += TILE_CELLS, below += TILE_CELLS, b += TILE * BLOCK) {
        _tile_loadd(6, b, BLOCK * 4);
        _tile_loadd(7, b + TILE, BLOCK * 4);
        _tile_loadd(4, a, TILE * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, below, TILE * 4);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, stride * 4);
    _tile_stored(1, sums + TILE, stride * 4);
    if (both) {
        _tile_stored(2, sums + TILE * stride, stride * 4);
        _tile_stored(3, sums + TILE * stride + TILE, stride * 4);
    }
    TILES_SEE_MEMORY();
}

// ---- where the sums of a block come from and go to ------------------------------------------------------------------

typedef struct BlockOut {
    const float *old; // what an earlier pass has left, or what is added to a product in floats; NULL: none
    float *floats;    // NULL: the result is bf16
    int64_t float_stride;
    bf16 *c;
    const bf16 *add; // NULL: none
    int64_t c_stride;
    int64_t rows, columns;
} BlockOut;

PACK_INLINE __mmask16 lanes_from(int64_t column, int64_t columns) {
    int64_t left = columns - column;
    return left >= TILE ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

WITH_AMX static void sums_to_bf16(const BlockOut *out, const float *sums) {
    __mmask16 masks[2] = {lanes_from(0, out->columns), lanes_from(TILE, out->columns)};
    for (int64_t row = 0; row < out->rows; row++) {
        for (int v = 0; v < 2; v++) {
            __m512 sum = _mm512_loadu_ps(sums + row * BLOCK + v * TILE);
            if (out->add) {
                __m256i add = _mm256_maskz_loadu_epi16(masks[v], out->add + row * out->c_stride + v * TILE);
                sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(add), 16)));
            }
            _mm256_mask_storeu_epi16(out->c + row * out->c_stride + v * TILE, masks[v],
                                     (__m256i)_mm512_cvtneps_pbh(sum));
        }
    }
}

static void floats_copy(float *out, int64_t out_stride, const float *in, int64_t in_stride, const BlockOut *block) {
    for (int64_t row = 0; row < block->rows; row++)
        memcpy(out + row * out_stride, in + row * in_stride, (size_t)block->columns * sizeof *out);
}

// buffer: [BLOCK, BLOCK], where a block at an edge or of bf16 passes through.
WITH_AMX static void block_run(const Cell *a, const Cell *b, int64_t steps, const BlockOut *out, float *buffer) {
    bool both = out->rows > TILE, whole = (out->rows == BLOCK || out->rows == TILE) && out->columns == BLOCK;
    const float *old = out->old;
    int64_t old_stride = out->float_stride;
    if (old && !whole) {
        floats_copy(buffer, BLOCK, old, old_stride, out);
        old = buffer;
        old_stride = BLOCK;
    }
    bool direct = out->floats && whole;
    float *sums = direct ? out->floats : buffer;
    block_multiply(a, b, steps, old, old_stride, sums, direct ? out->float_stride : BLOCK, both);
    if (!out->floats)
        sums_to_bf16(out, buffer);
    else if (!direct)
        floats_copy(out->floats, out->float_stride, buffer, BLOCK, out);
}

WITH_AMX void cpu_amx_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns,
                           float *scratch) {
    assert(rows <= AMX_ROWS && columns <= AMX_COLUMNS);
    bool floats = gemm->c_dtype == DTYPE_F32;
    int64_t at = row * gemm->c_stride + column, first = 0;
    Cell *a = (Cell *)scratch, *b = a + A_CELLS;
    float *buffer = scratch + A_CELLS + B_CELLS;
    float *partial = floats ? (float *)gemm->c + at : buffer + SUMS;
    int64_t stride = floats ? gemm->c_stride : AMX_COLUMNS;
    const void *add = gemm->accumulate ? gemm->c : gemm->add;
    if (add) add = cpu_at(add, at, gemm->c_dtype);
    int64_t most = cpu_gemm_tile(gemm->k, DEPTH, STEP); // equal passes
    tiles_configure();
    do { // once where k is 0, too
        int64_t depth = gemm->k - first < most ? gemm->k - first : most, steps = (depth + STEP - 1) / STEP;
        bool last = first + depth == gemm->k;
        pack_a(a, &gemm->a, row, rows, first, depth);
        const float *old = first ? partial : floats ? add : NULL;
        for (int64_t j = 0; j < columns; j += BLOCK) {
            BlockOut out = {.float_stride = stride, .c_stride = gemm->c_stride, .columns = columns - j};
            if (out.columns > BLOCK) out.columns = BLOCK;
            pack_b(b, &gemm->b, column + j, out.columns, first, depth);
            for (int64_t i = 0; i < rows; i += BLOCK) {
                out.rows = rows - i < BLOCK ? rows - i : BLOCK;
                if (old) out.old = old + i * stride + j;
                if (floats || !last) {
                    out.floats = partial + i * stride + j;
                } else {
                    out.floats = NULL;
                    out.c = (bf16 *)gemm->c + at + i * gemm->c_stride + j;
                    if (add) out.add = (const bf16 *)add + i * gemm->c_stride + j;
                }
                block_run(a + i / TILE * steps * TILE_CELLS, b, steps, &out, buffer);
            }
        }
        first += depth;
    } while (first < gemm->k);
    _tile_release();
}

#else

void cpu_amx_start(bool used) {
    (void)used;
}

bool cpu_amx_multiplies(const Gemm *gemm) {
    (void)gemm;
    return false;
}

void cpu_amx_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    (void)gemm, (void)row, (void)rows, (void)column, (void)columns, (void)scratch;
    assert(!"this copy of the file has no AVX-512");
}

#endif
