// prepare: exact counts, no document lost or doubled, the same bytes for any number of threads.
#include "data/bpe_train.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "data/prepare.h"
#include "data/prepare_dedup.h"
#include "data/synth.h"
#include "temporary.h"

#include <zlib.h>

#define END_OF_TEXT 256 // of the built-in byte tokenizer

// `count` documents of 20 to 420 bytes, each with its number; every tenth is a copy of one before.
static int corpus_id(int i) {
    return i % 10 == 9 ? i / 2 - (i / 2) % 10 : i; // a multiple of ten: never itself a copy
}

static const char *corpus(const char *name, int count) {
    TextBuffer lines = {0};
    for (int i = 0; i < count; i++) {
        int id = corpus_id(i);
        int filler = 10 + id * 7919 % 400;
        text_buffer_format(&lines, "{\"score\":%d.5,\"text\":\"document %06d ", id % 5, id);
        for (int k = 0; k < filler; k++)
            text_buffer_add(&lines, &"etaoin shrdlu"[(id + k * k) % 13], 1);
        text_buffer_format(&lines, "\"}\n");
    }
    const char *path = temporary_file(name, lines.data, lines.length);
    text_buffer_free(&lines);
    return path;
}

static PrepareOptions options_for(const char *const *input, const char *output) {
    PrepareOptions options = prepare_defaults();
    options.inputs = input;
    options.input_count = 1;
    options.output = output;
    options.tokenizer = "bytes";
    options.threads = 2;
    options.quiet = true;
    options.shard_tokens = 30000;
    options.unit_bytes = 20000;
    return options;
}

