// What threads do when, for a profile: ranges and counters that any thread adds while somebody records. While nobody
// does, a range costs the reading of one flag.
#pragma once

#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum TimelineKind {
    TIMELINE_WORK,
    TIMELINE_DATA_WAIT, // the thread stands still for the loader
    TIMELINE_COMM_WAIT, // for other ranks
    TIMELINE_COUNTER,   // value at begin
} TimelineKind;

typedef struct TimelineEvent {
    TimelineKind kind;
    int thread;         // as the system numbers it
    const char *name;   // outlives the recording, as the next two
    const char *of;     // the thread's name; NULL: it has none
    const char *detail; // of a wait: whom for; NULL: none
    int64_t number;     // of the layer or micro-batch; -1: none
    double begin, end;  // of clock_seconds()
    double value;       // of a counter
} TimelineEvent;

extern atomic_bool timeline_recording;

static inline bool timeline_on(void) {
    return atomic_load_explicit(&timeline_recording, memory_order_relaxed);
}

void timeline_name_thread(const char *name); // the calling one
int timeline_thread(void);                   // its number

// 0: nobody records, and timeline_end does nothing.
static inline double timeline_begin(void) {
    return timeline_on() ? clock_seconds() : 0;
}
void timeline_add(TimelineKind kind, const char *name, const char *detail, int64_t number, double begin, double end);
static inline void timeline_end(double begin, const char *name, int64_t number) {
    if (begin > 0) timeline_add(TIMELINE_WORK, name, NULL, number, begin, clock_seconds());
}
void timeline_counter(const char *name, double value);

void timeline_start(void); // forgets what was there
// Ends it. What was added since, malloc'd, in the order in which ranges ended; *lost: those there was no room for.
int64_t timeline_stop(TimelineEvent **events, int64_t *lost);
