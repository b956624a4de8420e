// bench machine on the CPU: its products meet in caches what those of a step would find there, and the planner reads
// its profile.
#include "../plan/catalogue.h"
#include "bench/bench_machine.h"
#include "ops/record.h"

typedef struct Runs { // of one product after the other
    OpRecord product; // the present one's first run
    const void *result[1024];
    int count, products;
    bool far; // so far none met the memory of its result, or its weight, after less than a step
} Runs;

static void note_product(void *context, const OpRecord *run) {
    Runs *runs = context;
    const Tensor *t = run->tensor, *first = runs->product.tensor;
    bool gradient = run->op == OP_LINEAR_BACKWARD_WEIGHT;
    if (run->op != OP_LINEAR_FORWARD && run->op != OP_LINEAR_BACKWARD_INPUT && !gradient) return;
    if (runs->product.op != run->op || t[0].rows != first[0].rows || t[0].cols != first[0].cols ||
        t[1].cols != first[1].cols || t[1].dtype != first[1].dtype) {
        runs->product = *run;
        runs->count = 0;
        runs->products++;
    }
    assert_ptr_equal(t[1].data, runs->product.tensor[1].data); // as if the op before had just written it
    double bytes = (double)tensor_count(t[0]) * (double)dtype_size(t[0].dtype);
    if (!gradient) { // weights change with the results
        bytes += (double)tensor_count(t[2]) * (double)dtype_size(t[2].dtype);
        runs->far &= (t[0].data == first[0].data) == (t[2].data == first[2].data);
    }
    for (int i = 0; i < runs->count; i++)
        if (runs->result[i] == t[0].data)
            runs->far &= (runs->count - i) * bytes > (8 << 20) * (double)dtype_size(t[1].dtype);
    assert_true(runs->count < (int)(sizeof runs->result / sizeof *runs->result));
    runs->result[runs->count++] = t[0].data;
}

static void test_a_product_meets_results_and_weights_again_after_a_step(void **state) {
    (void)state;
    Ops *ops;
    TextBuffer text = {0};
    Runs runs = {.far = true};
    int64_t current, peak;
    assert_ok(ops_cpu_create(&ops));
    ops_observe(ops, note_product, &runs);
    assert_ok(bench_machine(ops, "cpu", true, &text));
    ops_stop_observing(ops);
    ops_cpu_allocated(ops, &current, &peak);
    assert_int_equal(current, 0); // all buffers were given back
    assert_true(runs.products > 12 && runs.far);
    text_buffer_free(&text);
    ops_destroy(ops);
}

static void test_the_planner_reads_the_profile(void **state) {
    (void)state;
    Ops *ops;
    TextBuffer text = {0};
    Toml toml;
    Hardware hardware;
    const HardwareGpu *cpu = catalogue_gpu(&hardware, "cpu");
    assert_ok(ops_cpu_create(&ops));
    assert_ok(bench_machine(ops, "cpu", true, &text));
    assert_ok(toml_parse(&toml, text.data, text.length, "machine.toml"));
    assert_ok(hardware_merge(&hardware, toml.root, "machine.toml"));
    assert_true(cpu->measured && !cpu->outdated && cpu->cores >= 1);
    for (HardwareDtype dtype = HARDWARE_FP32; dtype <= HARDWARE_BF16; dtype += HARDWARE_BF16 - HARDWARE_FP32) {
        int products = 0, attentions = 0;
        for (int i = 0; i < cpu->gemm_count; i++)
            products += cpu->gemms[i].dtype == dtype;
        for (int i = 0; i < cpu->attention_count; i++)
            attentions += cpu->attentions[i].dtype == dtype;
        assert_true(products >= 9 && products % 3 == 0 && attentions > 0); // three directions of each layer
    }
    // What a CPU runs one after the other hides nothing, whatever noise says.
    assert_true(cpu->efficiency.swiglu_hidden == 0 && cpu->efficiency.rope_hidden == 0);
    toml_free(&toml);
    text_buffer_free(&text);
    hardware_free(&hardware);
    ops_destroy(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_product_meets_results_and_weights_again_after_a_step),
        cmocka_unit_test(test_the_planner_reads_the_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
