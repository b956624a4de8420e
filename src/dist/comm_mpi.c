// Collectives over MPI on host memory. Sums are exchanges of pieces that each rank then adds in rank order: MPI's own
// reductions leave the order to the library. Everything here runs on the queue's thread.
#include "dist/internal.h"

#ifdef HEARTH_HAVE_MPI
#include "dist/queue.h"
#include "dist/sum.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SLICE_BYTES = 8 << 20,    // of a sum, taken at once: what is being added stays in the cache; two are on their way
    SMALL_BYTES = 32 << 10,   // a sum whose messages together are no longer is added by every rank for itself
    MESSAGE_BYTES = 256 << 20 // MPI counts in int: longer messages are cut
};

typedef enum MessageTag { TAG_PIECES, TAG_RESULT, TAG_BETWEEN_TWO } MessageTag;

typedef struct Messages { // on their way
    MPI_Request *items;
    int count, capacity;
} Messages;

typedef struct MpiGroup { // the state of a Comm
    MPI_Comm mpi;
    int64_t collectives;            // so far
    Messages pieces[2], results[2]; // by parity of the slice
    const void **inputs;            // [size]: what is to be added
} MpiGroup;

struct MpiPending {
    Messages messages;
    CommTicket ticket;
    Comm *comm;
    int to;
};

static MpiGroup *group_of(const Comm *comm) {
    return (MpiGroup *)comm->state;
}

static void mpi_check(const Comm *comm, int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    world_abort(comm->world, status_runtime("%s of group %s failed: %s", what, comm->name, text));
}

static void *staging_of(WorldState *state, size_t bytes) {
    if (bytes > state->staging_size) {
        atomic_fetch_add(&state->staging_bytes, bytes - state->staging_size);
        free(state->staging);
        state->staging = xmalloc(bytes);
        state->staging_size = bytes;
    }
    return state->staging;
}

// ---- messages -------------------------------------------------------------------------------------------------------

static MPI_Request *messages_add(Messages *messages) {
    if (messages->count == messages->capacity) {
        messages->capacity = messages->capacity ? 2 * messages->capacity : 8;
        messages->items = xrealloc(messages->items, (size_t)messages->capacity * sizeof *messages->items);
    }
    return &messages->items[messages->count++];
}

static void message_send(Comm *comm, Messages *messages, const void *data, size_t bytes, int to, MessageTag tag) {
    MPI_Comm mpi = group_of(comm)->mpi;
    atomic_fetch_add(&comm->world->state->sent_bytes, (int_fast64_t)bytes);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES;
        mpi_check(comm, MPI_Isend((const char *)data + done, (int)part, MPI_BYTE, to, tag, mpi, messages_add(messages)),
                  "a send");
    }
}

static void message_receive(Comm *comm, Messages *messages, void *data, size_t bytes, int from, MessageTag tag) {
    MPI_Comm mpi = group_of(comm)->mpi;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES;
        mpi_check(comm, MPI_Irecv((char *)data + done, (int)part, MPI_BYTE, from, tag, mpi, messages_add(messages)),
                  "a receive");
    }
}

