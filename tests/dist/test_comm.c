// Every collective on the ranks this program is started with (one without a launcher; 2, 3 and 4 under mpirun), against
// what one process computes from the same inputs. All values of a rank follow from its number and a key, so every rank
// knows what the others have sent.
#include "base/clock.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "dist/comm.h"
#include "dist/sum.h"
#include "testing.h"

#include <unistd.h>

static World *world;
static Ops *ops;
static Comm *all; // of all ranks

static const DType dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I32};
static const int64_t usual_sizes[] = {1, 3, 1000, 40000, 1000003};
static const int64_t *sizes = usual_sizes;
static size_t size_count = sizeof usual_sizes / sizeof *usual_sizes, dtype_count = sizeof dtypes / sizeof *dtypes;

// Element i of what `rank` has under `key`: of both signs and of very different sizes, so that order and rounding show.
static void fill(void *data, DType dtype, int64_t count, int rank, uint64_t key) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = (key * 1000003u + (uint64_t)rank) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
        bits = (bits ^ (bits >> 31)) * 0x94d049bb133111ebu;
        bits ^= bits >> 29;
        float value = ((float)(bits >> 40) * 0x1p-23f - 1) * (float)(1 << (bits & 15));
        if (dtype == DTYPE_F32) ((float *)data)[i] = value;
        if (dtype == DTYPE_BF16) ((bf16 *)data)[i] = bf16_from_f32(value);
        if (dtype == DTYPE_I32) ((int32_t *)data)[i] = (int32_t)bits;
    }
}

static void *filled(DType dtype, int64_t count, int rank, uint64_t key) {
    void *data = xmalloc((size_t)count * dtype_size(dtype) + 1);
    fill(data, dtype, count, rank, key);
    return data;
}

static Tensor vector(void *data, DType dtype, int64_t count) {
    return tensor_make(data, dtype, 1, count, "test");
}

// The sum of the group's ranks, added here one after the other in plain loops.
static void *summed(const Comm *comm, DType dtype, int64_t count, uint64_t key) {
    void *sum = filled(dtype, count, comm->ranks[0], key);
    float *wide = xmalloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; dtype == DTYPE_BF16 && i < count; i++)
        wide[i] = bf16_to_f32(((bf16 *)sum)[i]);
    for (int r = 1; r < comm->size; r++) {
        void *next = filled(dtype, count, comm->ranks[r], key);
        for (int64_t i = 0; i < count; i++) {
            if (dtype == DTYPE_F32) ((float *)sum)[i] += ((float *)next)[i];
            if (dtype == DTYPE_BF16) wide[i] += bf16_to_f32(((bf16 *)next)[i]);
            if (dtype == DTYPE_I32) ((uint32_t *)sum)[i] += ((uint32_t *)next)[i];
        }
        free(next);
    }
    for (int64_t i = 0; dtype == DTYPE_BF16 && i < count; i++)
        ((bf16 *)sum)[i] = bf16_from_f32(wide[i]);
    free(wide);
    return sum;
}

#define FOR_EACH_CASE(dtype, count)                    \
    for (size_t d_ = 0; d_ < dtype_count; d_++)        \
        for (size_t s_ = 0; s_ < size_count; s_++)     \
            for (int once_ = 1; once_;)                \
                for (DType dtype = dtypes[d_]; once_;) \
                    for (int64_t count = sizes[s_]; once_; once_ = 0)

static void assert_bits(const void *found, const void *expected, DType dtype, int64_t count, const char *what) {
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < count; i++)
        if (memcmp((const char *)found + (size_t)i * size, (const char *)expected + (size_t)i * size, size))
            fail_msg("rank %d of %d: %s of %lld %s: element %lld is wrong", world->rank, world->size, what,
                     (long long)count, dtype_name(dtype), (long long)i);
}

static void check_all_reduce(Comm *comm, DType dtype, int64_t count, uint64_t key) {
    void *mine = filled(dtype, count, world->rank, key), *expected = summed(comm, dtype, count, key);
    comm_wait(comm, comm_all_reduce(comm, vector(mine, dtype, count)));
    assert_bits(mine, expected, dtype, count, "all_reduce");
    free(mine);
    free(expected);
}

static void all_reduce_is_the_sum_in_rank_order_bit_for_bit(void **state) {
    (void)state;
    FOR_EACH_CASE(dtype, count) check_all_reduce(all, dtype, count, 1);
}

