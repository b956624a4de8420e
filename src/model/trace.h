// When the layers' backward passes ended, on the clock of the device: beside the events of dist/comm.h they show what
// travelled behind the computation. Of the last micro-batch of a step, run op by op (a graph's parts have no times).
#pragma once

#include "model/model.h"

enum { TRACE_MARKS = 60 };

typedef struct TraceMark {
    const char *what; // static storage
    int layer;        // -1: none
    double seconds;   // of clock_seconds(), after trace_end
} TraceMark;

typedef struct Trace {
    TraceMark marks[TRACE_MARKS];
    int count;
    int every;    // layers to a mark
    double begin; // of clock_seconds(), when it was begun
} Trace;

void trace_begin(Model *model, Trace *trace); // waits for the device
void trace_end(Model *model);                 // likewise

// Called by the seams; nothing happens without a trace.
void trace_backward(Model *model); // it begins, with its first layer
void trace_layer(Model *model, int layer);
void trace_mark(Model *model, const char *what, int layer);
