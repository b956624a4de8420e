#include "dist/queue.h"

#include "base/threads.h"
#include "base/timeline.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { QUEUE_DEPTH = 1024, POLL_MICROSECONDS = 50 };

typedef struct QueueItem {
    CommRequest request;
    bool finished;
    double started, begun;
} QueueItem;

struct Queue {
    QueueRunner runner;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    QueueItem items[QUEUE_DEPTH]; // of ticket t at t % QUEUE_DEPTH
    CommTicket head, next, tail;  // the next to be given, to be run, and the oldest that is not finished
    int on_the_way;               // run, and not finished
    bool stop;
    atomic_int waiting;
    double waited;
    CommEvent *events; // a ring
    int event_capacity, event_count, event_next;
};

static QueueItem *item_of(Queue *queue, CommTicket ticket) {
    return &queue->items[ticket % QUEUE_DEPTH];
}

static void event_add(Queue *queue, const QueueItem *item, double ended) {
    if (!queue->event_capacity || item->request.op == COMM_OP_CALL) return;
    queue->events[queue->event_next] = (CommEvent){.op = comm_op_name(item->request.op),
                                                   .group = item->request.comm->name,
                                                   .bytes = (int64_t)comm_request_bytes(&item->request),
                                                   .started = item->started,
                                                   .begun = item->begun,
                                                   .ended = ended};
    queue->event_next = (queue->event_next + 1) % queue->event_capacity;
    if (queue->event_count < queue->event_capacity) queue->event_count++;
}

static void finish_locked(Queue *queue, CommTicket ticket) {
    QueueItem *item = item_of(queue, ticket);
    assert(!item->finished && ticket >= queue->tail && ticket < queue->next);
    item->finished = true;
    event_add(queue, item, clock_seconds());
    while (queue->tail < queue->next && item_of(queue, queue->tail)->finished)
        queue->tail++;
    pthread_cond_broadcast(&queue->done);
}

void queue_finish(Queue *queue, CommTicket ticket) {
    pthread_mutex_lock(&queue->lock);
    queue->on_the_way--;
    finish_locked(queue, ticket);
    pthread_mutex_unlock(&queue->lock);
}

// With the lock held. False: the queue ends.
static bool wait_for_work(Queue *queue) {
    while (queue->next == queue->head) {
        if (queue->on_the_way) {
            pthread_mutex_unlock(&queue->lock);
            queue->runner.poll(queue->runner.context);
            struct timespec pause = {0, POLL_MICROSECONDS * 1000};
            nanosleep(&pause, NULL);
            pthread_mutex_lock(&queue->lock);
        } else if (queue->stop) {
            return false;
        } else {
            pthread_cond_wait(&queue->work, &queue->lock);
        }
    }
    return true;
}

static void *queue_main(void *argument) {
    Queue *queue = argument;
    prctl(PR_SET_TIMERSLACK, 1000UL); // short sleeps while a message is on its way are meant to be short
    pthread_mutex_lock(&queue->lock);
    while (wait_for_work(queue)) {
        CommTicket ticket = queue->next++;
        QueueItem *item = item_of(queue, ticket);
        CommRequest request = item->request;
        item->begun = clock_seconds();
        queue->on_the_way++; // before it runs: a send may be finished by its own poll
        pthread_mutex_unlock(&queue->lock);
        bool finished = queue->runner.run(queue->runner.context, &request, ticket);
        if (finished) queue_finish(queue, ticket);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

Status queue_create(Queue **out, const QueueRunner *runner) {
    Queue *queue = xcalloc(1, sizeof *queue);
    queue->runner = *runner;
    queue->head = queue->next = queue->tail = 1; // ticket 0 is what is done already
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->work, NULL);
    pthread_cond_init(&queue->done, NULL);
    int failed = thread_start(&queue->thread, queue_main, queue);
    if (failed) {
        free(queue);
        return status_runtime("no thread for the communication: %s", strerror(failed));
    }
    *out = queue;
    return NULL;
}

void queue_destroy(Queue *queue) {
    if (!queue) return;
    pthread_mutex_lock(&queue->lock);
    queue->stop = true;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->work);
    pthread_cond_destroy(&queue->done);
    pthread_mutex_destroy(&queue->lock);
    free(queue->events);
    free(queue);
}

// With the lock held.
static void wait_locked(Queue *queue, CommTicket ticket) {
    if (ticket < queue->tail || item_of(queue, ticket)->finished) return;
    CommRequest request = item_of(queue, ticket)->request; // its place may be another's by the end
    double start = clock_seconds();
    atomic_fetch_add(&queue->waiting, 1);
    while (ticket >= queue->tail && !item_of(queue, ticket)->finished)
        pthread_cond_wait(&queue->done, &queue->lock);
    atomic_fetch_sub(&queue->waiting, 1);
    double end = clock_seconds();
    queue->waited += end - start;
    if (timeline_on())
        timeline_add(TIMELINE_COMM_WAIT, comm_op_name(request.op),
                     request.op == COMM_OP_CALL ? NULL : request.comm->name, -1, start, end);
}

CommTicket queue_add(Queue *queue, const CommRequest *request) {
    pthread_mutex_lock(&queue->lock);
    while (queue->head - queue->tail == QUEUE_DEPTH)
        wait_locked(queue, queue->tail);
    CommTicket ticket = queue->head++;
    *item_of(queue, ticket) = (QueueItem){.request = *request, .started = clock_seconds()};
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    return ticket;
}

void queue_wait(Queue *queue, CommTicket ticket) {
    pthread_mutex_lock(&queue->lock);
    if (ticket) {
        assert(ticket < queue->head);
        wait_locked(queue, ticket);
    } else {
        for (CommTicket last = queue->head; queue->tail < last;)
            wait_locked(queue, queue->tail);
    }
    pthread_mutex_unlock(&queue->lock);
}

bool queue_is_done(Queue *queue, CommTicket ticket) {
    pthread_mutex_lock(&queue->lock);
    bool done = ticket < queue->tail || item_of(queue, ticket)->finished;
    pthread_mutex_unlock(&queue->lock);
    return done;
}

bool queue_is_waited_for(const Queue *queue) {
    return atomic_load_explicit(&queue->waiting, memory_order_relaxed) > 0;
}

double queue_waited_seconds(Queue *queue) {
    pthread_mutex_lock(&queue->lock);
    double seconds = queue->waited;
    pthread_mutex_unlock(&queue->lock);
    return seconds;
}

void queue_record_events(Queue *queue, int capacity) {
    pthread_mutex_lock(&queue->lock);
    free(queue->events);
    queue->events = capacity ? xcalloc((size_t)capacity, sizeof *queue->events) : NULL;
    queue->event_capacity = capacity;
    queue->event_count = queue->event_next = 0;
    pthread_mutex_unlock(&queue->lock);
}

int queue_take_events(Queue *queue, CommEvent **events) {
    pthread_mutex_lock(&queue->lock);
    int count = queue->event_count, capacity = queue->event_capacity;
    *events = xcalloc((size_t)count + 1, sizeof **events);
    for (int i = 0; i < count; i++)
        (*events)[i] = queue->events[(queue->event_next - count + i + capacity) % capacity];
    queue->event_count = 0;
    pthread_mutex_unlock(&queue->lock);
    return count;
}
