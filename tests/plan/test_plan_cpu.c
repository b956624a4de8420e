// Steps on a CPU: what arithmetic beside products costs there.
#include "catalogue.h"

static PlanPrediction prediction;

static const StepModel *step_on(const char *gpu, const char *preset, Precision precision) {
    PlanMachine machine = catalogue_machine(gpu, "hearth", 1);
    PlanRun run = preset_run(preset, 4, 256, 1);
    run.layout.device = machine.gpu.cpu ? DEVICE_CPU : DEVICE_CUDA;
    run.layout.precision = precision;
    assert_ok(plan_predict(&prediction, &machine, &run));
    return &prediction.step;
}

static const StepOp *op_named(const StepModel *step, const char *name) {
    for (int i = 0; i < step->op_count; i++)
        if (strcmp(step->ops[i].name, name) == 0) return &step->ops[i];
    fail_msg("the step has no %s", name);
    return NULL;
}

static void bf16_saves_a_cpu_nothing_beside_products(void **state) {
    (void)state;
    static const char *const presets[] = {"demo-llama", "demo-moe"};
    static const char *const names[2][4] = {{"SwiGLU", "SwiGLU backward", "cross entropy", "RoPE backward"},
                                            {"SwiGLU (experts)", "QK-norm + RoPE", "cross entropy", "final norm"}};
    for (int i = 0; i < 2; i++) {
        double fp32[4], elementwise = step_on("cpu", presets[i], PRECISION_FP32)->part[STEP_ELEMENTWISE];
        for (int k = 0; k < 4; k++)
            fp32[k] = op_named(&prediction.step, names[i][k])->seconds;
        const StepModel *bf16 = step_on("cpu", presets[i], PRECISION_BF16);
        assert_true(bf16->part[STEP_ELEMENTWISE] > elementwise);
        for (int k = 0; k < 4; k++)
            if (op_named(bf16, names[i][k])->seconds < fp32[k]) fail_msg("%s is faster in bf16", names[i][k]);
    }
}

// Two exponentials take longer than the bytes of a logit; the bytes of a parameter longer than its update.
static void exponentials_bound_a_cpu_and_memory_a_gpu(void **state) {
    (void)state;
    assert_true(op_named(step_on("cpu", "demo-llama", PRECISION_FP32), "cross entropy")->compute_bound);
    assert_false(op_named(&prediction.step, "AdamW")->compute_bound);
    const StepModel *step = step_on("h200-sxm", "demo-llama", PRECISION_BF16);
    for (int i = 0; i < step->op_count; i++)
        if (step->ops[i].flops == 0 && step->ops[i].compute_bound)
            fail_msg("%s on a GPU is bound by arithmetic", step->ops[i].name);
}

// Twice the cores are half the time of what arithmetic bounds.
static void arithmetic_beside_products_grows_with_the_cores(void **state) {
    (void)state;
    Hardware hardware;
    const HardwareGpu *cpu;
    const HardwareSoftware *software;
    double seconds[2];
    catalogue_load(&hardware);
    assert_ok(hardware_find_gpu(&hardware, "cpu", &cpu));
    assert_ok(hardware_find_software(&hardware, "hearth", &software));
    for (int i = 0; i < 2; i++) {
        PlanMachine machine = plan_machine(&hardware, cpu, NULL, software, 1, 1, 1 + i);
        PlanRun run = preset_run("demo-llama", 4, 256, 1);
        run.layout.device = DEVICE_CPU;
        assert_ok(plan_predict(&prediction, &machine, &run));
        seconds[i] = op_named(&prediction.step, "cross entropy")->seconds;
    }
    assert_near(seconds[1], seconds[0] / 2, 1e-12 * seconds[0]);
    hardware_free(&hardware);
}

// Products by AMX are as much of its peak as the catalogue says, whatever floats have of theirs; of a step the softmax
// of attention takes what it took.
static void amx_has_a_share_of_its_own(void **state) {
    (void)state;
    Hardware hardware;
    HardwareGpu amx = *catalogue_gpu(&hardware, "cpu-amx"), plain = amx;
    const HardwareEfficiency *e = &amx.efficiency;
    assert_true(e->gemm_bf16 > 0 && e->gemm_bf16 < e->gemm && amx.peak[HARDWARE_BF16] > 10 * amx.peak[HARDWARE_FP32]);
    double half = e->gemm_half, large = 1 << 20, size = large / (large + half);
    assert_near(hardware_gemm_rate(&amx, HARDWARE_BF16, 0, large, large, large),
                amx.peak[HARDWARE_BF16] * e->gemm_bf16 * size * size * size, 1);
    plain.efficiency.gemm_bf16 = 0;
    assert_near(hardware_gemm_rate(&plain, HARDWARE_BF16, 0, large, large, large),
                amx.peak[HARDWARE_BF16] * e->gemm * size * size * size, 1);
    assert_true(hardware_gemm_rate(&amx, HARDWARE_FP32, 0, 512, 512, 512) ==
                hardware_gemm_rate(&plain, HARDWARE_FP32, 0, 512, 512, 512));
    for (int backward = 0; backward < 2;
         backward++) { // seconds of a FLOP: a product's and, in floats and here, softmax's
        double share = backward ? e->attention_backward_64 : e->attention_forward_64, all = 4096 / (4096 + 64.0);
        double softmax = (1 / share - 1 / e->gemm) / amx.peak[HARDWARE_FP32];
        double rate = hardware_attention_rate(&amx, HARDWARE_BF16, 64, 4096, backward);
        assert_near(all / rate * 1e12, 1e12 * (1 / (e->gemm_bf16 * amx.peak[HARDWARE_BF16]) + softmax), 1e-6);
    }
    double fp32 = step_on("cpu-amx", "demo-llama", PRECISION_FP32)->seconds;
    assert_true(fp32 > 2 * step_on("cpu-amx", "demo-llama", PRECISION_BF16)->seconds);
    assert_true(step_on("cpu-amx", "demo-llama", PRECISION_FP16)->part[STEP_GEMM] >
                0.9 * step_on("cpu-amx", "demo-llama", PRECISION_FP32)->part[STEP_GEMM]); // floats are made of it
    hardware_free(&hardware);
}

static void a_catalogue_without_amx_has_another_cpu_for_it(void **state) {
    (void)state;
    Hardware hardware;
    const HardwareGpu *found, *plain = catalogue_gpu(&hardware, "cpu"), *amx;
    assert_ok(hardware_find_gpu(&hardware, "cpu-amx", &amx));
    assert_ok(hardware_find_cpu(&hardware, "cpu-amx", &found));
    assert_ptr_equal(found, amx);
    hardware.gpus[amx - hardware.gpus].name[0] = 'x';
    assert_ok(hardware_find_cpu(&hardware, "cpu-amx", &found));
    assert_ptr_equal(found, plain);
    assert_true(hardware_names_cpu("cpu-amx") && hardware_names_cpu("cpu") && !hardware_names_cpu("NVIDIA H200"));
    hardware_free(&hardware);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_saves_a_cpu_nothing_beside_products),
        cmocka_unit_test(exponentials_bound_a_cpu_and_memory_a_gpu),
        cmocka_unit_test(arithmetic_beside_products_grows_with_the_cores),
        cmocka_unit_test(amx_has_a_share_of_its_own),
        cmocka_unit_test(a_catalogue_without_amx_has_another_cpu_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
