// What a log line looks like, and who may write one.
#include "testing.h"

#include "base/clock.h"
#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

// What `write_lines` puts on stderr, malloc'd.
static char *captured(void (*write_lines)(void)) {
    char path[] = "/tmp/hearth-log-XXXXXX";
    int file = mkstemp(path), saved = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    write_lines();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    char *text;
    size_t size;
    assert_ok(file_read(&text, &size, path));
    unlink(path);
    return text;
}

static void one_of_each(void) {
    log_debug("quiet");
    log_info("step %d", 7);
    log_warn("slow");
    log_error("bad");
}

static void rank_zero_speaks_from_its_level_up(void **state) {
    (void)state;
    log_set_level(LOG_INFO);
    char *text = captured(one_of_each);
    assert_null(strstr(text, "quiet"));
    assert_string_equal(text + 8, strstr(text, " info step 7\n")); // after hh:mm:ss
    assert_non_null(strstr(text, " warn slow\n"));
    assert_non_null(strstr(text, " error bad\n"));
    free(text);
    log_set_level(LOG_ERROR);
    text = captured(one_of_each);
    assert_null(strstr(text, "slow"));
    assert_non_null(strstr(text, "bad"));
    free(text);
}

static void other_ranks_speak_from_warnings_up_and_say_who_they_are(void **state) {
    (void)state;
    log_set_level(LOG_DEBUG);
    log_set_rank(3, 8);
    assert_int_equal(log_rank(), 3);
    char *text = captured(one_of_each);
    log_set_rank(0, 1);
    assert_null(strstr(text, "step 7"));
    assert_non_null(strstr(text, " warn [rank 3] slow\n"));
    free(text);
}

static void into_a_file(void) {
    one_of_each();
    log_file("step %d of this rank", 8);
}

static void a_ranks_own_file_has_all_its_lines_and_the_terminal_its_warnings(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-log-file-XXXXXX", *file, *text;
    size_t size;
    close(mkstemp(path));
    log_set_level(LOG_INFO);
    log_set_rank(3, 8);
    assert_error(log_set_file("/nowhere/rank-3.log"), "/nowhere/rank-3.log");
    assert_ok(log_set_file(path));
    text = captured(into_a_file);
    assert_ok(log_set_file(NULL));
    log_file("too late");
    log_set_rank(0, 1);
    assert_ok(file_read(&file, &size, path));
    unlink(path);
    assert_null(strstr(text, "step"));
    assert_non_null(strstr(text, " warn [rank 3] slow\n"));
    assert_null(strstr(file, "quiet"));
    assert_non_null(strstr(file, " info [rank 3] step 7\n"));
    assert_non_null(strstr(file, " warn [rank 3] slow\n"));
    assert_non_null(strstr(file, " info [rank 3] step 8 of this rank\n"));
    assert_null(strstr(file, "too late"));
    free(text);
    free(file);
}

static void long_line(void) {
    char *text = xmalloc(10000);
    memset(text, 'x', 9999);
    text[9999] = 0;
    log_error("%s", text);
    free(text);
}

static void a_long_line_is_cut_and_ends(void **state) {
    (void)state;
    log_set_level(LOG_INFO);
    char *text = captured(long_line);
    size_t length = strlen(text);
    assert_true(length > 1000 && length < 4096);
    assert_int_equal(text[length - 1], '\n');
    free(text);
}

static void the_clock_moves_forward(void **state) {
    (void)state;
    double before = clock_seconds();
    usleep(2000);
    double passed = clock_seconds() - before;
    assert_true(passed >= 0.002 && passed < 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_zero_speaks_from_its_level_up),
        cmocka_unit_test(other_ranks_speak_from_warnings_up_and_say_who_they_are),
        cmocka_unit_test(a_ranks_own_file_has_all_its_lines_and_the_terminal_its_warnings),
        cmocka_unit_test(a_long_line_is_cut_and_ends),
        cmocka_unit_test(the_clock_moves_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
