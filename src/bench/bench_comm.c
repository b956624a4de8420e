#include "bench/bench_comm.h"

#include "base/clock.h"
#include "base/stats.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, ITERATIONS_MAX = 2000 };

typedef enum BenchOp {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_ALL_TO_ALL,
    BENCH_BROADCAST,
    BENCH_PING_PONG, // there and back between ranks 0 and 1; the time is half of it
    BENCH_OPS,
} BenchOp;
static const char *const op_names[] = {"all_reduce", "reduce_scatter", "all_gather",
                                       "all_to_all", "broadcast",      "send_receive"};

typedef struct Case {
    Comm *comm;
    BenchOp op;
    int64_t count; // floats of the whole message, a multiple of the ranks
    void *in, *out;
} Case;

static Tensor floats(void *data, int64_t count) {
    return tensor_make(data, DTYPE_F32, 1, count, "bench");
}

static double bus_factor(BenchOp op, int ranks) {
    double share = (ranks - 1.0) / ranks;
    if (op == BENCH_ALL_REDUCE) return 2 * share;
    return op == BENCH_BROADCAST || op == BENCH_PING_PONG ? 1 : share;
}

static void start_once(const Case *c) {
    Comm *comm = c->comm;
    Tensor in = floats(c->in, c->count), out = floats(c->out, c->count);
    Tensor one_in = floats(c->in, c->count / comm->size), one_out = floats(c->out, c->count / comm->size);
    switch (c->op) {
    case BENCH_ALL_REDUCE: comm_all_reduce(comm, in); break;
    case BENCH_REDUCE_SCATTER: comm_reduce_scatter(comm, one_out, in); break;
    case BENCH_ALL_GATHER: comm_all_gather(comm, out, one_in); break;
    case BENCH_ALL_TO_ALL: comm_all_to_all(comm, out, in); break;
    case BENCH_BROADCAST: comm_broadcast(comm, in, 0); break;
    default:
        if (comm->rank == 0) comm_send(comm, in, 1);
        if (comm->rank < 2) comm_receive(comm, out, 1 - comm->rank);
        if (comm->rank == 1) comm_send(comm, in, 0);
    }
}

static Status run_times(const Case *c, int times, double *seconds) {
    Ops *ops = c->comm->ops;
    world_barrier(c->comm->world);
    double start = clock_seconds();
    for (int i = 0; i < times; i++)
        start_once(c);
    comm_wait_all(c->comm->world);
    TRY(ops->sync(ops));
    *seconds = (clock_seconds() - start) / times / (c->op == BENCH_PING_PONG ? 2 : 1);
    return NULL;
}

// ---- are the results right? -----------------------------------------------------------------------------------------

// Small whole numbers: their sums are exact whatever the order.
static float value_of(int rank, int64_t i) {
    return (float)(i % 61 + 7 * rank);
}

// Element i of this rank's result.
static float expected_of(const Case *c, int64_t i) {
    int ranks = c->comm->size, rank = c->comm->rank;
    int64_t piece = c->count / ranks;
    float sum = 0;
    switch (c->op) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE_SCATTER:
        for (int r = 0; r < ranks; r++)
            sum += value_of(r, c->op == BENCH_ALL_REDUCE ? i : rank * piece + i);
        return sum;
    case BENCH_ALL_GATHER: return value_of((int)(i / piece), i % piece);
    case BENCH_ALL_TO_ALL: return value_of((int)(i / piece), rank * piece + i % piece);
    case BENCH_BROADCAST: return value_of(0, i);
    default: return value_of(1 - rank, i);
    }
}

