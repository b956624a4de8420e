// FP8 scales between the device and state.json. They are powers of two, which a JSON number keeps exactly.
#include "train/fp8_state.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>

static float *read_scales(Model *model) {
    Tensor scales = model_const(model, CONST_FP8_SCALE);
    float *values = xmalloc((size_t)tensor_count(scales) * sizeof(float));
    model->ops->download(model->ops, values, scales.data, (size_t)tensor_count(scales) * sizeof(float));
    return values;
}

json_t *fp8_scales_json(Model *model) {
    int64_t cols = model_const(model, CONST_FP8_SCALE).cols;
    float *values = read_scales(model);
    json_t *slots = json_array();
    for (int64_t slot = 0; slot < FP8_FIRST_WEIGHT; slot++) {
        json_t *list = json_array();
        for (int64_t at = 0; at < cols; at += FP8_SCALE_STEP)
            json_array_append_new(list, json_real((double)values[slot * cols + at]));
        json_array_append_new(slots, list);
    }
    free(values);
    return slots;
}

Status fp8_scales_restore(Model *model, const json_t *state, const char *where) {
    const json_t *slots = json_object_get(state, "fp8_scales");
    if (!slots || !model->layout.fp8) return NULL;
    Tensor scales = model_const(model, CONST_FP8_SCALE);
    float *values = read_scales(model);
    bool fine = json_array_size(slots) == FP8_FIRST_WEIGHT;
    for (int64_t i = 0; fine && i < FP8_FIRST_WEIGHT * scales.cols; i += FP8_SCALE_STEP) {
        const json_t *list = json_array_get(slots, (size_t)(i / scales.cols));
        const json_t *value = json_array_get(list, (size_t)(i % scales.cols / FP8_SCALE_STEP));
        fine = json_array_size(list) == (size_t)(scales.cols / FP8_SCALE_STEP) && json_is_number(value);
        values[i] = fine ? (float)json_number_value(value) : 0;
        fine = fine && values[i] > 0 && isfinite(values[i]);
    }
    if (fine) {
        model->ops->upload(model->ops, scales.data, values, (size_t)tensor_count(scales) * sizeof(float));
        model->fp8_scaled = true;
    }
    free(values);
    return fine ? NULL : status_at(status_usage("fp8_scales of state.json does not fit the model"), where, 0, 0);
}