static int number_order(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

// The numbers of all documents of a split in the order of the shards; -1 for one that is cut before its number ends.
// Every document must end with end-of-text and have no other.
static int *numbers_of(const char *folder, const char *split, size_t *count) {
    Dataset dataset;
    assert_ok(dataset_open(&dataset, folder, split, true));
    int *numbers = xmalloc((dataset.document_count + 1) * sizeof *numbers);
    *count = 0;
    for (size_t s = 0; s < dataset.shard_count; s++) {
        const Shard *shard = &dataset.shards[s];
        for (uint64_t d = 0; d < shard->header->document_count; d++) {
            uint64_t first = shard->documents[d], end = shard->documents[d + 1];
            char text[32] = "";
            for (uint64_t i = first; i < end; i++) {
                uint32_t id = shard_token(shard, i);
                assert_true((id == END_OF_TEXT) == (i + 1 == end));
                if (i - first < 15 && id < 256) text[i - first] = (char)id;
            }
            numbers[*count] = -1;
            sscanf(text, "document %06d", &numbers[*count]);
            ++*count;
        }
    }
    dataset_close(&dataset);
    return numbers;
}

static int64_t split_figure(const char *folder, const char *split, const char *key) {
    json_t *root;
    assert_ok(dataset_read_json(&root, folder));
    int64_t value = json_integer_value(json_object_get(json_object_get(json_object_get(root, "splits"), split), key));
    json_decref(root);
    return value;
}

static int64_t count_figure(const char *folder, const char *key) {
    json_t *root;
    assert_ok(dataset_read_json(&root, folder));
    int64_t value = json_integer_value(json_object_get(json_object_get(root, "counts"), key));
    json_decref(root);
    return value;
}

static void assert_folders_equal(const char *a, const char *b) {
    static const char *const names[] = {"dataset.json", "train/00000.shard", "train/00001.shard", "val/00000.shard",
                                        "test/00000.shard"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *first = path_join(a, names[i]), *second = path_join(b, names[i]);
        if (file_exists(first) != file_exists(second)) fail_msg("only one has %s", names[i]);
        if (file_exists(first)) {
            char *x, *y;
            size_t x_size, y_size;
            assert_ok(file_read(&x, &x_size, first));
            assert_ok(file_read(&y, &y_size, second));
            if (x_size != y_size || memcmp(x, y, x_size) != 0) fail_msg("%s differs", names[i]);
            free(x);
            free(y);
        }
        free(first);
        free(second);
    }
}

static void test_without_targets_every_document_is_there_once(void **state) {
    (void)state;
    const char *input = corpus("all.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("all"));
    assert_ok(prepare_run(&options));
    size_t count;
    int *numbers = numbers_of(options.output, "train", &count);
    assert_int_equal(count, 1000);
    qsort(numbers, count, sizeof *numbers, number_order);
    int expected[1000];
    for (int i = 0; i < 1000; i++)
        expected[i] = i % 10 == 9 ? i / 2 - (i / 2) % 10 : i;
    qsort(expected, 1000, sizeof *expected, number_order);
    assert_memory_equal(numbers, expected, sizeof expected);
    free(numbers);
    assert_false(file_exists(temporary_path("all/work")));
}

static void test_splits_get_exactly_the_asked_tokens(void **state) {
    (void)state;
    const char *input = corpus("exact.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("exact"));
    options.train_tokens = 100001;
    options.val_tokens = 7777;
    options.test_tokens = 5001;
    assert_ok(prepare_run(&options));
    static const struct {
        const char *name;
        uint64_t tokens;
    } splits[] = {{"train", 100001}, {"val", 7777}, {"test", 5001}};
    for (int i = 0; i < 3; i++) {
        Dataset dataset;
        assert_ok(dataset_open(&dataset, options.output, splits[i].name, true));
        assert_int_equal(dataset.token_count, splits[i].tokens);
        assert_int_equal(split_figure(options.output, splits[i].name, "tokens"), splits[i].tokens);
        assert_int_equal(split_figure(options.output, splits[i].name, "documents"), dataset.document_count);
        assert_int_equal(split_figure(options.output, splits[i].name, "text_bytes"), dataset.text_bytes);
        // One byte a token, and one end-of-text a document.
        assert_int_equal(dataset.text_bytes, dataset.token_count - dataset.document_count);
        dataset_close(&dataset);
        size_t count;
        free(numbers_of(options.output, splits[i].name, &count)); // every document, the cut one too, ends as it must
    }
}

// Ten texts, a hundred copies of each, too long for whole batches to hide it: the copies of the text at the border of
// val are lost to train, and more must be read to make up for them.
static void test_counts_are_exact_although_copies_at_the_border_are_dropped(void **state) {
    (void)state;
    TextBuffer lines = {0};
    for (int i = 0; i < 1000; i++) {
        text_buffer_format(&lines, "{\"text\":\"document %06d ", i % 10);
        for (int k = 0; k < 20000; k++)
            text_buffer_add(&lines, &"etaoin shrdlu"[(i % 10 + k * k) % 13], 1);
        text_buffer_format(&lines, "\"}\n");
    }
    const char *input = temporary_file("copies.jsonl", lines.data, lines.length);
    text_buffer_free(&lines);
    PrepareOptions options = options_for(&input, temporary_path("copies"));
    options.unit_bytes = options.shard_tokens = 1000000;
    options.val_tokens = 30000;
    options.train_tokens = 8000000;
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "val", "tokens"), 30000);
    assert_int_equal(split_figure(options.output, "train", "tokens"), 8000000);
}

static void test_tokens_in_no_split_are_accounted_for(void **state) {
    (void)state;
    TextBuffer lines = {0};
    for (int i = 0; i < 12; i++) // four copies each of three long documents
        text_buffer_format(&lines, "{\"text\":\"document %06d %05000d\"}\n", i % 3, i % 3);
    const char *input = temporary_file("long.jsonl", lines.data, lines.length);
    text_buffer_free(&lines);
    PrepareOptions options = options_for(&input, temporary_path("long"));
    options.val_tokens = 3000;
    options.test_tokens = 2000;
    assert_ok(prepare_run(&options));
    int64_t all = 0;
    static const char *const splits[] = {"train", "val", "test"};
    for (int i = 0; i < 3; i++)
        all +=
            split_figure(options.output, splits[i], "tokens") + split_figure(options.output, splits[i], "cut_tokens");
    assert_int_equal(split_figure(options.output, "val", "cut_tokens"), 3 * 5017); // the copies of its document
    assert_int_equal(split_figure(options.output, "train", "cut_tokens"), 0);
    assert_int_equal(all, count_figure(options.output, "tokens") + 2); // an end-of-text more for each that was cut
}

// One document of 5017 bytes and some short ones: whatever val has of the long one, train has the rest of it.
static void test_the_rest_of_a_cut_document_is_trained_on(void **state) {
    (void)state;
    TextBuffer lines = {0}, text = {0};
    for (int i = 0; i < 5000; i++)
        text_buffer_format(&text, "%d,", i);
    text_buffer_format(&lines, "{\"text\":\"%s\"}\n", text.data);
    const char *input = temporary_file("rest.jsonl", lines.data, lines.length);
    PrepareOptions options = options_for(&input, temporary_path("rest"));
    options.val_tokens = 1000;
    options.test_tokens = 500;
    assert_ok(prepare_run(&options));
    Dataset val, test, train;
    assert_ok(dataset_open(&val, options.output, "val", true));
    assert_ok(dataset_open(&test, options.output, "test", true));
    assert_ok(dataset_open(&train, options.output, "train", true));
    assert_int_equal(val.token_count, 1000);
    assert_int_equal(test.token_count, 0); // there was one document
    assert_int_equal(train.token_count, text.length - 999 + 1);
    assert_int_equal(train.text_bytes, text.length - 999);
    for (size_t i = 0; i < text.length; i++) {
        uint32_t id;
        dataset_read(i < 999 ? &val : &train, i < 999 ? i : i - 999, 1, &id);
        assert_int_equal(id, (unsigned char)text.data[i]);
    }
    dataset_close(&val), dataset_close(&test), dataset_close(&train);
    text_buffer_free(&lines), text_buffer_free(&text);
}

static void test_no_text_is_in_two_splits(void **state) {
    (void)state;
    const char *input = corpus("apart.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("apart"));
    options.val_tokens = 40000;
    options.test_tokens = 40000;
    assert_ok(prepare_run(&options));
    bool seen[1000][3] = {0};
    static const char *const names[] = {"train", "val", "test"};
    for (int s = 0; s < 3; s++) {
        size_t count;
        int *numbers = numbers_of(options.output, names[s], &count);
        for (size_t i = 0; i < count; i++) {
            if (numbers[i] >= 0) seen[numbers[i]][s] = true;
        }
        free(numbers);
    }
    for (int i = 0; i < 1000; i++)
        assert_true(seen[i][0] + seen[i][1] + seen[i][2] <= 1);
}

static void test_any_number_of_threads_gives_the_same_bytes(void **state) {
    (void)state;
    const char *input = corpus("threads.jsonl", 2000);
    static const int threads[] = {1, 2, 7};
    static const char *const folders[] = {"threads1", "threads2", "threads7"};
    for (int i = 0; i < 3; i++) {
        PrepareOptions options = options_for(&input, temporary_path(folders[i]));
        options.threads = threads[i];
        options.unit_bytes = i == 2 ? 1 << 20 : 20000; // nor does the size of units matter
        options.train_tokens = 50000;
        options.val_tokens = 3000;
        options.test_tokens = 2000;
        options.dedup = i < 3;
        assert_ok(prepare_run(&options));
        if (i) assert_folders_equal(temporary_path(folders[0]), temporary_path(folders[i]));
    }
}

static void test_order_is_shuffled_and_follows_the_seed(void **state) {
    (void)state;
    const char *input = corpus("order.jsonl", 500);
    int *orders[3];
    size_t count;
    for (int i = 0; i < 3; i++) {
        char *folder = text_format("%s/order%d", temporary_folder, i);
        PrepareOptions options = options_for(&input, folder);
        options.seed = i == 2 ? 1 : 0;
        assert_ok(prepare_run(&options));
        orders[i] = numbers_of(folder, "train", &count);
        free(folder);
    }
    size_t in_place = 0, neighbours = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        in_place += orders[0][i] == (int)i;
        neighbours += orders[0][i] == orders[0][i + 1];
    }
    assert_true(in_place < 10);
    assert_true(neighbours < 5); // copies are kept apart
    assert_memory_equal(orders[0], orders[1], count * sizeof(int));
    assert_true(memcmp(orders[0], orders[2], count * sizeof(int)) != 0);
    for (int i = 0; i < 3; i++)
        free(orders[i]);
}

static void test_dedup_keeps_one_of_each(void **state) {
    (void)state;
    const char *input = corpus("dedup.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("dedup"));
    options.dedup = true;
    assert_ok(prepare_run(&options));
    size_t count;
    int *numbers = numbers_of(options.output, "train", &count);
    assert_int_equal(count, 900);
    assert_int_equal(count_figure(options.output, "duplicates"), 100);
    qsort(numbers, count, sizeof *numbers, number_order);
    for (size_t i = 1; i < count; i++)
        assert_true(numbers[i] > numbers[i - 1]);
    free(numbers);
}

static void test_filters_leave_out_and_count(void **state) {
    (void)state;
    const char *input = corpus("filters.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("filters"));
    options.reader.score = "score";
    options.has_min_score = true;
    options.min_score = 2.5;
    options.min_chars = 50;
    options.max_chars = 300;
    assert_ok(prepare_run(&options));
    size_t count, kept = 0, low = 0;
    int *numbers = numbers_of(options.output, "train", &count);
    for (size_t i = 0; i < count; i++) {
        int chars = 16 + 10 + numbers[i] * 7919 % 400;
        assert_true(numbers[i] % 5 >= 2 && chars >= 50 && chars <= 300);
    }
    for (int i = 0; i < 1000; i++) { // 50 and 300 are among them
        int id = corpus_id(i), chars = 16 + 10 + id * 7919 % 400;
        low += id % 5 < 2;
        kept += id % 5 >= 2 && chars >= 50 && chars <= 300;
    }
    assert_int_equal(count, kept);
    assert_int_equal(count_figure(options.output, "below_min_score"), low);
    assert_int_equal(count_figure(options.output, "outside_length"), 1000 - low - kept);
    free(numbers);
}

static void test_length_limits_count_characters(void **state) {
    (void)state;
    const char *lines = "{\"text\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}\n" // 3 characters in 9 bytes
                        "{\"text\":\"abcd\"}\n{\"text\":\"ab\"}\n{\"text\":\"abc\"}\n";
    const char *input = temporary_file("characters.jsonl", lines, strlen(lines));
    PrepareOptions options = options_for(&input, temporary_path("characters"));
    options.min_chars = options.max_chars = 3;
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "train", "documents"), 2);
    assert_int_equal(split_figure(options.output, "train", "text_bytes"), 9 + 3);
}

static void test_no_shard_is_larger_than_asked(void **state) {
    (void)state;
    const char *input = corpus("shards.jsonl", 1000);
    PrepareOptions options = options_for(&input, temporary_path("shards"));
    options.shard_tokens = 5000;
    assert_ok(prepare_run(&options));
    Dataset dataset;
    assert_ok(dataset_open(&dataset, options.output, "train", false));
    assert_true(dataset.shard_count > 10);
    for (size_t i = 0; i < dataset.shard_count; i++) {
        uint64_t tokens = dataset.shards[i].header->token_count, longest = 26 + 399 + 1;
        assert_true(tokens <= 5000);
        if (i + 1 < dataset.shard_count) assert_true(tokens + longest > 5000); // and none ends without need
    }
    dataset_close(&dataset);
}

static void test_too_small_an_input_gives_what_there_is(void **state) {
    (void)state;
    const char *input = corpus("small.jsonl", 100);
    PrepareOptions options = options_for(&input, temporary_path("small"));
    options.train_tokens = 1000000000;
    options.val_tokens = 1000;
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "val", "tokens"), 1000);
    assert_true(split_figure(options.output, "train", "tokens") < 1000000);
    assert_int_equal(split_figure(options.output, "train", "asked_tokens"), 1000000000);
}

