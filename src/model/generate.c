// The generator is a second layout over the same weights: one sequence, nothing kept per layer but the caches.
#include "model/generate.h"

#include "base/text.h"
#include "model/transformer.h"

#include <assert.h>
#include <stdlib.h>

struct Generator {
    Model *model;
    Model view;  // the model's weights under the generator's own layout and buffers
    char *cache; // [layers][k, v][positions, kv_heads * head_dim]
    size_t cache_bytes;
    int positions, used;
};

static const LayoutKind own_kinds[] = {LAYOUT_ACTIVATIONS, LAYOUT_TEMPORARIES, LAYOUT_CONSTANTS, LAYOUT_WORKSPACE};

static int64_t kv_dim(const Generator *generator) {
    const ModelConfig *c = &generator->view.layout.request.config;
    return (int64_t)c->kv_heads * c->head_dim;
}

Status generator_create(Generator **out, Model *model, int positions) {
    *out = NULL;
    Generator *generator = xcalloc(1, sizeof *generator);
    generator->model = model;
    generator->positions = positions;
    LayoutRequest request = model->layout.request;
    request.micro_batch = 1;
    request.seq = positions;
    request.recompute = RECOMPUTE_FULL;
    request.logits_rows = 1;
    request.documents = false;
    request.inference = true;
    generator->view = (Model){.ops = model->ops, .router_bias = model->router_bias};
    Status status = layout_build(&generator->view.layout, &request);
    Ops *ops = model->ops;
    for (int i = 0; i < 4 && !status; i++) {
        LayoutKind kind = own_kinds[i];
        status =
            ops->alloc(ops, &generator->view.memory[kind], (size_t)generator->view.layout.bytes[kind], "generation");
    }
    if (!status) {
        size_t row = (size_t)kv_dim(generator) * dtype_size(model->layout.dtype);
        generator->cache_bytes = 2 * (size_t)request.config.layers * (size_t)positions * row;
        status = ops->alloc(ops, (void **)&generator->cache, generator->cache_bytes, "key-value cache");
    }
    if (status) {
        generator_free(generator);
        return status;
    }
    generator->view.memory[LAYOUT_WEIGHTS] = model->memory[LAYOUT_WEIGHTS];
    size_t table = (size_t)positions * (size_t)(request.config.head_dim / 2);
    float *tables = xmalloc(2 * table * sizeof(float));
    model_rope_table(&request.config, positions, tables, tables + table);
    ops->upload(ops, model_const(&generator->view, CONST_COS).data, tables, table * sizeof(float));
    ops->upload(ops, model_const(&generator->view, CONST_SIN).data, tables + table, table * sizeof(float));
    free(tables);
    Tensor bias = model_const(model, CONST_ROUTER_BIAS);
    if (tensor_present(bias))
        ops->copy(ops, model_const(&generator->view, CONST_ROUTER_BIAS).data, bias.data,
                  (size_t)model->layout.constants[CONST_ROUTER_BIAS].bytes);
    *out = generator;
    return NULL;
}

void generator_free(Generator *generator) {
    if (!generator) return;
    Ops *ops = generator->model->ops;
    for (int i = 0; i < 4; i++) {
        LayoutKind kind = own_kinds[i];
        if (generator->view.memory[kind])
            ops->free(ops, generator->view.memory[kind], (size_t)generator->view.layout.bytes[kind]);
    }
    if (generator->cache) ops->free(ops, generator->cache, generator->cache_bytes);
    layout_free(&generator->view.layout);
    free(generator);
}

void generator_reset(Generator *generator) {
    generator->used = 0;
}

// The layer's keys, or (which 1) its values: [positions, kv_heads * head_dim].
static Tensor layer_cache(const Generator *generator, int layer, int which) {
    DType dtype = generator->view.layout.dtype;
    int64_t cols = kv_dim(generator), rows = generator->positions;
    char *place = generator->cache + (size_t)((2 * layer + which) * rows * cols) * dtype_size(dtype);
    return tensor_make(place, dtype, rows, cols, which ? "value cache" : "key cache");
}

void generator_feed(Generator *generator, const int32_t *ids, int n, float *logits) {
    Model *view = &generator->view, *model = generator->model;
    Ops *ops = view->ops;
    assert(n >= 1 && generator->used + n <= generator->positions);
    ops->bind_workspace(ops, view->memory[LAYOUT_WORKSPACE], (size_t)view->layout.bytes[LAYOUT_WORKSPACE]);
    view->tokens = n; // every buffer was sized for `positions` tokens
    view->first_position = generator->used;
    ops->upload(ops, model_const(view, CONST_IDS).data, ids, (size_t)n * sizeof(int32_t));
    transformer_embed(view);
    for (int i = 0; i < view->layout.layer_count; i++)
        transformer_layer_cached(view, i, layer_cache(generator, i, 0), layer_cache(generator, i, 1), generator->used);
    Tensor out = transformer_last_logits(view);
    size_t bytes = (size_t)out.cols * dtype_size(out.dtype);
    if (out.dtype == DTYPE_F32) {
        ops->download(ops, logits, out.data, bytes);
    } else {
        void *narrow = xmalloc(bytes);
        ops->download(ops, narrow, out.data, bytes);
        for (int64_t i = 0; i < out.cols; i++)
            logits[i] = storage_get(narrow, i, out.dtype);
        free(narrow);
    }
    generator->used += n;
    if (model->memory[LAYOUT_WORKSPACE])
        ops->bind_workspace(ops, model->memory[LAYOUT_WORKSPACE], (size_t)model->layout.bytes[LAYOUT_WORKSPACE]);
}
