// The thread pool: every item once, the same bits on any number of threads, nested and concurrent callers. Meant to run
// under ThreadSanitizer as well (cmake --preset tsan).
#include "testing.h"

#include "base/threads.h"

#include <pthread.h>
#include <stdatomic.h>

static const int thread_counts[] = {1, 2, 3, 8};
enum { COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

typedef struct Marks {
    atomic_int *seen;
    int workers;
    atomic_int bad_worker, bad_chunk;
    int64_t count, chunk;
} Marks;

static void mark(void *context, int64_t begin, int64_t end, int worker) {
    Marks *marks = context;
    if (worker < 0 || worker >= marks->workers) marks->bad_worker = 1;
    int64_t expected = begin + marks->chunk < marks->count ? begin + marks->chunk : marks->count;
    if (begin % marks->chunk || end != expected) marks->bad_chunk = 1;
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&marks->seen[i], 1);
}

static void every_item_is_handled_once_in_fixed_chunks(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 7, 64, 1000, 10007}, chunks[] = {1, 3, 64, 100000};
    for (int t = 0; t < COUNTS; t++) {
        threads_set(thread_counts[t]);
        assert_int_equal(threads_count(), thread_counts[t]);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
                Marks marks = {.seen = xcalloc((size_t)counts[c] + 1, sizeof(atomic_int)),
                               .workers = thread_counts[t],
                               .count = counts[c],
                               .chunk = chunks[k]};
                threads_for(counts[c], chunks[k], mark, &marks);
                for (int64_t i = 0; i < counts[c]; i++)
                    assert_int_equal(marks.seen[i], 1);
                assert_int_equal(marks.bad_worker, 0);
                assert_int_equal(marks.bad_chunk, 0);
                free(marks.seen);
            }
        }
    }
}

// Sums of floats chunk by chunk: the order inside a chunk is fixed, so the bits must not depend on the threads.
typedef struct Sums {
    const float *values;
    float *partial;
    int64_t chunk;
} Sums;

static void sum_chunk(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    Sums *sums = context;
    float sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += sums->values[i];
    sums->partial[begin / sums->chunk] = sum;
}

static void results_are_bit_identical_on_any_number_of_threads(void **state) {
    (void)state;
    enum { COUNT = 100003, CHUNK = 97, CHUNKS = (COUNT + CHUNK - 1) / CHUNK };
    float *values = xmalloc(COUNT * sizeof *values), *first = xmalloc(CHUNKS * sizeof *first),
          *partial = xmalloc(CHUNKS * sizeof *partial);
    for (int i = 0; i < COUNT; i++)
        values[i] = sinf((float)i) * expf((float)(i % 40));
    for (int t = 0; t < COUNTS; t++) {
        threads_set(thread_counts[t]);
        for (int repeat = 0; repeat < 20; repeat++) {
            memset(partial, 0xff, CHUNKS * sizeof *partial);
            threads_for(COUNT, CHUNK, sum_chunk, &(Sums){values, partial, CHUNK});
            if (t == 0 && repeat == 0) memcpy(first, partial, CHUNKS * sizeof *partial);
            assert_memory_equal(first, partial, CHUNKS * sizeof *partial);
        }
    }
    free(values);
    free(first);
    free(partial);
}

static void count_items(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    atomic_fetch_add((atomic_int *)context, (int)(end - begin));
}

typedef struct Nested {
    atomic_int *total;
    atomic_int moved; // the inner loop reported another worker than the outer one
} Nested;

typedef struct Inner {
    Nested *nested;
    int worker;
} Inner;

static void inner_task(void *context, int64_t begin, int64_t end, int worker) {
    Inner *inner = context;
    if (worker != inner->worker) inner->nested->moved = 1;
    count_items(inner->nested->total, begin, end, worker);
}

static void outer_task(void *context, int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++)
        threads_for(50, 7, inner_task, &(Inner){context, worker});
}

static void a_loop_inside_a_loop_runs_in_place(void **state) {
    (void)state;
    for (int t = 0; t < COUNTS; t++) {
        threads_set(thread_counts[t]);
        atomic_int total = 0;
        Nested nested = {.total = &total};
        threads_for(200, 3, outer_task, &nested);
        assert_int_equal(total, 200 * 50);
        assert_int_equal(nested.moved, 0);
    }
}

// Every worker takes one of the outer items, since each waits until all are taken: no machine is too busy for that.
typedef struct Gathered {
    Nested nested;
    pthread_barrier_t barrier;
    atomic_int workers; // a bit for each
} Gathered;

