// Grouped linear layers: the rows of expert e meet weight[e]. One loop over the tiles of all experts keeps every thread
// busy however uneven the experts are.
#include "ops/cpu/cpu.h"

typedef struct Grouped {
    const int32_t *offsets;
    int experts;
    bool over_rows; // tiles over (rows of the expert, columns), else over the expert's weight matrix
    int64_t tile_rows, tiles_across, tile_columns, tiles_down; // tiles_down only without over_rows
    Gemm gemm;                                                 // of expert 0, m or k filled in per expert
    int64_t a_step, b_step, c_step; // elements from one expert to the next, 0: advances with the rows
    CpuScratch scratch;
} Grouped;

static int64_t grouped_tiles(const Grouped *grouped, int expert) {
    if (!grouped->over_rows) return grouped->tiles_down * grouped->tiles_across;
    int64_t rows = grouped->offsets[expert + 1] - grouped->offsets[expert];
    return (rows + grouped->tile_rows - 1) / grouped->tile_rows * grouped->tiles_across;
}

static void grouped_task(void *context, int64_t begin, int64_t end, int worker) {
    const Grouped *grouped = context;
    float *scratch = grouped->scratch.workers ? cpu_scratch_of(&grouped->scratch, worker) : NULL;
    for (int64_t task = begin; task < end; task++) {
        int expert = 0;
        int64_t tile = task;
        while (tile >= grouped_tiles(grouped, expert))
            tile -= grouped_tiles(grouped, expert++);
        int64_t first = grouped->offsets[expert], rows = grouped->offsets[expert + 1] - first;
        Gemm gemm = grouped->gemm;
        *(grouped->over_rows ? &gemm.m : &gemm.k) = rows;
        gemm.a.data =
            cpu_at(gemm.a.data, grouped->a_step ? expert * grouped->a_step : first * gemm.a.stride, gemm.a.dtype);
        gemm.b.data =
            cpu_at(gemm.b.data, grouped->b_step ? expert * grouped->b_step : first * gemm.b.stride, gemm.b.dtype);
        gemm.c = cpu_at_mut(gemm.c, grouped->c_step ? expert * grouped->c_step : first * gemm.c_stride, gemm.c_dtype);
        int64_t row = tile / grouped->tiles_across * grouped->tile_rows;
        int64_t column = tile % grouped->tiles_across * grouped->tile_columns;
        cpu_gemm_part(&gemm, row, gemm.m - row < grouped->tile_rows ? gemm.m - row : grouped->tile_rows, column,
                      gemm.n - column < grouped->tile_columns ? gemm.n - column : grouped->tile_columns, scratch);
    }
}

static void grouped_run(Ops *ops, Grouped *grouped) {
    grouped->tile_columns = cpu_gemm_tile(grouped->gemm.n, GEMM_TILE);
    grouped->tiles_across = (grouped->gemm.n + grouped->tile_columns - 1) / grouped->tile_columns;
    grouped->tile_rows = GEMM_TILE / 2;
    if (!grouped->over_rows) {
        grouped->tile_rows = cpu_gemm_tile(grouped->gemm.m, GEMM_TILE);
        grouped->tiles_down = (grouped->gemm.m + grouped->tile_rows - 1) / grouped->tile_rows;
    }
    grouped->scratch = cpu_scratch(cpu_of(ops), 0, cpu_gemm_scratch_bytes());
    int64_t tiles = 0;
    for (int expert = 0; expert < grouped->experts; expert++)
        tiles += grouped_tiles(grouped, expert);
    threads_for(tiles, 1, grouped_task, grouped);
}

static void cpu_grouped_linear_forward(Ops *ops, void *out, const void *in, const void *weight, const int32_t *offsets,
                                       int experts, int64_t rows, int in_dim, int out_dim, DType dtype) {
    CPU_TIMED(ops, OP_MOE);
    (void)rows;
    grouped_run(ops, &(Grouped){.offsets = offsets,
                                .experts = experts,
                                .over_rows = true,
                                .gemm = {.n = out_dim,
                                         .k = in_dim,
                                         .a = {in, in_dim, false, dtype},
                                         .b = {weight, in_dim, true, dtype},
                                         .c = out,
                                         .c_stride = out_dim,
                                         .c_dtype = dtype},
                                .b_step = (int64_t)in_dim * out_dim});
}

static void cpu_grouped_linear_backward_input(Ops *ops, void *din, const void *dout, const void *weight,
                                              const int32_t *offsets, int experts, int64_t rows, int in_dim,
                                              int out_dim, DType dtype) {
    CPU_TIMED(ops, OP_MOE);
    (void)rows;
    grouped_run(ops, &(Grouped){.offsets = offsets,
                                .experts = experts,
                                .over_rows = true,
                                .gemm = {.n = in_dim,
                                         .k = out_dim,
                                         .a = {dout, out_dim, false, dtype},
                                         .b = {weight, in_dim, false, dtype},
                                         .c = din,
                                         .c_stride = in_dim,
                                         .c_dtype = dtype},
                                .b_step = (int64_t)in_dim * out_dim});
}

static void cpu_grouped_linear_backward_weight(Ops *ops, float *dweight, const void *dout, const void *in,
                                               const int32_t *offsets, int experts, int64_t rows, int in_dim,
                                               int out_dim, bool accumulate, DType dtype) {
    CPU_TIMED(ops, OP_MOE);
    (void)rows;
    grouped_run(ops, &(Grouped){.offsets = offsets,
                                .experts = experts,
                                .over_rows = false,
                                .gemm = {.m = out_dim,
                                         .n = in_dim,
                                         .a = {dout, out_dim, true, dtype},
                                         .b = {in, in_dim, false, dtype},
                                         .c = dweight,
                                         .c_stride = in_dim,
                                         .c_dtype = DTYPE_F32,
                                         .accumulate = accumulate},
                                .c_step = (int64_t)in_dim * out_dim});
}

void cpu_install_grouped(Ops *ops) {
    ops->grouped_linear_forward = cpu_grouped_linear_forward;
    ops->grouped_linear_backward_input = cpu_grouped_linear_backward_input;
    ops->grouped_linear_backward_weight = cpu_grouped_linear_backward_weight;
}
