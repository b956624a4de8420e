// Units of prepare's work folder that a disk or something else has changed: refused by name, never believed.
#include "temporary.h"

#include "data/prepare_unit.h"

#include <xxhash.h>

static char *unit_bytes; // of a sound unit 0: two documents of 3 and 2 tokens
static size_t unit_size;

static int unit_make(void **state) {
    if (temporary_make(state)) return -1;
    const uint32_t ids[] = {1, 2, 3};
    UnitBuffer *buffer = unit_buffer_new(2);
    unit_buffer_add(buffer, (DocumentHash){1, 0}, 5, ids, 3);
    unit_buffer_add(buffer, (DocumentHash){2, 0}, 4, ids, 2);
    assert_ok(unit_buffer_write(buffer, temporary_folder, 0, (ReaderPosition){0, 2}, &(PrepareCounts){0}, UNIT_END));
    unit_buffer_free(buffer);
    assert_ok(file_read(&unit_bytes, &unit_size, temporary_path("unit-000000")));
    return 0;
}

static int unit_remove(void **state) {
    free(unit_bytes);
    return temporary_remove(state);
}

static void unit_put(const UnitHeader *header, const UnitRecord *first) {
    char *changed = xmalloc(unit_size);
    UnitHeader signed_header = *header;
    memcpy(changed, unit_bytes, unit_size);
    if (first) memcpy(changed + sizeof *header, first, sizeof *first);
    signed_header.records_checksum = XXH64(changed + sizeof *header, 2 * sizeof *first, 0);
    signed_header.checksum = XXH64(&signed_header, offsetof(UnitHeader, checksum), 0);
    memcpy(changed, &signed_header, sizeof signed_header);
    temporary_file("unit-000000", changed, unit_size);
    free(changed);
}

static void test_a_sound_unit_is_merged(void **state) {
    (void)state;
    UnitMerge *merge;
    UnitRecord record;
    const uint32_t *ids;
    bool more;
    unit_put((const UnitHeader *)unit_bytes, NULL);
    assert_ok(unit_merge_open(&merge, temporary_folder, 1));
    assert_ok(unit_merge_next(merge, &record, &ids, &more));
    assert_int_equal(record.token_count, 3);
    assert_int_equal(ids[2], 3);
    assert_ok(unit_merge_next(merge, &record, &ids, &more));
    assert_int_equal(record.token_count, 2);
    assert_ok(unit_merge_next(merge, &record, &ids, &more));
    assert_false(more);
    unit_merge_close(merge);
}

// Sizes that only fit because their product wraps around, or because a token has no width.
static void test_a_header_whose_sizes_wrap_around_is_refused(void **state) {
    (void)state;
    UnitHeader header;
    int fd;
    memcpy(&header, unit_bytes, sizeof header);
    header.record_count += (uint64_t)1 << 61; // times 24: nothing in 64 bits
    unit_put(&header, NULL);
    assert_error(unit_open(temporary_path("unit-000000"), &header, &fd), "unit-000000 is damaged");
    memcpy(&header, unit_bytes, sizeof header);
    header.token_count += (uint64_t)1 << 63;
    unit_put(&header, NULL);
    assert_error(unit_open(temporary_path("unit-000000"), &header, &fd), "unit-000000 is damaged");
    memcpy(&header, unit_bytes, sizeof header);
    header.token_bytes = 1;
    header.token_count = 10;
    unit_put(&header, NULL);
    assert_error(unit_open(temporary_path("unit-000000"), &header, &fd), "unit-000000 is damaged");
}

// Its buffer would be as large as it claims.
static void test_a_record_with_more_tokens_than_its_unit_is_refused(void **state) {
    (void)state;
    UnitRecord first;
    UnitMerge *merge;
    UnitRecord record;
    const uint32_t *ids;
    bool more;
    memcpy(&first, unit_bytes + sizeof(UnitHeader), sizeof first);
    first.token_count = 6; // the unit has 5
    unit_put((const UnitHeader *)unit_bytes, &first);
    assert_ok(unit_merge_open(&merge, temporary_folder, 1));
    assert_error(unit_merge_next(merge, &record, &ids, &more), "unit-000000 is damaged");
    unit_merge_close(merge);
}

static void test_a_changed_bit_of_a_unit_is_noticed_before_its_end(void **state) {
    (void)state;
    for (size_t at = 0; at < unit_size; at++) {
        unit_bytes[at] ^= 1 << at % 8;
        temporary_file("unit-000000", unit_bytes, unit_size);
        unit_bytes[at] ^= 1 << at % 8;
        UnitMerge *merge;
        UnitRecord record;
        const uint32_t *ids;
        bool more = true;
        Status status = unit_merge_open(&merge, temporary_folder, 1);
        while (!status && more)
            status = unit_merge_next(merge, &record, &ids, &more);
        if (!status) fail_msg("byte %zu of %zu", at, unit_size);
        status_free(status);
        unit_merge_close(merge);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sound_unit_is_merged),
        cmocka_unit_test(test_a_header_whose_sizes_wrap_around_is_refused),
        cmocka_unit_test(test_a_record_with_more_tokens_than_its_unit_is_refused),
        cmocka_unit_test(test_a_changed_bit_of_a_unit_is_noticed_before_its_end),
    };
    return cmocka_run_group_tests(tests, unit_make, unit_remove);
}
