#include "bench/bench_ops.h"

#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "bench/operands.h"
#include "model/model.h"
#include "model/step_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, REPEATS_MAX = 20, WARM_UP_MS = 500 };

typedef struct Bench {
    Ops *ops;
    const BenchOps *bench;
    Model *model;
    double copy_rate, gemm_rate; // bytes and FLOPs per second; 0 until measured
} Bench;

// ---- time -----------------------------------------------------------------------------------------------------------

static void run_call(Bench *b, const OpRecord *call) {
    bool backward = call->op == OP_ATTENTION_BACKWARD;
    if (backward) model_lend_scratch(b->model, true);
    if (call->op == OP_COPY)
        b->ops->copy(b->ops, call->tensor[0].data, call->tensor[1].data, (size_t)tensor_count(call->tensor[0]));
    else
        op_run(b->ops, b->ops, call);
    if (backward) model_lend_scratch(b->model, false);
}

// Work for about half a second: an idle GPU lowers its clocks, and takes its time to raise them.
static Status warm_up(Bench *b, const OpRecord *call) {
    Ops *ops = b->ops;
    if (b->bench->quick && ops->kind == DEVICE_CPU) return NULL;
    for (double spent = 0; spent < WARM_UP_MS; spent += ops->mark_elapsed(ops, 0, 1)) {
        ops->mark(ops, 0);
        run_call(b, call);
        ops->mark(ops, 1);
        TRY(ops->sync(ops));
    }
    return NULL;
}

// Milliseconds of one call, the median of some rounds; on a GPU from a recorded graph, as training runs it, but for a
// copy: one in a graph is the copy engines', which reach two thirds of what a kernel does.
static Status time_call(Bench *b, const OpRecord *call, double *ms) {
    Ops *ops = b->ops;
    double round_ms = b->bench->quick ? 0.2 : 3, budget_ms = b->bench->quick ? 10 : 1000, spent = 0, times[ROUNDS];
    run_call(b, call); // tuning and first-use work stay outside
    TRY(ops->sync(ops));
    ops->mark(ops, 0);
    run_call(b, call);
    ops->mark(ops, 1);
    double once = ops->mark_elapsed(ops, 0, 1);
    int repeats = (int)fmin(REPEATS_MAX, fmax(1, round_ms / fmax(once, 1e-4))), rounds = 0;
    void *graph = NULL;
    if (call->op != OP_COPY) {
        ops->graph_begin(ops);
        for (int i = 0; i < repeats; i++)
            run_call(b, call);
        TRY(ops->graph_end(ops, &graph));
    }
    if (graph) ops->graph_launch(ops, graph); // the first launch also uploads it
    while (rounds < ROUNDS && (rounds == 0 || spent < budget_ms)) {
        ops->mark(ops, 0);
        if (graph)
            ops->graph_launch(ops, graph);
        else
            for (int i = 0; i < repeats; i++)
                run_call(b, call);
        ops->mark(ops, 1);
        double elapsed = ops->mark_elapsed(ops, 0, 1);
        times[rounds++] = elapsed / repeats;
        spent += elapsed;
    }
    if (graph) ops->graph_free(ops, graph);
    *ms = double_median(times, (size_t)rounds);
    return ops->sync(ops);
}

static void report_row(Bench *b, const char *op, const char *shape, double ms, OpCost cost) {
    double floor =
        1e3 * fmax(b->copy_rate > 0 ? cost.bytes / b->copy_rate : 0, b->gemm_rate > 0 ? cost.flops / b->gemm_rate : 0);
    b->bench->row(b->bench->context, &(BenchOpsRow){op, shape, ms, cost.bytes, cost.flops, floor > 0 ? floor : ms});
}

// ---- the ceilings ---------------------------------------------------------------------------------------------------

static void fill_ones(Ops *ops, Tensor out) { // floats
    float *values = xmalloc((size_t)tensor_count(out) * sizeof *values);
    for (int64_t i = 0; i < tensor_count(out); i++)
        values[i] = 1;
    ops->upload(ops, out.data, values, (size_t)tensor_count(out) * sizeof *values);
    free(values);
}

