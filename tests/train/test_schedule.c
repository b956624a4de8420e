#include "testing.h"

#include "train/schedule.h"

static void warmup_is_linear_and_reaches_the_peak(void **state) {
    (void)state;
    Schedule schedule = {SCHEDULE_CONSTANT, 1.0, 0.1, 10, 0, 0};
    assert_float_equal(schedule_lr(&schedule, 1), 0.1, 1e-15);
    assert_float_equal(schedule_lr(&schedule, 5), 0.5, 1e-15);
    assert_float_equal(schedule_lr(&schedule, 10), 1.0, 0);
    assert_float_equal(schedule_lr(&schedule, 1000), 1.0, 0);
}

static void cosine_ends_at_the_minimum_with_the_last_step(void **state) {
    (void)state;
    Schedule schedule = {SCHEDULE_COSINE, 1.0, 0.1, 10, 0, 110};
    assert_float_equal(schedule_lr(&schedule, 10), 1.0, 1e-12);
    assert_float_equal(schedule_lr(&schedule, 60), 0.55, 1e-12); // the middle
    assert_float_equal(schedule_lr(&schedule, 110), 0.1, 1e-12);
}

static void wsd_is_flat_and_then_falls_linearly(void **state) {
    (void)state;
    Schedule schedule = {SCHEDULE_WSD, 1.0, 0.0, 5, 20, 100};
    assert_float_equal(schedule_lr(&schedule, 80), 1.0, 0);
    assert_float_equal(schedule_lr(&schedule, 90), 0.5, 1e-12);
    assert_float_equal(schedule_lr(&schedule, 100), 0.0, 1e-12);
}

static void a_schedule_survives_json(void **state) {
    (void)state;
    static const Schedule table[] = {{SCHEDULE_CONSTANT, 0.3, 0.03, 1, 2, 3},
                                     {SCHEDULE_COSINE, 1e-3, 1.0 / 3, 10, 0, 1000000007},
                                     {SCHEDULE_WSD, 1, 0, 0, 7, 70}};
    for (int i = 0; i < 3; i++) {
        json_t *root = schedule_json(&table[i]);
        char *text = json_dumps(root, 0);
        json_t *read = json_loads(text, 0, NULL);
        Schedule again = {0};
        schedule_read(&again, read);
        assert_true(again.kind == table[i].kind && again.lr == table[i].lr && again.min_lr == table[i].min_lr);
        assert_true(again.warmup_steps == table[i].warmup_steps && again.decay_steps == table[i].decay_steps &&
                    again.total_steps == table[i].total_steps);
        free(text);
        json_decref(read);
        json_t *damaged = json_deep_copy(root); // no run has such steps, and sums of them would not fit
        json_object_set_new(damaged, "warmup_steps", json_integer(INT64_MIN));
        again = table[0];
        schedule_read(&again, damaged);
        assert_true(again.lr == table[0].lr && again.warmup_steps == 1);
        json_decref(damaged);
        json_object_del(root, "decay_steps"); // of another version: left alone
        schedule_read(&again, root);
        assert_true(again.lr == table[0].lr && again.total_steps == 3);
        json_decref(root);
    }
}

static void the_batch_is_rounded_to_whole_micro_batches(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.train.seq = 512;
    config.train.micro_batch = 64;
    config.train.batch_tokens = 250000; // seed 002: 7.63 micro-batches of 32,768
    BatchPlan plan = batch_plan(&config, 1);
    assert_int_equal(plan.grad_accum, 8);
    assert_int_equal(plan.grad_accum * plan.micro_tokens, 262144);
    config_free(&config);
}

static void batch_warmup_rises_in_equal_buckets(void **state) {
    (void)state;
    BatchPlan plan = {.micro_tokens = 32768, .grad_accum = 8, .warmup_tokens = 500000000};
    assert_int_equal(batch_accum(&plan, 0), 1);
    assert_int_equal(batch_accum(&plan, 62499999), 1);
    assert_int_equal(batch_accum(&plan, 62500000), 2);
    assert_int_equal(batch_accum(&plan, 499999999), 8);
    assert_int_equal(batch_accum(&plan, 500000000), 8);
    assert_int_equal(batch_accum(&plan, 6000000000), 8);
}