static void all_reduce_max_is_the_largest(void **state) {
    (void)state;
    for (int64_t count = 1; count <= 100000; count += 99999) {
        float *mine = filled(DTYPE_F32, count, world->rank, 2);
        float *most = filled(DTYPE_F32, count, 0, 2);
        for (int r = 1; r < world->size; r++) {
            float *next = filled(DTYPE_F32, count, r, 2);
            for (int64_t i = 0; i < count; i++)
                most[i] = fmaxf(most[i], next[i]);
            free(next);
        }
        comm_wait(all, comm_all_reduce_max(all, vector(mine, DTYPE_F32, count)));
        assert_bits(mine, most, DTYPE_F32, count, "all_reduce_max");
        free(mine);
        free(most);
    }
}

static void reduce_scatter_gives_each_rank_the_sum_of_its_piece(void **state) {
    (void)state;
    FOR_EACH_CASE(dtype, count) {
        size_t bytes = (size_t)count * dtype_size(dtype);
        int64_t whole = count * all->size;
        char *in = filled(dtype, whole, world->rank, 3), *out = xmalloc(bytes),
             *expected = summed(all, dtype, whole, 3);
        comm_wait(all, comm_reduce_scatter(all, vector(out, dtype, count), vector(in, dtype, whole)));
        assert_bits(out, expected + bytes * (size_t)all->rank, dtype, count, "reduce_scatter");
        char *own = in + bytes * (size_t)all->rank; // in place
        comm_wait(all, comm_reduce_scatter(all, vector(own, dtype, count), vector(in, dtype, whole)));
        assert_bits(own, out, dtype, count, "reduce_scatter in place");
        free(in);
        free(out);
        free(expected);
    }
}

static void all_gather_puts_the_pieces_in_rank_order(void **state) {
    (void)state;
    FOR_EACH_CASE(dtype, count) {
        size_t bytes = (size_t)count * dtype_size(dtype);
        int64_t whole = count * all->size;
        char *in = filled(dtype, count, world->rank, 4), *out = xcalloc((size_t)all->size, bytes);
        char *place = xcalloc((size_t)all->size, bytes), *own = place + bytes * (size_t)all->rank;
        memcpy(own, in, bytes);
        CommTicket first = comm_all_gather(all, vector(out, dtype, whole), vector(in, dtype, count));
        CommTicket second = comm_all_gather(all, vector(place, dtype, whole), vector(own, dtype, count));
        comm_wait(all, first);
        comm_wait(all, second);
        for (int r = 0; r < all->size; r++) {
            void *theirs = filled(dtype, count, r, 4);
            assert_bits(out + bytes * (size_t)r, theirs, dtype, count, "all_gather");
            assert_bits(place + bytes * (size_t)r, theirs, dtype, count, "all_gather in place");
            free(theirs);
        }
        free(in);
        free(out);
        free(place);
    }
}

static void all_to_all_hands_piece_r_to_rank_r(void **state) {
    (void)state;
    FOR_EACH_CASE(dtype, count) {
        size_t bytes = (size_t)count * dtype_size(dtype);
        int64_t whole = count * all->size;
        char *in = filled(dtype, whole, world->rank, 5), *out = xcalloc((size_t)all->size, bytes);
        comm_wait(all, comm_all_to_all(all, vector(out, dtype, whole), vector(in, dtype, whole)));
        for (int r = 0; r < all->size; r++) {
            char *theirs = filled(dtype, whole, r, 5);
            assert_bits(out + bytes * (size_t)r, theirs + bytes * (size_t)all->rank, dtype, count, "all_to_all");
            free(theirs);
        }
        free(in);
        free(out);
    }
}

static void broadcast_comes_from_any_root(void **state) {
    (void)state;
    for (int root = 0; root < all->size; root++) {
        FOR_EACH_CASE(dtype, count) {
            void *mine = filled(dtype, count, world->rank, 6), *expected = filled(dtype, count, root, 6);
            comm_wait(all, comm_broadcast(all, vector(mine, dtype, count), root));
            assert_bits(mine, expected, dtype, count, "broadcast");
            free(mine);
            free(expected);
        }
    }
}

