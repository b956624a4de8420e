// src/ops/cpu/gemm_amx.c with the instructions of tiles as plain loops: its packing, its edges and its sums, on every
// CPU with AVX512-BF16. What the compiler makes of the real ones, and that it knows what memory they touch, is not
// seen.
#include "gemm_parts.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static _Thread_local struct {
    bool configured;
    uint32_t tile[TILES][ROWS][ROW_BYTES / 4];
} unit;

// ldtilecfg: palette, first row, 14 reserved bytes, bytes of a row and rows of 16 tiles, of which there are 8.
static void tiles_set(const uint8_t config[64]) {
    assert(config[0] == 1);
    for (int i = 1; i < 16; i++)
        assert(config[i] == 0);
    for (int i = 0; i < 16; i++) {
        assert(config[16 + 2 * i] == (i < TILES ? ROW_BYTES : 0) && config[17 + 2 * i] == 0);
        assert(config[48 + i] == (i < TILES ? ROWS : 0));
    }
    unit.configured = true;
    memset(unit.tile, 0, sizeof unit.tile);
}

static void tiles_forget(void) {
    assert(unit.configured);
    memset(&unit, 0, sizeof unit);
}

static void tile_load(int to, const void *from, int64_t stride) {
    assert(unit.configured);
    for (int row = 0; row < ROWS; row++)
        memcpy(unit.tile[to][row], (const char *)from + row * stride, ROW_BYTES);
}

static void tile_store(int from, void *to, int64_t stride) {
    assert(unit.configured);
    for (int row = 0; row < ROWS; row++)
        memcpy((char *)to + row * stride, unit.tile[from][row], ROW_BYTES);
}

static void tile_clear(int to) {
    assert(unit.configured);
    memset(unit.tile[to], 0, sizeof unit.tile[to]);
}

static float half_of(uint32_t cell, bool upper) { // subnormal numbers are zero
    uint32_t bits = upper ? cell & 0xffff0000u : cell << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return bits & 0x7f800000u ? value : 0;
}

// sums[m][n] += row m of a . column n of b, whose rows hold two elements along k of each column.
static void tile_multiply(int sums, int a, int b) {
    assert(unit.configured && sums != a && sums != b && a != b);
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < ROWS; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < ROWS; k++) {
                even = fmaf(half_of(unit.tile[a][m][k], false), half_of(unit.tile[b][k][n], false), even);
                odd = fmaf(half_of(unit.tile[a][m][k], true), half_of(unit.tile[b][k][n], true), odd);
            }
            memcpy(&sum, &unit.tile[sums][m][n], sizeof sum);
            sum += even + odd;
            memcpy(&unit.tile[sums][m][n], &sum, sizeof sum);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadd(tile, from, stride) tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride)  tile_store(tile, to, stride)
#define _tile_zero(tile)                tile_clear(tile)
#define _tile_dpbf16ps(sums, a, b)      tile_multiply(sums, a, b)
#define _tile_release                   tiles_forget
#define TILES_CONFIGURE(config)         tiles_set((const uint8_t *)&(config))

#define cpu_amx_start      amx_emulated_start
#define cpu_amx_multiplies amx_emulated_multiplies
#define cpu_amx_part       amx_emulated_part
void cpu_amx_start(bool used);
bool cpu_amx_multiplies(const Gemm *gemm);
#include "ops/cpu/gemm_amx.c"

const bool amx_emulated_built = true;

bool amx_emulated_in_use(void) {
    return unit.configured;
}

#else

const bool amx_emulated_built = false;

bool amx_emulated_in_use(void) {
    return false;
}

void amx_emulated_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    (void)gemm, (void)row, (void)rows, (void)column, (void)columns, (void)scratch;
}

#endif
