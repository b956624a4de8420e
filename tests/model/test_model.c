// The model as a whole: recompute policies, memory, threads, accumulation, documents, generation.
#include "small_models.h"

#include "model/generate.h"
#include "model/transformer.h"
#include "ops/record.h"

// Gradients of all parameters after one micro-step, malloc'd.
static float *gradients_of(const LayoutRequest *request, int64_t *count, StepResult *result) {
    Ops *ops;
    Model *model;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, request));
    model_init_weights(model, 7, true);
    int32_t ids[64], targets[64];
    int64_t valid = small_batch(&model->layout, ids, targets, 3);
    model_step_begin(model, valid, 1);
    model_micro_step(model, ids, targets, NULL);
    *count = model->layout.element_count;
    float *gradients = xmalloc((size_t)*count * sizeof(float));
    ops->download(ops, gradients, model->memory[LAYOUT_GRADIENTS], (size_t)*count * sizeof(float));
    model_step_result(model, result);
    model_destroy(model);
    ops_destroy(ops);
    return gradients;
}

static void test_recompute_policies_give_identical_gradients(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            float *first = NULL;
            StepResult first_result;
            for (int recompute = 0; recompute < 3; recompute++) {
                LayoutRequest request = small_request((SmallModel)which);
                request.precision = (Precision)precision;
                request.recompute = (Recompute)recompute;
                int64_t count;
                StepResult result;
                float *gradients = gradients_of(&request, &count, &result);
                if (!first) {
                    first = gradients;
                    first_result = result;
                    continue;
                }
                assert_memory_equal(first, gradients, (size_t)count * sizeof(float));
                assert_true(result.loss == first_result.loss && result.loss_aux == first_result.loss_aux);
                free(gradients);
            }
            free(first);
        }
    }
}

static void test_allocated_bytes_are_the_predicted_bytes(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        for (int recompute = 0; recompute < 3; recompute++) {
            for (int precision = 0; precision < 4; precision++) {
                LayoutRequest request = small_request((SmallModel)which);
                request.recompute = (Recompute)recompute;
                request.precision = (Precision)precision;
                Layout layout;
                assert_ok(layout_build(&layout, &request));
                Ops *ops;
                Model *model;
                int64_t current, peak;
                assert_ok(ops_create(&ops, "cpu"));
                assert_ok(model_create(&model, ops, &request));
                model_init_weights(model, 1, false);
                int32_t ids[64], targets[64];
                for (int step = 1; step <= 2; step++) {
                    int64_t valid = small_batch(&layout, ids, targets, (uint64_t)step);
                    model_step_begin(model, valid, 1);
                    model_micro_step(model, ids, targets, NULL);
                    model_optimizer_step(model, &(OptimizerStep){.step = step,
                                                                 .lr = 1e-3f,
                                                                 .beta1 = 0.9f,
                                                                 .beta2 = 0.95f,
                                                                 .eps = 1e-8f,
                                                                 .loss_limit = INFINITY,
                                                                 .norm_limit = INFINITY});
                }
                ops_cpu_allocated(ops, &current, &peak);
                assert_int_equal(peak, layout.total_bytes);
                assert_int_equal(current, layout.total_bytes);
                model_destroy(model);
                ops_cpu_allocated(ops, &current, &peak);
                assert_int_equal(current, 0);
                ops_destroy(ops);
                layout_free(&layout);
            }
        }
    }
}

// An allocator that only counts: every preset, whatever its size, asks for exactly the bytes that the layout predicts.
static int64_t counted_bytes;

static Status counting_alloc(Ops *ops, void **memory, size_t bytes, const char *what) {
    (void)ops, (void)what;
    counted_bytes += (int64_t)bytes;
    *memory = &counted_bytes; // never touched: the table below does nothing
    return NULL;
}

static void counting_free(Ops *ops, void *memory, size_t bytes) {
    (void)ops, (void)memory;
    counted_bytes -= (int64_t)bytes;
}

static void ignore_workspace(Ops *ops, void *memory, size_t bytes) {
    (void)ops, (void)memory, (void)bytes;
}

static void ignore_zero(Ops *ops, Tensor out) {
    (void)ops, (void)out;
}

static void ignore_upload(Ops *ops, void *out, const void *host, size_t bytes) {
    (void)ops, (void)out, (void)host, (void)bytes;
}