// Each rank first sends to the next and then receives from the one before: sends that waited for their receiver would
// hang here.
static void a_send_lets_what_follows_go_on(void **state) {
    (void)state;
    if (all->size == 1) return;
    int next = (all->rank + 1) % all->size, before = (all->rank + all->size - 1) % all->size;
    FOR_EACH_CASE(dtype, count) {
        void *mine = filled(dtype, count, world->rank, 7), *expected = filled(dtype, count, before, 7);
        void *got = xcalloc((size_t)count, dtype_size(dtype)), *swapped = xcalloc((size_t)count, dtype_size(dtype));
        CommTicket sent = comm_send(all, vector(mine, dtype, count), next);
        comm_wait(all, comm_receive(all, vector(got, dtype, count), before));
        comm_wait(all, sent);
        assert_bits(got, expected, dtype, count, "send and receive");
        comm_wait(all, comm_exchange(all, vector(swapped, dtype, count), before, vector(mine, dtype, count), next));
        assert_bits(swapped, expected, dtype, count, "exchange");
        free(mine);
        free(got);
        free(swapped);
        free(expected);
    }
}

// Rows and columns of a grid, and groups whose ranks are listed backwards: all at work at once.
static void groups_do_not_meet_each_other(void **state) {
    (void)state;
    int width = world->size % 2 ? 1 : 2, row[16], column[16], backwards[16], rows = world->size / width;
    for (int i = 0; i < width; i++)
        row[i] = world->rank / width * width + i;
    for (int i = 0; i < rows; i++)
        column[i] = world->rank % width + i * width;
    for (int i = 0; i < world->size; i++)
        backwards[i] = world->size - 1 - i;
    Comm *groups[3];
    assert_ok(comm_create(&groups[0], world, ops, "row", row, width));
    assert_ok(comm_create(&groups[1], world, ops, "column", column, rows));
    assert_ok(comm_create(&groups[2], world, ops, "backwards", backwards, world->size));
    enum { ROUNDS = 5, COUNT = 70001 };
    float *data[3][ROUNDS];
    CommTicket ticket[3][ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        for (int g = 0; g < 3; g++) {
            data[g][round] = filled(DTYPE_F32, COUNT, world->rank, 10 + (uint64_t)(10 * round + g));
            ticket[g][round] = comm_all_reduce(groups[g], vector(data[g][round], DTYPE_F32, COUNT));
        }
    for (int g = 2; g >= 0; g--)
        for (int round = 0; round < ROUNDS; round++) {
            float *expected = summed(groups[g], DTYPE_F32, COUNT, 10 + (uint64_t)(10 * round + g));
            comm_wait(groups[g], ticket[g][round]);
            assert_bits(data[g][round], expected, DTYPE_F32, COUNT, groups[g]->name);
            free(expected);
            free(data[g][round]);
        }
    for (int g = 0; g < 3; g++)
        comm_destroy(groups[g]);
}

// The second operation reads what the first writes, and nobody waits in between.
static void operations_run_in_the_order_of_their_start(void **state) {
    (void)state;
    enum { COUNT = 300000 };
    float *value = filled(DTYPE_F32, COUNT, world->rank, 20), *expected = summed(all, DTYPE_F32, COUNT, 20);
    comm_all_reduce(all, vector(value, DTYPE_F32, COUNT));
    comm_all_reduce(all, vector(value, DTYPE_F32, COUNT));
    comm_barrier(all);
    comm_wait_all(world);
    for (int64_t i = 0; i < COUNT; i++) {
        float twice = expected[i];
        for (int r = 1; r < all->size; r++)
            twice += expected[i];
        if (memcmp(&value[i], &twice, sizeof twice)) fail_msg("element %lld", (long long)i);
    }
    free(value);
    free(expected);
}

// More operations than the queue holds, none waited for until the end.
static void many_operations_may_be_on_their_way(void **state) {
    (void)state;
    enum { MANY = 3000 };
    int32_t *counts = xcalloc(MANY, sizeof *counts);
    for (int i = 0; i < MANY; i++) {
        counts[i] = i + world->rank;
        comm_all_reduce(all, vector(&counts[i], DTYPE_I32, 1));
    }
    comm_wait_all(world);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(counts[i], i * all->size + all->size * (all->size - 1) / 2);
    free(counts);
}

static void starting_does_not_wait_for_the_others(void **state) {
    (void)state;
    if (all->size == 1) return;
    float value = 1;
    world_barrier(world);
    if (world->rank == 1) usleep(300000);
    double start = clock_seconds();
    CommTicket ticket = comm_all_reduce(all, vector(&value, DTYPE_F32, 1));
    double started = clock_seconds() - start, waited = comm_waited_seconds(world);
    comm_wait(all, ticket);
    waited = comm_waited_seconds(world) - waited;
    assert_true(value == (float)all->size);
    if (world->rank == 0) { // rank 1 comes a good while later
        assert_true(started < 0.1);
        assert_true(waited > 0.05);
    }
}

static void the_world_gathers_and_spreads_values(void **state) {
    (void)state;
    double mine[2] = {world->rank + 0.5, -world->rank}, gathered[64];
    world_gather_doubles(world, mine, 2, gathered);
    for (int r = 0; r < world->size; r++)
        assert_true(gathered[2 * r] == r + 0.5 && gathered[2 * r + 1] == -r);
    char text[300];
    for (int root = 0; root < world->size; root++) {
        snprintf(text, sizeof text, "from %d", world->rank);
        world_broadcast(world, text, sizeof text, root);
        char expected[300];
        snprintf(expected, sizeof expected, "from %d", root);
        assert_string_equal(text, expected);
    }
}

static void ranks_that_differ_are_named(void **state) {
    (void)state;
    assert_ok(world_agree(world, "configuration", "same", 4));
    if (world->size == 1) return;
    char mine[8] = "same";
    if (world->rank == 1) mine[0] = 'S';
    Status status = world_agree(world, "configuration", mine, 4);
    assert_non_null(status);
    assert_int_equal(status_code(status), STATUS_USAGE);
    assert_non_null(strstr(status_text(status), "another configuration"));
    assert_non_null(strstr(status_text(status), "rank 1 on"));
    assert_null(strstr(status_text(status), "rank 2 on"));
    status_free(status);
}

static void a_failure_of_one_rank_is_shared_by_all(void **state) {
    (void)state;
    assert_ok(world_share(world, NULL));
    int last = world->size - 1;
    Status status = world_share(world, world->rank == last ? status_usage("the disk is red") : NULL);
    assert_non_null(status);
    assert_int_equal(status_code(status), STATUS_USAGE);
    assert_non_null(strstr(status_text(status), "the disk is red"));
    status_free(status);
}

static void staging_stays_below_its_bound(void **state) {
    (void)state;
    enum { COUNT = 20 << 20 };
    float *large = xcalloc(COUNT, sizeof *large); // 80 MiB: longer than the bound
    comm_wait(all, comm_all_reduce(all, vector(large, DTYPE_F32, COUNT)));
    free(large);
    assert_true(comm_staging_bytes(world) <= COMM_STAGING_MAX);
    assert_true((comm_staging_bytes(world) > 0) == (world->size > 1));
}

static void events_tell_what_ran_when(void **state) {
    (void)state;
    float value[4] = {1, 2, 3, 4};
    CommEvent *events;
    comm_record_events(world, 2);
    comm_wait(all, comm_broadcast(all, vector(value, DTYPE_F32, 4), 0));
    comm_wait(all, comm_all_reduce(all, vector(value, DTYPE_F32, 4)));
    comm_wait(all, comm_all_reduce(all, vector(value, DTYPE_F32, 2)));
    int count = comm_take_events(world, &events);
    assert_int_equal(count, world->size > 1 ? 2 : 0); // the last two
    for (int i = 0; i < count; i++) {
        assert_string_equal(events[i].op, "all_reduce");
        assert_string_equal(events[i].group, "all");
        assert_int_equal(events[i].bytes, i ? 8 : 16);
        assert_true(events[i].started <= events[i].begun && events[i].begun <= events[i].ended);
    }
    if (count) assert_true(events[0].ended <= events[1].begun);
    free(events);
    comm_record_events(world, 0);
}

static void the_same_run_gives_the_same_bits(void **state) {
    (void)state;
    enum { COUNT = 500000 };
    float *first = filled(DTYPE_F32, COUNT, world->rank, 30), *second = filled(DTYPE_F32, COUNT, world->rank, 30);
    CommTicket a = comm_all_reduce(all, vector(first, DTYPE_F32, COUNT));
    CommTicket b = comm_all_reduce(all, vector(second, DTYPE_F32, COUNT));
    comm_wait(all, b);
    comm_wait(all, a);
    assert_memory_equal(first, second, COUNT * sizeof *first);
    double digest = 0, digests[16];
    for (int64_t i = 0; i < COUNT; i++)
        digest += (double)first[i] * (double)(i % 1009);
    world_gather_doubles(world, &digest, 1, digests);
    for (int r = 0; r < world->size; r++)
        assert_true(digests[r] == digest); // the same on all ranks
    free(first);
    free(second);
}

// ---- memory that only a table's copies reach ------------------------------------------------------------------------

#ifndef HEARTH_HAVE_CUDA // whose host memory comes from the driver: tests with a GPU are elsewhere
static const int64_t device_sizes[] = {3, 2200000}; // the second: more than one slice of everything

static void copy_up(Ops *table, void *out, const void *host, size_t bytes) {
    (void)table;
    memcpy(out, host, bytes);
}

static void copy_down(Ops *table, void *host, const void *in, size_t bytes) {
    (void)table;
    memcpy(host, in, bytes);
}

static void copy_across(Ops *table, void *out, const void *in, size_t bytes) {
    (void)table;
    memmove(out, in, bytes);
}

// Every operation again on a group whose table says that its memory is a device's.
static void device_memory_goes_through_the_host(void **state) {
    Comm *host = all;
    Ops device = {.kind = DEVICE_CUDA, .upload = copy_up, .download = copy_down, .copy = copy_across};
    assert_ok(comm_create_world(&all, world, &device, "device"));
    assert_int_equal(all->in_graph, world->size == 1);
    sizes = device_sizes;
    size_count = sizeof device_sizes / sizeof *device_sizes;
    dtype_count = 1;
    all_reduce_is_the_sum_in_rank_order_bit_for_bit(state);
    reduce_scatter_gives_each_rank_the_sum_of_its_piece(state);
    all_gather_puts_the_pieces_in_rank_order(state);
    all_to_all_hands_piece_r_to_rank_r(state);
    broadcast_comes_from_any_root(state);
    a_send_lets_what_follows_go_on(state);
    sizes = usual_sizes;
    size_count = sizeof usual_sizes / sizeof *usual_sizes;
    dtype_count = sizeof dtypes / sizeof *dtypes;
    comm_wait(all, comm_barrier(all));
    comm_destroy(all);
    all = host;
}
#endif

static int open_world(void **state) {
    (void)state;
    const WorldOptions options = {.watch_seconds = 20, .start_seconds = 30, .backend = COMM_MPI};
    assert_ok(world_open(&world, &options));
    if (world->rank && !freopen("/dev/null", "w", stdout)) return 1; // one rank's report is enough
    assert_ok(ops_cpu_create(&ops));
    assert_ok(comm_create_world(&all, world, ops, "all"));
    assert_string_equal(all->backend, world->size > 1 ? "mpi" : "self");
    return 0;
}

static int close_world(void **state) {
    (void)state;
    comm_destroy(all);
    world_close(world);
    ops_cpu_destroy(ops);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_is_the_sum_in_rank_order_bit_for_bit),
        cmocka_unit_test(all_reduce_max_is_the_largest),
        cmocka_unit_test(reduce_scatter_gives_each_rank_the_sum_of_its_piece),
        cmocka_unit_test(all_gather_puts_the_pieces_in_rank_order),
        cmocka_unit_test(all_to_all_hands_piece_r_to_rank_r),
        cmocka_unit_test(broadcast_comes_from_any_root),
        cmocka_unit_test(a_send_lets_what_follows_go_on),
        cmocka_unit_test(groups_do_not_meet_each_other),
        cmocka_unit_test(operations_run_in_the_order_of_their_start),
        cmocka_unit_test(many_operations_may_be_on_their_way),
        cmocka_unit_test(starting_does_not_wait_for_the_others),
        cmocka_unit_test(the_world_gathers_and_spreads_values),
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(a_failure_of_one_rank_is_shared_by_all),
#ifndef HEARTH_HAVE_CUDA
        cmocka_unit_test(device_memory_goes_through_the_host),
#endif
        cmocka_unit_test(staging_stays_below_its_bound),
        cmocka_unit_test(events_tell_what_ran_when),
        cmocka_unit_test(the_same_run_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
