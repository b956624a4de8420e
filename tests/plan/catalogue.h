// The shipped hardware catalogue and short ways to a machine and a run, for the tests of the planner.
#pragma once

#include "plan/plan.h"
#include "testing.h"

// cmocka compares floats; the planner works in double.
#define assert_near(value, expected, tolerance)                                 \
    do {                                                                        \
        double value_ = (value), expected_ = (expected);                        \
        if (!(fabs(value_ - expected_) <= (tolerance)))                         \
            fail_msg("%s is %.12g, expected %.12g", #value, value_, expected_); \
    } while (0)

static inline void catalogue_load(Hardware *hardware) {
    Toml toml;
    hardware_init(hardware);
    assert_ok(toml_read_file(&toml, "configs/hardware.toml"));
    assert_ok(hardware_merge(hardware, toml.root, "configs/hardware.toml"));
    toml_free(&toml);
}

static inline const HardwareGpu *catalogue_gpu(Hardware *hardware, const char *name) {
    const HardwareGpu *gpu;
    catalogue_load(hardware);
    assert_ok(hardware_find_gpu(hardware, name, &gpu));
    return gpu;
}

static inline PlanMachine catalogue_machine(const char *gpu_name, const char *software_name, int gpus) {
    Hardware hardware;
    const HardwareSoftware *software;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, gpu_name);
    assert_ok(hardware_find_software(&hardware, software_name, &software));
    PlanMachine machine = plan_machine(&hardware, gpu, NULL, software, gpus, 8, 2);
    hardware_free(&hardware);
    return machine;
}

static inline PlanRun preset_run(const char *preset, int micro_batch, int seq, int accum) {
    PlanRun run = {.layout = {.mesh = MESH_SINGLE,
                              .precision = PRECISION_BF16,
                              .micro_batch = micro_batch,
                              .seq = seq,
                              .device = DEVICE_CUDA,
                              .threads = 2},
                   .grad_accum = accum,
                   .virtual_stages = 1,
                   .calibration = 1};
    assert_ok(model_preset(&run.layout.config, preset));
    return run;
}
