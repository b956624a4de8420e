// Parquet: every layout of pages gives the same rows, and no file can make the reader crash or ask for absurd memory.
#include "data/parquet_codec.h"
#include "data/parquet_values.h"
#include "data/pull_sha256.h"
#include "data/reader.h"
#include "parquet_build.h"
#include "temporary.h"

#include <sys/resource.h>

static const char *const words[] = {"alpha", "", "gamma", "alpine", "alpha", "a somewhat longer text", "Z\xc3\xbcrich"};
static const char *const gaps[] = {NULL, "one", NULL, NULL, "two", "two", NULL, "three", "one", NULL};
#define WORDS (sizeof words / sizeof words[0])
#define GAPS  (sizeof gaps / sizeof gaps[0])

static Status texts_of(TextBuffer *out, ReaderCounts *counts, const char *path, bool skip_bad) {
    const ReaderOptions options = {.skip_bad = skip_bad};
    Reader *reader;
    out->length = 0;
    text_buffer_add(out, "", 0);
    TRY(reader_open(&reader, &options, &path, 1));
    Status status;
    for (size_t i = 0;; i++) {
        Document document;
        bool more;
        status = reader_next(reader, &document, &more);
        if (status || !more || i == 100000) break;
        text_buffer_add(out, document.text, document.length);
        text_buffer_add(out, "|", 1);
    }
    if (counts) *counts = reader_counts(reader);
    reader_close(reader);
    return status;
}

static void expected_add(TextBuffer *out, const char *const *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (texts[i]) text_buffer_format(out, "%s|", texts[i]);
    }
}

static const char *build_write(Build *build) {
    build_finish(build);
    const char *path = temporary_file("made.parquet", build->file.data, build->file.length);
    text_buffer_free(&build->file);
    return path;
}

static void assert_rows(Build *build, const TextBuffer *expected) {
    const char *path = build_write(build);
    TextBuffer out = {0};
    assert_ok(texts_of(&out, NULL, path, false));
    assert_string_equal(out.data, expected->data ? expected->data : "");
    text_buffer_free(&out);
}

static void assert_refused(Build *build, const char *part) {
    const char *path = build_write(build);
    TextBuffer out = {0};
    assert_error(texts_of(&out, NULL, path, false), part);
    text_buffer_free(&out);
}

#if HEARTH_HAVE_LZ4
#define ALL_CODECS CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_ZSTD, CODEC_LZ4, CODEC_LZ4_RAW
#else
#define ALL_CODECS CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_ZSTD
#endif

// --- what must be read ----------------------------------------------------------------------------------------------

static void test_all_codecs_versions_and_encodings_give_the_same_rows(void **state) {
    (void)state;
    static const int codecs[] = {ALL_CODECS};
    static const int encodings[] = {PLAIN, DICTIONARY, DELTA_LENGTH, DELTA_STRINGS};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        for (size_t e = 0; e < 4; e++) {
            for (int version = 1; version <= 2; version++) {
                for (int optional = 0; optional < 2; optional++) {
                    Build build;
                    TextBuffer expected = {0};
                    build_start(&build, codecs[c], optional);
                    build_group(&build);
                    if (encodings[e] == DICTIONARY) build_dictionary(&build, words, WORDS);
                    build_page(&build, version, encodings[e], words, WORDS);
                    expected_add(&expected, words, WORDS);
                    assert_rows(&build, &expected);
                    text_buffer_free(&expected);
                }
            }
        }
    }
}

static void test_dictionary_and_plain_pages_share_a_chunk(void **state) {
    (void)state;
    Build build;
    TextBuffer expected = {0};
    build_start(&build, CODEC_SNAPPY, true);
    for (int group = 0; group < 3; group++) {
        build_group(&build);
        build_dictionary(&build, words, WORDS);
        build_page(&build, 1, DICTIONARY, words, WORDS);
        build_page(&build, 1, PLAIN, gaps, GAPS);
        build_page(&build, 2, DICTIONARY, words + 2, 3);
        expected_add(&expected, words, WORDS);
        expected_add(&expected, gaps, GAPS);
        expected_add(&expected, words + 2, 3);
    }
    assert_rows(&build, &expected);
    text_buffer_free(&expected);
}

