// From what was recorded to figures: names and floors of ops, what each took, and the parts of the steps.
#include "plan/step_ops.h"
#include "train/profiler_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- names and floors -----------------------------------------------------------------------------------------------

static void name_by_op(char name[STEP_OP_NAME], OpId op) {
    snprintf(name, STEP_OP_NAME, "%s", op_name(op));
    for (char *at = name; (at = strchr(at, '_'));)
        *at = ' ';
}

void profiler_price(Profiler *profiler) {
    const Prediction *prediction = profiler->options.prediction;
    const Layout *layout = &profiler->options.model->layout;
    StageCost *cost = xmalloc(sizeof *cost);
    for (int i = 0; i < profiler->kind_count; i++) {
        ProfilerKind *kind = &profiler->kinds[i];
        cost->op_count = 0;
        kind->floor = 0;
        if (prediction)
            stage_call_cost(cost, &prediction->machine, &prediction->run, layout, prediction->plan.step.imbalance,
                            &kind->call);
        for (int k = 0; k < cost->op_count; k++)
            kind->floor += cost->ops[k].seconds;
        if (cost->op_count)
            snprintf(kind->name, sizeof kind->name, "%s", cost->ops[0].name);
        else
            name_by_op(kind->name, kind->call.call.op);
    }
    free(cost);
}

// ---- what ran when --------------------------------------------------------------------------------------------------

static bool in_a_step(const Profiler *profiler, double begin) {
    for (int i = 0; i < profiler->step_count; i++)
        if (begin >= profiler->steps[i].begin && begin < profiler->steps[i].end) return true;
    return false;
}

bool profiler_is_exchange(const DeviceActivity *activity) {
    return activity->kind == DEVICE_KERNEL && strstr(activity->name, "nccl"); // mangled: it does not begin so
}

const ProfilerCall *profiler_call_of(const Profiler *profiler, const DeviceActivity *activity) {
    bool known = activity->call && activity->call <= (uint64_t)profiler->call_count;
    return known ? &profiler->calls[activity->call - 1] : NULL;
}

static OpCategory call_category(const Profiler *profiler, const ProfilerCall *call) {
    return op_category(profiler->kinds[call->kind].call.call.op);
}

// A kernel of none of the ops is one of the libraries' between them.
static ProfilePart activity_part(const Profiler *profiler, const DeviceActivity *activity) {
    const ProfilerCall *call = profiler_call_of(profiler, activity);
    if (profiler_is_exchange(activity)) return PROFILE_COMMUNICATION;
    if (call) return (ProfilePart)call_category(profiler, call);
    return (ProfilePart)(activity->kind == DEVICE_KERNEL ? CATEGORY_ELEMENTWISE : CATEGORY_COPY);
}

static int64_t spans_make(const Profiler *profiler, const ProfilerRecord *record, ProfileSpan *spans) {
    int64_t count = 0;
    bool on_host = profiler->options.model->ops->kind == DEVICE_CPU;
    for (int64_t i = 0; on_host && i < profiler->call_count; i++)
        spans[count++] = (ProfileSpan){(ProfilePart)call_category(profiler, &profiler->calls[i]),
                                       profiler->calls[i].begin, profiler->calls[i].end};
    for (int64_t i = 0; i < record->activity_count; i++)
        if (record->activities[i].kind != DEVICE_API)
            spans[count++] = (ProfileSpan){activity_part(profiler, &record->activities[i]), record->activities[i].begin,
                                           record->activities[i].end};
    for (int64_t i = 0; i < record->event_count; i++) {
        const TimelineEvent *event = &record->events[i];
        bool data = event->kind == TIMELINE_DATA_WAIT, exchange = event->kind == TIMELINE_COMM_WAIT;
        if (event->thread == profiler->thread && (data || exchange))
            spans[count++] = (ProfileSpan){data ? PROFILE_DATA : PROFILE_COMMUNICATION, event->begin, event->end};
    }
    return count;
}

static void take_parts(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary) {
    ProfileSpan *spans =
        xmalloc((size_t)(profiler->call_count + record->activity_count + record->event_count + 1) * sizeof *spans);
    int64_t count = spans_make(profiler, record, spans);
    for (int i = 0; i < profiler->step_count; i++) {
        const ProfilerStep *step = &profiler->steps[i];
        summary->step_seconds += (step->end - step->begin) / profiler->step_count;
        profile_take_parts(spans, count, step->begin, step->end, summary->part);
    }
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        summary->part[i] /= profiler->step_count;
    free(spans);
    if (!profiler->by_events) return;
    for (int i = 0; i < OP_COUNT; i++) { // what the device's events say, out of the time that nothing else explains
        double seconds = profiler->of_ops[i] / profiler->step_count;
        summary->part[op_category((OpId)i)] += seconds;
        summary->part[PROFILE_GAPS] = fmax(0, summary->part[PROFILE_GAPS] - seconds);
    }
}

// ---- ops ------------------------------------------------------------------------------------------------------------

typedef struct OpSums {
    ProfileOp *ops;
    int count;
    double steps;
} OpSums;

static ProfileOp *op_of(OpSums *sums, const char *name, int category, StepPass pass) {
    for (int i = 0; i < sums->count; i++)
        if (sums->ops[i].pass == pass && sums->ops[i].category == category && strcmp(sums->ops[i].name, name) == 0)
            return &sums->ops[i];
    ProfileOp *op = &sums->ops[sums->count++];
    *op = (ProfileOp){.category = category, .pass = pass};
    snprintf(op->name, sizeof op->name, "%s", name);
    return op;
}

