// The functions of comm.h: what each operation must be given, and who carries it out. Groups of one rank are here.
#include "dist/internal.h"
#include "dist/queue.h"
#include "dist/sum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *comm_op_name(CommOp op) {
    static const char *const names[] = {"all_reduce", "all_reduce_max", "reduce_scatter", "all_gather", "all_to_all",
                                        "broadcast",  "send",           "receive",        "exchange",   "barrier",
                                        "call"};
    return names[op];
}

bool comm_op_between_two(CommOp op) {
    return op == COMM_OP_SEND || op == COMM_OP_RECEIVE || op == COMM_OP_EXCHANGE;
}

// ---- one rank -------------------------------------------------------------------------------------------------------

static CommTicket self_start(Comm *comm, const CommRequest *request) {
    size_t bytes = comm_request_bytes(request);
    assert(!comm_op_between_two(request->op));
    if (bytes && request->in && request->out != request->in)
        comm->ops->copy(comm->ops, request->out, request->in, bytes);
    return 0;
}

static void self_wait(Comm *comm, CommTicket ticket) {
    (void)comm, (void)ticket;
}

static void self_destroy(Comm *comm) {
    (void)comm;
}

static const CommTable self_table = {self_start, self_wait, self_destroy};

// ---- groups ---------------------------------------------------------------------------------------------------------

#ifdef HEARTH_HAVE_MPI
static Status backend_open(Comm *comm) {
    CommBackend wanted = comm->world->state->options.backend;
    if (comm->ops->kind == DEVICE_CPU && wanted == COMM_NCCL)
        return status_hint(status_usage("NCCL connects GPUs, and this rank computes on the CPU"),
                           "leave the choice to hearth (auto), or take mpi");
    TRY(comm_mpi_open(comm));
    if (comm->ops->kind == DEVICE_CPU) return NULL;
    bool opened = false;
    Status status = wanted == COMM_MPI ? NULL : comm_nccl_open(comm, wanted, &opened);
    if (!status && !opened) status = comm_device_open(comm);
    if (status) comm_mpi_close(comm);
    return status;
}
#else
static Status backend_open(Comm *comm) { // a world without MPI has one rank
    return status_runtime("%s has %d ranks, and this program is built without MPI", comm->name, comm->size);
}
#endif

static Status create_group(Comm **out, World *world, Ops *ops, const char *name, const int *ranks, int count,
                           bool lane) {
    *out = NULL;
    int own = -1;
    for (int i = 0; i < count; i++) {
        assert(ranks[i] >= 0 && ranks[i] < world->size);
        if (ranks[i] == world->rank) own = i;
    }
    assert(own >= 0); // only members create a group
    Comm *comm = xcalloc(1, sizeof *comm);
    int *copy = xmalloc((size_t)count * sizeof *copy);
    memcpy(copy, ranks, (size_t)count * sizeof *copy);
    *comm = (Comm){.world = world,
                   .ops = ops,
                   .name = text_copy(name),
                   .size = count,
                   .rank = own,
                   .ranks = copy,
                   .backend = "self",
                   .in_graph = true,
                   .lane = lane,
                   .table = &self_table};
    Status status = count > 1 ? backend_open(comm) : NULL;
    if (status) {
        comm->table = &self_table;
        comm_destroy(comm);
        return status_context(status, "group %s", name);
    }
    *out = comm;
    return NULL;
}

Status comm_create(Comm **comm, World *world, Ops *ops, const char *name, const int *ranks, int count) {
    return create_group(comm, world, ops, name, ranks, count, false);
}

Status comm_create_lane(Comm **comm, World *world, Ops *ops, const char *name, int from, int to) {
    assert(from != to);
    return create_group(comm, world, ops, name, (int[]){from, to}, 2, true);
}

Status comm_create_world(Comm **comm, World *world, Ops *ops, const char *name) {
    int *ranks = xmalloc((size_t)world->size * sizeof *ranks);
    for (int i = 0; i < world->size; i++)
        ranks[i] = i;
    Status status = comm_create(comm, world, ops, name, ranks, world->size);
    free(ranks);
    return status;
}

void comm_destroy(Comm *comm) {
    if (!comm) return;
    comm->table->destroy(comm);
    free((void *)comm->name);
    free((void *)comm->ranks);
    free(comm);
}

// ---- operations -----------------------------------------------------------------------------------------------------

static CommTicket comm_start(Comm *comm, const CommRequest *request) {
    return comm->table->start(comm, request);
}

static CommTicket start_sum(Comm *comm, CommOp op, Tensor inout) {
    assert(tensor_contiguous(inout));
    assert(op == COMM_OP_ALL_REDUCE ? sum_knows(inout.dtype) : inout.dtype == DTYPE_F32 || inout.dtype == DTYPE_I32);
    return comm_start(comm, &(CommRequest){.op = op,
                                           .comm = comm,
                                           .out = inout.data,
                                           .in = inout.data,
                                           .count = tensor_count(inout),
                                           .dtype = inout.dtype});
}

static CommTicket start_pieces(Comm *comm, CommOp op, Tensor out, Tensor in, int64_t piece) {
    assert(tensor_contiguous(out) && tensor_contiguous(in) && out.dtype == in.dtype);
    return comm_start(
        comm,
        &(CommRequest){.op = op, .comm = comm, .out = out.data, .in = in.data, .count = piece, .dtype = in.dtype});
}

