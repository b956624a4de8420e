// The order of a pipeline's passes: every task once, nothing before what it needs, and known counts in flight.
#include "testing.h"

#include "base/pipeline_schedule.h"

typedef struct Pipeline {
    PipelineSchedule schedule;
    int stages, virtual_stages, micro_batches;
} Pipeline;

static const Pipeline pipelines[] = {
    {PIPELINE_GPIPE, 1, 1, 1},        {PIPELINE_GPIPE, 4, 1, 7},         {PIPELINE_1F1B, 1, 1, 5},
    {PIPELINE_1F1B, 4, 1, 12},        {PIPELINE_1F1B, 4, 1, 2},          {PIPELINE_1F1B, 8, 1, 8},
    {PIPELINE_INTERLEAVED, 4, 2, 12}, {PIPELINE_INTERLEAVED, 4, 3, 4},   {PIPELINE_INTERLEAVED, 2, 4, 8},
    {PIPELINE_INTERLEAVED, 1, 2, 3},  {PIPELINE_INTERLEAVED, 16, 2, 64},
};
enum { PIPELINES = sizeof pipelines / sizeof pipelines[0] };

static PipelineTask task_of(const Pipeline *p, int stage, int64_t index) {
    return pipeline_task(p->schedule, p->stages, p->virtual_stages, stage, p->micro_batches, index);
}

static void every_pass_of_every_chunk_runs_once_and_backward_after_forward(void **state) {
    (void)state;
    for (int i = 0; i < PIPELINES; i++) {
        const Pipeline *p = &pipelines[i];
        assert_ok(pipeline_schedule_check(p->schedule, p->stages, p->virtual_stages, p->micro_batches));
        int64_t count = pipeline_task_count(p->virtual_stages, p->micro_batches);
        assert_int_equal(count, 2 * p->virtual_stages * p->micro_batches);
        for (int stage = 0; stage < p->stages; stage++) {
            bool seen[2][8][64] = {0};
            for (int64_t k = 0; k < count; k++) {
                PipelineTask task = task_of(p, stage, k);
                assert_in_range(task.micro_batch, 0, p->micro_batches - 1);
                assert_in_range(task.chunk, 0, p->virtual_stages - 1);
                bool *ran = &seen[task.pass][task.chunk][task.micro_batch];
                assert_false(*ran);
                *ran = true;
                if (task.pass == PIPELINE_BACKWARD) assert_true(seen[PIPELINE_FORWARD][task.chunk][task.micro_batch]);
            }
        }
    }
}

// The ranks run their orders, each task as soon as the neighbour's output is there: an order that waits for itself
// would never end.
static void the_orders_of_all_ranks_never_wait_for_each_other(void **state) {
    (void)state;
    for (int i = 0; i < PIPELINES; i++) {
        const Pipeline *p = &pipelines[i];
        int places = p->stages * p->virtual_stages, done = 0;
        int64_t next[16] = {0}, count = pipeline_task_count(p->virtual_stages, p->micro_batches);
        bool ran[2][32][64] = {0}; // [pass][place along the model][micro-batch]
        for (bool moved = true; moved;) {
            moved = false;
            for (int stage = 0; stage < p->stages; stage++) {
                if (next[stage] == count) continue;
                PipelineTask task = task_of(p, stage, next[stage]);
                int place = task.chunk * p->stages + stage, m = task.micro_batch;
                bool ready = task.pass == PIPELINE_FORWARD ? place == 0 || ran[0][place - 1][m]
                             : place == places - 1         ? ran[0][place][m]
                                                           : ran[1][place + 1][m];
                if (!ready) continue;
                ran[task.pass][place][m] = true;
                next[stage]++, done++;
                moved = true;
            }
        }
        assert_int_equal(done, count * p->stages);
    }
}

// A message waits where it was made until the neighbour's pass takes it, and a pass that finds both places taken waits
// too. Whatever the order in which ranks move, they come to the end: waiting for less never hinders anyone.
static void two_places_for_messages_are_enough(void **state) {
    (void)state;
    enum { PLACES = 2 };
    for (int i = 0; i < PIPELINES; i++) {
        const Pipeline *p = &pipelines[i];
        int places = p->stages * p->virtual_stages, done = 0;
        int64_t next[16] = {0}, count = pipeline_task_count(p->virtual_stages, p->micro_batches);
        // [pass][place along the model][micro-batch]: its input was sent, it has begun; [stage][pass]: passes so far,
        // and what each has sent: the place and micro-batch that takes it, or nobody
        static bool sent[2][32][64], taken[2][32][64];
        static int passes[16][2], to_place[16][2][512], to_batch[16][2][512];
        memset(sent, 0, sizeof sent), memset(taken, 0, sizeof taken), memset(passes, 0, sizeof passes);
        for (bool moved = true; moved;) {
            moved = false;
            for (int stage = 0; stage < p->stages; stage++) {
                if (next[stage] == count) continue;
                PipelineTask task = task_of(p, stage, next[stage]);
                int pass = task.pass, place = task.chunk * p->stages + stage, m = task.micro_batch;
                int *ran = &passes[stage][pass], before = *ran - PLACES;
                bool begins = place == (pass ? places - 1 : 0), ends = place == (pass ? 0 : places - 1);
                bool room = before < 0 || to_place[stage][pass][before] < 0 ||
                            taken[pass][to_place[stage][pass][before]][to_batch[stage][pass][before]];
                if (!room || !(begins || sent[pass][place][m])) continue;
                taken[pass][place][m] = true;
                int to = ends ? -1 : pass ? place - 1 : place + 1;
                if (to >= 0) sent[pass][to][m] = true;
                to_place[stage][pass][*ran] = to, to_batch[stage][pass][*ran] = m;
                ++*ran, next[stage]++, done++;
                moved = true;
            }
        }
        assert_int_equal(done, count * p->stages);
    }
}