// Large enough to leave caches behind and to fill the device.
static Status time_ceiling(Bench *b, OpId op, double *rate) {
    bool cuda = b->ops->kind == DEVICE_CUDA, copy = op == OP_COPY;
    int64_t copied = b->bench->quick ? 16 << 20 : cuda ? 1 << 30 : 256 << 20;
    int64_t edge = b->bench->quick ? (cuda ? 4096 : 256) : cuda ? 8192 : 1024;
    DType dtype = copy ? DTYPE_F32 : b->model->layout.dtype;
    OpRecord call = {.op = op};
    Status status = NULL;
    for (int i = 0; i < (copy ? 2 : 3) && !status; i++) {
        status = operand_make(b->ops, &call.tensor[i], dtype, copy ? 1 : edge, copy ? copied / 4 : edge);
        if (!status) operand_fill(b->ops, call.tensor[i]);
    }
    OpCost cost = copy ? (OpCost){.bytes = 2.0 * (double)copied} : op_cost(&call, -1, 0);
    double ms = 0;
    if (copy)
        for (int i = 0; i < 2; i++) // as bytes
            call.tensor[i].dtype = DTYPE_U8, call.tensor[i].cols = call.tensor[i].stride = copied;
    if (!status) status = warm_up(b, &call);
    if (!status) status = time_call(b, &call, &ms);
    char size[32], shape[64];
    if (copy)
        snprintf(shape, sizeof shape, "ceiling %s", text_gib(size, (double)copied));
    else
        snprintf(shape, sizeof shape, "ceiling %lldx%lld -> %lld", (long long)edge, (long long)edge, (long long)edge);
    if (!status) {
        report_row(b, op_name(op), shape, ms, cost);
        *rate = 1e3 * (copy ? cost.bytes : cost.flops) / ms;
    }
    for (int i = 0; i < 3; i++)
        operand_free(b->ops, &call.tensor[i]);
    return status;
}

// ---- the ops of a step ----------------------------------------------------------------------------------------------

static bool is_fp8_product(const OpRecord *r) {
    return r->op == OP_LINEAR_FP8 || r->op == OP_GROUPED_LINEAR_FP8;
}

static bool is_weight_gradient(const OpRecord *r) {
    return r->op == OP_LINEAR_BACKWARD_WEIGHT || r->op == OP_GROUPED_LINEAR_BACKWARD_WEIGHT ||
           (is_fp8_product(r) && r->tensor[0].dtype == DTYPE_F32);
}

static char *shape_text(const OpRecord *r) {
    const Tensor *t = r->tensor;
    switch (op_category(r->op)) {
    case CATEGORY_GEMM:
    case CATEGORY_GROUPED: {
        bool gradient = is_weight_gradient(r), onto_fp8 = r->op == OP_LINEAR_FP8 && tensor_present(t[5]);
        if (is_fp8_product(r))
            return text_format("%s %s %lldx%lld -> %lld%s", gradient ? t[0].name : t[2].name, dtype_name(t[1].dtype),
                               (long long)t[1].rows, (long long)t[1].cols, (long long)t[0].cols,
                               onto_fp8              ? " + residual"
                               : gradient && r->flag ? ", add"
                                                     : "");
        if (r->op == OP_LINEAR_SWIGLU_FP8_FORWARD || r->op == OP_GROUPED_SWIGLU_FP8_FORWARD)
            return text_format("%s %s %lldx%lld -> %lld", t[6].name, dtype_name(t[5].dtype), (long long)t[5].rows,
                               (long long)t[5].cols, (long long)t[2].cols);
        if (r->op == OP_GROUPED_SWIGLU_FORWARD || r->op == OP_GROUPED_SWIGLU_BACKWARD) {
            bool backward = r->op == OP_GROUPED_SWIGLU_BACKWARD;
            Tensor in = t[backward ? 4 : 2];
            return text_format("%s %lldx%lld -> %lld", t[backward ? 5 : 3].name, (long long)in.rows, (long long)in.cols,
                               (long long)t[1].cols);
        }
        bool swiglu = r->op == OP_LINEAR_SWIGLU_BACKWARD;
        Tensor weight = gradient ? t[0] : swiglu ? t[4] : t[2], in = gradient ? t[2] : swiglu ? t[3] : t[1];
        bool onto = r->op == OP_LINEAR_FORWARD && tensor_present(t[3]);
        int64_t out = gradient ? t[1].cols : swiglu ? t[1].cols : t[0].cols;
        return text_format("%s %lldx%lld -> %lld%s", weight.name, (long long)in.rows, (long long)in.cols,
                           (long long)out,
                           onto                  ? " + residual"
                           : gradient && r->flag ? ", add"
                                                 : "");
    }
    case CATEGORY_ATTENTION: {
        Tensor q = r->op == OP_ATTENTION_BACKWARD ? t[6] : t[2], k = r->op == OP_ATTENTION_BACKWARD ? t[7] : t[3];
        int seq = r->attention.seq, head_dim = r->attention.head_dim;
        return text_format("%lldx%d, %lld+%lld heads of %d", (long long)(q.rows / seq), seq,
                           (long long)(q.cols / head_dim), (long long)(k.cols / head_dim), head_dim);
    }
    default: break;
    }
    if (r->op == OP_QUANTIZE && !tensor_present(t[0]) && !tensor_present(t[1]))
        return text_format("largest of %s %lldx%lld", t[3].name, (long long)t[3].rows, (long long)t[3].cols);
    Tensor shown = r->op == OP_ADAMW               ? r->adamw.grad
                   : r->op == OP_MOE_ROUTE_FORWARD ? r->routing.probs
                   : r->op == OP_CROSS_ENTROPY     ? t[1]
                   : tensor_count(t[0]) > 1        ? t[0]
                                                   : t[1];
    return text_format("%s %lldx%lld", shown.name, (long long)shown.rows, (long long)shown.cols);
}

