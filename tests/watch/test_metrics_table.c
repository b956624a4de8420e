// The table of metrics: its rows are consistent, values come back from lines by their keys, and the documentation is
// what the table says.
#include "testing.h"

#include "watch/metrics_table.h"

static void keys_and_tags_are_unique_and_every_row_is_whole(void **state) {
    (void)state;
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        assert_true(field->key[0] && field->meaning[0] && field->unit);
        assert_true(metrics_field_find(field->line, field->key) == field); // unique: the first of its name
        assert_true((field->scale == METRICS_UNPRINTED) == (field->print == NULL));
        if (field->print) {
            bool text = field->scale >= METRICS_COUNT;
            assert_true(text ? strstr(field->print, "%s") != NULL : strpbrk(field->print, "fge") != NULL);
        }
        for (int k = 0; k < i; k++)
            assert_false(field->tag && metrics_field(k)->tag && strcmp(field->tag, metrics_field(k)->tag) == 0);
    }
    assert_null(metrics_field_find(METRICS_STEP, "val_loss"));
    assert_null(metrics_field_find(METRICS_EVALUATION, "loss"));
}

// Whatever the type, what is written of a step is what is read from its line.
static void values_come_back_from_a_line(void **state) {
    (void)state;
    MetricsStep step = {.step = 3,
                        .tokens = INT64_C(123456789012),
                        .loss = 2.125,
                        .grad_norm = NAN,
                        .skipped = true,
                        .mfu = 0.25,
                        .time = 1700000000.125,
                        .moe_count = 1,
                        .moe_worst = {1.5, 0.5, 7}};
    ExpertLoad load = step.moe_worst;
    step.moe = &load;
    step.machine = (MachineReading){.gpu_clock = 1234, .gpu_power = 600, .host_bytes = 1e9};
    TextBuffer text = {0};
    metrics_line_write(METRICS_STEP, &step, &text);
    json_t *line;
    assert_ok(json_read_text(&line, text.data, text.length, "line"));
    assert_int_equal(metrics_line_kind(line), METRICS_STEP);
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        if (field->line != METRICS_STEP || field->type >= METRICS_FULL) continue;
        double value = metrics_field_value(field, &step), read = metrics_line_value(line, field->key);
        assert_int_equal(json_object_get(line, field->key) != NULL, metrics_field_present(field, &step));
        if (metrics_field_present(field, &step) && isfinite(value) ? read != value : !isnan(read))
            fail_msg("%s is %.17g and was read as %.17g", field->key, value, read);
    }
    assert_true(metrics_line_value(line, "gpu_throttled") == 0); // there is a GPU, and it is not
    assert_true(isnan(metrics_line_value(line, "comm_wait")) && isnan(metrics_line_value(line, "no such key")));
    json_decref(line);
    text_buffer_free(&text);
}

static void a_value_is_printed_for_people(void **state) {
    (void)state;
    static const struct {
        const char *key;
        double value;
        const char *text;
    } cases[] = {{"loss", 2.34567, "loss 2.3457"},       {"mfu", 0.4125, "MFU 41.2%"},
                 {"tokens", 1.24e9, "1.24B tok"},        {"tok_s", 12345.6, "12,346 tok/s"},
                 {"memory_bytes", 12 << 20, "12.0 MiB"}, {"elapsed", 245, "after 4m 05s"}};
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(metrics_field_print(metrics_field_find(METRICS_STEP, cases[i].key), cases[i].value, out),
                            cases[i].text);
}

static void the_documentation_has_the_table(void **state) {
    (void)state;
    char *page;
    size_t size;
    TextBuffer table = {0};
    metrics_table_markdown(&table);
    assert_ok(file_read(&page, &size, "docs/metrics.md"));
    if (!strstr(page, table.data)) fail_msg("docs/metrics.md has an old table; `hearth runs keys` prints the new one");
    free(page);
    text_buffer_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_tags_are_unique_and_every_row_is_whole),
        cmocka_unit_test(values_come_back_from_a_line),
        cmocka_unit_test(a_value_is_printed_for_people),
        cmocka_unit_test(the_documentation_has_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
