// Linked into a second hearth (build/tests/hearth_torture): its file layer and its clocks do what HEARTH_TORTURE says,
// a list of words such as "kill=17" or "fail=write:3:28:1". Everything else is the program itself.
//
//   kill=N             SIGKILL before the N-th call that changes something
//   fail=KIND:N:E:L    the N-th call of a kind fails with errno E; L 1: all after it too. KIND any: whatever changes
//   short=N            every N-th write takes half of its bytes
//   slow=MS            every sync and every eighth write takes so many milliseconds
//   clock=S            the time of day jumps by up to S seconds, back and forth; the steady clock sometimes leaps ahead
#include "base/io.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct Torture {
    int kill, shorten, slow_ms, clock_seconds;
    int fail_kind, fail_number, fail_error, fail_lasting; // fail_kind IO_KINDS: any
    atomic_int calls, writes, failing, clock_calls;
} torture;

static bool call_changes(IoKind kind) {
    return kind != IO_READ && kind != IO_MAP && kind != IO_CLOSE;
}

static int torture_hook(void *context, IoCall *call) {
    (void)context;
    bool opens = call->kind == IO_OPEN && !(call->flags & 3); // to read only
    if (call_changes(call->kind) && !opens && atomic_fetch_add(&torture.calls, 1) + 1 == torture.kill)
        kill(getpid(), SIGKILL);
    int writes = call->kind == IO_WRITE ? atomic_fetch_add(&torture.writes, 1) + 1 : 0;
    if (torture.slow_ms && (call->kind == IO_SYNC || (writes && writes % 8 == 0)))
        nanosleep(&(struct timespec){.tv_nsec = torture.slow_ms * 1000000L}, NULL);
    if (torture.shorten && writes && writes % torture.shorten == 0 && call->size > 1) call->size /= 2;
    bool meant =
        torture.fail_kind == IO_KINDS ? call_changes(call->kind) && !opens : (int)call->kind == torture.fail_kind;
    if (torture.fail_number && meant) {
        int number = atomic_fetch_add(&torture.failing, 1) + 1;
        if (number == torture.fail_number || (torture.fail_lasting && number > torture.fail_number))
            return torture.fail_error;
    }
    return IO_GO;
}

static int kind_of(const char *name) {
    static const char *const names[] = {"open",  "read",   "map",    "write", "truncate", "sync",
                                        "close", "rename", "unlink", "rmdir", "mkdir",    "any"};
    for (int i = 0; i <= IO_KINDS; i++)
        if (strcmp(name, names[i]) == 0) return i;
    fprintf(stderr, "HEARTH_TORTURE: no call \"%s\"\n", name);
    exit(2);
}

__attribute__((constructor)) static void torture_start(void) {
    const char *said = getenv("HEARTH_TORTURE");
    if (!said) return;
    char *words = strdup(said), *rest = NULL, kind[16];
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        bool known = sscanf(word, "kill=%d", &torture.kill) == 1 || sscanf(word, "short=%d", &torture.shorten) == 1 ||
                     sscanf(word, "slow=%d", &torture.slow_ms) == 1 ||
                     sscanf(word, "clock=%d", &torture.clock_seconds) == 1;
        if (!known && sscanf(word, "fail=%15[a-z]:%d:%d:%d", kind, &torture.fail_number, &torture.fail_error,
                             &torture.fail_lasting) == 4) {
            torture.fail_kind = kind_of(kind);
            known = true;
        }
        if (!known) {
            fprintf(stderr, "HEARTH_TORTURE: \"%s\" is not understood\n", word);
            exit(2);
        }
    }
    free(words);
    io_set_hook(torture_hook, NULL);
}

// ---- clocks ---------------------------------------------------------------------------------------------------------

// A jump every 16 calls: a function of their number alone, so that a case repeats itself.
static long clock_jump(void) {
    static atomic_long ahead;
    if (!torture.clock_seconds) return 0;
    unsigned long number = (unsigned long)atomic_fetch_add(&torture.clock_calls, 1);
    if (number % 16 == 0)
        atomic_store(&ahead, (long)(number * 2654435761u % (2 * (unsigned long)torture.clock_seconds + 1)) -
                                 torture.clock_seconds);
    return atomic_load(&ahead);
}

// The steady clock never goes back; a machine that slept is ahead all at once.
static long clock_leap(void) {
    if (!torture.clock_seconds) return 0;
    return atomic_load(&torture.clock_calls) > 400 ? torture.clock_seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0)
        now->tv_sec += clock == CLOCK_REALTIME ? clock_jump() : clock == CLOCK_MONOTONIC ? clock_leap() : 0;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
