#include "dist/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

// Frames. To the hub: HELLO (token, rank), STATE, ASK, FAIL. From it: PONG, TABLE. Both: ABORT, BYE.
typedef enum FrameType {
    FRAME_HELLO,
    FRAME_STATE,
    FRAME_PONG,
    FRAME_ASK,
    FRAME_TABLE,
    FRAME_FAIL,
    FRAME_ABORT,
    FRAME_BYE
} FrameType;

typedef struct Hello {
    uint64_t token;
    int64_t rank;
} Hello;

// A rank's own failure and a death explain what happened; a collective that does not end may be no more than the result
// of one, and is only printed where there is nothing better.
typedef enum FailKind { FAIL_CAUSE, FAIL_STUCK } FailKind;

enum { FAIL_TEXT_MAX = 4096 };
typedef struct Failure {
    int32_t rank, code, kind;
    char text[FAIL_TEXT_MAX];
} Failure;

// Seconds: how long failures are gathered before they are printed, so that the same one of all ranks is printed once;
// how long a rank waits for the hub to act; and for the end after the hub has said so.
#define GATHER_SECONDS 0.25
#define HUB_SECONDS    4.0
#define ABORT_SECONDS  5.0

typedef struct Seat { // what the hub has of a rank
    Channel channel;
    WatchState state;
    double heard;
    bool connected, left;
} Seat;

struct Watch {
    WatchOptions options;
    double period;
    int listener, wake; // sockets: of the hub; an eventfd
    Channel hub;        // of the others
    Seat *seats;        // [size], of the hub
    struct pollfd *polled;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; // of what other threads tell this one:
    WatchState state;     // seconds hold the clock's time at begin or end
    const int *members[WATCH_SLOTS];
    int member_count[WATCH_SLOTS];
    bool closing, failing;
    Failure failure; // of this rank, when failing

    // the thread's own
    double told, hub_heard, asked, reported, abort_at, print_at;
    int abort_code;
    WatchSlot stuck_slot;
    bool hub_left, said_bye, hub_lost;
    Failure *failures;
    int failure_count;
};

static bool is_hub(const Watch *watch) {
    return watch->options.rank == 0;
}

// ---- what other threads say -----------------------------------------------------------------------------------------

static void watch_wake(Watch *watch) {
    uint64_t one = 1;
    if (write(watch->wake, &one, sizeof one) < 0) return; // full: it is awake already
}

void watch_set_step(Watch *watch, int64_t step) {
    pthread_mutex_lock(&watch->lock);
    watch->state.step = step;
    pthread_mutex_unlock(&watch->lock);
}

void watch_begin(Watch *watch, WatchSlot slot, const char *op, const char *group, int64_t sequence, int peer,
                 const int *members, int count) {
    pthread_mutex_lock(&watch->lock);
    WatchActivity *activity = &watch->state.activity[slot];
    snprintf(activity->op, sizeof activity->op, "%s", op);
    snprintf(activity->group, sizeof activity->group, "%s", group);
    activity->sequence = sequence;
    activity->peer = peer;
    activity->seconds = clock_seconds();
    activity->inside = 1;
    watch->members[slot] = members;
    watch->member_count[slot] = count;
    pthread_mutex_unlock(&watch->lock);
}

void watch_end(Watch *watch, WatchSlot slot) {
    pthread_mutex_lock(&watch->lock);
    watch->state.activity[slot].inside = 0;
    watch->state.activity[slot].seconds = clock_seconds();
    pthread_mutex_unlock(&watch->lock);
}

void watch_fail(Watch *watch, int code, const char *text) {
    pthread_mutex_lock(&watch->lock);
    if (!watch->failing) {
        watch->failing = true;
        watch->failure = (Failure){.rank = watch->options.rank, .code = code, .kind = FAIL_CAUSE};
        snprintf(watch->failure.text, sizeof watch->failure.text, "%s", text);
    }
    pthread_mutex_unlock(&watch->lock);
    watch_wake(watch);
    for (;;)
        pause(); // the watchdog ends the process, also when the hub does not answer
}

