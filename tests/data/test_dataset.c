// Datasets and mixes: splits as one run of tokens, and sample indices dealt by weight.
#include "data/dataset.h"
#include "data/inspect.h"
#include "data/mix.h"
#include "temporary.h"

#define SHARDS 3

// Shard s holds tokens counting on from where the one before ended.
static void folder_make(const char *folder, uint64_t tokenizer_hash) {
    assert_ok(dir_make(folder));
    uint32_t next = 0;
    for (int s = 0; s < SHARDS; s++) {
        char *path = text_format("%s/%05d.shard", folder, s);
        ShardWriter *writer;
        assert_ok(shard_writer_open(&writer, path, 1000, tokenizer_hash));
        for (int d = 0; d < 4; d++) {
            uint32_t ids[16];
            size_t count = (size_t)(1 + (s * 4 + d) % 5);
            for (size_t i = 0; i < count; i++)
                ids[i] = next++;
            assert_ok(shard_writer_add(writer, ids, count, count));
        }
        assert_ok(shard_writer_close(writer, NULL));
        free(path);
    }
}

static void test_any_range_reads_across_shards(void **state) {
    (void)state;
    const char *folder = temporary_path("plain");
    folder_make(folder, 1);
    Dataset dataset;
    assert_ok(dataset_open(&dataset, folder, NULL, true));
    assert_int_equal(dataset.shard_count, SHARDS);
    assert_int_equal(dataset.document_count, 12);
    for (uint64_t first = 0; first <= dataset.token_count; first++) {
        for (uint64_t count = 0; first + count <= dataset.token_count; count++) {
            uint32_t ids[64];
            dataset_read(&dataset, first, count, ids);
            for (uint64_t i = 0; i < count; i++)
                assert_int_equal(ids[i], first + i);
        }
    }
    dataset_close(&dataset);
}

static void test_shards_of_another_tokenizer_are_refused(void **state) {
    (void)state;
    const char *folder = temporary_path("mixed");
    folder_make(folder, 1);
    ShardWriter *writer;
    assert_ok(shard_writer_open(&writer, temporary_path("mixed/99999.shard"), 1000, 2));
    assert_ok(shard_writer_close(writer, NULL));
    Dataset dataset;
    assert_error(dataset_open(&dataset, folder, NULL, false), "another tokenizer");
}

static void test_empty_folder_is_refused_with_advice(void **state) {
    (void)state;
    Dataset dataset;
    assert_ok(dir_make(temporary_path("nothing")));
    assert_error(dataset_open(&dataset, temporary_path("nothing"), "train", false), "hearth data prepare");
}

static void test_changed_dataset_json_is_refused(void **state) {
    (void)state;
    const char *folder = temporary_path("described");
    assert_ok(dir_make(folder));
    json_t *root = json_pack("{s:{}, s:i}", "splits", "version", 1);
    assert_ok(dataset_write_json(root, folder));
    json_decref(root);
    assert_ok(dataset_read_json(&root, folder));
    json_object_set_new(root, "version", json_integer(2));
    char *text = json_dumps(root, 0);
    temporary_file("described/dataset.json", text, strlen(text));
    free(text);
    json_decref(root);
    assert_error(dataset_read_json(&root, folder), "was changed");
}

static void test_lengths_and_packing_of_a_known_split(void **state) {
    (void)state;
    const char *folder = temporary_path("known");
    folder_make(folder, 1); // lengths 1 2 3 4 5 1 2 3 4 5 1 2: 33 tokens
    Dataset dataset;
    DatasetLengths lengths;
    DatasetPacking packing;
    assert_ok(dataset_open(&dataset, folder, NULL, false));
    dataset_lengths(&dataset, &lengths);
    assert_int_equal(lengths.tokens, 33);
    assert_int_equal(lengths.shortest, 1);
    assert_int_equal(lengths.longest, 5);
    assert_int_equal(lengths.median, 2);
    assert_int_equal(lengths.bins[1], 3); // length 1
    assert_int_equal(lengths.bins[2], 5); // 2 and 3
    assert_int_equal(lengths.bins[3], 4); // 4 and 5
    dataset_packing(&dataset, 4, &packing);
    assert_int_equal(packing.packed_sequences, 8);
    assert_true(fabs(packing.packed_share - 32.0 / 33) < 1e-12);
    assert_true(fabs(packing.padded_share - 31.0 / 48) < 1e-12); // the two of 5 lose one token each
    assert_true(fabs(packing.cut_share - 2.0 / 33) < 1e-12);
    dataset_close(&dataset);
}

// --- mixes ----------------------------------------------------------------------------------------------------------