static void test_nulls_are_skipped_and_counted(void **state) {
    (void)state;
    for (int version = 1; version <= 2; version++) {
        static const int encodings[] = {PLAIN, DELTA_LENGTH, DELTA_STRINGS};
        for (int e = 0; e < 3; e++) {
            Build build;
            build_start(&build, CODEC_ZSTD, true);
            build_group(&build);
            build_page(&build, version, encodings[e], gaps, GAPS);
            const char *path = build_write(&build);
            TextBuffer out = {0};
            ReaderCounts counts;
            assert_ok(texts_of(&out, &counts, path, false));
            assert_string_equal(out.data, "one|two|two|three|one|");
            assert_int_equal(counts.nulls, 5);
            text_buffer_free(&out);
        }
    }
}

static void test_page_of_nulls_only_is_read(void **state) {
    (void)state;
    static const char *const none[] = {NULL, NULL, NULL};
    Build build;
    TextBuffer expected = {0};
    build_start(&build, CODEC_SNAPPY, true);
    build_group(&build);
    build_page(&build, 1, PLAIN, none, 3);
    build_page(&build, 2, PLAIN, words, WORDS);
    build_page(&build, 2, PLAIN, none, 3);
    expected_add(&expected, words, WORDS);
    assert_rows(&build, &expected);
    text_buffer_free(&expected);
}

static void test_page_headers_may_be_very_long(void **state) {
    (void)state;
    Build build;
    TextBuffer expected = {0};
    build_start(&build, CODEC_SNAPPY, false);
    build.statistics = 3000000;
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    build_page(&build, 2, PLAIN, words, WORDS);
    expected_add(&expected, words, WORDS);
    expected_add(&expected, words, WORDS);
    assert_rows(&build, &expected);
    text_buffer_free(&expected);
}

static void test_many_values_cross_delta_blocks(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    static char texts[COUNT][40];
    const char *pointers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(texts[i], sizeof texts[i], "text %d%.*s", i, i * 7 % 23, "......................");
        pointers[i] = texts[i];
    }
    static const int encodings[] = {DELTA_LENGTH, DELTA_STRINGS};
    for (int e = 0; e < 2; e++) {
        for (size_t count = 120; count < COUNT; count += 31) { // ends inside blocks, miniblocks and on their borders
            Build build;
            TextBuffer expected = {0};
            build_start(&build, CODEC_SNAPPY, false);
            build_group(&build);
            build_page(&build, 1, encodings[e], pointers, count);
            expected_add(&expected, pointers, count);
            assert_rows(&build, &expected);
            text_buffer_free(&expected);
        }
    }
}

static void test_repeated_values_may_be_wider_than_a_byte(void **state) {
    (void)state;
    const uint8_t bytes[] = {3 << 1, 0x34, 0x12, 2 << 1, 0xff, 0x1f};
    const uint32_t expected[] = {0x1234, 0x1234, 0x1234, 0x1fff, 0x1fff};
    RleDecoder rle;
    uint32_t value;
    assert_true(rle_start(&rle, (ByteSpan){bytes, bytes + sizeof bytes}, 13));
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_true(rle_next(&rle, &value));
        assert_int_equal(value, expected[i]);
    }
    assert_false(rle_next(&rle, &value));
}

static void test_files_without_rows_are_empty(void **state) {
    (void)state;
    Build build;
    TextBuffer expected = {0};
    build_start(&build, CODEC_SNAPPY, true);
    assert_rows(&build, &expected);
    build_start(&build, CODEC_SNAPPY, true);
    build_group(&build);
    assert_rows(&build, &expected);
}

static void test_checksums_of_pages_are_kept(void **state) {
    (void)state;
    Build build;
    TextBuffer expected = {0};
    build_start(&build, CODEC_NONE, false);
    build.checksums = true;
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    expected_add(&expected, words, WORDS);
    assert_rows(&build, &expected);
    text_buffer_free(&expected);
    build_start(&build, CODEC_NONE, false);
    build.checksums = true;
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    build.file.data[build.file.length - 1] ^= 1;
    assert_refused(&build, "checksum does not match");
}

// --- what must be refused -------------------------------------------------------------------------------------------

static void test_unknown_codec_is_refused_by_its_name(void **state) {
    (void)state;
    Build build;
    build_start(&build, CODEC_LZO, false);
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    assert_refused(&build, "LZO");
}