static void gathered_task(void *context, int64_t begin, int64_t end, int worker) {
    Gathered *gathered = context;
    pthread_barrier_wait(&gathered->barrier);
    atomic_fetch_or(&gathered->workers, 1 << worker);
    outer_task(&gathered->nested, begin, end, worker);
}

static void the_inner_loop_has_the_number_of_its_own_worker(void **state) {
    (void)state;
    enum { WORKERS = 4 };
    threads_set(WORKERS);
    atomic_int total = 0;
    Gathered gathered = {.nested.total = &total};
    pthread_barrier_init(&gathered.barrier, NULL, WORKERS);
    threads_for(WORKERS, 1, gathered_task, &gathered);
    pthread_barrier_destroy(&gathered.barrier);
    assert_int_equal(gathered.workers, (1 << WORKERS) - 1);
    assert_int_equal(gathered.nested.moved, 0);
}

static void *outside_caller(void *argument) {
    atomic_int *total = argument;
    for (int i = 0; i < 300; i++)
        threads_for(100, 9, count_items, total);
    return NULL;
}

static void two_outside_threads_may_loop_at_once(void **state) {
    (void)state;
    for (int t = 0; t < COUNTS; t++) {
        threads_set(thread_counts[t]);
        atomic_int first = 0, second = 0;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, outside_caller, &first), 0);
        outside_caller(&second);
        pthread_join(thread, NULL);
        assert_int_equal(first, 300 * 100);
        assert_int_equal(second, 300 * 100);
    }
}

// Plain memory written in one loop and read by other threads in the next: threads_for is the only synchronisation.
static void fill_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        ((int *)context)[i] += 1;
}

static void one_loop_sees_what_the_last_one_wrote(void **state) {
    (void)state;
    enum { COUNT = 1000, LOOPS = 400 };
    int *values = xcalloc(COUNT, sizeof *values);
    threads_set(3);
    for (int i = 0; i < LOOPS; i++)
        threads_for(COUNT, 1 + i % 50, fill_task, values);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(values[i], LOOPS);
    free(values);
}

static void the_number_of_threads_can_change_between_loops(void **state) {
    (void)state;
    atomic_int total = 0;
    for (int i = 0; i < 60; i++) {
        threads_set(1 + i % 5);
        threads_for(40, 1, count_items, &total);
    }
    assert_int_equal(total, 60 * 40);
}

typedef struct Asker {
    int expected;
    atomic_int stop, wrong;
} Asker;

static void *ask_for_the_count(void *argument) {
    Asker *asker = argument;
    while (!asker->stop) {
        int count = threads_count();
        if (count != asker->expected) asker->wrong = count;
    }
    return NULL;
}

static void nobody_sees_the_count_of_a_pool_in_the_making(void **state) {
    Asker asker = {.expected = 8, .wrong = -1};
    pthread_t thread;
    (void)state;
    threads_set(asker.expected);
    assert_int_equal(pthread_create(&thread, NULL, ask_for_the_count, &asker), 0);
    for (int i = 0; i < 100; i++)
        threads_set(asker.expected);
    asker.stop = 1;
    pthread_join(thread, NULL);
    assert_int_equal(asker.wrong, -1);
}

static void the_environment_sets_the_default(void **state) {
    (void)state;
    setenv("HEARTH_THREADS", "3", 1);
    threads_set(0);
    assert_int_equal(threads_count(), 3);
    setenv("HEARTH_THREADS", "nonsense", 1);
    threads_set(0);
    assert_int_equal(threads_count(), threads_cores());
    unsetenv("HEARTH_THREADS");
    threads_set(100000); // more than the pool holds: as many as it can
    assert_true(threads_count() >= 2);
    threads_set(1);
    assert_int_equal(threads_count(), 1);
    assert_true(threads_cores() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_handled_once_in_fixed_chunks),
        cmocka_unit_test(results_are_bit_identical_on_any_number_of_threads),
        cmocka_unit_test(a_loop_inside_a_loop_runs_in_place),
        cmocka_unit_test(the_inner_loop_has_the_number_of_its_own_worker),
        cmocka_unit_test(two_outside_threads_may_loop_at_once),
        cmocka_unit_test(one_loop_sees_what_the_last_one_wrote),
        cmocka_unit_test(the_number_of_threads_can_change_between_loops),
        cmocka_unit_test(nobody_sees_the_count_of_a_pool_in_the_making),
        cmocka_unit_test(the_environment_sets_the_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
