// The order of a world's operations on the host: a thread that carries them out one after the other, while the caller
// goes on. What an operation does is the runner's (comm_mpi.c).
#pragma once

#include "dist/internal.h"

// Carries out a request on the queue's thread. False: it is on its way, and the runner will call queue_finish for its
// ticket, from `poll` or from inside of a later request.
typedef struct QueueRunner {
    bool (*run)(void *context, const CommRequest *request, CommTicket ticket);
    void (*poll)(void *context); // called often while something is on its way
    void *context;
} QueueRunner;

Status queue_create(Queue **queue, const QueueRunner *runner);
void queue_destroy(Queue *queue); // waits for everything

CommTicket queue_add(Queue *queue, const CommRequest *request);
void queue_wait(Queue *queue, CommTicket ticket); // 0: everything
bool queue_is_done(Queue *queue, CommTicket ticket);
void queue_finish(Queue *queue, CommTicket ticket);

// Is somebody blocked until an operation ends? Then its thread may spin; else it leaves the core to the computation.
bool queue_is_waited_for(const Queue *queue);
double queue_waited_seconds(Queue *queue);

void queue_record_events(Queue *queue, int capacity);
int queue_take_events(Queue *queue, CommEvent **events);
