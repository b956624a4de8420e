// Groups over NCCL: on a stream of their own, which starts behind the work that ops have enqueued and which ops wait
// for by an event. One stream for all groups of a rank, so that all ranks run (and record) their operations in one
// order. A lane has its own: both its ends wait for each other, and nothing else may wait for that.
#include "dist/internal.h"

#ifdef HEARTH_HAVE_NCCL
#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"
#include "dist/queue.h"
#include "ops/cuda/cuda.h"

#include <assert.h>
#include <nccl.h>
#include <stdlib.h>
#include <unistd.h>

enum { NCCL_SLOTS = 512 }; // operations whose events are kept; an older one is done when a younger is

typedef struct NcclSlot {
    cudaEvent_t fork, begun, done; // on the ops' stream; on this one, before and after
    CommTicket ticket;
    bool captured; // inside of a graph: its events say nothing outside of it
    bool enqueued; // its last event is recorded
    CommOp op;
    Comm *comm;
    int64_t sequence, bytes;
    double started;
} NcclSlot;

struct NcclQueue {
    World *world;
    Ops *ops;
    int device;
    cudaStream_t stream;
    NcclSlot slots[NCCL_SLOTS];
    CommTicket next, waited; // to be given; the last that ops wait for
    float *token;            // for barriers

    pthread_mutex_t lock; // of the slots, which the watching thread reads
    pthread_t thread;
    bool stop;
    CommTicket watched; // all before this one have ended

    CommTicket recorded; // events are wanted from this ticket on; 0: not
    cudaEvent_t base;    // at base_seconds of the host's clock
    double base_seconds;
    cudaEvent_t waits[NCCL_SLOTS][2]; // around the waits of the ops' stream since then
    int wait_count;
};

enum { LANE_SLOTS = 16 }; // messages of a lane whose events are kept

typedef struct NcclGroup { // the state of a Comm
    Comm mpi;              // the same ranks, over MPI on host memory
    ncclComm_t nccl;
    int64_t collectives;
    cudaStream_t lane;                            // NULL: the queue's
    cudaEvent_t lane_fork, lane_done[LANE_SLOTS]; // of message t at t % LANE_SLOTS
    CommTicket lane_next;                         // from 1
} NcclGroup;

static NcclGroup *group_of(const Comm *comm) {
    return (NcclGroup *)comm->state;
}

static void nccl_check(const Comm *comm, ncclResult_t result, const char *what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    world_abort(comm->world, status_runtime("%s of group %s failed: %s", what, comm->name, ncclGetErrorString(result)));
}

static void cuda_check(World *world, cudaError_t error, const char *what) {
    if (error != cudaSuccess)
        world_abort(world, status_runtime("%s of NCCL's stream failed: %s", what, cudaGetErrorString(error)));
}

// ---- operations -----------------------------------------------------------------------------------------------------

static ncclDataType_t nccl_type(DType dtype) {
    switch (dtype) {
    case DTYPE_F32: return ncclFloat;
    case DTYPE_BF16: return ncclBfloat16;
    case DTYPE_F16: return ncclHalf;
    default: assert(dtype == DTYPE_I32); return ncclInt32;
    }
}

static ncclResult_t run_all_to_all(const Comm *comm, const CommRequest *request, cudaStream_t stream) {
    size_t bytes = comm_request_bytes(request);
    ncclComm_t nccl = group_of(comm)->nccl;
    ncclGroupStart();
    for (int r = 0; r < comm->size; r++) {
        ncclSend((const char *)request->in + bytes * (size_t)r, bytes, ncclInt8, r, nccl, stream);
        ncclRecv((char *)request->out + bytes * (size_t)r, bytes, ncclInt8, r, nccl, stream);
    }
    return ncclGroupEnd();
}

static ncclResult_t run_between_two(const Comm *comm, const CommRequest *request, cudaStream_t stream) {
    size_t bytes = comm_request_bytes(request);
    ncclComm_t nccl = group_of(comm)->nccl;
    ncclGroupStart();
    if (request->op != COMM_OP_RECEIVE) ncclSend(request->in, bytes, ncclInt8, request->to, nccl, stream);
    if (request->op != COMM_OP_SEND) ncclRecv(request->out, bytes, ncclInt8, request->from, nccl, stream);
    return ncclGroupEnd();
}

