// Shards: what is written is read back, and nothing damaged is taken for whole.
#include "data/shard.h"
#include "temporary.h"

#include <xxhash.h>

static void shard_make(const char *path, uint64_t vocab_size) {
    ShardWriter *writer;
    const uint32_t first[] = {1, 2, 3}, second[] = {250, 0}, last = (uint32_t)vocab_size - 1;
    assert_ok(shard_writer_open(&writer, path, vocab_size, 77));
    assert_ok(shard_writer_add(writer, first, 3, 10));
    assert_ok(shard_writer_add(writer, second, 2, 5));
    assert_ok(shard_writer_add(writer, &last, 0, 0));
    assert_ok(shard_writer_add(writer, &last, 1, 4));
    assert_ok(shard_writer_close(writer, NULL));
}

static void round_trip(uint64_t vocab_size, uint32_t token_bytes) {
    const char *path = temporary_path("round.shard");
    shard_make(path, vocab_size);
    Shard shard;
    assert_ok(shard_open(&shard, path, true));
    assert_int_equal(shard.header->token_bytes, token_bytes);
    assert_int_equal(shard.header->token_count, 6);
    assert_int_equal(shard.header->document_count, 4);
    assert_int_equal(shard.header->vocab_size, vocab_size);
    assert_int_equal(shard.header->tokenizer_hash, 77);
    assert_int_equal(shard.header->text_bytes, 19);
    const uint32_t tokens[] = {1, 2, 3, 250, 0, (uint32_t)vocab_size - 1};
    const uint64_t documents[] = {0, 3, 5, 5, 6};
    for (int i = 0; i < 6; i++)
        assert_int_equal(shard_token(&shard, (uint64_t)i), tokens[i]);
    for (int i = 0; i < 5; i++)
        assert_int_equal(shard.documents[i], documents[i]);
    shard_close(&shard);
}

static void test_small_vocabulary_is_stored_in_two_bytes(void **state) {
    (void)state;
    round_trip(65536, 2);
}

static void test_large_vocabulary_is_stored_in_four_bytes(void **state) {
    (void)state;
    round_trip(65537, 4);
}

static void test_many_tokens_survive_the_write_buffer(void **state) {
    (void)state;
    const char *path = temporary_path("large.shard");
    enum { COUNT = 1500000 };
    uint32_t *ids = xmalloc(COUNT * sizeof *ids);
    for (uint32_t i = 0; i < COUNT; i++)
        ids[i] = i * 2654435761u % 50000;
    ShardWriter *writer;
    assert_ok(shard_writer_open(&writer, path, 50000, 1));
    assert_ok(shard_writer_add(writer, ids, 999999, 1));
    assert_ok(shard_writer_add(writer, ids + 999999, COUNT - 999999, 1));
    assert_ok(shard_writer_close(writer, NULL));
    Shard shard;
    assert_ok(shard_open(&shard, path, true));
    for (uint32_t i = 0; i < COUNT; i++) {
        if (shard_token(&shard, i) != ids[i]) fail_msg("token %u differs", i);
    }
    shard_close(&shard);
    free(ids);
}

static void test_file_appears_only_when_closed(void **state) {
    (void)state;
    const char *path = temporary_path("late.shard");
    ShardWriter *writer;
    assert_ok(shard_writer_open(&writer, path, 10, 1));
    assert_false(file_exists(path));
    assert_ok(shard_writer_close(writer, NULL));
    assert_true(file_exists(path));
}

static void test_abort_leaves_nothing(void **state) {
    (void)state;
    const char *path = temporary_path("aborted.shard");
    ShardWriter *writer;
    assert_ok(shard_writer_open(&writer, path, 10, 1));
    shard_writer_abort(writer);
    assert_false(file_exists(path));
    assert_false(file_exists(temporary_path("aborted.shard.partial")));
}

static void test_token_outside_the_vocabulary_is_refused(void **state) {
    (void)state;
    ShardWriter *writer;
    const uint32_t ids[] = {5, 10};
    assert_ok(shard_writer_open(&writer, temporary_path("outside.shard"), 10, 1));
    assert_error(shard_writer_add(writer, ids, 2, 1), "outside the vocabulary");
    shard_writer_abort(writer);
}

static void header_sign(char *bytes) {
    ShardHeader *header = (ShardHeader *)bytes;
    header->header_checksum = XXH64(header, offsetof(ShardHeader, header_checksum), 0);
}

