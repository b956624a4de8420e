// The command line of hearth calc: text, --json, --list and its errors, as a user sees them.
#include "caught.h"

#include "base/json.h"
#include "cli/commands.h"
#include "plan/calc.h"

#define RUN(output, ...) CAUGHT(output, cmd_calc, __VA_ARGS__)

static void text_shows_value_formula_and_convention(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "ring_allreduce_ms", "M_GB=2", "N=8", "bw_GBps=50", "latency_us=5"));
    assert_non_null(strstr(output, "ring_allreduce_ms = 70.07 ms\n"));
    assert_non_null(strstr(output, "2*M_GB*(N - 1)/N/bw_GBps*1000"));
    assert_non_null(strstr(output, "= 2*2*(8 - 1)/8/50*1000 + 2*(8 - 1)*5/1000\n"));
    assert_non_null(strstr(output, "convention  bandwidth per direction"));
    free(output);
}

static json_t *read_json(const char *text) {
    json_t *root = NULL;
    assert_ok(json_read_text(&root, text, strlen(text), "output"));
    return root;
}

static void json_is_one_object_with_a_full_number(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "--json", "zero_state_GB", "params_B=7", "stage=1", "N=3"));
    json_t *root = read_json(output);
    assert_string_equal(json_string_value(json_object_get(root, "quantity")), "zero_state_GB");
    assert_true(json_number_value(json_object_get(root, "value")) == 7 * (4 + 12 / 3.0));
    assert_string_equal(json_string_value(json_object_get(root, "unit")), "GB");
    assert_string_equal(json_string_value(json_object_get(root, "formula")), "params_B*(4 + 12/N) = 7*(4 + 12/3)");
    assert_true(json_is_string(json_object_get(root, "convention")));
    json_decref(root);
    free(output);
    assert_ok(RUN(&output, "hours_to_tokens", "tokens=10B", "tok_s=44942", "--json"));
    root = read_json(output);
    assert_true(json_real_value(json_object_get(root, "value")) == 10e9 / 44942 / 3600);
    json_decref(root);
    free(output);
}

static void json_of_a_shape_is_a_string(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "tp_col_shape", "d_in=8192", "d_out=8192", "tp=8", "--json"));
    json_t *root = read_json(output);
    assert_string_equal(json_string_value(json_object_get(root, "value")), "8192x1024");
    json_decref(root);
    free(output);
}

static void list_names_every_quantity_under_its_subject(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "--list"));
    int lines = 0;
    for (int s = 0; s < calc_subject_count; s++) {
        const char *heading = strstr(output, calc_subjects[s]->name);
        assert_non_null(heading);
        for (int i = 0; i < calc_subjects[s]->count; i++, lines++) {
            char *line = text_format("\n  %s ", calc_subjects[s]->quantities[i].name);
            assert_non_null(strstr(heading, line));
            free(line);
        }
    }
    int indented = 0;
    for (const char *at = output; (at = strstr(at, "\n  ")); at++)
        indented++;
    assert_int_equal(indented, lines); // one line each
    free(output);
}

static void list_with_a_word_shows_what_matches(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "--list", "bubble"));
    assert_non_null(strstr(output, "bubble_over_total_pct"));
    assert_null(strstr(output, "chinchilla_tokens"));
    free(output);
    assert_ok(RUN(&output, "--list", "ring_allreduce_ms")); // a name shows its inputs
    assert_non_null(strstr(output, "latency_us"));
    assert_non_null(strstr(output, "default 0"));
    free(output);
}

static void list_as_json_is_an_array(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "--list", "--json"));
    json_t *root = read_json(output);
    assert_int_equal(json_array_size(root), 136);
    json_decref(root);
    free(output);
}

static void help_is_no_error(void **state) {
    (void)state;
    char *output;
    assert_ok(RUN(&output, "--help"));
    assert_non_null(strstr(output, "usage: hearth calc QUANTITY"));
    free(output);
}

static void mistakes_are_usage_errors(void **state) {
    (void)state;
    char *output;
    assert_error(command_caught(&output, cmd_calc, 0, NULL), "needs a quantity");
    free(output);
    assert_error(RUN(&output, "--list", "zebra"), "no quantity matches \"zebra\"");
    assert_string_equal(output, "");
    free(output);
    assert_error(RUN(&output, "--list", "a", "b"), "--list takes one word");
    free(output);
    assert_error(RUN(&output, "--jsn"), "did you mean --json?");
    free(output);
    Status status = RUN(&output, "ring_allreduce_ms", "M_GB=-2", "N=8", "bw_GBps=50", "--json");
    assert_int_equal(status_code(status), STATUS_USAGE);
    assert_string_equal(output, ""); // nothing half-written for a program to read
    status_free(status);
    free(output);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_shows_value_formula_and_convention),
        cmocka_unit_test(json_is_one_object_with_a_full_number),
        cmocka_unit_test(json_of_a_shape_is_a_string),
        cmocka_unit_test(list_names_every_quantity_under_its_subject),
        cmocka_unit_test(list_with_a_word_shows_what_matches),
        cmocka_unit_test(list_as_json_is_an_array),
        cmocka_unit_test(help_is_no_error),
        cmocka_unit_test(mistakes_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
