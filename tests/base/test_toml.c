// The TOML reader against tables of valid and invalid documents. toml_compare.py adds thousands of random ones.
#include "testing.h"

#include "base/toml.h"

#include <unistd.h>

typedef struct Case {
    const char *document;
    const char *expected; // part of the error for the invalid ones, else the flat dump
} Case;

#define TEXT(document) document, sizeof(document) - 1

// A flat dump: every leaf as path=value separated by spaces.
static void flatten(const TomlValue *value, const char *path, TextBuffer *out) {
    if (value->type == TOML_ARRAY || value->type == TOML_TABLE) {
        if (!value->length) text_buffer_format(out, "%s=%s ", path, value->type == TOML_ARRAY ? "[]" : "{}");
        for (size_t i = 0; i < value->length; i++) {
            char *inner = value->type == TOML_ARRAY ? text_format("%s[%zu]", path, i)
                                                    : text_format("%s%s%s", path, *path ? "." : "", value->keys[i]);
            flatten(value->values[i], inner, out);
            free(inner);
        }
        return;
    }
    text_buffer_format(out, "%s=", path);
    switch (value->type) {
    case TOML_STRING: text_buffer_format(out, "'%s'", value->text); break;
    case TOML_INTEGER: text_buffer_format(out, "%lld", (long long)value->integer); break;
    case TOML_FLOAT: text_buffer_format(out, "%gf", value->number); break;
    case TOML_BOOLEAN: text_buffer_format(out, "%s", value->boolean ? "true" : "false"); break;
    default: text_buffer_format(out, "%s", value->text); break;
    }
    text_buffer_add(out, " ", 1);
}

