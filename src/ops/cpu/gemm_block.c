// Products of blocks by one thread: OpenBLAS where it is there, else packed panels and a register tile of our own.
// 16-bit operands become floats on the way in, so both work on floats only.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <assert.h>

size_t cpu_gemm_scratch_bytes(void) {
    return GEMM_SCRATCH_FLOATS * sizeof(float);
}

static void operand_floats(float *out, const GemmOperand *operand, const void *in, int64_t count) {
    if (operand->table)
        cpu_fp8_to_floats(out, in, operand->table, count);
    else
        cpu_to_floats(out, in, operand->dtype, count);
}

#ifdef HEARTH_HAVE_BLAS

Status cpu_gemm_start(void) {
    return cpu_blas_start();
}

static void blas_sgemm(float *c, int64_t c_stride, bool accumulate, const float *a, int64_t a_stride, bool a_transposed,
                       const float *b, int64_t b_stride, bool b_transposed, int64_t m, int64_t n, int64_t k) {
    if (!m || !n) return;
    if (!k) a_stride = b_stride = a_stride > b_stride ? a_stride : b_stride;
    cpu_blas_release();
    cpu_blas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans,
                   (blasint)m, (blasint)n, (blasint)k, 1.0f, a, (blasint)a_stride, b, (blasint)b_stride,
                   accumulate ? 1.0f : 0.0f, c, (blasint)c_stride);
}

// Rows [row, row + rows) and columns [column, column + columns) of a stored operand as floats.
static const float *stored_floats(const GemmOperand *operand, int64_t row, int64_t rows, int64_t column,
                                  int64_t columns, float *buffer, int64_t *stride) {
    const void *first = cpu_at(operand->data, row * operand->stride + column, operand->dtype);
    if (operand->dtype == DTYPE_F32) {
        *stride = operand->stride;
        return first;
    }
    for (int64_t i = 0; i < rows; i++)
        operand_floats(buffer + i * columns, operand, cpu_at(first, i * operand->stride, operand->dtype), columns);
    *stride = columns;
    return buffer;
}

static void multiply(float *c, int64_t c_stride, bool accumulate, const GemmOperand *a, int64_t row, int64_t rows,
                     const GemmOperand *b, int64_t column, int64_t columns, int64_t k, float *scratch) {
    float *a_buffer = scratch, *b_buffer = scratch + GEMM_TILE * GEMM_DEPTH;
    // Floats need no buffer, hence no limit on the depth.
    int64_t most = a->dtype == DTYPE_F32 && b->dtype == DTYPE_F32 ? k : GEMM_DEPTH;
    for (int64_t first = 0; first < k; first += most) {
        int64_t depth = k - first < most ? k - first : most, a_stride, b_stride;
        const float *af = a->transposed ? stored_floats(a, first, depth, row, rows, a_buffer, &a_stride)
                                        : stored_floats(a, row, rows, first, depth, a_buffer, &a_stride);
        const float *bf = b->transposed ? stored_floats(b, column, columns, first, depth, b_buffer, &b_stride)
                                        : stored_floats(b, first, depth, column, columns, b_buffer, &b_stride);
        blas_sgemm(c, c_stride, accumulate || first, af, a_stride, a->transposed, bf, b_stride, b->transposed, rows,
                   columns, depth);
    }
}

#else

// A register tile is TILE_ROWS x TILE_COLUMNS: as many accumulators as the registers hold beside two vectors of b and
// one broadcast element of a.
enum { TILE_ROWS = VEC_LANES == 16 ? 12 : 6, TILE_VECS = 2, TILE_COLUMNS = TILE_VECS * VEC_LANES, PANEL_DEPTH = 256 };

Status cpu_gemm_start(void) {
    return NULL;
}

static inline float operand_get(const GemmOperand *operand, int64_t stored_row, int64_t stored_column) {
    int64_t i = stored_row * operand->stride + stored_column;
    if (operand->table) return operand->table[((const uint8_t *)operand->data)[i]];
    return storage_get(operand->data, i, operand->dtype);
}

// Packs `count` lines of `depth` elements from line `line`, element `first` on, into panels of `width` lines:
// out[panel][element][line in panel], zero beyond the last line. along: a line is a stored row, else a stored column.
static void pack(float *out, const GemmOperand *operand, bool along, int64_t line, int64_t count, int64_t first,
                 int64_t depth, int64_t width) {
    for (int64_t panel = 0; panel < count; panel += width) {
        int64_t here = count - panel < width ? count - panel : width;
        if (here < width) memset(out, 0, (size_t)(width * depth) * sizeof(float));
        if (along) {
            for (int64_t i = 0; i < here; i++)
                for (int64_t d = 0; d < depth; d++)
                    out[d * width + i] = operand_get(operand, line + panel + i, first + d);
        } else {
            for (int64_t d = 0; d < depth; d++)
                operand_floats(out + d * width, operand,
                               cpu_at(operand->data, (first + d) * operand->stride + line + panel, operand->dtype),
                               here);
        }
        out += width * depth;
    }
}