// A blocking wait of MPI would spin on a core that the computation needs. Somebody blocked on the result has nothing
// better to do with his core than to look often, for a while.
static void wait_a_little(const WorldState *state, int *rounds) {
    int spin = queue_is_waited_for(state->queue) ? 2000 : 50;
    if (++*rounds < spin) {
        sched_yield();
    } else {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
}

static bool messages_done(Comm *comm, Messages *messages, const char *what) {
    int done = 0;
    if (!messages->count) return true;
    mpi_check(comm, MPI_Testall(messages->count, messages->items, &done, MPI_STATUSES_IGNORE), what);
    if (done) messages->count = 0;
    return done;
}

static void messages_wait(Comm *comm, Messages *messages, const char *what) {
    WorldState *state = comm->world->state;
    for (int rounds = 0; !messages_done(comm, messages, what); wait_a_little(state, &rounds))
        comm_mpi_poll(state);
}

// ---- sums -----------------------------------------------------------------------------------------------------------

typedef void SumFunction(void *out, const void *const *in, int ranks, int64_t count, DType dtype);

// Elements [begin, begin + count) of the slice that rank r adds up.
typedef struct Piece {
    int64_t begin, count;
} Piece;

static Piece piece_of(int64_t count, int ranks, int rank) {
    int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
    return (Piece){begin, end - begin};
}

// All values to all ranks, and every rank adds for itself: one exchange instead of two.
static void sum_small(Comm *comm, const CommRequest *request, SumFunction *sum) {
    MpiGroup *group = group_of(comm);
    size_t bytes = comm_request_bytes(request);
    char *staging = staging_of(comm->world->state, bytes * (size_t)comm->size);
    Messages *messages = &group->pieces[0];
    for (int i = 1; i < comm->size; i++) {
        int from = (comm->rank - i + comm->size) % comm->size, to = (comm->rank + i) % comm->size;
        message_receive(comm, messages, staging + bytes * (size_t)from, bytes, from, TAG_PIECES);
        message_send(comm, messages, request->in, bytes, to, TAG_PIECES);
    }
    for (int r = 0; r < comm->size; r++)
        group->inputs[r] = r == comm->rank ? request->in : staging + bytes * (size_t)r;
    messages_wait(comm, messages, comm_op_name(request->op));
    sum(request->out, group->inputs, comm->size, request->count, request->dtype);
}

// The pieces of a slice go to the ranks that add them.
static void slice_send_pieces(Comm *comm, Messages *messages, char *slice, int64_t count, size_t element,
                              char *staging) {
    size_t own = (size_t)piece_of(count, comm->size, comm->rank).count * element;
    for (int i = 1; i < comm->size; i++) {
        int from = (comm->rank - i + comm->size) % comm->size, to = (comm->rank + i) % comm->size;
        Piece theirs = piece_of(count, comm->size, to);
        message_receive(comm, messages, staging + own * (size_t)from, own, from, TAG_PIECES);
        message_send(comm, messages, slice + (size_t)theirs.begin * element, (size_t)theirs.count * element, to,
                     TAG_PIECES);
    }
}

static void slice_add(Comm *comm, char *slice, int64_t count, DType dtype, char *staging, SumFunction *sum) {
    MpiGroup *group = group_of(comm);
    Piece own = piece_of(count, comm->size, comm->rank);
    size_t element = dtype_size(dtype), bytes = (size_t)own.count * element;
    char *out = slice + (size_t)own.begin * element;
    for (int r = 0; r < comm->size; r++)
        group->inputs[r] = r == comm->rank ? out : staging + bytes * (size_t)r;
    sum(out, group->inputs, comm->size, own.count, dtype);
}

static void slice_send_result(Comm *comm, Messages *messages, char *slice, int64_t count, size_t element) {
    Piece own = piece_of(count, comm->size, comm->rank);
    for (int i = 1; i < comm->size; i++) {
        int from = (comm->rank - i + comm->size) % comm->size, to = (comm->rank + i) % comm->size;
        Piece theirs = piece_of(count, comm->size, from);
        message_receive(comm, messages, slice + (size_t)theirs.begin * element, (size_t)theirs.count * element, from,
                        TAG_RESULT);
        message_send(comm, messages, slice + (size_t)own.begin * element, (size_t)own.count * element, to, TAG_RESULT);
    }
}

// Slice k + 1 is on its way while slice k is added, and the result of slice k travels beside slice k + 2.
static void run_all_reduce(Comm *comm, const CommRequest *request, SumFunction *sum) {
    const char *what = comm_op_name(request->op);
    size_t element = dtype_size(request->dtype), bytes = comm_request_bytes(request);
    if (bytes * (size_t)comm->size <= SMALL_BYTES) {
        sum_small(comm, request, sum);
        return;
    }
    MpiGroup *group = group_of(comm);
    int64_t most = SLICE_BYTES / (int64_t)element, slices = (request->count + most - 1) / most;
    int64_t longest = slices > 1 ? most : request->count;
    size_t half = (size_t)((longest + comm->size - 1) / comm->size) * element * (size_t)comm->size;
    char *staging = staging_of(comm->world->state, slices > 1 ? 2 * half : half), *data = request->out;
    for (int64_t k = 0; k <= slices; k++) {
        if (k < slices) {
            int64_t count = k + 1 < slices ? most : request->count - k * most;
            slice_send_pieces(comm, &group->pieces[k % 2], data + (size_t)(k * most) * element, count, element,
                              staging + (size_t)(k % 2) * half);
        }
        if (k == 0) continue;
        int64_t count = k < slices ? most : request->count - (k - 1) * most;
        int parity = (k - 1) % 2;
        char *slice = data + (size_t)((k - 1) * most) * element;
        messages_wait(comm, &group->pieces[parity], what);
        slice_add(comm, slice, count, request->dtype, staging + (size_t)parity * half, sum);
        messages_wait(comm, &group->results[parity], what);
        slice_send_result(comm, &group->results[parity], slice, count, element);
    }
    messages_wait(comm, &group->results[0], what);
    messages_wait(comm, &group->results[1], what);
}

// Like the first half of an all-reduce, with the pieces where the caller has them.
static void run_reduce_scatter(Comm *comm, const CommRequest *request) {
    const char *what = comm_op_name(request->op);
    MpiGroup *group = group_of(comm);
    size_t element = dtype_size(request->dtype), piece = comm_request_bytes(request);
    int64_t most = SLICE_BYTES / (int64_t)element / comm->size, slices = (request->count + most - 1) / most;
    size_t part = (size_t)(slices > 1 ? most : request->count) * element, half = part * (size_t)comm->size;
    char *staging = staging_of(comm->world->state, slices > 1 ? 2 * half : half);
    for (int64_t k = 0; k <= slices; k++) {
        if (k < slices) {
            size_t begin = (size_t)k * part, bytes = k + 1 < slices ? part : piece - begin;
            for (int i = 1; i < comm->size; i++) {
                int from = (comm->rank - i + comm->size) % comm->size, to = (comm->rank + i) % comm->size;
                message_receive(comm, &group->pieces[k % 2], staging + (size_t)(k % 2) * half + part * (size_t)from,
                                bytes, from, TAG_PIECES);
                message_send(comm, &group->pieces[k % 2], (const char *)request->in + piece * (size_t)to + begin, bytes,
                             to, TAG_PIECES);
            }
        }
        if (k == 0) continue;
        size_t begin = (size_t)(k - 1) * part;
        int64_t count = k < slices ? most : request->count - (k - 1) * most;
        messages_wait(comm, &group->pieces[(k - 1) % 2], what);
        for (int r = 0; r < comm->size; r++)
            group->inputs[r] = r == comm->rank ? (const char *)request->in + piece * (size_t)r + begin
                                               : staging + (size_t)((k - 1) % 2) * half + part * (size_t)r;
        sum_ranks((char *)request->out + begin, group->inputs, comm->size, count, request->dtype);
    }
}

// ---- moves ----------------------------------------------------------------------------------------------------------

// all_gather sends the one piece of `in` to everybody, all_to_all to each his own.
static void run_pieces(Comm *comm, const CommRequest *request) {
    Messages *messages = &group_of(comm)->pieces[0];
    size_t bytes = comm_request_bytes(request), step = request->op == COMM_OP_ALL_TO_ALL ? bytes : 0;
    char *out = request->out;
    const char *in = request->in;
    for (int i = 1; i < comm->size; i++) {
        int from = (comm->rank - i + comm->size) % comm->size, to = (comm->rank + i) % comm->size;
        message_receive(comm, messages, out + bytes * (size_t)from, bytes, from, TAG_PIECES);
        message_send(comm, messages, in + step * (size_t)to, bytes, to, TAG_PIECES);
    }
    char *own = out + bytes * (size_t)comm->rank;
    const char *mine = in + step * (size_t)comm->rank;
    if (own != mine && bytes) memcpy(own, mine, bytes);
    messages_wait(comm, messages, comm_op_name(request->op));
}

static void run_broadcast(Comm *comm, const CommRequest *request) {
    Messages *messages = &group_of(comm)->pieces[0];
    size_t bytes = comm_request_bytes(request);
    if (comm->rank == request->from) atomic_fetch_add(&comm->world->state->sent_bytes, (int_fast64_t)bytes);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES;
        mpi_check(comm,
                  MPI_Ibcast((char *)request->out + done, (int)part, MPI_BYTE, request->from, group_of(comm)->mpi,
                             messages_add(messages)),
                  "broadcast");
        messages_wait(comm, messages, "broadcast");
    }
}

