// Readers of text and JSONL, plain and compressed: every document once, bad input named by place.
#include "data/reader.h"
#include "data/reader_jsonl.h"
#include "temporary.h"

#include <zlib.h>
#include <zstd.h>

// All documents of the inputs, each followed by '|'.
static Status all_texts(TextBuffer *out, ReaderCounts *counts, const ReaderOptions *options, const char *const *inputs,
                        size_t count) {
    Reader *reader;
    out->length = 0;
    text_buffer_add(out, "", 0);
    TRY(reader_open(&reader, options, inputs, count));
    Status status = NULL;
    for (;;) {
        Document document;
        bool more;
        status = reader_next(reader, &document, &more);
        if (status || !more) break;
        text_buffer_add(out, document.text, document.length);
        text_buffer_add(out, "|", 1);
    }
    if (counts) *counts = reader_counts(reader);
    reader_close(reader);
    return status;
}

static void assert_texts(const char *input, const ReaderOptions *options, const char *expected) {
    TextBuffer out = {0};
    assert_ok(all_texts(&out, NULL, options, &input, 1));
    assert_string_equal(out.data, expected);
    text_buffer_free(&out);
}

static void assert_refused(const char *input, const ReaderOptions *options, const char *part) {
    TextBuffer out = {0};
    assert_error(all_texts(&out, NULL, options, &input, 1), part);
    text_buffer_free(&out);
}

static const char *file(const char *name, const char *text) {
    return temporary_file(name, text, strlen(text));
}

// --- JSON lines -----------------------------------------------------------------------------------------------------

static void test_json_strings_decode(void **state) {
    (void)state;
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"{\"text\":\"plain\"}", "plain"},
        {" { \"a\" : [1, -2.5e+3, {\"text\": \"inner\"}], \"text\" : \"outer\" , \"b\" : null } ", "outer"},
        {"{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t"},
        {"{\"text\":\"\\u0041\\u00e9\\u20ac\"}", "A\xc3\xa9\xe2\x82\xac"},
        {"{\"text\":\"\\ud83d\\ude00\"}", "\xf0\x9f\x98\x80"},
        {"{\"text\":\"\xf0\x9f\x98\x80 raw \xe2\x82\xac\"}", "\xf0\x9f\x98\x80 raw \xe2\x82\xac"},
        {"{\"te\\u0078t\":\"escaped key\"}", "escaped key"},
        {"{\"text\":\"first\",\"text\":\"last wins\"}", "last wins"},
        {"{\"text\":\"\"}", ""},
        {"{\"text\":\"a string longer than the eight bytes that are looked at together\"}",
         "a string longer than the eight bytes that are looked at together"},
        {"{\"n\":0,\"m\":-0.0,\"e\":1E9,\"t\":true,\"f\":false,\"o\":{},\"l\":[],\"text\":\"after all kinds\"}",
         "after all kinds"},
    };
    JsonlRecord record = {0};
    const JsonlFields fields = {"text", NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (jsonl_scan(cases[i].line, strlen(cases[i].line), &fields, &record) != JSONL_TEXT)
            fail_msg("%s: %s", cases[i].line, record.reason);
        assert_int_equal(record.length, strlen(cases[i].text));
        assert_memory_equal(record.text, cases[i].text, record.length);
    }
    free(record.text);
}

