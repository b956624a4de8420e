// Records of calls: they are checked, they run again as they were, and observers hear of every call.
#include "testing.h"

#include "ops/record.h"

static Tensor matrix(int64_t rows, int64_t cols, DType dtype) { // of some memory that nothing reads
    return tensor_make((void *)(uintptr_t)4096, dtype, rows, cols, "matrix");
}

static OpRecord linear_record(void) {
    return (OpRecord){.op = OP_LINEAR_FORWARD,
                      .tensor = {matrix(5, 7, DTYPE_F32), matrix(5, 3, DTYPE_F32), matrix(7, 3, DTYPE_F32)}};
}

static void a_call_that_fits_is_accepted(void **state) {
    (void)state;
    OpRecord record = linear_record();
    assert_null(op_check(&record));
    record.tensor[1].stride = 6; // an input may be part of wider rows
    assert_null(op_check(&record));
    record.tensor[3] = matrix(5, 7, DTYPE_F32);
    assert_null(op_check(&record));
}

static void swapped_sizes_types_and_strides_are_refused(void **state) {
    (void)state;
    OpRecord wrong[7];
    for (int i = 0; i < 7; i++)
        wrong[i] = linear_record();
    wrong[0].tensor[2] = matrix(3, 7, DTYPE_F32);  // the weight transposed
    wrong[1].tensor[0] = matrix(7, 5, DTYPE_F32);  // the result transposed
    wrong[2].tensor[1] = matrix(5, 3, DTYPE_BF16); // another type
    wrong[3].tensor[0].stride = 8;                 // a gap in the result
    wrong[4].tensor[3] = matrix(1, 7, DTYPE_F32);  // a residual of another height
    wrong[5].tensor[1] = matrix(4, 3, DTYPE_F32);  // fewer rows in than out
    wrong[6].tensor[2] = TENSOR_NONE;              // no weight
    for (int i = 0; i < 7; i++)
        if (!op_check(&wrong[i])) fail_msg("case %d was accepted", i);
}

// Any two tensors of a call that have different shapes cannot be exchanged.
static void exchanged_arguments_are_refused(void **state) {
    (void)state;
    Attention how = {.seq = 4, .head_dim = 2, .scale = 1};
    OpRecord records[] = {
        linear_record(),
        {.op = OP_LINEAR_BACKWARD_INPUT,
         .tensor = {matrix(5, 3, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(7, 3, DTYPE_F32)}},
        {.op = OP_LINEAR_BACKWARD_WEIGHT,
         .tensor = {matrix(7, 3, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 3, DTYPE_F32)}},
        {.op = OP_ATTENTION_FORWARD,
         .tensor = {matrix(8, 12, DTYPE_F32), matrix(12, 4, DTYPE_F32), matrix(8, 12, DTYPE_F32),
                    matrix(8, 4, DTYPE_F32), matrix(8, 4, DTYPE_F32)},
         .attention = how},
        {.op = OP_SWIGLU_PACKED_BACKWARD,
         .tensor = {matrix(5, 14, DTYPE_BF16), matrix(5, 14, DTYPE_BF16), matrix(5, 7, DTYPE_BF16)}},
        {.op = OP_GROUPED_LINEAR_FORWARD,
         .tensor = {matrix(9, 7, DTYPE_F32), matrix(9, 3, DTYPE_F32), matrix(28, 3, DTYPE_F32),
                    matrix(1, 5, DTYPE_I32)}},
        {.op = OP_CROSS_ENTROPY, .tensor = {matrix(5, 1, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 1, DTYPE_I32)}},
    };
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        if (op_check(&records[i])) fail_msg("%s: %s", op_name(records[i].op), op_check(&records[i]));
        for (int a = 0; a < OP_RECORD_TENSORS; a++)
            for (int b = 0; b < a; b++) {
                OpRecord other = records[i];
                Tensor *ta = &other.tensor[a], *tb = &other.tensor[b], swap = *ta;
                if (!ta->data || !tb->data) continue;
                if (ta->rows == tb->rows && ta->cols == tb->cols && ta->dtype == tb->dtype) continue;
                *ta = *tb, *tb = swap;
                if (!op_check(&other)) fail_msg("%s accepts tensors %d and %d exchanged", op_name(other.op), a, b);
            }
    }
}

static void count_call(void *context, const OpRecord *record) {
    int *counts = context;
    counts[record->op]++;
}

