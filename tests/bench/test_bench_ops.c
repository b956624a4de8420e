// bench ops on the CPU: every op of the table is timed at a model's shapes, and a name picks among them.
#include "bench/bench_ops.h"
#include "model/small_models.h"

static const char *const all_ops[] = {
    "copy",
    "zero",
    "fill_f32",
    "cast",
    "sum_f32",
    "linear_forward",
    "linear_backward_input",
    "linear_backward_weight",
    "embedding_forward",
    "embedding_backward",
    "add_rmsnorm_forward",
    "add_rmsnorm_backward",
    "qk_rope_forward",
    "qk_rope_backward",
    "linear_rope_forward",
    "attention_forward",
    "attention_backward",
    "attention_cached",
    "swiglu_forward",
    "swiglu_backward",
    "swiglu_packed_forward",
    "swiglu_packed_backward",
    "linear_swiglu_forward",
    "linear_swiglu_backward",
    "cross_entropy",
    "moe_router_forward",
    "moe_router_backward",
    "moe_route_forward",
    "moe_route_backward",
    "moe_balance",
    "moe_load_stats",
    "moe_bias_update",
    "moe_gather",
    "moe_sum",
    "grouped_linear_forward",
    "grouped_linear_backward_input",
    "grouped_linear_backward_weight",
    "norm_f32",
    "guard",
    "adamw",
};
enum { OP_COUNT = sizeof all_ops / sizeof *all_ops };

typedef struct Seen {
    int rows, times[OP_COUNT];
} Seen;

static void row_note(void *context, const BenchOpsRow *row) {
    Seen *seen = context;
    seen->rows++;
    assert_true(row->ms > 0 && row->floor_ms > 0 && row->bytes > 0 && row->shape[0]);
    for (int i = 0; i < OP_COUNT; i++)
        seen->times[i] += strcmp(row->op, all_ops[i]) == 0;
}

static Seen bench_small(SmallModel model, Precision precision, const char *only) {
    Seen seen = {0};
    Ops *ops;
    int64_t current, peak;
    BenchOps bench = {.request = small_request(model), .only = only, .quick = true, .row = row_note, .context = &seen};
    bench.request.precision = precision;
    assert_ok(ops_cpu_create(&ops));
    assert_ok(bench_ops(ops, &bench));
    ops_cpu_allocated(ops, &current, &peak);
    assert_int_equal(current, 0); // all buffers were given back
    ops_destroy(ops);
    return seen;
}

static void test_every_op_is_timed(void **state) {
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16_PURE; precision++) {
        Seen seen = bench_small(SMALL_MOE, (Precision)precision, NULL);
        for (int i = 0; i < OP_COUNT; i++)
            if (!seen.times[i]) fail_msg("%s was not timed", all_ops[i]);
    }
}

static void test_a_dense_model_has_no_moe_ops(void **state) {
    (void)state;
    Seen seen = bench_small(SMALL_LLAMA, PRECISION_FP32, NULL);
    for (int i = 0; i < OP_COUNT; i++)
        if (strstr(all_ops[i], "moe_") || strstr(all_ops[i], "grouped_")) assert_int_equal(seen.times[i], 0);
}

static void test_a_name_picks_ops_after_the_two_ceilings(void **state) {
    (void)state;
    Seen seen = bench_small(SMALL_LLAMA, PRECISION_FP32, "swiglu");
    assert_int_equal(seen.rows, 2 + 4); // the ceilings; SwiGLU alone and with its product, both ways
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op_is_timed),
        cmocka_unit_test(test_a_dense_model_has_no_moe_ops),
        cmocka_unit_test(test_a_name_picks_ops_after_the_two_ceilings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
