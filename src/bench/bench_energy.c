#include "bench/bench_energy.h"

#include "base/clock.h"
#include "base/text.h"
#include "bench/operands.h"
#include "ops/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_CALLS_MAX = 1000, LOOKS_PER_BATCH = 4, STEPS_BEFORE = 2, DIRECTIONS = 3 };

// ---- precisions -----------------------------------------------------------------------------------------------------

const char *energy_format_name(EnergyFormat format) {
    return format.tf32 ? "tf32" : precision_name(format.precision);
}

static Status format_parse(EnergyFormat *format, const char *name) {
    *format = (EnergyFormat){.precision = PRECISION_FP32, .tf32 = strcmp(name, "tf32") == 0};
    Status status = format->tf32 ? NULL : precision_parse(&format->precision, name);
    if (!status) return NULL;
    status_free(status); // it knows no tf32
    return status_usage("--precision takes fp32, tf32, bf16, bf16-pure, fp8 and fp16 with commas between, not \"%s\"",
                        name);
}

Status energy_formats_parse(EnergyFormat formats[ENERGY_FORMATS_MAX], int *count, const char *list) {
    *count = 0;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        char *name = text_copy_n(at, length);
        EnergyFormat format;
        Status status = format_parse(&format, name);
        for (int i = 0; i < *count && !status; i++)
            if (strcmp(energy_format_name(formats[i]), name) == 0)
                status = status_usage("--precision names %s twice", name);
        free(name);
        TRY(status);
        formats[(*count)++] = format;
        at += length;
        if (!*at) return NULL;
    }
}

// ---- work without a pause -------------------------------------------------------------------------------------------

typedef struct Batch {
    Ops *ops;
    const OpRecord *call;
    int calls;
    void (*step)(void *run); // in place of calls
    void *run;
    int mark; // behind the batch before
} Batch;

// Returns when the batch before has ended: the device has the next one to do while the host looks at the counter.
static Status batch_run(void *work) {
    Batch *batch = work;
    Ops *ops = batch->ops;
    if (batch->step)
        batch->step(batch->run);
    else
        for (int i = 0; i < batch->calls; i++)
            op_run(ops, ops, batch->call);
    int before = batch->mark;
    batch->mark = !before;
    ops->mark(ops, batch->mark);
    ops->mark_elapsed(ops, before, before);
    return NULL;
}

static Status batch_measure(Batch *batch, const BenchEnergy *bench, MeterWindow *window) {
    batch->ops->mark(batch->ops, batch->mark);
    Status status = meter_measure(&bench->source, batch_run, batch, bench->warm, bench->seconds, window);
    Status ended = batch->ops->sync(batch->ops); // what failed on the device is why nothing was measured
    if (ended) status_free(status), status = ended;
    return status;
}

// ---- products -------------------------------------------------------------------------------------------------------

typedef struct Product {
    const char *name;
    int64_t rows, in, out; // of activations, of all experts together; the weight is [out, in]
    int experts;           // 1: a plain product
    double times;          // in a micro-step
    unsigned fp8[DIRECTIONS];
} Product;

typedef enum Direction { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT } Direction;
static const char *const direction_names[DIRECTIONS] = {"forward", "input grad", "weight grad"};

static const struct ProductKind {
    ParamId id;
    unsigned fp8[DIRECTIONS]; // bits of Fp8Use
} product_kinds[] = {
    {PARAM_QKV, {FP8_QKV_FORWARD, FP8_QKV_INPUT, FP8_QKV_WEIGHT}},
    {PARAM_O, {FP8_O_FORWARD, FP8_O_INPUT, FP8_O_WEIGHT}},
    {PARAM_GATE_UP, {FP8_MLP, FP8_MLP, FP8_MLP}},
    {PARAM_DOWN, {FP8_MLP, FP8_MLP, FP8_MLP}},
    {PARAM_EXPERT_GATE_UP, {0}},
    {PARAM_EXPERT_DOWN, {0}},
};
enum { PRODUCT_KINDS = sizeof product_kinds / sizeof *product_kinds, PRODUCTS_MAX = PRODUCT_KINDS + 1 };

// All experts equally busy, their rows padded as the device wants them.
static int64_t expert_rows(const Layout *layout, int64_t experts, int row_align) {
    int64_t slots = layout->tokens * layout->request.config.top_k, each = (slots + experts - 1) / experts;
    return (each + row_align - 1) / row_align * row_align * experts;
}