static void observers_hear_of_calls_that_still_run(void **state) {
    (void)state;
    Ops *ops;
    int first[OP_COUNT] = {0}, second[OP_COUNT] = {0};
    float in[3] = {1, 2, 4}, out = 0;
    assert_ok(ops_cpu_create(&ops));
    char *workspace;
    assert_ok(ops->alloc(ops, (void **)&workspace, 1 << 20, "scratch"));
    ops->bind_workspace(ops, workspace, 1 << 20);
    void (*own)(Ops *, Tensor, Tensor, bool) = ops->sum_f32;
    ops_observe(ops, count_call, first);
    ops_observe(ops, count_call, second);
    ops->sum_f32(ops, tensor_make(&out, DTYPE_F32, 1, 1, "sum"), tensor_make(in, DTYPE_F32, 1, 3, "in"), false);
    assert_true(out == 7);
    assert_int_equal(first[OP_SUM_F32], 1);
    assert_int_equal(second[OP_SUM_F32], 1);
    ops->free(ops, workspace, 1 << 20);
    ops_stop_observing(ops);
    ops_check_calls(ops); // as it was made
    assert_true(ops->sum_f32 == own);
    ops_cpu_destroy(ops);
}

static void a_record_runs_as_the_call_did(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    char *workspace;
    assert_ok(ops->alloc(ops, (void **)&workspace, 8 << 20, "scratch"));
    ops->bind_workspace(ops, workspace, 8 << 20);
    float in[6] = {1, 2, 3, 4, 5, 6}, weight[6] = {1, 0, 1, 0, 1, 0}, add[4] = {10, 20, 30, 40}, out[4] = {0};
    OpRecord record = {.op = OP_LINEAR_FORWARD,
                       .tensor = {tensor_make(out, DTYPE_F32, 2, 2, "out"), tensor_make(in, DTYPE_F32, 2, 3, "in"),
                                  tensor_make(weight, DTYPE_F32, 2, 3, "weight"),
                                  tensor_make(add, DTYPE_F32, 2, 2, "add")}};
    op_run(ops, ops, &record);
    const float expected[4] = {14, 22, 40, 45};
    assert_memory_equal(out, expected, sizeof out);
    ops->free(ops, workspace, 8 << 20);
    ops_cpu_destroy(ops);
}

static void costs_count_what_must_move(void **state) {
    (void)state;
    OpRecord record = linear_record();
    OpCost cost = op_cost(&record, -1, 0);
    assert_true(cost.flops == 2.0 * 5 * 3 * 7);
    assert_true(cost.bytes == 4.0 * (5 * 3 + 5 * 7 + 7 * 3));
    record.tensor[3] = matrix(5, 7, DTYPE_F32);
    assert_true(op_cost(&record, -1, 0).bytes == cost.bytes + 4.0 * 5 * 7);
    OpRecord gradient = {.op = OP_LINEAR_BACKWARD_WEIGHT,
                         .tensor = {matrix(7, 3, DTYPE_F32), matrix(5, 7, DTYPE_BF16), matrix(5, 3, DTYPE_BF16)}};
    double once = op_cost(&gradient, -1, 0).bytes;
    assert_true(once == 2.0 * 5 * (7 + 3) + 4.0 * 7 * 3);
    assert_true(op_cost(&gradient, -1, 0.5).bytes == once + 2.0 * 7 * 3); // every second time it is read as well
    gradient.flag = true;
    assert_true(op_cost(&gradient, -1, 0.5).bytes == once + 4.0 * 7 * 3);
    OpRecord grouped = {.op = OP_GROUPED_LINEAR_FORWARD,
                        .tensor = {matrix(9, 7, DTYPE_F32), matrix(9, 3, DTYPE_F32), matrix(28, 3, DTYPE_F32),
                                   matrix(1, 5, DTYPE_I32)}};
    assert_true(op_cost(&grouped, -1, 0).flops == 2.0 * 9 * 3 * 7);
    assert_true(op_cost(&grouped, 6, 0).flops == 2.0 * 6 * 3 * 7); // of the rows in use
    assert_true(op_cost(&grouped, 6, 0).bytes == 4.0 * (6 * (3 + 7) + 4 * 3 * 7));
}

static void every_op_has_a_name_and_a_category(void **state) {
    (void)state;
    double of_ops[OP_COUNT], sums[CATEGORY_COUNT], all = 0;
    for (int i = 0; i < OP_COUNT; i++) {
        assert_true(strlen(op_name((OpId)i)) > 2);
        assert_in_range(op_category((OpId)i), 0, CATEGORY_COUNT - 1);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(op_name((OpId)i), op_name((OpId)k));
        of_ops[i] = i + 1;
    }
    op_sum_categories(of_ops, sums);
    for (int i = 0; i < CATEGORY_COUNT; i++)
        all += sums[i];
    assert_true(all == OP_COUNT * (OP_COUNT + 1) / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fits_is_accepted),
        cmocka_unit_test(swapped_sizes_types_and_strides_are_refused),
        cmocka_unit_test(exchanged_arguments_are_refused),
        cmocka_unit_test(observers_hear_of_calls_that_still_run),
        cmocka_unit_test(a_record_runs_as_the_call_did),
        cmocka_unit_test(costs_count_what_must_move),
        cmocka_unit_test(every_op_has_a_name_and_a_category),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
