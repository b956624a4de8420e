// The first step of a run in FP8, which has no step before it that scales could come from: its weights may be any.
#include "tiny_folder.h"

#include "train/trainer.h"

// Multiplies rows [first, end) of every `every` rows of a weight.
static void scale_rows(Model *model, const LayoutParam *param, int64_t every, int64_t first, int64_t end, float by) {
    int64_t cols = param->shape[param->dims - 1];
    float *host = xmalloc((size_t)param->count * sizeof *host);
    model_read_param(model, param, MODEL_WEIGHTS, host);
    for (int64_t i = 0; i < param->count; i++)
        if (i / cols % every >= first && i / cols % every < end) host[i] *= by;
    model_write_param(model, param, MODEL_WEIGHTS, host);
    free(host);
}

// The same function of the tokens, with what FP8 rounds larger by powers of two: by `norm` what norms hand on, whose
// readers have smaller weights, by `inner` attention's values and SwiGLU's up, whose readers likewise.
static void enlarge_activations(Model *model, float norm, float inner) {
    const ModelConfig *c = &model->layout.request.config;
    int64_t qk = (int64_t)(c->heads + c->kv_heads) * c->head_dim;
    for (int i = 0; i < model->layout.param_count; i++) {
        const LayoutParam *param = &model->layout.params[i];
        int64_t half = param->id == PARAM_GATE_UP ? c->ffn : c->moe_ffn;
        switch (param->id) {
        case PARAM_ATTN_NORM:
        case PARAM_MLP_NORM:
        case PARAM_FINAL_NORM: scale_rows(model, param, 1, 0, 1, norm); break;
        case PARAM_QKV:
            scale_rows(model, param, 1, 0, 1, 1 / norm);
            scale_rows(model, param, INT64_MAX, qk, INT64_MAX, inner);
            break;
        case PARAM_GATE_UP:
        case PARAM_EXPERT_GATE_UP:
            scale_rows(model, param, 1, 0, 1, 1 / norm);
            scale_rows(model, param, 2 * half, half, 2 * half, inner);
            break;
        case PARAM_O:
        case PARAM_DOWN:
        case PARAM_EXPERT_DOWN: scale_rows(model, param, 1, 0, 1, 1 / inner); break;
        case PARAM_ROUTER:
        case PARAM_HEAD: scale_rows(model, param, 1, 0, 1, 1 / norm); break;
        default: break;
        }
    }
}

static const char bf16_run[] = "train.precision=bf16", fp8[] = "train.precision=fp8";

typedef struct First {
    Config config;
    Trainer trainer;
} First;

static void first_open(First *first, const char *precision, const char *arch, const char *recompute, float norm,
                       float inner) {
    char *path = tiny_config(directory, "first.toml", 20, "");
    char *shape = text_format("model.arch=%s", arch);
    bool moe = strcmp(arch, "qwen3_moe") == 0;
    const char *sets[] = {precision,         "model.vocab=272", "model.tie_embeddings=false", shape, recompute,
                          "model.experts=4", "model.top_k=2",   "model.expert_ffn=32"};
    assert_ok(config_read(&first->config, path, sets, moe ? 8 : 5));
    assert_ok(trainer_open(&first->trainer, &first->config));
    Model *model = first->trainer.model;
    if (precision == fp8) assert_int_equal(model->layout.fp8, FP8_ALL & ~(moe ? FP8_MLP : FP8_EXPERTS));
    enlarge_activations(model, norm, inner);
    free(shape);
    free(path);
}

static void first_close(First *first) {
    trainer_close(&first->trainer);
    config_free(&first->config);
}

static MetricsStep first_step(const char *precision, const char *arch, const char *recompute, float norm, float inner) {
    First first;
    MetricsStep metrics;
    bool stopped;
    first_open(&first, precision, arch, recompute, norm, inner);
    assert_ok(trainer_step(&first.trainer, &metrics, NULL, &stopped));
    first_close(&first);
    return metrics;
}

static const char *const archs[] = {"llama", "qwen3", "qwen3_moe"};

// Powers of two commute with every rounding, so that the loss has the same bits, unless something was beyond a scale's
// range: of the scales of a fresh model what is above 28 or below 2^-14.
static void what_norms_hand_on_is_in_range_whatever_their_weights(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        MetricsStep plain = first_step(fp8, archs[i], "recompute.mode=none", 1, 1);
        MetricsStep large = first_step(fp8, archs[i], "recompute.mode=none", 0x1p12f, 1);
        MetricsStep small = first_step(fp8, archs[i], "recompute.mode=full", 0x1p-20f, 1);
        assert_true(plain.loss == large.loss && plain.loss == small.loss);
    }
}

// Here other rows of the same weights lose digits. Gradients are those of bf16, but for what rounding takes from them
// in three products forward and three backward with two operands each, of the layers and of the head (test_fp8.c): 0.25
// of their norm at most.
static void inner_activations_are_in_range_whatever_the_weights(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        MetricsStep want = first_step(bf16_run, archs[i], "recompute.mode=none", 1, 0x1p12f);
        MetricsStep got = first_step(fp8, archs[i], "recompute.mode=none", 1, 0x1p12f);
        assert_true(fabs(got.grad_norm / want.grad_norm - 1) < 0.25);
        assert_true(fabs(got.loss / want.loss - 1) < 0.01);
    }
}

static double scale_of(const json_t *state, size_t slot, size_t layer) {
    return json_number_value(json_array_get(json_array_get(json_object_get(state, "fp8_scales"), slot), layer));
}

// A step that was stopped between its micro-batches shows the scales that it began with, and after the whole one are
// those of its own numbers, which rounding may have moved over a power of two.
static void every_activation_begins_with_the_scale_of_its_own_numbers(void **state) {
    (void)state;
    enum { SLOTS = 5, LAYERS = 2 }; // fp8_state.h: activations come first
    for (int i = 0; i < 3; i++) {
        First first;
        MetricsStep metrics;
        bool stopped;
        sig_atomic_t stop = 1;
        first_open(&first, fp8, archs[i], "recompute.mode=none", 0x1p12f, 0x1p6f);
        assert_ok(trainer_step(&first.trainer, &metrics, &stop, &stopped));
        assert_true(stopped);
        json_t *began = trainer_state(&first.trainer);
        assert_ok(trainer_step(&first.trainer, &metrics, NULL, &stopped));
        json_t *ended = trainer_state(&first.trainer);
        for (size_t k = 0; k < SLOTS * LAYERS; k++) {
            double ratio = scale_of(began, k / LAYERS, k % LAYERS) / scale_of(ended, k / LAYERS, k % LAYERS);
            assert_true(ratio >= 0.5 && ratio <= 2);
        }
        double head[2] = {json_number_value(json_object_get(began, "fp8_head_scale")),
                          json_number_value(json_object_get(ended, "fp8_head_scale"))};
        assert_true(head[0] >= head[1] / 2 && head[0] <= head[1] * 2);
        json_decref(began);
        json_decref(ended);
        first_close(&first);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_norms_hand_on_is_in_range_whatever_their_weights),
        cmocka_unit_test(every_activation_begins_with_the_scale_of_its_own_numbers),
        cmocka_unit_test(inner_activations_are_in_range_whatever_the_weights),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
