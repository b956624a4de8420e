// Readings of /proc, of getrusage, and of NVML, which is opened at run time because most machines have none.
#include "watch/machine.h"

#include "base/clock.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// As nvml.h declares them; every function returns 0 for success.
typedef void *NvmlDevice;
typedef struct Nvml {
    void *library;
    NvmlDevice device;
    int (*clock)(NvmlDevice device, int kind, unsigned *mhz);
    int (*power)(NvmlDevice device, unsigned *milliwatts);
    int (*temperature)(NvmlDevice device, int sensor, unsigned *degrees);
    int (*throttle)(NvmlDevice device, unsigned long long *reasons);
    int (*energy)(NvmlDevice device, unsigned long long *millijoules);
    int (*power_limit)(NvmlDevice device, unsigned *milliwatts);
    int (*shutdown)(void);
} Nvml;

enum { NVML_CLOCK_SM = 1, NVML_SENSOR_CHIP = 0 };
#define NVML_REASON_POWER_CAP 0x4ull
#define NVML_REASONS_SLOWED   (0x8ull | 0x20ull | 0x40ull | 0x80ull) // hardware slowdown, heat (two kinds), power brake

struct Machine {
    Nvml nvml; // library NULL: no sensors
    double every, last, last_cpu;
    MachineReading sum, mean; // gpu_energy is of the mean alone
    int count;
    double last_joules;
};

static void *library_open(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

// The bus id names the same device to the driver and to NVML; their numbers differ under CUDA_VISIBLE_DEVICES. Without
// a driver's word the numbers are taken to be the same.
static bool bus_id(int ordinal, char out[32]) {
    void *driver = library_open("libcuda.so.1");
    if (!driver) return false;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*id)(char *, int, int) = (int (*)(char *, int, int))dlsym(driver, "cuDeviceGetPCIBusId");
    bool found = init && id && init(0) == 0 && id(out, 32, ordinal) == 0;
    dlclose(driver);
    return found;
}

static bool nvml_find_device(Nvml *nvml, int ordinal) {
    char id[32];
    int (*by_bus)(const char *, NvmlDevice *) =
        (int (*)(const char *, NvmlDevice *))dlsym(nvml->library, "nvmlDeviceGetHandleByPciBusId_v2");
    int (*by_index)(unsigned, NvmlDevice *) =
        (int (*)(unsigned, NvmlDevice *))dlsym(nvml->library, "nvmlDeviceGetHandleByIndex_v2");
    if (by_bus && bus_id(ordinal, id)) return by_bus(id, &nvml->device) == 0;
    return by_index && by_index((unsigned)ordinal, &nvml->device) == 0;
}

static void nvml_open(Nvml *nvml, const char *path, int ordinal) {
    nvml->library = library_open(path ? path : "libnvidia-ml.so.1");
    if (!nvml->library) return;
    int (*init)(void) = (int (*)(void))dlsym(nvml->library, "nvmlInit_v2");
    nvml->shutdown = (int (*)(void))dlsym(nvml->library, "nvmlShutdown");
    nvml->clock = (int (*)(NvmlDevice, int, unsigned *))dlsym(nvml->library, "nvmlDeviceGetClockInfo");
    nvml->power = (int (*)(NvmlDevice, unsigned *))dlsym(nvml->library, "nvmlDeviceGetPowerUsage");
    nvml->temperature = (int (*)(NvmlDevice, int, unsigned *))dlsym(nvml->library, "nvmlDeviceGetTemperature");
    nvml->throttle =
        (int (*)(NvmlDevice, unsigned long long *))dlsym(nvml->library, "nvmlDeviceGetCurrentClocksThrottleReasons");
    nvml->energy =
        (int (*)(NvmlDevice, unsigned long long *))dlsym(nvml->library, "nvmlDeviceGetTotalEnergyConsumption");
    nvml->power_limit = (int (*)(NvmlDevice, unsigned *))dlsym(nvml->library, "nvmlDeviceGetEnforcedPowerLimit");
    bool ready = init && nvml->shutdown && nvml->clock && init() == 0;
    if (ready && nvml_find_device(nvml, ordinal)) return;
    if (ready) nvml->shutdown();
    dlclose(nvml->library);
    nvml->library = NULL;
}

