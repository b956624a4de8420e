// How errors read, and that decorations keep the innermost place.
#include "testing.h"

#include <errno.h>

static Status twice(int *calls, Status result) {
    (*calls)++;
    return result;
}

static Status tries(int *calls) {
    TRY(twice(calls, NULL));
    TRY(twice(calls, status_usage("stop")));
    TRY(twice(calls, NULL));
    return NULL;
}

static void the_text_has_place_message_and_hint(void **state) {
    (void)state;
    Status status = status_usage("%d heads do not divide by %d", 9, 2);
    assert_string_equal(status_text(status), "9 heads do not divide by 2");
    status_at(status, "run.toml", 12, 3);
    assert_string_equal(status_text(status), "run.toml:12:3: 9 heads do not divide by 2");
    status_hint(status, "set kv_heads to %d", 3);
    assert_string_equal(status_text(status), "run.toml:12:3: 9 heads do not divide by 2\n  hint: set kv_heads to 3");
    assert_string_equal(status_message(status), "9 heads do not divide by 2");
    assert_int_equal(status_code(status), STATUS_USAGE);
    status_free(status);
}

static void line_and_column_may_be_left_out(void **state) {
    (void)state;
    Status line = status_at(status_runtime("x"), "f", 7, 0), none = status_at(status_runtime("x"), "f", 0, 0);
    assert_string_equal(status_text(line), "f:7: x");
    assert_string_equal(status_text(none), "f: x");
    status_free(line);
    status_free(none);
}

static void the_innermost_place_and_hint_stay(void **state) {
    (void)state;
    Status status = status_hint(status_at(status_usage("x"), "inner", 1, 1), "first");
    status = status_hint(status_at(status, "outer", 2, 2), "second");
    assert_string_equal(status_text(status), "inner:1:1: x\n  hint: first");
    status_free(status);
}

static void context_goes_before_the_message(void **state) {
    (void)state;
    Status status = status_context(status_context(status_usage("no rows"), "shard %d", 3), "validation");
    assert_string_equal(status_message(status), "validation: shard 3: no rows");
    status_free(status);
}

static void errno_is_told_in_words(void **state) {
    (void)state;
    errno = ENOSPC;
    Status status = status_errno("cannot write %s", "x.bin");
    assert_string_equal(status_message(status), "cannot write x.bin: No space left on device");
    assert_int_equal(status_code(status), STATUS_RUNTIME);
    status_free(status);
}

static void success_passes_through_every_decoration(void **state) {
    (void)state;
    assert_null(status_at(NULL, "f", 1, 1));
    Status nowhere = status_at(status_usage("x"), NULL, 0, 0); // no file: no place
    assert_string_equal(status_text(nowhere), "x");
    status_free(nowhere);
    assert_null(status_hint(NULL, "h"));
    assert_null(status_context(NULL, "c"));
    status_free(NULL);
}

static void try_returns_at_the_first_failure(void **state) {
    (void)state;
    int calls = 0;
    Status status = tries(&calls);
    assert_int_equal(calls, 2);
    assert_string_equal(status_message(status), "stop");
    status_free(status);
}

static void a_printed_error_names_the_program(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    Status status = status_usage("unknown command");
    status_print(status, stream);
    fclose(stream);
    assert_string_equal(text, "hearth: error: unknown command\n");
    free(text);
    status_free(status);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_has_place_message_and_hint),
        cmocka_unit_test(line_and_column_may_be_left_out),
        cmocka_unit_test(the_innermost_place_and_hint_stay),
        cmocka_unit_test(context_goes_before_the_message),
        cmocka_unit_test(errno_is_told_in_words),
        cmocka_unit_test(success_passes_through_every_decoration),
        cmocka_unit_test(try_returns_at_the_first_failure),
        cmocka_unit_test(a_printed_error_names_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