static WatchState state_now(Watch *watch) {
    double now = clock_seconds();
    pthread_mutex_lock(&watch->lock);
    WatchState state = watch->state;
    pthread_mutex_unlock(&watch->lock);
    for (int i = 0; i < WATCH_SLOTS; i++)
        state.activity[i].seconds = now - state.activity[i].seconds;
    return state;
}

// ---- the end of the job
// -----------------------------------------------------------------------------------------------

static void failure_add(Watch *watch, const Failure *failure) {
    watch->failures = xrealloc(watch->failures, (size_t)(watch->failure_count + 1) * sizeof *watch->failures);
    watch->failures[watch->failure_count++] = *failure;
    watch->failures[watch->failure_count - 1].text[FAIL_TEXT_MAX - 1] = 0;
    if (watch->print_at == 0) watch->print_at = clock_seconds() + GATHER_SECONDS;
}

// Reports of the same collective by several ranks differ in their seconds, and from the second line on in who is
// missing: the first line tells them apart.
static bool same_failure(const Failure *a, const Failure *b) {
    if (a->kind != b->kind) return false;
    size_t length = a->kind == FAIL_STUCK ? strcspn(a->text, "\n") : strlen(a->text);
    return strncmp(a->text, b->text, length) == 0 && (a->kind == FAIL_STUCK || !b->text[length]);
}

// "", "rank 2 of 4 on node3: ", "ranks 1, 3 of 4: "
static void failure_ranks(TextBuffer *out, const Watch *watch, const Failure *first) {
    int same = 0, size = watch->options.size;
    for (int i = 0; i < watch->failure_count; i++)
        same += same_failure(first, &watch->failures[i]);
    if (same == size || first->rank < 0) return;
    if (same == 1) {
        text_buffer_format(out, "rank %d of %d on %s: ", first->rank, size, watch->options.peers[first->rank].host);
        return;
    }
    for (int i = 0, named = 0; i < watch->failure_count; i++)
        if (same_failure(first, &watch->failures[i]))
            text_buffer_format(out, "%s%d", named++ ? ", " : "ranks ", watch->failures[i].rank);
    text_buffer_format(out, " of %d: ", size);
}

static int by_rank(const void *a, const void *b) {
    return ((const Failure *)a)->rank - ((const Failure *)b)->rank;
}

// Prints each failure once and ends the job with the code of the first.
static void print_and_end(Watch *watch) {
    int kind = FAIL_STUCK, code = 0;
    for (int i = 0; i < watch->failure_count; i++)
        if (watch->failures[i].kind < kind) kind = watch->failures[i].kind;
    for (int i = 0; i < watch->failure_count && !code; i++)
        if (watch->failures[i].kind == kind) code = watch->failures[i].code;
    qsort(watch->failures, (size_t)watch->failure_count, sizeof *watch->failures, by_rank);
    for (int i = 0; i < watch->failure_count; i++) {
        const Failure *failure = &watch->failures[i];
        bool first = failure->kind == kind;
        for (int k = 0; first && k < i; k++)
            first = !same_failure(failure, &watch->failures[k]);
        if (!first) continue;
        TextBuffer line = {0};
        failure_ranks(&line, watch, failure);
        fprintf(stderr, "hearth: error: %s%s\n", line.data ? line.data : "", failure->text);
        text_buffer_free(&line);
    }
    fflush(stderr);
    for (int rank = 1; is_hub(watch) && rank < watch->options.size; rank++)
        channel_send(&watch->seats[rank].channel, FRAME_ABORT, &(int32_t){code}, sizeof(int32_t));
    if (!is_hub(watch)) // should it ever read this: nothing more is to be said
        channel_send(&watch->hub, FRAME_ABORT, &(int32_t){code}, sizeof(int32_t));
    watch->options.end_job(watch->options.context, code);
}

