// Linear layers: each product is cut into tiles of the output, whose sizes decide about no bit or depend on the shape
// only; a thread computes a whole tile, reduction included. So the result has the same bits on any number of threads.
#include "ops/cpu/cpu.h"

static int64_t pieces(int64_t size, int64_t most) {
    return (size + most - 1) / most;
}

// Size of so many equal pieces, whole ones: the last may be smaller, and there may be fewer.
static int64_t piece(int64_t size, int64_t count, int64_t whole) {
    return pieces(pieces(size, count), whole) * whole;
}

int64_t cpu_gemm_tile(int64_t size, int64_t most, int64_t whole) {
    if (size <= most) return size > 0 ? size : 1;
    return piece(size, pieces(size, most), whole); // most is a multiple of whole too, so this stays within
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

// Large tiles spend less on packing; small outputs are cut finer so that every core gets some. The tile decides about
// bits: it depends on the shape only.
static void tiling_by_shape(Tiling *tiling) {
    bool large = (tiling->gemm->m / GEMM_TILE) * (tiling->gemm->n / GEMM_TILE) >= 16;
    int64_t most = large ? GEMM_TILE : GEMM_TILE / 2;
    tiling->tile_rows = cpu_gemm_tile(tiling->gemm->m, most, GEMM_LANES);
    tiling->tile_columns = cpu_gemm_tile(tiling->gemm->n, most, GEMM_LANES);
}

int64_t cpu_gemm_cost(const GemmCost *cost, int64_t m, int64_t n, int64_t rows, int64_t columns, int64_t threads) {
    enum { WAIT = 32 }; // a thread is held up by others now and then: by a share of what it does at a time
    int64_t rounds = pieces(pieces(m, rows) * pieces(n, columns), threads);
    int64_t down = pieces(rows, cost->tile_rows), across = pieces(columns, cost->tile_columns);
    return (WAIT * rounds + 1) * (down * across * cost->product + down * cost->pack_a + across * cost->pack_b);
}

// From the fewest pieces of a side on, each next smaller size, to some tiles for each thread and a few sizes at least.
void cpu_gemm_cut(const GemmCost *cost, int64_t m, int64_t n, int64_t threads, int64_t *rows, int64_t *columns) {
    enum { EACH = 8, LEAST = 3 };
    int64_t fewest_down = pieces(m, cost->most_rows), fewest_across = pieces(n, cost->most_columns), best = INT64_MAX;
    int64_t tile_rows, tile_columns, down = fewest_down;
    do {
        int64_t across = fewest_across;
        tile_rows = piece(m, down, cost->tile_rows);
        do {
            tile_columns = piece(n, across, cost->tile_columns);
            int64_t this = cpu_gemm_cost(cost, m, n, tile_rows, tile_columns, threads);
            if (this < best) best = this, *rows = tile_rows, *columns = tile_columns;
            if (across >= fewest_across + LEAST && down * across >= EACH * threads) break;
            across = tile_columns > cost->tile_columns ? pieces(n, tile_columns - cost->tile_columns) : 0;
        } while (across);
        if (down >= fewest_down + LEAST && down * fewest_across >= EACH * threads) break;
        down = tile_rows > cost->tile_rows ? pieces(m, tile_rows - cost->tile_rows) : 0;
    } while (down);
}

GemmCost cpu_gemm_costs(const Gemm *gemm, bool amx) {
    // A line of an operand is turned on the way into a panel where it lies along k; with AMX, a line of a where it does
    // not.
    bool turn_a = gemm->a.transposed == amx, turn_b = gemm->b.transposed, waits = cpu_avx512_waits(gemm);
    if (amx)
        return (GemmCost){.tile_rows = AMX_BLOCK,
                          .tile_columns = AMX_BLOCK,
                          .most_rows = AMX_ROWS,
                          .most_columns = AMX_COLUMNS,
                          .product = 64,
                          .pack_a = turn_a ? 200 : 40,
                          .pack_b = turn_b ? 200 : 80};
    return (GemmCost){.tile_rows = AVX512_TILE_ROWS,
                      .tile_columns = AVX512_TILE_COLUMNS,
                      .most_rows = waits ? AVX512_WAITING_ROWS : AVX512_ROWS,
                      .most_columns = waits ? AVX512_WAITING_COLUMNS : AVX512_COLUMNS,
                      .product = 28,
                      .pack_a = turn_a ? 5 : 2,
                      .pack_b = turn_b ? 11 : 5};
}

// With AVX-512 and AMX the tile decides about no bit.
static void tiling_by_cost(Tiling *tiling, bool amx) {
    GemmCost cost = cpu_gemm_costs(tiling->gemm, amx);
    cpu_gemm_cut(&cost, tiling->gemm->m, tiling->gemm->n, threads_count(), &tiling->tile_rows, &tiling->tile_columns);
}

void cpu_gemm(Cpu *cpu, const Gemm *gemm) {
    if (!gemm->m || !gemm->n) return;
    Tiling tiling = {.gemm = gemm};
    bool amx = cpu_amx_multiplies(gemm);
    if (amx || cpu_avx512_multiplies(gemm))
        tiling_by_cost(&tiling, amx);
    else
        tiling_by_shape(&tiling);
    tiling.tiles_across = pieces(gemm->n, tiling.tile_columns);
    tiling.scratch = cpu_scratch(cpu, 0, cpu_gemm_scratch_bytes());
    threads_for(pieces(gemm->m, tiling.tile_rows) * tiling.tiles_across, 1, gemm_task, &tiling);
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
