// Linear layers: each product is cut into tiles of the output, whose sizes decide about no bit or depend on the shape
// only; a thread computes a whole tile, reduction included. So the result has the same bits on any number of threads.
#include "ops/cpu/cpu.h"

int64_t cpu_gemm_tile(int64_t size, int64_t most, int64_t whole) {
    int64_t tiles = (size + most - 1) / most;
    if (tiles <= 1) return size > 0 ? size : 1;
    int64_t tile = (size + tiles - 1) / tiles;
    return (tile + whole - 1) / whole * whole; // most is a multiple of it too, so this stays within
}

typedef struct Tiling {
    const Gemm *gemm;
    int64_t tile_rows, tile_columns, tiles_across;
    CpuScratch scratch;
} Tiling;

static void gemm_task(void *context, int64_t begin, int64_t end, int worker) {
    const Tiling *tiling = context;
    const Gemm *gemm = tiling->gemm;
    float *scratch = cpu_scratch_of(&tiling->scratch, worker);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / tiling->tiles_across * tiling->tile_rows;
        int64_t column = i % tiling->tiles_across * tiling->tile_columns;
        int64_t rows = gemm->m - row < tiling->tile_rows ? gemm->m - row : tiling->tile_rows;
        int64_t columns = gemm->n - column < tiling->tile_columns ? gemm->n - column : tiling->tile_columns;
        cpu_gemm_part(gemm, row, rows, column, columns, scratch);
    }
}

// Large tiles spend less on packing; small outputs are cut finer so that every core gets some.
static void tiling_cut(Tiling *tiling, int64_t most_rows, int64_t most_columns, int64_t whole_columns) {
    tiling->tile_rows = cpu_gemm_tile(tiling->gemm->m, most_rows, GEMM_LANES);
    tiling->tile_columns = cpu_gemm_tile(tiling->gemm->n, most_columns, whole_columns);
    tiling->tiles_across = (tiling->gemm->n + tiling->tile_columns - 1) / tiling->tile_columns;
}

// The tile decides about bits: it depends on the shape only.
static void tiling_by_shape(Tiling *tiling) {
    bool large = (tiling->gemm->m / GEMM_TILE) * (tiling->gemm->n / GEMM_TILE) >= 16;
    int64_t most = large ? GEMM_TILE : GEMM_TILE / 2;
    tiling_cut(tiling, most, most, GEMM_LANES);
}

// It does not with AVX-512: a few tiles for each thread, of whole register tiles, which take as long when half empty.
static void tiling_by_threads(Tiling *tiling) {
    enum { EACH = 4, LEAST = 128 };
    int64_t rows = AVX512_ROWS, columns = AVX512_COLUMNS, m = tiling->gemm->m, n = tiling->gemm->n;
    while ((m + rows - 1) / rows * ((n + columns - 1) / columns) < EACH * threads_count() &&
           (rows > LEAST || columns > LEAST))
        if (columns > rows)
            columns /= 2;
        else
            rows /= 2;
    tiling_cut(tiling, rows, columns, AVX512_TILE_COLUMNS);
}

// Nor with AMX, whose products are so fast that packing counts: of all ways to cut, the one whose busiest thread is
// done first. Costs are cycles for 32 elements along k.
static void tiling_by_cost(Tiling *tiling) {
    enum { PRODUCT = 16, PACK_ROWS = 20, PACK_PAIRS = 40, PACK_TURNED = 100, TILES = AMX_BLOCK / 16 };
    const Gemm *gemm = tiling->gemm;
    int64_t pack_a = gemm->a.transposed ? PACK_TURNED : PACK_ROWS;
    int64_t pack_b = gemm->b.transposed ? PACK_TURNED : PACK_PAIRS;
    int64_t across[AMX_COLUMNS / AMX_BLOCK + 1], threads = threads_count(), best = INT64_MAX;
    for (int64_t j = 1; j <= AMX_COLUMNS / AMX_BLOCK; j++)
        across[j] = (gemm->n + j * AMX_BLOCK - 1) / (j * AMX_BLOCK);
    for (int64_t i = 1; i <= AMX_ROWS / AMX_BLOCK; i++) {
        int64_t down = (gemm->m + i * AMX_BLOCK - 1) / (i * AMX_BLOCK);
        for (int64_t j = 1; j <= AMX_COLUMNS / AMX_BLOCK; j++) {
            int64_t rounds = (down * across[j] + threads - 1) / threads, tiles = i * TILES, tiles_across = j * TILES;
            int64_t cost = rounds * (tiles * tiles_across * PRODUCT + tiles * pack_a + tiles_across * pack_b);
            if (cost >= best) continue;
            best = cost;
            tiling->tile_rows = i * AMX_BLOCK;
            tiling->tile_columns = j * AMX_BLOCK;
            tiling->tiles_across = across[j];
        }
    }
}