static void test_special_tokens_in_the_text_stay_text(void **state) {
    (void)state;
    const char *tokenizer = fixture_path("tokenizers/gpt2.json");
    const char *line = "{\"text\":\"before <|endoftext|> after\"}\n";
    const char *input = temporary_file("special.jsonl", line, strlen(line));
    for (int match = 0; match < 2; match++) {
        PrepareOptions options = options_for(&input, temporary_path(match ? "special1" : "special0"));
        options.tokenizer = tokenizer;
        options.match_special = match;
        assert_ok(prepare_run(&options));
        json_t *root;
        assert_ok(dataset_read_json(&root, options.output));
        uint32_t end = (uint32_t)json_integer_value(json_object_get(json_object_get(root, "tokenizer"), "end_of_text"));
        json_decref(root);
        Dataset dataset;
        assert_ok(dataset_open(&dataset, options.output, "train", true));
        int ends = 0;
        for (uint64_t i = 0; i < dataset.token_count; i++) {
            uint32_t id;
            dataset_read(&dataset, i, 1, &id);
            ends += id == end;
        }
        dataset_close(&dataset);
        assert_int_equal(ends, 1 + match);
    }
}

static void test_finished_work_is_not_done_again(void **state) {
    (void)state;
    const char *input = corpus("again.jsonl", 100);
    PrepareOptions options = options_for(&input, temporary_path("again"));
    assert_ok(prepare_run(&options));
    assert_ok(prepare_run(&options));
    options.seed = 5;
    assert_error(prepare_run(&options), "--overwrite");
    options.overwrite = true;
    assert_ok(prepare_run(&options));
}

