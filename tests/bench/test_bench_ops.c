// bench ops on the CPU: every op of the table is timed at a model's shapes, and a name picks among them.
#include "bench/bench_ops.h"
#include "model/model.h"
#include "model/small_models.h"
#include "ops/record.h"

typedef struct Seen {
    int rows, times[OP_COUNT];
} Seen;

static void row_note(void *context, const BenchOpsRow *row) {
    Seen *seen = context;
    seen->rows++;
    assert_true(row->ms > 0 && row->floor_ms > 0 && row->shape[0]);
    for (int i = 0; i < OP_COUNT; i++)
        seen->times[i] += strcmp(row->op, op_name((OpId)i)) == 0;
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

// Every op that a step calls, whatever the list will be: seen by a table that tells of each call.
static void note_op(void *context, const OpRecord *record) {
    ((bool *)context)[record->op] = true;
}

static void ops_of_a_step(SmallModel which, bool called[OP_COUNT]) {
    LayoutRequest request = small_request(which);
    int64_t tokens = (int64_t)request.micro_batch * request.seq;
    int32_t *ids = xcalloc((size_t)tokens, sizeof *ids);
    Ops *ops;
    Model *model;
    assert_ok(ops_cpu_create(&ops));
    assert_ok(model_create(&model, ops, &request));
    model_init_weights(model, 1, false);
    memset(called, 0, OP_COUNT * sizeof *called);
    ops_observe(ops, note_op, called);
    model_step_begin(model, tokens, 1);
    model_micro_step(model, ids, ids, ids);
    model_optimizer_step(model, &(OptimizerStep){.step = 1, .loss_limit = INFINITY, .norm_limit = INFINITY});
    ops_stop_observing(ops);
    model_destroy(model);
    ops_cpu_destroy(ops);
    free(ids);
}

static void test_every_op_of_a_step_is_timed(void **state) {
    (void)state;
    bool called[OP_COUNT];
    for (int which = SMALL_LLAMA; which <= SMALL_MOE; which++) {
        ops_of_a_step((SmallModel)which, called);
        Seen seen = bench_small((SmallModel)which, PRECISION_FP32, NULL);
        for (int i = 0; i < OP_COUNT; i++) {
            // A fused op of the record is two calls of the CPU; their parts are no ops of the step.
            bool part = i == OP_SWIGLU_PACKED_FORWARD || i == OP_SWIGLU_PACKED_BACKWARD || i == OP_GUARD ||
                        ((i == OP_QK_ROPE_FORWARD || i == OP_QK_ROPE_BACKWARD) && which == SMALL_LLAMA);
            if (called[i] && !part && !seen.times[i]) fail_msg("%s was not timed", op_name((OpId)i));
        }
    }
}

static void test_all_precisions_are_timed(void **state) {
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16_PURE; precision++)
        assert_true(bench_small(SMALL_MOE, (Precision)precision, "adamw").rows > 2);
}

static void test_a_dense_model_has_no_moe_ops(void **state) {
    (void)state;
    Seen seen = bench_small(SMALL_LLAMA, PRECISION_FP32, NULL);
    for (int i = 0; i < OP_COUNT; i++) {
        OpCategory category = op_category((OpId)i);
        if (category == CATEGORY_ROUTING || category == CATEGORY_GROUPED) assert_int_equal(seen.times[i], 0);
    }
}

static void test_a_name_picks_ops_after_the_two_ceilings(void **state) {
    (void)state;
    Seen seen = bench_small(SMALL_LLAMA, PRECISION_FP32, "swiglu");
    assert_int_equal(seen.rows, 2 + 2); // the ceilings; SwiGLU with its product, both ways
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op_of_a_step_is_timed),
        cmocka_unit_test(test_all_precisions_are_timed),
        cmocka_unit_test(test_a_dense_model_has_no_moe_ops),
        cmocka_unit_test(test_a_name_picks_ops_after_the_two_ceilings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