// Without a hub all ranks are about to say the same: the first speaks, the others only if that has not ended them.
// Where its host was lost with rank 0's, the first of another one: soon, since the launcher is about to end it.
static double turn_seconds(const Watch *watch) {
    const WatchPeer *peers = watch->options.peers;
    int rank = watch->options.rank, other = 1;
    while (other < watch->options.size && strcmp(peers[other].host, peers[0].host) == 0)
        other++;
    return rank == 1 ? 0 : rank == other ? 0.5 : rank == 2 ? 2 : 3;
}

static void rank_died(Watch *watch, int rank, const WatchState *last) {
    TextBuffer text = {0};
    watch_describe(&text, &watch->options, rank);
    text_buffer_format(&text, " died without a message: killed, out of memory, or crashed");
    if (last && last->step >= 0) text_buffer_format(&text, " (at step %lld)", (long long)last->step);
    Failure failure = {.rank = -1, .code = 1, .kind = FAIL_CAUSE};
    snprintf(failure.text, sizeof failure.text, "%s", text.data);
    text_buffer_free(&text);
    failure_add(watch, &failure);
    if (is_hub(watch))
        print_and_end(watch); // at once: the launcher has seen it too, and is about to end this rank
    else
        watch->print_at = clock_seconds() + turn_seconds(watch);
}

// The own failure: to the hub, which prints it; without a hub, by this rank.
static void failure_start(Watch *watch, const Failure *failure) {
    failure_add(watch, failure);
    if (is_hub(watch)) return;
    watch->print_at = clock_seconds() + (watch->hub_lost ? turn_seconds(watch) : HUB_SECONDS);
    if (!watch->hub_lost)
        channel_send(&watch->hub, FRAME_FAIL, failure, offsetof(Failure, text) + strlen(failure->text) + 1);
}

// ---- collectives that do not end ------------------------------------------------------------------------------------

static void known_now(const Watch *watch, WatchKnown *known) { // of the hub
    double now = clock_seconds();
    for (int rank = 0; rank < watch->options.size; rank++) {
        const Seat *seat = &watch->seats[rank];
        known[rank] = (WatchKnown){.state = seat->state,
                                   .silent = rank ? now - seat->heard : 0,
                                   .connected = rank == 0 || seat->connected,
                                   .left = seat->left};
    }
}

static void report_stuck(Watch *watch, const WatchKnown *known) {
    WatchState mine = state_now(watch);
    WatchSlot slot = watch->stuck_slot;
    if (!mine.activity[slot].inside || mine.activity[slot].seconds < watch->options.limit) return; // it ended after all
    Failure failure = {.rank = watch->options.rank, .code = 1, .kind = FAIL_STUCK};
    pthread_mutex_lock(&watch->lock);
    WatchWait wait = {&mine, slot, watch->members[slot], watch->member_count[slot]};
    double hub_silent = watch->hub.fd < 0 ? -1 : clock_seconds() - watch->hub_heard;
    char *text = watch_report(&watch->options, &wait, known, hub_silent);
    pthread_mutex_unlock(&watch->lock);
    snprintf(failure.text, sizeof failure.text, "%s", text);
    free(text);
    watch->reported = clock_seconds();
    failure_start(watch, &failure);
}

// Without the hub's word: it is the hub that is missing, or there never was a connection to it. All ranks see that at
// once; the first speaks, the others only when it has not ended them.
static void report_alone(Watch *watch) {
    watch->hub_lost = true;
    report_stuck(watch, NULL);
}