static Status count_wrong(const Case *c, int64_t *wrong) {
    Ops *ops = c->comm->ops;
    bool in_place = c->op == BENCH_ALL_REDUCE || c->op == BENCH_BROADCAST;
    int64_t results = c->op == BENCH_REDUCE_SCATTER ? c->count / c->comm->size : c->count;
    if (c->op == BENCH_PING_PONG && c->comm->rank > 1) results = 0;
    size_t bytes = (size_t)c->count * sizeof(float);
    float *host = xmalloc(bytes);
    double seconds;
    for (int64_t i = 0; i < c->count; i++)
        host[i] = value_of(c->comm->rank, i);
    ops->upload(ops, c->in, host, bytes);
    Status status = run_times(c, 1, &seconds);
    if (!status) ops->download(ops, host, in_place ? c->in : c->out, bytes);
    double mine = 0, *all = xcalloc((size_t)c->comm->world->size, sizeof *all);
    for (int64_t i = 0; !status && i < results; i++)
        mine += host[i] != expected_of(c, i);
    *wrong = 0;
    world_gather_doubles(c->comm->world, &mine, 1, all);
    for (int r = 0; r < c->comm->world->size; r++)
        *wrong += (int64_t)all[r];
    free(all);
    free(host);
    return status;
}

// ---- how long they take ---------------------------------------------------------------------------------------------

static double slowest_of_ranks(World *world, double mine) {
    double *all = xcalloc((size_t)world->size, sizeof *all), slowest = 0;
    world_gather_doubles(world, &mine, 1, all);
    for (int r = 0; r < world->size; r++)
        slowest = fmax(slowest, all[r]);
    free(all);
    return slowest;
}

static Status measure_case(const Case *c, double wanted, double *seconds) {
    double once, rounds[ROUNDS];
    TRY(run_times(c, 2, &once));
    once = slowest_of_ranks(c->comm->world, once); // so that all run the same number of times
    int times = (int)fmin(ITERATIONS_MAX, fmax(1, wanted / ROUNDS / once));
    for (int i = 0; i < ROUNDS; i++)
        TRY(run_times(c, times, &rounds[i]));
    bool idle = c->op == BENCH_PING_PONG && c->comm->rank > 1;
    *seconds = slowest_of_ranks(c->comm->world, idle ? 0 : double_median(rounds, ROUNDS));
    return NULL;
}

static Status measure_row(Case *c, const BenchComm *bench, int64_t bytes, BenchCommRow *row) {
    int64_t piece = bytes / (int64_t)sizeof(float) / c->comm->size;
    c->count = (piece ? piece : 1) * c->comm->size;
    *row = (BenchCommRow){.op = op_names[c->op], .bytes = c->count * (int64_t)sizeof(float)};
    TRY(count_wrong(c, &row->wrong));
    TRY(measure_case(c, bench->seconds, &row->seconds));
    row->algorithm = (double)row->bytes / row->seconds;
    row->bus = row->algorithm * bus_factor(c->op, c->comm->size);
    return NULL;
}

Status bench_comm(Comm *comm, const BenchComm *bench, BenchCommRow **rows, int *count) {
    Case c = {.comm = comm};
    int64_t most = comm->size * (int64_t)sizeof(float);
    for (int i = 0; i < bench->size_count; i++)
        if (bench->sizes[i] > most) most = bench->sizes[i];
    *count = 0;
    *rows = xcalloc((size_t)(BENCH_OPS * bench->size_count), sizeof **rows);
    Status status = comm->ops->alloc(comm->ops, &c.in, (size_t)most, "bench in");
    if (!status) status = comm->ops->alloc(comm->ops, &c.out, (size_t)most, "bench out");
    for (c.op = 0; !status && c.op < BENCH_OPS && comm->size > 1; c.op++)
        for (int i = 0; !status && i < bench->size_count; i++)
            status = measure_row(&c, bench, bench->sizes[i], &(*rows)[(*count)++]);
    if (c.in) comm->ops->free(comm->ops, c.in, (size_t)most);
    if (c.out) comm->ops->free(comm->ops, c.out, (size_t)most);
    return status;
}

BenchLink bench_comm_link(const BenchCommRow *rows, int count, int ranks) {
    BenchLink link = {0};
    const BenchCommRow *shortest = NULL, *longest = NULL;
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].op, op_names[BENCH_ALL_REDUCE]) != 0) continue;
        if (!shortest || rows[i].bytes < shortest->bytes) shortest = &rows[i];
        if (!longest || rows[i].bytes > longest->bytes) longest = &rows[i];
    }
    if (!shortest || ranks < 2) return link;
    link.bus = longest->bus;
    link.latency = shortest->seconds / (2 * (ranks - 1));
    return link;
}