static void test_malformed_lines_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *line, *reason;
        size_t offset;
    } cases[] = {
        {"", "not a JSON object", 0},
        {"[1]", "not a JSON object", 0},
        {"{\"text\":\"open", "does not end", 13},
        {"{\"text\":\"open\\", "does not end", 14},
        {"{\"text\":\"x\"", "ends inside", 11},
        {"{\"text\":\"x\",}", "key in quotes", 12},
        {"{\"text\":\"x\"} more", "after the object", 13},
        {"{\"text\" \"x\"}", "colon", 8},
        {"{\"text\":\"x\" \"b\":1}", "comma", 12},
        {"{\"text\":\"\\x\"}", "unknown escape", 10},
        {"{\"text\":\"\\u12g4\"}", "hexadecimal", 13},
        {"{\"text\":\"\\ud83d\"}", "high surrogate", 15},
        {"{\"text\":\"\\ud83d\\u0041\"}", "high surrogate", 21},
        {"{\"text\":\"\\ude00\"}", "low surrogate", 15},
        {"{\"text\":\"tab\there\"}", "control character", 12},
        {"{\"text\":\"\xff\"}", "malformed UTF-8", 9},
        {"{\"text\":\"\xc0\xaf\"}", "malformed UTF-8", 9},
        {"{\"text\":\"\xed\xa0\x80\"}", "malformed UTF-8", 9},
        {"{\"text\":5}", "not a string", 8},
        {"{\"text\":[\"x\"]}", "not a string", 8},
        {"{\"a\":01,\"text\":\"x\"}", "comma", 6},
        {"{\"a\":1.,\"text\":\"x\"}", "digit", 7},
        {"{\"a\":-,\"text\":\"x\"}", "digit", 6},
        {"{\"a\":1e,\"text\":\"x\"}", "digit", 7},
        {"{\"a\":tru,\"text\":\"x\"}", "value was expected", 5},
        {"{\"a\":[1 2]}", "comma", 8},
        {"{\"a\":[1,]}", "value was expected", 8},
        {"{\"a\":nan}", "value was expected", 5},
        {"{'text':'x'}", "key in quotes", 1},
    };
    JsonlRecord record = {0};
    const JsonlFields fields = {"text", NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (jsonl_scan(cases[i].line, strlen(cases[i].line), &fields, &record) != JSONL_BAD)
            fail_msg("%s was taken for good", cases[i].line);
        if (!strstr(record.reason, cases[i].reason)) fail_msg("%s: %s", cases[i].line, record.reason);
        if (record.offset != cases[i].offset) fail_msg("%s: offset %zu", cases[i].line, record.offset);
    }
    free(record.text);
}

static void test_deep_nesting_is_refused_without_a_crash(void **state) {
    (void)state;
    size_t depth = 1000000;
    char *line = xmalloc(depth + 6);
    memcpy(line, "{\"a\":", 5);
    memset(line + 5, '[', depth);
    JsonlRecord record = {0};
    const JsonlFields fields = {"text", NULL};
    assert_int_equal(jsonl_scan(line, depth + 5, &fields, &record), JSONL_BAD);
    assert_non_null(strstr(record.reason, "nested too deeply"));
    free(record.text);
    free(line);
}

static void test_scores_are_read_beside_the_text(void **state) {
    (void)state;
    JsonlRecord record = {0};
    const JsonlFields fields = {"text", "score"};
    const char *line = "{\"score\":3.25,\"text\":\"x\"}", *null = "{\"text\":\"x\",\"score\":null}";
    assert_int_equal(jsonl_scan(line, strlen(line), &fields, &record), JSONL_TEXT);
    assert_true(record.has_score && record.score == 3.25);
    assert_int_equal(jsonl_scan(null, strlen(null), &fields, &record), JSONL_TEXT);
    assert_false(record.has_score);
    free(record.text);
}

static void test_field_is_chosen_by_name(void **state) {
    (void)state;
    const ReaderOptions options = {.field = "body"};
    assert_texts(file("field.jsonl", "{\"text\":\"no\",\"body\":\"yes\"}\n"), &options, "yes|");
}

static void test_missing_field_names_line_and_option(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    const char *path = file("missing.jsonl", "{\"text\":\"a\"}\n{\"body\":\"b\"}\n");
    assert_refused(path, &options, "missing.jsonl:2:1: the object has no field \"text\"");
}

static void test_bad_line_is_named_with_line_column_and_byte(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    const char *path = file("bad.jsonl", "{\"text\":\"a\"}\n{\"text\":oops}\n");
    assert_refused(path, &options, "bad.jsonl:2:9: the field is not a string (byte 21 of the file)");
    path = file("bad.jsonl", "\xef\xbb\xbf{\"text\":oops}\n"); // a byte-order mark is part of the file
    assert_refused(path, &options, "bad.jsonl:1:9: the field is not a string (byte 11 of the file)");
}

static void test_missing_field_names_those_that_are_there(void **state) {
    (void)state;
    const ReaderOptions options = {.field = "txt"};
    const char *first = file("names.jsonl", "{\"id\":1,\"meta\":{\"txt\":2},\"text\":\"a\"}\n");
    assert_refused(first, &options, "names.jsonl:1:1: the object has no field \"txt\"");
    assert_refused(first, &options, "it has: id, meta, text; choose with --field");
    assert_refused(file("names.jsonl", "{}\n"), &options, "it has: none;");
    assert_refused(file("names.jsonl", "{\"txt\":\"a\"}\n{\"text\":\"b\"}\n"), &options,
                   "--skip-bad"); // one odd record
}

