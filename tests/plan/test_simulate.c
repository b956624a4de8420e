// The simulator agrees with the closed forms where those hold.
#include "catalogue.h"
#include "plan/collectives.h"
#include "plan/pipeline.h"
#include "plan/simulate.h"

enum { STAGES_MAX = 64 };

static void uniform(SimulateResult *result, PipelineSchedule schedule, int stages, int micro_batches, int chunks) {
    double forward[STAGES_MAX], backward[STAGES_MAX];
    for (int i = 0; i < stages; i++)
        forward[i] = 1, backward[i] = 2;
    SimulateRequest request = {.schedule = schedule,
                               .stages = stages,
                               .micro_batches = micro_batches,
                               .virtual_stages = chunks,
                               .forward = forward,
                               .backward = backward};
    assert_ok(simulate_run(result, &request));
}

static void gpipe_and_1f1b_have_the_closed_forms_bubble(void **state) {
    (void)state;
    for (int p = 1; p <= 16; p *= 2)
        for (int m = 1; m <= 40; m += 13)
            for (int schedule = PIPELINE_GPIPE; schedule <= PIPELINE_1F1B; schedule++) {
                SimulateResult result;
                uniform(&result, (PipelineSchedule)schedule, p, m, 1);
                assert_near(result.bubble, plan_bubble_of_wall(p, m, 1), 1e-12);
                assert_near(result.seconds, 3.0 * (m + p - 1), 1e-9);
                simulate_free(&result);
            }
}

static void the_interleaved_bubble_shrinks_by_the_virtual_stages(void **state) {
    (void)state;
    for (int p = 2; p <= 8; p *= 2)
        for (int v = 1; v <= 4; v++)
            for (int m = p; m <= 4 * p; m += p) {
                SimulateResult result;
                uniform(&result, PIPELINE_INTERLEAVED, p, m, v);
                assert_near(result.bubble, plan_bubble_of_wall(p, m, v), 1e-12);
                simulate_free(&result);
            }
}

static void stash_is_p_minus_s_for_1f1b_and_all_for_gpipe(void **state) {
    SimulateResult result;
    (void)state;
    uniform(&result, PIPELINE_1F1B, 4, 12, 1);
    for (int s = 0; s < 4; s++)
        assert_int_equal(result.stash[s], (int)plan_stash_inflight_1f1b(4, s));
    simulate_free(&result);
    uniform(&result, PIPELINE_GPIPE, 4, 12, 1);
    assert_int_equal(result.stash[0], 12);
    simulate_free(&result);
}

static void stash_of_virtual_stages_is_the_schedules_in_whole_micro_batches(void **state) {
    SimulateResult result;
    (void)state;
    uniform(&result, PIPELINE_INTERLEAVED, 16, 64, 2);
    assert_int_equal(result.stash[0], 24); // (2 x 15 + 16 + 1) chunks of half a stage
    assert_int_equal(result.stash[15], 9); // 16 + 1
    // Events in time, not only the order: what the clock shows in flight on a stage is never more.
    for (int stage = 0; stage < 16; stage += 5) {
        int most = 0;
        for (int i = 0; i < result.event_count; i++) {
            const SimulateEvent *at = &result.events[i];
            int alive = 0;
            if (at->kind != SIMULATE_FORWARD || at->stage != stage) continue;
            for (int k = 0; k < result.event_count; k++) {
                const SimulateEvent *other = &result.events[k];
                if (other->stage != stage) continue;
                if (other->kind == SIMULATE_FORWARD) alive += other->start <= at->start;
                if (other->kind == SIMULATE_BACKWARD) alive -= other->end <= at->start;
            }
            if (alive > most) most = alive;
        }
        assert_int_equal(most, pipeline_in_flight(PIPELINE_INTERLEAVED, 16, 2, stage, 64));
    }
    simulate_free(&result);
}

