// A CPU's energy counters: which of them count, their wrap, and what is said where they are not there.
#include "testing.h"

#include "watch/rapl.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/hearth-rapl-XXXXXX";

static void put(const char *zone, const char *file, const char *text) {
    char *directory = path_join(folder, zone), *path = path_join(directory, file);
    assert_ok(dir_make(directory));
    assert_ok(file_write_atomic(path, text, strlen(text)));
    free(directory);
    free(path);
}

static void put_zone(const char *zone, const char *name, const char *energy) {
    put(zone, "name", name);
    put(zone, "max_energy_range_uj", "1000000000\n");
    put(zone, "energy_uj", energy);
}

static int empty(void **state) {
    (void)state;
    assert_ok(dir_remove(folder));
    assert_ok(dir_make(folder));
    return 0;
}

static double read_joules(Rapl *rapl) {
    double joules;
    assert_ok(rapl_read(rapl, &joules));
    return joules;
}

static void packages_and_their_memory_count_once(void **state) {
    (void)state;
    put_zone("intel-rapl:0", "package-0\n", "5000000\n");
    put_zone("intel-rapl:0:0", "core\n", "1000000\n"); // inside the package
    put_zone("intel-rapl:0:1", "dram\n", "2000000\n");
    put_zone("intel-rapl:1", "package-1\n", "7000000\n");
    put_zone("intel-rapl:2", "psys\n", "9000000\n");           // has the packages inside
    put_zone("intel-rapl-mmio:0", "package-0\n", "5000000\n"); // the first package once more
    Rapl *rapl;
    assert_ok(rapl_open(&rapl, folder));
    assert_string_equal(rapl_zones(rapl), "package-0, dram, package-1");
    assert_true(read_joules(rapl) == 0);
    put("intel-rapl:0", "energy_uj", "6500000\n");
    put("intel-rapl:0:0", "energy_uj", "999000000\n");
    put("intel-rapl:0:1", "energy_uj", "2250000\n");
    put("intel-rapl:1", "energy_uj", "17000000\n");
    put("intel-rapl:2", "energy_uj", "999000000\n");
    assert_true(read_joules(rapl) == 1.5 + 0.25 + 10);
    assert_true(read_joules(rapl) == 11.75);
    rapl_close(rapl);
}

static void a_full_counter_begins_again(void **state) {
    (void)state;
    put_zone("intel-rapl:0", "package-0\n", "999000000\n"); // of 1000 J
    Rapl *rapl;
    assert_ok(rapl_open(&rapl, folder));
    put("intel-rapl:0", "energy_uj", "500000\n");
    assert_true(read_joules(rapl) == 1.5);
    put("intel-rapl:0", "energy_uj", "400000\n");
    assert_true(read_joules(rapl) == 1.5 + 999.9);
    rapl_close(rapl);
}

static void a_machine_without_a_counter_says_what_would_be_one(void **state) {
    (void)state;
    Rapl *rapl;
    assert_error(rapl_open(&rapl, folder), "has no energy counter");
    assert_null(rapl);
    put_zone("intel-rapl:2", "psys\n", "1\n");
    assert_error(rapl_open(&rapl, folder), "module intel_rapl_msr");
    assert_error(rapl_open(&rapl, "/nowhere"), "/nowhere has no intel-rapl zone");
}

static void a_counter_that_cannot_be_read_is_named(void **state) {
    (void)state;
    Rapl *rapl;
    put_zone("intel-rapl:0", "package-0\n", "nonsense\n");
    assert_error(rapl_open(&rapl, folder), "intel-rapl:0/energy_uj holds no number");
    char *path = path_join(folder, "intel-rapl:0/energy_uj");
    remove(path);
    assert_error(rapl_open(&rapl, folder), "intel-rapl:0/energy_uj: No such file");
    put("intel-rapl:0", "energy_uj", "1\n");
    assert_ok(rapl_open(&rapl, folder));
    remove(path);
    double joules;
    assert_error(rapl_read(rapl, &joules), "intel-rapl:0/energy_uj: No such file");
    rapl_close(rapl);
    put("intel-rapl:0", "energy_uj", "1\n");
    if (geteuid() != 0) { // root reads everything
        chmod(path, 0);
        assert_error(rapl_open(&rapl, folder), "chmod a+r");
    }
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(packages_and_their_memory_count_once, empty),
        cmocka_unit_test_setup(a_full_counter_begins_again, empty),
        cmocka_unit_test_setup(a_machine_without_a_counter_says_what_would_be_one, empty),
        cmocka_unit_test_setup(a_counter_that_cannot_be_read_is_named, empty),
    };
    if (!mkdtemp(folder)) return 2;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    status_free(dir_remove(folder));
    return failed;
}
