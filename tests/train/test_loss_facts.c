// What an advice rests on is what the run is: its precision and recomputation, and what its own device could do.
#include "../plan/catalogue.h"

#include "train/loss_facts.h"

static LossFacts facts_of(const char *device, const PlanRun *run) {
    Prediction *prediction = xmalloc(sizeof *prediction);
    int ranks = (int)mesh_ranks(&run->layout.mesh);
    *prediction = (Prediction){.machine = catalogue_machine(device, "hearth", ranks), .run = *run};
    assert_ok(plan_predict(&prediction->plan, &prediction->machine, run));
    LossFacts facts = loss_facts(prediction);
    free(prediction);
    assert_true(facts.known && facts.precision == run->layout.precision && facts.recompute == run->layout.recompute);
    return facts;
}

static void a_gpu_run_knows_what_fp8_would_bring_and_its_peak(void **state) {
    (void)state;
    PlanRun run = preset_run("smollm-360m", 16, 2048, 4);
    LossFacts facts = facts_of("h200-sxm", &run);
    assert_true(facts.gpu && facts.batch_fits && facts.shards_optimizer);
    assert_string_equal(facts.fp8.what, "precision fp8 instead of bf16");
    assert_true(facts.fp8.gain > 0.05 && facts.change.what[0] && !strstr(facts.change.what, "precision"));
    // 131072 tokens of 2.548 GFLOP, half of the attention masked, at 989.4 TFLOP/s
    assert_true(facts.products_peak > 0.33 && facts.products_peak < 0.345);
    run.layout.precision = PRECISION_FP8;
    assert_string_equal(facts_of("h200-sxm", &run).fp8.what, "");
    run.layout.precision = PRECISION_BF16;
    assert_string_equal(facts_of("a100-sxm", &run).fp8.what, ""); // which has no such units
}

static void a_micro_batch_that_fills_the_memory_is_not_doubled(void **state) {
    (void)state;
    PlanRun run = preset_run("smollm-360m", 64, 2048, 1); // 18.8 GiB of activations for every 16
    assert_false(facts_of("h200-sxm", &run).batch_fits);
    run.layout.micro_batch = 32;
    assert_true(facts_of("h200-sxm", &run).batch_fits);
    run.layout.recompute = RECOMPUTE_FULL;
    run.layout.micro_batch = 64;
    assert_true(facts_of("h200-sxm", &run).batch_fits);
}

static void less_is_recomputed_only_where_memory_has_room(void **state) {
    (void)state;
    PlanRun run = preset_run("smollm-360m", 256, 2048, 1); // 301 GiB of activations, were they kept
    run.layout.recompute = RECOMPUTE_FULL;
    assert_false(facts_of("h200-sxm", &run).recompute_fits);
    run.layout.micro_batch = 32;
    assert_true(facts_of("h200-sxm", &run).recompute_fits);
    run.layout.recompute = RECOMPUTE_NONE;
    assert_false(facts_of("h200-sxm", &run).recompute_fits); // there is nothing less
}

static void ranks_that_share_no_state_yet_could(void **state) {
    (void)state;
    PlanRun run = preset_run("smollm-360m", 16, 2048, 4);
    run.layout.mesh.dp = 4;
    assert_false(facts_of("h200-sxm", &run).shards_optimizer);
    run.layout.mesh.zero = 1;
    assert_true(facts_of("h200-sxm", &run).shards_optimizer);
}

static void a_cpu_run_hears_of_no_fp8_and_no_peak(void **state) {
    (void)state;
    PlanRun run = preset_run("demo-llama", 2, 128, 2);
    run.layout.precision = PRECISION_FP32;
    run.layout.device = DEVICE_CPU;
    LossFacts facts = facts_of("cpu", &run);
    assert_true(!facts.gpu && facts.products_peak == 0);
    assert_string_equal(facts.fp8.what, "");
}

static void without_a_prediction_nothing_is_known(void **state) {
    (void)state;
    assert_false(loss_facts(NULL).known);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_run_knows_what_fp8_would_bring_and_its_peak),
        cmocka_unit_test(a_micro_batch_that_fills_the_memory_is_not_doubled),
        cmocka_unit_test(less_is_recomputed_only_where_memory_has_room),
        cmocka_unit_test(ranks_that_share_no_state_yet_could),
        cmocka_unit_test(a_cpu_run_hears_of_no_fp8_and_no_peak),
        cmocka_unit_test(without_a_prediction_nothing_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
