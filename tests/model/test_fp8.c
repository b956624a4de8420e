// A model whose products are in FP8: near bf16, the same bits whatever is recomputed, evaluated in bf16, and scales
// that follow the step before.
#include "fp8_models.h"

static unsigned fp8_products(SmallModel which) { // that there are
    return which == SMALL_MOE ? FP8_ALL : FP8_ALL & ~FP8_EXPERTS;
}

typedef struct Small {
    Ops *ops;
    Model *model;
    int32_t ids[TOKENS_MOST], targets[TOKENS_MOST];
    int64_t valid;
} Small;

static void small_open(Small *small, const LayoutRequest *request) {
    assert_ok(ops_create(&small->ops, "cpu"));
    assert_ok(model_create(&small->model, small->ops, request));
    model_init_weights(small->model, 7, true);
    small->valid = small_batch(&small->model->layout, small->ids, small->targets, 3);
}

static void small_close(Small *small) {
    model_destroy(small->model);
    ops_destroy(small->ops);
}

static void small_step(Small *small, int step, StepResult *result) {
    model_step_begin(small->model, small->valid, 1);
    model_micro_step(small->model, small->ids, small->targets, NULL);
    if (step)
        model_optimizer_step(small->model, &(OptimizerStep){.step = step,
                                                            .lr = 1e-3f,
                                                            .beta1 = 0.9f,
                                                            .beta2 = 0.95f,
                                                            .eps = 1e-8f,
                                                            .loss_limit = INFINITY,
                                                            .norm_limit = INFINITY});
    model_step_result(small->model, result);
}

static float *block_copy(const Small *small, const void *device, int64_t count) {
    float *host = xmalloc((size_t)count * sizeof *host);
    small->ops->download(small->ops, host, device, (size_t)count * sizeof *host);
    return host;
}

static float *small_gradients(const Small *small) {
    return block_copy(small, small->model->memory[LAYOUT_GRADIENTS], small->model->layout.element_count);
}

static float *small_scales(const Small *small) {
    Tensor scales = model_const(small->model, CONST_FP8_SCALE);
    return block_copy(small, scales.data, tensor_count(scales));
}

// Every operand of a product is off by at most 2^-4 (e4m3) or 2^-3 (e5m2) of itself, uniformly in between: by rms
// 2^-4 / sqrt(3) = 0.036 and 0.072. A gradient has passed through up to 3 layers of two products forward and two
// backward, and through one of the head each way, each with two such operands, whose errors are independent: sqrt(3 *
// (4 * 0.036^2 + 2 * (0.036^2 + 0.072^2)) + 3 * 0.036^2 + 0.072^2) = 0.25 of its norm at most; less than a hundredth of
// that would mean that nothing was rounded.
static void gradients_are_near_those_of_bf16(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        LayoutRequest plain = fp8_request((SmallModel)which, PRECISION_BF16),
                      fp8 = fp8_request((SmallModel)which, PRECISION_FP8);
        Small one, two;
        StepResult one_result, two_result;
        small_open(&one, &plain);
        small_open(&two, &fp8);
        assert_int_equal(one.model->layout.fp8, 0);
        assert_int_equal(two.model->layout.fp8, fp8_products((SmallModel)which));
        for (int i = 0; i < 2; i++) { // the second step's scales come from the first
            small_step(&one, i ? 0 : 1, &one_result);
            small_step(&two, i ? 0 : 1, &two_result);
            float *want = small_gradients(&one), *got = small_gradients(&two);
            double difference = 0, norm = 0;
            for (int64_t k = 0; k < one.model->layout.element_count; k++) {
                difference += pow((double)got[k] - (double)want[k], 2);
                norm += pow((double)want[k], 2);
            }
            double relative = sqrt(difference / norm);
            assert_true(relative > 0.0025 && relative < 0.25);
            assert_true(fabs(one_result.loss - two_result.loss) < 0.01 * one_result.loss);
            free(want);
            free(got);
        }
        small_close(&one);
        small_close(&two);
    }
}

