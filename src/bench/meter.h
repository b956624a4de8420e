// Joules and seconds of work that goes on without a pause, from a counter that moves now and then: a GPU's every 20 to
// 100 ms. A measurement begins and ends where the counter was seen to have moved, so that its joules and its seconds
// are of the same stretch, up to a batch of work at each end.
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct JouleSource {
    Status (*read)(void *context, double *joules); // since some moment; never falls
    double (*seconds)(void *context);              // NULL: the clock of base/clock.h
    void *context;
} JouleSource;

typedef struct MeterWindow {
    double joules, seconds;
    int64_t batches;
    int moves; // of the counter in it, the one that it begins with aside
} MeterWindow;

// With fewer moves a measurement goes on, whatever time was asked for.
enum { METER_MOVES = 10 };
// A counter that does not move for so long stands still. Those that count move ten times a second and more often.
#define METER_PATIENCE 5.0

// Calls batch(work) again and again, a few milliseconds of work each time: `warm` seconds first, then for at least
// `seconds`. A batch may return when the one before it has ended, as long as all do.
Status meter_measure(const JouleSource *source, Status (*batch)(void *work), void *work, double warm, double seconds,
                     MeterWindow *window);
// A machine at rest.
Status meter_rest(const JouleSource *source, double seconds, MeterWindow *window);
