#include "train/profiler.h"

#include "base/log.h"
#include "train/profiler_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS_MOST = 4 << 20, EXCHANGES_MOST = 1 << 16 };
#define SAMPLE_SECONDS 0.02

// ---- ops ------------------------------------------------------------------------------------------------------------

static bool kind_is(const ProfilerKind *kind, const OpRecord *record, StepPass pass) {
    if (record->op != OP_ADAMW) return step_call_is(&kind->call, record, pass);
    const AdamwArgs *a = &kind->call.call.adamw, *b = &record->adamw;
    return kind->call.call.op == OP_ADAMW && tensor_count(a->weight) == tensor_count(b->weight) &&
           a->weight.dtype == b->weight.dtype;
}

// Calls come in the same order again and again: the kind behind the last one is looked at first.
static int kind_find(Profiler *profiler, const OpRecord *record) {
    StepPass pass = profiler->options.model->pass;
    for (int i = 0; i < profiler->kind_count; i++) {
        int at = (profiler->kind_last + 1 + i) % profiler->kind_count;
        if (kind_is(&profiler->kinds[at], record, pass)) return profiler->kind_last = at;
    }
    profiler->kinds = xrealloc(profiler->kinds, (size_t)(profiler->kind_count + 1) * sizeof *profiler->kinds);
    profiler->kinds[profiler->kind_count] = (ProfilerKind){.call = {*record, pass, 1}};
    return profiler->kind_last = profiler->kind_count++;
}

static void call_begins(void *context, const OpRecord *record) {
    Profiler *profiler = context;
    if (profiler->depth++) return;
    profiler->in_call = profiler->call_count < CALLS_MOST;
    if (!profiler->in_call) return;
    if (profiler->call_count == profiler->call_room) {
        profiler->call_room = profiler->call_room ? 2 * profiler->call_room : 4096;
        profiler->calls = xrealloc(profiler->calls, (size_t)profiler->call_room * sizeof *profiler->calls);
    }
    ProfilerCall *call = &profiler->calls[profiler->call_count++];
    *call = (ProfilerCall){kind_find(profiler, record), profiler->options.model->layer - 1, 0, 0};
    if (profiler->device) device_trace_enter(profiler->device, (uint64_t)profiler->call_count);
    call->begin = clock_seconds();
}

static void call_ends(void *context, const OpRecord *record) {
    (void)record;
    Profiler *profiler = context;
    if (--profiler->depth || !profiler->in_call) return;
    profiler->calls[profiler->call_count - 1].end = clock_seconds();
    if (profiler->device) device_trace_leave(profiler->device);
}

// ---- counters -------------------------------------------------------------------------------------------------------

