#include "testing.h"

#include "data/dataset.h"
#include "data/synth.h"
#include "data/tokenizer.h"

static char *make_directory(void) {
    char *directory = text_copy("/tmp/hearth-synth-XXXXXX");
    assert_non_null(mkdtemp(directory));
    return directory;
}

static void a_story_is_a_function_of_seed_and_index(void **state) {
    (void)state;
    TextBuffer a = {0}, b = {0}, c = {0}, d = {0};
    synth_story(&a, 5, 17);
    synth_story(&b, 5, 17);
    synth_story(&c, 5, 18);
    synth_story(&d, 6, 17);
    assert_string_equal(a.data, b.data);
    assert_string_not_equal(a.data, c.data);
    assert_string_not_equal(a.data, d.data);
    text_buffer_free(&a);
    text_buffer_free(&b);
    text_buffer_free(&c);
    text_buffer_free(&d);
}

static void stories_are_plain_text_without_leftovers_of_the_grammar(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        TextBuffer text = {0};
        synth_story(&text, 1, i);
        assert_null(strpbrk(text.data, "{}[]|\x01"));
        assert_null(strstr(text.data, "  "));
        assert_null(strstr(text.data, " a a"));
        assert_null(strstr(text.data, " a o"));
        assert_true(text.length > 300 && text.length < 1600);
        assert_true(strchr(".!\"", text.data[text.length - 1]) != NULL);
        text_buffer_free(&text);
    }
}

// A boy's story speaks of the hero as he from the first sentence on; the check looks at the opening, where only the
// hero is.
static void pronouns_agree_with_the_hero(void **state) {
    (void)state;
    int seen = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        TextBuffer text = {0};
        synth_story(&text, 2, i);
        bool boy = strstr(text.data, " boy named "), girl = strstr(text.data, " girl named ");
        const char *second = strchr(text.data, '.');
        if ((boy || girl) && second && strncmp(second, ". She lived", 11) == 0) assert_true(girl), seen++;
        if ((boy || girl) && second && strncmp(second, ". He lived", 10) == 0) assert_true(boy), seen++;
        text_buffer_free(&text);
    }
    assert_true(seen > 100);
}

static void stories_differ(void **state) {
    (void)state;
    enum { STORIES = 2000 };
    char **texts = xcalloc(STORIES, sizeof *texts);
    for (uint64_t i = 0; i < STORIES; i++) {
        TextBuffer text = {0};
        synth_story(&text, 3, i);
        texts[i] = text.data;
    }
    for (int i = 0; i < STORIES; i += 7)
        for (int k = i + 1; k < STORIES; k++)
            assert_string_not_equal(texts[i], texts[k]);
    for (int i = 0; i < STORIES; i++)
        free(texts[i]);
    free(texts);
}

static void the_shards_decode_to_the_stories(void **state) {
    (void)state;
    char *directory = make_directory();
    SynthRequest request = {directory, NULL, 600, 9, 300, 30, false};
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    Dataset train, val;
    assert_ok(dataset_open(&train, directory, "train", true));
    assert_ok(dataset_open(&val, directory, "val", true));
    assert_int_equal(train.document_count, 300);
    assert_int_equal(val.document_count, 30);
    assert_int_equal(train.token_count, result.train_tokens);
    assert_true(result.unigram_entropy > 3 && result.unigram_entropy < log(600));
    Tokenizer *tokenizer;
    char *path = path_join(directory, "tokenizer.json");
    assert_ok(tokenizer_load(&tokenizer, path));
    assert_true(tokenizer_hash(tokenizer) == train.tokenizer_hash);
    const Shard *shard = &train.shards[0];
    for (uint64_t i = 0; i < 300; i += 37) {
        uint64_t first = shard->documents[i], count = shard->documents[i + 1] - first;
        uint32_t *ids = xmalloc(count * sizeof *ids);
        dataset_read(&train, first, count, ids);
        assert_int_equal(ids[count - 1], tokenizer_end_of_text(tokenizer));
        char *text;
        size_t length;
        assert_ok(tokenizer_decode(tokenizer, ids, count - 1, false, &text, &length));
        TextBuffer story = {0};
        synth_story(&story, 9, i);
        assert_string_equal(text, story.data);
        text_buffer_free(&story);
        free(text);
        free(ids);
    }
    tokenizer_free(tokenizer);
    dataset_close(&train);
    dataset_close(&val);
    assert_ok(dir_remove(directory));
    free(path);
    free(directory);
}

static void assert_file(const char *path, const char *text) {
    char *data;
    size_t size;
    assert_ok(file_read(&data, &size, path));
    assert_string_equal(data, text);
    free(data);
}

static void a_dataset_is_replaced_only_when_asked(void **state) {
    (void)state;
    char *directory = make_directory();
    SynthRequest request = {.directory = directory, .vocab = 300, .seed = 1, .stories = 50, .val_stories = 5};
    SynthResult first, second;
    assert_ok(synth_write(&request, &first));
    request.stories = 10;
    assert_error(synth_write(&request, &second), "--overwrite");
    Dataset train;
    assert_ok(dataset_open(&train, directory, "train", true));
    assert_int_equal(train.document_count, 50);
    dataset_close(&train);
    request.overwrite = true;
    request.vocab = 3; // refused: nothing may be gone by then
    assert_error(synth_write(&request, &second), "vocab");
    assert_ok(dataset_open(&train, directory, "train", true));
    assert_int_equal(train.document_count, 50);
    dataset_close(&train);
    request.vocab = 300;
    assert_ok(synth_write(&request, &second));
    assert_ok(dataset_open(&train, directory, "train", true));
    assert_int_equal(train.document_count, 10);
    dataset_close(&train);
    assert_ok(dir_remove(directory));
    free(directory);
}

static void what_is_no_dataset_is_never_replaced(void **state) {
    (void)state;
    static const char *const names[] = {"config.toml", "train/notes.txt", "work/unit-000000"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *directory = make_directory();
        char *tokenizer = path_join(directory, "tokenizer.json"), *other = path_join(directory, names[i]);
        char *folder = path_directory(other);
        assert_ok(dir_make(folder));
        assert_ok(file_write_atomic(tokenizer, "mine", 4));
        assert_ok(file_write_atomic(other, "mine", 4));
        SynthRequest request = {.directory = directory, .vocab = 300, .stories = 10, .val_stories = 1};
        SynthResult result;
        for (int overwrite = 0; overwrite < 2; overwrite++) {
            request.overwrite = overwrite;
            assert_error(synth_write(&request, &result), overwrite ? "of a" : "is not empty");
            assert_file(tokenizer, "mine");
            assert_file(other, "mine");
        }
        assert_ok(dir_remove(directory));
        free(folder);
        free(tokenizer);
        free(other);
        free(directory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_story_is_a_function_of_seed_and_index),
        cmocka_unit_test(stories_are_plain_text_without_leftovers_of_the_grammar),
        cmocka_unit_test(pronouns_agree_with_the_hero),
        cmocka_unit_test(stories_differ),
        cmocka_unit_test(the_shards_decode_to_the_stories),
        cmocka_unit_test(a_dataset_is_replaced_only_when_asked),
        cmocka_unit_test(what_is_no_dataset_is_never_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
