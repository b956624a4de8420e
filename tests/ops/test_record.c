// Records of calls: they are checked, they run again as they were, and observers hear of every call.
#include "testing.h"

#include "ops/record.h"

static Tensor matrix(int64_t rows, int64_t cols, DType dtype) { // of some memory that nothing reads
    return tensor_make((void *)(uintptr_t)4096, dtype, rows, cols, "matrix");
}

static Tensor matrix_at(uintptr_t address, int64_t rows, int64_t cols, DType dtype) {
    return tensor_make((void *)address, dtype, rows, cols, "matrix");
}

// 5 rows, 3 columns in, 7 hidden ones. What is read stands behind what is written.
static OpRecord swiglu_fp8_record(void) {
    Tensor one = matrix(1, 1, DTYPE_F32);
    return (OpRecord){.op = OP_LINEAR_SWIGLU_FP8_FORWARD,
                      .tensor = {matrix_at(1000, 5, 7, DTYPE_E4M3), one, matrix_at(1035, 5, 14, DTYPE_E4M3), one,
                                 matrix_at(2000, 5, 14, DTYPE_BF16), matrix_at(1105, 5, 3, DTYPE_E4M3),
                                 matrix_at(3000, 14, 3, DTYPE_E4M3), one, one, one, one}};
}