static void *sampler_main(void *context) {
    Profiler *profiler = context;
    while (!atomic_load(&profiler->sampler_ends)) {
        machine_sample(profiler->machine);
        MachineReading reading = machine_mean(profiler->machine);
        if (reading.host_bytes > 0) timeline_counter("memory of the process (MiB)", reading.host_bytes / 0x1p20);
        if (reading.cpu_cores > 0) timeline_counter("cores in use", reading.cpu_cores);
        if (reading.gpu_power > 0) timeline_counter("power of the GPU (W)", reading.gpu_power);
        if (reading.gpu_clock > 0) timeline_counter("clock of the GPU (MHz)", reading.gpu_clock);
        struct timespec pause = {0, (long)(1e9 * SAMPLE_SECONDS)};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void sampler_start(Profiler *profiler) {
    profiler->machine = machine_open(&(MachineOptions){.gpu = profiler->options.gpu, .every = SAMPLE_SECONDS / 2});
    profiler->sampling = pthread_create(&profiler->sampler, NULL, sampler_main, profiler) == 0;
}

static void sampler_stop(Profiler *profiler) {
    atomic_store(&profiler->sampler_ends, true);
    if (profiler->sampling) pthread_join(profiler->sampler, NULL);
    profiler->sampling = false;
    machine_close(profiler->machine);
    profiler->machine = NULL;
}

// ---- which steps ----------------------------------------------------------------------------------------------------

static void device_is_missing(Profiler *profiler, Status status) {
    device_trace_close(profiler->device);
    profiler->device = NULL;
    free(profiler->device_missing);
    profiler->device_missing = text_copy(status_message(status));
    profiler->by_events = true;
    status_free(status);
}

// Graphs that were recorded before nobody knows the nodes of. What the device does in the warm-up is collected too, so
// that they are made while somebody does, and left out afterwards.
static void warming_begins(Profiler *profiler) {
    Model *model = profiler->options.model;
    profiler->state = PROFILER_WARMING;
    if (model->ops->kind != DEVICE_CUDA) return;
    Status status = device_trace_open(&profiler->device, profiler->options.cupti);
    if (!status) status = device_trace_start(profiler->device);
    if (status) {
        device_is_missing(profiler, status);
        return;
    }
    ops_observe_both(model->ops, call_begins, call_ends, profiler);
    model_record_again(model);
}

static void activity_begins(Profiler *profiler) {
    profiler->state = PROFILER_ACTIVE;
    profiler->thread = timeline_thread();
    timeline_name_thread("steps");
    if (profiler->options.model->ops->kind == DEVICE_CPU)
        ops_observe_both(profiler->options.model->ops, call_begins, call_ends, profiler);
    timeline_start();
    sampler_start(profiler);
}

Profiler *profiler_open(const ProfilerOptions *options) {
    if (options->active <= 0) return NULL;
    Profiler *profiler = xcalloc(1, sizeof *profiler);
    profiler->options = *options;
    profiler->steps = xcalloc((size_t)options->active, sizeof *profiler->steps);
    return profiler;
}

void profiler_step_begin(Profiler *profiler, int64_t step) {
    if (!profiler || profiler->state == PROFILER_DONE) return;
    const ProfilerOptions *options = &profiler->options;
    int64_t number = profiler->seen++;
    if (profiler->state == PROFILER_WAITING && number >= options->wait) warming_begins(profiler);
    if (profiler->state == PROFILER_WARMING && number >= options->wait + options->warmup) activity_begins(profiler);
    if (profiler->state != PROFILER_ACTIVE) return;
    if (options->world) comm_record_events(options->world, EXCHANGES_MOST);
    if (profiler->by_events) {
        profiler->direct = options->model->direct;
        options->model->direct = true;
        options->model->ops->profile_start(options->model->ops);
    }
    profiler->steps[profiler->step_count] = (ProfilerStep){.step = step, .begin = clock_seconds()};
}

static void take_exchanges(Profiler *profiler) {
    World *world = profiler->options.world;
    if (!world) return;
    CommEvent *events;
    int count = comm_take_events(world, &events);
    size_t all = (size_t)profiler->exchange_count + (size_t)count;
    profiler->exchanges = xrealloc(profiler->exchanges, (all + 1) * sizeof *events);
    if (count) memcpy(profiler->exchanges + profiler->exchange_count, events, (size_t)count * sizeof *events);
    profiler->exchange_count += count;
    free(events);
    comm_record_events(world, 0);
}

static void take_ops_by_events(Profiler *profiler) {
    Model *model = profiler->options.model;
    double milliseconds[OP_COUNT] = {0};
    model->ops->profile_stop(model->ops, milliseconds);
    model->direct = profiler->direct;
    for (int i = 0; i < OP_COUNT; i++)
        profiler->of_ops[i] += milliseconds[i] / 1e3;
}

// Nothing is recorded any more; *record is what was.
static void activity_ends(Profiler *profiler, ProfilerRecord *record) {
    Model *model = profiler->options.model;
    int64_t lost = 0;
    *record = (ProfilerRecord){0};
    sampler_stop(profiler);
    record->event_count = timeline_stop(&record->events, &record->lost);
    ops_stop_observer(model->ops, profiler);
    Status status = profiler->device
                        ? device_trace_stop(profiler->device, &record->activities, &record->activity_count, &lost)
                        : NULL;
    if (status) device_is_missing(profiler, status);
    int64_t warm = 0;
    while (warm < record->activity_count && record->activities[warm].begin < profiler->steps[0].begin)
        warm++;
    record->activity_count -= warm;
    if (record->activity_count && warm)
        memmove(record->activities, record->activities + warm,
                (size_t)record->activity_count * sizeof *record->activities);
    record->lost += lost;
    profiler->state = PROFILER_DONE;
}

static void finish_now(Profiler *profiler) {
    ProfilerRecord record;
    activity_ends(profiler, &record);
    profiler_write(profiler, &record);
    free(record.events);
    free(record.activities);
    device_trace_close(profiler->device);
    profiler->device = NULL;
}

void profiler_step_end(Profiler *profiler, const MetricsStep *metrics) {
    if (!profiler || profiler->state != PROFILER_ACTIVE) return;
    profiler->steps[profiler->step_count].end = clock_seconds();
    take_exchanges(profiler);
    if (profiler->by_events) take_ops_by_events(profiler);
    if (!metrics) return;
    timeline_counter("memory of the model (MiB)", metrics->memory_own_bytes / 0x1p20);
    if (++profiler->step_count == profiler->options.active) finish_now(profiler);
}

char *profiler_said(Profiler *profiler) {
    if (!profiler) return NULL;
    char *said = profiler->said;
    profiler->said = NULL;
    return said;
}

void profiler_finish(Profiler *profiler) {
    if (!profiler || profiler->state == PROFILER_DONE) return;
    const ProfilerOptions *options = &profiler->options;
    if (profiler->step_count)
        finish_now(profiler);
    else if (!options->world || options->world->rank == 0)
        log_warn("the run ended before its profile began: that is %lld steps after its start\nlower profile.wait and "
                 "profile.warmup",
                 (long long)(options->wait + options->warmup));
}

void profiler_close(Profiler *profiler) {
    if (!profiler) return;
    ProfilerRecord record = {0};
    if (profiler->state == PROFILER_ACTIVE) activity_ends(profiler, &record);
    if (profiler->state == PROFILER_WARMING) ops_stop_observer(profiler->options.model->ops, profiler);
    device_trace_close(profiler->device);
    free(record.events);
    free(record.activities);
    free(profiler->steps);
    free(profiler->calls);
    free(profiler->kinds);
    free(profiler->exchanges);
    free(profiler->device_missing);
    free(profiler->said);
    free(profiler);
}