CommTicket comm_all_reduce(Comm *comm, Tensor inout) {
    return start_sum(comm, COMM_OP_ALL_REDUCE, inout);
}

CommTicket comm_all_reduce_max(Comm *comm, Tensor inout) {
    return start_sum(comm, COMM_OP_ALL_REDUCE_MAX, inout);
}

CommTicket comm_reduce_scatter(Comm *comm, Tensor out, Tensor in) {
    assert(sum_knows(in.dtype) && tensor_count(in) == comm->size * tensor_count(out));
    return start_pieces(comm, COMM_OP_REDUCE_SCATTER, out, in, tensor_count(out));
}

CommTicket comm_all_gather(Comm *comm, Tensor out, Tensor in) {
    assert(tensor_count(out) == comm->size * tensor_count(in));
    return start_pieces(comm, COMM_OP_ALL_GATHER, out, in, tensor_count(in));
}

CommTicket comm_all_to_all(Comm *comm, Tensor out, Tensor in) {
    assert(tensor_count(out) == tensor_count(in) && tensor_count(in) % comm->size == 0);
    return start_pieces(comm, COMM_OP_ALL_TO_ALL, out, in, tensor_count(in) / comm->size);
}

CommTicket comm_broadcast(Comm *comm, Tensor inout, int root) {
    assert(tensor_contiguous(inout) && root >= 0 && root < comm->size);
    return comm_start(comm, &(CommRequest){.op = COMM_OP_BROADCAST,
                                           .comm = comm,
                                           .out = inout.data,
                                           .in = inout.data,
                                           .count = tensor_count(inout),
                                           .dtype = inout.dtype,
                                           .from = root});
}

static void check_peer(const Comm *comm, int peer) {
    assert(peer >= 0 && peer < comm->size && peer != comm->rank);
}

CommTicket comm_send(Comm *comm, Tensor in, int to) {
    check_peer(comm, to);
    assert(tensor_contiguous(in));
    return comm_start(comm, &(CommRequest){.op = COMM_OP_SEND,
                                           .comm = comm,
                                           .in = in.data,
                                           .count = tensor_count(in),
                                           .dtype = in.dtype,
                                           .to = to,
                                           .from = to});
}

CommTicket comm_receive(Comm *comm, Tensor out, int from) {
    check_peer(comm, from);
    assert(tensor_contiguous(out));
    return comm_start(comm, &(CommRequest){.op = COMM_OP_RECEIVE,
                                           .comm = comm,
                                           .out = out.data,
                                           .count = tensor_count(out),
                                           .dtype = out.dtype,
                                           .to = from,
                                           .from = from});
}

CommTicket comm_exchange(Comm *comm, Tensor out, int from, Tensor in, int to) {
    check_peer(comm, to);
    check_peer(comm, from);
    assert(tensor_contiguous(in) && tensor_contiguous(out) && in.dtype == out.dtype);
    assert(tensor_count(in) == tensor_count(out));
    return comm_start(comm, &(CommRequest){.op = COMM_OP_EXCHANGE,
                                           .comm = comm,
                                           .out = out.data,
                                           .in = in.data,
                                           .count = tensor_count(in),
                                           .dtype = in.dtype,
                                           .to = to,
                                           .from = from});
}

CommTicket comm_barrier(Comm *comm) {
    return comm_start(comm, &(CommRequest){.op = COMM_OP_BARRIER, .comm = comm, .dtype = DTYPE_U8});
}

void comm_wait(Comm *comm, CommTicket ticket) {
    if (ticket) comm->table->wait(comm, ticket);
}

void comm_wait_all(World *world) {
    if (!world->state) return;
    queue_wait(world->state->queue, 0);
    comm_nccl_wait_all(world->state);
}

// ---- figures
// ----------------------------------------------------------------------------------------------------------

double comm_waited_seconds(const World *world) {
    return world->state ? queue_waited_seconds(world->state->queue) : 0;
}

int64_t comm_sent_bytes(const World *world) {
    return world->state ? atomic_load(&world->state->sent_bytes) : 0;
}

size_t comm_staging_bytes(const World *world) {
    const WorldState *state = world->state;
    return state ? atomic_load(&state->staging_bytes) : 0;
}

void comm_record_events(World *world, int capacity) {
    if (!world->state) return;
    queue_record_events(world->state->queue, capacity);
    world->state->waited_before = comm_waited_seconds(world);
    comm_nccl_record_events(world->state, capacity > 0);
}

double comm_exposed_seconds(World *world) {
    if (!world->state) return 0;
    return comm_waited_seconds(world) - world->state->waited_before + comm_nccl_exposed_seconds(world->state);
}

static int by_begin(const void *a, const void *b) {
    double x = ((const CommEvent *)a)->begun, y = ((const CommEvent *)b)->begun;
    return (x > y) - (x < y);
}

int comm_take_events(World *world, CommEvent **events) {
    enum { NCCL_EVENTS_MAX = 512 };
    *events = NULL;
    if (!world->state) return 0;
    int count = queue_take_events(world->state->queue, events);
    *events = xrealloc(*events, (size_t)(count + NCCL_EVENTS_MAX) * sizeof **events);
    count += comm_nccl_take_events(world->state, *events + count, NCCL_EVENTS_MAX);
    qsort(*events, (size_t)count, sizeof **events, by_begin);
    return count;
}
