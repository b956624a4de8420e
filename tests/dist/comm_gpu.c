// Collectives on GPU memory, by hand: mpirun -n N build/tests/comm_gpu [auto|mpi|nccl]. With NCCL also recorded in a
// graph and replayed. Several ranks on one GPU need NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1, or mpi.
#include "base/text.h"
#include "dist/comm.h"
#include "dist/device.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 100003 }; // elements of a piece, odd

static World *world;
static Ops *ops;
static Comm *all;
static int failures;

// Small whole numbers: their sums are exact whatever the order.
static float value_of(int rank, int64_t i) {
    return (float)(i % 61 + 7 * rank);
}

typedef float Expected(int64_t i);

static float sum_of_ranks(int64_t i) {
    float sum = 0;
    for (int r = 0; r < world->size; r++)
        sum += value_of(r, i);
    return sum;
}

static float sum_of_own_piece(int64_t i) {
    return sum_of_ranks((int64_t)world->rank * PIECE + i);
}

static float piece_of_each(int64_t i) {
    return value_of((int)(i / PIECE), i % PIECE);
}

static float own_piece_of_each(int64_t i) {
    return value_of((int)(i / PIECE), (int64_t)world->rank * PIECE + i % PIECE);
}

static float largest(int64_t i) {
    return value_of(world->size - 1, i);
}

static float of_last(int64_t i) {
    return value_of(world->size - 1, i);
}

static float of_rank_before(int64_t i) {
    return value_of((world->rank + world->size - 1) % world->size, i);
}

static void fill(Tensor out) {
    float *host = xmalloc((size_t)tensor_count(out) * sizeof *host);
    for (int64_t i = 0; i < tensor_count(out); i++)
        host[i] = value_of(world->rank, i);
    ops->upload(ops, out.data, host, (size_t)tensor_count(out) * sizeof *host);
    free(host);
}

static void check(const char *what, Tensor found, Expected *expected) {
    float *host = xmalloc((size_t)tensor_count(found) * sizeof *host);
    int64_t wrong = 0;
    ops->download(ops, host, found.data, (size_t)tensor_count(found) * sizeof *host);
    for (int64_t i = 0; i < tensor_count(found); i++)
        wrong += host[i] != expected(i);
    if (wrong) fprintf(stderr, "rank %d: %s: %lld elements are wrong\n", world->rank, what, (long long)wrong);
    failures += wrong > 0;
    free(host);
}

static Tensor device_floats(int64_t count) {
    void *memory;
    Status status = ops->alloc(ops, &memory, (size_t)count * sizeof(float), "test");
    if (status) world_abort(world, status);
    return tensor_make(memory, DTYPE_F32, 1, count, "test");
}

static void check_operations(Tensor in, Tensor out) {
    Tensor in_piece = tensor_cols(in, 0, PIECE), out_piece = tensor_cols(out, 0, PIECE);
    int next = (all->rank + 1) % all->size, before = (all->rank + all->size - 1) % all->size;
    fill(in);
    comm_wait(all, comm_all_reduce(all, in));
    check("all_reduce", in, sum_of_ranks);
    fill(in);
    comm_wait(all, comm_all_reduce_max(all, in));
    check("all_reduce_max", in, largest);
    fill(in);
    comm_wait(all, comm_reduce_scatter(all, out_piece, in));
    check("reduce_scatter", out_piece, sum_of_own_piece);
    comm_wait(all, comm_all_gather(all, out, in_piece));
    check("all_gather", out, piece_of_each);
    comm_wait(all, comm_all_to_all(all, out, in));
    check("all_to_all", out, own_piece_of_each);
    comm_wait(all, comm_broadcast(all, in, all->size - 1));
    check("broadcast", in, of_last);
    fill(in);
    comm_wait(all, comm_exchange(all, out, before, in, next));
    check("exchange", out, of_rank_before);
    if (all->rank == 0) comm_wait(all, comm_send(all, in, 1));
    if (all->rank == 1) {
        comm_wait(all, comm_receive(all, out, 0));
        check("receive", out, of_rank_before);
    }
    comm_wait(all, comm_barrier(all));
}

// in = what it was before each replay: the graph copies it from `kept`.
static void check_graph(Tensor kept, Tensor in, Tensor out) {
    Tensor out_piece = tensor_cols(out, 0, PIECE);
    void *graph = NULL;
    size_t bytes = (size_t)tensor_count(kept) * sizeof(float);
    fill(kept);
    Status status = ops->sync(ops);
    if (!status) {
        ops->graph_begin(ops);
        ops->copy(ops, in.data, kept.data, bytes);
        CommTicket ticket = comm_reduce_scatter(all, out_piece, in);
        ops->zero(ops, tensor_cols(out, PIECE, tensor_count(out) - PIECE)); // beside it
        comm_wait(all, ticket);
        comm_all_gather(all, in, out_piece);
        comm_wait_all(world);
        status = ops->graph_end(ops, &graph);
    }
    for (int i = 0; i < 3 && !status && graph; i++) {
        world_enter(world, "graph");
        ops->graph_launch(ops, graph);
        status = ops->sync(ops);
        world_leave(world);
        check("reduce_scatter and all_gather in a graph", in, sum_of_ranks);
        ops->zero(ops, in);
    }
    if (status) world_abort(world, status);
    if (graph) ops->graph_free(ops, graph);
}

int main(int argc, char **argv) {
    const char *backend = argc > 1 ? argv[1] : "auto";
    WorldOptions options = {.watch_seconds = 60};
    options.backend = strcmp(backend, "nccl") == 0 ? COMM_NCCL : strcmp(backend, "mpi") == 0 ? COMM_MPI : COMM_AUTO;
    Status status = world_open(&world, &options);
    if (status) {
        status_print(status, stderr);
        return 1;
    }
    status = device_open(&ops, world, "cuda");
    if (!status) status = comm_create_world(&all, world, ops, "all");
    if (status) world_abort(world, status);
    comm_record_events(world, 64);
    Tensor kept = device_floats((int64_t)PIECE * world->size), in = device_floats((int64_t)PIECE * world->size);
    Tensor out = device_floats((int64_t)PIECE * world->size);
    if (world->size > 1) check_operations(in, out);
    CommEvent *events;
    int count = comm_take_events(world, &events);
    for (int i = 0; i < count; i++)
        failures += events[i].begun > events[i].ended || (i && events[i].begun < events[i - 1].ended - 1e-4);
    free(events);
    if (all->in_graph && world->size > 1) check_graph(kept, in, out);
    double mine = failures, total[1024], sum = 0;
    world_gather_doubles(world, &mine, 1, total);
    for (int r = 0; r < world->size; r++)
        sum += total[r];
    if (world->rank == 0)
        printf("%d ranks over %s%s: %s\n", world->size, all->backend, all->in_graph ? ", graph included" : "",
               sum ? "WRONG" : "all right");
    ops->free(ops, kept.data, (size_t)tensor_count(kept) * sizeof(float));
    ops->free(ops, in.data, (size_t)tensor_count(in) * sizeof(float));
    ops->free(ops, out.data, (size_t)tensor_count(out) * sizeof(float));
    comm_destroy(all);
    ops_destroy(ops);
    world_close(world);
    return sum > 0;
}
