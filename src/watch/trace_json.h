// A timeline as trace events (JSON), which Perfetto and chrome://tracing open. A process is a rank; its tracks are
// threads, streams and the like. Each process writes lines of its own; joined and sorted they are the file.
#pragma once

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct TraceTrack {
    char *name;
    bool lanes; // ranges may overlap: those that do are shown side by side. Else they nest
} TraceTrack;

typedef struct TraceEvent {
    int track; // -1: a counter
    const char *name, *category;
    char *args;        // members of an object, as JSON; NULL: none
    double begin, end; // seconds; a counter has its value from begin on
    double value;
    int64_t number; // its name ends with number - 1; 0: it has none
} TraceEvent;

// One line each: names of process and tracks first, then the events by time. `origin` is where time begins: nothing is
// earlier. Sorts the events.
void trace_lines(TraceEvent *events, int64_t count, const TraceTrack *tracks, int track_count, int process,
                 const char *process_name, double origin, TextBuffer *out);
// The file of the lines of several processes.
void trace_join(const char *const *lines, int count, TextBuffer *out);
void trace_add_text(TextBuffer *out, const char *text); // quoted