// Of four experts that have nine rows.
static OpRecord grouped_swiglu_fp8_record(void) {
    Tensor one = matrix(1, 1, DTYPE_F32);
    return (OpRecord){.op = OP_GROUPED_SWIGLU_FP8_FORWARD,
                      .tensor = {matrix_at(1000, 9, 7, DTYPE_E4M3), one, matrix_at(1063, 9, 14, DTYPE_E4M3), one,
                                 matrix_at(2000, 9, 14, DTYPE_BF16), matrix_at(1189, 9, 3, DTYPE_E4M3),
                                 matrix_at(3000, 56, 3, DTYPE_E4M3), one, one, one, one, matrix(9, 1, DTYPE_F32),
                                 matrix(1, 5, DTYPE_I32)}};
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
        {.op = OP_GROUPED_LINEAR_BACKWARD_INPUT,
         .tensor = {matrix(9, 3, DTYPE_F32), matrix(9, 7, DTYPE_F32), matrix(28, 3, DTYPE_F32),
                    matrix(1, 5, DTYPE_I32)}},
        {.op = OP_GROUPED_LINEAR_BACKWARD_WEIGHT, // 6 tokens, 9 rows
         .tensor = {matrix(28, 3, DTYPE_F32), matrix(9, 7, DTYPE_F32), matrix(6, 3, DTYPE_F32), matrix(1, 5, DTYPE_I32),
                    matrix(9, 1, DTYPE_I32), matrix(9, 3, DTYPE_F32)}},
        swiglu_fp8_record(),
        grouped_swiglu_fp8_record(),
        {.op = OP_EMBEDDING_FORWARD,
         .tensor = {matrix(5, 3, DTYPE_BF16), matrix(5, 1, DTYPE_I32), matrix(7, 3, DTYPE_BF16)},
         .integer = {14}},
        {.op = OP_EMBEDDING_BACKWARD,
         .tensor = {matrix(7, 3, DTYPE_F32), matrix(5, 3, DTYPE_BF16), matrix(5, 1, DTYPE_I32)},
         .integer = {14}},
        {.op = OP_CROSS_ENTROPY_STATS,
         .tensor = {matrix(5, 4, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 1, DTYPE_I32)},
         .integer = {14, 20}},
        {.op = OP_CROSS_ENTROPY_APPLY,
         .tensor = {matrix(5, 1, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 1, DTYPE_I32), matrix(15, 4, DTYPE_F32),
                    matrix(1, 1, DTYPE_F32)},
         .integer = {14, 20}},
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

// It may be written while the input is still read; maxima may be absent, scales not.
static void hidden_in_fp8_stands_apart_from_the_input(void **state) {
    (void)state;
    OpRecord wrong[6], right = swiglu_fp8_record();
    right.tensor[1] = right.tensor[3] = TENSOR_NONE;
    assert_null(op_check(&right));
    for (int i = 0; i < 6; i++)
        wrong[i] = right;
    wrong[0].tensor[0].data = (void *)1105;        // the input's place
    wrong[1].tensor[0].data = (void *)1119;        // and its last byte
    wrong[2].tensor[2].data = (void *)1036;        // its first one
    wrong[3].tensor[5].dtype = DTYPE_E5M2;         // a gradient
    wrong[4].tensor[9] = TENSOR_NONE;              // no scale
    wrong[5].tensor[4] = matrix(5, 14, DTYPE_F32); // not what SwiGLU reads
    for (int i = 0; i < 6; i++)
        if (!op_check(&wrong[i])) fail_msg("case %d was accepted", i);
}

static void hidden_of_experts_in_fp8_stands_apart_from_the_rows(void **state) {
    (void)state;
    OpRecord wrong[7], right = grouped_swiglu_fp8_record();
    right.tensor[1] = right.tensor[3] = TENSOR_NONE;
    assert_null(op_check(&right));
    for (int i = 0; i < 7; i++)
        wrong[i] = right;
    wrong[0].tensor[0].data = (void *)1189;         // the place of the rows
    wrong[1].tensor[0].data = (void *)1215;         // and their last byte
    wrong[2].tensor[2].data = (void *)1064;         // their first one
    wrong[3].tensor[5].dtype = DTYPE_E5M2;          // gradients
    wrong[4].tensor[11] = TENSOR_NONE;              // no weights of rows
    wrong[5].tensor[6] = matrix(14, 3, DTYPE_E4M3); // the weights of one expert
    wrong[6].tensor[4] = matrix(9, 14, DTYPE_F32);  // not what SwiGLU reads
    for (int i = 0; i < 7; i++)
        if (!op_check(&wrong[i])) fail_msg("case %d was accepted", i);
}

static void shares_of_a_vocabulary_that_do_not_fit_are_refused(void **state) {
    (void)state;
    OpRecord embedding = {.op = OP_EMBEDDING_BACKWARD,
                          .tensor = {matrix(7, 3, DTYPE_F32), matrix(5, 3, DTYPE_F32), matrix(5, 1, DTYPE_I32)}};
    OpRecord apply = {.op = OP_CROSS_ENTROPY_APPLY,
                      .tensor = {matrix(5, 1, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 1, DTYPE_I32),
                                 matrix(10, 4, DTYPE_F32), matrix(1, 1, DTYPE_F32)},
                      .integer = {7, 10}};
    OpRecord stats = {.op = OP_CROSS_ENTROPY_STATS,
                      .tensor = {matrix(5, 4, DTYPE_F32), matrix(5, 7, DTYPE_F32), matrix(5, 1, DTYPE_I32)},
                      .integer = {14, 10}}; // all padding
    assert_null(op_check(&embedding));
    assert_null(op_check(&apply));
    assert_null(op_check(&stats));
    OpRecord wrong[] = {embedding, embedding, apply, apply, apply, stats, stats};
    wrong[0].integer[0] = -7;
    wrong[1].integer[0] = INT32_MAX - 3;           // ids beyond int32
    wrong[2].tensor[3] = matrix(9, 4, DTYPE_F32);  // no whole number of ranks
    wrong[3].tensor[3] = matrix(10, 3, DTYPE_F32); // a figure too few
    wrong[4].integer[0] = -7;
    wrong[5].tensor[0] = matrix(10, 4, DTYPE_F32); // of two ranks
    wrong[6].integer[1] = 0;                       // no vocabulary
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!op_check(&wrong[i])) fail_msg("case %zu was accepted", i);
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

typedef struct Around {
    int before, after, inside; // inside: of the calls, those that were made by another op
} Around;

static void note_before(void *context, const OpRecord *record) {
    Around *around = context;
    (void)record;
    around->inside += around->before > around->after;
    around->before++;
}

static void note_after(void *context, const OpRecord *record) {
    Around *around = context;
    (void)record;
    around->after++;
}

static void one_observer_of_several_ends_alone(void **state) {
    (void)state;
    Ops *ops;
    int counts[OP_COUNT] = {0};
    Around around = {0};
    float in[4] = {1, 2, 3, 4}, weight[8] = {1, 0, 0, 1, 1, 1, 0, 1}, out[8];
    Tensor gate_hidden = tensor_make(out, DTYPE_F32, 2, 4, "gate_hidden"), row = tensor_make(in, DTYPE_F32, 2, 2, "in");
    assert_ok(ops_cpu_create(&ops));
    char *workspace;
    assert_ok(ops->alloc(ops, (void **)&workspace, 8 << 20, "scratch"));
    ops->bind_workspace(ops, workspace, 8 << 20);
    ops_observe(ops, count_call, counts);
    ops_observe_both(ops, note_before, note_after, &around);
    ops->linear_swiglu_forward(ops, gate_hidden, row, tensor_make(weight, DTYPE_F32, 4, 2, "weight"));
    assert_int_equal(around.before, around.after);
    assert_int_equal(around.before, 3); // itself, and the two that the CPU runs it as
    assert_int_equal(around.inside, 2);
    ops_stop_observer(ops, &around);
    ops->zero(ops, gate_hidden);
    assert_int_equal(around.before, 3);
    assert_int_equal(counts[OP_ZERO], 1);
    ops_stop_observer(ops, counts);
    ops->zero(ops, gate_hidden);
    assert_int_equal(counts[OP_ZERO], 1);
    ops->free(ops, workspace, 8 << 20);
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

// Two ranks' shares through the recording functions of an observed table: their numbers arrive.
static void recorded_shares_of_a_vocabulary_run_as_told(void **state) {
    (void)state;
    Ops *ops;
    int counts[OP_COUNT] = {0};
    assert_ok(ops_cpu_create(&ops));
    ops_observe(ops, count_call, counts);
    int32_t ids[2] = {1, 3}; // of four, and two more that are padding
    float weight[3] = {5, 6, 7}, out[2] = {-1, -1}, dweight[3] = {0, 0, 0};
    float logits[2][3] = {{0, 0, 900}, {900, 0, 0}}, stats[2][SPLIT_STATS], losses[2], one = 1;
    Tensor t = tensor_make(ids, DTYPE_I32, 2, 1, "ids"), o = tensor_make(out, DTYPE_F32, 2, 1, "out");
    ops->embedding_forward(ops, o, t, tensor_make(weight, DTYPE_F32, 3, 1, "weight"), 3);
    assert_true(out[0] == 0 && out[1] == 5);
    out[0] = 8;
    ops->embedding_backward(ops, tensor_make(dweight, DTYPE_F32, 3, 1, "dweight"), o, t, 1);
    assert_true(dweight[0] == 8 && dweight[1] == 0 && dweight[2] == 5);
    // Columns 2 to 4 of four: the last one is padding. The second row's target is column 1 of them.
    Tensor x = tensor_make(logits, DTYPE_F32, 2, 3, "logits"),
           s = tensor_make(stats, DTYPE_F32, 2, SPLIT_STATS, "stats");
    ops->cross_entropy_stats(ops, s, x, t, 2, 4);
    assert_true(stats[0][SPLIT_MAX] == 0 && stats[0][SPLIT_SUM] == 2 && stats[0][SPLIT_HERE] == 0);
    assert_true(stats[1][SPLIT_MAX] == 900 && stats[1][SPLIT_SUM] == 1 && stats[1][SPLIT_HERE] == 1);
    ops->cross_entropy_apply(ops, tensor_make(losses, DTYPE_F32, 2, 1, "losses"), x, t, s,
                             tensor_make(&one, DTYPE_F32, 1, 1, "scale"), 2, 4);
    const float gradient[2][3] = {{0.5f, 0.5f, 0}, {1, -1, 0}};
    assert_true(losses[1] == 900);
    assert_memory_equal(logits, gradient, sizeof gradient);
    assert_int_equal(counts[OP_CROSS_ENTROPY_STATS] + counts[OP_CROSS_ENTROPY_APPLY], 2);
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
    // Of 5 tokens: each is read once, and its number for every row.
    grouped.tensor[1] = matrix(5, 3, DTYPE_F32), grouped.tensor[4] = matrix(9, 1, DTYPE_I32);
    assert_true(op_cost(&grouped, -1, 0).flops == 2.0 * 9 * 3 * 7);
    assert_true(op_cost(&grouped, 6, 0).bytes == 4.0 * (5 * 3 + 6 + 6 * 7 + 4 * 3 * 7));
    OpRecord of_weights = {.op = OP_GROUPED_LINEAR_BACKWARD_WEIGHT,
                           .tensor = {matrix(28, 3, DTYPE_F32), matrix(9, 7, DTYPE_BF16), matrix(5, 3, DTYPE_BF16),
                                      matrix(1, 5, DTYPE_I32), matrix(9, 1, DTYPE_I32)}};
    assert_true(op_cost(&of_weights, -1, 0).flops == 2.0 * 9 * 7 * 3);
    assert_true(op_cost(&of_weights, 6, 0).bytes == 2.0 * (6 * 7 + 5 * 3) + 4.0 * (6 + 28 * 3));
    OpRecord fp8 = swiglu_fp8_record(); // gate and up in bf16 need not leave
    assert_true(op_cost(&fp8, -1, 0).flops == 2.0 * 5 * 3 * 14);
    assert_true(op_cost(&fp8, -1, 0).bytes == 5 * 7 + 5 * 14 + 5 * 3 + 14 * 3);
}

// Four experts, six of nine rows in use, of five tokens; 3 columns in, 7 hidden ones.
static void costs_of_experts_swiglu_are_those_of_the_product_and_what_goes_past_it(void **state) {
    (void)state;
    Tensor hidden = matrix(9, 7, DTYPE_BF16), both = matrix(9, 14, DTYPE_BF16), rows = matrix(9, 3, DTYPE_BF16);
    Tensor offsets = matrix(1, 5, DTYPE_I32), weights = matrix(9, 1, DTYPE_F32);
    OpRecord forward = {.op = OP_GROUPED_SWIGLU_FORWARD,
                        .tensor = {hidden, both, rows, matrix(56, 3, DTYPE_BF16), offsets, weights}};
    assert_true(op_cost(&forward, -1, 0).flops == 2.0 * 9 * 3 * 14);
    assert_true(op_cost(&forward, 6, 0).bytes == 2.0 * (6 * (3 + 14 + 7) + 4 * 3 * 14));
    OpRecord backward = {.op = OP_GROUPED_SWIGLU_BACKWARD,
                         .tensor = {both, hidden, weights, both, rows, matrix(12, 7, DTYPE_BF16), offsets, weights}};
    assert_true(op_cost(&backward, -1, 0).flops == 2.0 * 9 * 3 * 7);
    assert_true(op_cost(&backward, 6, 0).bytes == 2.0 * (6 * (3 + 14 + 14 + 7) + 4 * 3 * 7));
    forward.tensor[2] = matrix(5, 3, DTYPE_BF16), forward.tensor[6] = matrix(9, 1, DTYPE_I32);
    forward.tensor[7] = rows;
    assert_true(op_cost(&forward, 6, 0).bytes == 2.0 * (5 * 3 + 6 * (14 + 7) + 4 * 3 * 14) + 4.0 * 6);
    assert_null(op_check(&forward));
    assert_null(op_check(&backward));
    backward.tensor[2] = TENSOR_NONE;
    assert_non_null(op_check(&backward));
    forward.tensor[5] = TENSOR_NONE;
    assert_non_null(op_check(&forward));
    OpRecord fp8 = grouped_swiglu_fp8_record();
    assert_true(op_cost(&fp8, -1, 0).flops == 2.0 * 9 * 3 * 14);
    assert_true(fabs(op_cost(&fp8, 6, 0).flops - 2.0 * 6 * 3 * 14) < 1e-9);
    assert_true(fabs(op_cost(&fp8, 6, 0).bytes - (6 * (7 + 14 + 3) + 56 * 3)) < 1e-9);
}

static double vector_work(OpId op, Tensor first, Tensor second, double expert_rows) {
    OpRecord record = {.op = op, .tensor = {first, second}};
    return op_vector_work(&record, expert_rows);
}

static void vector_work_is_of_elements_and_grows_with_conversions(void **state) {
    (void)state;
    static const OpId ops[] = {OP_ADD,
                               OP_ADD_RMSNORM_FORWARD,
                               OP_ADD_RMSNORM_BACKWARD,
                               OP_QK_ROPE_FORWARD,
                               OP_QK_ROPE_BACKWARD,
                               OP_SWIGLU_FORWARD,
                               OP_SWIGLU_BACKWARD,
                               OP_SWIGLU_PACKED_FORWARD,
                               OP_SWIGLU_PACKED_BACKWARD,
                               OP_CROSS_ENTROPY,
                               OP_CROSS_ENTROPY_STATS,
                               OP_MOE_SUM};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        Tensor one = matrix(4, 8, DTYPE_F32), two = matrix(8, 8, DTYPE_F32), half = matrix(4, 8, DTYPE_BF16);
        double once = vector_work(ops[i], one, one, -1);
        assert_true(once >= 32);
        assert_true(vector_work(ops[i], two, two, -1) == 2 * once);
        assert_true(vector_work(ops[i], half, half, -1) > once);
    }
    Tensor rows = matrix(9, 8, DTYPE_BF16), both = matrix(9, 16, DTYPE_BF16);
    double all = vector_work(OP_SWIGLU_FORWARD, rows, both, -1);
    assert_true(vector_work(OP_SWIGLU_FORWARD, rows, both, 3) == all / 3); // of the rows in use
    assert_true(vector_work(OP_LINEAR_SWIGLU_FORWARD, both, rows, -1) == 0);
    assert_true(vector_work(OP_MOE_GATHER, rows, rows, -1) == 0);
    OpRecord loss = {.op = OP_CROSS_ENTROPY, .tensor = {matrix(4, 1, DTYPE_F32), matrix(4, 64, DTYPE_F32)}};
    double alone = op_vector_work(&loss, -1);
    loss.tensor[3] = matrix(1, 1, DTYPE_F32);
    assert_true(op_vector_work(&loss, -1) > 1.9 * alone); // the gradient takes the exponentials again
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
        cmocka_unit_test(hidden_in_fp8_stands_apart_from_the_input),
        cmocka_unit_test(hidden_of_experts_in_fp8_stands_apart_from_the_rows),
        cmocka_unit_test(shares_of_a_vocabulary_that_do_not_fit_are_refused),
        cmocka_unit_test(observers_hear_of_calls_that_still_run),
        cmocka_unit_test(one_observer_of_several_ends_alone),
        cmocka_unit_test(a_record_runs_as_the_call_did),
        cmocka_unit_test(recorded_shares_of_a_vocabulary_run_as_told),
        cmocka_unit_test(costs_count_what_must_move),
        cmocka_unit_test(costs_of_experts_swiglu_are_those_of_the_product_and_what_goes_past_it),
        cmocka_unit_test(vector_work_is_of_elements_and_grows_with_conversions),
        cmocka_unit_test(every_op_has_a_name_and_a_category),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