static const Case valid[] = {
    // documents and white space
    {"", "={} "},
    {"\n\n  \t\n# a comment\n", "={} "},
    {"\xef\xbb\xbf"
     "a = 1",
     "a=1 "},
    {"a = 1\r\nb = 2\r\n", "a=1 b=2 "},
    {"a=1#no blank", "a=1 "},
    // keys
    {"bare-key_1 = 1\n1234 = 2\n- = 3", "bare-key_1=1 1234=2 -=3 "},
    {"\"quoted key\" = 1\n'lit#eral' = 2\n\"\" = 3", "quoted key=1 lit#eral=2 =3 "},
    {"a . b\t.c = 1\na.b.d = 2", "a.b.c=1 a.b.d=2 "},
    {"3.14 = 'pi'", "3.14='pi' "},
    {"\"\\u00e9\" = 1", "\xc3\xa9=1 "},
    // strings
    {"a = \"b\\b t\\t n\\n f\\f r\\r q\\\" s\\\\\"", "a='b\b t\t n\n f\f r\r q\" s\\' "},
    {"a = \"\\u20AC \\U0001F600\"", "a='\xe2\x82\xac \xf0\x9f\x98\x80' "},
    {"a = 'C:\\new\\u0000'", "a='C:\\new\\u0000' "},
    {"a = \"\"\"\nfirst\r\nsecond\"\"\"", "a='first\nsecond' "},
    {"a = \"\"\"one \\  \n\n   two\"\"\"", "a='one two' "},
    {"a = \"\"\"\"\"two quotes\"\"\"\"\"", "a='\"\"two quotes\"\"' "},
    {"a = \"\"\"x\\\"\"\"\"", "a='x\"' "},
    {"a = '''\n'' \\n '''''", "a=''' \\n ''' "},
    {"a = \"\"\nb = ''\nc = \"\"\"\"\"\"\nd = ''''''", "a='' b='' c='' d='' "},
    {"a = 'tab\there'", "a='tab\there' "},
    // integers
    {"a = +99\nb = -17\nc = 0\nd = -0\ne = 1_000_000", "a=99 b=-17 c=0 d=0 e=1000000 "},
    {"a = 0xDEAD_beef\nb = 0o755\nc = 0b1101_0110\nd = 0x00", "a=3735928559 b=493 c=214 d=0 "},
    {"a = 9223372036854775807\nb = -9223372036854775808\nc = 0x7fffffffffffffff",
     "a=9223372036854775807 b=-9223372036854775808 c=9223372036854775807 "},
    // floats
    {"a = 3.14\nb = -0.01\nc = 5e+22\nd = 1E06\ne = 6.626e-34\nf = 9_224.1_2", "a=3.14f b=-0.01f c=5e+22f d=1e+06f "
                                                                               "e=6.626e-34f f=9224.12f "},
    {"a = inf\nb = +inf\nc = -inf\nd = nan\ne = -0.0", "a=inff b=inff c=-inff d=nanf e=-0f "},
    {"a = 1e-400", "a=0f "},
    // booleans
    {"a = true\nb = false", "a=true b=false "},
    // dates and times
    {"a = 1979-05-27T07:32:00Z\nb = 1979-05-27 00:32:00.999999-07:00",
     "a=1979-05-27T07:32:00Z b=1979-05-27 00:32:00.999999-07:00 "},
    {"a = 1979-05-27t07:32:00z # c", "a=1979-05-27t07:32:00z "},
    {"a = 1979-05-27T07:32:00.5\nb = 2024-02-29\nc = 23:59:60.1", "a=1979-05-27T07:32:00.5 b=2024-02-29 c=23:59:60.1 "},
    {"a = 1979-05-27 # not a time", "a=1979-05-27 "},
    // arrays
    {"a = [1, 'x', 2.5, [true], {b = 1}]", "a[0]=1 a[1]='x' a[2]=2.5f a[3][0]=true a[4].b=1 "},
    {"a = [ # c\n 1, # one\n\n 2,\n]\nb = []\nc = [\n]", "a[0]=1 a[1]=2 b=[] c=[] "},
    {"a = [[1,2],[3]]", "a[0][0]=1 a[0][1]=2 a[1][0]=3 "},
    // inline tables
    {"a = {}\nb = { x = 1, y.z = 'q', y.w = 2 }", "a={} b.x=1 b.y.z='q' b.y.w=2 "},
    {"a = {b = [\n1,\n2]}", "a.b[0]=1 a.b[1]=2 "},
    // tables
    {"[a]\nx = 1\n[b.c]\ny = 2\n[b]\nz = 3", "a.x=1 b.c.y=2 b.z=3 "},
    {"[ a . \"b.c\" ]\nx = 1", "a.b.c.x=1 "},
    {"[a]\nb.c = 1\n[a.b.d]\ne = 2", "a.b.c=1 a.b.d.e=2 "},
    {"[a.b.c]\nx = 1\n[a]\nb.y = 2", "a.b.c.x=1 a.b.y=2 "},
    // arrays of tables
    {"[[a]]\nx = 1\n[[a]]\n[[a]]\nx = 3", "a[0].x=1 a[1]={} a[2].x=3 "},
    {"[[a]]\n[a.b]\nx = 1\n[[a.c]]\ny = 2\n[[a]]\n[a.b]\nx = 3", "a[0].b.x=1 a[0].c[0].y=2 a[1].b.x=3 "},
    {"[[a.b]]\nx = 1\n[a]\ny = 2", "a.b[0].x=1 a.y=2 "},
};