static void test_every_preset_asks_for_the_predicted_bytes(void **state) {
    (void)state;
    Ops ops = {.alloc = counting_alloc,
               .free = counting_free,
               .bind_workspace = ignore_workspace,
               .zero = ignore_zero,
               .upload = ignore_upload};
    for (int preset = 0; preset < model_preset_count(); preset++) {
        for (int variant = 0; variant < 3 * 4 * 2; variant++) {
            LayoutRequest request = {.mesh = MESH_SINGLE,
                                     .micro_batch = 2,
                                     .seq = 512,
                                     .threads = 4,
                                     .recompute = (Recompute)(variant % 3),
                                     .precision = (Precision)(variant / 3 % 4),
                                     .device = variant / 12 ? DEVICE_CUDA : DEVICE_CPU};
            assert_ok(model_preset(&request.config, model_preset_name(preset)));
            Layout layout;
            Model *model;
            assert_ok(layout_build(&layout, &request));
            assert_ok(model_create(&model, &ops, &request));
            assert_int_equal(counted_bytes, layout.total_bytes);
            model_destroy(model);
            assert_int_equal(counted_bytes, 0);
            layout_free(&layout);
        }
    }
}

// Tokens of each expert in a step of the given micro-batches, [sparse layers, experts], and its load.
static int64_t expert_totals(Model *model, const int32_t *ids, int from, int to, int32_t *totals, float *load) {
    int64_t tokens = model->layout.tokens, bytes = model->layout.constants[CONST_EXPERT_TOTAL].bytes;
    StepResult result;
    model_step_begin(model, tokens, to - from);
    for (int i = from; i < to; i++)
        model_micro_step(model, ids + i * tokens, ids + i * tokens, NULL);
    model_step_result(model, &result);
    model_expert_load(model, load);
    model->ops->download(model->ops, totals, model_const(model, CONST_EXPERT_TOTAL).data, (size_t)bytes);
    return bytes / (int64_t)sizeof *totals;
}

static void note_bias_counts(void *context, const OpRecord *record) {
    if (record->op == OP_MOE_BIAS_UPDATE) *(void **)context = record->tensor[1].data;
}

static void test_expert_load_and_bias_follow_all_micro_batches(void **state) {
    (void)state;
    LayoutRequest request = small_request(SMALL_MOE);
    Ops *ops;
    Model *model;
    assert_ok(ops_cpu_create(&ops));
    assert_ok(model_create(&model, ops, &request));
    model->router_bias = true;
    model_init_weights(model, 1, false);
    int64_t tokens = model->layout.tokens;
    int32_t *ids = xmalloc(3 * (size_t)tokens * sizeof *ids), totals[4][64];
    float load[4][64];
    for (int64_t i = 0; i < 3 * tokens; i++) // each micro-batch has words of its own, so that its experts differ
        ids[i] = (int32_t)(i / tokens * 7);
    int64_t count = 0;
    for (int i = 0; i < 3; i++)
        count = expert_totals(model, ids, i, i + 1, totals[i], load[i]);
    assert_int_equal(count, 2 * request.config.experts);
    expert_totals(model, ids, 0, 3, totals[3], load[3]);
    bool differ = false;
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(totals[3][i], totals[0][i] + totals[1][i] + totals[2][i]);
        differ |= totals[3][i] != 3 * totals[2][i];
    }
    assert_true(differ); // the last micro-batch alone would give something else
    for (int layer = 0; layer < 2; layer++) {
        int32_t most = 0, sum = 0;
        for (int e = 0; e < request.config.experts; e++) {
            int32_t here = totals[3][layer * request.config.experts + e];
            most = here > most ? here : most;
            sum += here;
        }
        float expected = (float)most * (float)request.config.experts / (float)sum;
        assert_true(fabsf(load[3][layer * MOE_LOAD_STATS + MOE_LOAD_MAX] / expected - 1) < 1e-6f);
    }
    void *counts = NULL;
    ops_observe(ops, note_bias_counts, &counts);
    model_update_router_bias(model, 1e-3f);
    assert_ptr_equal(counts, model_const(model, CONST_EXPERT_TOTAL).data);
    free(ids);
    model_destroy(model);
    ops_destroy(ops);
}

static void test_any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 7};
    for (int which = 0; which < SMALL_COUNT; which++) {
        float *first = NULL;
        for (int i = 0; i < 4; i++) {
            threads_set(counts[i]);
            LayoutRequest request = small_request((SmallModel)which);
            int64_t count;
            StepResult result;
            float *gradients = gradients_of(&request, &count, &result);
            if (first) assert_memory_equal(first, gradients, (size_t)count * sizeof(float));
            if (first)
                free(gradients);
            else
                first = gradients;
        }
        free(first);
    }
    threads_set(0);
}