// 5000 texts of "document NNNNNN", then a bad line, then one more text.
static const char *corpus_failing(const char *name) {
    TextBuffer lines = {0};
    for (int i = 0; i < 5000; i++)
        text_buffer_format(&lines, "{\"text\":\"document %06d %0400d\"}\n", i, i);
    text_buffer_format(&lines, "broken\n{\"text\":\"document 005000 the last\"}\n");
    const char *input = temporary_file(name, lines.data, lines.length);
    text_buffer_free(&lines);
    return input;
}

static void test_failed_run_resumes_only_with_the_same_options(void **state) {
    (void)state;
    const char *input = corpus_failing("fails.jsonl");
    PrepareOptions options = options_for(&input, temporary_path("fails"));
    assert_error(prepare_run(&options), "fails.jsonl:5001");
    assert_true(file_exists(temporary_path("fails/work/unit-000000")));
    options.seed = 9;
    assert_error(prepare_run(&options), "unfinished work with other options");
    options.seed = 0;
    options.reader.skip_bad = true;
    assert_ok(prepare_run(&options));
    size_t count;
    int *numbers = numbers_of(options.output, "train", &count);
    assert_int_equal(count, 5001);
    qsort(numbers, count, sizeof *numbers, number_order);
    for (int i = 0; i < 5001; i++)
        assert_int_equal(numbers[i], i);
    free(numbers);
}

