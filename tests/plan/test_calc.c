// hearth calc reproduces every vector, and every quantity of the registry is described in full.
#include "plan/calc_vectors.h"

static double relative_error(double value, double expected) {
    return expected == 0 ? fabs(value) : fabs(value / expected - 1);
}

// The value in full precision, and the document's own rounding within its tolerance.
static bool row_holds(const VectorTable *table, int row, const CalcResult *result, double *worst) {
    const char *exact = vector_get(table, row, VECTOR_EXACT), *printed = vector_get(table, row, VECTOR_PRINTED);
    if (result->text) return strcmp(result->text, exact) == 0;
    double error = relative_error(result->value, strtod(exact, NULL));
    if (error > *worst) *worst = error;
    if (!(error <= 1e-9)) return false;
    double tolerance = strtod(vector_get(table, row, VECTOR_TOLERANCE), NULL);
    return !*printed || relative_error(result->value, strtod(printed, NULL)) <= tolerance;
}

static void every_vector_is_reproduced(void **state) {
    (void)state;
    VectorTable table = vector_table_read();
    int held = 0, textual = 0;
    double worst = 0;
    for (int row = 0; row < table.rows; row++) {
        char *words[VECTOR_WORDS_MAX];
        int count = vector_words(vector_get(&table, row, VECTOR_INPUTS), words);
        CalcResult result;
        const char *id = vector_get(&table, row, VECTOR_ID), *quantity = vector_get(&table, row, VECTOR_QUANTITY);
        Status status = calc_evaluate(&result, quantity, (const char *const *)words, count);
        if (status) {
            printf("%s: %s\n", id, status_text(status));
            status_free(status);
        } else if (!row_holds(&table, row, &result, &worst)) {
            printf("%s: %s = %s%.17g, expected %s\n", id, quantity, result.text ? result.text : "", result.value,
                   vector_get(&table, row, VECTOR_EXACT));
        } else {
            held++;
            textual += result.text != NULL;
        }
        calc_result_free(&result);
        vector_words_free(words, count);
    }
    printf("vectors: %d of %d hold, %d of them textual; worst relative error %.2g\n", held, table.rows, textual, worst);
    assert_true(table.rows > 0);
    assert_int_equal(held, table.rows);
    vector_table_free(&table);
}

static void units_are_those_of_the_vectors(void **state) {
    (void)state;
    VectorTable table = vector_table_read();
    for (int row = 0; row < table.rows; row++) {
        const CalcQuantity *quantity = calc_find(vector_get(&table, row, VECTOR_QUANTITY));
        assert_non_null(quantity);
        const char *unit = vector_get(&table, row, VECTOR_UNIT);
        // One vector reads a learning rate of 1 as a factor.
        if (strcmp(quantity->unit, "") == 0 && strcmp(unit, "x") == 0) continue;
        assert_string_equal(quantity->unit, unit);
    }
    vector_table_free(&table);
}

// Figures printed in the documents that are wrong: the correct value must not be near them.
static void wrong_figures_of_the_documents_are_not_reproduced(void **state) {
    (void)state;
    static const struct {
        const char *quantity, *words[8];
        double wrong;
    } cases[] = {
        {"hours_to_tokens", {"tokens=10B", "tok_s=59037"}, 47.5},
        {"goal_docs_floor", {"target_tokens=20B", "avg_tokens_per_doc=999", "buffer=0.25"}, 24e6},
        {"tp_allreduce_MB", {"b=1", "s=4096", "d=8192", "bytes_per=2", "tp=8"}, 56},
        {"hier_intra_ms", {"S_GB=20", "gpus_per_node=8", "nvlink_GBps=600"}, 10},
        {"min_microbatches", {"p=8", "v=2", "limit_pct=5", "denom=ideal"}, 70},
        {"implied_mfu_pct_from_days",
         {"params=405B", "tokens=15.6T", "peak_tflops=989", "n_gpus=16384", "days=54"},
         48},
        {"crash_cost_usd", {"n_gpus=512", "usd_h=2", "interval_min=68", "recovery_s=98"}, 618},
        {"ga_step_ms", {"accum=64", "micro_ms=120", "ar_ms=50"}, 7731},
        {"ring_allreduce_GB_per_gpu", {"M_GB=7.38", "N=128"}, 14.63},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int count = 0;
        while (cases[i].words[count])
            count++;
        CalcResult result;
        assert_ok(calc_evaluate(&result, cases[i].quantity, cases[i].words, count));
        assert_true(relative_error(result.value, cases[i].wrong) > 1e-4);
        assert_non_null(result.note); // and the note says why
        calc_result_free(&result);
    }
}