// Ops whose repetition makes values run away, each time a multiple of the last, get other tensors while they are timed.
typedef struct Stand {
    Tensor in, rstd, result[2];
} Stand;

static Status stand_in(Bench *b, Stand *stand, OpRecord *call) {
    Tensor *t = call->tensor;
    *stand = (Stand){0};
    switch (call->op) {
    case OP_SWIGLU_BACKWARD: // writes over what it reads
        TRY(operand_make(b->ops, &stand->result[1], t[1].dtype, t[1].rows, t[1].cols));
        t[1].data = stand->result[1].data;
        // fall through
    case OP_LINEAR_SWIGLU_BACKWARD:
    case OP_GROUPED_SWIGLU_BACKWARD: // in place
        TRY(operand_make(b->ops, &stand->result[0], t[0].dtype, t[0].rows, t[0].cols));
        t[0].data = stand->result[0].data;
        break;
    case OP_QK_ROPE_BACKWARD: // in place, and each time by rstd; heads of deviation 1 have one of 1
        if (!tensor_present(t[4])) break;
        TRY(operand_make(b->ops, &stand->in, t[3].dtype, t[3].rows, t[3].stride));
        TRY(operand_make(b->ops, &stand->rstd, t[4].dtype, t[4].rows, t[4].cols));
        operand_fill(b->ops, stand->in);
        fill_ones(b->ops, stand->rstd);
        t[3].data = stand->in.data;
        t[4].data = stand->rstd.data;
        break;
    default: break;
    }
    return NULL;
}

static void stand_free(Bench *b, Stand *stand) {
    operand_free(b->ops, &stand->in);
    operand_free(b->ops, &stand->rstd);
    operand_free(b->ops, &stand->result[0]);
    operand_free(b->ops, &stand->result[1]);
}

static Status time_step_call(Bench *b, const StepCall *step, bool accumulate) {
    OpRecord call = step->call;
    Stand stand;
    double ms;
    if (accumulate) call.flag = true;
    Status status = stand_in(b, &stand, &call);
    if (!status) status = time_call(b, &call, &ms);
    if (!status) {
        double used = (double)b->model->layout.tokens * b->model->layout.request.config.top_k;
        char *shape = shape_text(&call);
        report_row(b, op_name(call.op), shape, ms, op_cost(&call, used, 0));
        free(shape);
    }
    stand_free(b, &stand);
    return status;
}

static bool seen_before(const StepRecord *record, int index) { // the same op at the same shape, for another tensor
    char *shape = shape_text(&record->calls[index].call);
    bool seen = false;
    for (int i = 0; i < index && !seen; i++) {
        if (record->calls[i].call.op != record->calls[index].call.op) continue;
        char *other = shape_text(&record->calls[i].call);
        seen = strcmp(shape, other) == 0;
        free(other);
    }
    free(shape);
    return seen;
}

