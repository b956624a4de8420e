// The hardware catalogue: what the shipped file holds, how files merge, what is refused and where it points.
#include "catalogue.h"

static Status merge_text(Hardware *hardware, const char *text) {
    Toml toml;
    TRY(toml_parse(&toml, text, strlen(text), "my.toml"));
    Status status = hardware_merge(hardware, toml.root, "my.toml");
    toml_free(&toml);
    return status;
}

static void refused(const char *text, const char *part) {
    Hardware hardware;
    catalogue_load(&hardware);
    assert_error(merge_text(&hardware, text), part);
    hardware_free(&hardware);
}

static void shipped_catalogue_has_the_common_devices(void **state) {
    static const struct {
        const char *name;
        double bf16; // dense TFLOP/s
    } expected[] = {{"a100-sxm", 312},       {"h100-sxm", 989.4},
                    {"h100-pcie", 756},      {"h200-sxm", 989.4},
                    {"b200-sxm", 2250},      {"l40s", 362},
                    {"rtx-a6000", 154.8},    {"rtx-6000-ada", 364},
                    {"rtx-pro-6000", 503.8}, {"rtx-pro-6000-maxq", 438.9},
                    {"rtx-3090", 71},        {"rtx-4090", 165.2},
                    {"rtx-5090", 209.5}};
    Hardware hardware;
    (void)state;
    catalogue_load(&hardware);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const HardwareGpu *gpu;
        assert_ok(hardware_find_gpu(&hardware, expected[i].name, &gpu));
        assert_near(gpu->peak[HARDWARE_BF16] / 1e12, expected[i].bf16, 1e-9);
        assert_true(gpu->memory > 0 && gpu->bandwidth > 0 && gpu->watts > 0 && gpu->usd_per_hour > 0);
    }
    hardware_free(&hardware);
}

static void errors_point_at_line_and_column(void **state) {
    (void)state;
    refused("[gpu.h100-sxm]\nmemory_gibb = 3", "my.toml:2:15");
    refused("[gpu.h100-sxm]\nmemory_gibb = 3", "did you mean memory_gib");
    refused("[gpu.h100-sxm]\nwatts = \"700\"", "watts must be a number, not a string");
    refused("[gpu.h100-sxm]\nwatts = -5", "my.toml:2:9: h100-sxm.watts = -5 is out of range");
    refused("[gpus.x]\nwatts = 1", "did you mean [gpu]");
    refused("[gpu.new]\nwatts = 1", "needs at least fp32_tflops");
    refused("[node.mine]\ngpu = \"h1000-sxm\"", "did you mean h100-sxm");
    refused("[cluster.mine]\nnode = \"nowhere\"", "no node \"nowhere\"");
    refused("[[gemm]]\nm = 1\nn = 1\nk = 1\ntflops = 1", "which gpu they are of");
    refused("[machine]\ngpu = \"h100-sxm\"\n[[gemm]]\nm = 8\nn = 8\nk = 8\ntflops = 1500",
            "more than the dense bf16 peak");
    refused("[machine]\ngpu = \"h100-sxm\"\n[[gemm]]\nm = 8\nn = 8\nk = 8", "needs m, n, k and tflops");
    refused("[machine]\ngpu = \"h100-sxm\"\n[[attention]]\nseq = 8", "an attention point needs");
    refused("gpu = 3", "gpu must hold tables");
    refused("[typical.x]\nmfu_low = 0.3\nmfu_high = 0.4", "and a source");
    refused("[typical.x]\nmfu_low = 0.5\nmfu_high = 0.4\nsource = \"y\"", "mfu_high not below it");
    refused("[typical.x]\nmfu_low = 0.3\nmfu_high = 40\nsource = \"y\"", "mfu_high = 40 is out of range");
    refused("[typical.pcie-moe]\nmodel = \"sparse\"", "model must be dense or moe");
    refused("[typical.pcie-moe]\nlink = \"wire\"", "link must be nvlink, pcie or cpu");
}