static void tile(float *c, int64_t c_stride, bool accumulate, const float *a, const float *b, int64_t depth,
                 int64_t rows, int64_t columns) {
    Vec sum[TILE_ROWS][TILE_VECS] = {0};
    for (int64_t d = 0; d < depth; d++, a += TILE_ROWS, b += TILE_COLUMNS) {
        Vec b0 = *(const VecLoose *)b, b1 = *(const VecLoose *)(b + VEC_LANES);
#pragma GCC unroll 12
        for (int i = 0; i < TILE_ROWS; i++) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t v = 0; v < TILE_VECS && v * VEC_LANES < columns; v++) {
            int64_t n = columns - v * VEC_LANES < VEC_LANES ? columns - v * VEC_LANES : VEC_LANES;
            float *out = c + i * c_stride;
            Vec old = accumulate ? vec_get(out, v * VEC_LANES, n, DTYPE_F32) : (Vec){0};
            vec_put(out, v * VEC_LANES, n, DTYPE_F32, old + sum[i][v]);
        }
    }
}

static void multiply(float *c, int64_t c_stride, bool accumulate, const GemmOperand *a, int64_t row, int64_t rows,
                     const GemmOperand *b, int64_t column, int64_t columns, int64_t k, float *scratch) {
    float *a_panels = scratch, *b_panels = scratch + (GEMM_TILE + 32) * GEMM_DEPTH;
    for (int64_t first = 0; first < k; first += PANEL_DEPTH) {
        int64_t depth = k - first < PANEL_DEPTH ? k - first : PANEL_DEPTH;
        pack(a_panels, a, !a->transposed, row, rows, first, depth, TILE_ROWS);
        pack(b_panels, b, b->transposed, column, columns, first, depth, TILE_COLUMNS);
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
            for (int64_t i = 0; i < rows; i += TILE_ROWS)
                tile(c + i * c_stride + j, c_stride, accumulate || first, a_panels + i * depth, b_panels + j * depth,
                     depth, rows - i < TILE_ROWS ? rows - i : TILE_ROWS,
                     columns - j < TILE_COLUMNS ? columns - j : TILE_COLUMNS);
    }
}

#endif

VEC_INLINE void store_sums(uint16_t *out, int64_t stride, const uint16_t *add, const float *sums, int64_t rows,
                           int64_t columns, DType dtype) {
    for (int64_t i = 0; i < rows; i++, out += stride, sums += columns) {
        VEC_FOR(j, n, columns) {
            Vec value = vec_get(sums, j, n, DTYPE_F32);
            if (add) value += vec_get(add + i * stride, j, n, dtype);
            vec_put(out, j, n, dtype, value);
        }
    }
}

void cpu_gemm_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch) {
    if (cpu_amx_multiplies(gemm)) {
        cpu_amx_part(gemm, row, rows, column, columns, scratch);
        return;
    }
    if (cpu_avx512_multiplies(gemm)) {
        cpu_avx512_part(gemm, row, rows, column, columns, scratch);
        return;
    }
    assert(rows <= GEMM_TILE && columns <= GEMM_TILE);
    bool direct = gemm->c_dtype == DTYPE_F32;
    void *out = cpu_at_mut(gemm->c, row * gemm->c_stride + column, gemm->c_dtype);
    float *c = direct ? out : scratch + 2 * (GEMM_TILE + 32) * GEMM_DEPTH;
    int64_t c_stride = direct ? gemm->c_stride : columns;
    const void *add = gemm->accumulate ? out : NULL;
    if (gemm->add) add = cpu_at(gemm->add, row * gemm->c_stride + column, gemm->c_dtype);
    for (int64_t i = 0; i < rows; i++) {
        float *to = c + i * c_stride;
        if (direct && add && add != out)
            memcpy(to, (const float *)add + i * c_stride, (size_t)columns * sizeof(float));
        else if (!gemm->k && !(direct && add))
            memset(to, 0, (size_t)columns * sizeof(float));
    }
    multiply(c, c_stride, direct && add, &gemm->a, row, rows, &gemm->b, column, columns, gemm->k, scratch);
    if (!direct) VEC_BY_STORAGE(gemm->c_dtype, store_sums, out, gemm->c_stride, add, c, rows, columns);
}

void cpu_gemm_block(const Gemm *gemm, float *scratch) {
    for (int64_t i = 0; i < gemm->m; i += GEMM_TILE)
        for (int64_t j = 0; j < gemm->n; j += GEMM_TILE)
            cpu_gemm_part(gemm, i, gemm->m - i < GEMM_TILE ? gemm->m - i : GEMM_TILE, j,
                          gemm->n - j < GEMM_TILE ? gemm->n - j : GEMM_TILE, scratch);
}