static double gradient_difference(const LayoutRequest *one, const LayoutRequest *two) {
    Small small[2];
    StepResult result;
    float *gradients[2];
    double difference = 0, norm = 0;
    for (int i = 0; i < 2; i++) {
        small_open(&small[i], i ? two : one);
        small_step(&small[i], 1, &result); // its maxima are the next one's scales
        model_init_weights(small[i].model, 7, true);
        small_step(&small[i], 0, &result);
        gradients[i] = small_gradients(&small[i]);
    }
    for (int64_t k = 0; k < small[0].model->layout.element_count; k++) {
        difference += pow((double)gradients[1][k] - (double)gradients[0][k], 2);
        norm += pow((double)gradients[0][k], 2);
    }
    for (int i = 0; i < 2; i++) {
        free(gradients[i]);
        small_close(&small[i]);
    }
    return sqrt(difference / norm);
}

// The head alone. Its gradients' products have an operand of e5m2 and one of e4m3: 0.081, as above. Forward the error
// is in the logits, of which the gradient takes p (1 - p) of each.
static void the_head_alone_is_near_bf16(void **state) {
    (void)state;
    static const unsigned choices[] = {FP8_HEAD_FORWARD, FP8_HEAD_GRADIENTS, FP8_HEAD};
    for (int i = 0; i < 3 * SMALL_COUNT; i++) {
        SmallModel which = (SmallModel)(i / 3);
        LayoutRequest plain = fp8_request(which, PRECISION_BF16), head = fp8_request(which, PRECISION_FP8);
        head.fp8_off = FP8_ALL & ~choices[i % 3];
        double difference = gradient_difference(&plain, &head);
        assert_true(difference < 0.081 + 0.01 * (i % 3 == 2));
        assert_true(difference > (choices[i % 3] & FP8_HEAD_GRADIENTS ? 0.02 : 1e-4));
    }
}

// Chunks of the tokens are rounded alike; of a weight gradient they are parts of a sum of floats.
static void chunks_of_the_head_add_up(void **state) {
    (void)state;
    LayoutRequest chunks = fp8_request(SMALL_QWEN3, PRECISION_FP8), whole = chunks;
    chunks.fp8_off = whole.fp8_off = FP8_ALL & ~FP8_HEAD;
    whole.logits_rows = TOKENS;
    assert_true(gradient_difference(&whole, &chunks) < 1e-6);
}

static void the_logits_scale_is_the_finest_without_overflow(void **state) {
    (void)state;
    for (int targets = 1; targets < 5000; targets += 7) {
        float most = 1.0f / (float)targets, scale = fp8_dlogits_scale(most);
        int exponent;
        assert_true(frexpf(scale, &exponent) == 0.5f);
        assert_true(most / scale <= E5M2_MAX && most / scale > E5M2_MAX / 2);
    }
    assert_true(fp8_dlogits_scale(0) == 1); // a step without targets
}

// As they are and transposed, on the rank that has the head; the other end of a pipeline, which has a tied embedding
// too, keeps none.
static void the_heads_copies_are_where_the_model_ends(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        LayoutRequest request = fp8_request(i % 2 ? SMALL_QWEN3 : SMALL_LLAMA, PRECISION_FP8);
        request.mesh.pp = i < 2 ? 1 : 2;
        request.rank = i < 4 ? 0 : 1;
        bool ends = i < 2 || i >= 4;
        int64_t bytes[2], temporaries[2], vocab = request.config.vocab, hidden = request.config.hidden;
        for (int with = 0; with < 2; with++) {
            Layout layout;
            request.fp8_off = with ? 0 : FP8_HEAD;
            assert_ok(layout_build(&layout, &request));
            bytes[with] = layout.bytes[LAYOUT_FP8];
            temporaries[with] = 0;
            for (int k = 0; k < layout.activation_count; k++)
                if (!layout.activations[k].kept) temporaries[with] += layout.activations[k].bytes;
            layout_free(&layout);
        }
        assert_int_equal(bytes[1] - bytes[0], ends ? 2 * vocab * hidden : 0);
        assert_int_equal(temporaries[1] - temporaries[0], ends ? 16 * (vocab + 2 * hidden) : 0);
    }
}

static void recompute_policies_give_identical_gradients_and_scales(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        float *first = NULL, *first_scales = NULL;
        for (int recompute = 0; recompute < 3; recompute++) {
            LayoutRequest request = fp8_request((SmallModel)which, PRECISION_FP8);
            request.recompute = (Recompute)recompute;
            Small small;
            StepResult result;
            small_open(&small, &request);
            small_step(&small, 1, &result);
            small_step(&small, 2, &result);
            float *gradients = small_gradients(&small), *scales = small_scales(&small);
            if (!first) {
                first = gradients, first_scales = scales;
            } else {
                assert_memory_equal(first, gradients, (size_t)small.model->layout.element_count * sizeof(float));
                assert_memory_equal(first_scales, scales,
                                    (size_t)tensor_count(model_const(small.model, CONST_FP8_SCALE)) * sizeof(float));
                free(gradients);
                free(scales);
            }
            small_close(&small);
        }
        free(first);
        free(first_scales);
    }
}

