#include "bench/bench_timeline.h"

#include "base/clock.h"
#include "base/text.h"
#include "model/pipeline.h"

#include <math.h>
#include <stdlib.h>

// Begin and end of every pass of this rank, and of the step; all ranks' clocks start at a barrier.
static Status watch_step(double *times, Model *model, World *world, void (*step)(void *), void *context) {
    TRY(model->ops->sync(model->ops));
    world_barrier(world);
    double start = clock_seconds();
    pipeline_watch(model);
    step(context);
    TRY(model->ops->sync(model->ops));
    const PipelineEvent *events;
    int64_t count = pipeline_events(model, &events);
    for (int64_t i = 0; i < count; i++) {
        times[2 * i] = events[i].begin;
        times[2 * i + 1] = events[i].end;
    }
    times[2 * count] = clock_seconds() - start;
    return NULL;
}

typedef struct StageTimes {
    const LayoutRequest *request;
    int micro_batches;
    int64_t tasks;
    double *all; // [ranks][2 * tasks + 1]
} StageTimes;

static const double *times_of(const StageTimes *times, int stage) { // of its first rank
    return times->all + (size_t)(stage * mesh_stage_ranks(&times->request->mesh)) * (size_t)(2 * times->tasks + 1);
}

static PipelineTask task_of(const StageTimes *times, int stage, int64_t index) {
    const LayoutRequest *r = times->request;
    return pipeline_task(layout_schedule(r), r->mesh.pp, layout_chunks(r), stage, times->micro_batches, index);
}

static void measured_result(SimulateResult *result, const StageTimes *times) {
    int stages = times->request->mesh.pp;
    double busy = 0;
    *result = (SimulateResult){.stages = stages, .stash = xcalloc((size_t)stages, sizeof *result->stash)};
    result->events = xmalloc((size_t)stages * (size_t)(times->tasks + 1) * sizeof *result->events);
    for (int stage = 0; stage < stages; stage++) {
        const double *own = times_of(times, stage);
        int alive = 0;
        for (int64_t i = 0; i < times->tasks; i++) {
            PipelineTask task = task_of(times, stage, i);
            bool forward = task.pass == PIPELINE_FORWARD;
            result->events[result->event_count++] = (SimulateEvent){forward ? SIMULATE_FORWARD : SIMULATE_BACKWARD,
                                                                    stage,
                                                                    task.micro_batch,
                                                                    task.chunk,
                                                                    own[2 * i],
                                                                    own[2 * i + 1]};
            busy += own[2 * i + 1] - own[2 * i];
            alive += forward ? 1 : -1;
            if (alive > result->stash[stage]) result->stash[stage] = alive;
        }
        int chunks = layout_chunks(times->request);
        result->stash[stage] = (result->stash[stage] + chunks - 1) / chunks;
        result->compute_end = fmax(result->compute_end, own[2 * times->tasks - 1]);
        result->seconds = fmax(result->seconds, own[2 * times->tasks]);
    }
    result->bubble = 1 - busy / (stages * result->compute_end);
    for (int stage = 0; stage < stages; stage++) {
        const double *own = times_of(times, stage);
        result->events[result->event_count++] =
            (SimulateEvent){SIMULATE_OPTIMIZER, stage, 0, 0, own[2 * times->tasks - 1], own[2 * times->tasks]};
    }
}

// Every stage takes what it took on average; sends are free.
static Status simulated_result(SimulateResult *result, const StageTimes *times, const SimulateResult *measured) {
    const LayoutRequest *r = times->request;
    double *seconds = xcalloc(2 * (size_t)r->mesh.pp, sizeof *seconds);
    for (int i = 0; i < measured->event_count; i++) {
        const SimulateEvent *event = &measured->events[i];
        if (event->kind == SIMULATE_OPTIMIZER) continue;
        seconds[(event->kind == SIMULATE_BACKWARD) * r->mesh.pp + event->stage] +=
            (event->end - event->start) / times->micro_batches;
    }
    SimulateRequest request = {.schedule = layout_schedule(r),
                               .stages = r->mesh.pp,
                               .micro_batches = times->micro_batches,
                               .virtual_stages = layout_chunks(r),
                               .forward = seconds,
                               .backward = seconds + r->mesh.pp,
                               .optimizer = measured->seconds - measured->compute_end};
    Status status = simulate_run(result, &request);
    free(seconds);
    return status;
}

Status bench_timeline(BenchTimeline *timeline, Model *model, World *world, int micro_batches, void (*step)(void *),
                      void *context) {
    *timeline = (BenchTimeline){0};
    const LayoutRequest *request = &model->layout.request;
    StageTimes times = {.request = request,
                        .micro_batches = micro_batches,
                        .tasks = pipeline_task_count(layout_chunks(request), micro_batches)};
    if (!model->pipeline) return status_usage("a timeline is one of a pipeline, and there is one stage");
    if (times.tasks > pipeline_watch_limit(model))
        return status_hint(
            status_usage("a timeline of %lld passes on each rank is longer than this device marks (%lld)",
                         (long long)times.tasks, (long long)pipeline_watch_limit(model)),
            "take fewer micro-batches");
    size_t each = (size_t)(2 * times.tasks + 1);
    double *mine = xcalloc(each, sizeof *mine);
    times.all = xmalloc((size_t)world->size * each * sizeof *times.all);
    Status status = watch_step(mine, model, world, step, context);
    if (!status) world_gather_doubles(world, mine, (int)each, times.all);
    if (!status && world->rank == 0) {
        measured_result(&timeline->measured, &times);
        status = simulated_result(&timeline->simulated, &times, &timeline->measured);
    }
    free(mine);
    free(times.all);
    return status;
}

void bench_timeline_free(BenchTimeline *timeline) {
    simulate_free(&timeline->measured);
    simulate_free(&timeline->simulated);
}