static void test_unknown_encoding_is_refused_by_its_name(void **state) {
    (void)state;
    Build build;
    build_start(&build, CODEC_NONE, false);
    build_group(&build);
    build_page(&build, 1, SPLIT_STREAM, words, WORDS);
    assert_refused(&build, "BYTE_STREAM_SPLIT");
}

static void test_missing_dictionary_is_refused_with_place(void **state) {
    (void)state;
    Build build;
    build_start(&build, CODEC_NONE, false);
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    build_group(&build);
    build_page(&build, 1, DICTIONARY, words, WORDS);
    assert_refused(&build, "made.parquet: row group 1, byte");
}

static void test_wrong_counts_and_places_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t values, start, end, data_offset; // added to the true ones
        const char *error;
    } cases[] = {
        {.values = 1, .error = "too early"},
        {.values = -1, .error = "more values than the column chunk states"},
        {.values = INT64_MAX / 2, .error = "too early"},
        {.end = INT64_MAX / 4, .error = "outside the file"},
        {.end = -3, .error = "longer than its column chunk"},
        {.data_offset = 1, .error = "row group 0, byte"},
        {.data_offset = INT64_MAX / 4, .error = "outside the file"},
        {.data_offset = -1000, .error = "outside the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Build build;
        build_start(&build, CODEC_SNAPPY, true);
        build_group(&build);
        build_page(&build, 1, PLAIN, words, WORDS);
        build.groups[0].values += cases[i].values;
        build.groups[0].start += cases[i].start;
        build.groups[0].end += cases[i].end;
        build.groups[0].data_offset += cases[i].data_offset;
        assert_refused(&build, cases[i].error);
    }
}

static void test_files_that_are_not_parquet_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *error;
    } cases[] = {
        {"", 0, "too short"},
        {"PAR1", 4, "too short"},
        {"PAR1\0\0\0\0PAR1", 12, "footer is damaged"},
        {"PAR1\xff\xff\xff\xffPAR1", 12, "longer than the file"},
        {"PAR1\0\0\0\0PARE", 12, "encrypted"},
        {"this is just a text file", 24, "PAR1 is missing"},
        {"PAR1\x19\x2c\x00\x00\x00\x05\0\0\0PAR1", 17, "damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = temporary_file("other.parquet", cases[i].bytes, cases[i].size);
        TextBuffer out = {0};
        assert_error(texts_of(&out, NULL, path, false), cases[i].error);
        text_buffer_free(&out);
    }
}

static void test_unknown_columns_are_refused_with_the_known_ones(void **state) {
    (void)state;
    Build build;
    build_start(&build, CODEC_NONE, false);
    build_group(&build);
    build_page(&build, 1, PLAIN, words, WORDS);
    const char *path = build_write(&build);
    static const struct {
        const char *column, *error;
    } cases[] = {
        {"body", "nested, text"}, {"nested", "nested or repeated"}, {"nested.text", "nested columns are not read"}};
    for (size_t i = 0; i < 3; i++) {
        const ReaderOptions options = {.field = cases[i].column};
        Reader *reader;
        Document document;
        bool more;
        assert_ok(reader_open(&reader, &options, &path, 1));
        assert_error(reader_next(reader, &document, &more), cases[i].error);
        reader_close(reader);
    }
}

static void test_skip_bad_loses_only_the_damaged_row_group(void **state) {
    (void)state;
    Build build;
    TextBuffer expected = {0}, out = {0};
    ReaderCounts counts;
    build_start(&build, CODEC_SNAPPY, false);
    build.checksums = true; // so that the damage is known before any row of the page
    for (int group = 0; group < 3; group++) {
        build_group(&build);
        build_page(&build, 1, PLAIN, words, WORDS);
        if (group != 1) expected_add(&expected, words, WORDS);
    }
    build.file.data[build.groups[1].end - 10] ^= 0x7f;
    const char *path = build_write(&build);
    assert_ok(texts_of(&out, &counts, path, true));
    assert_string_equal(out.data, expected.data);
    assert_int_equal(counts.bad, WORDS); // every row of the group
    text_buffer_free(&out);
    text_buffer_free(&expected);
}

static void sound_file(Build *build, int codec) {
    build_start(build, codec, true);
    for (int group = 0; group < 2; group++) {
        build_group(build);
        build_dictionary(build, words, WORDS);
        build_page(build, 1, DICTIONARY, words, WORDS);
        build_page(build, 2, PLAIN, gaps, GAPS);
        build_page(build, 1, DELTA_STRINGS, words, WORDS);
        build_page(build, 2, DELTA_LENGTH, gaps, GAPS);
    }
    build_finish(build);
}