static void every_quantity_is_described(void **state) {
    (void)state;
    int count = 0, notes = 0;
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++, count++) {
            const CalcQuantity *quantity = &calc_subjects[s]->quantities[i];
            assert_ptr_equal(calc_find(quantity->name), quantity); // names are unique
            assert_true(quantity->summary && *quantity->summary && quantity->unit);
            assert_true(quantity->formula && *quantity->formula);
            assert_true(quantity->convention && *quantity->convention && quantity->note);
            notes += *quantity->note != 0;
            int inputs = calc_input_count(quantity);
            assert_true(inputs > 0);
            if (quantity->function.arity > 0) assert_int_equal(quantity->function.arity, inputs);
            for (int k = 0; k < inputs; k++) {
                const CalcInput *input = &quantity->inputs[k];
                assert_true(input->unit && input->kind && input->meaning && *input->meaning);
                assert_int_equal(input->kind == CALC_CHOICE, input->choices != NULL);
            }
        }
    printf("registry: %d quantities in %d subjects, %d with a note\n", count, calc_subject_count, notes);
    assert_int_equal(count, 136);
}

static void numbers_may_be_written_in_many_ways(void **state) {
    (void)state;
    static const char *const spellings[] = {"params=7B",       "params=7e9",    "params=7_000_000_000",
                                            "params=7000M",    "params=0.007T", "params=7000000000.0",
                                            "params=7000000K", "params=7e+9"};
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        CalcResult result;
        assert_ok(calc_evaluate(&result, "chinchilla_tokens", &spellings[i], 1));
        assert_true(result.value == 140e9);
        calc_result_free(&result);
    }
}

static void order_of_inputs_and_given_defaults_do_not_matter(void **state) {
    (void)state;
    const char *forward[] = {"M_GB=2", "N=8", "bw_GBps=50"},
               *backward[] = {"latency_us=0", "bw_GBps=50", "N=8", "M_GB=2"};
    CalcResult a, b;
    assert_ok(calc_evaluate(&a, "ring_allreduce_ms", forward, 3));
    assert_ok(calc_evaluate(&b, "ring_allreduce_ms", backward, 4));
    assert_true(a.value == b.value && a.value == 70);
    assert_string_equal(a.numbers, b.numbers);
    assert_string_equal(a.numbers, "2*2*(8 - 1)/8/50*1000 + 2*(8 - 1)*0/1000");
    assert_string_equal(a.expression, "2*M_GB*(N - 1)/N/bw_GBps*1000 + 2*(N - 1)*latency_us/1000");
    calc_result_free(&a);
    calc_result_free(&b);
}

static void words_of_choices_may_be_spelled_freely(void **state) {
    (void)state;
    static const char *const yes[] = {"exact=true", "exact=True", "exact=1", "exact=yes"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        const char *words[] = {"params_B=7", "N=64", "bw_GBps=100", yes[i]};
        CalcResult result;
        assert_ok(calc_evaluate(&result, "zero3_comm_ms", words, 4));
        assert_true(fabs(result.value - 413.4375) < 1e-9);
        calc_result_free(&result);
    }
}

static void shapes_and_splits_are_text(void **state) {
    (void)state;
    const char *uneven[] = {"layers=126", "p=16"}, *even[] = {"layers=128", "p=16"};
    CalcResult result;
    assert_ok(calc_evaluate(&result, "pp_layer_split", uneven, 2));
    assert_string_equal(result.text, "14x8+2x7");
    calc_result_free(&result);
    assert_ok(calc_evaluate(&result, "pp_layer_split", even, 2));
    assert_string_equal(result.text, "16x8");
    calc_result_free(&result);
}

static void an_impossible_mfu_is_flagged(void **state) {
    (void)state;
    const char *words[] = {"flops_per_token=9025499136", "tok_s=113430.2", "peak_tflops=989.5", "n_gpus=1"};
    CalcResult result;
    assert_ok(calc_evaluate(&result, "mfu_pct", words, 4));
    assert_non_null(strstr(result.note, "over 100 %"));
    calc_result_free(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_is_reproduced),
        cmocka_unit_test(units_are_those_of_the_vectors),
        cmocka_unit_test(wrong_figures_of_the_documents_are_not_reproduced),
        cmocka_unit_test(every_quantity_is_described),
        cmocka_unit_test(numbers_may_be_written_in_many_ways),
        cmocka_unit_test(order_of_inputs_and_given_defaults_do_not_matter),
        cmocka_unit_test(words_of_choices_may_be_spelled_freely),
        cmocka_unit_test(shapes_and_splits_are_text),
        cmocka_unit_test(an_impossible_mfu_is_flagged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