static void check_stuck(Watch *watch) {
    if (watch->reported > 0 || watch->failure_count || watch->abort_at > 0) return;
    WatchState mine = state_now(watch);
    int slot = 0;
    while (slot < WATCH_SLOTS && !(mine.activity[slot].inside && mine.activity[slot].seconds > watch->options.limit))
        slot++;
    if (slot == WATCH_SLOTS) {
        watch->asked = 0;
        return;
    }
    watch->stuck_slot = (WatchSlot)slot;
    if (is_hub(watch)) {
        WatchKnown *known = xcalloc((size_t)watch->options.size, sizeof *known);
        known_now(watch, known);
        report_stuck(watch, known);
        free(known);
    } else if (watch->asked == 0) {
        watch->asked = clock_seconds();
        channel_send(&watch->hub, FRAME_ASK, NULL, 0);
    } else if (clock_seconds() - watch->asked > HUB_SECONDS / 2 || watch->hub_lost) {
        report_alone(watch);
    }
}

// ---- frames ---------------------------------------------------------------------------------------------------------

// Another rank has said why and ends the job. Should that not reach this one, it ends by itself.
static void abort_soon(Watch *watch, const ChannelFrame *frame) {
    int32_t code = 1;
    if (frame->length == sizeof code) memcpy(&code, frame->data, sizeof code);
    watch->abort_code = code;
    watch->abort_at = clock_seconds() + ABORT_SECONDS;
}

static void hub_frame(Watch *watch, int rank, const ChannelFrame *frame) {
    Seat *seat = &watch->seats[rank];
    seat->heard = clock_seconds();
    if (frame->type == FRAME_STATE && frame->length == sizeof seat->state) {
        memcpy(&seat->state, frame->data, sizeof seat->state);
        channel_send(&seat->channel, FRAME_PONG, NULL, 0);
    } else if (frame->type == FRAME_ASK) {
        size_t bytes = (size_t)watch->options.size * sizeof(WatchKnown);
        WatchKnown *known = xmalloc(bytes);
        known_now(watch, known);
        channel_send(&seat->channel, FRAME_TABLE, known, bytes);
        free(known);
    } else if (frame->type == FRAME_FAIL && frame->length > offsetof(Failure, text)) {
        Failure failure = {0};
        memcpy(&failure, frame->data, frame->length < sizeof failure ? frame->length : sizeof failure);
        failure.rank = rank;
        failure_add(watch, &failure);
    } else if (frame->type == FRAME_ABORT) {
        abort_soon(watch, frame);
    } else if (frame->type == FRAME_BYE) {
        seat->left = true;
    }
}

static void hub_receive(Watch *watch) {
    for (int rank = 1; rank < watch->options.size; rank++) {
        Seat *seat = &watch->seats[rank];
        ChannelFrame frame;
        if (!seat->connected || seat->channel.closed) continue;
        channel_receive(&seat->channel);
        while (channel_next(&seat->channel, &frame))
            hub_frame(watch, rank, &frame);
        if (!seat->channel.closed || seat->left || watch->abort_at > 0) continue;
        bool spoke = false; // a rank that has said why it ends has not died without a message
        for (int i = 0; i < watch->failure_count; i++)
            spoke |= watch->failures[i].rank == rank;
        if (!spoke) rank_died(watch, rank, &seat->state);
    }
}