// ---- lanes ----------------------------------------------------------------------------------------------------------

static void lane_create(World *world, NcclGroup *group) {
    int least, greatest;
    cuda_check(world, cudaDeviceGetStreamPriorityRange(&least, &greatest), "the creation");
    cuda_check(world, cudaStreamCreateWithPriority(&group->lane, cudaStreamNonBlocking, greatest), "the creation");
    cuda_check(world, cudaEventCreateWithFlags(&group->lane_fork, cudaEventDisableTiming), "the creation");
    for (int i = 0; i < LANE_SLOTS; i++)
        cuda_check(world, cudaEventCreateWithFlags(&group->lane_done[i], cudaEventDisableTiming), "the creation");
    group->lane_next = 1;
}

static void lane_release(NcclGroup *group) {
    cudaEventDestroy(group->lane_fork);
    for (int i = 0; i < LANE_SLOTS; i++)
        cudaEventDestroy(group->lane_done[i]);
    cudaStreamDestroy(group->lane);
}

static CommTicket lane_start(Comm *comm, const CommRequest *request) {
    World *world = comm->world;
    NcclGroup *group = group_of(comm);
    CudaState *cuda = cuda_state(comm->ops);
    assert(!cuda->capturing && comm_op_between_two(request->op));
    cuda_check(world, cudaEventRecord(group->lane_fork, cuda->stream), "the start");
    cuda_check(world, cudaStreamWaitEvent(group->lane, group->lane_fork, 0), "the start");
    nccl_check(comm, run_between_two(comm, request, group->lane), comm_op_name(request->op));
    CommTicket ticket = group->lane_next++;
    cuda_check(world, cudaEventRecord(group->lane_done[ticket % LANE_SLOTS], group->lane), "the end");
    if (request->op == COMM_OP_SEND)
        atomic_fetch_add(&world->state->sent_bytes, (int_fast64_t)comm_request_bytes(request));
    return ticket;
}

static void lane_wait(Comm *comm, CommTicket ticket) {
    NcclGroup *group = group_of(comm);
    assert(group->lane_next - ticket <= LANE_SLOTS);
    cuda_check(comm->world,
               cudaStreamWaitEvent(cuda_state(comm->ops)->stream, group->lane_done[ticket % LANE_SLOTS], 0),
               "the wait");
}

// ---- the queue ------------------------------------------------------------------------------------------------------

static ncclResult_t run_request(const NcclQueue *queue, const Comm *comm, const CommRequest *request) {
    size_t count = (size_t)request->count, bytes = comm_request_bytes(request);
    ncclComm_t nccl = group_of(comm)->nccl;
    cudaStream_t stream = queue->stream;
    const void *in = request->in;
    void *out = request->out;
    switch (request->op) {
    case COMM_OP_ALL_REDUCE: return ncclAllReduce(in, out, count, nccl_type(request->dtype), ncclSum, nccl, stream);
    case COMM_OP_ALL_REDUCE_MAX: return ncclAllReduce(in, out, count, nccl_type(request->dtype), ncclMax, nccl, stream);
    case COMM_OP_REDUCE_SCATTER:
        return ncclReduceScatter(in, out, count, nccl_type(request->dtype), ncclSum, nccl, stream);
    case COMM_OP_ALL_GATHER: return ncclAllGather(in, out, bytes, ncclInt8, nccl, stream);
    case COMM_OP_ALL_TO_ALL: return run_all_to_all(comm, request, stream);
    case COMM_OP_BROADCAST: return ncclBroadcast(in, out, bytes, ncclInt8, request->from, nccl, stream);
    case COMM_OP_SEND:
    case COMM_OP_RECEIVE:
    case COMM_OP_EXCHANGE: return run_between_two(comm, request, stream);
    case COMM_OP_BARRIER: return ncclAllReduce(queue->token, queue->token, 1, ncclFloat, ncclSum, nccl, stream);
    case COMM_OP_CALL: break;
    }
    return ncclInvalidArgument;
}

