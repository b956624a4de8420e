// Text helpers, on the cases where rounding and limits show.
#include "testing.h"

static void formats_and_copies_own_their_text(void **state) {
    (void)state;
    char *text = text_format("%s has %d layers", "smollm", 32), *copy = text_copy(text), *part = text_copy_n(text, 6);
    assert_string_equal(text, "smollm has 32 layers");
    assert_string_equal(copy, text);
    assert_ptr_not_equal(copy, text);
    assert_string_equal(part, "smollm");
    free(text);
    free(copy);
    free(part);
}

static void prefixes_and_suffixes_are_whole(void **state) {
    (void)state;
    assert_true(text_starts_with("model.safetensors", "model."));
    assert_true(text_starts_with("model", ""));
    assert_false(text_starts_with("mod", "model"));
    assert_true(text_ends_with("text.jsonl.gz", ".gz"));
    assert_false(text_ends_with("gz", ".gz"));
    assert_true(text_ends_with("x", ""));
}

static void a_buffer_grows_and_stays_terminated(void **state) {
    (void)state;
    TextBuffer buffer = {0};
    for (int i = 0; i < 5000; i++)
        text_buffer_format(&buffer, "%d,", i % 10);
    text_buffer_add(&buffer, "a\0b", 3);
    assert_int_equal(buffer.length, 10003);
    assert_int_equal(buffer.data[buffer.length], 0);
    assert_memory_equal(buffer.data, "0,1,2,3,", 8);
    assert_memory_equal(buffer.data + 10000, "a\0b", 4);
    text_buffer_free(&buffer);
    assert_null(buffer.data);
}

static void whole_numbers_are_read_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool valid;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-17", true, -17},
        {"+5", true, 5},
        {"1_000_000", true, 1000000},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"12x", false, 0},
        {"_1", false, 0},
        {"1_", false, 0},
        {"1__0", false, 0},
        {"-", false, 0},
        {"0x10", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 0;
        bool valid = text_to_int64(cases[i].text, &value);
        if (valid != cases[i].valid || (valid && value != cases[i].value)) fail_msg("\"%s\"", cases[i].text);
    }
}

static void decimal_numbers_are_read_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool valid;
        double value;
    } cases[] = {
        {"3e-4", true, 3e-4},    {"1_000.5", true, 1000.5}, {"-0.25", true, -0.25},
        {"inf", true, INFINITY}, {".5", true, 0.5},         {"", false, 0},
        {"1.5x", false, 0},      {"1,5", false, 0},         {" 1", false, 0},
        {"_1", false, 0},        {"1._5", false, 0},        {"e5", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value = 0;
        bool valid = text_to_double(cases[i].text, &value);
        if (valid != cases[i].valid || (valid && value != cases[i].value)) fail_msg("\"%s\"", cases[i].text);
    }
}

static void counts_take_a_unit_in_either_case(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool valid;
        double value;
    } cases[] = {
        {"250_000", true, 250000}, {"500M", true, 5e8}, {"1.5k", true, 1500}, {"20B", true, 2e10},
        {"6g", true, 6e9},         {"2T", true, 2e12},  {"M", false, 0},      {"", false, 0},
        {"5MB", false, 0},         {"5 M", false, 0},   {"x", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value = 0;
        bool valid = text_to_count(cases[i].text, &value);
        if (valid != cases[i].valid || (valid && value != cases[i].value)) fail_msg("\"%s\"", cases[i].text);
    }
}

static void counts_read_well(void **state) {
    (void)state;
    char out[32];
    assert_string_equal(text_count(out, 0), "0");
    assert_string_equal(text_count(out, 999), "999");
    assert_string_equal(text_count(out, 1000), "1.00K");
    assert_string_equal(text_count(out, 12345), "12.3K");
    assert_string_equal(text_count(out, 361821120), "362M");
    assert_string_equal(text_count(out, 1235814400), "1.24B");
    assert_string_equal(text_count(out, 999999), "1.00M");
    assert_string_equal(text_count(out, -1500), "-1.50K");
    assert_string_equal(text_grouped(out, 1235814400), "1,235,814,400");
    assert_string_equal(text_grouped(out, 0), "0");
    assert_string_equal(text_grouped(out, -100), "-100");
    assert_string_equal(text_grouped(out, -1000), "-1,000");
    assert_string_equal(text_grouped(out, INT64_MIN), "-9,223,372,036,854,775,808");
}

