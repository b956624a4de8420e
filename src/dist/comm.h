// Communication between the ranks of a group: collectives on tensors, ordered like a stream.
//
//  - An operation is started and returns a ticket at once. The operations of one world run one after the other in the
//    order in which they were started, whatever their group, beside the computation; all ranks must start those of a
//    group in the same order. comm_wait makes a result visible to the ops called after it; until then nobody may touch
//    the operation's tensors (its inputs may be read). In a graph (in_graph), an operation and the wait for it are
//    recorded in the same graph; comm_wait_all before its end.
//  - Inputs are what ops called before have written. On the GPU nothing waits for the host (NCCL).
//  - Tensors are contiguous and lie in the memory of the group's ops table. float, bf16 and int32 can be summed; what
//  is
//    only moved may have any type. All ranks of a group give the same shapes and types.
//  - Sums over MPI are taken in the order of the group's ranks, bf16 in float and rounded once: the same bits on every
//    rank and in every run, equal to a serial sum. NCCL adds in its own order and rounds bf16 on the way: the same bits
//    on every rank, and run after run on the same machine with the same NCCL_ALGO and NCCL_PROTO.
//  - A group of one rank sends nothing: sums leave their tensor alone, gathers copy.
//  - A failure of the communication is the end of the job (world_abort), so these functions return no status.
#pragma once

#include "dist/world.h"
#include "ops/ops.h"

typedef struct CommState CommState;
typedef struct CommTable CommTable;
typedef uint64_t CommTicket; // 0: done

typedef struct Comm {
    World *world;
    Ops *ops;
    const char *name;       // "dp": for messages
    int size, rank;         // of the group
    const int *ranks;       // [size]: in the world
    const char *backend;    // "self", "mpi" or "nccl"
    bool in_graph;          // its operations may be recorded in a graph of ops
    bool lane;              // comm_create_lane
    const CommTable *table; // the backend's functions
    CommState *state;       // and its own data
} Comm;

// Collective over the listed ranks, in their order; this rank is one of them. The world must outlive the group.
Status comm_create(Comm **comm, World *world, Ops *ops, const char *name, const int *ranks, int count);
Status comm_create_world(Comm **comm, World *world, Ops *ops, const char *name); // of all ranks
// A lane from one rank to another: of these two, the first only sends (comm_send to 1), the second only receives
// (comm_receive from 0). Over NCCL it has a stream of its own, so that a message which nobody takes yet is in nobody's
// way; its operations stay outside of graphs.
Status comm_create_lane(Comm **comm, World *world, Ops *ops, const char *name, int from, int to);
void comm_destroy(Comm *comm); // waits for what was started; NULL is allowed

// inout = sum over the ranks.
CommTicket comm_all_reduce(Comm *comm, Tensor inout);
// inout = the largest of the ranks' values (float or int32); over MPI, NaN where one is NaN (NCCL promises nothing
// then).
CommTicket comm_all_reduce_max(Comm *comm, Tensor inout);
// in: `size` equal pieces; out = sum over the ranks of piece `rank`. out may be that piece of in.
CommTicket comm_reduce_scatter(Comm *comm, Tensor out, Tensor in);
// out: `size` equal pieces; piece r = in of rank r. in may be the own piece of out.
CommTicket comm_all_gather(Comm *comm, Tensor out, Tensor in);
// in and out: `size` equal pieces; piece r of out = piece `rank` of rank r's in. They must not overlap.
CommTicket comm_all_to_all(Comm *comm, Tensor out, Tensor in);
CommTicket comm_broadcast(Comm *comm, Tensor inout, int root);
// Between two ranks of the group (not with itself). Over MPI a send lets the operations after it go on; over NCCL both
// sides wait for each other, so two ranks that send to each other use comm_exchange.
CommTicket comm_send(Comm *comm, Tensor in, int to);
CommTicket comm_receive(Comm *comm, Tensor out, int from);
CommTicket comm_exchange(Comm *comm, Tensor out, int from, Tensor in, int to); // both at once
CommTicket comm_barrier(Comm *comm);

void comm_wait(Comm *comm, CommTicket ticket);
void comm_wait_all(World *world);

// ---- figures
// ----------------------------------------------------------------------------------------------------------

// Seconds that the caller was blocked in comm_wait and in the world's blocking collectives, and bytes that this rank
// sent, since the world was opened. (Waits of a GPU's stream for NCCL are in the stream's own times.)
double comm_waited_seconds(const World *world);
int64_t comm_sent_bytes(const World *world);
// Host memory that the backend holds for messages: at most COMM_STAGING_MAX for a world, whatever the messages.
size_t comm_staging_bytes(const World *world);
enum { COMM_STAGING_MAX = 64 << 20 };

// One operation that was carried out: seconds of clock_seconds(). For NCCL the times are those of the GPU, on the same
// clock to within the time that reading it takes.
typedef struct CommEvent {
    const char *op, *group;
    int64_t bytes;                // of this rank's message
    double started, begun, ended; // by the caller; taken up; done
} CommEvent;

// Seconds for which the computation has stood still for them since comm_record_events: the caller in comm_wait, or the
// GPU's stream, whose work must be done by now. What ran behind the computation is not in it.
double comm_exposed_seconds(World *world);

// Keeps the last `capacity` operations from now on (0: none, the default); of NCCL at most 512, and none of a graph's.
// The names of events live as long as their groups.
void comm_record_events(World *world, int capacity);
// Copies the kept ones that have ended, oldest first, into a malloc'd array and forgets them.
int comm_take_events(World *world, CommEvent **events);
