// Ranks agree on the kernels that one of them has measured: started alone, and on 3 ranks under mpirun. The measurement
// here is made up: every rank would choose its own number.
#include "fp8_models.h"
#include "model/agree.h"

static World *world;

typedef struct Work {
    TuneFile *tune;
    int races; // held on this rank
} Work;

static void ask(Work *work, const char *key) {
    char own[16];
    if (tune_get(work->tune, key) || tune_held(work->tune)) return;
    snprintf(own, sizeof own, "%d", 100 + world->rank);
    tune_put(work->tune, key, own);
    work->races++;
}

// All ranks use one kernel, and those after the first another.
static void rehearse(void *context) {
    ask(context, "of all");
    if (world->rank > 0) ask(context, "of the others");
}

static Work agree(const char *known) {
    Work work = {.tune = tune_open(NULL, "GPU")};
    if (known) tune_take(work.tune, known);
    tune_agree(work.tune, world, rehearse, &work);
    return work;
}

static void all_ranks_take_what_the_first_in_need_has_measured(void **state) {
    (void)state;
    Work work = agree(NULL);
    assert_string_equal(tune_get(work.tune, "of all"), "100");
    if (world->size > 1) assert_string_equal(tune_get(work.tune, "of the others"), "101");
    assert_int_equal(work.races, world->rank < 2);
    assert_true(tune_held(work.tune)); // from here on, nobody chooses alone
    tune_close(work.tune);
}

static void what_rank_0_knows_is_not_measured_again(void **state) {
    (void)state;
    // As after a resume: rank 0 has read the run's file. What other ranks have in theirs does not count.
    Work work = agree(world->rank == 0 ? "GPU\tof all\t7\nGPU\tof the others\t8\n" : "GPU\tof all\t1\nGPU\tstray\t1\n");
    assert_string_equal(tune_get(work.tune, "of all"), "7");
    assert_string_equal(tune_get(work.tune, "of the others"), "8");
    if (world->rank > 0) assert_null(tune_get(work.tune, "stray"));
    assert_int_equal(work.races, 0);
    tune_close(work.tune);
}

// ---- a model --------------------------------------------------------------------------------------------------------

static void forget(Ops *ops) {
    (void)ops;
}

enum { STEPS = 3 };

typedef struct Curve {
    double loss[STEPS], norm[STEPS];
} Curve;

static float largest_noted(const Model *model) {
    Tensor amax = model_const(model, CONST_FP8_AMAX);
    float *values = xmalloc((size_t)tensor_count(amax) * sizeof *values), most = 0;
    model->ops->download(model->ops, values, amax.data, (size_t)tensor_count(amax) * sizeof *values);
    for (int64_t i = 0; i < tensor_count(amax); i++)
        most = fmaxf(most, values[i]);
    free(values);
    return most;
}

// Of a run whose ranks agree before this step, as at its start or after it was resumed; never: of none.
static Curve curve_of(int agree_before) {
    Ops *ops;
    Model *model;
    Curve curve = {0};
    int32_t ids[TOKENS_MOST], targets[TOKENS_MOST];
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, &request));
    model_init_weights(model, 7, true);
    int64_t valid = small_batch(&model->layout, ids, targets, 3);
    TuneFile *tune = tune_open(NULL, "GPU");
    ops->tune = tune, ops->forget_choices = forget;
    for (int i = 0; i < STEPS; i++) {
        StepResult result;
        if (i == agree_before) assert_ok(model_agree_kernels(model, world));
        assert_int_equal(model->fp8_scaled, i > 0); // else the first step would not look for its own
        assert_true(largest_noted(model) == 0);
        model_step_begin(model, valid, 1);
        model_micro_step(model, ids, targets, NULL);
        model_optimizer_step(model, &(OptimizerStep){.step = i + 1,
                                                     .lr = 1e-2f,
                                                     .beta1 = 0.9f,
                                                     .beta2 = 0.95f,
                                                     .eps = 1e-8f,
                                                     .loss_limit = INFINITY,
                                                     .norm_limit = INFINITY});
        model_step_result(model, &result);
        curve.loss[i] = result.loss, curve.norm[i] = result.grad_norm;
    }
    ops->tune = NULL, ops->forget_choices = NULL;
    tune_close(tune);
    model_destroy(model);
    ops_destroy(ops);
    return curve;
}

static void what_is_rehearsed_leaves_no_trace_in_fp8(void **state) {
    (void)state;
    Curve wanted = curve_of(-1);
    for (int step = 0; step < STEPS - 1; step++) {
        Curve got = curve_of(step);
        assert_memory_equal(&got, &wanted, sizeof got);
    }
}

int main(void) {
    assert_ok(world_open(&world, NULL));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_take_what_the_first_in_need_has_measured),
        cmocka_unit_test(what_rank_0_knows_is_not_measured_again),
        cmocka_unit_test(what_is_rehearsed_leaves_no_trace_in_fp8),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) world_abort(world, status_runtime("%d tests failed on rank %d", failed, world->rank));
    world_close(world);
    return 0;
}