static void test_skip_bad_counts_and_goes_on(void **state) {
    (void)state;
    const ReaderOptions options = {.skip_bad = true};
    const char *path = file("skip.jsonl", "{\"text\":\"a\"}\nrubbish\n{\"text\":null}\n\n{\"text\":\"b\"}");
    TextBuffer out = {0};
    ReaderCounts counts;
    assert_ok(all_texts(&out, &counts, &options, &path, 1));
    assert_string_equal(out.data, "a|b|");
    assert_int_equal(counts.bad, 1);
    assert_int_equal(counts.nulls, 1);
    assert_int_equal(counts.documents, 2);
    text_buffer_free(&out);
}

static void test_mark_and_line_ends_of_windows_are_accepted(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_texts(file("windows.jsonl", "\xef\xbb\xbf{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n"), &options, "a|b|");
}

// --- text files -----------------------------------------------------------------------------------------------------

static void test_text_file_is_one_document(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_texts(file("whole.txt", "one\ntwo\n"), &options, "one\ntwo\n|");
}

static void test_lines_option_makes_a_document_a_line(void **state) {
    (void)state;
    const ReaderOptions options = {.lines = true};
    assert_texts(file("lines.txt", "one\r\n\ntwo\nthree"), &options, "one|two|three|");
}

static void test_malformed_text_is_refused_with_its_byte(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_refused(file("latin.txt", "caf\xe9"), &options, "malformed UTF-8 at byte 3");
}

// --- compressed files -----------------------------------------------------------------------------------------------

static const char *gzip_file(const char *name, const char *text, size_t size) {
    gzFile out = gzopen(temporary_path(name), "wb");
    assert_int_equal(gzwrite(out, text, (unsigned)size), size);
    gzclose(out);
    return temporary_path(name);
}

static void test_bytes_of_a_compressed_file_are_those_inside(void **state) {
    (void)state;
    const char text[] = "{\"text\":\"a\"}\n{\"text\":oops}\n";
    const ReaderOptions options = {0};
    assert_refused(gzip_file("bad.jsonl.gz", text, strlen(text)), &options,
                   "bad.jsonl.gz:2:9: the field is not a string (byte 21 of the decompressed file)");
}

static const char *zstd_file(const char *name, const char *text, size_t size) {
    size_t bound = ZSTD_compressBound(size);
    char *data = xmalloc(bound);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1); // as the program zstd does
    size_t bytes = ZSTD_compress2(context, data, bound, text, size);
    ZSTD_freeCCtx(context);
    const char *path = temporary_file(name, data, bytes);
    free(data);
    return path;
}

// Lines of every length around the chunk size, so that some straddle chunks; their texts are numbered.
static void long_lines(TextBuffer *out, TextBuffer *expected) {
    for (int i = 0; i < 60; i++) {
        size_t filler = (size_t)(i * 7919 % 100) * 1000;
        char *text = xmalloc(filler + 1);
        memset(text, 'a' + i % 26, filler);
        text[filler] = 0;
        text_buffer_format(out, "{\"id\":%d,\"text\":\"%d-%s\"}\n", i, i, text);
        text_buffer_format(expected, "%d-%s|", i, text);
        free(text);
    }
}

static void test_compressed_lines_read_like_plain_ones(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    TextBuffer lines = {0}, expected = {0};
    long_lines(&lines, &expected);
    assert_true(lines.length > 2 << 20);
    assert_texts(temporary_file("long.jsonl", lines.data, lines.length), &options, expected.data);
    assert_texts(gzip_file("long.jsonl.gz", lines.data, lines.length), &options, expected.data);
    assert_texts(zstd_file("long.jsonl.zst", lines.data, lines.length), &options, expected.data);
    text_buffer_free(&lines);
    text_buffer_free(&expected);
}

static void append(const char *path, const char *other) {
    char *a, *b;
    size_t a_size, b_size;
    assert_ok(file_read(&a, &a_size, path));
    assert_ok(file_read(&b, &b_size, other));
    a = xrealloc(a, a_size + b_size);
    memcpy(a + a_size, b, b_size);
    assert_ok(file_write_atomic(path, a, a_size + b_size));
    free(a);
    free(b);
}

static void test_members_and_frames_may_follow_each_other(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    const char *one = "{\"text\":\"one\"}\n", *two = "{\"text\":\"two\"}\n";
    const char *gz = gzip_file("first.jsonl.gz", one, strlen(one)),
               *zst = zstd_file("first.jsonl.zst", one, strlen(one));
    append(gz, gzip_file("second.jsonl.gz", two, strlen(two)));
    append(zst, zstd_file("second.jsonl.zst", two, strlen(two)));
    assert_texts(gz, &options, "one|two|");
    assert_texts(zst, &options, "one|two|");
}

