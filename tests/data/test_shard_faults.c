// A shard that is written in the place of another, when any one call fails or the machine crashes.
#include "crash.h"
#include "data/shard.h"
#include "faults.h"

#include <errno.h>

static char *folder, *replayed;

static int make_folder(void **state) {
    (void)state;
    folder = memory_directory();
    replayed = text_format("%s-replayed", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    assert_ok(dir_remove(folder));
    assert_ok(dir_remove(replayed));
    free(folder);
    free(replayed);
    return 0;
}

enum { TOKENS = 700000 }; // more than one write buffer

static uint32_t token_of(uint32_t first, uint32_t i) {
    return (first + i * 31) % 50000;
}

static Status shard_write(const char *path, uint32_t first) {
    static uint32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = token_of(first, i);
    ShardWriter *writer;
    TRY(shard_writer_open(&writer, path, 50000, 7));
    Status status = shard_writer_add(writer, ids, TOKENS / 2, 3);
    if (!status) status = shard_writer_add(writer, ids + TOKENS / 2, TOKENS - TOKENS / 2, 4);
    if (!status) return shard_writer_close(writer, NULL);
    shard_writer_abort(writer);
    return status;
}

// The first token of a shard that is whole in every way.
static uint32_t assert_whole(const char *path, const char *when) {
    Shard shard;
    Status status = shard_open(&shard, path, true);
    if (status) fail_msg("%s: %s", when, status_text(status));
    assert_int_equal(shard.header->token_count, TOKENS);
    assert_int_equal(shard.header->document_count, 2);
    uint32_t first = shard_token(&shard, 0);
    for (uint32_t i = 0; i < TOKENS; i += 997)
        assert_int_equal(shard_token(&shard, i), token_of(first, i));
    shard_close(&shard);
    return first;
}

static void write_with_fault(Faults faults) {
    char *path = path_join(folder, "a.shard"), when[128];
    int before = descriptors_open();
    Faults none = {.kind = IO_KINDS};
    do {
        faults.number++;
        snprintf(when, sizeof when, "%s %d, errno %d", fault_name(faults.kind), faults.number, faults.error);
        faults_start(&none);
        assert_ok(shard_write(path, 1));
        faults_start(&faults);
        Status status = shard_write(path, 2);
        faults_stop();
        uint32_t first = assert_whole(path, when);
        if (status) {
            assert_true(first == 1 || first == 2);
            if (faults.error < 0 || faults.error == EINTR || !strstr(status_text(status), faults.path) ||
                !strstr(status_text(status), strerror(faults.error)))
                fail_msg("%s on %s: %s", when, faults.path, status_text(status));
            status_free(status);
        } else {
            assert_int_equal(first, 2);
        }
        char **names;
        size_t count;
        assert_ok(dir_list(&names, &count, folder));
        if (count != 1 && faults.kind != IO_KINDS) fail_msg("%s left %s", when, names[1]);
        names_free(names, count);
    } while (faults.fired);
    assert_true(faults.number > 1);
    assert_int_equal(descriptors_open(), before);
    assert_ok(dir_remove(path));
    free(path);
}

static void any_call_may_fail_and_the_shard_is_the_old_or_the_new_one(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_WRITE, IO_SYNC, IO_CLOSE, IO_RENAME};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        write_with_fault((Faults){.kind = kinds[i], .error = EIO});
    write_with_fault((Faults){.kind = IO_WRITE, .error = ENOSPC, .lasting = true});
    write_with_fault((Faults){.kind = IO_WRITE, .error = FAULT_SHORT});
    write_with_fault((Faults){.kind = IO_KINDS, .error = EINTR});
    write_with_fault((Faults){.kind = IO_KINDS, .error = EIO, .lasting = true});
    char *partial = path_join(folder, "a.shard.partial"); // where its removal failed as well
    assert_ok(dir_remove(partial));
    free(partial);
}

static void crash_check(void *context, const char *directory, const char *when, bool ended) {
    (void)context;
    char *path = path_join(directory, "a.shard");
    uint32_t first = assert_whole(path, when);
    assert_true(first == 1 || first == 2);
    if (ended && first != 2) fail_msg("%s: the new shard is lost", when);
    free(path);
}

static void a_crash_leaves_the_old_or_the_new_shard(void **state) {
    (void)state;
    char *path = path_join(folder, "a.shard");
    assert_ok(shard_write(path, 1));
    Crash *crash = crash_record(folder);
    assert_ok(shard_write(path, 2));
    crash_stop(crash);
    assert_true(crash_replay(crash, replayed, crash_check, NULL) > 10);
    crash_free(crash);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_fail_and_the_shard_is_the_old_or_the_new_one),
        cmocka_unit_test(a_crash_leaves_the_old_or_the_new_shard),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
