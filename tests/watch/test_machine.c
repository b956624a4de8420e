// Readings of the machine: this process, and a GPU's sensors through a library that a test made.
#include "testing.h"

#include "watch/machine.h"

#include <time.h>

static const char *nvml;

static MachineOptions gpu_options(int gpu) {
    return (MachineOptions){.gpu = gpu, .nvml = nvml, .every = 1e-9};
}

static void a_mean_is_of_the_readings_since_the_last(void **state) {
    (void)state;
    MachineOptions options = gpu_options(0);
    Machine *machine = machine_open(&options);
    machine_sample(machine), machine_sample(machine);
    MachineReading two = machine_mean(machine), same = machine_mean(machine);
    machine_sample(machine);
    MachineReading third = machine_mean(machine);
    machine_close(machine);
    assert_true(two.gpu_clock == 1500 && two.gpu_power == 650.5);
    assert_true(two.gpu_temperature == 61.5 && same.gpu_temperature == 61.5 && third.gpu_temperature == 63);
    assert_true(two.gpu_throttled == 0.5 && third.gpu_throttled == 1);
    assert_true(two.gpu_power_capped == 1);
}

// The library counts a quarter of a joule for each look at the counter, and 1.5 for a reading of the sensors.
static void energy_is_what_the_counter_moved_since_the_mean_before(void **state) {
    (void)state;
    MachineOptions options = gpu_options(0);
    Machine *machine = machine_open(&options);
    machine_sample(machine), machine_sample(machine);
    MachineReading two = machine_mean(machine), none = machine_mean(machine);
    double first, second;
    assert_true(machine_joules(machine, &first));
    assert_true(machine_joules(machine, &second));
    assert_true(two.gpu_energy == 3.25 && none.gpu_energy == 0.25);
    assert_true(none.gpu_power == 650.5); // what it is a mean of stays
    assert_true(second - first == 0.25);
    assert_true(machine_power_limit(machine) == 700);
    machine_close(machine);
}

static void a_machine_without_sensors_has_its_processs_figures(void **state) {
    (void)state;
    MachineOptions none[] = {{.gpu = -1, .nvml = nvml, .every = 1e-9},         // no GPU in use
                             {.gpu = 0, .nvml = "/nowhere.so", .every = 1e-9}, // no library
                             {.gpu = 0, .nvml = "libm.so.6", .every = 1e-9}};  // one without the names
    for (int i = 0; i < 3; i++) {
        Machine *machine = machine_open(&none[i]);
        clock_t until = clock() + CLOCKS_PER_SEC / 50;
        while (clock() < until) {
        }
        machine_sample(machine);
        MachineReading reading = machine_mean(machine);
        double joules;
        assert_false(machine_joules(machine, &joules));
        assert_true(machine_power_limit(machine) == 0 && reading.gpu_energy == 0);
        machine_close(machine);
        assert_true(reading.gpu_clock == 0 && reading.gpu_power == 0);
        assert_true(reading.host_bytes > 1e5 && reading.host_bytes < 1e9);
        assert_true(reading.cpu_cores > 0 && reading.cpu_cores < 1.5); // it spun on one core, or a part of one
    }
}

static void readings_are_no_more_often_than_asked(void **state) {
    (void)state;
    MachineOptions options = {.gpu = 0, .nvml = nvml, .every = 1e6};
    Machine *machine = machine_open(&options);
    machine_sample(machine);
    assert_true(machine_mean(machine).gpu_clock == 0);
    machine_close(machine);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mean_is_of_the_readings_since_the_last),
        cmocka_unit_test(energy_is_what_the_counter_moved_since_the_mean_before),
        cmocka_unit_test(a_machine_without_sensors_has_its_processs_figures),
        cmocka_unit_test(readings_are_no_more_often_than_asked),
    };
    if (argc < 2) return 2;
    nvml = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
