// The CPU table apart from arithmetic: creation by name, memory and its accounts, fetches, marks, profile, graphs.
#include "oracle.h"

#include "base/threads.h"
#include "ops/record.h"

static void devices_are_chosen_by_name(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    assert_int_equal(ops->kind, DEVICE_CPU);
    assert_int_equal(ops->gpu, -1);
    assert_int_equal(ops->row_align, 1);
    ops_destroy(ops);
    assert_error(ops_create(&ops, "tpu"), "tpu");
    assert_null(ops);
    assert_error(ops_create(&ops, "cuda:x"), "cuda:x");
    if (!ops_cuda_available()) {
        assert_ok(ops_create(&ops, "auto"));
        assert_int_equal(ops->kind, DEVICE_CPU);
        ops_destroy(ops);
    }
    ops_destroy(NULL);
}

static void a_gpu_is_named_by_its_number(void **state) {
    (void)state;
    assert_int_equal(device_ordinal("cuda:0"), 0);
    assert_int_equal(device_ordinal("cuda:12"), 12);
    static const char *const others[] = {"cuda", "cpu", "auto", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:1024"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (device_ordinal(others[i]) != -1) fail_msg("%s names a GPU", others[i]);
}

static void every_function_of_the_table_is_there(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    ops_stop_observing(ops); // which checked builds do, and a function for every op with it
    void *first = (char *)ops + offsetof(Ops, alloc), *last = (char *)ops + offsetof(Ops, adamw);
    for (void **function = first; (void *)function <= last; function++)
        assert_non_null(*function);
    ops_cpu_destroy(ops);
}

static void memory_is_aligned_and_counted(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    void *a, *b;
    int64_t now, peak;
    assert_ok(ops->alloc(ops, &a, 1000, "a"));
    assert_ok(ops->alloc(ops, &b, 9 << 20, "b"));
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((uintptr_t)b % 256, 0);
    ops_cpu_allocated(ops, &now, &peak);
    assert_int_equal(now, 1000 + (9 << 20));
    ops->free(ops, b, 9 << 20);
    ops_cpu_allocated(ops, &now, &peak);
    assert_int_equal(now, 1000);
    assert_int_equal(ops->memory_own(ops), 1000);
    assert_int_equal(peak, 1000 + (9 << 20));
    ops->free(ops, a, 1000);
    ops->free(ops, NULL, 0);
    assert_true(ops->memory_total(ops) > 0 && ops->memory_free(ops) > 0);
    assert_true(ops->memory_free(ops) <= ops->memory_total(ops));
    ops_cpu_destroy(ops);
}

static void memory_that_cannot_be_had_is_an_error(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    void *memory;
    assert_error(ops->alloc(ops, &memory, SIZE_MAX - 10, "the optimizer"), "the optimizer");
#ifndef __SANITIZE_ADDRESS__ // whose allocator ends the program instead
    assert_error(ops->alloc(ops, &memory, (size_t)1 << 60, "the optimizer"), "the optimizer");
#endif
    int64_t now, peak;
    ops_cpu_allocated(ops, &now, &peak);
    assert_int_equal(peak, 0);
    ops_cpu_destroy(ops);
}

static void bytes_move_as_told(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    enum { BYTES = 700001 };
    char *a = xmalloc(BYTES), *b = xmalloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        a[i] = (char)(i * 7);
    ops->copy(ops, b, a, BYTES);
    assert_memory_equal(a, b, BYTES);
    ops->zero(ops, tensor_make(b, DTYPE_U8, 1, BYTES - 1, "bytes"));
    for (int i = 0; i < BYTES - 1; i++)
        assert_int_equal(b[i], 0);
    assert_int_equal(b[BYTES - 1], a[BYTES - 1]);
    Values matrix = values_poison(DTYPE_F32, 3 * 7);
    ops->zero(ops, tensor_rows(view(&matrix, 3, 7), 1, 2));
    for (int i = 0; i < 21; i++) // elements, not bytes: the first row stays
        assert_true(i < 7 ? isnan(((float *)matrix.data)[i]) : ((float *)matrix.data)[i] == 0);
    values_free(&matrix);
    ops->upload(ops, b, a, 100);
    ops->download(ops, b + 100, b, 100);
    assert_memory_equal(b + 100, a, 100);
    // A fetch keeps the value of the moment it was started.
    float value = 3, fetched = 0;
    ops->fetch_start(ops, 7, &value, sizeof value);
    value = 4;
    ops->fetch_start(ops, 0, &value, sizeof value);
    ops->fetch_wait(ops, 7, &fetched, sizeof fetched);
    assert_true(fetched == 3);
    assert_ok(ops->sync(ops));
    free(a), free(b);
    oracle_ops_free(ops);
}

static void time_is_split_by_op(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 256, 0, 1, 8, 0);
    Values in = values_normal(DTYPE_F32, 256 * 256, 1, 0), weight = values_normal(DTYPE_F32, 256 * 256, 1, 0);
    Values out = values_poison(DTYPE_F32, 256 * 256);
    Tensor x = view(&in, 256, 256), w = view(&weight, 256, 256), y = view(&out, 256, 256);
    double ms[OP_COUNT], sum = 0;
    ops->mark(ops, 0);
    ops->profile_start(ops);
    for (int i = 0; i < 10; i++)
        ops->linear_forward(ops, y, x, w, TENSOR_NONE);
    ops->zero(ops, y);
    ops->profile_stop(ops, ms);
    ops->linear_forward(ops, y, x, w, TENSOR_NONE);
    ops->mark(ops, 63);
    assert_true(ms[OP_LINEAR_FORWARD] > 0 && ms[OP_ZERO] > 0);
    for (int i = 0; i < OP_COUNT; i++) {
        if (i != OP_LINEAR_FORWARD && i != OP_ZERO) assert_true(ms[i] == 0);
        sum += ms[i];
    }
    assert_true(sum <= ops->mark_elapsed(ops, 0, 63));
    values_free(&in, &weight, &out);
    oracle_ops_free(ops);
}

static void graphs_are_not_recorded(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    void *graph = &graph;
    float x = 5;
    ops->graph_begin(ops);
    ops->zero(ops, view_floats(&x, 1, 1));
    assert_ok(ops->graph_end(ops, &graph));
    assert_null(graph);
    assert_true(x == 0);
    ops->graph_free(ops, NULL);
    oracle_ops_free(ops);
}

static void workspace_grows_with_the_threads_only_by_their_parts(void **state) {
    (void)state;
    OpsWorkspaceRequest request = {.tokens = 2048,
                                   .batch = 8,
                                   .seq = 256,
                                   .hidden = 256,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .vocab = 4096,
                                   .dtype = DTYPE_BF16,
                                   .threads = 1};
    size_t one = ops_cpu_workspace(&request);
    request.threads = 2;
    size_t two = ops_cpu_workspace(&request);
    request.threads = 3;
    assert_true(two > one);
    assert_int_equal(ops_cpu_workspace(&request) - two, two - one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_chosen_by_name),
        cmocka_unit_test(a_gpu_is_named_by_its_number),
        cmocka_unit_test(every_function_of_the_table_is_there),
        cmocka_unit_test(memory_is_aligned_and_counted),
        cmocka_unit_test(memory_that_cannot_be_had_is_an_error),
        cmocka_unit_test(bytes_move_as_told),
        cmocka_unit_test(time_is_split_by_op),
        cmocka_unit_test(graphs_are_not_recorded),
        cmocka_unit_test(workspace_grows_with_the_threads_only_by_their_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