static void nvml_read(const Nvml *nvml, MachineReading *reading) {
    unsigned value;
    unsigned long long reasons;
    if (!nvml->library) return;
    if (nvml->clock(nvml->device, NVML_CLOCK_SM, &value) == 0) reading->gpu_clock = value;
    if (nvml->power && nvml->power(nvml->device, &value) == 0) reading->gpu_power = value / 1e3;
    if (nvml->temperature && nvml->temperature(nvml->device, NVML_SENSOR_CHIP, &value) == 0)
        reading->gpu_temperature = value;
    if (nvml->throttle && nvml->throttle(nvml->device, &reasons) == 0) {
        reading->gpu_throttled = (reasons & NVML_REASONS_SLOWED) != 0;
        reading->gpu_power_capped = (reasons & NVML_REASON_POWER_CAP) != 0;
    }
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double host_bytes(void) {
    long long size, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    bool read = file && fscanf(file, "%lld %lld %lld", &size, &resident, &shared) == 3;
    if (file) fclose(file);
    return read ? (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE) : 0;
}

Machine *machine_open(const MachineOptions *options) {
    Machine *machine = xmalloc(sizeof *machine);
    *machine =
        (Machine){.every = options->every > 0 ? options->every : 1, .last = clock_seconds(), .last_cpu = cpu_seconds()};
    if (options->gpu >= 0) nvml_open(&machine->nvml, options->nvml, options->gpu);
    machine_joules(machine, &machine->last_joules);
    return machine;
}

void machine_close(Machine *machine) {
    if (!machine) return;
    if (machine->nvml.library) {
        machine->nvml.shutdown();
        dlclose(machine->nvml.library);
    }
    free(machine);
}

enum { READING_FIGURES = sizeof(MachineReading) / sizeof(double) };
_Static_assert(sizeof(MachineReading) == READING_FIGURES * sizeof(double), "all of its members are doubles");

void machine_sample(Machine *machine) {
    double now = clock_seconds(), passed = now - machine->last;
    if (passed < machine->every) return;
    double cpu = cpu_seconds();
    MachineReading reading = {.host_bytes = host_bytes(), .cpu_cores = (cpu - machine->last_cpu) / passed};
    nvml_read(&machine->nvml, &reading);
    machine->last = now;
    machine->last_cpu = cpu;
    double figures[READING_FIGURES], sums[READING_FIGURES];
    memcpy(figures, &reading, sizeof figures);
    memcpy(sums, &machine->sum, sizeof sums);
    for (int i = 0; i < READING_FIGURES; i++)
        sums[i] += figures[i];
    memcpy(&machine->sum, sums, sizeof sums);
    machine->count++;
}

bool machine_joules(const Machine *machine, double *joules) {
    const Nvml *nvml = &machine->nvml;
    unsigned long long millijoules;
    if (!nvml->library || !nvml->energy || nvml->energy(nvml->device, &millijoules) != 0) return false;
    *joules = (double)millijoules / 1e3;
    return true;
}

double machine_power_limit(const Machine *machine) {
    const Nvml *nvml = &machine->nvml;
    unsigned milliwatts;
    bool known = nvml->library && nvml->power_limit && nvml->power_limit(nvml->device, &milliwatts) == 0;
    return known ? milliwatts / 1e3 : 0;
}

static void take_mean(Machine *machine) {
    double figures[READING_FIGURES];
    memcpy(figures, &machine->sum, sizeof figures);
    for (int i = 0; i < READING_FIGURES; i++)
        figures[i] /= machine->count;
    memcpy(&machine->mean, figures, sizeof figures);
    machine->sum = (MachineReading){0};
    machine->count = 0;
}

MachineReading machine_mean(Machine *machine) {
    double joules;
    if (machine->count) take_mean(machine);
    if (machine_joules(machine, &joules)) {
        machine->mean.gpu_energy = joules - machine->last_joules;
        machine->last_joules = joules;
    }
    return machine->mean;
}