static int products_list(Product products[PRODUCTS_MAX], const Layout *layout, int row_align) {
    int count = 0;
    for (int i = 0; i < PRODUCT_KINDS; i++) {
        const LayoutParam *param = NULL;
        int layers = 0;
        for (int layer = 0; layer < layout->request.config.layers; layer++) {
            const LayoutParam *here = layout_param(layout, product_kinds[i].id, layer);
            if (here) param = here, layers++;
        }
        if (!param) continue;
        bool grouped = param->dims == 3;
        Product *p = &products[count++];
        *p = (Product){.name = layout_param_name(param->id),
                       .rows = grouped ? expert_rows(layout, param->shape[0], row_align) : layout->tokens,
                       .in = param->shape[grouped + 1],
                       .out = param->shape[grouped],
                       .experts = grouped ? (int)param->shape[0] : 1,
                       .times = layers};
        memcpy(p->fp8, product_kinds[i].fp8, sizeof p->fp8);
    }
    products[count++] = (Product){.name = layout_param_name(PARAM_HEAD),
                                  .rows = layout->logits_rows,
                                  .in = layout->request.config.hidden,
                                  .out = layout_vocab_rows(&layout->request),
                                  .experts = 1,
                                  .times = (double)layout->tokens / (double)layout->logits_rows,
                                  .fp8 = {FP8_HEAD_FORWARD, FP8_HEAD_GRADIENTS, FP8_HEAD_GRADIENTS}};
    return count;
}

static Status make_filled(Ops *ops, Tensor *out, DType dtype, int64_t rows, int64_t cols) {
    TRY(operand_make(ops, out, dtype, rows, cols));
    operand_fill(ops, *out);
    return NULL;
}

static Status make_offsets(Ops *ops, Tensor *out, const Product *p) {
    TRY(operand_make(ops, out, DTYPE_I32, 1, p->experts + 1));
    int32_t *offsets = xmalloc((size_t)(p->experts + 1) * sizeof *offsets);
    for (int i = 0; i <= p->experts; i++)
        offsets[i] = (int32_t)(p->rows / p->experts * i);
    ops->upload(ops, out->data, offsets, (size_t)(p->experts + 1) * sizeof *offsets);
    free(offsets);
    return NULL;
}

// The call with its operands, in the order of the op's arguments. What was made is there also after a failure.
static Status call_make(Ops *ops, const Product *p, Direction direction, EnergyFormat format, OpRecord *call) {
    static const OpId plain[] = {OP_LINEAR_FORWARD, OP_LINEAR_BACKWARD_INPUT, OP_LINEAR_BACKWARD_WEIGHT};
    static const OpId grouped[] = {OP_GROUPED_LINEAR_FORWARD, OP_GROUPED_LINEAR_BACKWARD_INPUT,
                                   OP_GROUPED_LINEAR_BACKWARD_WEIGHT};
    DType dtype = precision_storage(format.precision);
    int64_t weights = p->experts * p->out, result = direction == FORWARD ? p->out : p->in;
    bool to_weight = direction == WEIGHT_GRADIENT, fp8 = format.precision == PRECISION_FP8;
    Tensor *t = call->tensor;
    call->op = fp8 ? OP_LINEAR_FP8 : (p->experts > 1 ? grouped : plain)[direction];
    TRY(operand_make(ops, &t[0], to_weight ? DTYPE_F32 : dtype, to_weight ? weights : p->rows, result));
    if (fp8) { // both with the reduction along their rows
        int64_t inner = direction == FORWARD ? p->in : direction == INPUT_GRADIENT ? p->out : p->rows;
        DType gradients = direction == FORWARD ? DTYPE_E4M3 : DTYPE_E5M2;
        TRY(operand_make_fp8(ops, &t[1], &t[3], gradients, t[0].rows, inner));
        return operand_make_fp8(ops, &t[2], &t[4], DTYPE_E4M3, t[0].cols, inner);
    }
    TRY(make_filled(ops, &t[1], dtype, p->rows, direction == FORWARD ? p->in : p->out));
    TRY(make_filled(ops, &t[2], dtype, to_weight ? p->rows : weights, p->in));
    return p->experts > 1 ? make_offsets(ops, &t[3], p) : NULL;
}

// While the host looks at the counter, which may take NVML milliseconds, the device has one batch to do. One that is
// shorter than the look would leave it at rest for a part of the time, which is then taken for work.
static Status batch_milliseconds(const BenchEnergy *bench, double *milliseconds) {
    double joules, began = clock_seconds();
    TRY(bench->source.read(bench->source.context, &joules));
    *milliseconds = fmax(bench->batch_ms, LOOKS_PER_BATCH * 1e3 * (clock_seconds() - began));
    return NULL;
}

// So many calls take about `milliseconds`; the first one, which chooses its kernel, stays outside.
static Status batch_size(Batch *batch, double milliseconds) {
    Ops *ops = batch->ops;
    op_run(ops, ops, batch->call);
    TRY(ops->sync(ops));
    ops->mark(ops, 0);
    op_run(ops, ops, batch->call);
    ops->mark(ops, 1);
    batch->calls = (int)fmin(BATCH_CALLS_MAX, fmax(1, milliseconds / fmax(ops->mark_elapsed(ops, 0, 1), 1e-4)));
    return NULL;
}

