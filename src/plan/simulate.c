#include "plan/simulate.h"

#include "base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const schedule_names[] = {"gpipe", "1f1b", "interleaved"};

Status simulate_schedule_parse(SimulateSchedule *schedule, const char *name) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, schedule_names[i]) != 0) continue;
        *schedule = (SimulateSchedule)i;
        return NULL;
    }
    return status_usage("the schedule must be gpipe, 1f1b or interleaved, not \"%s\"", name);
}

const char *simulate_schedule_name(SimulateSchedule schedule) {
    return schedule_names[schedule];
}

typedef struct Task {
    SimulateKind kind; // forward or backward
    int micro_batch, chunk;
} Task;

typedef struct Simulation {
    const SimulateRequest *request;
    SimulateResult *result;
    int capacity;
    Task *tasks;        // [stages][2 * micro_batches * chunks], in the order of the schedule
    int *next;          // [stages] first task that has not run
    double *free_at;    // [stages]
    double *link_free;  // [2 * stages] link out of a stage, forward and backward direction
    double *arrived[2]; // [stages * chunks * micro_batches] when a task's input is there; < 0: not yet
    int per_stage;
} Simulation;

// ---- schedules ------------------------------------------------------------------------------------------------------

// k-th chunk run of a stage: groups of `stages` micro-batches pass through chunk 0, then chunk 1, ...
static Task virtual_task(const SimulateRequest *r, SimulateKind kind, int k) {
    int round = r->stages * r->virtual_stages, chunk = k % round / r->stages;
    if (kind == SIMULATE_BACKWARD) chunk = r->virtual_stages - 1 - chunk;
    return (Task){kind, k / round * r->stages + k % r->stages, chunk};
}

static void order_stage(Simulation *sim, int stage) {
    const SimulateRequest *r = sim->request;
    int runs = r->micro_batches * r->virtual_stages, warmup = runs;
    if (r->schedule == SIMULATE_1F1B) warmup = r->stages - stage - 1;
    if (r->schedule == SIMULATE_INTERLEAVED) warmup = (r->stages - stage - 1) * 2 + (r->virtual_stages - 1) * r->stages;
    if (warmup > runs) warmup = runs;
    Task *out = sim->tasks + (size_t)stage * sim->per_stage;
    int forward = 0, backward = 0;
    while (forward < warmup)
        *out++ = virtual_task(r, SIMULATE_FORWARD, forward++);
    while (backward < runs) {
        if (forward < runs) *out++ = virtual_task(r, SIMULATE_FORWARD, forward++);
        *out++ = virtual_task(r, SIMULATE_BACKWARD, backward++);
    }
}

// ---- events ---------------------------------------------------------------------------------------------------------

static void record(Simulation *sim, SimulateEvent event) {
    SimulateResult *result = sim->result;
    if (result->event_count == sim->capacity) {
        sim->capacity = sim->capacity ? 2 * sim->capacity : 1024;
        result->events = xrealloc(result->events, (size_t)sim->capacity * sizeof *result->events);
    }
    result->events[result->event_count++] = event;
}

static double *input_of(Simulation *sim, SimulateKind kind, int stage, int chunk, int micro_batch) {
    const SimulateRequest *r = sim->request;
    return &sim->arrived[kind][((size_t)stage * r->virtual_stages + chunk) * r->micro_batches + micro_batch];
}

// The output goes to the next place along the model: the next stage, or the first stage's next chunk.
static void deliver(Simulation *sim, int stage, Task task, double at) {
    const SimulateRequest *r = sim->request;
    bool forward = task.kind == SIMULATE_FORWARD;
    int place = task.chunk * r->stages + stage, last = r->stages * r->virtual_stages - 1;
    if (forward && place == last) {
        *input_of(sim, SIMULATE_BACKWARD, stage, task.chunk, task.micro_batch) = at; // the loss is here
        return;
    }
    if (!forward && place == 0) return;
    int next = forward ? place + 1 : place - 1, to = next % r->stages, chunk = next / r->stages;
    if (to != stage && r->send > 0) {
        double *link = &sim->link_free[2 * stage + !forward];
        double start = fmax(at, *link);
        *link = start + r->send;
        record(sim, (SimulateEvent){SIMULATE_SEND, stage, task.micro_batch, task.chunk, start, *link});
        at = *link;
    }
    *input_of(sim, task.kind, to, chunk, task.micro_batch) = at;
}