// A damaged file is an error that says so, whatever rubbish it decodes to; with skip_bad nothing of it is taken.
static void assert_damage_noticed(const char *path, size_t at) {
    TextBuffer out = {0};
    ReaderOptions options = {.lines = true};
    Status status = all_texts(&out, NULL, &options, &path, 1);
    if (!status) fail_msg("damage of %s at byte %zu went unnoticed", path, at);
    if (!strstr(status_text(status), "damaged")) fail_msg("%s", status_text(status));
    status_free(status);
    ReaderCounts counts;
    options.skip_bad = true;
    assert_ok(all_texts(&out, &counts, &options, &path, 1));
    assert_string_equal(out.data, "");
    assert_int_equal(counts.damaged, 1);
    assert_int_equal(counts.bad, 0);
    text_buffer_free(&out);
}

// Cutting or changing the file anywhere, but for header fields that the formats do not guard.
static void damage_table(const char *name, const char *path) {
    enum { HEADER = 10 };
    char *data;
    size_t size;
    assert_ok(file_read(&data, &size, path));
    for (size_t cut = 1; cut < size; cut += size / 37 + 1) {
        assert_damage_noticed(temporary_file(name, data, cut), cut);
    }
    for (size_t at = 0; at < HEADER; at++) { // never a crash
        data[at] ^= 0x55;
        const ReaderOptions options = {.lines = true};
        const char *damaged = temporary_file(name, data, size);
        TextBuffer out = {0};
        status_free(all_texts(&out, NULL, &options, &damaged, 1));
        text_buffer_free(&out);
        data[at] ^= 0x55;
    }
    for (size_t at = HEADER; at < size; at += size / 141 + 1) {
        data[at] ^= 0x55;
        assert_damage_noticed(temporary_file(name, data, size), at);
        data[at] ^= 0x55;
    }
    free(data);
}

static void test_damaged_compressed_files_are_refused(void **state) {
    (void)state;
    TextBuffer lines = {0};
    for (int i = 0; i < 3000; i++)
        text_buffer_format(&lines, "line %d of the text, %d\n", i, i * i);
    damage_table("damaged.txt.gz", gzip_file("sound.txt.gz", lines.data, lines.length));
    damage_table("damaged.txt.zst", zstd_file("sound.txt.zst", lines.data, lines.length));
    text_buffer_free(&lines);
}

// Members and frames in front of the damaged one have checksums of their own.
static void test_skip_bad_keeps_what_stands_before_the_damaged_member(void **state) {
    (void)state;
    const ReaderOptions options = {.skip_bad = true};
    const char *one = "{\"text\":\"one\"}\n", *two = "{\"text\":\"two\"}\n";
    const char *paths[] = {gzip_file("sound.jsonl.gz", one, strlen(one)),
                           zstd_file("sound.jsonl.zst", one, strlen(one))};
    append(paths[0], gzip_file("other.jsonl.gz", two, strlen(two)));
    append(paths[1], zstd_file("other.jsonl.zst", two, strlen(two)));
    for (size_t i = 0; i < 2; i++) {
        char *data;
        size_t size;
        assert_ok(file_read(&data, &size, paths[i]));
        data[size - (i ? 2 : 6)] ^= 1; // in the last checksum
        assert_ok(file_write_atomic(paths[i], data, size));
        assert_texts(paths[i], &options, "one|");
        free(data);
    }
}

static void test_file_that_is_not_compressed_is_refused(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_refused(file("plain.txt.gz", "not gzip at all"), &options, "damaged gzip data at or before byte");
    assert_refused(file("plain.txt.zst", "not zstd at all"), &options, "damaged zstd data at or before byte");
}

// --- inputs ---------------------------------------------------------------------------------------------------------

static void test_folders_and_globs_come_in_sorted_order(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_ok(dir_make(temporary_path("tree/b")));
    file("tree/z.txt", "z");
    file("tree/a.txt", "a");
    file("tree/b/m.txt", "m");
    file("tree/notes.md", "not read");
    file("tree/.hidden.txt", "not read");
    assert_texts(temporary_path("tree"), &options, "a|m|z|");
    assert_texts(temporary_path("tree/*.txt"), &options, "a|z|");
}