static void what_is_in_flight_is_the_most_that_the_whole_order_keeps(void **state) {
    (void)state;
    for (int i = 0; i < PIPELINES; i++) {
        const Pipeline *p = &pipelines[i];
        for (int stage = 0; stage < p->stages; stage++) {
            int64_t alive = 0, most = 0, count = pipeline_task_count(p->virtual_stages, p->micro_batches);
            for (int64_t k = 0; k < count; k++) {
                alive += task_of(p, stage, k).pass == PIPELINE_FORWARD ? 1 : -1;
                if (alive > most) most = alive;
            }
            assert_int_equal(alive, 0);
            assert_int_equal(pipeline_in_flight(p->schedule, p->stages, p->virtual_stages, stage, p->micro_batches),
                             most);
        }
    }
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void counts_in_flight_are_the_published_ones(void **state) {
    (void)state;
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 48; m++)
            for (int s = 0; s < p; s++) {
                assert_int_equal(pipeline_in_flight(PIPELINE_GPIPE, p, 1, s, m), m);
                assert_int_equal(pipeline_in_flight(PIPELINE_1F1B, p, 1, s, m), least(p - s, m));
                for (int v = 2; v <= 4; v++) // Narayanan et al. 2021
                    assert_int_equal(pipeline_in_flight(PIPELINE_INTERLEAVED, p, v, s, m),
                                     least(2 * (p - s - 1) + (v - 1) * p + 1, v * m));
            }
    // Two chunks of half a stage: 47 of the first rank are 23.5 micro-batches, 17 of the last 8.5.
    assert_int_equal(pipeline_in_flight(PIPELINE_INTERLEAVED, 16, 2, 0, 64), 47);
    assert_int_equal(pipeline_in_flight(PIPELINE_INTERLEAVED, 16, 2, 15, 64), 17);
}

static void a_million_micro_batches_are_counted_at_once(void **state) { // the search asks thousands of times
    (void)state;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(pipeline_in_flight(PIPELINE_1F1B, 8, 1, 3, 1000000000), 5);
}

static void schedules_have_names_and_limits(void **state) {
    (void)state;
    for (int i = 0; i < PIPELINE_SCHEDULE_COUNT; i++) {
        PipelineSchedule schedule;
        assert_ok(pipeline_schedule_parse(&schedule, pipeline_schedule_name((PipelineSchedule)i)));
        assert_int_equal(schedule, i);
    }
    PipelineSchedule schedule;
    assert_error(pipeline_schedule_parse(&schedule, "zigzag"), "gpipe, 1f1b or interleaved");
    assert_error(pipeline_schedule_check(PIPELINE_1F1B, 4, 2, 8), "need the interleaved schedule");
    assert_error(pipeline_schedule_check(PIPELINE_INTERLEAVED, 4, 2, 6), "divide by the stages (4)");
    assert_error(pipeline_schedule_check(PIPELINE_INTERLEAVED, 4, 2, 6), "8 micro-batches do");
    assert_error(pipeline_schedule_check(PIPELINE_1F1B, 0, 1, 1), "at least 1");
    assert_error(pipeline_schedule_check(PIPELINE_1F1B, 1, 0, 1), "at least 1");
    assert_error(pipeline_schedule_check(PIPELINE_1F1B, 1, 1, 0), "at least 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_of_every_chunk_runs_once_and_backward_after_forward),
        cmocka_unit_test(the_orders_of_all_ranks_never_wait_for_each_other),
        cmocka_unit_test(what_is_in_flight_is_the_most_that_the_whole_order_keeps),
        cmocka_unit_test(counts_in_flight_are_the_published_ones),
        cmocka_unit_test(two_places_for_messages_are_enough),
        cmocka_unit_test(a_million_micro_batches_are_counted_at_once),
        cmocka_unit_test(schedules_have_names_and_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
