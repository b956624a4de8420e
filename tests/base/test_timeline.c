// Ranges of threads: kept while somebody records, whole, and of the thread that added them.
#include "testing.h"

#include "base/timeline.h"

#include <pthread.h>

static void nothing_is_kept_while_nobody_records(void **state) {
    (void)state;
    TimelineEvent *events;
    int64_t lost;
    double begin = timeline_begin();
    assert_true(begin == 0 && !timeline_on());
    timeline_end(begin, "before", -1);
    timeline_counter("before", 1);
    timeline_start();
    int64_t count = timeline_stop(&events, &lost);
    assert_true(count == 0 && lost == 0);
    free(events);
    timeline_end(begin, "after", -1);
    timeline_add(TIMELINE_WORK, "after", NULL, -1, 1, 2); // began while it was on
    timeline_start();
    count = timeline_stop(&events, &lost);
    assert_true(count == 0);
    free(events);
}

static void *other_thread(void *number) {
    timeline_name_thread("other");
    double begin = timeline_begin();
    *(int *)number = timeline_thread();
    timeline_end(begin, "elsewhere", 3);
    return NULL;
}

static void a_range_is_of_its_thread(void **state) {
    (void)state;
    TimelineEvent *events;
    int64_t lost;
    pthread_t thread;
    int number = 0;
    timeline_start();
    double begin = timeline_begin();
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &number), 0);
    pthread_join(thread, NULL);
    timeline_add(TIMELINE_COMM_WAIT, "wait", "dp", -1, begin, begin + 1);
    timeline_counter("memory", 5);
    int64_t count = timeline_stop(&events, &lost);
    assert_int_equal(count, 3);
    assert_string_equal(events[0].name, "elsewhere");
    assert_string_equal(events[0].of, "other");
    assert_true(events[0].thread == number && events[0].number == 3 && events[0].begin >= begin);
    assert_true(events[0].end >= events[0].begin);
    assert_true(events[1].kind == TIMELINE_COMM_WAIT && events[1].thread == timeline_thread() &&
                events[1].thread != number && !events[1].of);
    assert_string_equal(events[1].detail, "dp");
    assert_true(events[2].kind == TIMELINE_COUNTER && events[2].value == 5);
    free(events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_kept_while_nobody_records),
        cmocka_unit_test(a_range_is_of_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