static void run_barrier(Comm *comm) {
    Messages *messages = &group_of(comm)->pieces[0];
    mpi_check(comm, MPI_Ibarrier(group_of(comm)->mpi, messages_add(messages)), "barrier");
    messages_wait(comm, messages, "barrier");
}

static void run_receive(Comm *comm, const CommRequest *request) {
    Messages *messages = &group_of(comm)->pieces[0];
    size_t bytes = comm_request_bytes(request);
    message_receive(comm, messages, request->out, bytes, request->from, TAG_BETWEEN_TWO);
    if (request->op == COMM_OP_EXCHANGE) message_send(comm, messages, request->in, bytes, request->to, TAG_BETWEEN_TWO);
    messages_wait(comm, messages, comm_op_name(request->op));
}

// ---- sends on their way: the operations behind them go on ---------------------------------------------------------

static void start_send(WorldState *state, const CommRequest *request, CommTicket ticket) {
    if (state->pending_count == state->pending_capacity) {
        state->pending_capacity = state->pending_capacity ? 2 * state->pending_capacity : 8;
        state->pending = xrealloc(state->pending, (size_t)state->pending_capacity * sizeof *state->pending);
    }
    MpiPending pending = {.ticket = ticket, .comm = request->comm, .to = request->to};
    message_send(request->comm, &pending.messages, request->in, comm_request_bytes(request), request->to,
                 TAG_BETWEEN_TWO);
    state->pending[state->pending_count++] = pending;
}