static void a_later_file_replaces_single_values(void **state) {
    Hardware hardware;
    const HardwareGpu *gpu;
    const HardwareCluster *cluster;
    (void)state;
    catalogue_load(&hardware);
    assert_ok(merge_text(&hardware,
                         "[gpu.h100-sxm]\nusd_per_hour = 1.25\n[gpu.mine]\nfp32_tflops = 10\nmemory_gib = 16\n"
                         "memory_GBps = 500\n[node.pair]\ngpu = \"mine\"\ngpus = 2\n"
                         "[cluster.four]\nnode = \"pair\"\nnodes = 2"));
    assert_ok(hardware_find_gpu(&hardware, "h100-sxm", &gpu));
    assert_near(gpu->usd_per_hour, 1.25, 0);
    assert_near(gpu->peak[HARDWARE_BF16], 989.4e12, 1);
    assert_ok(hardware_find_cluster(&hardware, "four", &cluster));
    assert_near(cluster->nodes, 2, 0);
    assert_ok(merge_text(&hardware, "[typical.ours]\nmodel = \"dense\"\ngpus_min = 2\nmfu_low = 0.5\nmfu_high = 0.6\n"
                                    "source = \"our own runs\"\n[typical.nvlink-moe]\nmfu_high = 0.3"));
    assert_string_equal(hardware_typical(&hardware, gpu, 8, false).name, "ours"); // the later one of two that match
    assert_string_equal(hardware_typical(&hardware, gpu, 1, false).name, "one-dense");
    assert_near(hardware_typical(&hardware, gpu, 8, true).high, 0.3, 0);
    hardware_free(&hardware);
}

static void a_machine_profile_replaces_measured_rates(void **state) {
    Hardware hardware;
    const HardwareGpu *gpu;
    (void)state;
    catalogue_load(&hardware);
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"h200-sxm\"\ncopy_GBps = 4000\nlaunch_gap_us = 3\n"
                                    "[[gemm]]\nm = 4096\nn = 4096\nk = 4096\ntflops = 500\n"
                                    "[[attention]]\nhead_dim = 64\nseq = 2048\nforward_tflops = 300\n"
                                    "backward_tflops = 200"));
    assert_ok(hardware_find_gpu(&hardware, "h200-sxm", &gpu));
    assert_true(gpu->measured);
    assert_near(gpu->bandwidth * gpu->efficiency.memory, 4e12, 1);
    assert_near(gpu->efficiency.launch_gap, 3e-6, 1e-12);
    assert_near(hardware_gemm_rate(gpu, HARDWARE_BF16, 0, 4096, 4096, 4096), 500e12, 1e6);
    assert_near(hardware_attention_rate(gpu, HARDWARE_BF16, 64, 2048, true), 200e12, 1e6);
    hardware_free(&hardware);
}

// What collectives reached is planned with as it is; a profile of links alone leaves the device to the catalogue.
static void measured_links_are_planned_with(void **state) {
    Hardware hardware;
    (void)state;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, "cpu");
    double nic = gpu->nic_bandwidth;
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"cpu\"\nlink_bus_GBps = 3\nlink_latency_us = 40"));
    assert_near(gpu->link_bandwidth * gpu->efficiency.link, 3e9, 1);
    assert_near(gpu->link_latency, 40e-6, 1e-12);
    assert_near(gpu->nic_bandwidth, nic, 1e-3);
    assert_false(gpu->measured);
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"cpu\"\ncopy_GBps = 20\nnic_bus_GBps = 1\nnic_latency_us = 60"));
    assert_near(gpu->nic_bandwidth * gpu->efficiency.link, 1e9, 1);
    assert_near(gpu->nic_latency, 60e-6, 1e-12);
    assert_true(gpu->measured);
    hardware_free(&hardware);
}