static void numbers_are_as_short_as_they_can_be_and_read_back_the_same(void **state) {
    static const struct {
        double value;
        const char *text;
    } table[] = {{0, "0"},
                 {10000, "10000"},
                 {-3, "-3"},
                 {0.1, "0.1"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {1e-5, "1e-05"},
                 {2.5e-310, "2.5e-310"},
                 {999999999999999, "999999999999999"},
                 {1e15, "1e+15"},
                 {123456.5, "123456.5"},
                 {1.0 / 3, "0.3333333333333333"}};
    char out[32];
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        assert_string_equal(text_number(out, table[i].value), table[i].text);
        assert_true(strtod(out, NULL) == table[i].value);
    }
    assert_int_equal(text_digits(0.25), 2);
    assert_int_equal(text_digits(0.1 + 0.2), 17);
    assert_true(text_float_value(1e-5f) == 1e-5);
    assert_true(text_float_value(0.1f + 0.2f) == 0.3); // the nearest float of 0.3, unlike the doubles
    assert_true((float)text_float_value(16777217.0f / 3) == 16777217.0f / 3);
}

static void sizes_and_durations_read_well(void **state) {
    (void)state;
    char out[32];
    assert_string_equal(text_gib(out, 512), "512 B");
    assert_string_equal(text_gib(out, 1536), "1.5 KiB");
    assert_string_equal(text_gib(out, 12.0 * 1024 * 1024), "12.0 MiB");
    assert_string_equal(text_gib(out, 36.25 * 1024 * 1024 * 1024), "36.25 GiB");
    assert_string_equal(text_duration(out, 12.34), "12.3s");
    assert_string_equal(text_duration(out, 59.96), "1m 00s");
    assert_string_equal(text_duration(out, 245), "4m 05s");
    assert_string_equal(text_duration(out, 3599.7), "1h 00m");
    assert_string_equal(text_duration(out, 29.5 * 3600), "29h 30m");
    assert_string_equal(text_duration(out, 86400 * 12 + 3600 * 3), "12d 03h");
    assert_string_equal(text_duration(out, NAN), "?");
    assert_string_equal(text_duration(out, -1), "?");
}

static void a_slip_finds_the_nearest_name(void **state) {
    (void)state;
    static const char *const known[] = {"micro_batch", "grad_accum", "seq_len", "lr"};
    assert_string_equal(text_nearest("micro_bacth", known, 4), "micro_batch");
    assert_string_equal(text_nearest("Grad_Accum", known, 4), "grad_accum");
    assert_string_equal(text_nearest("seqlen", known, 4), "seq_len");
    assert_null(text_nearest("tokenizer", known, 4));
    assert_string_equal(text_nearest("steps", (const char *const[]){"stop"}, 1), "stop"); // two changes of five letters
    assert_null(text_nearest("steps", (const char *const[]){"slop"}, 1));                 // three: another word
    assert_null(text_nearest("x", known, 0));
    char longer[200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_null(text_nearest(longer, known, 4)); // far longer than any name: no match, no overflow
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_and_copies_own_their_text),
        cmocka_unit_test(prefixes_and_suffixes_are_whole),
        cmocka_unit_test(a_buffer_grows_and_stays_terminated),
        cmocka_unit_test(whole_numbers_are_read_or_refused),
        cmocka_unit_test(decimal_numbers_are_read_or_refused),
        cmocka_unit_test(counts_take_a_unit_in_either_case),
        cmocka_unit_test(counts_read_well),
        cmocka_unit_test(sizes_and_durations_read_well),
        cmocka_unit_test(numbers_are_as_short_as_they_can_be_and_read_back_the_same),
        cmocka_unit_test(a_slip_finds_the_nearest_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