static void test_tokenizer_without_end_of_text_is_refused_with_a_way_out(void **state) {
    (void)state;
    const BpeTrainOptions plain = {.vocab_size = 256, .pattern = SPLIT_GPT2};
    BpeCounts counts;
    BpeTraining training;
    bpe_counts_init(&counts);
    bpe_train(&training, &counts, &plain);
    assert_ok(bpe_training_write(&training, &plain, temporary_path("endless.json")));
    bpe_training_free(&training);
    bpe_counts_free(&counts);
    const char *input = corpus("endless.jsonl", 20);
    PrepareOptions options = options_for(&input, temporary_path("endless"));
    options.tokenizer = temporary_path("endless.json");
    assert_error(prepare_run(&options), "--special \"<|endoftext|>\"");
    options.end_of_text = 0;
    assert_ok(prepare_run(&options));
}

static void test_median_is_exact_for_long_documents(void **state) {
    (void)state;
    TextBuffer lines = {0};
    static const int lengths[] = {1300000, 2000000, 10, 1200000}; // three of them beyond 2^20
    for (int i = 0; i < 4; i++)
        text_buffer_format(&lines, "{\"text\":\"%0*d\"}\n", lengths[i], i);
    const char *input = temporary_file("median.jsonl", lines.data, lines.length);
    text_buffer_free(&lines);
    PrepareOptions options = options_for(&input, temporary_path("median"));
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "train", "median_tokens"), 1200001); // with end of text
    Dataset dataset;
    DatasetLengths found;
    assert_ok(dataset_open(&dataset, options.output, "train", false));
    dataset_lengths(&dataset, &found);
    assert_int_equal(found.median, 1200001);
    dataset_close(&dataset);
}

// --- replacing a dataset

// A tokenizer of 300 entries in a folder of its own; returns the path.
static const char *tokenizer_learned(const char *folder, uint64_t seed) {
    SynthRequest request = {.directory = temporary_path(folder), .vocab = 300, .seed = seed, .stories = 20};
    request.val_stories = 1;
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    char name[64];
    snprintf(name, sizeof name, "%s/tokenizer.json", folder);
    return temporary_path(name);
}

static void assert_documents(const char *output, uint64_t documents) {
    Dataset dataset;
    assert_ok(dataset_open(&dataset, output, "train", true));
    assert_int_equal(dataset.document_count, documents);
    dataset_close(&dataset);
}

