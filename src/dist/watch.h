// The watchdog of a world of several ranks: a thread on every rank that knows what this rank is doing, tells rank 0
// (the hub) over a channel of its own, and ends the job with a message when
//  - a collective does not end within the limit: it says which one, of which group, at which step, and what each rank
//  that
//    has not come to it is doing instead;
//  - a rank dies: its connection breaks;
//  - a rank fails and says so (watch_fail): the same failure of several ranks is printed once.
// Rank 0 prints. A rank that rank 0 no longer answers prints for itself.
#pragma once

#include "dist/channel.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Watch Watch;

// What a thread of a rank is doing, as it tells the hub. Travels as bytes.
enum { WATCH_NAME = 40 };
typedef struct WatchActivity {
    char op[WATCH_NAME], group[WATCH_NAME];
    int64_t sequence; // of the group's collectives, from 1; 0: between two ranks
    double seconds;   // in it, or since it ended
    int32_t inside;
    int32_t peer; // between two ranks: the other one in the world; else -1
} WatchActivity;

// A rank has several activities at once: the operations of its queue, those of NCCL on its device, and what its main
// thread waits for (world_enter).
typedef enum WatchSlot { WATCH_QUEUE, WATCH_DEVICE, WATCH_CALLER, WATCH_SLOTS } WatchSlot;
typedef struct WatchState {
    int64_t step;
    WatchActivity activity[WATCH_SLOTS];
} WatchState;

// What the hub knows of a rank.
typedef struct WatchKnown {
    WatchState state;
    double silent; // seconds since its last word
    int32_t connected, left;
} WatchKnown;

typedef struct WatchPeer {
    char host[64];
    int32_t process;
} WatchPeer;

typedef struct WatchOptions {
    int size, rank;
    const WatchPeer *peers; // [size], of a lifetime beyond the watch
    double limit, start;    // seconds: of a collective; of coming together
    uint64_t token;         // of this job, the same on all ranks
    // Ends all ranks with this exit code. Called on the watchdog's thread after the message was printed.
    void (*end_job)(void *context, int code);
    void *context;
} WatchOptions;

// Rank 0 listens first and tells the others its address (and the token); they connect; when all know who could, each
// starts. connected: [size] on rank 0, which waits for these.
Watch *watch_create(const WatchOptions *options);
Status watch_listen(Watch *watch, ChannelAddress *address, bool everywhere);
bool watch_connect(Watch *watch, const ChannelAddress *address, bool here);
Status watch_start(Watch *watch, const bool *connected);
// Waits until all ranks have come here, and ends the thread.
void watch_close(Watch *watch);

void watch_set_step(Watch *watch, int64_t step);
// members: world ranks of the group, kept until watch_end; NULL: all.
void watch_begin(Watch *watch, WatchSlot slot, const char *op, const char *group, int64_t sequence, int peer,
                 const int *members, int count);
void watch_end(Watch *watch, WatchSlot slot);

_Noreturn void watch_fail(Watch *watch, int code, const char *text);

// A collective that this rank waits in.
typedef struct WatchWait {
    const WatchState *mine;
    WatchSlot slot;
    const int *members; // NULL: all ranks
    int count;
} WatchWait;

// The text of one that did not end (watch_report.c). known: [size], or NULL when the hub has not answered for
// hub_silent seconds (below 0: there is no connection to it).
char *watch_report(const WatchOptions *options, const WatchWait *wait, const WatchKnown *known, double hub_silent);
// "rank 2 of 4 (process 17 on node3)"
void watch_describe(TextBuffer *out, const WatchOptions *options, int rank);
void watch_describe_state(TextBuffer *out, const WatchState *state); // "it was in all_reduce 12 of dp for 2.1 s"