static void test_unknown_inputs_are_refused_by_name(void **state) {
    (void)state;
    const ReaderOptions options = {0};
    assert_refused(temporary_path("absent.txt"), &options, "absent.txt");
    assert_refused(temporary_path("absent-*.txt"), &options, "no file matches");
    assert_refused(file("table.csv", "a,b"), &options, "does not say what the file holds");
}

static void test_seek_goes_on_where_reading_stopped(void **state) {
    (void)state;
    const ReaderOptions options = {.skip_bad = true};
    const char *inputs[] = {
        file("seek1.jsonl", "{\"text\":\"a\"}\nbad\n{\"text\":\"b\"}\n{\"text\":null}\n{\"text\":\"c\"}\n"),
        file("seek2.jsonl", "{\"text\":\"d\"}\n{\"text\":\"e\"}\n")};
    const char *all = "abcde";
    for (size_t stop = 0; stop <= 5; stop++) {
        Reader *reader;
        Document document;
        bool more;
        assert_ok(reader_open(&reader, &options, inputs, 2));
        for (size_t i = 0; i < stop; i++)
            assert_ok(reader_next(reader, &document, &more));
        ReaderPosition position = reader_position(reader);
        static const ReaderPosition expected[] = {{0, 0}, {0, 1}, {0, 3}, {0, 5}, {1, 1}, {1, 2}};
        assert_int_equal(position.file, expected[stop].file); // bad records and nulls count
        assert_int_equal(position.record, expected[stop].record);
        reader_close(reader);
        assert_ok(reader_open(&reader, &options, inputs, 2));
        assert_ok(reader_seek(reader, position));
        for (size_t i = stop; i < 5; i++) {
            assert_ok(reader_next(reader, &document, &more));
            assert_true(more && document.text[0] == all[i]);
        }
        assert_ok(reader_next(reader, &document, &more));
        assert_false(more);
        reader_close(reader);
    }
}

static void check_three_forms(const char *root, const char *name, size_t least) {
    static const char *const endings[] = {"", ".gz", ".zst"};
    const ReaderOptions options = {0};
    TextBuffer texts[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        char *path = text_format("%s/corpora/%s%s", root, name, endings[i]);
        const char *input = path;
        assert_ok(all_texts(&texts[i], NULL, &options, &input, 1));
        free(path);
    }
    assert_true(texts[0].length > least);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(texts[i].length, texts[0].length);
        assert_memory_equal(texts[i].data, texts[0].data, texts[0].length);
    }
    for (int i = 0; i < 3; i++)
        text_buffer_free(&texts[i]);
}

static void test_a_sample_is_the_same_in_all_three_forms(void **state) {
    (void)state;
    check_three_forms(FIXTURES, "stories.jsonl", 10000);
    const char *shared = shared_root("corpora/fineweb-sample.jsonl");
    if (shared) check_three_forms(shared, "fineweb-sample.jsonl", 100000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_strings_decode),
        cmocka_unit_test(test_malformed_lines_are_refused),
        cmocka_unit_test(test_deep_nesting_is_refused_without_a_crash),
        cmocka_unit_test(test_scores_are_read_beside_the_text),
        cmocka_unit_test(test_field_is_chosen_by_name),
        cmocka_unit_test(test_missing_field_names_line_and_option),
        cmocka_unit_test(test_bad_line_is_named_with_line_column_and_byte),
        cmocka_unit_test(test_bytes_of_a_compressed_file_are_those_inside),
        cmocka_unit_test(test_missing_field_names_those_that_are_there),
        cmocka_unit_test(test_skip_bad_counts_and_goes_on),
        cmocka_unit_test(test_mark_and_line_ends_of_windows_are_accepted),
        cmocka_unit_test(test_text_file_is_one_document),
        cmocka_unit_test(test_lines_option_makes_a_document_a_line),
        cmocka_unit_test(test_malformed_text_is_refused_with_its_byte),
        cmocka_unit_test(test_compressed_lines_read_like_plain_ones),
        cmocka_unit_test(test_members_and_frames_may_follow_each_other),
        cmocka_unit_test(test_damaged_compressed_files_are_refused),
        cmocka_unit_test(test_skip_bad_keeps_what_stands_before_the_damaged_member),
        cmocka_unit_test(test_file_that_is_not_compressed_is_refused),
        cmocka_unit_test(test_folders_and_globs_come_in_sorted_order),
        cmocka_unit_test(test_unknown_inputs_are_refused_by_name),
        cmocka_unit_test(test_seek_goes_on_where_reading_stopped),
        cmocka_unit_test(test_a_sample_is_the_same_in_all_three_forms),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