// Rates of a CPU were once taken in a loop on the same operands; a profile of that time is read, and said to be old.
static void a_cpu_profile_of_another_method_is_outdated(void **state) {
    Hardware hardware;
    (void)state;
    const HardwareGpu *cpu = catalogue_gpu(&hardware, "cpu");
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"cpu\"\ncores = 2\ncopy_GBps = 100"));
    assert_true(cpu->measured && cpu->outdated);
    assert_near(cpu->bandwidth * cpu->efficiency.memory, 100e9, 1);
    char *text = text_format("[machine]\ngpu = \"cpu\"\ncores = 2\nmethod = %d\ncopy_GBps = 40", HARDWARE_CPU_METHOD);
    assert_ok(merge_text(&hardware, text));
    free(text);
    assert_true(cpu->measured && !cpu->outdated);
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"cpu\"\nlink_latency_us = 40")); // says nothing of the device
    assert_false(cpu->outdated);
    hardware_free(&hardware);
    const HardwareGpu *h200 = catalogue_gpu(&hardware, "h200-sxm");
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"h200-sxm\"\ncopy_GBps = 4000"));
    assert_true(h200->measured && !h200->outdated); // those of a GPU are taken as ever
    hardware_free(&hardware);
}

static void ranks_on_a_cpu_share_its_cores(void **state) {
    Hardware hardware;
    const HardwareSoftware *software;
    (void)state;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, "cpu");
    assert_ok(hardware_find_software(&hardware, "hearth", &software));
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"cpu\"\ncores = 4\ncopy_GBps = 100\nmemory_gib = 8\n"
                                    "gemm = [{dtype = \"fp32\", kind = \"dense\", m = 512, n = 512, k = 512, tflops = "
                                    "0.4}]\nattention = [{head_dim = 64, seq = 512, forward_tflops = 0.2, "
                                    "backward_tflops = 0.3}]"));
    for (int ranks = 1; ranks <= 8; ranks *= 2) // the profile is of four cores; a node here has two
        for (int nodes = 1; nodes <= 2; nodes++) {
            PlanMachine machine = plan_machine(&hardware, gpu, NULL, software, ranks * nodes, ranks, 2);
            double share = 0.5 / ranks;
            assert_near(hardware_gemm_rate(&machine.gpu, HARDWARE_FP32, 0, 512, 512, 512), 0.4e12 * share, 1e6);
            assert_near(hardware_attention_rate(&machine.gpu, HARDWARE_FP32, 64, 512, false), 0.2e12 * share, 1e6);
            assert_near(hardware_attention_rate(&machine.gpu, HARDWARE_FP32, 64, 512, true), 0.3e12 * share, 1e6);
            assert_near(machine.gpu.bandwidth * machine.gpu.efficiency.memory, 100e9 * share, 1);
            assert_near(machine.gpu.peak[HARDWARE_FP32], 2 * gpu->peak[HARDWARE_FP32] / ranks, 1);
            assert_near(machine.gpu.memory, 0x2p32 / ranks, 1);
        }
    hardware_free(&hardware);
}

// Seconds of one score of attention on a CPU.
static double score_seconds(const HardwareGpu *cpu, HardwareDtype dtype, double head_dim, bool backward) {
    return (backward ? 10 : 4) * head_dim / hardware_attention_rate(cpu, dtype, head_dim, 4096, backward);
}

// Its products are those of the format and the head; what is left is the softmax, and that is the same for all.
static void the_softmax_of_a_cpu_takes_as_long_in_every_format_and_head(void **state) {
    Hardware hardware;
    (void)state;
    const HardwareGpu *cpu = catalogue_gpu(&hardware, "cpu");
    for (int backward = 0; backward < 2; backward++) {
        const HardwareEfficiency *e = &cpu->efficiency;
        double beyond = 1 + (backward ? e->attention_backward_half : e->attention_forward_half) / 4096, softmax = 0;
        for (int i = 0; i < 4; i++) {
            HardwareDtype dtype = i / 2 ? HARDWARE_BF16 : HARDWARE_FP32;
            double head_dim = i % 2 ? 32 : 64, flops = (backward ? 10 : 4) * head_dim;
            double products = beyond * flops / (cpu->peak[dtype] * e->gemm);
            double left = score_seconds(cpu, dtype, head_dim, backward) - products;
            if (i == 0) softmax = left;
            assert_true(left > 0);
            assert_near(left, softmax, 1e-12 * softmax);
        }
        double share = backward ? e->attention_backward_64 : e->attention_forward_64;
        assert_near(hardware_attention_rate(cpu, HARDWARE_FP32, 64, 4096, backward),
                    cpu->peak[HARDWARE_FP32] * share / beyond, 1);
    }
    hardware_free(&hardware);
}

