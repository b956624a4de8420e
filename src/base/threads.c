// The thread pool: helpers spin briefly, then sleep, between loops; the caller works along as worker 0.
#include "base/threads.h"

#include "base/text.h"
#include "base/timeline.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS_MAX = 256, SPIN_ROUNDS = 4000 };
#define RANGE_SHOWN 20e-6 // seconds: a shorter part of a loop is no range of its own

typedef struct Loop {
    ThreadsTask *task;
    void *context;
    int64_t count, chunk;
    atomic_long next; // first item not yet taken
} Loop;

static struct {
    pthread_mutex_t owner; // held by the thread whose loop is running
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t thread[THREADS_MAX];
    atomic_int count; // threads in total, the caller included; 0 before the first use
    atomic_uint generation;
    atomic_int running; // helpers still inside the current loop
    bool stop;
    Loop loop;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

static _Thread_local bool inside_loop;
static _Thread_local int own_worker; // inside a loop: the scratch slot of this thread

int threads_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    return 1;
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static void pool_run_chunks(Loop *loop, int worker) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&loop->next, loop->chunk, memory_order_relaxed);
        if (begin >= loop->count) return;
        int64_t end = begin + loop->chunk < loop->count ? begin + loop->chunk : loop->count;
        loop->task(loop->context, begin, end, worker);
    }
}

// A helper's part of a loop, as a range where somebody records.
static void run_chunks_watched(Loop *loop, int worker) {
    double begin = timeline_begin();
    pool_run_chunks(loop, worker);
    if (begin > 0 && clock_seconds() - begin >= RANGE_SHOWN) timeline_end(begin, "part of a loop", -1);
}

static void *helper_main(void *argument) {
    int worker = (int)(intptr_t)argument;
    unsigned seen = 0;
    inside_loop = true;
    timeline_name_thread("worker");
    own_worker = worker;
    for (;;) {
        // Loops of a training step follow each other within microseconds: spin a little before sleeping.
        for (int i = 0; i < SPIN_ROUNDS && atomic_load_explicit(&pool.generation, memory_order_acquire) == seen; i++)
            pause_briefly();
        if (atomic_load_explicit(&pool.generation, memory_order_acquire) == seen) {
            pthread_mutex_lock(&pool.lock);
            while (atomic_load(&pool.generation) == seen)
                pthread_cond_wait(&pool.wake, &pool.lock);
            pthread_mutex_unlock(&pool.lock);
        }
        seen = atomic_load_explicit(&pool.generation, memory_order_acquire);
        if (pool.stop) return NULL;
        run_chunks_watched(&pool.loop, worker);
        if (atomic_fetch_sub_explicit(&pool.running, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_signal(&pool.idle);
            pthread_mutex_unlock(&pool.lock);
        }
    }
}

static void pool_announce(void) {
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add_explicit(&pool.generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
}

static void pool_stop(void) {
    if (pool.count <= 1) return;
    pool.stop = true;
    pool_announce();
    for (int i = 1; i < pool.count; i++)
        pthread_join(pool.thread[i], NULL);
    pool.stop = false;
    pool.count = 0;
}

Status threads_check_environment(void) {
    int64_t wanted;
    const char *text = getenv("HEARTH_THREADS");
    if (!text || !text[0] || (text_to_int64(text, &wanted) && wanted >= 1 && wanted <= THREADS_MAX)) return NULL;
    return status_usage("HEARTH_THREADS is \"%s\", and must be a whole number from 1 to %d", text, THREADS_MAX);
}

static void pool_start(int count) {
    if (count <= 0) {
        int64_t wanted = 0;
        const char *environment = getenv("HEARTH_THREADS");
        if (environment && text_to_int64(environment, &wanted) && wanted > 0)
            count = (int)wanted;
        else
            count = threads_cores();
    }
    if (count > THREADS_MAX) count = THREADS_MAX;
    atomic_store(&pool.generation, 0);
    int made = 1;
    while (made < count && !pthread_create(&pool.thread[made], NULL, helper_main, (void *)(intptr_t)made))
        made++;
    pool.count = made; // at once: others ask for it without the lock
}

void threads_set(int count) {
    pthread_mutex_lock(&pool.owner);
    pool_stop();
    pool_start(count);
    pthread_mutex_unlock(&pool.owner);
}

int threads_count(void) {
    int count = pool.count;
    if (count) return count;
    pthread_mutex_lock(&pool.owner);
    if (!pool.count) pool_start(0);
    count = pool.count;
    pthread_mutex_unlock(&pool.owner);
    return count;
}

void threads_for(int64_t count, int64_t chunk, ThreadsTask *task, void *context) {
    if (count <= 0) return;
    if (chunk < 1) chunk = 1;
    bool alone = inside_loop || count <= chunk || threads_count() == 1 || pthread_mutex_trylock(&pool.owner) != 0;
    if (alone) {
        for (int64_t begin = 0; begin < count; begin += chunk)
            task(context, begin, begin + chunk < count ? begin + chunk : count, own_worker);
        return;
    }
    pool.loop.task = task;
    pool.loop.context = context;
    pool.loop.count = count;
    pool.loop.chunk = chunk;
    atomic_store(&pool.loop.next, 0);
    atomic_store_explicit(&pool.running, pool.count - 1, memory_order_release);
    pool_announce();
    inside_loop = true;
    pool_run_chunks(&pool.loop, 0);
    inside_loop = false;
    for (int i = 0; i < SPIN_ROUNDS && atomic_load_explicit(&pool.running, memory_order_acquire); i++)
        pause_briefly();
    if (atomic_load_explicit(&pool.running, memory_order_acquire)) {
        pthread_mutex_lock(&pool.lock);
        while (atomic_load(&pool.running))
            pthread_cond_wait(&pool.idle, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
    }
    pthread_mutex_unlock(&pool.owner);
}

// ---- beside the pool ------------------------------------------------------------------------------------------------

int thread_start(pthread_t *thread, void *(*run)(void *context), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}