static void mix_make(Mix *mix, const double *weights, size_t count) {
    const char *paths[8];
    char names[8][32];
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "part%zu", i);
        folder_make(temporary_path(names[i]), 1);
        paths[i] = names[i]; // relative to the mix file
    }
    assert_ok(mix_write(temporary_path("mix.json"), paths, weights, count));
    assert_true(mix_is_file(temporary_path("mix.json")));
    assert_ok(mix_open(mix, temporary_path("mix.json"), "train", false));
    assert_int_equal(mix->count, count);
}

static void test_every_sample_of_each_dataset_comes_once_and_in_order(void **state) {
    (void)state;
    const double weights[] = {5, 3, 1, 0.5};
    Mix mix;
    mix_make(&mix, weights, 4);
    uint64_t next[4] = {0};
    for (uint64_t sample = 0; sample < 20000; sample++) {
        uint64_t index;
        size_t which = mix_locate(&mix, sample, &index);
        assert_int_equal(index, next[which]++);
    }
    mix_close(&mix);
}

static void test_shares_hold_over_every_prefix(void **state) {
    (void)state;
    const double weights[] = {0.6, 0.3, 0.1};
    Mix mix;
    mix_make(&mix, weights, 3);
    double seen[3] = {0};
    for (uint64_t sample = 0; sample < 100000; sample++) {
        uint64_t index;
        seen[mix_locate(&mix, sample, &index)]++;
        for (int i = 0; i < 3; i++) {
            // Each of the two-way deals is off by less than one sample; there are two of them.
            if (fabs(seen[i] - weights[i] * (double)(sample + 1)) > 2)
                fail_msg("share %d is off at sample %zu", i, (size_t)sample);
        }
    }
    mix_close(&mix);
}

static void test_far_samples_do_not_overflow(void **state) {
    (void)state;
    const double weights[] = {1, 2};
    Mix mix;
    uint64_t index, before;
    mix_make(&mix, weights, 2);
    size_t which = mix_locate(&mix, (uint64_t)1 << 62, &index);
    assert_true(which < 2 && index <= (uint64_t)1 << 62);
    assert_int_equal(mix_locate(&mix, (uint64_t)1 << 62, &before), which);
    assert_int_equal(before, index);
    mix_close(&mix);
}

static void test_a_plain_dataset_is_a_mix_of_one(void **state) {
    (void)state;
    folder_make(temporary_path("alone"), 1);
    Mix mix;
    uint64_t index;
    assert_ok(mix_open(&mix, temporary_path("alone"), "train", false));
    assert_int_equal(mix_locate(&mix, 12345, &index), 0);
    assert_int_equal(index, 12345);
    mix_close(&mix);
}

static void test_mix_with_a_bad_weight_is_refused(void **state) {
    (void)state;
    const char *text = "{\"format\": \"hearth-mix\", \"datasets\": [{\"path\": \"alone\", \"weight\": -1}]}";
    Mix mix;
    assert_error(mix_open(&mix, temporary_file("bad.json", text, strlen(text)), "train", false), "weight");
}

static void test_mix_of_different_tokenizers_is_refused(void **state) {
    (void)state;
    const char *const folders[] = {temporary_path("of-one"), temporary_path("of-two")};
    const double weights[] = {1, 1};
    folder_make(folders[0], 1);
    folder_make(folders[1], 2);
    Mix mix;
    assert_error(mix_join(&mix, folders, weights, 2, NULL), "different tokenizers");
}

static void test_only_finite_weights_above_zero_are_written(void **state) {
    (void)state;
    const char *const names[] = {"alone", "alone"};
    const double bad[][2] = {{INFINITY, 1}, {1, NAN}, {0, 1}, {1e308, 1e308}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_error(mix_write(temporary_path("weights.json"), names, bad[i], 2), "finite number above zero");
    assert_false(file_exists(temporary_path("weights.json")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_range_reads_across_shards),
        cmocka_unit_test(test_shards_of_another_tokenizer_are_refused),
        cmocka_unit_test(test_empty_folder_is_refused_with_advice),
        cmocka_unit_test(test_changed_dataset_json_is_refused),
        cmocka_unit_test(test_lengths_and_packing_of_a_known_split),
        cmocka_unit_test(test_every_sample_of_each_dataset_comes_once_and_in_order),
        cmocka_unit_test(test_shares_hold_over_every_prefix),
        cmocka_unit_test(test_far_samples_do_not_overflow),
        cmocka_unit_test(test_a_plain_dataset_is_a_mix_of_one),
        cmocka_unit_test(test_mix_with_a_bad_weight_is_refused),
        cmocka_unit_test(test_mix_of_different_tokenizers_is_refused),
        cmocka_unit_test(test_only_finite_weights_above_zero_are_written),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