// Full recompute keeps no activations that could pay for copies of the experts' weights.
static void copies_that_are_kept_and_copies_for_one_product_give_the_same_bits(void **state) {
    (void)state;
    float *gradients[2];
    for (int i = 0; i < 2; i++) {
        LayoutRequest request = fp8_request(SMALL_MOE, PRECISION_FP8);
        request.config.hidden = 16;
        request.config.experts = 2;
        request.seq = TOKENS_MOST / 2; // 128 rows
        request.recompute = i ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        Small small;
        StepResult result;
        small_open(&small, &request);
        assert_int_equal(small.model->layout.fp8_passing, i);
        small_step(&small, 1, &result);
        small_step(&small, 2, &result);
        gradients[i] = small_gradients(&small);
        if (i)
            assert_memory_equal(gradients[0], gradients[1], (size_t)small.model->layout.element_count * sizeof(float));
        small_close(&small);
    }
    free(gradients[0]);
    free(gradients[1]);
}

static void evaluation_is_that_of_bf16(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        double losses[2];
        for (int i = 0; i < 2; i++) {
            LayoutRequest request = fp8_request((SmallModel)which, i ? PRECISION_FP8 : PRECISION_BF16);
            Small small;
            StepResult result;
            small_open(&small, &request);
            model_step_begin(small.model, small.valid, 1);
            model_eval_step(small.model, small.ids, small.targets, NULL);
            model_step_result(small.model, &result);
            losses[i] = result.loss;
            small_close(&small);
        }
        assert_true(losses[0] == losses[1]);
    }
}

// Scales are powers of two; after a step those of every layer have moved away from where all begin alike, and
// those of the weights put the largest of them into the upper half of the format's range.
static void scales_follow_the_step_before(void **state) {
    (void)state;
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    Small small;
    StepResult result;
    small_open(&small, &request);
    small_step(&small, 1, &result);
    small_step(&small, 0, &result);
    float *scales = small_scales(&small);
    int64_t cols = request.config.layers * FP8_SCALE_STEP;
    for (int64_t i = 0; i < FP8_SLOTS * cols; i += FP8_SCALE_STEP) {
        int exponent;
        assert_true(scales[i] > 0 && frexpf(scales[i], &exponent) == 0.5f);
        bool used = i / cols != FP8_HEAD_IN || i % cols == 0; // the head has one
        if (i / cols < FP8_FIRST_GRADIENT && used) assert_true(scales[i] < FP8_FIRST_SCALE);
    }
    const LayoutParam *param = layout_param(&small.model->layout, PARAM_DOWN, 1);
    float *weights = xmalloc((size_t)param->count * sizeof *weights), most = 0;
    model_read_param(small.model, param, MODEL_WEIGHTS, weights);
    for (int64_t i = 0; i < param->count; i++)
        most = fmaxf(most, fabsf(bf16_to_f32(bf16_split_weight(weights[i]))));
    float largest = most / scales[FP8_W_DOWN * cols + FP8_SCALE_STEP];
    assert_true(largest <= E4M3_MAX && largest > E4M3_MAX / 2);
    free(weights);
    free(scales);
    small_close(&small);
}

static void sizes_that_tensor_cores_cannot_take_stay_in_bf16(void **state) {
    (void)state;
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    unsigned all = fp8_products(SMALL_LLAMA);
    assert_int_equal(layout_fp8(&request), all);
    request.config.ffn = 72;
    assert_int_equal(layout_fp8(&request), all & ~FP8_MLP);
    request.fp8_off = FP8_O_WEIGHT;
    assert_int_equal(layout_fp8(&request), all & ~(FP8_MLP | FP8_O_WEIGHT));
    request.config.vocab = 104;
    assert_int_equal(layout_fp8(&request), all & ~(FP8_MLP | FP8_O_WEIGHT | FP8_HEAD));
    request.config.vocab = 112;
    request.logits_rows = 24;
    assert_int_equal(layout_fp8(&request), all & ~(FP8_MLP | FP8_O_WEIGHT | FP8_HEAD));
    request.logits_rows = 64; // all tokens at once
    assert_int_equal(layout_fp8(&request), all & ~(FP8_MLP | FP8_O_WEIGHT));
    request.seq = 21;
    assert_int_equal(layout_fp8(&request), 0);
    request.seq = 16;
    request.inference = true;
    assert_int_equal(layout_fp8(&request), 0);
    request = fp8_request(SMALL_MOE, PRECISION_FP8);
    request.config.moe_ffn = 24;
    assert_int_equal(layout_fp8(&request), FP8_ALL & ~FP8_EXPERTS);
}