static void steps_for_tokens_agrees_with_taking_the_steps(void **state) {
    (void)state;
    for (int64_t warmup = 0; warmup < 3000; warmup += 271)
        for (int64_t tokens = 1; tokens < 6000; tokens += 83) {
            BatchPlan plan = {.micro_tokens = 10, .grad_accum = 7, .warmup_tokens = warmup};
            int64_t done = 0, steps = 0;
            for (; done < tokens; steps++)
                done += batch_accum(&plan, done) * plan.micro_tokens;
            assert_int_equal(batch_steps(&plan, tokens), steps);
            assert_true(batch_tokens(&plan, steps) == (double)done);
        }
}

static void a_run_ends_with_whichever_limit_is_first(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.train.seq = 10;
    config.train.micro_batch = 1;
    BatchPlan plan = batch_plan(&config, 1);
    config.train.tokens = (ConfigTokens){.count = 1000};
    assert_int_equal(run_steps(&config, &plan, 5), 100);
    config.train.steps = 40;
    assert_int_equal(run_steps(&config, &plan, 5), 40);
    config.train.tokens = (ConfigTokens){.per_parameter = 20};
    assert_int_equal(run_steps(&config, &plan, 5), 10);
    config_free(&config);
}

// Resumed after 30 steps of 30 tokens: the budget ends after 10 more of the plan's 10 tokens.
static void a_resumed_run_counts_the_steps_it_has_taken(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.train.seq = 10;
    config.train.micro_batch = 1;
    config.train.tokens = (ConfigTokens){.count = 1000};
    BatchPlan plan = batch_plan(&config, 1);
    assert_int_equal(run_steps_from(&config, &plan, 5, 30, 900), 40);
    config_free(&config);
}

static void a_schedule_is_made_of_its_shares(void **state) {
    (void)state;
    Config config;
    Schedule schedule;
    config_defaults(&config);
    config.schedule.kind = "wsd";
    config.schedule.decay_fraction = 0.25;
    config.schedule.min_lr_ratio = 0.5;
    config.schedule.warmup_steps = 7;
    config.optimizer.lr = 0.01;
    BatchPlan plan = batch_plan(&config, 1);
    assert_ok(schedule_make(&schedule, &config, &plan, 100));
    assert_int_equal(schedule.kind, SCHEDULE_WSD);
    assert_true(schedule.decay_steps == 25 && schedule.warmup_steps == 7 && schedule.total_steps == 100);
    assert_true(schedule.lr == 0.01 && schedule.min_lr == 0.005);
    assert_error(schedule_make(&schedule, &config, &plan, 0), "needs to know when the run ends");
    assert_error(schedule_make(&schedule, &config, &plan, 6), "longer than the run of 6 steps");
    config_free(&config);
}

static void rescaling_follows_the_batch(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.train.seq = 100;
    config.train.micro_batch = 4;
    config.optimizer.lr = 1e-3;
    config.optimizer.lr_base_batch_tokens = 100;
    BatchPlan plan = batch_plan(&config, 1);
    config.optimizer.lr_rescale = "linear";
    assert_float_equal(run_peak_lr(&config, &plan), 4e-3, 1e-15);
    config.optimizer.lr_rescale = "sqrt";
    assert_float_equal(run_peak_lr(&config, &plan), 2e-3, 1e-15);
    config_free(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_is_linear_and_reaches_the_peak),
        cmocka_unit_test(cosine_ends_at_the_minimum_with_the_last_step),
        cmocka_unit_test(wsd_is_flat_and_then_falls_linearly),
        cmocka_unit_test(a_schedule_survives_json),
        cmocka_unit_test(the_batch_is_rounded_to_whole_micro_batches),
        cmocka_unit_test(batch_warmup_rises_in_equal_buckets),
        cmocka_unit_test(steps_for_tokens_agrees_with_taking_the_steps),
        cmocka_unit_test(a_run_ends_with_whichever_limit_is_first),
        cmocka_unit_test(a_resumed_run_counts_the_steps_it_has_taken),
        cmocka_unit_test(a_schedule_is_made_of_its_shares),
        cmocka_unit_test(rescaling_follows_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