// Every cut and every changed byte: an error or other rows, never a crash, and never gigabytes for a file of two
// kilobytes.
static void test_no_damage_crashes_the_reader(void **state) {
    (void)state;
    static const int codecs[] = {ALL_CODECS};
    static const char flips[] = {0x01, 0x7f, (char)0x80, (char)0xff};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        Build build;
        sound_file(&build, codecs[c]);
        for (size_t cut = 0; cut < build.file.length; cut++) {
            TextBuffer out = {0};
            Status status = texts_of(&out, NULL, temporary_file("cut.parquet", build.file.data, cut), false);
            if (!status) fail_msg("a cut to %zu bytes went unnoticed", cut);
            status_free(status);
            text_buffer_free(&out);
        }
        for (size_t at = 0; at < build.file.length; at++) {
            TextBuffer out = {0};
            char flip = flips[at % sizeof flips];
            build.file.data[at] ^= flip;
            status_free(
                texts_of(&out, NULL, temporary_file("flip.parquet", build.file.data, build.file.length), false));
            build.file.data[at] ^= flip;
            text_buffer_free(&out);
        }
        text_buffer_free(&build.file);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#if !defined(__SANITIZE_ADDRESS__)
    assert_true(usage.ru_maxrss < 256 * 1024);
#endif
}

static void test_hostile_page_sizes_allocate_nothing(void **state) {
    (void)state;
    // A page header by hand: 2 GB decompressed from a few bytes, for codecs that could not hold it.
    static const int codecs[] = {ALL_CODECS};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        Build build;
        int last = 0, inner = 0;
        build_start(&build, codecs[c], false);
        build_group(&build);
        build.groups[0].data_offset = (int64_t)build.file.length;
        put_int(&build.file, &last, 1, 5, 0);
        put_int(&build.file, &last, 2, 5, INT32_MAX);
        put_int(&build.file, &last, 3, 5, 4);
        put_field(&build.file, &last, 5, 12);
        put_int(&build.file, &inner, 1, 5, 7);
        put_int(&build.file, &inner, 2, 5, PLAIN);
        put_byte(&build.file, 0);
        put_byte(&build.file, 0);
        text_buffer_add(&build.file, "abcd", 4);
        build.groups[0].values = 7;
        build.groups[0].end = (int64_t)build.file.length;
        assert_refused(&build, "cannot come from");
    }
}

// --- files of other writers -----------------------------------------------------------------------------------------

static void file_compare(const char *folder, const char *row) {
    char name[128], stated[65], actual[65];
    unsigned long long rows, bytes, nulls = 0, seen_bytes = 0;
    assert_true(sscanf(row, "%127[^,],%llu,%llu,%64[0-9a-f],%llu", name, &rows, &bytes, stated, &nulls) >= 4);
    if (strncmp(name, "lz4", 3) == 0 && !parquet_codec_is_supported(7)) return; // this build has no such codec
    if (strncmp(name, "brotli", 6) == 0 && !parquet_codec_is_supported(4)) return;
    char *path = path_join(folder, name);
    const char *found = path;
    const ReaderOptions options = {0};
    Reader *reader;
    Sha256 sha;
    sha256_start(&sha);
    assert_ok(reader_open(&reader, &options, &found, 1));
    for (;;) {
        Document document;
        bool more;
        assert_ok(reader_next(reader, &document, &more));
        if (!more) break;
        sha256_add(&sha, document.text, document.length);
        sha256_add(&sha, "", 1);
        seen_bytes += document.length;
    }
    sha256_hex(&sha, actual);
    if (reader_counts(reader).documents != rows || reader_counts(reader).nulls != nulls || seen_bytes != bytes ||
        strcmp(actual, stated) != 0)
        fail_msg("%s: %llu texts, %llu nulls, %llu bytes, sha256 %s; expected %llu, %llu, %llu, %s", path,
                 (unsigned long long)reader_counts(reader).documents, (unsigned long long)reader_counts(reader).nulls,
                 seen_bytes, actual, rows, nulls, bytes, stated);
    reader_close(reader);
    free(path);
}

