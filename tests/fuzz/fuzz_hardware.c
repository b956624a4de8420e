// Any bytes as a hardware catalogue or a machine's profile, merged over the entry of a CPU: rates of all that is
// accepted are above zero and finite.
#include "fuzz_files.h"

#include "bench/profile.h"
#include "plan/hardware.h"

#include <math.h>

static const char catalogue[] = "[gpu.cpu]\ntitle = \"CPU\"\ncpu = true\nfp32_tflops = 0.1\nmemory_gib = 16\n"
                                "memory_GBps = 20\nlink_GBps = 1\nnic_GBps = 1\nhost_GBps = 10\n"
                                "[node.box]\ngpu = \"cpu\"\ngpus = 1\n";

static void rates_use(const Hardware *hardware) {
    for (int i = 0; i < hardware->gpu_count; i++) {
        const HardwareGpu *gpu = &hardware->gpus[i], *found;
        if (hardware_find_gpu(hardware, gpu->name, &found) || strcmp(found->name, gpu->name) != 0) abort();
        for (int dtype = 0; dtype < HARDWARE_DTYPE_COUNT; dtype++) {
            if (gpu->peak[dtype] <= 0) continue;
            double product = hardware_gemm_rate(gpu, (HardwareDtype)dtype, 0, 512, 768, 1024);
            double grouped = hardware_gemm_rate(gpu, (HardwareDtype)dtype, 8, 64, 768, 1024);
            double attention = hardware_attention_rate(gpu, (HardwareDtype)dtype, 64, 2048, true);
            if (!(product > 0 && grouped > 0 && attention > 0) || !isfinite(product + grouped + attention)) abort();
        }
    }
    hardware_match_device(hardware, "NVIDIA H200");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Toml known;
    if (!known.root && toml_parse(&known, catalogue, sizeof catalogue - 1, "catalogue")) abort();
    Toml toml;
    Status status = toml_parse(&toml, (const char *)data, size, "machine.toml");
    if (!status) {
        Hardware hardware;
        hardware_init(&hardware);
        if (hardware_merge(&hardware, known.root, "catalogue")) abort();
        status = hardware_merge(&hardware, toml.root, "machine.toml");
        if (!status) rates_use(&hardware);
        hardware_free(&hardware);
        toml_free(&toml);
    }
    status_free(status);
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    if (profile_is_of(text, "cpu")) free(profile_lines(text, true));
    free(text);
    return 0;
}
