// Philox4x32-10 against its published known answers, and what the draws built on it promise.
#include "testing.h"

#include "base/rng.h"

// From the known-answer file of Random123, the library that the authors of Philox published.
static const struct {
    uint32_t counter[4], key[2], expected[4];
} known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, // the digits of pi
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void philox_gives_the_published_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof known_answers / sizeof known_answers[0]; i++) {
        uint32_t out[4];
        philox4x32_10(out, known_answers[i].counter, known_answers[i].key);
        assert_memory_equal(out, known_answers[i].expected, sizeof out);
    }
}

static void bits_are_the_first_two_words_of_philox(void **state) {
    (void)state;
    uint32_t out[4], counter[4] = {0x13198a2e, 0x03707344, 7, 9}, key[2] = {0xa4093822, 0x299f31d0};
    philox4x32_10(out, counter, key);
    uint64_t bits = rng_bits(0x299f31d0a4093822, (uint64_t)9 << 32 | 7, 0x0370734413198a2e);
    assert_int_equal(bits, (uint64_t)out[0] << 32 | out[1]);
}

static void seed_stream_and_index_all_matter(void **state) {
    (void)state;
    uint64_t base = rng_bits(1, 2, 3);
    assert_int_equal(base, rng_bits(1, 2, 3));
    for (int bit = 0; bit < 64; bit++) {
        uint64_t flip = (uint64_t)1 << bit;
        assert_true(rng_bits(1 ^ flip, 2, 3) != base);
        assert_true(rng_bits(1, 2 ^ flip, 3) != base);
        assert_true(rng_bits(1, 2, 3 ^ flip) != base);
    }
}

enum { DRAWS = 200000 };

// Bounds are 5 standard errors: 5 * sqrt(variance of the statistic / DRAWS).
static void uniform_draws_have_the_moments_of_the_uniform(void **state) {
    (void)state;
    double sum = 0, squares = 0, neighbours = 0, last = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = rng_uniform(7, RNG_STREAM_TEST, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
        neighbours += i ? (u - 0.5) * (last - 0.5) : 0;
        last = u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 5 * sqrt(1.0 / 12 / DRAWS));
    assert_true(fabs(squares / DRAWS - 1.0 / 3) < 5 * sqrt(4.0 / 45 / DRAWS));
    assert_true(fabs(neighbours / DRAWS) < 5 * sqrt(1.0 / 144 / DRAWS));
}

static void normal_draws_have_the_moments_of_the_normal(void **state) {
    (void)state;
    double power[5] = {0};
    int beyond_two = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = rng_normal(11, RNG_STREAM_TEST, i);
        assert_true(isfinite(x));
        beyond_two += fabs(x) > 2;
        for (int k = 1; k <= 4; k++)
            power[k] += pow(x, k) / DRAWS;
    }
    assert_true(fabs(power[1]) < 5 * sqrt(1.0 / DRAWS));
    assert_true(fabs(power[2] - 1) < 5 * sqrt(2.0 / DRAWS));
    assert_true(fabs(power[3]) < 5 * sqrt(15.0 / DRAWS));
    assert_true(fabs(power[4] - 3) < 5 * sqrt(96.0 / DRAWS));
    double share = 0.0455002638963584; // P(|x| > 2)
    assert_true(fabs((double)beyond_two / DRAWS - share) < 5 * sqrt(share * (1 - share) / DRAWS));
}

static void below_is_uniform_over_its_range(void **state) {
    (void)state;
    int seen[10] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t draw = rng_below(3, RNG_STREAM_TEST, i, 10);
        assert_true(draw < 10);
        seen[draw]++;
    }
    for (int i = 0; i < 10; i++)
        assert_true(abs(seen[i] - DRAWS / 10) < 5 * sqrt(DRAWS * 0.1 * 0.9));
    assert_int_equal(rng_below(3, RNG_STREAM_TEST, 0, 1), 0);
    assert_true(rng_below(3, RNG_STREAM_TEST, 0, UINT64_MAX) < UINT64_MAX);
}

static void a_fill_does_not_depend_on_how_it_is_split(void **state) {
    (void)state;
    float whole[101], parts[101];
    uint64_t first = ((uint64_t)1 << 33) - 50; // crosses from one counter word to the next
    rng_fill_normal(whole, 101, 5, RNG_STREAM_TEST, first, 1.5f, 0.02f);
    rng_fill_normal(parts, 37, 5, RNG_STREAM_TEST, first, 1.5f, 0.02f);
    rng_fill_normal(parts + 37, 64, 5, RNG_STREAM_TEST, first + 37, 1.5f, 0.02f);
    assert_memory_equal(whole, parts, sizeof whole);
    assert_true(whole[100] == (float)(1.5f + 0.02f * rng_normal(5, RNG_STREAM_TEST, first + 100)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(bits_are_the_first_two_words_of_philox),
        cmocka_unit_test(seed_stream_and_index_all_matter),
        cmocka_unit_test(uniform_draws_have_the_moments_of_the_uniform),
        cmocka_unit_test(normal_draws_have_the_moments_of_the_normal),
        cmocka_unit_test(below_is_uniform_over_its_range),
        cmocka_unit_test(a_fill_does_not_depend_on_how_it_is_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
