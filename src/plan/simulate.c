#include "plan/simulate.h"

#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct Simulation {
    const SimulateRequest *request;
    SimulateResult *result;
    int capacity;
    int64_t *next;      // [stages] place in the schedule of the first task that has not run
    double *free_at;    // [stages]
    double *link_free;  // [2 * stages] link out of a stage, forward and backward direction
    double *arrived[2]; // [stages * chunks * micro_batches] when a task's input is there; < 0: not yet
    int64_t per_stage;  // tasks
} Simulation;

// ---- events ---------------------------------------------------------------------------------------------------------

static void record_event(Simulation *sim, SimulateEvent event) {
    SimulateResult *result = sim->result;
    if (result->event_count == sim->capacity) {
        sim->capacity = sim->capacity ? 2 * sim->capacity : 1024;
        result->events = xrealloc(result->events, (size_t)sim->capacity * sizeof *result->events);
    }
    result->events[result->event_count++] = event;
}

static PipelineTask stage_task(const Simulation *sim, int stage, int64_t index) {
    const SimulateRequest *r = sim->request;
    return pipeline_task(r->schedule, r->stages, r->virtual_stages, stage, r->micro_batches, index);
}

static double *input_of(Simulation *sim, PipelinePass pass, int stage, int chunk, int micro_batch) {
    const SimulateRequest *r = sim->request;
    return &sim->arrived[pass][((size_t)stage * r->virtual_stages + chunk) * r->micro_batches + micro_batch];
}

// The output goes to the next place along the model: the next stage, or the first stage's next chunk.
static void deliver_output(Simulation *sim, int stage, PipelineTask task, double at) {
    const SimulateRequest *r = sim->request;
    bool forward = task.pass == PIPELINE_FORWARD;
    int place = task.chunk * r->stages + stage, last = r->stages * r->virtual_stages - 1;
    if (forward && place == last) {
        *input_of(sim, PIPELINE_BACKWARD, stage, task.chunk, task.micro_batch) = at; // the loss is here
        return;
    }
    if (!forward && place == 0) return;
    int next = forward ? place + 1 : place - 1, to = next % r->stages, chunk = next / r->stages;
    if (to != stage && r->send > 0) {
        double *link = &sim->link_free[2 * stage + !forward];
        double start = fmax(at, *link);
        *link = start + r->send;
        record_event(sim, (SimulateEvent){SIMULATE_SEND, stage, task.micro_batch, task.chunk, start, *link});
        at = *link;
    }
    *input_of(sim, task.pass, to, chunk, task.micro_batch) = at;
}

// Runs tasks of a stage while their inputs are there. A task's start depends only on its input and on what its stage
// did before, so the order in which stages are advanced does not change the result.
static bool advance_stage(Simulation *sim, int stage) {
    const SimulateRequest *r = sim->request;
    bool moved = false;
    while (sim->next[stage] < sim->per_stage) {
        PipelineTask task = stage_task(sim, stage, sim->next[stage]);
        double ready = *input_of(sim, task.pass, stage, task.chunk, task.micro_batch);
        if (ready < 0) break;
        double seconds = (task.pass == PIPELINE_FORWARD ? r->forward : r->backward)[stage] / r->virtual_stages;
        double start = fmax(ready, sim->free_at[stage]);
        sim->free_at[stage] = start + seconds;
        record_event(sim, (SimulateEvent){task.pass == PIPELINE_FORWARD ? SIMULATE_FORWARD : SIMULATE_BACKWARD, stage,
                                          task.micro_batch, task.chunk, start, start + seconds});
        deliver_output(sim, stage, task, start + seconds);
        sim->next[stage]++;
        moved = true;
    }
    return moved;
}