// Bytes that a ring sends from this rank.
static int64_t sent_by(const Comm *comm, const CommRequest *request) {
    int64_t bytes = (int64_t)comm_request_bytes(request), others = comm->size - 1;
    switch (request->op) {
    case COMM_OP_ALL_REDUCE:
    case COMM_OP_ALL_REDUCE_MAX: return 2 * bytes * others / comm->size;
    case COMM_OP_REDUCE_SCATTER:
    case COMM_OP_ALL_GATHER:
    case COMM_OP_ALL_TO_ALL: return bytes * others;
    case COMM_OP_RECEIVE:
    case COMM_OP_BARRIER: return 0;
    default: return bytes;
    }
}

// The slot of the next ticket. The watching thread knows of the operation from here on: NCCL may wait for other ranks
// already while it enqueues.
static NcclSlot *slot_take(NcclQueue *queue, Comm *comm, const CommRequest *request) {
    pthread_mutex_lock(&queue->lock);
    NcclSlot *slot = &queue->slots[queue->next % NCCL_SLOTS];
    slot->ticket = queue->next++;
    slot->captured = cuda_state(comm->ops)->capturing;
    slot->enqueued = false;
    slot->op = request->op;
    slot->comm = comm;
    slot->bytes = (int64_t)comm_request_bytes(request);
    slot->started = clock_seconds();
    slot->sequence = comm_op_between_two(request->op) ? 0 : ++group_of(comm)->collectives;
    pthread_mutex_unlock(&queue->lock);
    return slot;
}

static CommTicket nccl_start(Comm *comm, const CommRequest *request) {
    World *world = comm->world;
    NcclQueue *queue = world->state->nccl;
    cudaStream_t ops_stream = cuda_state(comm->ops)->stream;
    assert(comm->ops == queue->ops); // a rank has one device
    NcclSlot *slot = slot_take(queue, comm, request);
    cuda_check(world, cudaEventRecord(slot->fork, ops_stream), "the start");
    cuda_check(world, cudaStreamWaitEvent(queue->stream, slot->fork, 0), "the start");
    if (!slot->captured) cuda_check(world, cudaEventRecord(slot->begun, queue->stream), "the start");
    nccl_check(comm, run_request(queue, comm, request), comm_op_name(request->op));
    cuda_check(world, cudaEventRecord(slot->done, queue->stream), "the end");
    pthread_mutex_lock(&queue->lock);
    slot->enqueued = true;
    pthread_mutex_unlock(&queue->lock);
    atomic_fetch_add(&world->state->sent_bytes, (int_fast64_t)sent_by(comm, request));
    return slot->ticket;
}

static void ops_wait_for(NcclQueue *queue, CommTicket ticket) {
    CudaState *cuda = cuda_state(queue->ops);
    if (queue->next - ticket >= NCCL_SLOTS) ticket = queue->next - 1; // its events are gone; this one comes later
    const NcclSlot *slot = &queue->slots[ticket % NCCL_SLOTS];
    // An operation and the wait for it belong into the same graph, or both outside.
    assert(slot->captured == cuda->capturing);
    cudaEvent_t *around = queue->recorded && !cuda->capturing && queue->wait_count < NCCL_SLOTS
                              ? queue->waits[queue->wait_count++]
                              : NULL;
    if (around) cuda_check(queue->world, cudaEventRecord(around[0], cuda->stream), "a mark");
    cuda_check(queue->world, cudaStreamWaitEvent(cuda->stream, slot->done, 0), "the wait");
    if (around) cuda_check(queue->world, cudaEventRecord(around[1], cuda->stream), "a mark");
    if (ticket > queue->waited) queue->waited = ticket;
}

static void nccl_wait(Comm *comm, CommTicket ticket) {
    ops_wait_for(comm->world->state->nccl, ticket);
}

void comm_nccl_wait_all(WorldState *state) {
    NcclQueue *queue = state->nccl;
    if (queue && queue->next - 1 > queue->waited) ops_wait_for(queue, queue->next - 1);
}

// ---- the watchdog's part: NCCL works on the device, so somebody must ask whether it has ended ---------------------

static bool slot_ended(const NcclSlot *slot) {
    return slot->enqueued && (slot->captured || cudaEventQuery(slot->done) != cudaErrorNotReady);
}

