// A library with the names of NVML and a GPU that gets hotter with every reading: for test_machine.
typedef void *Device;

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device *device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device);
int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *mhz);
int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts);
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *degrees);
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons);
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules);
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts);

static unsigned fake_degrees;
static unsigned long long fake_millijoules = 1ull << 40;
static int fake_gpu;

int nvmlInit_v2(void) {
    fake_degrees = 60;
    return 0;
}
int nvmlShutdown(void) {
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device *device) {
    (void)id;
    return nvmlDeviceGetHandleByIndex_v2(0, device);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (index > 0) return 2; // there is one
    *device = &fake_gpu;
    return 0;
}
int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1500 : 9;
    return device != &fake_gpu;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    *milliwatts = 650500;
    return device != &fake_gpu;
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *degrees) {
    *degrees = sensor == 0 ? ++fake_degrees : 0;
    fake_millijoules += 1500;
    return device != &fake_gpu;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons) {
    *reasons = 0x4 | (fake_degrees > 61 ? 0x40 : 0); // at its power cap; from the second reading on too hot
    return device != &fake_gpu;
}
// A quarter of a joule more at every reading, and 1.5 at every one of the temperature.
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    *millijoules = fake_millijoules += 250;
    return device != &fake_gpu;
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return device != &fake_gpu;
}
