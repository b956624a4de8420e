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
    bool turned;                    // rows of the experts are columns of a and b
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
        int64_t a_row = grouped->turned ? 1 : gemm.a.stride, b_row = grouped->turned ? 1 : gemm.b.stride;
        gemm.a.data = cpu_at(gemm.a.data, grouped->a_step ? expert * grouped->a_step : first * a_row, gemm.a.dtype);
        gemm.b.data = cpu_at(gemm.b.data, grouped->b_step ? expert * grouped->b_step : first * b_row, gemm.b.dtype);
        gemm.c = cpu_at_mut(gemm.c, grouped->c_step ? expert * grouped->c_step : first * gemm.c_stride, gemm.c_dtype);
        int64_t row = tile / grouped->tiles_across * grouped->tile_rows;
        int64_t column = tile % grouped->tiles_across * grouped->tile_columns;
        cpu_gemm_part(&gemm, row, gemm.m - row < grouped->tile_rows ? gemm.m - row : grouped->tile_rows, column,
                      gemm.n - column < grouped->tile_columns ? gemm.n - column : grouped->tile_columns, scratch);
    }
}

static void grouped_run(Ops *ops, Grouped *grouped) {
    grouped->tile_columns = cpu_gemm_tile(grouped->gemm.n, GEMM_TILE, GEMM_LANES);
    grouped->tiles_across = (grouped->gemm.n + grouped->tile_columns - 1) / grouped->tile_columns;
    grouped->tile_rows = GEMM_TILE / 2;
    if (!grouped->over_rows) {
        grouped->tile_rows = cpu_gemm_tile(grouped->gemm.m, GEMM_TILE, GEMM_LANES);
        grouped->tiles_down = (grouped->gemm.m + grouped->tile_rows - 1) / grouped->tile_rows;
    }
    grouped->scratch = cpu_scratch(cpu_of(ops), 0, cpu_gemm_scratch_bytes());
    int64_t tiles = 0;
    for (int expert = 0; expert < grouped->experts; expert++)
        tiles += grouped_tiles(grouped, expert);
    threads_for(tiles, 1, grouped_task, grouped);
}

// Rows as the products read them: themselves, or made of tokens first. Packing a tile's rows of tokens instead would
// repeat that for every tile across, and OpenBLAS takes its operands as they lie.
static Tensor rows_of(Tensor source, Tensor token_of_row, Tensor scratch, Tensor offsets) {
    if (!tensor_present(token_of_row)) return source;
    int64_t used = ((const int32_t *)offsets.data)[offsets.cols - 1];
    cpu_gather_rows(scratch.data, source.data, token_of_row.data, used, (int)source.cols, source.dtype);
    return scratch;
}

static void cpu_grouped_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets,
                                       Tensor token_of_row, Tensor scratch) {
    CPU_TIMED(ops, OP_GROUPED_LINEAR_FORWARD);
    in = rows_of(in, token_of_row, scratch, offsets);
    grouped_run(ops, &(Grouped){.offsets = offsets.data,
                                .experts = (int)offsets.cols - 1,
                                .over_rows = true,
                                .gemm = {.n = out.cols,
                                         .k = in.cols,
                                         .a = cpu_operand(in, false),
                                         .b = cpu_operand(weight, true),
                                         .c = out.data,
                                         .c_stride = out.stride,
                                         .c_dtype = out.dtype},
                                .b_step = in.cols * out.cols});
}

static void cpu_grouped_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets) {
    CPU_TIMED(ops, OP_GROUPED_LINEAR_BACKWARD_INPUT);
    grouped_run(ops, &(Grouped){.offsets = offsets.data,
                                .experts = (int)offsets.cols - 1,
                                .over_rows = true,
                                .gemm = {.n = din.cols,
                                         .k = dout.cols,
                                         .a = cpu_operand(dout, false),
                                         .b = cpu_operand(weight, false),
                                         .c = din.data,
                                         .c_stride = din.stride,
                                         .c_dtype = din.dtype},
                                .b_step = din.cols * dout.cols});
}

static void cpu_grouped_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                               Tensor token_of_row, Tensor scratch, bool accumulate) {
    CPU_TIMED(ops, OP_GROUPED_LINEAR_BACKWARD_WEIGHT);
    in = rows_of(in, token_of_row, scratch, offsets);
    grouped_run(ops, &(Grouped){.offsets = offsets.data,
                                .experts = (int)offsets.cols - 1,
                                .over_rows = false,
                                .gemm = {.m = dout.cols,
                                         .n = in.cols,
                                         .a = cpu_operand(dout, true),
                                         .b = cpu_operand(in, false),
                                         .c = dweight.data,
                                         .c_stride = dweight.stride,
                                         .c_dtype = DTYPE_F32,
                                         .accumulate = accumulate},
                                .c_step = in.cols * dout.cols});
}

static void cpu_grouped_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale,
                                   Tensor offsets, bool accumulate) {
    CPU_TIMED(ops, OP_GROUPED_LINEAR_FP8);
    float a_table[256], b_table[256];
    bool weight = out.dtype == DTYPE_F32;
    cpu_fp8_table(a_table, a.dtype, a_scale);
    cpu_fp8_table(b_table, b.dtype, b_scale);
    grouped_run(ops, &(Grouped){.offsets = offsets.data,
                                .experts = (int)offsets.cols - 1,
                                .over_rows = !weight,
                                .gemm = {.m = weight ? a.rows : 0,
                                         .n = out.cols,
                                         .k = weight ? 0 : a.cols,
                                         .a = {a.data, a.stride, false, a.dtype, a_table},
                                         .b = {b.data, b.stride, true, b.dtype, b_table},
                                         .c = out.data,
                                         .c_stride = out.stride,
                                         .c_dtype = out.dtype,
                                         .accumulate = accumulate},
                                .b_step = weight ? 0 : out.cols * a.cols,
                                .c_step = weight ? a.rows * out.cols : 0,
                                .turned = weight});
}

void cpu_install_grouped(Ops *ops) {
    ops->grouped_linear_fp8 = cpu_grouped_linear_fp8;
    ops->grouped_swiglu_fp8_forward = ops_grouped_then_swiglu_fp8_forward;
    ops->grouped_linear_forward = cpu_grouped_linear_forward;
    ops->grouped_linear_backward_input = cpu_grouped_linear_backward_input;
    ops->grouped_linear_backward_weight = cpu_grouped_linear_backward_weight;
    ops->grouped_swiglu_forward = ops_grouped_then_swiglu_forward;
    ops->grouped_swiglu_backward = ops_grouped_then_swiglu_backward;
}