// Every single-byte change and every cut must be noticed by a deep check; most by the shallow one.
static void test_any_changed_byte_is_noticed(void **state) {
    (void)state;
    const char *path = temporary_path("sound.shard");
    shard_make(path, 300);
    char *bytes;
    size_t size;
    assert_ok(file_read(&bytes, &size, path));
    for (size_t i = 0; i < size; i++) {
        if (i >= sizeof(ShardHeader) + 12 && i < sizeof(ShardHeader) + 16) continue; // padding between tokens and index
        bytes[i] ^= 0x40;
        const char *damaged = temporary_file("damaged.shard", bytes, size);
        Shard shard;
        Status status = shard_open(&shard, damaged, true);
        if (!status) fail_msg("a change of byte %zu went unnoticed", i);
        status_free(status);
        bytes[i] ^= 0x40;
    }
    for (size_t cut = 0; cut < size; cut++) {
        const char *damaged = temporary_file("damaged.shard", bytes, cut);
        Shard shard;
        Status status = shard_open(&shard, damaged, false);
        if (!status) fail_msg("a cut to %zu bytes went unnoticed", cut);
        status_free(status);
    }
    free(bytes);
}

static void test_hostile_headers_are_refused(void **state) {
    (void)state;
    const char *path = temporary_path("sound.shard");
    shard_make(path, 300);
    static const struct {
        size_t offset;
        uint64_t value;
        const char *error;
    } cases[] = {
        {offsetof(ShardHeader, token_count), UINT64_MAX, "not what its header counts"},
        {offsetof(ShardHeader, token_count), UINT64_MAX / 2 + 1, "not what its header counts"},
        {offsetof(ShardHeader, document_count), UINT64_MAX, "not what its header counts"},
        {offsetof(ShardHeader, document_count), UINT64_MAX / 8, "not what its header counts"},
        {offsetof(ShardHeader, vocab_size), 0, "impossible vocabulary"},
        {offsetof(ShardHeader, vocab_size), UINT64_MAX, "impossible vocabulary"},
        {offsetof(ShardHeader, vocab_size), 70000, "bytes a token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *bytes;
        size_t size;
        assert_ok(file_read(&bytes, &size, path));
        memcpy(bytes + cases[i].offset, &cases[i].value, 8);
        header_sign(bytes);
        Shard shard;
        assert_error(shard_open(&shard, temporary_file("hostile.shard", bytes, size), false), cases[i].error);
        free(bytes);
    }
}

// 2^63 more tokens of two bytes leave the sum of the sizes as it was.
static void test_count_that_wraps_around_is_refused(void **state) {
    (void)state;
    const char *path = temporary_path("sound.shard");
    shard_make(path, 300);
    char *bytes;
    size_t size;
    assert_ok(file_read(&bytes, &size, path));
    ShardHeader *header = (ShardHeader *)bytes;
    header->token_count += (uint64_t)1 << 63;
    ((uint64_t *)(bytes + size))[-1] = header->token_count;
    header_sign(bytes);
    Shard shard;
    assert_error(shard_open(&shard, temporary_file("wrapped.shard", bytes, size), false), "not what its header counts");
    free(bytes);
}

static void test_index_that_goes_backwards_is_refused(void **state) {
    (void)state;
    const char *path = temporary_path("sound.shard");
    shard_make(path, 300);
    char *bytes;
    size_t size;
    assert_ok(file_read(&bytes, &size, path));
    uint64_t *documents = (uint64_t *)(bytes + size) - 5;
    documents[1] = 6;
    Shard shard;
    assert_error(shard_open(&shard, temporary_file("backwards.shard", bytes, size), false), "goes backwards");
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_vocabulary_is_stored_in_two_bytes),
        cmocka_unit_test(test_large_vocabulary_is_stored_in_four_bytes),
        cmocka_unit_test(test_many_tokens_survive_the_write_buffer),
        cmocka_unit_test(test_file_appears_only_when_closed),
        cmocka_unit_test(test_abort_leaves_nothing),
        cmocka_unit_test(test_token_outside_the_vocabulary_is_refused),
        cmocka_unit_test(test_any_changed_byte_is_noticed),
        cmocka_unit_test(test_hostile_headers_are_refused),
        cmocka_unit_test(test_count_that_wraps_around_is_refused),
        cmocka_unit_test(test_index_that_goes_backwards_is_refused),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