static void bucketed_gradients_hide_as_the_closed_form_says(void **state) {
    (void)state;
    static const double bucket[] = {0.5, 1.0, 1.5, 5.0, 8.0}; // against 5 per layer
    for (size_t i = 0; i < sizeof bucket / sizeof bucket[0]; i++) {
        double forward = 100, backward = 200; // 40 layers of 5
        SimulateRequest request = {.schedule = PIPELINE_1F1B,
                                   .stages = 1,
                                   .micro_batches = 3,
                                   .virtual_stages = 1,
                                   .forward = &forward,
                                   .backward = &backward,
                                   .buckets = 40,
                                   .bucket_seconds = bucket[i]};
        SimulateResult result;
        assert_ok(simulate_run(&result, &request));
        assert_near(result.exposed, plan_exposed_comm_seconds(40, bucket[i], 5), 1e-9);
        simulate_free(&result);
    }
}

static void sends_delay_the_fill_and_events_never_overlap_on_a_stage(void **state) {
    double forward[4] = {1, 1.5, 1, 2}, backward[4] = {2, 2, 3, 2};
    SimulateRequest request = {.schedule = PIPELINE_1F1B,
                               .stages = 4,
                               .micro_batches = 6,
                               .virtual_stages = 1,
                               .forward = forward,
                               .backward = backward,
                               .send = 0.25,
                               .optimizer = 1};
    SimulateResult result;
    (void)state;
    assert_ok(simulate_run(&result, &request));
    for (int i = 0; i < result.event_count; i++)
        for (int k = i + 1; k < result.event_count; k++) {
            const SimulateEvent *a = &result.events[i], *b = &result.events[k];
            if (a->stage != b->stage || a->kind > SIMULATE_BACKWARD || b->kind > SIMULATE_BACKWARD) continue;
            assert_true(a->end <= b->start + 1e-12 || b->end <= a->start + 1e-12);
        }
    double fill = 1 + 1.5 + 1 + 3 * 0.25; // the last stage cannot start earlier
    for (int i = 0; i < result.event_count; i++)
        if (result.events[i].stage == 3) assert_true(result.events[i].start >= fill - 1e-12);
    assert_near(result.seconds, result.compute_end + 1, 1e-12);
    simulate_free(&result);
}

// Four forward passes of one second and sends of three: the last input is there after 1 + 4 * 3 seconds, and the way
// back is as long.
static void a_link_carries_one_thing_at_a_time(void **state) {
    (void)state;
    const double second[2] = {1, 1};
    SimulateRequest request = {.schedule = PIPELINE_GPIPE,
                               .stages = 2,
                               .micro_batches = 4,
                               .virtual_stages = 1,
                               .forward = second,
                               .backward = second,
                               .send = 3};
    SimulateResult result;
    assert_ok(simulate_run(&result, &request));
    double free_at[2] = {0, 0};
    for (int i = 0; i < result.event_count; i++) {
        const SimulateEvent *event = &result.events[i];
        if (event->kind != SIMULATE_SEND) continue;
        assert_true(event->start >= free_at[event->stage]);
        free_at[event->stage] = event->end;
    }
    assert_near(free_at[0], 1 + 4 * 3, 1e-12);
    assert_near(result.seconds, 2 * (1 + 4 * 3 + 1), 1e-12);
    simulate_free(&result);
}

static void impossible_schedules_are_refused(void **state) {
    double one = 1;
    SimulateRequest request = {.schedule = PIPELINE_INTERLEAVED,
                               .stages = 4,
                               .micro_batches = 6,
                               .virtual_stages = 2,
                               .forward = &one,
                               .backward = &one};
    SimulateResult result;
    PipelineSchedule schedule;
    (void)state;
    assert_error(simulate_run(&result, &request), "divide by the stages");
    request.schedule = PIPELINE_1F1B;
    assert_error(simulate_run(&result, &request), "need the interleaved schedule");
    assert_error(pipeline_schedule_parse(&schedule, "zigzag"), "gpipe, 1f1b or interleaved");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_and_1f1b_have_the_closed_forms_bubble),
        cmocka_unit_test(the_interleaved_bubble_shrinks_by_the_virtual_stages),
        cmocka_unit_test(stash_is_p_minus_s_for_1f1b_and_all_for_gpipe),
        cmocka_unit_test(stash_of_virtual_stages_is_the_schedules_in_whole_micro_batches),
        cmocka_unit_test(bucketed_gradients_hide_as_the_closed_form_says),
        cmocka_unit_test(sends_delay_the_fill_and_events_never_overlap_on_a_stage),
        cmocka_unit_test(impossible_schedules_are_refused),
        cmocka_unit_test(a_link_carries_one_thing_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
