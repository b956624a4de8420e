// A model in fp16: near fp32 where the loss is scaled, the same bits whatever is recomputed, gradients that overflow
// refuse the step, and a float master that keeps every weight.
#include "small_models.h"

enum { TOKENS = 42 };
#define SCALE 0x1p10f

typedef struct Small {
    Ops *ops;
    Model *model;
    int32_t ids[TOKENS], targets[TOKENS];
    int64_t valid;
} Small;

static void small_open(Small *small, const LayoutRequest *request, float scale) {
    assert_ok(ops_create(&small->ops, "cpu"));
    assert_ok(model_create(&small->model, small->ops, request));
    model_init_weights(small->model, 7, true);
    small->model->loss_scale = scale;
    small->model->z_loss_coef = 1;
    small->valid = small_batch(&small->model->layout, small->ids, small->targets, 3);
}

static void small_close(Small *small) {
    model_destroy(small->model);
    ops_destroy(small->ops);
}

static LayoutRequest small_precise(int which, Precision precision) {
    LayoutRequest request = small_request((SmallModel)which);
    request.precision = precision;
    request.config.aux_coef = which == SMALL_MOE ? 1 : 0; // the objective's other parts must be scaled as well
    return request;
}

static void small_step(Small *small, StepResult *result) {
    model_step_begin(small->model, small->valid, 1);
    model_micro_step(small->model, small->ids, small->targets, NULL);
    model_optimizer_step(small->model, &(OptimizerStep){.step = 1,
                                                        .lr = 1e-2f,
                                                        .beta1 = 0.9f,
                                                        .beta2 = 0.95f,
                                                        .eps = 1e-8f,
                                                        .loss_limit = INFINITY,
                                                        .norm_limit = INFINITY});
    model_step_result(small->model, result);
}

static float *small_gradients(const Small *small) {
    size_t bytes = (size_t)small->model->layout.element_count * sizeof(float);
    float *host = xmalloc(bytes);
    small->ops->download(small->ops, host, small->model->memory[LAYOUT_GRADIENTS], bytes);
    return host;
}

// Relative difference of what two models have as gradients, each without its scale.
static double gradients_apart(const Small *one, const Small *two) {
    float *a = small_gradients(one), *b = small_gradients(two);
    double a_scale = one->model->loss_scale > 0 ? (double)one->model->loss_scale : 1;
    double b_scale = two->model->loss_scale > 0 ? (double)two->model->loss_scale : 1, apart = 0, norm = 0;
    for (int64_t i = 0; i < one->model->layout.element_count; i++) {
        double want = (double)a[i] / a_scale, got = (double)b[i] / b_scale;
        apart += (got - want) * (got - want);
        norm += want * want;
    }
    free(a);
    free(b);
    return sqrt(apart / norm);
}

// What is stored is off by at most 2^-11 of itself, by rms 2^-11 / sqrt(3) = 2.8e-4. A gradient has passed through up
// to 3 layers of some 8 stored tensors forward and 8 backward, whose errors are independent: sqrt(3 * 16) * 2.8e-4 =
// 2e-3, and twice that is allowed; a hundredth of one rounding would mean that nothing was rounded.
#define APART_MOST  4e-3
#define APART_LEAST 2.8e-6

static void gradients_are_near_those_of_fp32(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        LayoutRequest plain = small_precise(which, PRECISION_FP32), half = small_precise(which, PRECISION_FP16);
        Small one, two;
        StepResult one_result, two_result;
        small_open(&one, &plain, 0);
        small_open(&two, &half, SCALE);
        small_step(&one, &one_result);
        small_step(&two, &two_result);
        double apart = gradients_apart(&one, &two);
        print_message("model %d: gradients %.2g apart\n", which, apart);
        assert_true(apart > APART_LEAST && apart < APART_MOST);
        assert_true(fabs(one_result.grad_norm - two_result.grad_norm) < APART_MOST * one_result.grad_norm);
        assert_true(fabs(one_result.loss - two_result.loss) < 1e-3 * one_result.loss);
        assert_false(two_result.skipped);
        small_close(&one);
        small_close(&two);
    }
}

