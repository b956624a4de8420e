#include "testing.h"

#include "data/loader.h"
#include "data/shard.h"

static char *directory;

// Shards "one" and "two": token t of the whole is t + 1, documents of varying length; every position can be told.
static char *write_shard(const char *name, uint32_t first, uint32_t tokens, uint32_t document) {
    char *path = path_join(directory, name);
    ShardWriter *writer;
    assert_ok(shard_writer_open(&writer, path, 60000, 77));
    uint32_t *ids = xmalloc(tokens * sizeof *ids);
    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = first + i;
    for (uint32_t at = 0; at < tokens; at += document) {
        uint32_t count = tokens - at < document ? tokens - at : document;
        assert_ok(shard_writer_add(writer, ids + at, count, count));
    }
    assert_ok(shard_writer_close(writer, NULL));
    free(ids);
    return path;
}

static int make_data(void **state) {
    (void)state;
    directory = text_copy("/tmp/hearth-loader-XXXXXX");
    if (!mkdtemp(directory)) return 1;
    free(write_shard("one.shard", 1, 1000, 37));
    free(write_shard("two.shard", 1001, 503, 50));
    return 0;
}

static int remove_data(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    return 0;
}

static void open_samples(Samples *samples, int seq, bool mask, uint64_t seed) {
    const char *paths[] = {directory};
    SamplesRequest request = {
        .paths = paths, .path_count = 1, .split = "train", .seq = seq, .mask_documents = mask, .seed = seed};
    assert_ok(samples_open(samples, &request));
}

static void the_permutation_is_one(void **state) {
    (void)state;
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            char *seen = xcalloc(counts[c], 1);
            for (uint64_t i = 0; i < counts[c]; i++) {
                uint64_t at = samples_permute(i, counts[c], 42, 0, epoch);
                assert_true(at < counts[c] && !seen[at]);
                seen[at] = 1;
            }
            free(seen);
        }
}

static void epochs_seeds_and_streams_have_their_own_order(void **state) {
    (void)state;
    int same_epoch = 0, same_seed = 0, same_stream = 0, fixed = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t at = samples_permute(i, 1000, 1, 0, 0);
        same_epoch += at == samples_permute(i, 1000, 1, 0, 1);
        same_seed += at == samples_permute(i, 1000, 2, 0, 0);
        same_stream += at == samples_permute(i, 1000, 1, 1, 0);
        fixed += at == i;
    }
    // One match is expected by chance in each; more than 8 has a probability below 1e-5.
    assert_true(same_epoch <= 8 && same_seed <= 8 && same_stream <= 8 && fixed <= 8);
}

static const LoaderBatch *next_batch(Loader *loader, double *waited) {
    const LoaderBatch *batch;
    assert_ok(loader_next(loader, &batch, waited));
    return batch;
}

static void an_epoch_is_every_window_once(void **state) {
    (void)state;
    enum { SEQ = 32 };
    Samples samples;
    open_samples(&samples, SEQ, false, 3);
    assert_int_equal(samples.windows, 1502 / SEQ);
    char seen[64] = {0};
    int32_t ids[SEQ], targets[SEQ];
    for (uint64_t i = 0; i < samples.windows; i++) {
        int valid;
        assert_ok(samples_read(&samples, i, ids, targets, NULL, &valid));
        assert_int_equal(valid, SEQ);
        assert_int_equal((ids[0] - 1) % SEQ, 0);
        int window = (ids[0] - 1) / SEQ;
        assert_false(seen[window]);
        seen[window] = 1;
        for (int k = 0; k < SEQ; k++) { // across the border of the shards too
            assert_int_equal(ids[k], ids[0] + k);
            assert_int_equal(targets[k], ids[k] + 1);
        }
    }
    samples_close(&samples);
}

static bool starts_document(int32_t token) { // as write_shard cut them
    return token <= 1000 ? (token - 1) % 37 == 0 : (token - 1001) % 50 == 0;
}

