#include "testing.h"

#include "train/config.h"

#include <unistd.h>

static char *write_file(const char *text) {
    char *path = text_copy("/tmp/hearth-config-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    return path;
}

static void read_config(Config *config, const char *text) {
    char *path = write_file(text);
    assert_ok(config_read(config, path, NULL, 0));
    unlink(path);
    free(path);
}

static void torchtitan_names_are_accepted(void **state) {
    (void)state;
    Config config;
    read_config(&config, "[training]\nlocal_batch_size = 4\nseq_len = 12288\nmixed_precision_reduce = \"bfloat16\"\n"
                         "[activation_checkpoint]\nmode = \"selective\"\n"
                         "[compile]\nenable = true\n"
                         "[parallelism]\ntensor_parallel_degree = 1\ncontext_parallel_degree = 1\n"
                         "expert_parallel_degree = 4\nexpert_tensor_parallel_degree = 1\n");
    assert_int_equal(config.train.micro_batch, 4);
    assert_int_equal(config.train.seq, 12288);
    assert_string_equal(config.recompute.mode, "selective");
    assert_true(config.train.graph);
    assert_int_equal(config.parallelism.expert, 4);
    assert_string_equal(config.parallelism.reduce_dtype, "bfloat16");
    config_free(&config);
}

static void a_shard_degree_means_sharding(void **state) {
    static const struct {
        const char *keys;
        int64_t data, zero;
    } cases[] = {
        {"data_parallel_shard_degree = 8", 8, 3},
        {"data_parallel_shard_degree = -1", -1, 3},
        {"data_parallel_shard_degree = 1", 1, 0}, // nobody to share with
        {"data_parallel_replicate_degree = 8", 8, 0},
        {"data_parallel_shard_degree = 8\nzero_stage = 2", 8, 2}, // what is said stands, in either order
        {"zero_stage = 2\ndata_parallel_shard_degree = 8", 8, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Config config;
        char *text = text_format("[parallelism]\n%s\n", cases[i].keys);
        read_config(&config, text);
        assert_int_equal(config.parallelism.data, cases[i].data);
        assert_int_equal(config.parallelism.zero, cases[i].zero);
        config_free(&config);
        free(text);
    }
    const char *const sets[] = {"parallelism.data_parallel_shard_degree=4"};
    Config config;
    assert_ok(config_read(&config, NULL, sets, 1));
    assert_int_equal(config.parallelism.zero, 3);
    config_free(&config);
}

static void token_counts_have_suffixes_and_multiples(void **state) {
    (void)state;
    Config config;
    read_config(&config, "[train]\ntokens = \"6B\"\nbatch_tokens = \"500K\"\n");
    assert_int_equal(config.train.tokens.count, 6000000000);
    assert_int_equal(config.train.batch_tokens, 500000);
    config_free(&config);
    read_config(&config, "[train]\ntokens = \"20x\"\nbatch_tokens = 1_000_000\n");
    assert_float_equal(config.train.tokens.per_parameter, 20, 0);
    config_free(&config);
    read_config(&config, "[train]\ntokens = 1e9\n");
    assert_int_equal(config.train.tokens.count, 1000000000);
    config_free(&config);
}

static void options_override_the_file(void **state) {
    (void)state;
    char *path = write_file("[train]\nseq = 128\n[data]\ntrain = \"a\"\n");
    const char *const sets[] = {"train.seq_len=64", "optimizer.lr=1e-3", "data.train=[\"x\", \"y\"]", "train.name=2026",
                                "data.mask_documents=true"};
    Config config;
    assert_ok(config_read(&config, path, sets, 5));
    assert_int_equal(config.train.seq, 64);
    assert_float_equal(config.optimizer.lr, 1e-3, 0);
    assert_int_equal(config.data.train.count, 2);
    assert_string_equal(config.data.train.items[1], "y");
    assert_string_equal(config.train.name, "2026");
    assert_true(config.data.mask_documents);
    config_free(&config);
    unlink(path);
    free(path);
}

static void a_resolved_config_reads_back_the_same(void **state) {
    (void)state;
    Config config, again;
    read_config(&config,
                "[model]\nhidden = 64\nheads = 4\nlayers = 2\nffn = 96\n[data]\ntrain = [\"a \\\"b\\\"\", \"c\"]\n"
                "weights = [0.25, 3]\n[train]\ntokens = \"1.5x\"\n[optimizer]\nlr = 0.00123456789\n");
    TextBuffer first = {0}, second = {0};
    config_write(&config, &first);
    read_config(&again, first.data);
    config_write(&again, &second);
    assert_string_equal(first.data, second.data);
    assert_true(config_hash(&config, 4096) == config_hash(&again, 4096));
    text_buffer_free(&first);
    text_buffer_free(&second);
    config_free(&config);
    config_free(&again);
}

static void a_copy_outlives_its_original(void **state) {
    (void)state;
    Config config, copy;
    read_config(&config, "[data]\ntrain = [\"a\", \"b\"]\nweights = [1, 2]\n[train]\nname = \"x\"\n");
    TextBuffer before = {0}, after = {0};
    config_write(&config, &before);
    assert_ok(config_copy(&copy, &config));
    config_free(&config);
    config_write(&copy, &after);
    assert_string_equal(before.data, after.data);
    assert_true(config_given(&copy, "train.name"));
    text_buffer_free(&before);
    text_buffer_free(&after);
    config_free(&copy);
}

static void the_hash_changes_with_what_changes_the_numbers(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    uint64_t before = config_hash(&config, 4096);
    assert_ok(config_set(&config, "train.steps=99"));
    assert_true(config_hash(&config, 4096) == before);
    assert_ok(config_set(&config, "train.micro_batch=2"));
    assert_true(config_hash(&config, 4096) == before); // cut otherwise, the same batch
    assert_true(config_hash(&config, 8192) != before);
    assert_ok(config_set(&config, "optimizer.lr=0.5"));
    assert_true(config_hash(&config, 4096) != before);
    config_free(&config);
}

static void every_key_has_help_and_a_valid_default(void **state) {
    (void)state;
    Config config;
    config_defaults(&config); // asserts inside
    config_free(&config);
    for (int i = 0; i < config_key_count; i++) {
        assert_true(strlen(config_keys[i].help) > 0);
        for (int k = 0; k < i; k++)
            assert_false(config_keys[i].offset == config_keys[k].offset);
    }
}

static void a_failed_check_points_at_its_line(void **state) {
    (void)state;
    Config config;
    read_config(&config, "[train]\n\nseq = 64\n");
    Status status = config_blame(&config, "train.seq", status_usage("too long"));
    assert_non_null(strstr(status_text(status), ":3:7: too long"));
    status_free(status);
    config_free(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchtitan_names_are_accepted),
        cmocka_unit_test(a_shard_degree_means_sharding),
        cmocka_unit_test(token_counts_have_suffixes_and_multiples),
        cmocka_unit_test(options_override_the_file),
        cmocka_unit_test(a_resolved_config_reads_back_the_same),
        cmocka_unit_test(a_copy_outlives_its_original),
        cmocka_unit_test(the_hash_changes_with_what_changes_the_numbers),
        cmocka_unit_test(every_key_has_help_and_a_valid_default),
        cmocka_unit_test(a_failed_check_points_at_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