static void passes_of_a_profile_have_a_share_of_its_copy(void **state) {
    Hardware hardware;
    (void)state;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, "h200-sxm");
    double scattered = gpu->efficiency.scattered;
    assert_ok(merge_text(&hardware, "[machine]\ngpu = \"h200-sxm\"\ncopy_GBps = 4000\nelementwise_GBps = 3000"));
    assert_ok(hardware_find_gpu(&hardware, "h200-sxm", &gpu));
    assert_near(gpu->bandwidth * gpu->efficiency.memory, 4e12, 1);
    assert_near(gpu->efficiency.elementwise, 0.75, 1e-12);
    assert_near(gpu->efficiency.scattered, scattered, 0); // not measured by it
    hardware_free(&hardware);
}

// 16 gradients of 896 x 512 are 224 tiles of 128 x 256: two rounds of 132 processors, 0.85 of them at work. 64 are 896:
// seven rounds, 0.97.
static void few_tiles_leave_processors_idle(void **state) {
    Hardware hardware;
    (void)state;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, "h200-sxm");
    double few = hardware_gemm_rate(gpu, HARDWARE_BF16, 16, 896, 512, 4096);
    double many = hardware_gemm_rate(gpu, HARDWARE_BF16, 64, 896, 512, 4096);
    assert_near(many / few, (896.0 / (7 * 132)) / (224.0 / (2 * 132)), 1e-9);
    hardware_free(&hardware);
}

static void rates_agree_with_measured_points_and_grow_with_size(void **state) {
    Hardware hardware;
    const HardwareGpu *other;
    (void)state;
    const HardwareGpu *gpu = catalogue_gpu(&hardware, "h200-sxm");
    // The weights of far points leave a trace of at most a few tenths of a per cent.
    for (int i = 0; i < gpu->gemm_count; i++) {
        const HardwareGemm *p = &gpu->gemms[i];
        assert_near(hardware_gemm_rate(gpu, p->dtype, p->groups, p->m, p->n, p->k) / p->flops, 1, 0.01);
    }
    assert_ok(hardware_find_gpu(&hardware, "l40s", &other));
    double before = 0;
    for (double size = 64; size <= 16384; size *= 2) {
        double rate = hardware_gemm_rate(other, HARDWARE_BF16, 0, size, size, size);
        assert_true(rate > before && rate < other->peak[HARDWARE_BF16]);
        before = rate;
    }
    hardware_free(&hardware);
}

static void devices_are_found_by_their_drivers_name(void **state) {
    Hardware hardware;
    (void)state;
    catalogue_load(&hardware);
    assert_string_equal(hardware_match_device(&hardware, "NVIDIA H200")->name, "h200-sxm");
    assert_string_equal(hardware_match_device(&hardware, "NVIDIA H100 80GB HBM3")->name, "h100-sxm");
    assert_string_equal(hardware_match_device(&hardware, "NVIDIA GeForce RTX 4090")->name, "rtx-4090");
    assert_null(hardware_match_device(&hardware, "Radeon VII"));
    hardware_free(&hardware);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_catalogue_has_the_common_devices),
        cmocka_unit_test(errors_point_at_line_and_column),
        cmocka_unit_test(a_later_file_replaces_single_values),
        cmocka_unit_test(a_machine_profile_replaces_measured_rates),
        cmocka_unit_test(measured_links_are_planned_with),
        cmocka_unit_test(a_cpu_profile_of_another_method_is_outdated),
        cmocka_unit_test(ranks_on_a_cpu_share_its_cores),
        cmocka_unit_test(the_softmax_of_a_cpu_takes_as_long_in_every_format_and_head),
        cmocka_unit_test(passes_of_a_profile_have_a_share_of_its_copy),
        cmocka_unit_test(few_tiles_leave_processors_idle),
        cmocka_unit_test(rates_agree_with_measured_points_and_grow_with_size),
        cmocka_unit_test(devices_are_found_by_their_drivers_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
