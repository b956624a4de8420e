// A quantity solved for an input: what is found gives what was asked for, and what cannot be found is said.
#include "plan/calc_vectors.h"

// Every number of every vector is taken away and looked for. What is found need not be what was taken (several may do),
// but the quantity with it must be the vector's: to the 1e-12 that the solver stops at, and 1e-11 of the vector's own
// 12 digits.
static void every_input_of_every_vector_is_found_again(void **state) {
    (void)state;
    VectorTable table = vector_table_read();
    int solved = 0, refused = 0;
    for (int row = 0; row < table.rows; row++) {
        char *words[VECTOR_WORDS_MAX];
        const char *quantity = vector_get(&table, row, VECTOR_QUANTITY);
        int count = vector_words(vector_get(&table, row, VECTOR_INPUTS), words);
        CalcResult direct;
        assert_ok(calc_evaluate(&direct, quantity, (const char *const *)words, count));
        char *value = calc_number_text(direct.value);
        for (int open = 0; open < count && !direct.text; open++) {
            char *name = text_copy_n(words[open], strcspn(words[open], "="));
            char *kept = words[open], *asked = text_format("%s=?", name);
            CalcSolution solution;
            words[open] = asked;
            Status status = calc_solve(&solution, quantity, value, (const char *const *)words, count);
            if (status) { // a choice, or a quantity that does not depend on it, or numbers that do not divide
                refused++;
            } else {
                double error =
                    direct.value == 0 ? fabs(solution.result.value) : fabs(solution.result.value / direct.value - 1);
                if (error > 1e-11)
                    fail_msg("%s solved for %s: %.17g, not %s", quantity, name, solution.result.value, value);
                assert_string_equal(solution.input->name, name);
                solved++;
                calc_solution_free(&solution);
            }
            status_free(status);
            words[open] = kept;
            free(asked);
            free(name);
        }
        free(value);
        calc_result_free(&direct);
        vector_words_free(words, count);
    }
    vector_table_free(&table);
    print_message("%d inputs found, %d refused\n", solved, refused);
    assert_true(solved > 900);
    assert_true(refused < solved / 10);
}

#define SOLVE(solution, quantity, value, ...)                                 \
    calc_solve(solution, quantity, value, (const char *const[]){__VA_ARGS__}, \
               (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)))

static void the_input_that_is_left_out_is_found(void **state) {
    (void)state;
    CalcSolution solution;
    assert_ok(SOLVE(&solution, "ring_allreduce_ms", "70", "M_GB=2", "N=8"));
    assert_string_equal(solution.input->name, "bw_GBps");
    assert_true(solution.found == 50); // with the fewest digits
    assert_null(solution.note);
    calc_solution_free(&solution);
    assert_ok(SOLVE(&solution, "train_hours", "24", "params=8B", "peak_tflops=989", "n_gpus=64", "mfu=0.4"));
    assert_true(solution.found == 45573120000); // 24 * 3600 * 989e12 * 64 * 0.4 / 6 / 8e9
    calc_solution_free(&solution);
    // One with a default is found when it is asked for: 14 steps of latency are what 71.4 ms have more than 70.
    assert_ok(SOLVE(&solution, "ring_allreduce_ms", "71.4", "M_GB=2", "N=8", "bw_GBps=50", "latency_us=?"));
    assert_true(fabs(solution.found - 100) < 1e-8); // 71.4 - 70 cancels: 1e-12 * 71.4 / 0.014 of 1e-4
    calc_solution_free(&solution);
}

static void of_whole_numbers_the_nearest_is_taken_and_said(void **state) {
    (void)state;
    CalcSolution solution;
    assert_ok(SOLVE(&solution, "train_hours", "24", "params=8B", "tokens=160B", "peak_tflops=989", "mfu=0.4"));
    assert_true(solution.found == 225);
    assert_non_null(strstr(solution.note, "224 gives 24.0743 and 225 gives 23.9673"));
    calc_solution_free(&solution);
    assert_ok(SOLVE(&solution, "ring_steps", "14", "N=?"));
    assert_true(solution.found == 8);
    assert_null(solution.note);
    calc_solution_free(&solution);
}

static void what_cannot_be_found_is_said(void **state) {
    (void)state;
    CalcSolution s;
    assert_error(SOLVE(&s, "train_hours", "24", "params=8B", "peak_tflops=989", "mfu=0.4"),
                 "2 are open: tokens, n_gpus");
    assert_error(SOLVE(&s, "ring_allreduce_ms", "70", "M_GB=2", "N=8", "bw_GBps=50"), "all of its inputs are given");
    assert_error(SOLVE(&s, "train_hours", "0", "params=8B", "peak_tflops=989", "mfu=0.4", "n_gpus=8"),
                 "no tokens from");
    assert_error(SOLVE(&s, "zero_state_GB", "16", "params_B=7", "stage=?", "N=64"), "a choice of words");
    assert_error(SOLVE(&s, "tp_col_shape", "16", "d_in=8", "tp=2"), "is a text");
    assert_error(SOLVE(&s, "zero_state_GB", "113", "params_B=7", "stage=0", "N=?"), "does not depend on N");
    assert_error(SOLVE(&s, "train_hours", "soon", "params=8B"), "takes a number, not \"soon\"");
    assert_error(SOLVE(&s, "train_hour", "1", "params=8B"), "did you mean train_hours?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_input_of_every_vector_is_found_again),
        cmocka_unit_test(the_input_that_is_left_out_is_found),
        cmocka_unit_test(of_whole_numbers_the_nearest_is_taken_and_said),
        cmocka_unit_test(what_cannot_be_found_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