static void test_overwrite_that_fails_keeps_the_dataset_and_resumes(void **state) {
    (void)state;
    const char *good = corpus("former.jsonl", 100), *failing = corpus_failing("failing.jsonl");
    PrepareOptions options = options_for(&good, temporary_path("replaced"));
    options.tokenizer = tokenizer_learned("former-tokenizer", 3);
    options.test_tokens = 500;
    assert_ok(prepare_run(&options));
    uint64_t before = (uint64_t)split_figure(options.output, "train", "documents");
    options.inputs = &failing;
    options.tokenizer = "bytes";
    options.test_tokens = 0;
    options.overwrite = true;
    assert_error(prepare_run(&options), "failing.jsonl:5001");
    assert_true(file_exists(temporary_path("replaced/work/unit-000000")));
    assert_true(file_exists(temporary_path("replaced/tokenizer.json")));
    assert_documents(options.output, before);
    options.overwrite = false; // it was asked for once
    options.seed = 9;
    assert_error(prepare_run(&options), "unfinished work with other options");
    assert_documents(options.output, before);
    options.seed = 0;
    options.reader.skip_bad = true;
    assert_ok(prepare_run(&options));
    assert_documents(options.output, 5001);
    static const char *const gone[] = {"replaced/work", "replaced/test", "replaced/tokenizer.json"};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        assert_false(file_exists(temporary_path(gone[i])));
}

// What a kill between the shards' move and dataset.json leaves: units, and shards in their places.
static void test_kill_while_shards_move_is_resumed(void **state) {
    (void)state;
    const char *failing = corpus_failing("moving.jsonl");
    PrepareOptions options = options_for(&failing, temporary_path("moving"));
    assert_error(prepare_run(&options), "moving.jsonl:5001");
    assert_ok(dir_make(temporary_path("moving/train")));
    temporary_file("moving/train/00099.shard", "old", 3);
    assert_ok(dir_make(temporary_path("moving/work/train")));
    temporary_file("moving/work/train/00000.shard.partial", "part", 4);
    options.reader.skip_bad = true;
    assert_ok(prepare_run(&options));
    assert_documents(options.output, 5001);
    assert_false(file_exists(temporary_path("moving/train/00099.shard")));
}

// --- nothing to keep

static void test_dataset_without_documents_is_refused_with_the_reason(void **state) {
    (void)state;
    const char *input = corpus("reasons.jsonl", 20);
    PrepareOptions options = options_for(&input, temporary_path("reasons"));
    options.reader.field = "txt";
    options.reader.skip_bad = true;
    assert_error(prepare_run(&options), "no document was kept: bad 20");
    options.reader.field = NULL;
    options.min_chars = 1000000;
    assert_error(prepare_run(&options), "no document was kept: outside the length limits 20");
    const char *empty = temporary_file("empty.txt", "", 0);
    options.inputs = &empty;
    assert_error(prepare_run(&options), "no document was kept: the input holds none");
    assert_false(file_exists(temporary_path("reasons"))); // made by the run that failed
    assert_ok(dir_make(temporary_path("reasons")));
    assert_error(prepare_run(&options), "no document was kept");
    assert_true(file_exists(temporary_path("reasons")));
    assert_false(file_exists(temporary_path("reasons/work")));
}

static void test_corrected_options_are_taken_when_nothing_was_done(void **state) {
    (void)state;
    const char *input = corpus("typo.jsonl", 20);
    PrepareOptions options = options_for(&input, temporary_path("typo"));
    options.reader.field = "txt";
    assert_error(prepare_run(&options), "no field \"txt\"");
    assert_false(file_exists(temporary_path("typo/work")));
    assert_ok(dir_make(temporary_path("typo/work"))); // what a kill before the first unit leaves
    temporary_file("typo/work/plan.json", "{}", 2);
    options.reader.field = NULL;
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "train", "documents"), 20);
}

static void test_damaged_file_is_left_out_and_counted(void **state) {
    (void)state;
    const char *inputs[] = {corpus("sound.jsonl", 20), temporary_file("damaged.jsonl.gz", "\x1f\x8b rubbish", 10)};
    PrepareOptions options = options_for(inputs, temporary_path("damaged"));
    options.input_count = 2;
    assert_error(prepare_run(&options), "damaged.jsonl.gz: damaged gzip data");
    options.reader.skip_bad = true;
    assert_ok(prepare_run(&options));
    assert_int_equal(count_figure(options.output, "damaged_files"), 1);
    assert_int_equal(count_figure(options.output, "bad"), 0);
    assert_int_equal(split_figure(options.output, "train", "documents"), 20);
}