// While no operation runs, the oldest send is what this rank waits for.
static void watch_pending(WorldState *state) {
    state->pending_watched = state->pending_count ? state->pending[0].ticket : 0;
    if (!state->pending_watched) return;
    const Comm *comm = state->pending[0].comm;
    int peer = comm->ranks[state->pending[0].to];
    watch_begin(state->watch, WATCH_QUEUE, "send", comm->name, 0, peer, comm->ranks, comm->size);
}

void comm_mpi_poll(void *context) {
    WorldState *state = context;
    int kept = 0;
    for (int i = 0; i < state->pending_count; i++) {
        MpiPending *pending = &state->pending[i];
        if (messages_done(pending->comm, &pending->messages, "a send")) {
            free(pending->messages.items);
            queue_finish(state->queue, pending->ticket);
        } else {
            state->pending[kept++] = *pending;
        }
    }
    state->pending_count = kept;
    if (state->pending_watched && (!kept || state->pending[0].ticket != state->pending_watched)) {
        watch_end(state->watch, WATCH_QUEUE);
        watch_pending(state);
    }
}

// ---- the queue's runner ---------------------------------------------------------------------------------------------

static void run_request(Comm *comm, const CommRequest *request) {
    switch (request->op) {
    case COMM_OP_ALL_REDUCE: run_all_reduce(comm, request, sum_ranks); break;
    case COMM_OP_ALL_REDUCE_MAX: run_all_reduce(comm, request, sum_ranks_max); break;
    case COMM_OP_REDUCE_SCATTER: run_reduce_scatter(comm, request); break;
    case COMM_OP_ALL_GATHER:
    case COMM_OP_ALL_TO_ALL: run_pieces(comm, request); break;
    case COMM_OP_BROADCAST: run_broadcast(comm, request); break;
    case COMM_OP_RECEIVE:
    case COMM_OP_EXCHANGE: run_receive(comm, request); break;
    case COMM_OP_BARRIER: run_barrier(comm); break;
    case COMM_OP_CALL: request->call(request->context); break;
    case COMM_OP_SEND: break; // start_send
    }
}