// One micro-batch of 4 rows, or 2 of 2, or 4 of 1: the same mean loss and the same gradient, up to the order of sums.
// The difference of two float sums of the same n terms is at most about sqrt(n) * 2^-24 relative; a whole gradient,
// built from sums within sums, is given 2e-6 relative L2.
static void test_accumulation_does_not_change_the_step(void **state) {
    (void)state;
    enum { ROWS = 4, SEQ = 21 };
    for (int which = 0; which < SMALL_MOE; which++) { // the balancing loss of MoE is per micro-batch by definition
        float *first = NULL;
        double first_loss = 0;
        for (int rows = ROWS; rows >= 1; rows /= 2) {
            LayoutRequest request = small_request((SmallModel)which);
            request.micro_batch = ROWS;
            Layout whole;
            assert_ok(layout_build(&whole, &request));
            int32_t ids[ROWS * SEQ], targets[ROWS * SEQ];
            int64_t valid = small_batch(&whole, ids, targets, 5);
            layout_free(&whole);
            request.micro_batch = rows;
            Ops *ops;
            Model *model;
            assert_ok(ops_create(&ops, "cpu"));
            assert_ok(model_create(&model, ops, &request));
            model_init_weights(model, 7, false);
            model_step_begin(model, valid, ROWS / rows);
            for (int at = 0; at < ROWS; at += rows)
                model_micro_step(model, ids + at * SEQ, targets + at * SEQ, NULL);
            StepResult result;
            model_step_result(model, &result);
            int64_t count = model->layout.element_count;
            float *gradients = xmalloc((size_t)count * sizeof(float));
            ops->download(ops, gradients, model->memory[LAYOUT_GRADIENTS], (size_t)count * sizeof(float));
            model_destroy(model);
            ops_destroy(ops);
            if (!first) {
                first = gradients;
                first_loss = result.loss;
                continue;
            }
            double difference = 0, size = 0;
            for (int64_t i = 0; i < count; i++) {
                difference += pow((double)gradients[i] - first[i], 2);
                size += pow((double)first[i], 2);
            }
            assert_true(sqrt(difference / size) < 2e-6);
            assert_true(fabs(result.loss / first_loss - 1) < 1e-6);
            free(gradients);
        }
        free(first);
    }
}

typedef struct TwoSteps {
    float *weights; // [element_count]
    float norms[2];
} TwoSteps;

// Two optimizer steps of two micro-batches each; with `poison`, every gradient is NaN before each step.
static TwoSteps two_steps(const LayoutRequest *request, bool poison) {
    Ops *ops;
    Model *model;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, request));
    model_init_weights(model, 7, false);
    const Layout *layout = &model->layout;
    TwoSteps result = {.weights = xmalloc((size_t)layout->element_count * sizeof(float))};
    for (int step = 1; step <= 2; step++) {
        for (int i = 0; i < layout->param_count && poison; i++) {
            float *nan = xmalloc((size_t)layout->params[i].count * sizeof *nan);
            for (int64_t k = 0; k < layout->params[i].count; k++)
                nan[k] = NAN;
            model_write_param(model, &layout->params[i], MODEL_GRADIENTS, nan);
            free(nan);
        }
        int32_t ids[2][64], targets[2][64];
        int64_t valid = small_batch(layout, ids[0], targets[0], (uint64_t)step);
        valid += small_batch(layout, ids[1], targets[1], (uint64_t)step + 9);
        model_step_begin(model, valid, 2);
        for (int i = 0; i < 2; i++)
            model_micro_step(model, ids[i], targets[i], NULL);
        model_optimizer_step(model, &(OptimizerStep){.step = step,
                                                     .lr = 1e-3f,
                                                     .beta1 = 0.9f,
                                                     .beta2 = 0.95f,
                                                     .eps = 1e-8f,
                                                     .max_norm = 1,
                                                     .loss_limit = INFINITY,
                                                     .norm_limit = INFINITY});
        StepResult done;
        model_step_result(model, &done);
        assert_true(isfinite(done.grad_norm) && !done.skipped);
        result.norms[step - 1] = (float)done.grad_norm;
    }
    ops->download(ops, result.weights, model->memory[LAYOUT_WEIGHTS], (size_t)layout->element_count * sizeof(float));
    model_destroy(model);
    ops_destroy(ops);
    return result;
}

static void test_gradients_of_the_step_before_do_not_matter(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        for (int few = 0; few < 2; few++) { // few: 4 choices of 5 experts, so that one has no rows
            LayoutRequest request = small_request((SmallModel)which);
            if (few) request.micro_batch = 1, request.seq = 2;
            Layout layout;
            assert_ok(layout_build(&layout, &request));
            TwoSteps clean = two_steps(&request, false), poisoned = two_steps(&request, true);
            assert_memory_equal(clean.norms, poisoned.norms, sizeof clean.norms);
            assert_memory_equal(clean.weights, poisoned.weights, (size_t)layout.element_count * sizeof(float));
            free(clean.weights);
            free(poisoned.weights);
            layout_free(&layout);
        }
    }
}