// A checksum stands at the end: units may hold what it then proves damaged, and are not resumed.
static void test_work_on_a_file_found_damaged_is_not_resumed(void **state) {
    (void)state;
    char *text;
    size_t size;
    const char *inputs[] = {corpus("before.jsonl", 20), temporary_path("late.jsonl.gz")};
    assert_ok(file_read(&text, &size, corpus("late.jsonl", 8000)));
    gzFile out = gzopen(inputs[1], "wb");
    assert_int_equal(gzwrite(out, text, (unsigned)size), size);
    gzclose(out);
    free(text);
    assert_ok(file_read(&text, &size, inputs[1]));
    text[size - 6] ^= 1;
    assert_ok(file_write_atomic(inputs[1], text, size));
    free(text);
    PrepareOptions options = options_for(inputs, temporary_path("late"));
    options.input_count = 2;
    assert_error(prepare_run(&options), "incorrect data check");
    assert_true(file_exists(temporary_path("late/work/unit-000000")));
    options.reader.skip_bad = true;
    assert_error(prepare_run(&options), "start again with --overwrite");
    options.overwrite = true;
    assert_ok(prepare_run(&options));
    assert_int_equal(split_figure(options.output, "train", "documents"), 20);
}

// --- what else may lie in the output folder

static void test_inputs_in_the_output_folder_are_refused_and_kept(void **state) {
    (void)state;
    assert_ok(dir_make(temporary_path("own/train")));
    const char *text = temporary_file("own/train/mine.txt", "my text", 7), *input = temporary_path("own/train");
    PrepareOptions options = options_for(&input, temporary_path("own"));
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        options.overwrite = overwrite;
        assert_error(prepare_run(&options), "where the dataset is to be written");
        assert_true(file_exists(text));
    }
}

static void test_folders_with_other_files_are_refused_and_kept(void **state) {
    (void)state;
    static const char *const folders[] = {"train", "val", "test", "work"};
    const char *input = corpus("guests.jsonl", 20);
    for (int i = 0; i < 8; i++) {
        char *output = text_format("%s/guest-%d", temporary_folder, i), *folder = path_join(output, folders[i / 2]);
        char *notes = path_join(folder, "notes.txt");
        assert_ok(dir_make(folder));
        assert_ok(file_write_atomic(notes, "mine", 4));
        PrepareOptions options = options_for(&input, output);
        options.overwrite = i % 2;
        assert_error(prepare_run(&options), "notes.txt");
        assert_true(file_exists(notes));
        free(notes);
        free(folder);
        free(output);
    }
}

static void test_overwrite_leaves_the_work_of_a_running_process_alone(void **state) {
    (void)state;
    const char *input = corpus("busy.jsonl", 100);
    PrepareOptions options = options_for(&input, temporary_path("busy"));
    assert_ok(prepare_run(&options));
    assert_ok(dir_make(temporary_path("busy/work")));
    int lock;
    assert_ok(file_lock(&lock, temporary_path("busy/work/lock"), "busy"));
    options.overwrite = true;
    assert_error(prepare_run(&options), "in use by another process");
    assert_true(file_exists(temporary_path("busy/dataset.json")));
    assert_true(file_exists(temporary_path("busy/train/00000.shard")));
    assert_true(file_exists(temporary_path("busy/work/lock")));
    file_unlock(&lock);
    assert_ok(prepare_run(&options));
    assert_false(file_exists(temporary_path("busy/work")));
}

static void test_tokenizer_is_kept_beside_the_dataset(void **state) {
    (void)state;
    const char *input = corpus("kept.jsonl", 50), *tokenizer = tokenizer_learned("learned", 1);
    PrepareOptions options = options_for(&input, temporary_path("kept"));
    options.tokenizer = tokenizer;
    assert_ok(prepare_run(&options));
    char *kept, *original;
    size_t kept_size, original_size;
    assert_ok(file_read(&kept, &kept_size, temporary_path("kept/tokenizer.json")));
    assert_ok(file_read(&original, &original_size, tokenizer));
    assert_int_equal(kept_size, original_size);
    assert_memory_equal(kept, original, kept_size);
    free(kept);
    free(original);
    options.tokenizer = "bytes";
    options.overwrite = true;
    assert_ok(prepare_run(&options)); // another dataset: the copy of the old one goes
    assert_false(file_exists(temporary_path("kept/tokenizer.json")));
}

