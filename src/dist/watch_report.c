// What the watchdog says of a collective that does not end.
#include "dist/watch.h"

#include <stdio.h>
#include <string.h>

enum { RANKS_NAMED_MAX = 8 };

void watch_describe(TextBuffer *out, const WatchOptions *options, int rank) {
    text_buffer_format(out, "rank %d of %d (process %d on %s)", rank, options->size, (int)options->peers[rank].process,
                       options->peers[rank].host);
}

// "all_reduce 12 of dp", "receive of pp from rank 3"
static void activity_name(TextBuffer *out, const WatchActivity *activity) {
    text_buffer_format(out, "%s", activity->op);
    if (activity->sequence) text_buffer_format(out, " %lld", (long long)activity->sequence);
    text_buffer_format(out, " of %s", activity->group);
    if (activity->peer >= 0) text_buffer_format(out, " with rank %d", (int)activity->peer);
}

// The one it is in, else the one that ended last; NULL: none yet.
static const WatchActivity *activity_shown(const WatchState *state) {
    const WatchActivity *shown = NULL;
    for (int i = 0; i < WATCH_SLOTS; i++) {
        const WatchActivity *activity = &state->activity[i];
        if (!activity->op[0]) continue;
        if (activity->inside) return activity;
        if (!shown || activity->seconds < shown->seconds) shown = activity;
    }
    return shown;
}

void watch_describe_state(TextBuffer *out, const WatchState *state) {
    const WatchActivity *shown = activity_shown(state);
    if (!shown) {
        text_buffer_format(out, "it has not started any operation");
        return;
    }
    text_buffer_format(out, shown->inside ? "it was in " : "it was computing; its last operation was ");
    activity_name(out, shown);
    text_buffer_format(out, shown->inside ? " for %.1f s" : ", %.1f s before", shown->seconds);
    if (state->step >= 0) text_buffer_format(out, ", at step %lld", (long long)state->step);
}

// The letter of /proc/PID/stat: 'T' for a process that was stopped; 0 when it cannot be read.
static char process_state(int process) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    line[got] = 0;
    const char *end = strrchr(line, ')'); // of the program's name, which may hold anything
    return end && end[1] == ' ' ? end[2] : 0;
}

static bool has_come(const WatchActivity *waits, const WatchKnown *known, WatchSlot slot) {
    const WatchActivity *theirs = &known->state.activity[slot];
    return theirs->sequence >= waits->sequence && strcmp(theirs->group, waits->group) == 0;
}

static void last_word(TextBuffer *out, const WatchKnown *known) {
    if (!activity_shown(&known->state)) return;
    text_buffer_format(out, "; at its last word, %.1f s before, ", known->silent);
    watch_describe_state(out, &known->state);
}

static void missing_rank(TextBuffer *out, const WatchOptions *options, int rank, const WatchKnown *known,
                         double silent_limit) {
    const WatchPeer *peer = &options->peers[rank], *mine = &options->peers[options->rank];
    text_buffer_format(out, "\n  ");
    watch_describe(out, options, rank);
    if (strcmp(peer->host, mine->host) == 0 && process_state(peer->process) == 'T') {
        text_buffer_format(out, " is stopped (SIGSTOP)");
        last_word(out, known);
    } else if (!known->connected) {
        text_buffer_format(out, " may be missing: it has no connection on which it could say so");
    } else if (known->left) {
        text_buffer_format(out, " has ended its work");
    } else if (known->silent > silent_limit) {
        text_buffer_format(out, " has not answered for %.1f s: stopped, or its host is lost", known->silent);
        last_word(out, known);
    } else {
        text_buffer_format(out, " has not come to it: ");
        watch_describe_state(out, &known->state);
    }
}

static void missing_ranks(TextBuffer *out, const WatchOptions *options, const WatchWait *wait, const WatchKnown *known,
                          double silent_limit) {
    const WatchActivity *waits = &wait->mine->activity[wait->slot];
    int missing = 0, all = wait->members ? wait->count : options->size;
    for (int i = 0; i < all; i++) {
        int rank = wait->members ? wait->members[i] : i;
        bool asked = waits->peer >= 0 ? rank == waits->peer : !has_come(waits, &known[rank], wait->slot);
        if (rank == options->rank || !asked) continue;
        if (missing++ < RANKS_NAMED_MAX) missing_rank(out, options, rank, &known[rank], silent_limit);
    }
    if (missing > RANKS_NAMED_MAX) text_buffer_format(out, "\n  and %d ranks more", missing - RANKS_NAMED_MAX);
    if (!missing) text_buffer_format(out, "\n  all of its ranks have come to it: what connects them does not answer");
}

char *watch_report(const WatchOptions *options, const WatchWait *wait, const WatchKnown *known, double hub_silent) {
    // A word a second, or eight within the limit; a loaded machine may delay it.
    double silent_limit = options->limit / 2 < 5 ? options->limit / 2 : 5;
    TextBuffer out = {0};
    activity_name(&out, &wait->mine->activity[wait->slot]);
    text_buffer_format(&out, " has not ended within %g s", options->limit);
    if (wait->mine->step >= 0) text_buffer_format(&out, ", at step %lld", (long long)wait->mine->step);
    if (known)
        missing_ranks(&out, options, wait, known, silent_limit);
    else if (hub_silent >= 0)
        missing_rank(&out, options, 0, &(WatchKnown){.connected = 1, .silent = hub_silent, .state.step = -1},
                     silent_limit);
    else
        text_buffer_format(&out, "\n  this rank has no connection to rank 0 and cannot say who is missing");
    return out.data;
}