// Two documents packed into one row with masks give the losses of each alone. Positions differ, but rotary attention
// only sees distances.
static void test_packed_documents_do_not_see_each_other(void **state) {
    (void)state;
    enum { SEQ = 24, CUT = 9 };
    LayoutRequest request = small_request(SMALL_LLAMA);
    request.micro_batch = 1;
    request.seq = SEQ;
    request.documents = true;
    Ops *ops;
    Model *model;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, &request));
    model_init_weights(model, 7, false);
    int32_t ids[SEQ], targets[SEQ], doc_start[SEQ], masked[SEQ];
    small_batch(&model->layout, ids, targets, 11);
    double sums[3];
    for (int part = 0; part < 3; part++) { // both; only the second's targets; the second alone at the row's start
        int shift = part == 2 ? CUT : 0;
        int32_t moved[SEQ];
        for (int i = 0; i < SEQ; i++) {
            int from = i + shift < SEQ ? i + shift : SEQ - 1;
            moved[i] = ids[from];
            bool second = i + shift >= CUT && i + shift < SEQ;
            masked[i] = part == 0 || second ? targets[from] : -1;
            doc_start[i] = part < 2 && i >= CUT ? CUT : 0;
        }
        if (part == 1) // change the first document: the second must not notice
            for (int i = 0; i < CUT; i++)
                moved[i] = (moved[i] + 1) % 97;
        model_step_begin(model, 1, 1);
        model_eval_step(model, moved, masked, doc_start);
        StepResult result;
        model_step_result(model, &result);
        sums[part] = result.loss;
    }
    assert_true(sums[0] > sums[1]);
    assert_true(fabs(sums[1] / sums[2] - 1) < 1e-5);
    model_destroy(model);
    ops_destroy(ops);
}

static void test_generation_gives_the_logits_of_the_full_forward_pass(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        LayoutRequest request = small_request((SmallModel)which);
        request.micro_batch = 1;
        request.config.vocab = 2000; // so that the logits take the place of all other temporaries
        Ops *ops;
        Model *model;
        Generator *generator;
        assert_ok(ops_create(&ops, "cpu"));
        assert_ok(model_create(&model, ops, &request));
        model_init_weights(model, 7, false);
        assert_ok(generator_create(&generator, model, request.seq));
        int32_t ids[64], targets[64];
        small_batch(&model->layout, ids, targets, 3);
        int vocab = request.config.vocab;
        float *full = xmalloc((size_t)(request.seq * vocab) * sizeof(float)),
              *step = xmalloc((size_t)vocab * sizeof(float));
        model_step_begin(model, 1, 1);
        model_eval_step(model, ids, targets, NULL);
        transformer_logits(model, full);
        generator_feed(generator, ids, 5, step); // a prompt, then token by token
        for (int at = 5;; at++) {
            for (int i = 0; i < vocab; i++)
                assert_true(fabsf(step[i] - full[(at - 1) * vocab + i]) < 1e-4f * (1 + fabsf(step[i])));
            if (at == request.seq) break;
            generator_feed(generator, ids + at, 1, step);
        }
        free(full);
        free(step);
        generator_free(generator);
        model_destroy(model);
        ops_destroy(ops);
    }
}

static void test_master_weights_survive_writing_and_reading(void **state) {
    (void)state;
    LayoutRequest request = small_request(SMALL_LLAMA);
    request.precision = PRECISION_BF16;
    Ops *ops;
    Model *model;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, &request));
    const LayoutParam *param = layout_param(&model->layout, PARAM_EMBEDDING, -1);
    size_t bytes = (size_t)param->count * sizeof(float);
    float *in = xmalloc(bytes), *out = xmalloc(bytes);
    for (int64_t i = 0; i < param->count; i++) { // any bit pattern of a finite float, ties of bf16 rounding among them
        uint32_t bits = (uint32_t)rng_bits(1, RNG_STREAM_TEST, (uint64_t)i);
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
        if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xbfffffffu;
        memcpy(&in[i], &bits, 4);
    }
    model_write_param(model, param, MODEL_WEIGHTS, in);
    model_read_param(model, param, MODEL_WEIGHTS, out);
    assert_memory_equal(in, out, bytes);
    free(in);
    free(out);
    model_destroy(model);
    ops_destroy(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_policies_give_identical_gradients),
        cmocka_unit_test(test_allocated_bytes_are_the_predicted_bytes),
        cmocka_unit_test(test_every_preset_asks_for_the_predicted_bytes),
        cmocka_unit_test(test_expert_load_and_bias_follow_all_micro_batches),
        cmocka_unit_test(test_any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(test_accumulation_does_not_change_the_step),
        cmocka_unit_test(test_gradients_of_the_step_before_do_not_matter),
        cmocka_unit_test(test_packed_documents_do_not_see_each_other),
        cmocka_unit_test(test_generation_gives_the_logits_of_the_full_forward_pass),
        cmocka_unit_test(test_master_weights_survive_writing_and_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
