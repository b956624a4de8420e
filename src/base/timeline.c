#include "base/timeline.h"

#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { TIMELINE_MOST = 4 << 20 }; // events: a third of a GiB

atomic_bool timeline_recording;

static struct {
    pthread_mutex_t lock;
    TimelineEvent *events;
    int64_t count, room, lost;
} timeline = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local const char *own_name;
static _Thread_local int own_number;

void timeline_name_thread(const char *name) {
    own_name = name;
}

int timeline_thread(void) {
    if (!own_number) own_number = (int)gettid();
    return own_number;
}

static void keep(const TimelineEvent *event) {
    pthread_mutex_lock(&timeline.lock);
    if (timeline.count == TIMELINE_MOST) {
        timeline.lost++;
    } else if (timeline_on()) { // else it has ended since the range began
        if (timeline.count == timeline.room) {
            timeline.room = timeline.room ? 2 * timeline.room : 4096;
            timeline.events = xrealloc(timeline.events, (size_t)timeline.room * sizeof *timeline.events);
        }
        timeline.events[timeline.count++] = *event;
    }
    pthread_mutex_unlock(&timeline.lock);
}

void timeline_add(TimelineKind kind, const char *name, const char *detail, int64_t number, double begin, double end) {
    keep(&(TimelineEvent){kind, timeline_thread(), name, own_name, detail, number, begin, end, 0});
}

void timeline_counter(const char *name, double value) {
    double now = timeline_begin();
    if (now > 0) keep(&(TimelineEvent){TIMELINE_COUNTER, 0, name, NULL, NULL, -1, now, now, value});
}

void timeline_start(void) {
    pthread_mutex_lock(&timeline.lock);
    timeline.count = timeline.lost = 0;
    atomic_store(&timeline_recording, true);
    pthread_mutex_unlock(&timeline.lock);
}

int64_t timeline_stop(TimelineEvent **events, int64_t *lost) {
    pthread_mutex_lock(&timeline.lock);
    atomic_store(&timeline_recording, false);
    int64_t count = timeline.count;
    *events = timeline.events;
    *lost = timeline.lost;
    timeline.events = NULL;
    timeline.count = timeline.room = timeline.lost = 0;
    pthread_mutex_unlock(&timeline.lock);
    return count;
}