static const Case invalid[] = {
    // characters
    {"a = \"\x01\"", "t:1:6: control character U+0001 is not allowed"},
    {"# \x7f", "t:1:3: control character U+007F"},
    {"a = 1\n# x\ry", "t:2:4: a carriage return stands without the line feed"},
    {"a = 'x\ry'", "t:1:7: a carriage return"},
    {"# \xff", "t:1:3: byte 0xFF is not valid UTF-8"},
    {"a = '\xc0\xaf'", "t:1:6: byte 0xC0 is not valid UTF-8"},
    {"a = '\xed\xa0\x80'", "t:1:6: byte 0xED is not valid UTF-8"},
    {"a = '\xf4\x90\x80\x80'", "t:1:6: byte 0xF4 is not valid UTF-8"},
    {"a = '\xe2\x82", "t:1:6: byte 0xE2 is not valid UTF-8"},
    // keys
    {"a", "t:1:2: expected '=' after the key, found the end of the document"},
    {"= 1", "t:1:1: expected a key, found '='"},
    {"a b = 1", "t:1:3: expected '=' after the key, found 'b'"},
    {"a. = 1", "t:1:4: expected a key, found '='"},
    {".a = 1", "t:1:1: expected a key, found '.'"},
    {"a..b = 1", "t:1:3: expected a key, found '.'"},
    {"\xc3\xa9 = 1", "t:1:1: expected a key, found '\xc3\xa9'"},
    {"\"\"\"a\"\"\" = 1", "t:1:1: a key cannot be a multi-line string"},
    {"\"a = 1", "t:1:1: the string that opens here is not closed"},
    {"a\n= 1", "t:1:2: expected '=' after the key, found the end of the line"},
    // values
    {"a =", "t:1:4: expected a value, found the end of the document"},
    {"a = # c", "t:1:5: expected a value, found a comment"},
    {"a = \nb = 1", "t:1:5: expected a value, found the end of the line"},
    {"a = 1 b = 2", "t:1:7: expected the end of the line after a value, found 'b'"},
    {"a = 1, 2", "t:1:6: expected the end of the line after a value, found ','"},
    {"optimizer = adamw", "t:1:13: adamw is not a value\n  hint: a string is written in quotes: \"adamw\""},
    {"a = True", "t:1:5: True is not a value\n  hint: booleans are written true and false"},
    {"a = trueish", "t:1:5: trueish is not a value"},
    {"a = @", "t:1:5: expected a value, found '@'"},
    // strings
    {"a = \"x", "t:1:5: the string that opens here is not closed on its line"},
    {"a = \"x\ny\"", "t:1:5: the string that opens here is not closed on its line"},
    {"a = 'it''s'", "t:1:9: expected the end of the line after a value, found '''"},
    {"\n\na = \"\"\"x\n\n", "t:3:5: the multi-line string that opens here is not closed"},
    {"a = '''x''", "t:1:5: the multi-line string"},
    {"a = \"C:\\new\\path\"", "t:1:12: unknown escape in a string"},
    {"a = \"\xc3\xa9\xc3\xa9\\q\"", "t:1:8: unknown escape in a string"},
    {"a = \"\"\"\nok\n  \\q\"\"\"", "t:3:3: unknown escape in a string"},
    {"a = \"\\u12\"", "t:1:6: \\u takes exactly 4 hexadecimal digits"},
    {"a = \"\\U0001F60\"", "t:1:6: \\U takes exactly 8 hexadecimal digits"},
    {"a = \"\\ud800\"", "t:1:6: U+D800 is not a Unicode character"},
    {"a = \"\\U00110000\"", "t:1:6: U+110000 is not a Unicode character"},
    {"a = \"x\\\n y\"", "t:1:5: the string that opens here is not closed"},
    // numbers
    {"a = 9223372036854775808", "t:1:5: 9223372036854775808 does not fit a 64-bit integer"},
    {"a = -9223372036854775809", "t:1:5: -9223372036854775809 does not fit"},
    {"a = 0x8000000000000000", "t:1:5: 0x8000000000000000 does not fit"},
    {"a = 012", "t:1:5: a number does not start with 0"},
    {"a = -00.5", "t:1:5: a number does not start with 0"},
    {"a = 1__0", "t:1:5: not a number: 1__0"},
    {"a = _1", "t:1:5: _1 is not a value"},
    {"a = 1_", "t:1:5: not a number"},
    {"a = 0x", "t:1:5: not a number"},
    {"a = 0x_1", "t:1:5: after 0x, 0o or 0b come only digits"},
    {"a = 0o8", "t:1:5: after 0x, 0o or 0b come only digits"},
    {"a = 0b12", "t:1:5: after 0x, 0o or 0b come only digits"},
    {"a = +0x1", "t:1:5: not a number"},
    {"a = 0X1", "t:1:5: not a number"},
    {"a = 1.", "t:1:5: a decimal point has digits on both sides"},
    {"a = .5", "t:1:5: not a number"},
    {"a = 1._5", "t:1:5: a decimal point has digits on both sides"},
    {"a = 1.e5", "t:1:5: a decimal point has digits on both sides"},
    {"a = 1e", "t:1:5: an exponent needs digits"},
    {"a = 1e5.0", "t:1:5: not a number"},
    {"a = 1e999", "t:1:5: 1e999 is too large for a double"},
    {"a = --1", "t:1:5: not a number"},
    {"a = Inf", "t:1:5: Inf is not a value"},
    {"a = +", "t:1:5: not a number"},
    {"lr = 3e-4x", "t:1:6: not a number: 3e-4x"},
    // dates and times
    {"a = 2023-02-29", "t:1:5: this month has no such day: 2023-02-29"},
    {"a = 1900-02-29", "t:1:5: this month has no such day"},
    {"a = 2023-04-31", "t:1:5: this month has no such day"},
    {"a = 2023-01-00", "t:1:5: this month has no such day"},
    {"a = 2023-13-01", "t:1:5: the month of a date is 01 to 12"},
    {"a = 2023-1-01", "t:1:5: a date is written YYYY-MM-DD"},
    {"a = 24:00:00", "t:1:5: the hour of a time is 00 to 23"},
    {"a = 23:60:00", "t:1:5: the minute of a time is 00 to 59"},
    {"a = 23:59:61", "t:1:5: the second of a time is 00 to 60"},
    {"a = 07:32", "t:1:5: a time is written HH:MM:SS"},
    {"a = 07:32:00.", "t:1:5: a fraction of a second needs a digit"},
    {"a = 07:32:00Z", "t:1:5: only a date with a time takes a time zone"},
    {"a = 1979-05-27T07:32:00+24:00", "t:1:5: a time zone is at most 23:59 away"},
    {"a = 1979-05-27T07:32:00+0100", "t:1:5: a time zone is written Z or +HH:MM"},
    {"a = 1979-05-27T", "t:1:5: a time is written HH:MM:SS"},
    {"a = 1979-05-27Z", "t:1:5: a date is followed by T or a space"},
    {"a = 1979-05-27  07:32:00", "t:1:17: expected the end of the line"},
    // arrays
    {"a = [1 2]", "t:1:8: expected ',' or ']' in an array, found '2'"},
    {"a = [1,,2]", "t:1:8: expected a value, found ','"},
    {"a = [,]", "t:1:6: expected a value, found ','"},
    {"a = 1\nb = [1,\n2\n", "t:2:5: the array that opens here is not closed"},
    {"a = [1]]", "t:1:8: expected the end of the line"},
    // inline tables
    {"a = {b = 1,}", "t:1:12: an inline table has no comma after its last value"},
    {"a = {b = 1,\nc = 2}", "t:1:12: an inline table stands on one line"},
    {"a = {b = 1\n}", "t:1:11: expected ',' or '}' in an inline table, found the end of the line"},
    {"a = {b = 1 c = 2}", "t:1:12: expected ',' or '}' in an inline table, found 'c'"},
    {"a = {", "t:1:6: expected a key, found the end of the document"},
    {"a = {b}", "t:1:7: expected '=' after the key, found '}'"},
    {"a = {b = 1, b = 2}", "t:1:13: b is already defined (line 1)"},
    {"a = {b = {}, b.c = 2}", "t:1:14: b is an inline table, which is complete"},
    // the same thing twice
    {"a = 1\nb = 2\na = 3", "t:3:1: a is already defined (line 1)"},
    {"a = 1\n\"a\" = 2", "t:2:1: a is already defined"},
    {"a = 1\na.b = 2", "t:2:1: a already has a value and is not a table"},
    {"a.b = 1\na = 2", "t:2:1: a is already defined"},
    {"a.b = 1\n[a]", "t:2:2: a is already defined (line 1)"},
    {"[a]\n[b]\n[a]", "t:3:2: a is already defined (line 1)"},
    {"[a]\nb = 1\n[a.b]", "t:3:4: a.b is already defined (line 2)"},
    {"[a]\nb = 1\n[a.b.c]", "t:3:4: a.b already has a value and is not a table"},
    {"[a]\nb.c = 1\n[a.b]", "t:3:4: a.b is already defined"},
    {"[a.b]\n[a]\nb.c = 1", "t:3:1: b already has a [header]; dotted keys cannot add to it (line 1)"},
    {"[a.b.c]\n[a]\nb.x = 1\n[a.b]", "t:4:4: a.b is already defined"},
    {"a = {}\n[a.b]", "t:2:2: a is an inline table, which is complete"},
    {"a = {}\na.b = 1", "t:2:1: a is an inline table, which is complete"},
    {"[[a]]\n[a]", "t:2:2: a is an array of tables"},
    {"[a]\n[[a]]", "t:2:3: a is already defined, not as an array of tables"},
    {"[a.b]\n[[a]]", "t:2:3: a is already defined, not as an array of tables"},
    {"a = []\n[[a]]", "t:2:3: a is already defined, not as an array of tables"},
    {"a = [{}]\n[a.b]", "t:2:2: a already has a value and is not a table"},
    {"[[a.b]]\n[a]\nb.c = 1", "t:3:1: b is an array of tables; dotted keys cannot add to it"},
    // headers
    {"[]", "t:1:2: expected a key, found ']'"},
    {"[[]]", "t:1:3: expected a key, found ']'"},
    {"[a", "t:1:3: expected ']' after the name of a table, found the end of the document"},
    {"[a.]", "t:1:4: expected a key, found ']'"},
    {"[a b]", "t:1:4: expected ']' after the name of a table, found 'b'"},
    {"[[a]", "t:1:4: expected ']]' after the name of a table, found ']'"},
    {"[[a] ]", "t:1:4: expected ']]' after the name of a table"},
    {"[a]]", "t:1:4: expected the end of the line after the name of a table, found ']'"},
    {"[a] b = 1", "t:1:5: expected the end of the line after the name of a table, found 'b'"},
    {"[a\n]", "t:1:3: expected ']' after the name of a table, found the end of the line"},
};