// Tells the watchdog of the oldest operation that runs.
static void watch_oldest(NcclQueue *queue, CommTicket *shown) {
    Watch *watch = queue->world->state->watch;
    pthread_mutex_lock(&queue->lock);
    if (queue->next > NCCL_SLOTS && queue->watched < queue->next - NCCL_SLOTS)
        queue->watched = queue->next - NCCL_SLOTS;
    while (queue->watched < queue->next && slot_ended(&queue->slots[queue->watched % NCCL_SLOTS]))
        queue->watched++;
    if (*shown && *shown != queue->watched) {
        watch_end(watch, WATCH_DEVICE);
        *shown = 0;
    }
    if (!*shown && queue->watched < queue->next) {
        const NcclSlot *slot = &queue->slots[queue->watched % NCCL_SLOTS];
        watch_begin(watch, WATCH_DEVICE, comm_op_name(slot->op), slot->comm->name, slot->sequence, -1,
                    slot->comm->ranks, slot->comm->size);
        *shown = queue->watched;
    }
    const Comm *comm = *shown ? queue->slots[*shown % NCCL_SLOTS].comm : NULL;
    ncclResult_t result = ncclSuccess;
    if (comm) ncclCommGetAsyncError(group_of(comm)->nccl, &result);
    pthread_mutex_unlock(&queue->lock);
    if (comm) nccl_check(comm, result, "an operation");
}

static void *watch_main(void *argument) {
    NcclQueue *queue = argument;
    double period = queue->world->state->options.watch_seconds / 40;
    useconds_t pause = period < 0.1 ? (useconds_t)(period * 1e6) : 100000;
    // Questions about events must not spoil a graph that another thread is recording.
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaSetDevice(queue->device);
    CommTicket shown = 0;
    for (bool stop = false; !stop;) {
        watch_oldest(queue, &shown);
        usleep(pause);
        pthread_mutex_lock(&queue->lock);
        stop = queue->stop;
        pthread_mutex_unlock(&queue->lock);
    }
    if (shown) watch_end(queue->world->state->watch, WATCH_DEVICE);
    return NULL;
}

// ---- events ---------------------------------------------------------------------------------------------------------

void comm_nccl_record_events(WorldState *state, bool record) {
    NcclQueue *queue = state->nccl;
    if (!queue) return;
    queue->recorded = record ? queue->next : 0;
    queue->wait_count = 0;
    if (!record) return;
    for (int i = 0; i < 2 * NCCL_SLOTS && !queue->waits[NCCL_SLOTS - 1][1]; i++)
        cuda_check(queue->world, cudaEventCreate(&queue->waits[i / 2][i % 2]), "the creation");
    cuda_check(queue->world, cudaEventRecord(queue->base, queue->stream), "a mark");
    cuda_check(queue->world, cudaEventSynchronize(queue->base), "a mark");
    queue->base_seconds = clock_seconds();
}

static double event_seconds(const NcclQueue *queue, cudaEvent_t event) {
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, queue->base, event);
    return queue->base_seconds + 1e-3 * (double)milliseconds;
}

int comm_nccl_take_events(WorldState *state, CommEvent *events, int capacity) {
    NcclQueue *queue = state->nccl;
    if (!queue || !queue->recorded) return 0;
    CommTicket first = queue->recorded;
    if (queue->next - first > (CommTicket)capacity) first = queue->next - (CommTicket)capacity;
    if (queue->next - first > NCCL_SLOTS) first = queue->next - NCCL_SLOTS;
    int count = 0;
    for (; first < queue->next; first++) {
        const NcclSlot *slot = &queue->slots[first % NCCL_SLOTS];
        if (slot->captured || !slot->comm) continue; // a graph's own events have no times; the group is gone
        if (cudaEventQuery(slot->done) != cudaSuccess) break;
        events[count++] = (CommEvent){.op = comm_op_name(slot->op),
                                      .group = slot->comm->name,
                                      .bytes = slot->bytes,
                                      .started = slot->started,
                                      .begun = event_seconds(queue, slot->begun),
                                      .ended = event_seconds(queue, slot->done)};
    }
    queue->recorded = first;
    return count;
}

double comm_nccl_exposed_seconds(WorldState *state) {
    const NcclQueue *queue = state->nccl;
    double seconds = 0;
    for (int i = 0; queue && i < queue->wait_count; i++) {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, queue->waits[i][0], queue->waits[i][1]);
        seconds += 1e-3 * (double)milliseconds;
    }
    return seconds;
}