// Buckets become ready evenly through the last backward pass of each chunk; one reduction at a time.
static double reduce_gradients(Simulation *sim, int stage) {
    const SimulateRequest *r = sim->request;
    double free_at = 0;
    int events = sim->result->event_count, left = r->buckets;
    for (int chunk = r->virtual_stages - 1; chunk >= 0 && r->buckets > 0; chunk--) {
        const SimulateEvent *last = NULL;
        for (int i = 0; i < events; i++) {
            const SimulateEvent *event = &sim->result->events[i];
            if (event->kind == SIMULATE_BACKWARD && event->stage == stage && event->chunk == chunk)
                if (!last || event->start > last->start) last = event;
        }
        assert(last); // every chunk of a stage has backward passes
        double begin = last->start, length = last->end - last->start;
        int count = left / (chunk + 1);
        for (int i = 0; i < count; i++) {
            double start = fmax(begin + length * (i + 1) / count, free_at);
            free_at = start + r->bucket_seconds;
            record_event(sim, (SimulateEvent){SIMULATE_REDUCE, stage, i, chunk, start, free_at});
        }
        left -= count;
    }
    return free_at;
}

// ---- the step -------------------------------------------------------------------------------------------------------

static Status check_simulation(const SimulateRequest *r) {
    TRY(pipeline_schedule_check(r->schedule, r->stages, r->virtual_stages, r->micro_batches));
    if ((int64_t)r->stages * r->micro_batches * r->virtual_stages > 2000000)
        return status_usage("%d stages x %d micro-batches is more than the simulator takes", r->stages,
                            r->micro_batches);
    return NULL;
}

static void prepare_simulation(Simulation *sim) {
    const SimulateRequest *r = sim->request;
    size_t stages = (size_t)r->stages, inputs = stages * (size_t)r->virtual_stages * (size_t)r->micro_batches;
    sim->per_stage = pipeline_task_count(r->virtual_stages, r->micro_batches);
    sim->next = xcalloc(stages, sizeof *sim->next);
    sim->free_at = xcalloc(stages, sizeof *sim->free_at);
    sim->link_free = xcalloc(2 * stages, sizeof *sim->link_free);
    for (int kind = 0; kind < 2; kind++) {
        sim->arrived[kind] = xmalloc(inputs * sizeof(double));
        for (size_t i = 0; i < inputs; i++)
            sim->arrived[kind][i] = -1;
    }
    for (int i = 0; i < r->micro_batches; i++)
        *input_of(sim, PIPELINE_FORWARD, 0, 0, i) = 0; // the data is there from the start
}

static void release_simulation(Simulation *sim) {
    free(sim->next);
    free(sim->free_at);
    free(sim->link_free);
    free(sim->arrived[0]);
    free(sim->arrived[1]);
}

static void measure_simulation(Simulation *sim) {
    const SimulateRequest *r = sim->request;
    SimulateResult *result = sim->result;
    double busy = 0, reduced = 0;
    result->stages = r->stages;
    result->stash = xcalloc((size_t)r->stages, sizeof *result->stash);
    for (int stage = 0; stage < r->stages; stage++) {
        int64_t chunks = pipeline_in_flight(r->schedule, r->stages, r->virtual_stages, stage, r->micro_batches);
        result->stash[stage] = (int)((chunks + r->virtual_stages - 1) / r->virtual_stages);
        busy += (r->forward[stage] + r->backward[stage]) * r->micro_batches;
        result->compute_end = fmax(result->compute_end, sim->free_at[stage]);
    }
    result->bubble = 1 - busy / (r->stages * result->compute_end);
    for (int stage = 0; stage < r->stages; stage++)
        reduced = fmax(reduced, reduce_gradients(sim, stage));
    result->exposed = fmax(0, reduced - result->compute_end);
    double start = fmax(reduced, result->compute_end);
    result->seconds = start + r->optimizer;
    for (int stage = 0; stage < r->stages && r->optimizer > 0; stage++)
        record_event(sim, (SimulateEvent){SIMULATE_OPTIMIZER, stage, 0, 0, start, result->seconds});
}

Status simulate_run(SimulateResult *result, const SimulateRequest *request) {
    *result = (SimulateResult){0};
    TRY(check_simulation(request));
    Simulation sim = {.request = request, .result = result};
    prepare_simulation(&sim);
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < request->stages; stage++)
            moved |= advance_stage(&sim, stage);
    }
    measure_simulation(&sim);
    release_simulation(&sim);
    return NULL;
}

void simulate_free(SimulateResult *result) {
    free(result->events);
    free(result->stash);
    *result = (SimulateResult){0};
}
