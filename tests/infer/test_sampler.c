#include "testing.h"

#include "infer/sampler.h"

static const float logits[5] = {0.0f, 2.0f, 1.0f, -1.0f, 2.0f};

static void no_temperature_takes_the_first_of_the_most_likely(void **state) {
    (void)state;
    Sampler sampler = {0, 0, 1, 9};
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(sampler_pick(&sampler, logits, 5, i), 1);
}

static void frequencies_follow_the_softmax(void **state) {
    (void)state;
    enum { DRAWS = 40000 };
    static const double temperatures[] = {1, 0.5, 2};
    for (int t = 0; t < 3; t++) {
        Sampler sampler = {temperatures[t], 0, 1, 3};
        int counts[5] = {0};
        double sum = 0;
        for (int i = 0; i < 5; i++)
            sum += exp(logits[i] / temperatures[t]);
        for (uint64_t i = 0; i < DRAWS; i++)
            counts[sampler_pick(&sampler, logits, 5, i)]++;
        for (int i = 0; i < 5; i++) {
            double p = exp(logits[i] / temperatures[t]) / sum, deviation = sqrt(p * (1 - p) / DRAWS);
            assert_true(fabs((double)counts[i] / DRAWS - p) < 5 * deviation);
        }
    }
}

static void top_k_and_top_p_leave_out_the_tail(void **state) {
    (void)state;
    Sampler two = {1, 2, 1, 1}, half = {1, 0, 0.5, 1};
    for (uint64_t i = 0; i < 500; i++) {
        int a = sampler_pick(&two, logits, 5, i), b = sampler_pick(&half, logits, 5, i);
        assert_true(a == 1 || a == 4);
        assert_true(b == 1 || b == 4); // each holds 0.36 of the probability
    }
}

// Draws of two seeds agree as often as two draws of one: here by less than half.
static void the_same_seed_gives_the_same_draws_and_another_gives_others(void **state) {
    (void)state;
    Sampler sampler = {1, 0, 1, 42}, other = {1, 0, 1, 43};
    int same = 0;
    for (uint64_t i = 0; i < 200; i++) {
        int drawn = sampler_pick(&sampler, logits, 5, i);
        assert_int_equal(drawn, sampler_pick(&sampler, logits, 5, i));
        same += drawn == sampler_pick(&other, logits, 5, i);
    }
    assert_true(same > 20 && same < 120);
}

static void impossible_settings_are_refused(void **state) {
    (void)state;
    assert_error(sampler_check(&(Sampler){-1, 0, 1, 0}), "temperature");
    assert_error(sampler_check(&(Sampler){1, -1, 1, 0}), "top-k");
    assert_error(sampler_check(&(Sampler){1, 0, 0, 0}), "top-p");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_temperature_takes_the_first_of_the_most_likely),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(top_k_and_top_p_leave_out_the_tail),
        cmocka_unit_test(the_same_seed_gives_the_same_draws_and_another_gives_others),
        cmocka_unit_test(impossible_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