// Of a batch of four million tokens a target's gradient is 2^-22 and smaller: most of them are below half of the
// smallest f16, 2^-25, where they have no scale.
static void without_a_scale_small_gradients_are_lost(void **state) {
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        LayoutRequest plain = small_precise(SMALL_LLAMA, PRECISION_FP32),
                      half = small_precise(SMALL_LLAMA, PRECISION_FP16);
        Small one, two;
        StepResult result;
        small_open(&one, &plain, 0);
        small_open(&two, &half, scaled ? 0x1p22f : 0);
        one.valid = two.valid = 1 << 22;
        small_step(&one, &result);
        small_step(&two, &result);
        double apart = gradients_apart(&one, &two);
        assert_true(scaled ? apart < APART_MOST : apart > 0.2);
        small_close(&one);
        small_close(&two);
    }
}

static void recompute_policies_give_identical_gradients(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        Small first, small;
        StepResult result;
        LayoutRequest request = small_precise(which, PRECISION_FP16);
        small_open(&first, &request, SCALE);
        small_step(&first, &result);
        for (int recompute = 1; recompute < 3; recompute++) {
            request.recompute = (Recompute)recompute;
            small_open(&small, &request, SCALE);
            small_step(&small, &result);
            assert_true(gradients_apart(&first, &small) == 0);
            small_close(&small);
        }
        small_close(&first);
    }
}

static void gradients_that_overflow_refuse_the_step(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        LayoutRequest request = small_precise(which, PRECISION_FP16);
        Small small;
        StepResult result;
        small_open(&small, &request, 0x1p40f);
        size_t bytes = (size_t)small.model->layout.bytes[LAYOUT_MASTER];
        float *before = xmalloc(bytes), *after = xmalloc(bytes);
        small.ops->download(small.ops, before, small.model->memory[LAYOUT_MASTER], bytes);
        small_step(&small, &result);
        small.ops->download(small.ops, after, small.model->memory[LAYOUT_MASTER], bytes);
        assert_true(result.skipped && result.overflow && isfinite(result.loss));
        assert_memory_equal(before, after, bytes);
        small.model->loss_scale = SCALE; // and nothing of it is left
        small_step(&small, &result);
        assert_false(result.skipped || result.overflow);
        small.ops->download(small.ops, after, small.model->memory[LAYOUT_MASTER], bytes);
        assert_memory_not_equal(before, after, bytes);
        free(before);
        free(after);
        small_close(&small);
    }
}

static void the_master_keeps_every_float_and_the_weight_is_it_rounded(void **state) {
    (void)state;
    LayoutRequest request = small_precise(SMALL_LLAMA, PRECISION_FP16);
    Small small;
    small_open(&small, &request, SCALE);
    const LayoutParam *param = layout_param(&small.model->layout, PARAM_DOWN, 1);
    size_t count = (size_t)param->count;
    float *in = xmalloc(count * sizeof *in), *out = xmalloc(count * sizeof *out),
          *snapped = xmalloc(count * sizeof *out);
    uint16_t *weights = xmalloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++)
        in[i] =
            (float)(rng_normal(5, RNG_STREAM_TEST, i) * pow(2, (double)(i % 60) - 40)); // f16's subnormals among them
    model_write_param(small.model, param, MODEL_WEIGHTS, in);
    model_read_param(small.model, param, MODEL_WEIGHTS, out);
    assert_memory_equal(in, out, count * sizeof *in);
    ModelSnapshot snapshot = {0};
    assert_ok(model_snapshot(small.model, &snapshot, true));
    model_snapshot_read(&snapshot, &small.model->layout, param, MODEL_WEIGHTS, 0, param->count, snapped);
    assert_memory_equal(in, snapped, count * sizeof *in);
    small.ops->download(small.ops, weights, model_weight(small.model, PARAM_DOWN, 1).data, count * sizeof *weights);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(weights[i], f16_from_f32(in[i]));
    model_snapshot_free(&snapshot);
    free(in), free(out), free(snapped), free(weights);
    small_close(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_near_those_of_fp32),
        cmocka_unit_test(without_a_scale_small_gradients_are_lost),
        cmocka_unit_test(recompute_policies_give_identical_gradients),
        cmocka_unit_test(gradients_that_overflow_refuse_the_step),
        cmocka_unit_test(the_master_keeps_every_float_and_the_weight_is_it_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