// What one of a layer's products uses, the others' choices do not change: every subset trains.
static void any_choice_of_products_trains(void **state) {
    (void)state;
    for (unsigned off = 0; off <= FP8_ALL; off += 11) {
        LayoutRequest request = fp8_request(off % 2 ? SMALL_MOE : SMALL_QWEN3, PRECISION_FP8);
        request.fp8_off = off;
        request.recompute = (Recompute)(off % 3);
        Small small;
        StepResult result[3];
        small_open(&small, &request);
        for (int i = 0; i < 3; i++)
            small_step(&small, i + 1, &result[i]);
        assert_true(result[2].loss < result[0].loss && !result[2].skipped);
        small_close(&small);
    }
}

// ZeRO 2 keeps every weight as it is and transposed (but of experts with few rows the copy that is read next); ZeRO 3,
// which has them for one layer at a time, the copy that the next product reads, and of layers that are in FP8
// altogether the pieces that it gathers.
static void zero_3_has_room_for_one_copy_and_its_pieces(void **state) {
    (void)state;
    for (int choice = 0; choice < 3; choice++) {
        LayoutRequest request = fp8_request(choice == 1 ? SMALL_MOE : SMALL_LLAMA, PRECISION_FP8);
        request.fp8_off = choice == 2 ? FP8_QKV_INPUT : 0; // the gradient needs the weights in bf16
        request.mesh.dp = 2;
        int64_t all = 0, largest = 0, pieces = 0, expert = 0;
        for (int zero = 2; zero <= 3; zero++) {
            Layout layout;
            request.mesh.zero = zero;
            assert_ok(layout_build(&layout, &request));
            for (int i = 0; zero == 2 && i < layout.param_count; i++) {
                const LayoutParam *param = &layout.params[i];
                int64_t bytes = (param->count + 255) / 256 * 256;
                if (!param->expert) all += ((param->fp8_rows >= 0) + (param->fp8_cols >= 0)) * bytes;
                if (param->expert && bytes > expert) expert = bytes;
                if (param->fp8_rows >= 0) largest = bytes > largest ? bytes : largest;
            }
            for (int i = 0; i < layout.unit_count; i++) {
                const LayoutUnit *unit = &layout.units[i];
                bool travels = zero == 3 && choice != 2 && unit->layer >= 0 &&
                               (unit->expert || !request.config.sparse[unit->layer]); // beside experts is a router
                assert_int_equal(unit->fp8 >= 0, travels);
                pieces += travels ? (unit->count / 2 + 255) / 256 * 256 : 0;
            }
            assert_int_equal(layout.bytes[LAYOUT_FP8], zero == 2 ? all + expert : largest + pieces);
            layout_free(&layout);
        }
        assert_true(largest > 0 && (pieces > 0) == (choice != 2));
    }
}

// Copies in FP8 share their place with what attention is lent while it runs backward. It has three quarters of what it
// has in bf16, as the head's chunks do (3 bytes a logit of half as many), and the memory is less in all.
static void attention_keeps_its_scratch_and_memory_is_saved(void **state) {
    (void)state;
    int64_t scratch[2], total[2];
    for (int i = 0; i < 2; i++) {
        LayoutRequest request = {.mesh = MESH_SINGLE,
                                 .micro_batch = 8,
                                 .seq = 4096,
                                 .device = DEVICE_CUDA,
                                 .precision = i ? PRECISION_FP8 : PRECISION_BF16};
        Layout layout;
        assert_ok(model_preset(&request.config, "llama-3.2-1b"));
        assert_ok(layout_build(&layout, &request));
        scratch[i] = layout_activation(&layout, ACT_SCRATCH, -1, STEP_BACKWARD)->bytes;
        total[i] = layout.total_bytes;
        layout_free(&layout);
    }
    assert_true(4 * scratch[1] >= 3 * scratch[0]);
    assert_true((double)total[1] < 0.9 * (double)total[0]);
}