static void op_add(OpSums *sums, const ProfilerKind *kind, double seconds, double calls) {
    ProfileOp *op = op_of(sums, kind->name, (int)op_category(kind->call.call.op), kind->call.pass);
    op->seconds += seconds / sums->steps;
    op->calls += calls / sums->steps;
    op->floor += calls * kind->floor / sums->steps;
}

// A call that a graph has recorded runs once with every launch of the graph; another one once.
typedef struct Running {
    uint64_t call;
    uint32_t launch;
} Running;

static int running_order(const void *a, const void *b) {
    const Running *x = a, *y = b;
    if (x->call != y->call) return x->call < y->call ? -1 : 1;
    return x->launch < y->launch ? -1 : x->launch > y->launch;
}

static void add_device_ops(const Profiler *profiler, const ProfilerRecord *record, OpSums *sums) {
    Running *running = xmalloc((size_t)(record->activity_count + 1) * sizeof *running);
    int64_t count = 0;
    for (int64_t i = 0; i < record->activity_count; i++) {
        const DeviceActivity *activity = &record->activities[i];
        const ProfilerCall *call = profiler_call_of(profiler, activity);
        if (!call || activity->kind == DEVICE_API || !in_a_step(profiler, activity->begin)) continue;
        op_add(sums, &profiler->kinds[call->kind], activity->end - activity->begin, 0);
        running[count++] = (Running){activity->call, activity->graph ? activity->launched : 0};
    }
    if (count) qsort(running, (size_t)count, sizeof *running, running_order);
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || running_order(&running[i], &running[i - 1]) != 0)
            op_add(sums, &profiler->kinds[profiler->calls[running[i].call - 1].kind], 0, 1);
    free(running);
}

static void take_ops(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary) {
    OpSums sums = {xmalloc((size_t)(profiler->kind_count + OP_COUNT + 1) * sizeof *sums.ops), 0, profiler->step_count};
    if (profiler->options.model->ops->kind == DEVICE_CPU)
        for (int64_t i = 0; i < profiler->call_count; i++) {
            const ProfilerCall *call = &profiler->calls[i];
            if (in_a_step(profiler, call->begin))
                op_add(&sums, &profiler->kinds[call->kind], call->end - call->begin, 1);
        }
    add_device_ops(profiler, record, &sums);
    for (int i = 0; i < OP_COUNT && profiler->by_events; i++)
        if (profiler->of_ops[i] > 0) {
            char name[STEP_OP_NAME];
            name_by_op(name, (OpId)i);
            op_of(&sums, name, (int)op_category((OpId)i), STEP_ONCE)->seconds += profiler->of_ops[i] / sums.steps;
        }
    profile_take_ops(summary, sums.ops, sums.count);
    free(sums.ops);
}

// ---- exchanges ------------------------------------------------------------------------------------------------------

typedef struct Wait { // for one kind of exchange, in all steps
    const char *name, *detail;
    double seconds;
} Wait;

static void take_longest_wait(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary) {
    enum { WAITS_MOST = 256 };
    Wait waits[WAITS_MOST];
    int count = 0, longest = 0;
    for (int64_t i = 0; i < record->event_count; i++) {
        const TimelineEvent *event = &record->events[i];
        if (event->kind != TIMELINE_COMM_WAIT || !in_a_step(profiler, event->begin)) continue;
        int at = 0;
        while (at < count && (waits[at].name != event->name || waits[at].detail != event->detail))
            at++;
        if (at == WAITS_MOST) continue;
        if (at == count) waits[count++] = (Wait){event->name, event->detail, 0};
        waits[at].seconds += event->end - event->begin;
        if (waits[at].seconds > waits[longest].seconds) longest = at;
    }
    if (count)
        snprintf(summary->waited_for, sizeof summary->waited_for, "%s%s%s", waits[longest].name,
                 waits[longest].detail ? " of " : "", waits[longest].detail ? waits[longest].detail : "");
}

// What of all exchanges ran behind the computation. Those of NCCL are kernels as well, where the device is watched.
static void take_exchanges(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary) {
    double told = 0, seen = 0;
    take_longest_wait(profiler, record, summary);
    for (int i = 0; i < profiler->exchange_count; i++)
        told += profiler->exchanges[i].ended - profiler->exchanges[i].begun;
    for (int64_t i = 0; i < record->activity_count; i++)
        if (profiler_is_exchange(&record->activities[i]) && in_a_step(profiler, record->activities[i].begin))
            seen += record->activities[i].end - record->activities[i].begin;
    summary->hidden = fmax(0, fmax(told, seen) / profiler->step_count - summary->part[PROFILE_COMMUNICATION]);
}

void profiler_summarize(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary) {
    const ProfilerOptions *options = &profiler->options;
    const char *no_graph = model_why_no_graph(options->model);
    *summary = (ProfileSummary){.first_step = profiler->steps[0].step,
                                .steps = profiler->step_count,
                                .ranks = options->world ? options->world->size : 1};
    snprintf(summary->no_graph, sizeof summary->no_graph, "%s", no_graph ? no_graph : "");
    snprintf(summary->device_missing, sizeof summary->device_missing, "%s",
             profiler->device_missing ? profiler->device_missing : "");
    take_parts(profiler, record, summary);
    take_ops(profiler, record, summary);
    take_exchanges(profiler, record, summary);
}
