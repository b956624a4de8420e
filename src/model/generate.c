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
    ops->upload(ops, model_const(&generator->view, CONST_COS), tables, table * sizeof(float));
    ops->upload(ops, model_const(&generator->view, CONST_SIN), tables + table, table * sizeof(float));
    free(tables);
    size_t bias_bytes = (size_t)model->layout.const_bytes[CONST_ROUTER_BIAS];
    if (bias_bytes)
        ops->copy(ops, model_const(&generator->view, CONST_ROUTER_BIAS), model_const(model, CONST_ROUTER_BIAS),
                  bias_bytes);
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

// Attention of n new tokens: rotate, append keys and values to the cache, attend to all of it, join the residual.
static void cached_attention(Generator *generator, int layer, int n) {
    Model *view = &generator->view;
    Ops *ops = view->ops;
    const ModelConfig *c = &view->layout.request.config;
    DType dtype = view->layout.dtype;
    size_t size = dtype_size(dtype);
    int64_t q_dim = model_attention_dim(c), row = kv_dim(generator), stride = model_qkv_dim(c), qk_dim = q_dim + row;
    QkRopeShape shape = {.tokens = n,
                         .seq = generator->positions,
                         .first_position = generator->used,
                         .heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .cos = model_const(view, CONST_COS),
                         .sin = model_const(view, CONST_SIN),
                         .q_weight = model_param(view, LAYOUT_WEIGHTS, PARAM_Q_NORM, layer),
                         .k_weight = model_param(view, LAYOUT_WEIGHTS, PARAM_K_NORM, layer),
                         .eps = c->norm_eps};
    bool norm = model_qk_norm(c);
    char *qkv = transformer_activation(view, ACT_QKV, layer);
    char *qk = norm ? transformer_activation(view, ACT_QK, layer) : qkv;
    int64_t qk_stride = norm ? qk_dim : stride;
    ops->qk_rope_forward(ops, qk, qk_stride, qkv, stride,
                         norm ? transformer_activation(view, ACT_QK_RSTD, layer) : NULL, &shape, dtype);
    size_t row_bytes = (size_t)row * size, layer_bytes = 2 * (size_t)generator->positions * row_bytes;
    char *keys = generator->cache + (size_t)layer * layer_bytes,
         *values = keys + (size_t)generator->positions * row_bytes;
    char *attention = transformer_activation(view, ACT_ATTN_OUT, layer);
    for (int i = 0; i < n; i++) {
        size_t place = (size_t)(generator->used + i) * row_bytes;
        ops->copy(ops, keys + place, qk + (size_t)(i * qk_stride + q_dim) * size, row_bytes);
        ops->copy(ops, values + place, qkv + (size_t)(i * stride + qk_dim) * size, row_bytes);
    }
    for (int i = 0; i < n; i++) // one by one: the queries stand apart by the stride of qkv, the op takes adjacent ones
        ops->attention_cached(ops, attention + (size_t)(i * q_dim) * size, qk + (size_t)(i * qk_stride) * size, keys,
                              values, 1, generator->used + i, c->heads, c->kv_heads, c->head_dim,
                              1.0f / __builtin_sqrtf((float)c->head_dim), dtype);
    ops->linear_forward(ops, transformer_activation(view, ACT_RESIDUAL_MID, layer), attention, q_dim,
                        model_param(view, LAYOUT_WEIGHTS, PARAM_O, layer),
                        transformer_activation(view, ACT_RESIDUAL_IN, layer), n, (int)q_dim, c->hidden, dtype);
}

void generator_feed(Generator *generator, const int32_t *ids, int n, float *logits) {
    Model *view = &generator->view, *model = generator->model;
    Ops *ops = view->ops;
    const ModelConfig *c = &view->layout.request.config;
    DType dtype = view->layout.dtype;
    size_t size = dtype_size(dtype);
    assert(n >= 1 && generator->used + n <= generator->positions);
    ops->bind_workspace(ops, view->memory[LAYOUT_WORKSPACE], (size_t)view->layout.bytes[LAYOUT_WORKSPACE]);
    view->layout.tokens = n; // every buffer was sized for `positions` tokens
    view->pass = 0;
    ops->upload(ops, model_const(view, CONST_IDS), ids, (size_t)n * sizeof(int32_t));
    ops->embedding_forward(ops, transformer_activation(view, ACT_RESIDUAL_IN, 0), model_const(view, CONST_IDS),
                           model_param(view, LAYOUT_WEIGHTS, PARAM_EMBEDDING, -1), n, c->hidden, dtype);
    for (int i = 0; i < c->layers; i++) {
        transformer_qkv(view, i);
        cached_attention(generator, i, n);
        transformer_mlp(view, i);
    }
    transformer_final_norm(view);
    const char *last =
        (char *)transformer_activation(view, ACT_FINAL_NORMED, -1) + (size_t)(n - 1) * (size_t)c->hidden * size;
    void *out = transformer_activation(view, ACT_LOGITS, -1);
    ops->linear_forward(ops, out, last, c->hidden, model_param(view, LAYOUT_WEIGHTS, transformer_head_param(view), -1),
                        NULL, 1, c->hidden, c->vocab, dtype);
    if (dtype == DTYPE_F32) {
        ops->download(ops, logits, out, (size_t)c->vocab * size);
    } else {
        bf16 *narrow = xmalloc((size_t)c->vocab * size);
        ops->download(ops, narrow, out, (size_t)c->vocab * size);
        for (int i = 0; i < c->vocab; i++)
            logits[i] = bf16_to_f32(narrow[i]);
        free(narrow);
    }
    generator->used += n;
    if (model->memory[LAYOUT_WORKSPACE])
        ops->bind_workspace(ops, model->memory[LAYOUT_WORKSPACE], (size_t)model->layout.bytes[LAYOUT_WORKSPACE]);
}