// Where the head's gradients are in FP8 there are half as many logits at a time, and there alone: not where it was left
// out, or where a size does not fit.
static void fewer_logits_at_a_time_where_the_head_is_in_fp8(void **state) {
    (void)state;
    LayoutRequest request = {
        .mesh = MESH_SINGLE, .micro_batch = 4, .seq = 4096, .device = DEVICE_CUDA, .precision = PRECISION_FP8};
    assert_ok(model_preset(&request.config, "llama-3.2-1b"));
    assert_int_equal(layout_logits_rows(&request), 4096);
    LayoutRequest other = request;
    other.fp8_off = FP8_HEAD_FORWARD;
    assert_int_equal(layout_logits_rows(&other), 4096);
    other.fp8_off = FP8_HEAD_GRADIENTS;
    assert_int_equal(layout_logits_rows(&other), 8192);
    other = request;
    other.precision = PRECISION_BF16;
    assert_int_equal(layout_logits_rows(&other), 8192);
    other = request;
    other.config.vocab += 8;
    assert_int_equal(layout_logits_rows(&other), 8192);
    other = request;
    other.inference = true;
    assert_int_equal(layout_logits_rows(&other), 8192);
    other = request;
    other.seq = 4097; // no product is in FP8
    assert_int_equal(layout_logits_rows(&other), 8192);
    other = request;
    other.logits_rows = 1000;
    assert_int_equal(layout_logits_rows(&other), 1000);
}

// Experts with many rows keep copies of their weights, those with few make one at a time: either way FP8 takes no more
// memory than bf16.
static void experts_take_no_more_memory_than_in_bf16(void **state) {
    (void)state;
    static const struct {
        const char *preset;
        int layers, micro_batch;
        bool passing;
    } cases[] = {{"qwen3-moe-500m", 12, 8, false}, {"qwen3-30b-a3b", 4, 4, true}};
    for (int i = 0; i < 2; i++) {
        int64_t total[2];
        for (int fp8 = 0; fp8 < 2; fp8++) {
            LayoutRequest request = {.mesh = MESH_SINGLE,
                                     .micro_batch = cases[i].micro_batch,
                                     .seq = 4096,
                                     .device = DEVICE_CUDA,
                                     .precision = fp8 ? PRECISION_FP8 : PRECISION_BF16};
            Layout layout;
            assert_ok(model_preset(&request.config, cases[i].preset));
            request.config.layers = cases[i].layers;
            assert_ok(layout_build(&layout, &request));
            assert_int_equal((layout.fp8 & FP8_EXPERTS) != 0, fp8);
            assert_int_equal(layout.fp8_passing, fp8 && cases[i].passing);
            total[fp8] = layout.total_bytes;
            layout_free(&layout);
        }
        assert_true(total[1] <= total[0]);
    }
}

// The gradients of a step may be many times those of the step before, whose maxima give the scales: here 32 times, as
// there are as many fewer targets. Of the norm, rounding to e5m2 may take an eighth.
static void gradients_that_grow_from_step_to_step_are_not_cut_off(void **state) {
    (void)state;
    for (int which = SMALL_LLAMA; which < SMALL_COUNT; which++) {
        StepResult results[2];
        for (int fp8 = 0; fp8 < 2; fp8++) {
            LayoutRequest request = fp8_request((SmallModel)which, fp8 ? PRECISION_FP8 : PRECISION_BF16);
            Small small;
            small_open(&small, &request);
            for (int step = 0; step < 2; step++) {
                model_step_begin(small.model, step ? small.valid : 32 * small.valid, 1);
                model_micro_step(small.model, small.ids, small.targets, NULL);
                model_optimizer_step(small.model, &(OptimizerStep){.step = step + 1,
                                                                   .lr = 0, // the same weights
                                                                   .beta1 = 0.9f,
                                                                   .beta2 = 0.95f,
                                                                   .eps = 1e-8f,
                                                                   .loss_limit = INFINITY,
                                                                   .norm_limit = INFINITY});
                model_step_result(small.model, &results[fp8]);
            }
            small_close(&small);
        }
        assert_true(fabs(results[1].grad_norm / results[0].grad_norm - 1) < 0.125);
    }
}

