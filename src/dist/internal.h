// What the files of this room share: a world of several ranks, and an operation on its way.
#pragma once

#include "dist/comm.h"
#include "dist/watch.h"

#include <pthread.h>
#include <stdatomic.h>

#ifdef HEARTH_HAVE_MPI
#include <mpi.h>
#endif

typedef enum CommOp {
    COMM_OP_ALL_REDUCE,
    COMM_OP_ALL_REDUCE_MAX,
    COMM_OP_REDUCE_SCATTER,
    COMM_OP_ALL_GATHER,
    COMM_OP_ALL_TO_ALL,
    COMM_OP_BROADCAST,
    COMM_OP_SEND,
    COMM_OP_RECEIVE,
    COMM_OP_EXCHANGE,
    COMM_OP_BARRIER,
    COMM_OP_CALL, // of a function, in the order of the operations
} CommOp;
const char *comm_op_name(CommOp op);
bool comm_op_between_two(CommOp op); // send, receive, exchange: other ranks of the group take no part

typedef struct CommRequest {
    CommOp op;
    Comm *comm;
    void *out;
    const void *in;
    int64_t count; // elements: of a piece where there are pieces, else of the whole
    DType dtype;
    int to, from; // ranks of the group; from: the root of a broadcast
    void (*call)(void *context);
    void *context;
    const char *what; // of a call
} CommRequest;

static inline size_t comm_request_bytes(const CommRequest *request) {
    return (size_t)request->count * dtype_size(request->dtype);
}

// A backend: self (comm.c), MPI on host memory (comm_mpi.c) and on device memory (comm_device.c), NCCL (comm_nccl.c).
struct CommTable {
    CommTicket (*start)(Comm *comm, const CommRequest *request);
    void (*wait)(Comm *comm, CommTicket ticket);
    void (*destroy)(Comm *comm);
};

typedef struct Queue Queue;           // dist/queue.h
typedef struct NcclQueue NcclQueue;   // comm_nccl.c
typedef struct DeviceSend DeviceSend; // comm_device.c
typedef struct MpiPending MpiPending; // comm_mpi.c: a send on its way

struct WorldState {
    World world;
    WorldOptions options; // with the defaults filled in
    WatchPeer *peers;     // [size]
    const char **hosts;   // [size], of the peers
    Watch *watch;
    Queue *queue;
    Comm *everyone;  // all ranks, on host memory: for the world's own collectives
    int64_t entered; // calls of world_enter
    atomic_int_fast64_t sent_bytes;
    atomic_size_t staging_bytes;

    char *staging; // of the queue's thread, for one operation at a time
    size_t staging_size;
    char *pinned;             // host memory that a device copies from and to, of the caller's thread (comm_device.c)
    DeviceSend *device_sends; // whose data is on its way
    int device_send_count;
    double waited_before; // seconds, when events were asked for
    NcclQueue *nccl;      // NULL until the first NCCL group
#ifdef HEARTH_HAVE_MPI
    MPI_Comm mpi;
    bool threads;        // MPI may be called from several threads at once
    MpiPending *pending; // oldest first
    int pending_count, pending_capacity;
    CommTicket pending_watched; // the one that the watchdog knows of; 0: none
#endif
};

// Starts, joins and ends the ranks over MPI (world_mpi.c).
Status world_mpi_open(World **world, const WorldOptions *options);
void world_mpi_close(World *world);

// A group over MPI on host memory (comm_mpi.c).
Status comm_mpi_open(Comm *comm);
void comm_mpi_close(Comm *comm);
bool comm_mpi_run(void *world_state, const CommRequest *request, CommTicket ticket); // on the queue's thread
void comm_mpi_poll(void *world_state);                                               // likewise
// Runs a function in the order of the operations, and waits for it.
void comm_mpi_call(Comm *comm, const char *what, void (*call)(void *context), void *context);

// Device memory through pinned host memory (comm_device.c): a group over MPI with another table.
Status comm_device_open(Comm *comm);
void comm_device_release(WorldState *state);

// NCCL where the build and all ranks of the group have it: *opened says whether (comm_nccl.c). The group is one over
// MPI already.
Status comm_nccl_open(Comm *comm, CommBackend wanted, bool *opened);
void comm_nccl_wait_all(WorldState *state);
void comm_nccl_release(WorldState *state);
void comm_nccl_record_events(WorldState *state, bool record);
int comm_nccl_take_events(WorldState *state, CommEvent *events, int capacity);
double comm_nccl_exposed_seconds(WorldState *state);
