// FP8 scales between the device and state.json. They are powers of two, which a JSON number keeps exactly.
#include "train/fp8_state.h"

#include "base/text.h"
#include "model/fp8.h"

#include <math.h>
#include <stdlib.h>

static float *read_scales(Model *model) {
    Tensor scales = model_const(model, CONST_FP8_SCALE);
    float *values = xmalloc((size_t)tensor_count(scales) * sizeof(float));
    model->ops->download(model->ops, values, scales.data, (size_t)tensor_count(scales) * sizeof(float));
    return values;
}

// Rows of the lists: those of layers.
static const Fp8Slot layer_slots[] = {FP8_ATTN_IN, FP8_ATTN_OUT, FP8_MLP_IN, FP8_GATE_UP, FP8_HIDDEN,
                                      FP8_DATTN,   FP8_DQKV,     FP8_DMLP,   FP8_DGATE_UP};
enum { LAYER_SLOTS = sizeof layer_slots / sizeof *layer_slots };

void fp8_scales_save(Model *model, json_t *state) {
    int64_t cols = model_const(model, CONST_FP8_SCALE).cols;
    float *values = read_scales(model);
    json_t *slots = json_array();
    for (int i = 0; i < LAYER_SLOTS; i++) {
        int64_t slot = layer_slots[i];
        json_t *list = json_array();
        for (int64_t at = 0; at < cols; at += FP8_SCALE_STEP)
            json_array_append_new(list, json_real((double)values[slot * cols + at]));
        json_array_append_new(slots, list);
    }
    json_object_set_new(state, "fp8_scales", slots);
    json_object_set_new(state, "fp8_head_scale", json_real((double)values[FP8_HEAD_IN * cols]));
    free(values);
}

static bool read_scale(float *value, const json_t *number) {
    if (!json_is_number(number)) return false;
    *value = (float)json_number_value(number);
    return *value > 0 && isfinite(*value);
}

Status fp8_scales_restore(Model *model, const json_t *state, const char *where) {
    const json_t *slots = json_object_get(state, "fp8_scales");
    if (!slots || !model->layout.fp8) return NULL;
    Tensor scales = model_const(model, CONST_FP8_SCALE);
    float *values = read_scales(model);
    size_t layers = (size_t)(scales.cols / FP8_SCALE_STEP);
    bool fine = json_array_size(slots) == LAYER_SLOTS;
    for (size_t i = 0; fine && i < LAYER_SLOTS * layers; i++) {
        const json_t *list = json_array_get(slots, i / layers);
        float *value = &values[layer_slots[i / layers] * scales.cols + (int64_t)(i % layers) * FP8_SCALE_STEP];
        fine = json_array_size(list) == layers && read_scale(value, json_array_get(list, i % layers));
    }
    const json_t *head = json_object_get(state, "fp8_head_scale");
    float *head_value = &values[FP8_HEAD_IN * scales.cols];
    *head_value = FP8_FIRST_SCALE;
    fine = fine && (!head || read_scale(head_value, head));
    if (fine) {
        model->ops->upload(model->ops, scales.data, values, (size_t)tensor_count(scales) * sizeof(float));
        model->fp8_scaled = true;
    }
    free(values);
    return fine ? NULL : status_at(status_usage("fp8_scales of state.json does not fit the model"), where, 0, 0);
}
