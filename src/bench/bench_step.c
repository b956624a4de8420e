#include "bench/bench_step.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "model/fp8.h"
#include "plan/flops.h"

#include <math.h>
#include <stdlib.h>

enum { WARM_STEPS = 3 };

typedef struct Run {
    Model *model;
    const BenchStep *bench;
    int32_t *ids, *targets; // [accum, tokens]
    int32_t *doc_start;     // [tokens] zeros, each row one document: the layout may ask for it
    int64_t step;
} Run;

static void run_step(Run *run) {
    Model *model = run->model;
    int64_t tokens = model->layout.tokens;
    model_step_begin(model, tokens * run->bench->accum * run->bench->request.mesh.dp, run->bench->accum);
    for (int i = 0; i < run->bench->accum; i++)
        model_micro_step(model, run->ids + i * tokens, run->targets + i * tokens, run->doc_start);
    model_optimizer_step(model, &(OptimizerStep){.step = ++run->step,
                                                 .lr = 3e-4f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .max_norm = 1.0f,
                                                 .loss_limit = INFINITY,
                                                 .norm_limit = INFINITY});
}

// Marks 0 .. steps around the steps, so that the device measures without the host in between.
static void time_steps(Run *run, BenchResult *result) {
    Ops *ops = run->model->ops;
    int steps = run->bench->steps;
    double *seconds = xmalloc((size_t)steps * sizeof *seconds);
    ops->mark(ops, 0);
    for (int i = 0; i < steps; i++) {
        run_step(run);
        ops->mark(ops, i + 1);
    }
    double fastest = INFINITY, slowest = 0;
    for (int i = 0; i < steps; i++) {
        seconds[i] = ops->mark_elapsed(ops, i, i + 1) / 1e3;
        fastest = fmin(fastest, seconds[i]);
        slowest = fmax(slowest, seconds[i]);
    }
    result->step_seconds = double_median(seconds, (size_t)steps);
    result->spread = (slowest - fastest) / result->step_seconds;
    free(seconds);
}

// The parts and the whole are of one step, which runs op by op: a replayed graph is one piece to the profile, and
// another step than this one.
static void split_step(Run *run, BenchResult *result) {
    Ops *ops = run->model->ops;
    run->model->direct = true;
    ops->profile_start(ops);
    ops->mark(ops, 0);
    run_step(run);
    ops->mark(ops, 1);
    double of_ops[OP_COUNT];
    ops->profile_stop(ops, of_ops);
    op_sum_categories(of_ops, result->split_ms);
    run->model->direct = false;
    result->split_step_ms = result->gaps_ms = ops->mark_elapsed(ops, 0, 1);
    for (int i = 0; i < CATEGORY_COUNT; i++)
        result->gaps_ms -= result->split_ms[i];
}

static void scale_embedding(Model *model, double deviation) {
    const LayoutParam *param = layout_param(&model->layout, PARAM_EMBEDDING, -1);
    float *host = xmalloc((size_t)param->count * sizeof *host);
    float factor = (float)(deviation / model->layout.request.config.init_std);
    model_read_param(model, param, MODEL_WEIGHTS, host);
    for (int64_t i = 0; i < param->count; i++)
        host[i] *= factor;
    model_write_param(model, param, MODEL_WEIGHTS, host);
    free(host);
}

Status bench_step(Ops *ops, const BenchStep *bench, BenchResult *result) {
    *result = (BenchResult){0};
    double start = clock_seconds();
    int64_t free_before = ops->memory_free(ops);
    Run run = {.bench = bench};
    LayoutRequest request = bench->request;
    TRY(fp8_choose(ops, &request, bench->groups.all));
    TRY(model_create_ranks(&run.model, ops, &request, &bench->groups));
    Model *model = run.model;
    result->fp8 = model->layout.fp8;
    model->force = bench->force;
    model_init_weights(model, 1, false);
    if (bench->embedding_std > 0) scale_embedding(model, bench->embedding_std);
    int64_t count = model->layout.tokens * bench->accum;
    run.ids = xmalloc(2 * (size_t)count * sizeof *run.ids);
    run.targets = run.ids + count;
    run.doc_start = xcalloc((size_t)model->layout.tokens, sizeof *run.doc_start);
    int64_t own = 2 * count * model->layout.place.dp; // data-parallel ranks have data of their own
    for (int64_t i = 0; i < 2 * count; i++)
        run.ids[i] =
            (int32_t)rng_below(1, RNG_STREAM_BENCH, (uint64_t)(own + i), (uint64_t)bench->request.config.vocab);
    run_step(&run);
    Status status = ops->sync(ops);
    result->start_seconds = clock_seconds() - start;
    for (int i = 1; i < WARM_STEPS && !status; i++)
        run_step(&run);
    if (!status) {
        time_steps(&run, result);
        StepResult last;
        model_step_result(model, &last);
        result->loss = last.loss;
        split_step(&run, result);
        status = ops->sync(ops);
    }
    result->tokens_per_second = (double)count * bench->request.mesh.dp / result->step_seconds;
    result->predicted_bytes = model->layout.total_bytes;
    result->used_bytes = free_before - ops->memory_free(ops);
    free(run.ids);
    free(run.doc_start);
    model_destroy(model);
    return status;
}

void bench_flops_per_token(const ModelConfig *config, int seq, double flops[3]) {
    static const PlanAttention conventions[3] = {PLAN_ATTENTION_FULL, PLAN_ATTENTION_CAUSAL, PLAN_ATTENTION_NONE};
    double matmul = (double)model_parameters(config).matmul_active;
    for (int i = 0; i < 3; i++)
        flops[i] = plan_flops_per_token(matmul, config->layers, config->heads, config->head_dim, seq, conventions[i]);
}