static void valid_documents_are_read(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        Toml toml;
        assert_ok(toml_parse(&toml, valid[i].document, strlen(valid[i].document), "t"));
        TextBuffer out = {0};
        flatten(toml.root, "", &out);
        if (strcmp(out.data, valid[i].expected))
            fail_msg("document %zu:\n%s\nread as %s\nexpected %s", i, valid[i].document, out.data, valid[i].expected);
        text_buffer_free(&out);
        toml_free(&toml);
    }
}

static void invalid_documents_are_refused_at_the_right_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        Toml toml;
        Status status = toml_parse(&toml, invalid[i].document, strlen(invalid[i].document), "t");
        if (!status) fail_msg("document %zu was accepted:\n%s", i, invalid[i].document);
        if (!text_starts_with(status_text(status), invalid[i].expected))
            fail_msg("document %zu:\n%s\nsaid %s\nexpected %s", i, invalid[i].document, status_text(status),
                     invalid[i].expected);
        assert_int_equal(status_code(status), STATUS_USAGE);
        assert_null(toml.root);
        status_free(status);
    }
}

// Every prefix of every document ends in a value or in an error, never in a read past the end (ASan watches).
static void truncated_documents_are_safe(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        for (size_t n = strlen(valid[i].document); n-- > 0;) {
            char *exact = n ? memcpy(xmalloc(n), valid[i].document, n) : NULL; // no NUL behind it
            Toml toml;
            status_free(toml_parse(&toml, n ? exact : "", n, "t"));
            toml_free(&toml);
            free(exact);
        }
    }
}

