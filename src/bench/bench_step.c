#include "bench/bench_step.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "model/agree.h"
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

// Of a micro-batch, which context-parallel ranks share.
static int64_t micro_batch_tokens(const BenchStep *bench) {
    return (int64_t)bench->request.micro_batch * bench->request.seq;
}

static void run_step(Run *run) {
    Model *model = run->model;
    int64_t tokens = micro_batch_tokens(run->bench);
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

// With as much room for the rows of experts as its routing needs.
static Status warm_step(Run *run) {
    StepResult result;
    for (;;) {
        run_step(run);
        model_step_result(run->model, &result);
        TRY(run->model->ops->sync(run->model->ops));
        if (!result.rows_needed) return NULL;
        TRY(model_grow_experts(run->model, result.rows_needed));
        run->step--; // it was refused
    }
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

static double overlap(double a, double b, double from, double to) {
    return fmax(0, fmin(b, to) - fmax(a, from));
}

static void trace_comm(Run *run, BenchExchange *comm) {
    enum { EVENTS_MAX = 1 << 14 };
    World *world = run->bench->world;
    Model *model = run->model;
    int64_t sent = comm_sent_bytes(world);
    world_barrier(world); // ranks begin together: what one waits for is this step's
    model->direct = true;
    comm_record_events(world, EVENTS_MAX);
    trace_begin(model, &comm->trace);
    comm->begin = comm->trace.begin;
    run_step(run);
    trace_end(model);
    comm->end = clock_seconds();
    comm->exposed = comm_exposed_seconds(world);
    comm->sent_bytes = comm_sent_bytes(world) - sent;
    comm->event_count = comm_take_events(world, &comm->events);
    comm_record_events(world, 0);
    model->direct = false;
    const Trace *trace = &comm->trace; // its first and last marks are around the backward pass
    double from = trace->count ? trace->marks[0].seconds : 0;
    double to = trace->count ? trace->marks[trace->count - 1].seconds : 0;
    for (int i = 0; i < comm->event_count; i++) {
        const CommEvent *event = &comm->events[i];
        comm->running += event->ended - event->begun;
        comm->behind += overlap(event->begun, event->ended, from, to);
    }
}

void bench_result_free(BenchResult *result) {
    free(result->comm.events);
    result->comm = (BenchExchange){0};
}

static void scale_embedding(Model *model, double deviation) {
    const LayoutParam *param = layout_param(&model->layout, PARAM_EMBEDDING, -1);
    if (!param) return; // another stage has it
    float *host = xmalloc((size_t)param->count * sizeof *host);
    float factor = (float)(deviation / model->layout.request.config.init_std);
    model_read_param(model, param, MODEL_WEIGHTS, host);
    for (int64_t i = 0; i < param->count; i++)
        host[i] *= factor;
    model_write_param(model, param, MODEL_WEIGHTS, host);
    free(host);
}

static void step_again(void *run) {
    run_step(run);
}

Status bench_step(Ops *ops, const BenchStep *bench, BenchResult *result) {
    *result = (BenchResult){0};
    const LayoutRequest *request = &bench->request;
    if (request->mesh.pp > 1)
        TRY(pipeline_schedule_check(layout_schedule(request), request->mesh.pp, layout_chunks(request), bench->accum));
    double start = clock_seconds();
    int64_t free_before = ops->memory_free(ops);
    Run run = {.bench = bench};
    LayoutRequest chosen = bench->request;
    Status created = fp8_choose(ops, &chosen, bench->groups.all);
    if (!created) created = model_create_ranks(&run.model, ops, &chosen, &bench->groups);
    if (bench->world) created = world_share(bench->world, created); // who has no room leaves none of the others waiting
    Model *model = run.model;
    if (created) {
        model_destroy(model);
        return created;
    }
    result->fp8 = model->layout.fp8;
    model->force = bench->force;
    if (bench->request.precision == PRECISION_FP16) model->loss_scale = 0x1p16f; // else nothing is what it will be
    model_init_weights(model, 1, false);
    if (bench->embedding_std > 0) scale_embedding(model, bench->embedding_std);
    int64_t tokens = micro_batch_tokens(bench), count = tokens * bench->accum;
    run.ids = xmalloc(2 * (size_t)count * sizeof *run.ids);
    run.targets = run.ids + count;
    run.doc_start = xcalloc((size_t)tokens, sizeof *run.doc_start);
    int64_t own = 2 * count * model->layout.place.dp; // data-parallel ranks have data of their own
    for (int64_t i = 0; i < 2 * count; i++)
        run.ids[i] =
            (int32_t)rng_below(1, RNG_STREAM_BENCH, (uint64_t)(own + i), (uint64_t)bench->request.config.vocab);
    Status status = model_agree_kernels(model, bench->world);
    if (!status) status = warm_step(&run);
    result->start_seconds = clock_seconds() - start;
    for (int i = 1; i < WARM_STEPS && !status; i++)
        status = warm_step(&run);
    StepResult last = {0};
    while (!status) {
        time_steps(&run, result);
        model_step_result(model, &last);
        if (!last.rows_needed) break;
        status = model_grow_experts(model, last.rows_needed); // refused: not the step that was to be timed
        if (!status) status = warm_step(&run);
    }
    if (!status) {
        result->loss = last.loss;
        if (bench->world && bench->world->size > 1) trace_comm(&run, &result->comm);
        if (bench->timeline)
            status = bench_timeline(bench->timeline, model, bench->world, bench->accum, step_again, &run);
        if (!status && bench->look) status = bench->look(bench->look_context, model, step_again, &run);
        split_step(&run, result);
        if (!status) status = ops->sync(ops);
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
