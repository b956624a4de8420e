// What GPUs have measured, as text: it survives a file, a run directory and a broadcast, and bad lines do no harm.
#include "base/file.h"
#include "ops/tune.h"
#include "testing.h"

#include <unistd.h>

static void text_gives_back_what_was_put(void **state) {
    (void)state;
    TuneFile *one = tune_open(NULL, "GPU A"), *other = tune_open(NULL, "GPU A");
    tune_put(one, "linear 3 64 64", "2");
    tune_put(one, "attention forward", "7");
    tune_put(one, "linear 3 64 64", "5"); // the last counts
    char *text = tune_text(one);
    tune_take(other, text);
    assert_string_equal(tune_get(other, "linear 3 64 64"), "5");
    assert_string_equal(tune_get(other, "attention forward"), "7");
    assert_int_equal(tune_known(other), 2);
    char *again = tune_text(other);
    assert_string_equal(again, text);
    free(text), free(again);
    tune_close(one);
    tune_close(other);
}

static void taken_lines_count_before_those_known(void **state) {
    (void)state;
    TuneFile *tune = tune_open(NULL, "GPU A");
    tune_put(tune, "key", "1");
    tune_put(tune, "other", "3");
    tune_take(tune, "GPU A\tkey\t2\n");
    assert_string_equal(tune_get(tune, "key"), "2");
    assert_string_equal(tune_get(tune, "other"), "3");
    tune_close(tune);
}

static void lines_of_other_gpus_and_torn_ones_are_passed_over(void **state) {
    (void)state;
    TuneFile *tune = tune_open(NULL, "GPU A");
    tune_take(tune, "GPU B\tkey\t1\nGPU A\tno value\n\nGPU AB\tkey\t1\nGPU A\tgood\t4\nGPU A\ttorn\t5");
    assert_int_equal(tune_known(tune), 1);
    assert_string_equal(tune_get(tune, "good"), "4");
    assert_null(tune_get(tune, "torn"));
    tune_close(tune);
}

static void what_is_asked_in_vain_is_missing_until_it_is_known(void **state) {
    (void)state;
    TuneFile *tune = tune_open(NULL, "GPU A");
    assert_null(tune_get(tune, "one"));
    assert_null(tune_get(tune, "two"));
    assert_null(tune_get(tune, "one"));
    assert_int_equal(tune_missing(tune), 2);
    assert_int_equal(tune_known(tune), 0);
    tune_take(tune, "GPU A\tone\t1\n");
    assert_int_equal(tune_missing(tune), 1);
    char *text = tune_text(tune);
    assert_string_equal(text, "GPU A\tone\t1\n");
    free(text);
    tune_clear(tune);
    assert_int_equal(tune_missing(tune) + tune_known(tune), 0);
    tune_close(tune);
}

static void the_file_gets_what_was_measured_and_not_what_was_taken(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-tune-XXXXXX";
    assert_true(close(mkstemp(path)) == 0);
    TuneFile *tune = tune_open(path, "GPU A");
    tune_put(tune, "measured", "1");
    tune_take(tune, "GPU A\ttaken\t2\n");
    tune_close(tune);
    tune = tune_open(path, "GPU A");
    assert_string_equal(tune_get(tune, "measured"), "1");
    assert_null(tune_get(tune, "taken"));
    tune_close(tune);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_gives_back_what_was_put),
        cmocka_unit_test(taken_lines_count_before_those_known),
        cmocka_unit_test(lines_of_other_gpus_and_torn_ones_are_passed_over),
        cmocka_unit_test(what_is_asked_in_vain_is_missing_until_it_is_known),
        cmocka_unit_test(the_file_gets_what_was_measured_and_not_what_was_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
