// Pages as text and as HTML, and the lines at the end of a run.
#include "testing.h"

#include "watch/plan_text.h"

static Document *example(void) {
    Document *document = document_create("Plan of x < y");
    document_section(document, "Memory & more", "lr", "kind\tGiB");
    document_row(document, "%s\t%.1f", "weights", 12.5);
    document_row(document, "%s\t%.1f", "größe", 1.0);
    document_note(document, "below %d %%", 90);
    document_svg(document, "<svg></svg>");
    document_section(document, "Empty cells", "lll", "");
    document_row(document, "a\t\t");
    return document;
}

static void text_is_aligned_by_characters(void **state) {
    (void)state;
    Document *document = example();
    TextBuffer out = {0};
    document_text(document, &out);
    assert_string_equal(out.data, "Plan of x < y\n"
                                  "\nMemory & more\n"
                                  "  kind      GiB\n"
                                  "  weights  12.5\n"
                                  "  größe     1.0\n"
                                  "  below 90 %\n"
                                  "\nEmpty cells\n"
                                  "  a\n");
    text_buffer_free(&out);
    document_free(document);
}

static void a_table_has_every_one_of_its_columns(void **state) {
    (void)state;
    enum { COLUMNS = 30 };
    char align[COLUMNS + 1] = "";
    TextBuffer row = {0}, text = {0}, html = {0};
    for (int i = 0; i < COLUMNS; i++) {
        align[i] = 'r';
        text_buffer_format(&row, "%sc%d", i ? "\t" : "", i);
    }
    Document *document = document_create("wide");
    document_section(document, "", align, row.data);
    document_row(document, "%s", row.data);
    document_text(document, &text);
    document_html(document, &html);
    assert_true(text_ends_with(text.data, "  c28  c29\n"));
    assert_non_null(strstr(html.data, "<td class=\"r\">c29</td></tr>"));
    text_buffer_free(&row);
    text_buffer_free(&text);
    text_buffer_free(&html);
    document_free(document);
}

static void html_is_one_escaped_page(void **state) {
    (void)state;
    Document *document = example();
    TextBuffer out = {0};
    document_html(document, &out);
    assert_true(text_starts_with(out.data, "<!DOCTYPE html>\n"));
    assert_true(text_ends_with(out.data, "</body></html>\n"));
    static const char *const parts[] = {"<title>Plan of x &lt; y</title>",
                                        "<h1>Plan of x &lt; y</h1>",
                                        "<h2>Memory &amp; more</h2>\n<table>\n",
                                        "<tr><th class=\"l\">kind</th><th class=\"r\">GiB</th></tr>\n",
                                        "<tr><td class=\"l\">weights</td><td class=\"r\">12.5</td></tr>\n",
                                        "</table>\n<p>below 90 %</p>\n<svg></svg>"};
    const char *at = out.data;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        at = strstr(at, parts[i]);
        if (!at) fail_msg("%s does not follow in\n%s", parts[i], out.data);
    }
    assert_null(strstr(out.data, "http")); // nothing that a reader without a network would miss
    text_buffer_free(&out);
    document_free(document);
}

static void the_end_of_a_run_says_predicted_measured_and_error(void **state) {
    (void)state;
    PlanPrediction prediction = {.memory.total = 2 * 0x1p30, .step = {.seconds = 0.11, .tokens_per_second = 900}};
    PlanMeasured measured = {.memory = 2 * 0x1p30, .step_seconds = 0.1, .tokens_per_second = 1000};
    TextBuffer out = {0};
    plan_outcome_text(&prediction, &measured, &out);
    assert_string_equal(out.data,
                        "  memory       predicted          2 GiB      measured          2 GiB      error +0.0 %\n"
                        "  step         predicted        110 ms       measured        100 ms       error +10.0 %\n"
                        "  throughput   predicted        900 tokens/s measured       1000 tokens/s error -10.0 %\n");
    text_buffer_free(&out);
    measured.memory_beside = 0x1p29;
    plan_outcome_text(&prediction, &measured, &out);
    assert_non_null(strstr(out.data, "error +0.0 %\n               512.0 MiB more are in use: CUDA's context"));
    text_buffer_free(&out);
    measured = (PlanMeasured){.step_seconds = 0.1, .tokens_per_second = 1000}; // memory is not known: not said
    plan_outcome_text(&prediction, &measured, &out);
    assert_true(text_starts_with(out.data, "  step "));
    text_buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_aligned_by_characters),
        cmocka_unit_test(a_table_has_every_one_of_its_columns),
        cmocka_unit_test(html_is_one_escaped_page),
        cmocka_unit_test(the_end_of_a_run_says_predicted_measured_and_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
