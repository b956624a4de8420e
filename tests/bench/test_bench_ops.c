// bench ops on the CPU: every op of the table is timed at a model's shapes, and a name picks among them.
#include "bench/bench_ops.h"
#include "model/fp8_models.h"
#include "model/model.h"
#include "ops/record.h"

typedef struct Seen {
    int rows, times[OP_COUNT];
} Seen;

static void row_note(void *context, const BenchOpsRow *row) {
    Seen *seen = context;
    seen->rows++;
    assert_true(row->ms > 0 && row->floor_ms > 0 && row->shape[0]);
    assert_null(strstr(row->shape, "(null)"));
    for (int i = 0; i < OP_COUNT; i++)
        seen->times[i] += strcmp(row->op, op_name((OpId)i)) == 0;
}

static Seen bench_request(LayoutRequest request, const char *only) {
    Seen seen = {0};
    Ops *ops;
    int64_t current, peak;
    BenchOps bench = {.request = request, .only = only, .quick = true, .row = row_note, .context = &seen};
    assert_ok(ops_cpu_create(&ops));
    assert_ok(bench_ops(ops, &bench));
    ops_cpu_allocated(ops, &current, &peak);
    assert_int_equal(current, 0); // all buffers were given back
    ops_destroy(ops);
    return seen;
}

static Seen bench_small(SmallModel model, Precision precision, const char *only) {
    LayoutRequest request = small_request(model);
    request.precision = precision;
    return bench_request(request, only);
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
            bool part = i == OP_SWIGLU_FORWARD || i == OP_SWIGLU_BACKWARD || i == OP_SWIGLU_PACKED_FORWARD ||
                        i == OP_SWIGLU_PACKED_BACKWARD || i == OP_GUARD ||
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

// The maximum of a weight is one row, its rounding another: qkv, o, gate_up, down and the head, which is the embedding.
// Of a step's own tensors: inputs of o and of the head, and the transposes of three inputs; gradients of logits, of the
// residual and of qkv.
static void test_rounding_to_fp8_is_timed_for_every_weight(void **state) {
    (void)state;
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    request.logits_rows = TOKENS;
    Seen weights = bench_request(request, "quantize");
    assert_int_equal(weights.times[OP_QUANTIZE], 8 + 2 * 5);
}

// ---- values ---------------------------------------------------------------------------------------------------------

enum { NESTED_CALLS = 2 }; // a fused op of the CPU calls its parts in between

typedef struct Watch {
    OpRecord last[OP_COUNT];
    int at[OP_COUNT], calls; // when each op was called last
    int repeats[OP_COUNT];   // of one call
    double first[OP_COUNT][OP_RECORD_TENSORS];
    bool repeated[OP_COUNT];
    int adamw;
} Watch;

static double largest_of(Tensor t) { // infinite where anything is not finite
    double largest = 0;
    if (!tensor_present(t) || (t.dtype != DTYPE_F32 && t.dtype != DTYPE_BF16)) return 0;
    for (int64_t row = 0; row < t.rows; row++)
        for (int64_t col = 0; col < t.cols; col++) {
            const void *at = tensor_at(t, row, col);
            float value = t.dtype == DTYPE_F32 ? *(const float *)at : bf16_to_f32(*(const bf16 *)at);
            if (!isfinite(value)) return INFINITY;
            largest = fmax(largest, fabs((double)value));
        }
    return largest;
}

// When a call is repeated, all of its tensors have values: those that it reads, and those that it has written. What is
// added to grows by as much each time, so to n times its size at most (twice that: the first of the terms may cancel);
// what is multiplied each time would soon be beyond that, and beyond all numbers where there is time for more repeats.
static void watch_repeat(Watch *watch, const OpRecord *record) {
    int n = ++watch->repeats[record->op];
    watch->repeated[record->op] = true;
    for (int i = 0; i < OP_RECORD_TENSORS; i++) {
        double largest = largest_of(record->tensor[i]), *first = &watch->first[record->op][i];
        if (n == 1) *first = largest;
        if (!isfinite(largest) || largest > 2 * n * *first)
            fail_msg("%s, repeated %d times, is called with a %s of up to %g; it was %g", op_name(record->op), n,
                     record->tensor[i].name, largest, *first);
    }
}

static bool same_tensors(const OpRecord *a, const OpRecord *b) {
    for (int i = 0; i < OP_RECORD_TENSORS; i++)
        if (a->tensor[i].data != b->tensor[i].data) return false;
    return a->flag == b->flag;
}

static void watch_call(void *context, const OpRecord *record) {
    Watch *watch = context;
    OpRecord *last = &watch->last[record->op];
    bool again = watch->calls && watch->calls - watch->at[record->op] <= 1 + NESTED_CALLS && same_tensors(last, record);
    if (record->op == OP_ADAMW) {
        const AdamwArgs *args = &record->adamw;
        watch->adamw++;
        assert_int_equal(*(const int32_t *)args->skip.data, 0); // else it does nothing
        for (int i = 0; i < 4; i++)
            assert_true(isfinite(largest_of(((Tensor[]){args->weight, args->m, args->v, args->grad})[i])));
    } else if (again) {
        watch_repeat(watch, record);
    } else {
        watch->repeats[record->op] = 0;
    }
    *last = *record;
    watch->at[record->op] = watch->calls++;
}

static void test_timed_ops_have_finite_values_and_do_their_work(void **state) {
    (void)state;
    for (int which = SMALL_LLAMA; which <= SMALL_MOE; which++)
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            Watch watch = {0};
            Seen seen = {0};
            Ops *ops;
            BenchOps bench = {
                .request = small_request((SmallModel)which), .quick = true, .row = row_note, .context = &seen};
            bench.request.precision = (Precision)precision;
            assert_ok(ops_cpu_create(&ops));
            ops_observe(ops, watch_call, &watch);
            assert_ok(bench_ops(ops, &bench));
            ops_stop_observing(ops);
            ops_destroy(ops);
            assert_true(watch.adamw > 2);
            for (int i = 0; i < OP_COUNT; i++)
                if (seen.times[i] && i != OP_COPY && i != OP_ADAMW && !watch.repeated[i])
                    fail_msg("%s was not repeated", op_name((OpId)i));
        }
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
        cmocka_unit_test(test_rounding_to_fp8_is_timed_for_every_weight),
        cmocka_unit_test(test_timed_ops_have_finite_values_and_do_their_work),
        cmocka_unit_test(test_a_dense_model_has_no_moe_ops),
        cmocka_unit_test(test_a_name_picks_ops_after_the_two_ceilings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
