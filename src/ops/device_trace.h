// What a GPU did when: its kernels, copies and clears, through CUPTI, which is loaded when it is asked for. Each comes
// with the call of an op that it belongs to: outside of graphs by the call that launched it, inside by the call that
// its node was recorded in.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum DeviceActivityKind { DEVICE_KERNEL, DEVICE_COPY, DEVICE_CLEAR, DEVICE_API } DeviceActivityKind;

typedef struct DeviceActivity {
    DeviceActivityKind kind;
    const char *name;         // of the kernel or of the function that was called; lives as long as the trace
    double begin, end;        // of clock_seconds()
    uint32_t stream, thread;  // thread: of a function call
    uint32_t graph, launched; // graph 0: none; launched: by which call, the same for all of one graph launch
    uint64_t call;            // as device_trace_enter was told; 0: of none
    int64_t bytes;            // of copies and clears
} DeviceActivity;

typedef struct DeviceTrace DeviceTrace;

// Nodes of graphs are known from now on. library: a path; NULL: the system's. One at a time. The error says why there
// is none: no library, no CUPTI in this build, another profiler at work.
Status device_trace_open(DeviceTrace **trace, const char *library);
void device_trace_close(DeviceTrace *trace); // NULL is allowed

// Around the call of an op, on the thread that calls; calls are numbered from 1.
void device_trace_enter(DeviceTrace *trace, uint64_t call);
void device_trace_leave(DeviceTrace *trace);

Status device_trace_start(DeviceTrace *trace);
// After the device has done all its work. The activities since the start, in the order of their beginning, malloc'd;
// *lost: those that there was no room for.
Status device_trace_stop(DeviceTrace *trace, DeviceActivity **activities, int64_t *count, int64_t *lost);