static void masking_cuts_at_document_ends(void **state) {
    (void)state;
    enum { SEQ = 64 };
    Samples samples;
    open_samples(&samples, SEQ, true, 3);
    int32_t ids[SEQ], targets[SEQ], doc_start[SEQ];
    int64_t sum = 0;
    for (uint64_t i = 0; i < samples.windows; i++) {
        int valid, counted = 0, start = 0;
        assert_ok(samples_read(&samples, i, ids, targets, doc_start, &valid));
        for (int k = 0; k < SEQ; k++) {
            if (k > 0 && starts_document(ids[k])) start = k;
            assert_int_equal(doc_start[k], start);
            assert_int_equal(targets[k], starts_document(ids[k] + 1) ? -1 : ids[k] + 1);
            counted += targets[k] >= 0;
        }
        assert_int_equal(valid, counted);
        sum += valid;
    }
    assert_int_equal(samples_targets(&samples, 0, samples.windows), sum);
    samples_close(&samples);
}

static void the_order_does_not_depend_on_the_number_of_ranks(void **state) {
    (void)state;
    enum { SEQ = 16, MICRO = 2, STEPS = 6 };
    Samples samples;
    open_samples(&samples, SEQ, false, 8);
    int32_t alone[STEPS * 4 * MICRO], split[STEPS * 4 * MICRO];
    double waited = 0;
    Loader *loader;
    assert_ok(loader_start(&loader, &samples, MICRO, 0, 1, 3, 10));
    for (int i = 0; i < STEPS * 4; i++) {
        const LoaderBatch *batch = next_batch(loader, &waited);
        assert_int_equal(batch->first_sample, 10 + i * MICRO);
        for (int row = 0; row < MICRO; row++)
            alone[i * MICRO + row] = batch->ids[row * SEQ];
    }
    loader_stop(loader);
    for (int rank = 0; rank < 4; rank++) {
        assert_ok(loader_start(&loader, &samples, MICRO, rank, 4, 1, 10));
        for (int i = 0; i < STEPS; i++) {
            const LoaderBatch *batch = next_batch(loader, &waited);
            for (int row = 0; row < MICRO; row++)
                split[(i * 4 + rank) * MICRO + row] = batch->ids[row * SEQ];
        }
        loader_stop(loader);
    }
    assert_memory_equal(alone, split, sizeof alone);
    samples_close(&samples);
}

static void a_loader_started_later_gives_the_rest(void **state) {
    (void)state;
    enum { SEQ = 16, MICRO = 3 };
    Samples samples;
    open_samples(&samples, SEQ, true, 8);
    Loader *whole, *rest;
    double waited = 0;
    assert_ok(loader_start(&whole, &samples, MICRO, 0, 1, 4, 0));
    for (int i = 0; i < 50; i++) // over an epoch's end
        next_batch(whole, &waited);
    assert_ok(loader_start(&rest, &samples, MICRO, 0, 1, 2, 50 * MICRO));
    for (int i = 0; i < 20; i++) {
        const LoaderBatch *a = next_batch(whole, &waited), *b = next_batch(rest, &waited);
        assert_memory_equal(a->ids, b->ids, MICRO * SEQ * sizeof *a->ids);
        assert_memory_equal(a->targets, b->targets, MICRO * SEQ * sizeof *a->targets);
        assert_memory_equal(a->doc_start, b->doc_start, MICRO * SEQ * sizeof *a->doc_start);
        assert_int_equal(a->valid, b->valid);
    }
    loader_stop(whole);
    loader_stop(rest);
    samples_close(&samples);
}

// A window needs one token behind it for its last target.
static void tokens_for_whole_windows_only_make_one_less(void **state) {
    (void)state;
    enum { SEQ = 10 };
    char *path = path_join(directory, "one.shard");
    const char *paths[] = {path};
    SamplesRequest request = {.paths = paths, .path_count = 1, .split = "train", .seq = SEQ};
    Samples samples;
    assert_ok(samples_open(&samples, &request));
    assert_int_equal(samples.windows, 1000 / SEQ - 1);
    samples_close(&samples);
    free(path);
}

