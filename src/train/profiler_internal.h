// Inside of the profiler: what is recorded (profiler.c) and what is made of it (profiler_write.c).
#pragma once

#include "base/timeline.h"
#include "model/step_record.h"
#include "ops/device_trace.h"
#include "train/profiler.h"
#include "watch/machine.h"
#include "watch/profile_summary.h"

#include <pthread.h>

typedef struct ProfilerCall { // of an op, not by another op
    int kind, layer;          // layer -1: none
    double begin, end;        // on the host
} ProfilerCall;

typedef struct ProfilerKind { // ops that are the same but for their layer
    StepCall call;            // the first of them
    char name[STEP_OP_NAME];
    double floor; // seconds; 0: not known
} ProfilerKind;

typedef struct ProfilerStep {
    int64_t step;
    double begin, end;
} ProfilerStep;

typedef enum ProfilerState { PROFILER_WAITING, PROFILER_WARMING, PROFILER_ACTIVE, PROFILER_DONE } ProfilerState;

struct Profiler {
    ProfilerOptions options;
    ProfilerState state;
    int64_t seen; // steps begun
    int thread;   // that runs the steps
    ProfilerStep *steps;
    int step_count;

    // Calls of ops, from the warm-up on: a call's number is its place here + 1.
    ProfilerCall *calls;
    int64_t call_count, call_room;
    ProfilerKind *kinds;
    int kind_count, kind_last; // last: that was found
    int depth;                 // of ops that run as others
    bool in_call;              // the outermost of them is noted

    DeviceTrace *device; // NULL: a CPU, or CUPTI is not there
    char *device_missing;
    bool by_events; // then: ops are timed by the device's own events
    bool direct;    // as the model had it
    double of_ops[OP_COUNT];

    CommEvent *exchanges;
    int exchange_count;
    Machine *machine;
    pthread_t sampler;
    bool sampling;
    atomic_bool sampler_ends;
    char *said;
};

// What was recorded, when the last active step is over.
typedef struct ProfilerRecord {
    TimelineEvent *events;
    DeviceActivity *activities;
    int64_t event_count, activity_count, lost;
} ProfilerRecord;

// Writes the files and says the table. Collective.
void profiler_write(Profiler *profiler, ProfilerRecord *record);

// profiler_parts.c
void profiler_price(Profiler *profiler); // names and floors of the kinds
void profiler_summarize(const Profiler *profiler, const ProfilerRecord *record, ProfileSummary *summary);
bool profiler_is_exchange(const DeviceActivity *activity);                                      // a kernel of NCCL
const ProfilerCall *profiler_call_of(const Profiler *profiler, const DeviceActivity *activity); // NULL: of none
