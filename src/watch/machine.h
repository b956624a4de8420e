// What the machine does while it trains: memory and cores of this process, and the sensors of a GPU.
#pragma once

#include <stdbool.h>

typedef struct MachineReading { // 0: not known
    double host_bytes;          // memory of this process, without mapped files
    double cpu_cores;           // that it keeps busy
    double gpu_clock;           // MHz; 0: no sensors
    double gpu_power;           // W
    double gpu_temperature;     // degrees Celsius
    double gpu_throttled;       // share of the readings: slowed down by heat or a fault
    double gpu_power_capped;    // likewise: at its power limit
    double gpu_energy;          // J since the mean before, by the GPU's own counter
} MachineReading;

typedef struct Machine Machine;

typedef struct MachineOptions {
    int gpu;          // ordinal of the CUDA device; -1: none
    const char *nvml; // path of the library; NULL: the system's
    double every;     // seconds between readings; 0: one
} MachineOptions;

Machine *machine_open(const MachineOptions *options); // a library that is not there is no error
void machine_close(Machine *machine);

// Takes a reading where one is due.
void machine_sample(Machine *machine);
// The mean of the readings since the last call, or the last one when there was none since.
MachineReading machine_mean(Machine *machine);
// The GPU's own counter: joules since some moment. It moves every 20 to 100 ms. False: there is none.
bool machine_joules(const Machine *machine, double *joules);
double machine_power_limit(const Machine *machine); // of the GPU, W; 0: not known