// Scales of the step before are for a step that was refused for its experts' rows, which only experts of many ranks
// can be.
static void scales_of_the_step_before_are_where_a_step_may_be_refused(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        LayoutRequest request = fp8_request(i ? SMALL_MOE : SMALL_LLAMA, PRECISION_FP8);
        Layout layout;
        request.config.experts = i ? 4 : 0;
        request.mesh.dp = 2;
        request.mesh.ep = i > 1 ? 2 : 1;
        request.expert_headroom = i > 2 ? 64 : 1;
        assert_ok(layout_build(&layout, &request));
        int64_t bytes = layout.constants[CONST_FP8_SCALE].bytes;
        assert_true(bytes > 0);
        assert_int_equal(layout.constants[CONST_FP8_BEFORE].bytes, i == 2 ? bytes : 0);
        layout_free(&layout);
    }
}

static void scale_sublayers(Model *model, float factor) { // what attention and MLP hand on, by their last weights
    for (int i = 0; i < model->layout.param_count; i++) {
        const LayoutParam *param = &model->layout.params[i];
        if (param->id != PARAM_O && param->id != PARAM_DOWN && param->id != PARAM_EXPERT_DOWN) continue;
        float *host = xmalloc((size_t)param->count * sizeof *host);
        model_read_param(model, param, MODEL_WEIGHTS, host);
        for (int64_t k = 0; k < param->count; k++)
            host[k] *= factor;
        model_write_param(model, param, MODEL_WEIGHTS, host);
        free(host);
    }
}

// Weights of zero, and of 1e-38 so that they and the gradients through them are below what a scale's inverse reaches.
// Gradients are those of bf16 from the third step on, when the maxima are those of weights that have moved (the bound:
// of three layers, above), and the loss is that of bf16. Gradients that were 1e-38 are cut off in the step after, so
// that those weights lose an update: the loss is at most a step behind.
static void weights_next_to_zero_train(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SMALL_COUNT; i++) {
        StepResult results[2][3];
        for (int fp8 = 0; fp8 < 2; fp8++) {
            LayoutRequest request = fp8_request((SmallModel)(i / 2), fp8 ? PRECISION_FP8 : PRECISION_BF16);
            Small small;
            small_open(&small, &request);
            scale_sublayers(small.model, i % 2 ? 0x1p-121f : 0);
            for (int step = 0; step < 3; step++)
                small_step(&small, step + 1, &results[fp8][step]);
            small_close(&small);
        }
        for (int step = 0; step < 3; step++) {
            assert_false(results[1][step].skipped);
            bool behind = i % 2 && step && results[1][step].loss < results[0][step - 1].loss;
            assert_true(behind || fabs(results[1][step].loss / results[0][step].loss - 1) < 0.01);
        }
        assert_true(fabs(results[1][2].grad_norm / results[0][2].grad_norm - 1) < 0.25);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_near_those_of_bf16),
        cmocka_unit_test(the_head_alone_is_near_bf16),
        cmocka_unit_test(chunks_of_the_head_add_up),
        cmocka_unit_test(the_logits_scale_is_the_finest_without_overflow),
        cmocka_unit_test(the_heads_copies_are_where_the_model_ends),
        cmocka_unit_test(recompute_policies_give_identical_gradients_and_scales),
        cmocka_unit_test(copies_that_are_kept_and_copies_for_one_product_give_the_same_bits),
        cmocka_unit_test(evaluation_is_that_of_bf16),
        cmocka_unit_test(scales_follow_the_step_before),
        cmocka_unit_test(sizes_that_tensor_cores_cannot_take_stay_in_bf16),
        cmocka_unit_test(gradients_that_grow_from_step_to_step_are_not_cut_off),
        cmocka_unit_test(scales_of_the_step_before_are_where_a_step_may_be_refused),
        cmocka_unit_test(weights_next_to_zero_train),
        cmocka_unit_test(any_choice_of_products_trains),
        cmocka_unit_test(zero_3_has_room_for_one_copy_and_its_pieces),
        cmocka_unit_test(attention_keeps_its_scratch_and_memory_is_saved),
        cmocka_unit_test(fewer_logits_at_a_time_where_the_head_is_in_fp8),
        cmocka_unit_test(experts_take_no_more_memory_than_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