static void empty_documents_cost_no_target(void **state) {
    (void)state;
    enum { SEQ = 12 };
    char *path = path_join(directory, "holes.shards");
    assert_ok(dir_make(path));
    char *file = path_join(path, "holes.shard");
    ShardWriter *writer;
    const uint32_t ids[] = {1, 2, 3, 4, 5, 6};
    assert_ok(shard_writer_open(&writer, file, 60000, 77));
    for (int i = 0; i < 60; i++)
        assert_ok(shard_writer_add(writer, ids, (size_t)(i % 3 ? 0 : 6), 6));
    assert_ok(shard_writer_close(writer, NULL));
    const char *paths[] = {path};
    SamplesRequest request = {.paths = paths, .path_count = 1, .split = "train", .seq = SEQ, .mask_documents = true};
    Samples samples;
    assert_ok(samples_open(&samples, &request));
    int32_t inputs[SEQ], targets[SEQ], doc_start[SEQ];
    int64_t sum = 0;
    for (uint64_t i = 0; i < samples.windows; i++) {
        int valid;
        assert_ok(samples_read(&samples, i, inputs, targets, doc_start, &valid));
        assert_int_equal(valid, SEQ - 2); // six tokens a document: two ends in each window
        sum += valid;
    }
    assert_int_equal(samples_targets(&samples, 0, samples.windows), sum);
    samples_close(&samples);
    status_free(dir_remove(path));
    free(file);
    free(path);
}

// Nothing happens between the calls here, so the caller is ahead of the thread for most of the batches.
static void waiting_for_a_batch_is_counted(void **state) {
    (void)state;
    enum { SEQ = 1000, MICRO = 32 };
    Samples samples;
    open_samples(&samples, SEQ, true, 8);
    Loader *loader;
    double waited = 0;
    assert_ok(loader_start(&loader, &samples, MICRO, 0, 1, 1, 0));
    for (int i = 0; i < 200; i++)
        next_batch(loader, &waited);
    loader_stop(loader);
    assert_true(waited > 0);
    samples_close(&samples);
}

static void weights_set_the_shares(void **state) {
    (void)state;
    enum { SEQ = 16 };
    char *one = path_join(directory, "one.shard"), *two = path_join(directory, "two.shard");
    const char *paths[] = {one, two};
    const double weights[] = {3, 1};
    SamplesRequest request = {
        .paths = paths, .path_count = 2, .weights = weights, .split = "train", .seq = SEQ, .seed = 4};
    Samples samples;
    assert_ok(samples_open(&samples, &request));
    int32_t ids[SEQ], targets[SEQ];
    int from_one = 0;
    for (uint64_t i = 0; i < 400; i++) {
        int valid;
        assert_ok(samples_read(&samples, i, ids, targets, NULL, &valid));
        from_one += ids[0] <= 1000;
    }
    assert_int_equal(from_one, 300);
    samples_close(&samples);
    free(one);
    free(two);
}

static void globs_name_many_shards(void **state) {
    (void)state;
    char *pattern = path_join(directory, "*.shard"), *none = path_join(directory, "*.none");
    const char *paths[] = {pattern};
    SamplesRequest request = {.paths = paths, .path_count = 1, .split = "train", .seq = 16};
    Samples samples;
    assert_ok(samples_open(&samples, &request));
    assert_int_equal(samples.windows, 999 / 16 + 502 / 16);
    samples_close(&samples);
    paths[0] = none;
    assert_error(samples_open(&samples, &request), "no file matches");
    request.seq = 5000;
    paths[0] = pattern;
    assert_error(samples_open(&samples, &request), "less than one window");
    free(pattern);
    free(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_permutation_is_one),
        cmocka_unit_test(epochs_seeds_and_streams_have_their_own_order),
        cmocka_unit_test(an_epoch_is_every_window_once),
        cmocka_unit_test(masking_cuts_at_document_ends),
        cmocka_unit_test(the_order_does_not_depend_on_the_number_of_ranks),
        cmocka_unit_test(a_loader_started_later_gives_the_rest),
        cmocka_unit_test(tokens_for_whole_windows_only_make_one_less),
        cmocka_unit_test(empty_documents_cost_no_target),
        cmocka_unit_test(waiting_for_a_batch_is_counted),
        cmocka_unit_test(weights_set_the_shares),
        cmocka_unit_test(globs_name_many_shards),
    };
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
