// hearth bench ops: each op of the table at a model's shapes, against its floor.
#include "bench/bench_ops.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/bench_commands.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct Table {
    bool json;
    int rows;
} Table;

// A row's rate in the unit that its floor is made of.
static void print_row(void *context, const BenchOpsRow *row) {
    Table *table = context;
    double tflops = row->flops / row->ms * 1e-9, gbps = row->bytes / row->ms * 1e-6;
    double share = 100 * row->floor_ms / row->ms;
    if (table->json) {
        json_t *json = json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "op", row->op, "shape", row->shape, "ms", row->ms,
                                 "GBps", gbps, "tflops", tflops, "percent_of_floor", share);
        char *text = json_dumps(json, JSON_REAL_PRECISION(6));
        printf("%s\n", text);
        free(text);
        json_decref(json);
    } else {
        if (table->rows == 0)
            printf("%-31s %-41s %10s %9s %9s %8s\n", "op", "shape", "ms", "GB/s", "TFLOP/s", "% floor");
        printf("%-31s %-41s %10.4f %9.1f ", row->op, row->shape, row->ms, gbps);
        row->flops > 0 ? printf("%9.3f ", tflops) : printf("%9s ", "");
        printf("%7.1f%%\n", share);
    }
    fflush(stdout);
    table->rows++;
}

static Status model_shapes(LayoutRequest *request, const Ops *ops, const char *model, int64_t seq, int64_t micro_batch,
                           const char *precision) {
    bool cuda = ops->kind == DEVICE_CUDA;
    if (!seq) seq = cuda ? 2048 : 256;
    if (!micro_batch) micro_batch = cuda ? 16 : 4;
    TRY(bench_check_shape(seq, micro_batch));
    *request = (LayoutRequest){.mesh = MESH_SINGLE,
                               .seq = (int)seq,
                               .micro_batch = (int)micro_batch,
                               .device = ops->kind,
                               .threads = threads_count()};
    TRY(precision_parse(&request->precision, precision ? precision : cuda ? "bf16" : "fp32"));
    return bench_model_read(&request->config, model, 0);
}

Status bench_ops_command(int argc, char **argv) {
    const char *model = "smollm-360m", *precision = NULL, *device = "auto";
    int64_t seq = 0, micro_batch = 0;
    Table table = {0};
    BenchOps bench = {.row = print_row, .context = &table};
    const Arg options[] = {
        {"--model", ARG_TEXT, &model, "NAME", "preset, or a directory with a config.json (smollm-360m)"},
        {"--seq", ARG_INT, &seq, "S", "sequence length (2048 on a GPU, 256 on the CPU)"},
        {"--micro-batch", ARG_INT, &micro_batch, "B", "sequences in a micro-batch (16 on a GPU, 4 on the CPU)"},
        {"--precision", ARG_TEXT, &precision, "P",
         "fp32, bf16, bf16-pure, fp8 or fp16 (bf16 on a GPU, fp32 on the CPU)"},
        {"--device", ARG_TEXT, &device, "D", "auto, cpu or cuda"},
        {"--quick", ARG_FLAG, &bench.quick, NULL, "small ceilings and short measurements: rough figures"},
        {"--json", ARG_FLAG, &table.json, NULL, "one JSON object a line"},
    };
    const ArgCommand command = {
        "hearth bench ops [options] [NAME]",
        "Times each op (those whose name contains NAME) at the shapes of a model and compares it with its floor: the\n"
        "bytes it must move over the rate of a large copy, or its FLOPs over the rate of a large product. Both rates\n"
        "are measured first. 100% is the floor; on a CPU, what stays in a cache or copies with more threads than the "
        "one of\n"
        "a plain copy can be faster than it.",
        options,
        ARG_COUNT(options),
        0,
        1};
    ArgList words;
    bool helped;
    TRY(args_parse(&command, argc, argv, &words, &helped));
    if (words.count > 0) bench.only = words.items[0];
    free(words.items);
    if (helped) return NULL;
    Ops *ops;
    TRY(ops_create(&ops, device));
    Status status = model_shapes(&bench.request, ops, model, seq, micro_batch, precision);
    if (!status) status = bench_ops(ops, &bench);
    // Two rows are the ceilings.
    if (!status && table.rows <= 2) status = status_usage("no op of this model is called like \"%s\"", bench.only);
    ops_destroy(ops);
    return status;
}