// Runs tasks of a stage while their inputs are there. A task's start depends only on its input and on what its stage
// did before, so the order in which stages are advanced does not change the result.
static bool advance(Simulation *sim, int stage) {
    const SimulateRequest *r = sim->request;
    bool moved = false;
    while (sim->next[stage] < sim->per_stage) {
        Task task = sim->tasks[(size_t)stage * sim->per_stage + sim->next[stage]];
        double ready = *input_of(sim, task.kind, stage, task.chunk, task.micro_batch);
        if (ready < 0) break;
        double seconds = (task.kind == SIMULATE_FORWARD ? r->forward : r->backward)[stage] / r->virtual_stages;
        double start = fmax(ready, sim->free_at[stage]);
        sim->free_at[stage] = start + seconds;
        record(sim, (SimulateEvent){task.kind, stage, task.micro_batch, task.chunk, start, start + seconds});
        deliver(sim, stage, task, start + seconds);
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
        double begin = last->start, length = last->end - last->start;
        int count = left / (chunk + 1);
        for (int i = 0; i < count; i++) {
            double start = fmax(begin + length * (i + 1) / count, free_at);
            free_at = start + r->bucket_seconds;
            record(sim, (SimulateEvent){SIMULATE_REDUCE, stage, i, chunk, start, free_at});
        }
        left -= count;
    }
    return free_at;
}

// ---- the step -------------------------------------------------------------------------------------------------------

static Status check(const SimulateRequest *r) {
    if (r->stages < 1 || r->micro_batches < 1 || r->virtual_stages < 1)
        return status_usage("stages, micro-batches and virtual stages must be at least 1");
    if ((int64_t)r->stages * r->micro_batches * r->virtual_stages > 2000000)
        return status_usage("%d stages x %d micro-batches is more than the simulator takes", r->stages,
                            r->micro_batches);
    if (r->schedule != SIMULATE_INTERLEAVED && r->virtual_stages > 1)
        return status_usage("virtual stages need the interleaved schedule");
    if (r->schedule == SIMULATE_INTERLEAVED && r->micro_batches % r->stages)
        return status_usage("the interleaved schedule needs micro-batches (%d) that divide by the stages (%d)",
                            r->micro_batches, r->stages);
    return NULL;
}

static void prepare(Simulation *sim) {
    const SimulateRequest *r = sim->request;
    size_t stages = (size_t)r->stages, inputs = stages * (size_t)r->virtual_stages * (size_t)r->micro_batches;
    sim->per_stage = 2 * r->micro_batches * r->virtual_stages;
    sim->tasks = xmalloc(stages * (size_t)sim->per_stage * sizeof *sim->tasks);
    sim->next = xcalloc(stages, sizeof *sim->next);
    sim->free_at = xcalloc(stages, sizeof *sim->free_at);
    sim->link_free = xcalloc(2 * stages, sizeof *sim->link_free);
    for (int kind = 0; kind < 2; kind++) {
        sim->arrived[kind] = xmalloc(inputs * sizeof(double));
        for (size_t i = 0; i < inputs; i++)
            sim->arrived[kind][i] = -1;
    }
    for (int i = 0; i < r->micro_batches; i++)
        *input_of(sim, SIMULATE_FORWARD, 0, 0, i) = 0; // the data is there from the start
    for (int stage = 0; stage < r->stages; stage++)
        order_stage(sim, stage);
}

static void release(Simulation *sim) {
    free(sim->tasks);
    free(sim->next);
    free(sim->free_at);
    free(sim->link_free);
    free(sim->arrived[0]);
    free(sim->arrived[1]);
}

static void measure(Simulation *sim) {
    const SimulateRequest *r = sim->request;
    SimulateResult *result = sim->result;
    double busy = 0, reduced = 0;
    result->stages = r->stages;
    result->stash = xcalloc((size_t)r->stages, sizeof *result->stash);
    for (int stage = 0; stage < r->stages; stage++) {
        int in_flight = 0, most = 0;
        for (int i = 0; i < sim->per_stage; i++) {
            in_flight += sim->tasks[(size_t)stage * sim->per_stage + i].kind == SIMULATE_FORWARD ? 1 : -1;
            if (in_flight > most) most = in_flight;
        }
        result->stash[stage] = (most + r->virtual_stages - 1) / r->virtual_stages;
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
        record(sim, (SimulateEvent){SIMULATE_OPTIMIZER, stage, 0, 0, start, result->seconds});
}

Status simulate_run(SimulateResult *result, const SimulateRequest *request) {
    *result = (SimulateResult){0};
    TRY(check(request));
    Simulation sim = {.request = request, .result = result};
    prepare(&sim);
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < request->stages; stage++)
            moved |= advance(&sim, stage);
    }
    measure(&sim);
    release(&sim);
    return NULL;
}

void simulate_free(SimulateResult *result) {
    free(result->events);
    free(result->stash);
    *result = (SimulateResult){0};
}
