// Estimates: exact when the sample is everything, near when it is not.
#include "data/estimate.h"
#include "temporary.h"

// Document i has 100 + i % 201 bytes: on average 200. With the byte tokenizer and end-of-text: 201 tokens.
static const char *corpus(const char *name, int count) {
    TextBuffer lines = {0};
    for (int i = 0; i < count; i++)
        text_buffer_format(&lines, "{\"text\":\"%0*d\"}\n", 100 + i * 77 % 201, i);
    const char *path = temporary_file(name, lines.data, lines.length);
    text_buffer_free(&lines);
    return path;
}

static void test_sample_of_everything_is_exact(void **state) {
    (void)state;
    const char *input = corpus("whole.jsonl", 201);
    const ReaderOptions options = {0};
    Estimate estimate;
    assert_ok(estimate_run(&estimate, &options, &input, 1, "bytes", 1000));
    assert_true(estimate.whole);
    assert_int_equal(estimate.sample_documents, 201);
    assert_int_equal(estimate.sample_tokens, 201 * 201);
    assert_int_equal(estimate.sample_bytes, 201 * 200);
    assert_true(estimate.mean_tokens == 201 && estimate.median_tokens == 201);
    assert_true(estimate.documents == 201 && estimate.tokens == 201 * 201);
    assert_true(estimate.bytes_per_second > 0); // although the input has less than half of the documents asked for
}

static void test_small_sample_comes_near(void **state) {
    (void)state;
    const char *inputs[] = {corpus("part1.jsonl", 20000), corpus("part2.jsonl", 10000)};
    const ReaderOptions options = {0};
    Estimate estimate;
    assert_ok(estimate_run(&estimate, &options, inputs, 2, "bytes", 1000));
    assert_false(estimate.whole);
    assert_int_equal(estimate.sample_documents, 1000);
    // Lengths of the sample differ from the mean by at most two standard errors (58 / sqrt(1000)), about 2 %.
    assert_true(fabs(estimate.documents / 30000 - 1) < 0.03);
    assert_true(fabs(estimate.tokens / (30000 * 201.0) - 1) < 0.03);
}

static void test_documents_for_a_target_have_a_buffer(void **state) {
    (void)state;
    const char *input = corpus("buffer.jsonl", 2000);
    const ReaderOptions options = {0};
    Estimate estimate;
    assert_ok(estimate_run(&estimate, &options, &input, 1, "bytes", 500));
    double needed = estimate_documents_for(&estimate, 201000);
    assert_true(needed > 1000 && needed < 1200);
}

static void test_without_a_tokenizer_tokens_are_guessed(void **state) {
    (void)state;
    const char *input = corpus("guess.jsonl", 500);
    const ReaderOptions options = {0};
    Estimate estimate;
    assert_ok(estimate_run(&estimate, &options, &input, 1, NULL, 100));
    assert_int_equal(estimate.vocab_size, 0);
    assert_true(estimate.mean_tokens > 200 / 6.0 && estimate.mean_tokens < 200 / 3.0);
}

static void test_input_without_documents_is_refused(void **state) {
    (void)state;
    const char *input = temporary_file("none.jsonl", "\n\n", 2);
    const ReaderOptions options = {0};
    Estimate estimate;
    assert_error(estimate_run(&estimate, &options, &input, 1, "bytes", 100), "holds no documents");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_of_everything_is_exact),
        cmocka_unit_test(test_small_sample_comes_near),
        cmocka_unit_test(test_documents_for_a_target_have_a_buffer),
        cmocka_unit_test(test_without_a_tokenizer_tokens_are_guessed),
        cmocka_unit_test(test_input_without_documents_is_refused),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