static void values_remember_their_place(void **state) {
    (void)state;
    Toml toml;
    assert_ok(toml_parse(&toml, TEXT("x = 1\n[train]\n\"\xc3\xa9\" = 2\n  lr  =  3e-4\n[[data.mix]]\n"), "t"));
    TomlValue *train = toml_get(toml.root, "train"), *lr = toml_get(train, "lr");
    assert_int_equal(train->line, 2);
    assert_int_equal(train->column, 1);
    assert_int_equal(lr->line, 4);
    assert_int_equal(lr->column, 10);
    assert_int_equal(toml_get(train, "\xc3\xa9")->column, 7); // columns count characters
    TomlValue *mix = toml_get(toml_get(toml.root, "data"), "mix");
    assert_int_equal(mix->type, TOML_ARRAY);
    assert_int_equal(mix->values[0]->line, 5);
    toml_free(&toml);
}

static void get_answers_null_for_what_is_absent(void **state) {
    (void)state;
    Toml toml;
    assert_ok(toml_parse(&toml, TEXT("a = 1"), "t"));
    assert_null(toml_get(toml.root, "b"));
    assert_null(toml_get(toml_get(toml.root, "a"), "b"));
    assert_null(toml_get(NULL, "a"));
    toml_free(&toml);
}

static void strings_and_keys_may_hold_nul(void **state) {
    (void)state;
    Toml toml;
    assert_ok(toml_parse(&toml, TEXT("\"k\\u0000x\" = \"a\\u0000b\"\nk = 1"), "t"));
    assert_int_equal(toml.root->length, 2);
    assert_int_equal(toml.root->key_lengths[0], 3);
    assert_int_equal(toml.root->values[0]->length, 3);
    assert_memory_equal(toml.root->values[0]->text, "a\0b", 4);
    assert_int_equal(toml_get(toml.root, "k")->type, TOML_INTEGER);
    toml_free(&toml);
}