static Status measure_product(Ops *ops, const BenchEnergy *bench, const Product *p, Direction direction,
                              EnergyFormat format, EnergyRow *row) {
    OpRecord call = {0};
    Batch batch = {.ops = ops, .call = &call};
    MeterWindow window = {0};
    Status status = call_make(ops, p, direction, format, &call);
    double milliseconds = 0;
    if (!status) status = batch_milliseconds(bench, &milliseconds);
    if (!status) status = batch_size(&batch, milliseconds);
    if (!status) status = batch_measure(&batch, bench, &window);
    double calls = (double)window.batches * batch.calls;
    int64_t each = p->rows / p->experts;
    *row = (EnergyRow){.product = p->name,
                       .direction = direction_names[direction],
                       .format = format,
                       .m = direction == WEIGHT_GRADIENT ? p->out : each,
                       .n = direction == FORWARD ? p->out : p->in,
                       .k = direction == FORWARD          ? p->in
                            : direction == INPUT_GRADIENT ? p->out
                                                          : each,
                       .groups = p->experts,
                       .times = p->times,
                       .flops = 2.0 * (double)p->rows * (double)p->in * (double)p->out,
                       .seconds = window.seconds / calls,
                       .joules = window.joules / calls,
                       .measured = window};
    for (int i = 0; i < OP_RECORD_TENSORS; i++)
        operand_free(ops, &call.tensor[i]);
    return status_context(status, "%s, %s, %s", p->name, direction_names[direction], energy_format_name(format));
}

static Status measure_products(Ops *ops, const BenchEnergy *bench, const Layout *layout, const char *only,
                               void (*report)(void *context, const EnergyRow *row), void *context) {
    Product products[PRODUCTS_MAX];
    LayoutRequest narrow = bench->request;
    narrow.precision = PRECISION_FP8;
    unsigned fp8 = layout_fp8(&narrow);
    int count = products_list(products, layout, ops->row_align), reported = 0;
    for (int i = 0; i < count * DIRECTIONS; i++) {
        const Product *p = &products[i / DIRECTIONS];
        Direction direction = (Direction)(i % DIRECTIONS);
        double first_joules = 0;
        if (only && !strstr(p->name, only)) continue;
        for (int f = 0; f < bench->format_count; f++) {
            EnergyFormat format = bench->formats[f];
            EnergyRow row;
            if (format.precision == PRECISION_FP8 && !(fp8 & p->fp8[direction])) continue;
            ops->tf32 = format.tf32;
            TRY(measure_product(ops, bench, p, direction, format, &row));
            if (f == 0) first_joules = row.joules;
            row.first_joules = first_joules;
            report(context, &row);
            reported++;
        }
    }
    return reported ? NULL : status_usage("no product of this model is called like \"%s\"", only ? only : "");
}

Status bench_energy_products(Ops *ops, const BenchEnergy *bench, const char *only,
                             void (*row)(void *context, const EnergyRow *row), void *context) {
    LayoutRequest request = bench->request;
    Layout layout;
    size_t bytes = 0;
    for (int i = 0; i < bench->format_count; i++) {
        request.precision = bench->formats[i].precision;
        size_t needed = layout_workspace_bytes(&request);
        if (needed > bytes) bytes = needed;
    }
    TRY(layout_build(&layout, &request));
    bool tf32 = ops->tf32;
    void *workspace = NULL;
    Status status = ops->alloc(ops, &workspace, bytes, "workspace of a benchmark");
    if (!status) {
        ops->bind_workspace(ops, workspace, bytes);
        status = measure_products(ops, bench, &layout, only, row, context);
        ops->bind_workspace(ops, NULL, 0);
        ops->free(ops, workspace, bytes);
    }
    ops->tf32 = tf32;
    layout_free(&layout);
    return status;
}

// ---- whole steps ----------------------------------------------------------------------------------------------------

typedef struct StepLook {
    const BenchEnergy *bench;
    MeterWindow *window;
} StepLook;

static Status measure_steps(void *context, Model *model, void (*step)(void *run), void *run) {
    const StepLook *look = context;
    Batch batch = {.ops = model->ops, .step = step, .run = run};
    return batch_measure(&batch, look->bench, look->window);
}

Status bench_energy_step(Ops *ops, const BenchEnergy *bench, EnergyFormat format, int accum, EnergyStep *step) {
    *step = (EnergyStep){.tokens = (double)bench->request.micro_batch * bench->request.seq * accum};
    StepLook look = {.bench = bench, .window = &step->measured};
    BenchStep steps = {
        .request = bench->request, .accum = accum, .steps = STEPS_BEFORE, .look = measure_steps, .look_context = &look};
    steps.request.precision = format.precision;
    steps.request.tf32 = format.tf32;
    BenchResult result;
    TRY(status_context(bench_step(ops, &steps, &result), "%s", energy_format_name(format)));
    step->fp8 = result.fp8;
    bench_result_free(&result);
    step->seconds = step->measured.seconds / (double)step->measured.batches;
    step->joules = step->measured.joules / (double)step->measured.batches;
    return NULL;
}