bool comm_mpi_run(void *context, const CommRequest *request, CommTicket ticket) {
    WorldState *state = context;
    Comm *comm = request->comm;
    bool between_two = comm_op_between_two(request->op), send = request->op == COMM_OP_SEND;
    int64_t sequence = between_two ? 0 : ++group_of(comm)->collectives;
    state->pending_watched = 0;
    watch_begin(state->watch, WATCH_QUEUE, request->op == COMM_OP_CALL ? request->what : comm_op_name(request->op),
                comm->name, sequence, between_two ? comm->ranks[request->from] : -1, comm->ranks, comm->size);
    if (send)
        start_send(state, request, ticket);
    else
        run_request(comm, request);
    watch_end(state->watch, WATCH_QUEUE);
    watch_pending(state);
    return !send;
}

// ---- groups ---------------------------------------------------------------------------------------------------------

static CommTicket mpi_start(Comm *comm, const CommRequest *request) {
    return queue_add(comm->world->state->queue, request);
}

static void mpi_wait(Comm *comm, CommTicket ticket) {
    queue_wait(comm->world->state->queue, ticket);
}

static const CommTable mpi_table = {mpi_start, mpi_wait, comm_mpi_close};

void comm_mpi_call(Comm *comm, const char *what, void (*call)(void *context), void *context) {
    Queue *queue = comm->world->state->queue;
    CommRequest request = {
        .op = COMM_OP_CALL, .comm = comm, .call = call, .context = context, .what = what, .dtype = DTYPE_U8};
    queue_wait(queue, queue_add(queue, &request));
}

static void create_group(void *context) {
    Comm *comm = context;
    MPI_Group all, listed;
    int tag = 0;
    for (const char *c = comm->name; *c; c++)
        tag = (tag * 31 + (unsigned char)*c) % 32749;
    mpi_check(comm, MPI_Comm_group(comm->world->state->mpi, &all), "creation");
    mpi_check(comm, MPI_Group_incl(all, comm->size, comm->ranks, &listed), "creation");
    mpi_check(comm, MPI_Comm_create_group(comm->world->state->mpi, listed, tag, &group_of(comm)->mpi), "creation");
    mpi_check(comm, MPI_Comm_set_errhandler(group_of(comm)->mpi, MPI_ERRORS_RETURN), "creation");
    MPI_Group_free(&all);
    MPI_Group_free(&listed);
}

static void free_group(void *context) {
    Comm *comm = context;
    mpi_check(comm, MPI_Comm_free(&group_of(comm)->mpi), "the end");
}

Status comm_mpi_open(Comm *comm) {
    MpiGroup *group = xcalloc(1, sizeof *group);
    group->mpi = MPI_COMM_NULL;
    group->inputs = xcalloc((size_t)comm->size, sizeof *group->inputs);
    comm->state = (CommState *)group;
    comm->table = &mpi_table;
    comm->backend = "mpi";
    comm->in_graph = false;
    comm_mpi_call(comm, "creation", create_group, comm);
    return NULL;
}

void comm_mpi_close(Comm *comm) {
    MpiGroup *group = group_of(comm);
    queue_wait(comm->world->state->queue, 0);
    comm_mpi_call(comm, "the end", free_group, comm);
    for (int i = 0; i < 2; i++) {
        free(group->pieces[i].items);
        free(group->results[i].items);
    }
    free(group->inputs);
    free(group);
    comm->state = NULL;
}
#endif
