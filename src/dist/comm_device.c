// Device memory over MPI, through pinned host memory and the table's own copies. The caller waits: this is for ranks
// that share a GPU and for tests, not for speed. Long messages go in slices, so that the host memory is bounded.
#include "dist/internal.h"

#ifdef HEARTH_HAVE_MPI
#include "dist/queue.h"

#include <assert.h>
#include <stdlib.h>

#ifdef HEARTH_HAVE_CUDA
#include <cuda_runtime.h>
#endif

enum { PINNED_BYTES = 32 << 20 }; // half for what goes out, half for what comes in

static Status pinned_make(WorldState *state) {
    if (state->pinned) return NULL;
#ifdef HEARTH_HAVE_CUDA
    if (cudaHostAlloc((void **)&state->pinned, PINNED_BYTES, 0) != cudaSuccess)
        return status_runtime("no %d MiB of pinned host memory for messages", PINNED_BYTES >> 20);
#else
    state->pinned = xmalloc(PINNED_BYTES);
#endif
    atomic_fetch_add(&state->staging_bytes, PINNED_BYTES);
    return NULL;
}

static void sends_release(WorldState *state);

void comm_device_release(WorldState *state) {
    sends_release(state);
    free(state->device_sends);
#ifdef HEARTH_HAVE_CUDA
    cudaFreeHost(state->pinned);
#else
    free(state->pinned);
#endif
    state->pinned = NULL;
}

// ---- sends, which nobody waits for: each has its own copy -----------------------------------------------------------

struct DeviceSend {
    CommTicket ticket;
    void *data;
};

static void sends_release(WorldState *state) {
    int kept = 0;
    for (int i = 0; i < state->device_send_count; i++)
        if (queue_is_done(state->queue, state->device_sends[i].ticket))
            free(state->device_sends[i].data);
        else
            state->device_sends[kept++] = state->device_sends[i];
    state->device_send_count = kept;
}

static void start_send(Comm *comm, const CommRequest *request) {
    WorldState *state = comm->world->state;
    CommRequest host = *request;
    host.in = xmalloc(comm_request_bytes(request));
    comm->ops->download(comm->ops, (void *)host.in, request->in, comm_request_bytes(request));
    sends_release(state);
    state->device_sends =
        xrealloc(state->device_sends, (size_t)(state->device_send_count + 1) * sizeof *state->device_sends);
    state->device_sends[state->device_send_count++] = (DeviceSend){queue_add(state->queue, &host), (void *)host.in};
}

// ---- everything else ------------------------------------------------------------------------------------------------

// How many pieces of `count` elements an operation reads and writes on this rank.
static void pieces_of(const CommRequest *request, int *read, int *written) {
    int all = request->comm->size;
    bool root = request->comm->rank == request->from;
    switch (request->op) {
    case COMM_OP_REDUCE_SCATTER: *read = all, *written = 1; break;
    case COMM_OP_ALL_GATHER: *read = 1, *written = all; break;
    case COMM_OP_ALL_TO_ALL: *read = all, *written = all; break;
    case COMM_OP_BROADCAST: *read = root, *written = !root; break;
    case COMM_OP_RECEIVE: *read = 0, *written = 1; break;
    case COMM_OP_BARRIER: *read = 0, *written = 0; break;
    default: *read = 1, *written = 1;
    }
}

static CommTicket device_start(Comm *comm, const CommRequest *request) {
    WorldState *state = comm->world->state;
    Ops *ops = comm->ops;
    int read, written;
    if (request->op == COMM_OP_SEND) {
        start_send(comm, request);
        return 0;
    }
    pieces_of(request, &read, &written);
    size_t element = dtype_size(request->dtype), piece = comm_request_bytes(request);
    int most_pieces = read > written ? read : written;
    int64_t most = PINNED_BYTES / 2 / (int64_t)element / (most_pieces ? most_pieces : 1);
    char *out = state->pinned + PINNED_BYTES / 2;
    for (int64_t begin = 0; begin < request->count || begin == 0; begin += most) {
        CommRequest slice = *request;
        slice.count = request->count - begin < most ? request->count - begin : most;
        size_t bytes = (size_t)slice.count * element, at = (size_t)begin * element;
        bool in_place = request->out == request->in; // sums and broadcasts
        for (int i = 0; i < read && bytes; i++)
            ops->download(ops, (in_place ? out : state->pinned) + (size_t)i * bytes,
                          (const char *)request->in + (size_t)i * piece + at, bytes);
        slice.in = in_place ? out : state->pinned;
        slice.out = out;
        queue_wait(state->queue, queue_add(state->queue, &slice));
        for (int i = 0; i < written && bytes; i++)
            ops->upload(ops, (char *)request->out + (size_t)i * piece + at, out + (size_t)i * bytes, bytes);
    }
    return 0;
}

static void device_wait(Comm *comm, CommTicket ticket) {
    (void)comm, (void)ticket; // done when started
}

static const CommTable device_table = {device_start, device_wait, comm_mpi_close};

Status comm_device_open(Comm *comm) {
    TRY(pinned_make(comm->world->state));
    comm->table = &device_table;
    return NULL;
}
#endif