// ---- start and end --------------------------------------------------------------------------------------------------

static Status queue_open(NcclQueue **out, Comm *comm) {
    NcclQueue *queue = xcalloc(1, sizeof *queue);
    CudaState *cuda = cuda_state(comm->ops);
    *queue = (NcclQueue){.world = comm->world, .ops = comm->ops, .device = cuda->device, .next = 1, .watched = 1};
    World *world = comm->world;
    int least, greatest; // what is on the way is what others wait for
    cuda_check(world, cudaDeviceGetStreamPriorityRange(&least, &greatest), "the creation");
    cuda_check(world, cudaStreamCreateWithPriority(&queue->stream, cudaStreamNonBlocking, greatest), "the creation");
    cuda_check(world, cudaEventCreate(&queue->base), "the creation");
    for (int i = 0; i < NCCL_SLOTS; i++) {
        cuda_check(world, cudaEventCreateWithFlags(&queue->slots[i].fork, cudaEventDisableTiming), "the creation");
        cuda_check(world, cudaEventCreate(&queue->slots[i].begun), "the creation");
        cuda_check(world, cudaEventCreate(&queue->slots[i].done), "the creation");
    }
    cuda_check(world, cudaMalloc((void **)&queue->token, sizeof *queue->token), "the creation");
    cuda_check(world, cudaMemset(queue->token, 0, sizeof *queue->token), "the creation");
    pthread_mutex_init(&queue->lock, NULL);
    int failed = thread_start(&queue->thread, watch_main, queue);
    if (failed) return status_runtime("no thread to watch NCCL: %s", strerror(failed));
    comm->world->state->nccl = queue;
    *out = queue;
    return NULL;
}

void comm_nccl_release(WorldState *state) {
    NcclQueue *queue = state->nccl;
    if (!queue) return;
    pthread_mutex_lock(&queue->lock);
    queue->stop = true;
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    cudaStreamSynchronize(queue->stream);
    for (int i = 0; i < NCCL_SLOTS; i++) {
        cudaEventDestroy(queue->slots[i].fork);
        cudaEventDestroy(queue->slots[i].begun);
        cudaEventDestroy(queue->slots[i].done);
        for (int k = 0; k < 2; k++)
            if (queue->waits[i][k]) cudaEventDestroy(queue->waits[i][k]);
    }
    cudaEventDestroy(queue->base);
    cudaFree(queue->token);
    cudaStreamDestroy(queue->stream);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
    state->nccl = NULL;
}

// ---- groups ---------------------------------------------------------------------------------------------------------

typedef struct RankGpu { // what the ranks of a group tell each other
    char host[64];
    char bus[32]; // the GPU's place on its host
    int version;  // of NCCL
} RankGpu;

static void host_all_gather(Comm *mpi, void *all, const void *mine, size_t bytes) {
    comm_wait(mpi, comm_all_gather(mpi, tensor_make(all, DTYPE_U8, mpi->size, (int64_t)bytes, "gpus"),
                                   tensor_make((void *)mine, DTYPE_U8, 1, (int64_t)bytes, "gpu")));
}

// Two ranks of the group on one GPU, which NCCL refuses unless it is told otherwise (from 2.30 on); false: none.
static bool share_a_gpu(Comm *mpi, int *first, int *second, bool *versions_differ) {
    RankGpu mine = {0}, *all = xcalloc((size_t)mpi->size, sizeof *all);
    snprintf(mine.host, sizeof mine.host, "%s", mpi->world->hosts[mpi->world->rank]);
    cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, cuda_state(mpi->ops)->device);
    ncclGetVersion(&mine.version);
    host_all_gather(mpi, all, &mine, sizeof mine);
    bool shared = false;
    *versions_differ = false;
    for (int a = 0; a < mpi->size; a++) {
        *versions_differ |= all[a].version != all[0].version;
        for (int b = a + 1; b < mpi->size && !shared; b++) {
            shared = strcmp(all[a].host, all[b].host) == 0 && strcmp(all[a].bus, all[b].bus) == 0;
            if (shared) *first = mpi->ranks[a], *second = mpi->ranks[b];
        }
    }
    free(all);
    return shared;
}

