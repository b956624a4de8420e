// Typed access to JSON and its errors.
#include "testing.h"

#include "base/json.h"

#include <unistd.h>

static json_t *parsed(const char *text) {
    json_t *root;
    assert_ok(json_read_text(&root, text, strlen(text), "t"));
    return root;
}

static void members_are_read_by_type(void **state) {
    (void)state;
    json_t *root = parsed("{\"i\": 42, \"d\": 0.5, \"b\": true, \"s\": \"text\", \"big\": 9223372036854775807}");
    int64_t i = 0, big = 0;
    double d = 0, from_int = 0;
    bool b = false;
    const char *s = NULL;
    assert_ok(json_get_int(root, "i", &i, "t"));
    assert_ok(json_get_int(root, "big", &big, "t"));
    assert_ok(json_get_double(root, "d", &d, "t"));
    assert_ok(json_get_double(root, "i", &from_int, "t"));
    assert_ok(json_get_bool(root, "b", &b, "t"));
    assert_ok(json_get_text(root, "s", &s, "t"));
    assert_int_equal(i, 42);
    assert_true(big == INT64_MAX);
    assert_true(d == 0.5 && from_int == 42 && b);
    assert_string_equal(s, "text");
    json_decref(root);
}

static void missing_and_null_keep_the_default(void **state) {
    (void)state;
    json_t *root = parsed("{\"n\": null}");
    int64_t i = 7;
    double d = 7;
    bool b = true;
    const char *s = "default";
    assert_ok(json_get_int(root, "n", &i, "t"));
    assert_ok(json_get_double(root, "absent", &d, "t"));
    assert_ok(json_get_bool(root, "n", &b, "t"));
    assert_ok(json_get_text(root, "absent", &s, "t"));
    assert_true(i == 7 && d == 7 && b);
    assert_string_equal(s, "default");
    assert_false(json_has(root, "n"));
    assert_false(json_has(root, "absent"));
    json_decref(root);
}

static void the_wrong_type_names_key_and_file(void **state) {
    (void)state;
    json_t *root = parsed("{\"x\": [1], \"f\": 1.5}");
    int64_t i;
    double d;
    bool b;
    const char *s;
    assert_error(json_get_int(root, "x", &i, "config.json"), "config.json: \"x\" must be an integer");
    assert_error(json_get_int(root, "f", &i, "config.json"), "\"f\" must be an integer");
    assert_error(json_get_double(root, "x", &d, "config.json"), "\"x\" must be a number");
    assert_error(json_get_bool(root, "x", &b, "config.json"), "\"x\" must be true or false");
    assert_error(json_get_text(root, "x", &s, "config.json"), "\"x\" must be a string");
    json_decref(root);
}

static void bad_json_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"{\"a\": 1,\n  x}", "t:2:3: not valid JSON"},
        {"", "t:1: not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"[1, 2", "not valid JSON"},
        {"{} x", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *root;
        assert_error(json_read_text(&root, bad[i].text, strlen(bad[i].text), "t"), bad[i].expected);
        assert_null(root);
    }
}

static void a_file_is_written_and_read_back_in_order(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-json-XXXXXX";
    close(mkstemp(path));
    json_t *root = parsed("{\"z\": 1, \"a\": [true, null, \"\\u0000\"], \"m\": {\"k\": 0.1}}"), *back;
    assert_ok(json_write_file(root, path));
    assert_ok(json_read_file(&back, path));
    assert_true(json_equal(root, back));
    char *text;
    size_t size;
    assert_ok(file_read(&text, &size, path));
    assert_true(strstr(text, "\"z\"") < strstr(text, "\"a\""));
    free(text);
    json_decref(root);
    json_decref(back);
    unlink(path);
    assert_error(json_read_file(&back, path), "no such file");
}

static void any_bytes_become_a_string(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", ""}, {"a/b", "a/b"}, {"r\xff", "r\ufffd"}, {"\xc3\xa9\xc3", "\xc3\xa9\ufffd"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *string = json_text(cases[i][0]);
        assert_string_equal(json_string_value(string), cases[i][1]);
        json_decref(string);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_read_by_type),
        cmocka_unit_test(missing_and_null_keep_the_default),
        cmocka_unit_test(the_wrong_type_names_key_and_file),
        cmocka_unit_test(bad_json_is_refused_with_its_place),
        cmocka_unit_test(a_file_is_written_and_read_back_in_order),
        cmocka_unit_test(any_bytes_become_a_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
