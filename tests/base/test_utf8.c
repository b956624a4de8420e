#include "base/utf8.h"
#include "testing.h"

static void malformed_bytes_are_found_to_the_last_rule(void **unused) {
    (void)unused;
    static const struct {
        const char *text;
        size_t malformed;
    } cases[] = {
        {"", 0},
        {"plain ascii, more than thirty-two bytes of it", 45},
        {"\xc2\x80", 2},
        {"\xdf\xbf", 2},
        {"\xe0\xa0\x80", 3},
        {"\xed\x9f\xbf", 3},
        {"\xee\x80\x80", 3},
        {"\xf0\x90\x80\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xf4\x90\x80\x80", 0},
        {"\xf5\x80\x80\x80", 0},
        {"\xed\xa0\x80", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xc1\xbf", 0},
        {"\x80", 0},
        {"a\xc3", 1},
        {"\xc3\xa9\xc3\xc3\xa9", 2},
        {"\xe2\x82z", 0},
        {"0123456789abcdef\xff", 16},
        {"0123456789abcdef0123456789abcdef\xff", 32},
        {"012345678901234\xc3\xa9", 17},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(utf8_first_malformed(cases[i].text, strlen(cases[i].text)), cases[i].malformed);
}

static void every_code_point_is_encoded_as_it_is_decoded(void **unused) {
    (void)unused;
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        uint8_t bytes[4];
        unsigned written = utf8_put(code, bytes), read, part;
        if (utf8_decode(bytes, &read) != code || read != written || utf8_check(bytes, written, &part) != written ||
            utf8_length(bytes[0]) != written || utf8_previous(bytes + written) != bytes ||
            utf8_count((char *)bytes, written) != 1)
            fail_msg("U+%04X", code);
    }
    char text[5] = {0};
    assert_int_equal(utf8_put(0x20ac, text), 3);
    assert_string_equal(text, "\xe2\x82\xac");
}

static void each_maximal_part_becomes_one_replacement_character(void **unused) {
    (void)unused;
    TextBuffer out = {0};
    const char text[] = "a\xe2\x82z\xf0\x90\x80\xff\xed\xa0\x80\xc3\xa9\xc3";
    utf8_repair(&out, text, sizeof text - 1);
#define R "\xef\xbf\xbd"
    assert_string_equal(out.data, "a" R "z" R R R R R "\xc3\xa9" R); // ED A0 80 is no part of anything: three
#undef R
    text_buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_bytes_are_found_to_the_last_rule),
        cmocka_unit_test(every_code_point_is_encoded_as_it_is_decoded),
        cmocka_unit_test(each_maximal_part_becomes_one_replacement_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