// Whether a second call finds other values than the first did: in place, or added to.
static bool changes_what_it_reads(const OpRecord *call) {
    switch (call->op) {
    case OP_SUM_F32:
    case OP_LINEAR_FP8:
    case OP_GROUPED_LINEAR_FP8:
    case OP_LINEAR_BACKWARD_WEIGHT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT: return call->flag;
    case OP_ADD:
    case OP_QUANTIZE_SCALES:
    case OP_EMBEDDING_BACKWARD:
    case OP_ADD_RMSNORM_BACKWARD:
    case OP_QK_ROPE_BACKWARD:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_APPLY:
    case OP_MOE_ROUTER_BACKWARD:
    case OP_MOE_BALANCE:
    case OP_MOE_BIAS_UPDATE:
    case OP_ADAMW: return true;
    default: return false;
    }
}

// One more step, call by call, so that each op meets the values that training has there; one that has changed them by
// being repeated is reached again from the step's beginning.
static Status time_step(Bench *b) {
    StepRecord record;
    step_record_of_model(&record, b->model);
    Status status = NULL;
    for (int i = 0; i < record.count && !status; i++) {
        const StepCall *call = &record.calls[i];
        OpId op = call->call.op;
        if ((!b->bench->only || strstr(op_name(op), b->bench->only)) && !seen_before(&record, i)) {
            status = time_step_call(b, call, false);
            if (!status && is_weight_gradient(&call->call) && !call->call.flag) status = time_step_call(b, call, true);
            for (int again = 0; again < i && changes_what_it_reads(&call->call); again++)
                run_call(b, &record.calls[again].call);
        }
        run_call(b, &call->call);
    }
    step_record_free(&record);
    return status;
}

// ---- the model ------------------------------------------------------------------------------------------------------

// One layer of each kind: the others have the same shapes.
static void shorten(ModelConfig *config) {
    int sparse = model_sparse_layers(config), kinds = (sparse > 0) + (sparse < config->layers);
    config->sparse[0] = sparse == config->layers;
    config->sparse[1] = kinds == 2;
    config->layers = kinds;
}

// A step on random tokens: their ids and what a step begins with stay where the ops look for them.
static Status run_one_step(Bench *b) {
    Model *model = b->model;
    int64_t tokens = model->layout.tokens;
    int32_t *ids = xmalloc(2 * (size_t)tokens * sizeof *ids), *documents = xcalloc((size_t)tokens, sizeof *documents);
    for (int64_t i = 0; i < 2 * tokens; i++) {
        // Half of them small, as frequent token ids are.
        uint64_t bits = rng_bits(1, RNG_STREAM_BENCH, (uint64_t)i),
                 vocab = (uint64_t)model->layout.request.config.vocab;
        ids[i] = (int32_t)((bits >> 8) % (bits % 2 || vocab < 64 ? vocab : 64));
    }
    model_init_weights(model, 1, false);
    model_step_begin(model, tokens, 1);
    model->direct = true;
    model_micro_step(model, ids, ids + tokens, documents);
    model_optimizer_step(model, &(OptimizerStep){.step = 1,
                                                 .lr = 1e-4f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .max_norm = 1,
                                                 .loss_limit = INFINITY,
                                                 .norm_limit = INFINITY});
    free(ids);
    free(documents);
    return b->ops->sync(b->ops);
}

Status bench_ops(Ops *ops, const BenchOps *bench) {
    LayoutRequest request = bench->request;
    shorten(&request.config);
    Bench b = {.ops = ops, .bench = bench};
    double copy_rate = 0, gemm_rate = 0;
    TRY(model_create(&b.model, ops, &request));
    Status status = run_one_step(&b);
    if (!status) status = time_ceiling(&b, OP_COPY, &copy_rate);
    if (!status) status = time_ceiling(&b, OP_LINEAR_FORWARD, &gemm_rate);
    b.copy_rate = copy_rate, b.gemm_rate = gemm_rate;
    if (!status) status = time_step(&b);
    model_destroy(b.model);
    return status;
}