static void nccl_destroy(Comm *comm) {
    NcclGroup *group = group_of(comm);
    NcclQueue *queue = comm->world->state->nccl;
    Comm *mpi = &group->mpi;
    cuda_check(comm->world, cudaStreamSynchronize(group->lane ? group->lane : queue->stream), "the end");
    pthread_mutex_lock(&queue->lock);
    if (!group->lane) queue->watched = queue->next; // all have ended
    for (int i = 0; i < NCCL_SLOTS; i++)
        if (queue->slots[i].comm == comm) queue->slots[i].comm = NULL;
    pthread_mutex_unlock(&queue->lock);
    comm_wait(mpi, comm_barrier(mpi)); // nobody needs the group any more
    ncclCommAbort(group->nccl);        // ncclCommDestroy does not return where ranks share a GPU
    comm_mpi_close(mpi);
    if (group->lane) lane_release(group);
    free(group);
    comm->state = NULL;
}

static const CommTable nccl_table = {nccl_start, nccl_wait, nccl_destroy};
static const CommTable lane_table = {lane_start, lane_wait, nccl_destroy};

static Status connect_ranks(Comm *mpi, ncclComm_t *nccl) {
    ncclUniqueId id = {0};
    if (mpi->rank == 0) nccl_check(mpi, ncclGetUniqueId(&id), "creation");
    comm_wait(mpi, comm_broadcast(mpi, tensor_make(&id, DTYPE_U8, 1, sizeof id, "NCCL id"), 0));
    Watch *watch = mpi->world->state->watch;
    watch_begin(watch, WATCH_CALLER, "NCCL's creation", mpi->name, 1, -1, mpi->ranks, mpi->size);
    ncclResult_t result = ncclCommInitRank(nccl, mpi->size, id, mpi->rank);
    watch_end(watch, WATCH_CALLER);
    if (result == ncclSuccess) return NULL;
    return status_hint(status_runtime("NCCL cannot connect the ranks: %s", ncclGetErrorString(result)),
                       "NCCL_DEBUG=INFO says more");
}

Status comm_nccl_open(Comm *comm, CommBackend wanted, bool *opened) {
    *opened = false;
    int first = -1, second = -1;
    bool versions_differ, shared = share_a_gpu(comm, &first, &second, &versions_differ);
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (shared && !(allowed && strcmp(allowed, "1") == 0)) {
        if (wanted == COMM_AUTO) return NULL;
        return status_hint(
            status_usage("ranks %d and %d share a GPU, which NCCL does not allow", first, second),
            "give each rank its own, take mpi, or set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 and newer)");
    }
    if (versions_differ) return status_usage("the ranks of group %s have different versions of NCCL", comm->name);
    NcclQueue *queue = comm->world->state->nccl;
    if (!queue) TRY(queue_open(&queue, comm));
    NcclGroup *group = xcalloc(1, sizeof *group);
    group->mpi = *comm; // so far it is a group over MPI
    Status status = connect_ranks(&group->mpi, &group->nccl);
    if (status) {
        free(group);
        return status;
    }
    comm->state = (CommState *)group;
    if (comm->lane) lane_create(comm->world, group);
    comm->table = comm->lane ? &lane_table : &nccl_table;
    comm->backend = "nccl";
    comm->in_graph = !comm->lane;
    *opened = true;
    return NULL;
}

#else

Status comm_nccl_open(Comm *comm, CommBackend wanted, bool *opened) {
    (void)comm;
    *opened = false;
    if (wanted == COMM_NCCL)
        return status_hint(status_usage("this hearth is built without NCCL"), "install libnccl-dev and build again");
    return NULL;
}

void comm_nccl_wait_all(WorldState *state) {
    (void)state;
}

void comm_nccl_release(WorldState *state) {
    (void)state;
}

void comm_nccl_record_events(WorldState *state, bool record) {
    (void)state, (void)record;
}

int comm_nccl_take_events(WorldState *state, CommEvent *events, int capacity) {
    (void)state, (void)events, (void)capacity;
    return 0;
}

double comm_nccl_exposed_seconds(WorldState *state) {
    (void)state;
    return 0;
}
#endif