static void a_nul_byte_is_refused(void **state) {
    (void)state;
    Toml toml;
    assert_error(toml_parse(&toml, TEXT("a = 1\n\0"), "t"), "t:2:1: control character U+0000");
}

static void nesting_is_bounded(void **state) {
    (void)state;
    static const struct {
        const char *before, *repeated;
    } deep[] = {{"a = ", "["}, {"a = ", "{a = "}, {"", "a."}, {"[", "a."}, {"[[", "a."}, {"a = ", "[{a.b.c = "}};
    for (size_t i = 0; i < sizeof deep / sizeof deep[0]; i++) {
        TextBuffer text = {0};
        text_buffer_format(&text, "%s", deep[i].before);
        for (int k = 0; k < 100000; k++)
            text_buffer_add(&text, deep[i].repeated, strlen(deep[i].repeated));
        Toml toml;
        assert_error(toml_parse(&toml, text.data, text.length, "t"), "values are nested more than 100 deep");
        text_buffer_free(&text);
    }
}

static void headers_into_nested_arrays_are_bounded(void **state) {
    (void)state;
    TextBuffer text = {0}, path = {0};
    for (int k = 0; k < 80; k++) { // each [[a.a.a]] adds an array and a table: 160 levels
        text_buffer_format(&path, "%sa", k ? "." : "");
        text_buffer_format(&text, "[[%s]]\n", path.data);
    }
    Toml toml;
    assert_error(toml_parse(&toml, text.data, text.length, "t"), "values are nested more than 100 deep");
    text_buffer_free(&text);
    text_buffer_free(&path);
}

static void files_are_read_and_named_in_errors(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-toml-XXXXXX";
    close(mkstemp(path));
    assert_ok(file_write_atomic(path, "a = 7\n", 6));
    Toml toml;
    assert_ok(toml_read_file(&toml, path));
    assert_int_equal(toml_get(toml.root, "a")->integer, 7);
    toml_free(&toml);
    assert_ok(file_write_atomic(path, "a = \n", 5));
    char *expected = text_format("%s:1:5: expected a value", path);
    assert_error(toml_read_file(&toml, path), expected);
    free(expected);
    unlink(path);
    assert_error(toml_read_file(&toml, path), "no such file");
}

static void every_type_has_a_name(void **state) {
    (void)state;
    assert_string_equal(toml_type_name(TOML_STRING), "a string");
    assert_string_equal(toml_type_name(TOML_DATETIME), "a date or time");
    assert_string_equal(toml_type_name(TOML_TABLE), "a table");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_documents_are_read),
        cmocka_unit_test(invalid_documents_are_refused_at_the_right_place),
        cmocka_unit_test(truncated_documents_are_safe),
        cmocka_unit_test(values_remember_their_place),
        cmocka_unit_test(get_answers_null_for_what_is_absent),
        cmocka_unit_test(strings_and_keys_may_hold_nul),
        cmocka_unit_test(a_nul_byte_is_refused),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(headers_into_nested_arrays_are_bounded),
        cmocka_unit_test(files_are_read_and_named_in_errors),
        cmocka_unit_test(every_type_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
