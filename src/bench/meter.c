#include "bench/meter.h"

#include "base/clock.h"

#include <stdbool.h>

typedef struct MeterPoint {
    double joules, seconds;
    int64_t batches;
} MeterPoint;

static Status point_take(const JouleSource *source, MeterPoint *point) {
    point->seconds = source->seconds ? source->seconds(source->context) : clock_seconds();
    return source->read(source->context, &point->joules);
}

// The next point at which the counter has moved.
static Status next_move(const JouleSource *source, Status (*batch)(void *work), void *work, MeterPoint *point) {
    MeterPoint before = *point;
    for (;;) {
        TRY(batch(work));
        point->batches++;
        TRY(point_take(source, point));
        if (point->joules > before.joules) return NULL;
        if (point->joules < before.joules)
            return status_runtime("the energy counter fell by %g J; it was set back, so nothing can be measured now",
                                  before.joules - point->joules);
        // One batch may be longer than all patience.
        if (point->seconds - before.seconds > METER_PATIENCE && point->batches - before.batches > 1)
            return status_hint(status_runtime("the energy counter has not moved for %.0f s of work: there are no "
                                              "joules to be read from it",
                                              point->seconds - before.seconds),
                               "virtual machines show counters that do not count; measure on the machine itself");
    }
}

Status meter_measure(const JouleSource *source, Status (*batch)(void *work), void *work, double warm, double seconds,
                     MeterWindow *window) {
    *window = (MeterWindow){0};
    MeterPoint now = {0};
    TRY(point_take(source, &now));
    double began = now.seconds;
    do {
        TRY(next_move(source, batch, work, &now));
    } while (now.seconds - began < warm);
    MeterPoint first = now;
    do {
        TRY(next_move(source, batch, work, &now));
        window->moves++;
    } while (now.seconds - first.seconds < seconds || window->moves < METER_MOVES);
    window->joules = now.joules - first.joules;
    window->seconds = now.seconds - first.seconds;
    window->batches = now.batches - first.batches;
    return NULL;
}

static Status rest_batch(void *work) {
    (void)work;
    nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    return NULL;
}

Status meter_rest(const JouleSource *source, double seconds, MeterWindow *window) {
    return status_context(meter_measure(source, rest_batch, NULL, 0, seconds, window), "at rest");
}