static void test_tokenizer_of_somebody_else_is_not_replaced(void **state) {
    (void)state;
    const char *input = corpus("foreign.jsonl", 50);
    assert_ok(dir_make(temporary_path("foreign")));
    const char *theirs = temporary_file("foreign/tokenizer.json", "{}", 2);
    PrepareOptions options = options_for(&input, temporary_path("foreign"));
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        options.overwrite = overwrite;
        assert_error(prepare_run(&options), "is another tokenizer than bytes");
        assert_true(file_exists(theirs));
    }
}

static void test_set_of_hashes_stays_exact_when_it_goes_to_disk(void **state) {
    (void)state;
    DedupSet *set = dedup_new(temporary_folder, 1000); // twenty times less than what comes
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20000; i++) {
            bool added;
            assert_ok(dedup_insert(set, document_hash((const char *)&i, sizeof i, 0), &added));
            assert_int_equal(added, round == 0);
        }
    }
    dedup_free(set);
    assert_false(file_exists(temporary_path("dedup-0.run")));
}

// Hashes of texts are even, so a run is mostly searched with one look; these are not, and need many.
static void test_uneven_hashes_are_found_in_a_run(void **state) {
    (void)state;
    enum { COUNT = 3000 };
    DedupSet *set = dedup_new(temporary_folder, COUNT);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            bool added;
            assert_ok(dedup_insert(set, (DocumentHash){i < COUNT / 2 ? i : UINT64_MAX - i, i + 1}, &added));
            if (added != (round == 0)) fail_msg("hash %llu", (unsigned long long)i);
        }
    }
    dedup_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_targets_every_document_is_there_once),
        cmocka_unit_test(test_splits_get_exactly_the_asked_tokens),
        cmocka_unit_test(test_counts_are_exact_although_copies_at_the_border_are_dropped),
        cmocka_unit_test(test_tokens_in_no_split_are_accounted_for),
        cmocka_unit_test(test_the_rest_of_a_cut_document_is_trained_on),
        cmocka_unit_test(test_no_text_is_in_two_splits),
        cmocka_unit_test(test_any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(test_order_is_shuffled_and_follows_the_seed),
        cmocka_unit_test(test_dedup_keeps_one_of_each),
        cmocka_unit_test(test_filters_leave_out_and_count),
        cmocka_unit_test(test_length_limits_count_characters),
        cmocka_unit_test(test_no_shard_is_larger_than_asked),
        cmocka_unit_test(test_too_small_an_input_gives_what_there_is),
        cmocka_unit_test(test_special_tokens_in_the_text_stay_text),
        cmocka_unit_test(test_finished_work_is_not_done_again),
        cmocka_unit_test(test_failed_run_resumes_only_with_the_same_options),
        cmocka_unit_test(test_median_is_exact_for_long_documents),
        cmocka_unit_test(test_overwrite_that_fails_keeps_the_dataset_and_resumes),
        cmocka_unit_test(test_kill_while_shards_move_is_resumed),
        cmocka_unit_test(test_tokenizer_without_end_of_text_is_refused_with_a_way_out),
        cmocka_unit_test(test_dataset_without_documents_is_refused_with_the_reason),
        cmocka_unit_test(test_corrected_options_are_taken_when_nothing_was_done),
        cmocka_unit_test(test_damaged_file_is_left_out_and_counted),
        cmocka_unit_test(test_work_on_a_file_found_damaged_is_not_resumed),
        cmocka_unit_test(test_inputs_in_the_output_folder_are_refused_and_kept),
        cmocka_unit_test(test_folders_with_other_files_are_refused_and_kept),
        cmocka_unit_test(test_overwrite_leaves_the_work_of_a_running_process_alone),
        cmocka_unit_test(test_tokenizer_is_kept_beside_the_dataset),
        cmocka_unit_test(test_tokenizer_of_somebody_else_is_not_replaced),
        cmocka_unit_test(test_set_of_hashes_stays_exact_when_it_goes_to_disk),
        cmocka_unit_test(test_uneven_hashes_are_found_in_a_run),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