static void check_files(const char *root, const char *folder_name) {
    char *path = path_join(root, "corpora/parquet-reference.csv"), *folder = path_join(root, folder_name), *csv;
    size_t size;
    int files = 0;
    assert_ok(file_read(&csv, &size, path));
    strtok(csv, "\n"); // the head
    for (char *row = strtok(NULL, "\n"); row; row = strtok(NULL, "\n"), files++)
        file_compare(folder, row);
    assert_true(files > 0);
    free(csv);
    free(folder);
    free(path);
}

static void test_files_of_pyarrow_have_the_reference_rows_and_hashes(void **state) {
    (void)state;
    check_files(FIXTURES, "corpora/parquet");
    const char *shared = shared_root("corpora/fineweb-parquet");
    if (shared) check_files(shared, "corpora/fineweb-parquet");
}

// In these files the text of a row is its score, or None.
static void test_scores_of_every_type_stand_beside_their_texts(void **state) {
    (void)state;
    static const char *const names[] = {"int32-plain",      "int32-dictionary", "int32-delta-binary-packed",
                                        "int64-plain",      "int64-dictionary", "int64-delta-binary-packed",
                                        "float-plain",      "float-dictionary", "double-plain",
                                        "double-dictionary"};
    const ReaderOptions options = {.score = "score"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *name = text_format("corpora/parquet/score-%s.parquet", names[i]);
        const char *path = fixture_path(name);
        Reader *reader;
        Document document;
        int rows = 0;
        assert_ok(reader_open(&reader, &options, &path, 1));
        for (bool more = true;; rows++) {
            assert_ok(reader_next(reader, &document, &more));
            if (!more) break;
            char *text = text_copy_n(document.text, document.length);
            assert_int_equal(document.has_score, strcmp(text, "None") != 0);
            if (document.has_score) assert_true(document.score == strtod(text, NULL));
            free(text);
        }
        assert_int_equal(rows, 200);
        reader_close(reader);
        free(name);
    }
}

static void test_seek_resumes_inside_a_file(void **state) {
    (void)state;
    const char *path = fixture_path("corpora/parquet/snappy-v1-dictionary.parquet"); // groups of 40 rows, with nulls
    const ReaderOptions options = {0};
    Reader *reader;
    Document document;
    bool more;
    assert_ok(reader_open(&reader, &options, &path, 1));
    for (int i = 0; i < 37; i++)
        assert_ok(reader_next(reader, &document, &more));
    ReaderPosition position = reader_position(reader);
    assert_ok(reader_next(reader, &document, &more));
    char *text = text_copy_n(document.text, document.length);
    reader_close(reader);
    assert_ok(reader_open(&reader, &options, &path, 1));
    assert_ok(reader_seek(reader, position));
    assert_ok(reader_next(reader, &document, &more));
    assert_memory_equal(document.text, text, document.length);
    free(text);
    reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_codecs_versions_and_encodings_give_the_same_rows),
        cmocka_unit_test(test_dictionary_and_plain_pages_share_a_chunk),
        cmocka_unit_test(test_nulls_are_skipped_and_counted),
        cmocka_unit_test(test_page_of_nulls_only_is_read),
        cmocka_unit_test(test_page_headers_may_be_very_long),
        cmocka_unit_test(test_many_values_cross_delta_blocks),
        cmocka_unit_test(test_repeated_values_may_be_wider_than_a_byte),
        cmocka_unit_test(test_files_without_rows_are_empty),
        cmocka_unit_test(test_checksums_of_pages_are_kept),
        cmocka_unit_test(test_unknown_codec_is_refused_by_its_name),
        cmocka_unit_test(test_unknown_encoding_is_refused_by_its_name),
        cmocka_unit_test(test_missing_dictionary_is_refused_with_place),
        cmocka_unit_test(test_wrong_counts_and_places_are_refused),
        cmocka_unit_test(test_files_that_are_not_parquet_are_refused),
        cmocka_unit_test(test_unknown_columns_are_refused_with_the_known_ones),
        cmocka_unit_test(test_skip_bad_loses_only_the_damaged_row_group),
        cmocka_unit_test(test_no_damage_crashes_the_reader),
        cmocka_unit_test(test_hostile_page_sizes_allocate_nothing),
        cmocka_unit_test(test_files_of_pyarrow_have_the_reference_rows_and_hashes),
        cmocka_unit_test(test_scores_of_every_type_stand_beside_their_texts),
        cmocka_unit_test(test_seek_resumes_inside_a_file),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