void cpu_gemm(Cpu *cpu, const Gemm *gemm) {
    if (!gemm->m || !gemm->n) return;
    Tiling tiling = {.gemm = gemm};
    if (cpu_amx_multiplies(gemm))
        tiling_by_cost(&tiling);
    else if (cpu_avx512_multiplies(gemm))
        tiling_by_threads(&tiling);
    else
        tiling_by_shape(&tiling);
    int64_t tiles_down = (gemm->m + tiling.tile_rows - 1) / tiling.tile_rows;
    tiling.scratch = cpu_scratch(cpu, 0, cpu_gemm_scratch_bytes());
    threads_for(tiles_down * tiling.tiles_across, 1, gemm_task, &tiling);
}

static void cpu_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add) {
    CPU_TIMED(ops, OP_LINEAR_FORWARD);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = out.rows,
                                  .n = out.cols,
                                  .k = in.cols,
                                  .a = cpu_operand(in, false),
                                  .b = cpu_operand(weight, true),
                                  .c = out.data,
                                  .c_stride = out.stride,
                                  .c_dtype = out.dtype,
                                  .add = add.data});
}

static void cpu_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight) {
    CPU_TIMED(ops, OP_LINEAR_BACKWARD_INPUT);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = din.rows,
                                  .n = din.cols,
                                  .k = dout.cols,
                                  .a = cpu_operand(dout, false),
                                  .b = cpu_operand(weight, false),
                                  .c = din.data,
                                  .c_stride = din.stride,
                                  .c_dtype = din.dtype});
}

static void cpu_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, bool accumulate) {
    CPU_TIMED(ops, OP_LINEAR_BACKWARD_WEIGHT);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = dweight.rows,
                                  .n = dweight.cols,
                                  .k = in.rows,
                                  .a = cpu_operand(dout, true),
                                  .b = cpu_operand(in, false),
                                  .c = dweight.data,
                                  .c_stride = dweight.stride,
                                  .c_dtype = DTYPE_F32,
                                  .accumulate = accumulate});
}

// ---- the MoE router: float logits whatever the storage type ---------------------------------------------------------

static void cpu_moe_router_forward(Ops *ops, Tensor logits, Tensor in, Tensor weight) {
    CPU_TIMED(ops, OP_MOE_ROUTER_FORWARD);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = logits.rows,
                                  .n = logits.cols,
                                  .k = in.cols,
                                  .a = cpu_operand(in, false),
                                  .b = cpu_operand(weight, true),
                                  .c = logits.data,
                                  .c_stride = logits.stride,
                                  .c_dtype = DTYPE_F32});
}

static void cpu_moe_router_backward(Ops *ops, Tensor din, Tensor dweight, Tensor dlogits, Tensor in, Tensor weight,
                                    bool accumulate) {
    CPU_TIMED(ops, OP_MOE_ROUTER_BACKWARD);
    cpu_gemm(cpu_of(ops), &(Gemm){.m = din.rows,
                                  .n = din.cols,
                                  .k = dlogits.cols,
                                  .a = cpu_operand(dlogits, false),
                                  .b = cpu_operand(weight, false),
                                  .c = din.data,
                                  .c_stride = din.stride,
                                  .c_dtype = din.dtype,
                                  .accumulate = true});
    cpu_gemm(cpu_of(ops), &(Gemm){.m = dweight.rows,
                                  .n = dweight.cols,
                                  .k = in.rows,
                                  .a = cpu_operand(dlogits, true),
                                  .b = cpu_operand(in, false),
                                  .c = dweight.data,
                                  .c_stride = dweight.stride,
                                  .c_dtype = DTYPE_F32,
                                  .accumulate = accumulate});
}

Status cpu_install_gemm(Ops *ops) {
    CpuBf16 *bf16 = &cpu_of(ops)->bf16;
    TRY(cpu_bf16(bf16));
    cpu_avx512_start(*bf16 == CPU_BF16_AVX512);
    cpu_amx_start(*bf16 == CPU_BF16_AMX);
    ops->device = cpu_device_name(*bf16);
    ops->linear_forward = cpu_linear_forward;
    ops->linear_backward_input = cpu_linear_backward_input;
    ops->linear_backward_weight = cpu_linear_backward_weight;
    ops->moe_router_forward = cpu_moe_router_forward;
    ops->moe_router_backward = cpu_moe_router_backward;
    return NULL;
}
