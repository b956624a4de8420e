// The router's bias between the device and state.json. A float survives the way through a JSON number bit for bit.
#include "train/router_bias.h"

#include "base/text.h"

#include <stdlib.h>

json_t *router_bias_json(Model *model) {
    const ModelConfig *config = &model->layout.request.config;
    size_t bytes = (size_t)model->layout.constants[CONST_ROUTER_BIAS].bytes;
    float *bias = xmalloc(bytes + 1);
    model->ops->download(model->ops, bias, model_const(model, CONST_ROUTER_BIAS).data, bytes);
    json_t *layers = json_array();
    const float *at = bias;
    for (int i = 0; i < model_sparse_layers(config); i++) {
        json_t *layer = json_array();
        for (int e = 0; e < config->experts; e++)
            json_array_append_new(layer, json_real((double)*at++));
        json_array_append_new(layers, layer);
    }
    free(bias);
    return layers;
}

static bool read_layer(const json_t *layer, int experts, float *out) {
    if (json_array_size(layer) != (size_t)experts) return false;
    for (int e = 0; e < experts; e++) {
        const json_t *value = json_array_get(layer, (size_t)e);
        if (!json_is_number(value)) return false;
        out[e] = (float)json_number_value(value);
    }
    return true;
}

Status router_bias_restore(Model *model, const json_t *state, const char *where) {
    const json_t *layers = json_object_get(state, "router_bias");
    if (!layers) return NULL;
    const ModelConfig *config = &model->layout.request.config;
    size_t bytes = (size_t)model->layout.constants[CONST_ROUTER_BIAS].bytes;
    float *bias = xmalloc(bytes + 1);
    bool fine = json_array_size(layers) == (size_t)model_sparse_layers(config);
    for (int i = 0; fine && i < model_sparse_layers(config); i++)
        fine =
            read_layer(json_array_get(layers, (size_t)i), config->experts, bias + (size_t)i * (size_t)config->experts);
    if (fine) {
        model->ops->upload(model->ops, model_const(model, CONST_ROUTER_BIAS).data, bias, bytes);
        model->router_bias = true;
    }
    free(bias);
    return fine ? NULL : status_at(status_usage("router_bias of state.json does not fit the model"), where, 0, 0);
}