static void rank_receive(Watch *watch) {
    ChannelFrame frame;
    if (watch->hub_lost || watch->hub.fd < 0) return;
    channel_receive(&watch->hub);
    while (channel_next(&watch->hub, &frame)) {
        watch->hub_heard = clock_seconds();
        if (frame.type == FRAME_BYE) {
            watch->hub_left = true;
        } else if (frame.type == FRAME_TABLE && frame.length == (size_t)watch->options.size * sizeof(WatchKnown)) {
            WatchKnown *known = xmalloc(frame.length);
            memcpy(known, frame.data, frame.length);
            report_stuck(watch, known);
            free(known);
        } else if (frame.type == FRAME_ABORT) {
            abort_soon(watch, &frame);
        }
    }
    if (!watch->hub.closed || watch->hub_left || watch->abort_at > 0) return;
    watch->hub_lost = true;
    if (watch->failure_count)
        watch->print_at = clock_seconds(); // it had not come to it
    else
        rank_died(watch, 0, NULL);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

static void tell_state(Watch *watch) {
    double now = clock_seconds();
    if (now - watch->told < watch->period) return;
    watch->told = now;
    WatchState mine = state_now(watch);
    if (is_hub(watch))
        watch->seats[0].state = mine;
    else if (!watch->hub.out.length && !watch->said_bye) // what could not be sent yet is not made longer
        channel_send(&watch->hub, FRAME_STATE, &mine, sizeof mine);
}

static void take_failure(Watch *watch) {
    pthread_mutex_lock(&watch->lock);
    bool failing = watch->failing;
    Failure failure = watch->failure;
    pthread_mutex_unlock(&watch->lock);
    for (int i = 0; i < watch->failure_count; i++)
        if (watch->failures[i].rank == failure.rank && watch->failures[i].kind == FAIL_CAUSE) return;
    if (failing) failure_start(watch, &failure);
}

// True when all ranks have come to the end.
static bool check_close(Watch *watch) {
    pthread_mutex_lock(&watch->lock);
    bool closing = watch->closing;
    pthread_mutex_unlock(&watch->lock);
    if (!closing) return false;
    if (!is_hub(watch)) {
        if (!watch->said_bye) channel_send(&watch->hub, FRAME_BYE, NULL, 0);
        watch->said_bye = true;
        return watch->hub_left || watch->hub.fd < 0;
    }
    for (int rank = 1; rank < watch->options.size; rank++)
        if (watch->seats[rank].connected && !watch->seats[rank].left) return false;
    for (int rank = 1; rank < watch->options.size; rank++)
        if (watch->seats[rank].connected) channel_send(&watch->seats[rank].channel, FRAME_BYE, NULL, 0);
    return true;
}

static void wait_for_words(Watch *watch) {
    int count = 0;
    watch->polled[count++] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    if (!is_hub(watch) && !watch->hub.closed)
        watch->polled[count++] =
            (struct pollfd){.fd = watch->hub.fd, .events = (short)(POLLIN | (watch->hub.out.length ? POLLOUT : 0))};
    for (int rank = 1; is_hub(watch) && rank < watch->options.size; rank++) {
        Channel *channel = &watch->seats[rank].channel;
        channel_flush(channel);
        if (watch->seats[rank].connected && !channel->closed)
            watch->polled[count++] =
                (struct pollfd){.fd = channel->fd, .events = (short)(POLLIN | (channel->out.length ? POLLOUT : 0))};
    }
    double until = watch->told + watch->period, now = clock_seconds();
    if (watch->print_at > 0 && watch->print_at < until) until = watch->print_at;
    int milliseconds = until > now ? (int)((until - now) * 1e3) + 1 : 0;
    poll(watch->polled, (nfds_t)count, milliseconds);
    uint64_t woken;
    if ((watch->polled[0].revents & POLLIN) && read(watch->wake, &woken, sizeof woken) < 0) return;
}

static void *watch_main(void *argument) {
    Watch *watch = argument;
    for (;;) {
        wait_for_words(watch);
        if (is_hub(watch))
            hub_receive(watch);
        else
            rank_receive(watch), channel_flush(&watch->hub);
        tell_state(watch);
        take_failure(watch);
        check_stuck(watch);
        double now = clock_seconds();
        if (watch->print_at > 0 && now >= watch->print_at && watch->abort_at == 0) print_and_end(watch);
        if (watch->abort_at > 0 && now > watch->abort_at) _exit(watch->abort_code);
        if (!watch->failure_count && check_close(watch)) return NULL;
    }
}

// ---- start and end --------------------------------------------------------------------------------------------------

Watch *watch_create(const WatchOptions *options) {
    Watch *watch = xcalloc(1, sizeof *watch);
    watch->options = *options;
    watch->period = options->limit / 8 < 1 ? options->limit / 8 : 1;
    watch->listener = -1;
    watch->hub = (Channel){.fd = -1, .closed = true};
    watch->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watch->polled = xcalloc((size_t)options->size + 1, sizeof *watch->polled);
    watch->state.step = -1;
    pthread_mutex_init(&watch->lock, NULL);
    if (options->rank == 0) watch->seats = xcalloc((size_t)options->size, sizeof *watch->seats);
    for (int rank = 0; watch->seats && rank < options->size; rank++) {
        watch->seats[rank].channel = (Channel){.fd = -1, .closed = true};
        watch->seats[rank].state.step = -1;
    }
    return watch;
}

Status watch_listen(Watch *watch, ChannelAddress *address, bool everywhere) {
    return channel_listen(&watch->listener, address, everywhere);
}

bool watch_connect(Watch *watch, const ChannelAddress *address, bool here) {
    if (!channel_connect(&watch->hub, address, here)) return false;
    Hello hello = {watch->options.token, watch->options.rank};
    channel_send(&watch->hub, FRAME_HELLO, &hello, sizeof hello);
    return !watch->hub.closed;
}

// The first frame of a new connection says which rank it is; without the job's token it is a stranger.
static void seat_guest(Watch *watch, Channel *guest) {
    struct pollfd poller = {.fd = guest->fd, .events = POLLIN};
    double until = clock_seconds() + 1;
    ChannelFrame frame;
    bool whole = false;
    while (!whole && !guest->closed && clock_seconds() < until && poll(&poller, 1, 100) >= 0) {
        channel_receive(guest);
        whole = channel_next(guest, &frame);
    }
    Hello hello = {0};
    if (whole && frame.type == FRAME_HELLO && frame.length == sizeof hello) memcpy(&hello, frame.data, sizeof hello);
    bool known = hello.token == watch->options.token && hello.rank > 0 && hello.rank < watch->options.size &&
                 !watch->seats[hello.rank].connected;
    if (!known) {
        channel_close(guest);
        return;
    }
    Seat *seat = &watch->seats[hello.rank];
    seat->channel = *guest;
    seat->connected = true;
    seat->heard = clock_seconds();
}

static Status seat_all(Watch *watch, const bool *connected) {
    double until = clock_seconds() + watch->options.start;
    int waited_for = -1;
    for (;;) {
        for (waited_for = 1; waited_for < watch->options.size; waited_for++)
            if (connected[waited_for] && !watch->seats[waited_for].connected) break;
        if (waited_for == watch->options.size) return NULL;
        if (clock_seconds() > until) break;
        struct pollfd poller = {.fd = watch->listener, .events = POLLIN};
        poll(&poller, 1, 100);
        int fd = accept4(watch->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) continue;
        Channel guest;
        channel_adopt(&guest, fd);
        seat_guest(watch, &guest);
    }
    TextBuffer who = {0};
    watch_describe(&who, &watch->options, waited_for);
    Status status = status_runtime("%s has not said who it is within %g s", who.data, watch->options.start);
    text_buffer_free(&who);
    return status;
}

Status watch_start(Watch *watch, const bool *connected) {
    if (is_hub(watch)) TRY(seat_all(watch, connected));
    if (watch->listener >= 0) close(watch->listener);
    watch->listener = -1;
    watch->hub_heard = clock_seconds();
    int failed = thread_start(&watch->thread, watch_main, watch);
    if (failed) return status_runtime("no thread for the watchdog: %s", strerror(failed));
    watch->started = true;
    return NULL;
}

void watch_close(Watch *watch) {
    if (!watch) return;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->closing = true;
        pthread_mutex_unlock(&watch->lock);
        watch_wake(watch);
        pthread_join(watch->thread, NULL);
    }
    for (int rank = 0; watch->seats && rank < watch->options.size; rank++)
        channel_close(&watch->seats[rank].channel);
    channel_close(&watch->hub);
    if (watch->listener >= 0) close(watch->listener);
    close(watch->wake);
    pthread_mutex_destroy(&watch->lock);
    free(watch->failures);
    free(watch->seats);
    free(watch->polled);
    free(watch);
}
