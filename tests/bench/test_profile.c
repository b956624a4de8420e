// The machine's profile: two benches write into one file.
#include "bench/profile.h"
#include "testing.h"

static const char *const profile = "# comment\n[machine]\ngpu = \"cpu\"\nlink_bus_GBps = 3 # old\ncopy_GBps = 5\n"
                                   "nic_latency_us = 7\ngemm = [\n]\n";

static void links_and_the_rest_part_without_loss(void **state) {
    (void)state;
    char *links = profile_lines(profile, true), *others = profile_lines(profile, false);
    assert_string_equal(links, "link_bus_GBps = 3 # old\nnic_latency_us = 7\n");
    assert_string_equal(others, "# comment\n[machine]\ngpu = \"cpu\"\ncopy_GBps = 5\ngemm = [\n]\n");
    free(links);
    free(others);
    char *nothing = profile_lines("", true);
    assert_string_equal(nothing, "");
    free(nothing);
}

static void lines_say_which_link_they_are_of(void **state) {
    (void)state;
    BenchLink link = {.bus = 2.5e9, .latency = 12e-6};
    char *inside = profile_link_lines(&link, 4, false), *between = profile_link_lines(&link, 4, true);
    assert_non_null(strstr(inside, "link_bus_GBps = 2.5 # all-reduce of 4 ranks"));
    assert_non_null(strstr(inside, "\nlink_latency_us = 12 "));
    assert_true(text_starts_with(between, "nic_bus_GBps = 2.5 "));
    assert_non_null(strstr(between, "\nnic_latency_us = 12 "));
    free(inside);
    free(between);
}

static void a_profile_belongs_to_one_device(void **state) {
    (void)state;
    assert_true(profile_is_of(profile, "cpu"));
    assert_false(profile_is_of(profile, "h200-sxm"));
    assert_false(profile_is_of("[machine]\ngpu = \"cpu2\"\n", "cpu"));
    assert_true(profile_is_of("", "cpu"));
}

static void links_come_from_the_longest_and_the_shortest_all_reduce(void **state) {
    (void)state;
    const BenchCommRow rows[] = {{"all_gather", 8, 1e-6, 0, 9e9, 0},
                                 {"all_reduce", 1024, 60e-6, 0, 1e6, 0},
                                 {"all_reduce", 1 << 20, 1e-3, 0, 4e9, 0},
                                 {"all_reduce", 1 << 14, 1e-4, 0, 2e9, 0}};
    BenchLink link = bench_comm_link(rows, 4, 4);
    assert_true(link.bus == 4e9);
    assert_true(fabs(link.latency - 10e-6) < 1e-12); // of 2 (4 - 1) steps
    assert_true(bench_comm_link(rows, 1, 4).bus == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_and_the_rest_part_without_loss),
        cmocka_unit_test(lines_say_which_link_they_are_of),
        cmocka_unit_test(a_profile_belongs_to_one_device),
        cmocka_unit_test(links_come_from_the_longest_and_the_shortest_all_reduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
